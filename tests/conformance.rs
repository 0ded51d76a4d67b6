//! Runs the small programs of coremltools' own op tests in the interpreter: one test for each, named
//! by its suite and id, if the variable `MILWRIGHT_CORPUS` says where they are. What is expected
//! comes from those tests (numpy, PyTorch or TensorFlow); nothing of ours made it.
//!
//! `cargo test --test conformance -- conv` runs those whose name or op list contains `conv`.
//! `tests/conformance/exceptions.tsv` lists those that are not expected to agree, each with the
//! reason; one that agrees after all fails the test, so that the list stays true.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use milwright::eval::compare::Tolerance;
use milwright::eval::script::Script;
use milwright::eval::{Interpreter, Options, Precision, npz};
use milwright::source::ModelFile;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    if let Some(corpus) = std::env::var_os("MILWRIGHT_CORPUS") {
        let folder = PathBuf::from(corpus).join("ops");
        let exceptions = exceptions();
        for row in rows(&folder) {
            let reason = exceptions.get(&row.id).cloned();
            let folder = folder.clone();
            let title = format!("{} [{}]", row.id, row.ops);
            trials.push(Trial::test(title, move || {
                match (run(&folder, &row), reason) {
                    (Ok(()), None) => Ok(()),
                    (Err(_), Some(_)) => Ok(()),
                    (Err(error), None) => Err(Failed::from(error)),
                    (Ok(()), Some(reason)) => Err(Failed::from(format!(
                        "it agrees, but tests/conformance/exceptions.tsv lists it: {reason}"
                    ))),
                }
            }));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A line of `INDEX.tsv`.
struct Row {
    id: String,
    ops: String,
    tolerance: Tolerance,
}

fn rows(folder: &Path) -> Vec<Row> {
    let text = fs::read_to_string(folder.join("INDEX.tsv")).expect("the corpus has an index");
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().expect("a header").split('\t').collect();
    lines
        .filter_map(|line| {
            let cells: Vec<&str> = line.split('\t').collect();
            let cell = |name: &str| {
                let column = header.iter().position(|h| *h == name).expect("a column");
                cells.get(column).copied().unwrap_or_default()
            };
            let number = |name: &str| cell(name).parse::<f64>().expect("a number");
            (cell("status") == "ok").then(|| Row {
                id: cell("id").to_owned(),
                ops: cell("ops").to_owned(),
                tolerance: Tolerance {
                    relative: number("rtol"),
                    absolute: number("atol"),
                },
            })
        })
        .collect()
}

fn exceptions() -> BTreeMap<String, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/exceptions.tsv");
    let text = fs::read_to_string(path).expect("the list of exceptions");
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .filter_map(|line| line.split_once('\t'))
        .map(|(id, reason)| (id.to_owned(), reason.to_owned()))
        .collect()
}

fn run(folder: &Path, row: &Row) -> Result<(), String> {
    let folder = folder.join(&row.id);
    let meta = fs::read_to_string(folder.join("meta.json")).map_err(|e| e.to_string())?;
    let meta: serde_json::Value = serde_json::from_str(&meta).map_err(|e| e.to_string())?;
    let allowed = meta["allow_mismatch_ratio"].as_f64().unwrap_or(0.0);
    let file = ModelFile::open(&folder.join("model.mlpackage")).map_err(|e| e.to_string())?;
    let part = file.model.programs().remove(0);
    let name = part.interface.default_function.clone();
    let described = part
        .interface
        .function(&name)
        .ok_or("no function is described")?;
    let outputs: Vec<String> = described.outputs.iter().map(|o| o.name.clone()).collect();
    // Tests with fp16 inside were checked on hardware that rounds; our fp16 mode is that.
    let options = Options::new(Precision::Fp16.numerics());
    let interpreter = Interpreter::new(part.program, file.weights().clone(), options);
    let arrays = npz::read(&folder.join("io.npz")).map_err(|e| e.to_string())?;
    let script =
        Script::new(&arrays, &part.program.functions[&name].inputs).map_err(|e| e.to_string())?;
    let states = interpreter.zero_states(&name).map_err(|e| e.to_string())?;
    let checked = script
        .check(&interpreter, &name, &outputs, &states, row.tolerance)
        .map_err(|e| e.to_string())?;
    if checked.is_empty() {
        return Err("nothing is expected".to_owned());
    }
    for output in checked {
        let closeness = &output.closeness;
        if closeness.misses as f64 > allowed * closeness.elements as f64 {
            let worst = closeness
                .worst
                .map_or(String::new(), |(index, actual, expected)| {
                    format!("; element {index} is {actual}, not {expected}")
                });
            return Err(format!(
                "call {}, `{}`: {} of {} elements do not agree{worst}",
                output.call, output.name, closeness.misses, closeness.elements
            ));
        }
    }
    Ok(())
}
