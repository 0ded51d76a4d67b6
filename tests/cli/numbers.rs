//! What the default pipeline does to the numbers, by an evaluation in numpy and float64.
//!
//! This asks neither the passes nor the interpreter: `evaluate.py` knows the operations on its own,
//! and the inputs and expected outputs come from numpy, PyTorch and ONNX Runtime.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::command::{Folder, collection, data_packages, in_parallel};
use crate::main_job::optimize;
use crate::support::python::ask;

/// How far apart two evaluations may be, as a share of an output's largest value. Rewrites that are
/// equal in real arithmetic leave roundings to float64, and that of an epsilon to fp32.
const REAL: f64 = 1e-7;

/// The passes that say that they change no bit.
const EXACT: &str = "(dead-code,fuse-casts,remove-noops,forward-slices,dedup-consts)*";

/// The converter made minus infinity of its mask's lowest fp32 number, and NaN of what follows, which
/// finite-masks repairs: the tests of conformance compare the result with PyTorch.
const NOT_AS_EXPECTED: &str = "bert_mean_pool";

/// A package with recorded inputs, and the function that they are for.
#[derive(Clone)]
struct Recorded {
    package: PathBuf,
    inputs: PathBuf,
    function: String,
}

/// Optimizes and evaluates all; gives one line for each, in order.
fn evaluate(recorded: &[Recorded], pipeline: &str, options: &[&str]) -> Option<Vec<Value>> {
    let folder = Folder::new();
    let jobs = in_parallel(recorded, |index, one| {
        let out = folder.join(&format!("{index}.mlpackage"));
        optimize(&one.package, &out, pipeline);
        let mut job = vec![one.package.clone(), out, one.inputs.clone()];
        if !one.function.is_empty() {
            job.push(PathBuf::from(&one.function));
        }
        job
    });
    ask("evaluate.py", options, &jobs)
}

/// Panics where the default pipeline changed the numbers by more than its rewrites may, where the
/// exact passes changed any bit, or where what the file expects is farther off than `expected`;
/// gives the packages that could not be evaluated, with the operation.
fn judge(recorded: &[Recorded], options: &[&str], expected: f64) -> Option<Vec<String>> {
    let real = evaluate(recorded, "default", options)?;
    let exact = evaluate(recorded, EXACT, &[options, &["--typed"]].concat())?;
    let mut wrong = Vec::new();
    let mut unsupported = Vec::new();
    for (real, exact) in real.iter().zip(&exact) {
        let package = Path::new(real["before"].as_str().unwrap());
        if let Some(operation) = real["unsupported"].as_str() {
            unsupported.push(format!("{}: {operation}", label(package)));
            continue;
        }
        let holds = |line: &Value, key: &str, limit: f64| {
            line[key].as_f64().is_some_and(|found| found <= limit)
        };
        let is_repaired = label(package) == NOT_AS_EXPECTED;
        let same = holds(real, "worst", REAL) && holds(real, "expected", expected);
        if !is_repaired && !same {
            wrong.push(real.clone());
        }
        if !holds(exact, "worst", 0.0) {
            wrong.push(exact.clone());
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    println!("{} evaluated", real.len() - unsupported.len());
    Some(unsupported)
}

fn label(package: &Path) -> &str {
    let named = if package.ends_with("model.mlpackage") {
        package.parent().unwrap()
    } else {
        package
    };
    named.file_stem().and_then(OsStr::to_str).unwrap()
}

/// The recorded inputs beside packages, in files with one of these names.
fn recorded_beside(packages: Vec<PathBuf>, names: &[&str]) -> Vec<Recorded> {
    packages
        .into_iter()
        .flat_map(|package| {
            names
                .iter()
                .map(|name| package.with_file_name(name))
                .filter(|inputs| inputs.exists())
                .map(|inputs| Recorded {
                    package: package.clone(),
                    inputs,
                    function: String::new(),
                })
                .collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn the_packages_of_the_project_compute_what_they_did() {
    let mut recorded = Vec::new();
    for package in data_packages() {
        let stem = package.file_stem().unwrap().to_str().unwrap().to_owned();
        for entry in fs::read_dir(package.parent().unwrap()).unwrap() {
            let inputs = entry.unwrap().path();
            let name = inputs.file_name().unwrap().to_str().unwrap().to_owned();
            let Some(middle) = name
                .strip_prefix(&stem)
                .and_then(|rest| rest.strip_suffix("npz"))
            else {
                continue;
            };
            let function = middle.trim_matches('.').to_owned();
            recorded.push(Recorded {
                package: package.clone(),
                inputs,
                function,
            });
        }
    }
    recorded.sort_by(|a, b| a.inputs.cmp(&b.inputs));
    assert!(recorded.len() > 15);
    let Some(unsupported) = judge(&recorded, &[], 2e-3) else {
        return;
    };
    // The script does not decompress weights, and knows no types of unknown rank.
    let left_out = [
        "odd_types: no value for input unknown_dims",
        "quantized_ios16: constexpr_affine_dequantize",
        "quantized_ios18: element type INT4",
    ];
    assert_eq!(unsupported, left_out);
}

#[test]
fn the_models_of_the_collection_compute_what_they_did() {
    let Some(packages) = collection(&["models"]) else {
        return;
    };
    let recorded = recorded_beside(packages, &["io.npz", "calls.npz"]);
    assert!(recorded.len() > 30);
    let Some(unsupported) = judge(&recorded, &[], 5e-3) else {
        return;
    };
    assert_eq!(unsupported, ["lstm: lstm"]);
}

/// Programs on which coremltools' own passes give wrong results.
#[test]
fn the_probes_of_the_collection_compute_what_they_should() {
    let Some(packages) = collection(&["probes"]) else {
        return;
    };
    let recorded = recorded_beside(packages, &["io.npz"]);
    let Some(unsupported) = judge(&recorded, &["--start-states"], 1e-5) else {
        return;
    };
    assert_eq!(
        unsupported,
        ["53_resize_bilinear_to_the_same_size_OFFSET_CORNERS: resize_bilinear"]
    );
}
