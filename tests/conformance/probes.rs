//! Programs that coremltools' passes break, with the right outputs: as they are, and after our
//! pipelines.

use std::path::Path;

use milwright::eval::Precision;

use crate::{Check, Subject, beyond_scale, folders, name};

/// Outputs are small programs' and come from numpy and torch in fp32.
const BOUND: f64 = 1e-5;
/// Where fp16 is inside.
const HALF_BOUND: f64 = 2e-3;

pub(crate) fn checks(folder: &Path) -> Vec<Check> {
    let mut checks = Vec::new();
    for folder in folders(folder) {
        for pipeline in ["none", "cleanup", "default"] {
            let probe = name(&folder);
            let folder = folder.clone();
            checks.push(Check {
                id: format!("probes::{probe}::{pipeline}"),
                ops: String::new(),
                run: Box::new(move || run(&folder, pipeline)),
            });
        }
    }
    checks
}

fn run(folder: &Path, pipeline: &str) -> Result<(), String> {
    let subject = Subject::open(&folder.join("model.mlpackage"), &folder.join("io.npz"))?;
    let program = subject.optimized(pipeline)?;
    let start = subject.starting_states();
    let has_half =
        milwright::text::program_text(&program, &milwright::text::PrintOptions::default())
            .is_ok_and(|text| text.contains("fp16"));
    let computed = subject.run(&program, Precision::Fp16, &start)?;
    if computed.is_empty() {
        return Err("nothing is expected".to_owned());
    }
    for output in computed {
        beyond_scale(&output, if has_half { HALF_BOUND } else { BOUND })?;
    }
    Ok(())
}
