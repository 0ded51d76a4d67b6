//! The programs of coremltools' own op tests.

use std::fs;
use std::path::{Path, PathBuf};

use milwright::eval::Precision;
use milwright::eval::compare::{Tolerance, closeness};
use milwright::eval::npz::Arrays;

use crate::{Check, Subject};

pub(crate) fn checks(folder: &Path) -> Vec<Check> {
    let programs = programs(folder).into_iter();
    let check = |program: OpProgram| Check {
        id: format!("ops::{}", program.id),
        ops: program.ops,
        run: Box::new(move || run(&program.folder, program.tolerance)),
    };
    programs.map(check).collect()
}

/// A program of the index that coremltools converts.
pub(crate) struct OpProgram {
    pub(crate) id: String,
    pub(crate) folder: PathBuf,
    pub(crate) ops: String,
    tolerance: Tolerance,
}

pub(crate) fn programs(folder: &Path) -> Vec<OpProgram> {
    let text = fs::read_to_string(folder.join("INDEX.tsv")).expect("the corpus has an index");
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().expect("a header").split('\t').collect();
    let column = |name: &str| header.iter().position(|h| *h == name).expect("a column");
    let (id, ops, status) = (column("id"), column("ops"), column("status"));
    let (relative, absolute) = (column("rtol"), column("atol"));
    lines
        .map(|line| line.split('\t').collect::<Vec<_>>())
        .filter(|cells| cells[status] == "ok")
        .map(|cells| {
            let number = |column: usize| cells[column].parse().expect("a number");
            OpProgram {
                id: cells[id].to_owned(),
                folder: folder.join(cells[id]),
                ops: cells[ops].to_owned(),
                tolerance: Tolerance {
                    relative: number(relative),
                    absolute: number(absolute),
                },
            }
        })
        .collect()
}

/// The tests compare on hardware that rounds to fp16, so they run in that mode.
fn run(folder: &Path, tolerance: Tolerance) -> Result<(), String> {
    let meta = fs::read_to_string(folder.join("meta.json")).map_err(|e| e.to_string())?;
    let meta: serde_json::Value = serde_json::from_str(&meta).map_err(|e| e.to_string())?;
    let allowed = meta["allow_mismatch_ratio"].as_f64().unwrap_or(0.0);
    let subject = Subject::open(&folder.join("model.mlpackage"), &folder.join("io.npz"))?;
    let program = subject.part().program;
    let computed = subject.run(program, Precision::Fp16, &Arrays::new())?;
    if computed.is_empty() {
        return Err("nothing is expected".to_owned());
    }
    for output in computed {
        let close = closeness(&output.actual, &output.expected, tolerance)
            .map_err(|error| error.to_string())?;
        if close.misses as f64 > allowed * close.elements as f64 {
            let worst = close
                .worst
                .map_or(String::new(), |(index, actual, expected)| {
                    format!("; element {index} is {actual}, not {expected}")
                });
            return Err(format!(
                "call {}, `{}`: {} of {} elements do not agree{worst}",
                output.call, output.name, close.misses, close.elements
            ));
        }
    }
    Ok(())
}
