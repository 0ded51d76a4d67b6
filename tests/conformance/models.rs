//! Whole models, with the outputs of PyTorch or ONNX Runtime in fp32: as they are, and after each
//! named pipeline.

use std::path::Path;

use milwright::eval::Precision;
use milwright::eval::npz::Arrays;
use milwright::eval::script::Computed;
use milwright::ir::DType;

use crate::{Check, Subject, beyond_scale, folders, name};

/// Of fp32 models, relative to the largest magnitude of the output.
const FP32: f64 = 1e-4;
/// Of models with fp16 values.
const FP16: f64 = 1e-2;

pub(crate) fn checks(folder: &Path) -> Vec<Check> {
    let mut checks = Vec::new();
    for folder in folders(folder) {
        for arrays in ["io.npz", "calls.npz"] {
            if !folder.join(arrays).exists() {
                continue;
            }
            for pipeline in ["none", "default", "llm", "ane-direct"] {
                for precision in [Precision::Fp32, Precision::Fp16] {
                    let (model, mode) = (name(&folder), precision.word());
                    let folder = folder.clone();
                    checks.push(Check {
                        id: format!("models::{model}::{arrays}::{mode}::{pipeline}"),
                        ops: String::new(),
                        run: Box::new(move || run(&folder, arrays, precision, pipeline)),
                    });
                }
            }
        }
    }
    checks
}

fn run(folder: &Path, arrays: &str, precision: Precision, pipeline: &str) -> Result<(), String> {
    let subject = Subject::open(&folder.join("model.mlpackage"), &folder.join(arrays))?;
    let program = subject.optimized(pipeline)?;
    let mut has_half = false;
    program.for_each_value(&mut |value| {
        has_half |= value
            .tensor_type()
            .is_some_and(|ty| ty.dtype == DType::Float16);
    });
    let bound = if has_half { FP16 } else { FP32 };
    // Weights of random models give ties that rounding decides; those that were trained do not.
    let trained = folder.to_string_lossy().contains("trained");
    for output in subject.run(&program, precision, &Arrays::new())? {
        beyond_scale(&output, bound)?;
        if trained {
            same_choices(&output)?;
        }
    }
    Ok(())
}

/// The largest element of each row is in the same place.
fn same_choices(computed: &Computed) -> Result<(), String> {
    let columns = *computed
        .expected
        .shape()
        .last()
        .ok_or("a scalar has no rows")?;
    let choices = |values: Vec<f64>| -> Vec<usize> {
        let row = |row: &[f64]| {
            let best = (0..row.len()).reduce(|a, b| if row[b] > row[a] { b } else { a });
            best.unwrap_or_default()
        };
        values.chunks(columns).map(row).collect()
    };
    let actual = choices(computed.actual.to_f64().map_err(|e| e.to_string())?);
    let expected = choices(computed.expected.to_f64().map_err(|e| e.to_string())?);
    if actual == expected {
        Ok(())
    } else {
        Err(format!(
            "call {}: the rows choose {actual:?}, not {expected:?}",
            computed.call
        ))
    }
}
