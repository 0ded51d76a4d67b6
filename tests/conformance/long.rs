//! Long attention: after slice-queries the largest tensor of scores is smaller by the factor of the
//! slicing, and the outputs are the same.

use std::path::Path;

use milwright::analysis::attention;
use milwright::eval::Precision;
use milwright::eval::npz::Arrays;
use milwright::ir::Program;
use milwright::pass::{Block, NoBlobs};

use crate::{Check, Subject, beyond_scale};

/// The queries of the model `llama_long`.
const QUERIES: u64 = 1536;

/// Relative to the largest magnitude of the output. Rows do not depend on each other, but a product
/// with fewer rows may add up each of them in another order.
const ROUNDING: f64 = 1e-5;

/// The same in fp16: one unit of the last place.
const HALF_ROUNDING: f64 = 1e-3;

pub(crate) fn checks(models: &Path) -> Vec<Check> {
    let folder = models.join("llama_long");
    if !folder.join("io.npz").exists() {
        return Vec::new();
    }
    let mut checks = Vec::new();
    for (form, before) in [
        ("fused", "none"),
        ("explicit", "explicit-attention{only_masked=false}"),
        ("scaled_scores", "explicit-attention{scale_on=scores}"),
    ] {
        for (chunk, rows) in [(0, QUERIES / 16), (100, 100)] {
            for precision in [Precision::Fp32, Precision::Fp16] {
                let folder = folder.clone();
                checks.push(Check {
                    id: format!("long::{form}::{rows}_rows::{}", precision.word()),
                    ops: String::new(),
                    run: Box::new(move || run(&folder, before, chunk, rows, precision)),
                });
            }
        }
    }
    checks
}

fn run(
    folder: &Path,
    before: &str,
    chunk: u64,
    rows: u64,
    precision: Precision,
) -> Result<(), String> {
    let subject = Subject::open(&folder.join("model.mlpackage"), &folder.join("io.npz"))?;
    let whole = subject.optimized(before)?;
    let sliced = subject.optimized(&format!("{before},slice-queries{{chunk={chunk}}}"))?;
    let [(attentions, largest), (parts, small)] = [&whole, &sliced].map(scores);
    let expected_parts = attentions * usize::try_from(QUERIES.div_ceil(rows)).unwrap();
    if attentions == 0 || parts != expected_parts {
        return Err(format!("{attentions} attentions become {parts}"));
    }
    if small * QUERIES != largest * rows {
        return Err(format!("scores of {largest} elements become {small}"));
    }
    let bound = match precision {
        Precision::Fp32 => ROUNDING,
        _ => HALF_ROUNDING,
    };
    let old = subject.run(&whole, precision, &Arrays::new())?;
    let new = subject.run(&sliced, precision, &Arrays::new())?;
    for (old, mut new) in old.into_iter().zip(new) {
        new.expected = old.actual;
        beyond_scale(&new, bound)?;
    }
    Ok(())
}

/// The number of attentions in a program, and of elements in the largest scores.
fn scores(program: &Program) -> (usize, u64) {
    let mut count = 0;
    let mut largest = 0;
    for function in program.functions.values() {
        let body = function.active().expect("a body");
        let block = Block {
            graph: &body.graph,
            outer: None,
            opset: None,
            blobs: &NoBlobs,
            ranges: None,
        };
        for (node, _) in body.graph.ops() {
            let Some(attention) = attention::at(&block, node) else {
                continue;
            };
            let query = block.tensor(attention.query.value).expect("a type");
            let elements = query.elements().expect("a fixed size");
            let [_, keys, size] = attention
                .lengths(&block)
                .expect("lengths")
                .map(|dim| dim.size().expect("a fixed size"));
            count += 1;
            largest = largest.max(elements / size * keys);
        }
    }
    (count, largest)
}
