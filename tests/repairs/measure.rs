//! Runs a program before and after passes, and measures how far each result is from the right one.

use std::collections::BTreeMap;
use std::path::PathBuf;

use milwright::eval::{Interpreter, Options, Precision, States, Unobserved};
use milwright::ir::{DType, Program};
use milwright::ops::Datum;
use milwright::pass::{Manager, Pipeline, Settings, Silent, verify};
use milwright::passes;
use milwright::source::ModelFile;
use milwright::tensor::Tensor;

/// The rounding of fp16 over a few operations, relative to the largest magnitude of the right result.
pub(crate) const ROUNDING: f64 = 4e-3;

/// Relative to the same: a result that is off by more is wrong, not rounded.
pub(crate) const WRONG: f64 = 1.5e-2;

pub(crate) type Arrays = BTreeMap<String, Tensor>;

/// A program of the corpus, with its weights.
pub(crate) fn open(package: &str) -> Option<ModelFile> {
    let corpus = std::env::var_os("MILWRIGHT_CORPUS").map(PathBuf::from)?;
    Some(ModelFile::open(&corpus.join(package)).expect("a package of the corpus"))
}

pub(crate) fn half(shape: &[usize], element: impl Fn(usize) -> f32) -> Tensor {
    float(DType::Float16, shape, element)
}

pub(crate) fn float(dtype: DType, shape: &[usize], element: impl Fn(usize) -> f32) -> Tensor {
    let count = shape.iter().product();
    let elements = (0..count).map(element).collect();
    let tensor = Tensor::floats(dtype, shape.to_vec(), elements);
    match dtype {
        DType::Float16 => tensor.rounded_to_half(false).expect("floats"),
        _ => tensor,
    }
}

/// A number in [−1, 1) for each index, by a generator of 64 bits (Knuth, MMIX).
pub(crate) fn noise(index: usize) -> f32 {
    let state = (index as u64 + 1)
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    let mixed = (state ^ (state >> 32)).wrapping_mul(6_364_136_223_846_793_005);
    (mixed >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

/// The program after a pipeline, and how often it was rewritten.
pub(crate) fn repaired(file: &ModelFile, program: &Program, pipeline: &str) -> (Program, usize) {
    let mut after = program.clone();
    let known = verify::issues(program);
    let steps = Pipeline::parse(pipeline, passes::ALL).expect("a pipeline");
    let outcome = Manager::new(passes::ALL, Settings::default())
        .run(
            &steps,
            &mut after,
            "",
            &known,
            &**file.weights(),
            &mut Silent,
        )
        .expect("the pass runs");
    (after, outcome.rewrites())
}

/// The first output.
pub(crate) fn run(
    file: &ModelFile,
    program: &Program,
    precision: Precision,
    inputs: &Arrays,
) -> Vec<f64> {
    let options = Options::new(precision.numerics());
    let interpreter = Interpreter::new(program, file.weights().clone(), options);
    let (name, function) = program.functions.iter().next().expect("a function");
    let inputs = function
        .inputs
        .iter()
        .map(|input| (input.name.clone(), inputs[&input.name].clone()))
        .collect();
    let results = interpreter
        .run(name, &inputs, &States::new(), &mut Unobserved)
        .expect("it runs");
    match results.into_iter().next() {
        Some((_, Datum::Tensor(tensor))) => tensor.to_f64().expect("numbers"),
        _ => panic!("no output"),
    }
}

/// How far a result is from the right one, relative to the largest magnitude of this; infinite if it
/// has NaN or infinity where that has not.
pub(crate) fn distance(actual: &[f64], right: &[f64]) -> f64 {
    assert_eq!(actual.len(), right.len());
    let scale = right.iter().fold(0f64, |most, value| most.max(value.abs()));
    let differences = actual.iter().zip(right).map(|(a, r)| {
        let difference = (a - r).abs();
        if difference.is_finite() {
            difference
        } else {
            f64::INFINITY
        }
    });
    differences.fold(0f64, f64::max) / scale.max(f64::MIN_POSITIVE)
}

/// What is right.
pub(crate) enum Right {
    /// The program as it is, in fp32.
    Fp32,
    /// These values.
    Values(Vec<f64>),
}

/// Wrong before and right after the passes, in this precision.
#[track_caller]
pub(crate) fn is_repaired(
    package: &str,
    pipeline: &str,
    precision: Precision,
    inputs: &Arrays,
    right: Right,
) {
    let Some(file) = open(package) else {
        return;
    };
    let part = file.model.programs().remove(0);
    let right = match right {
        Right::Fp32 => run(&file, part.program, Precision::Fp32, inputs),
        Right::Values(values) => values,
    };
    assert!(
        right.iter().all(|value| value.is_finite()),
        "what is right is finite"
    );
    let before = distance(&run(&file, part.program, precision, inputs), &right);
    assert!(before > WRONG, "before, it is off by {before:e} only");
    let (after, rewrites) = repaired(&file, part.program, pipeline);
    assert!(rewrites > 0, "nothing is rewritten");
    let after = distance(&run(&file, &after, precision, inputs), &right);
    assert!(
        after <= ROUNDING,
        "after, it is off by {after:e}; before by {before:e}"
    );
}

pub(crate) fn one(name: &str, tensor: Tensor) -> Arrays {
    Arrays::from([(name.to_owned(), tensor)])
}

/// The rows over the root of the mean of their squares and an epsilon.
pub(crate) fn rms_norm(x: &Tensor, length: usize, epsilon: f64) -> Vec<f64> {
    let values = x.to_f64().expect("numbers");
    let rows = values.chunks(length).flat_map(|row| {
        let mean = row.iter().map(|x| x * x).sum::<f64>() / length as f64;
        row.iter().map(move |x| x / (mean + epsilon).sqrt())
    });
    rows.collect()
}

/// The softmax over the last 16 of scores, where only those that are kept take part; rows of which
/// none is kept are uniform.
pub(crate) fn masked_softmax(scores: &Tensor, is_kept: impl Fn(usize, usize) -> bool) -> Vec<f64> {
    let scores = scores.to_f64().expect("numbers");
    let rows = scores.chunks(16).enumerate().flat_map(|(row, scores)| {
        let kept = |column: usize| is_kept(row % 16, column);
        let none = !(0..16).any(kept);
        let exponential = |column: usize| match (none, kept(column)) {
            (true, _) => 1.0,
            (_, true) => scores[column].exp(),
            (_, false) => 0.0,
        };
        let exponentials: Vec<f64> = (0..16).map(exponential).collect();
        let sum: f64 = exponentials.iter().sum();
        exponentials
            .into_iter()
            .map(move |value| value / sum)
            .collect::<Vec<_>>()
    });
    rows.collect()
}
