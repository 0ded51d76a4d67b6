//! What each pass declares of its exactness, on every model and probe that it changes: an `exact` one
//! keeps every bit of every output at the program's own types, a `real` one every value in fp32 but for
//! rounding. The cases of the passes hold the same on small programs, with special values.

use std::path::Path;

use milwright::eval::Precision;
use milwright::eval::script::Computed;
use milwright::pass::{Exactness, Manager, Pass, Pipeline, Settings, Silent, verify};
use milwright::passes;
use milwright::tensor::Tensor;

use crate::{Check, Subject, beyond_scale, folders, name};

/// Relative to the largest magnitude of an output: what other roundings add up to in a model.
const ROUNDING: f64 = 1e-4;

pub(crate) fn checks(corpus: &Path) -> Vec<Check> {
    let mut checks = Vec::new();
    for pass in passes::ALL {
        let exactness = pass.meta().exactness;
        if matches!(exactness, Exactness::Interface | Exactness::None) {
            continue;
        }
        for set in ["models", "probes"] {
            for folder in folders(&corpus.join(set)) {
                let arrays = ["calls.npz", "io.npz"];
                let Some(arrays) = arrays.into_iter().find(|file| folder.join(file).exists())
                else {
                    continue;
                };
                checks.push(Check {
                    id: format!("exactness::{}::{set}::{}", pass.meta().id, name(&folder)),
                    ops: String::new(),
                    run: Box::new(move || run(*pass, &folder, arrays)),
                });
            }
        }
    }
    checks
}

fn run(pass: &dyn Pass, folder: &Path, arrays: &str) -> Result<(), String> {
    let subject = Subject::open(&folder.join("model.mlpackage"), &folder.join(arrays))?;
    let before = subject.part().program;
    let mut after = before.clone();
    let known = verify::issues(before);
    let steps = Pipeline::parse(pass.meta().id, passes::ALL).map_err(|error| error.to_string())?;
    let outcome = Manager::new(passes::ALL, Settings::default())
        .run(
            &steps,
            &mut after,
            "",
            &known,
            &**subject.file.weights(),
            &mut Silent,
        )
        .map_err(|error| error.to_string())?;
    if outcome.rewrites() == 0 {
        return Ok(());
    }
    let start = subject.starting_states();
    let exactness = pass.meta().exactness;
    // At the program's own types, or in real arithmetic.
    let precision = match exactness {
        Exactness::Exact => Precision::Fp16,
        _ => Precision::Fp32,
    };
    let old = subject.run(before, precision, &start)?;
    let new = subject.run(&after, precision, &start)?;
    for (old, new) in old.into_iter().zip(new) {
        let place = format!("{}, call {}, `{}`", precision.word(), old.call, old.name);
        match exactness {
            Exactness::Exact => same_bits(&old, &new),
            Exactness::Approx(bound) => {
                repaired(&old, new).and_then(|new| equal(old, new, bound.max(ROUNDING)))
            }
            _ => equal(old, new, ROUNDING),
        }
        .map_err(|why| format!("{place}: {why}"))?;
    }
    Ok(())
}

/// The output after the pass, with what was not finite before as it was: that may be repaired.
fn repaired(old: &Computed, new: Computed) -> Result<Computed, String> {
    let text = |error: milwright::tensor::TensorError| error.to_string();
    let before = old.actual.as_floats().map_err(text)?;
    let after = new.actual.as_floats().map_err(text)?;
    let pairs = before.iter().zip(after.iter());
    let values = pairs
        .map(|(a, b)| if a.is_finite() { *b } else { *a })
        .collect();
    let actual = Tensor::floats(new.actual.dtype(), new.actual.shape().to_vec(), values);
    Ok(Computed { actual, ..new })
}

fn equal(old: Computed, new: Computed, bound: f64) -> Result<(), String> {
    beyond_scale(
        &Computed {
            expected: old.actual,
            ..new
        },
        bound,
    )
}

fn same_bits(old: &Computed, new: &Computed) -> Result<(), String> {
    let old = old.actual.to_f64().map_err(|error| error.to_string())?;
    let new = new.actual.to_f64().map_err(|error| error.to_string())?;
    let differ = |(a, b): (&f64, &f64)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan());
    match old.iter().zip(&new).position(differ) {
        None => Ok(()),
        Some(index) => Err(format!(
            "element {index} is {:?} before and {:?} after",
            old[index], new[index]
        )),
    }
}
