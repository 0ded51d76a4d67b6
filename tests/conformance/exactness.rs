//! What each pass declares of its exactness, on every model, probe and op program that it changes,
//! alone and in the named pipelines: an `exact` one
//! keeps every bit of every output at the program's own types, a `real` one every value in fp32 but for
//! rounding. The cases of the passes hold the same on small programs, with special values.

use std::path::Path;

use milwright::eval::Precision;
use milwright::eval::script::Computed;
use milwright::pass::{
    Exactness, Manager, Outcome, Pass, PassRun, Pipeline, Settings, Silent, verify,
};
use milwright::passes;
use milwright::tensor::Tensor;

use crate::ops::{self, OpProgram};
use crate::{Check, Subject, beyond_scale, folders, name};

/// Relative to the largest magnitude of an output: what other roundings add up to in a model.
const ROUNDING: f64 = 1e-4;

/// The pipelines that are named.
const PIPELINES: [&str; 3] = ["default", "llm", "ane-direct"];

pub(crate) fn checks(corpus: &Path) -> Vec<Check> {
    let mut checks = Vec::new();
    for (pipeline, pass) in steps() {
        for set in ["models", "probes"] {
            for folder in folders(&corpus.join(set)) {
                let arrays = ["calls.npz", "io.npz"];
                let Some(arrays) = arrays.into_iter().find(|file| folder.join(file).exists())
                else {
                    continue;
                };
                checks.push(Check {
                    id: format!("exactness::{pipeline}::{set}::{}", name(&folder)),
                    ops: String::new(),
                    run: Box::new(move || {
                        let model = folder.join("model.mlpackage");
                        let subject = Subject::open(&model, &folder.join(arrays))?;
                        keeps(&subject, pipeline, pass)
                    }),
                });
            }
        }
    }
    checks
}

/// Each pass and each named pipeline on the programs of coremltools' own op tests: one check for each
/// program.
pub(crate) fn checks_of_ops(folder: &Path) -> Vec<Check> {
    let check = |program: OpProgram| Check {
        id: format!("exactness::ops::{}", program.id),
        ops: program.ops,
        run: Box::new(move || {
            let model = program.folder.join("model.mlpackage");
            let subject = Subject::open(&model, &program.folder.join("io.npz"))?;
            for (pipeline, pass) in steps() {
                keeps(&subject, pipeline, pass).map_err(|why| format!("{pipeline}: {why}"))?;
            }
            Ok(())
        }),
    };
    ops::programs(folder).into_iter().map(check).collect()
}

/// The passes that keep the interface, each alone, and the named pipelines.
fn steps() -> impl Iterator<Item = (&'static str, Option<&'static dyn Pass>)> {
    let keeps = |pass: &&&dyn Pass| {
        !matches!(
            pass.meta().exactness,
            Exactness::Interface | Exactness::None
        )
    };
    let passes = passes::ALL.iter().filter(keeps);
    let passes = passes.map(|pass| (pass.meta().id, Some(*pass)));
    passes.chain(PIPELINES.map(|pipeline| (pipeline, None)))
}

/// The least exact of the passes that rewrote something.
fn exactness(outcome: &Outcome) -> Exactness {
    let fired = outcome.passes.iter().filter(|run| run.rewrites > 0);
    let exactness = |run: &PassRun| passes::by_id(run.id).map(|pass| pass.meta().exactness);
    let rank = |exactness: &Exactness| match exactness {
        Exactness::Exact | Exactness::None => (0, 0.0),
        Exactness::Real => (1, 0.0),
        Exactness::Approx(bound) => (2, *bound),
        Exactness::Interface => (3, 0.0),
    };
    fired
        .filter_map(exactness)
        .max_by(|a, b| rank(a).partial_cmp(&rank(b)).expect("bounds are numbers"))
        .unwrap_or(Exactness::Exact)
}

/// Whether a pass or pipeline keeps what a program computes as exactly as it declares.
fn keeps(subject: &Subject, pipeline: &str, pass: Option<&dyn Pass>) -> Result<(), String> {
    let before = subject.part().program;
    let mut after = before.clone();
    let known = verify::issues(before);
    let steps = Pipeline::parse(pipeline, passes::ALL).map_err(|error| error.to_string())?;
    let settings = Settings {
        // The cases of the passes check each step; here the end is what counts.
        verify_each: false,
        ..Settings::default()
    };
    let outcome = Manager::new(passes::ALL, settings)
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
    let exactness = pass.map_or_else(|| exactness(&outcome), |pass| pass.meta().exactness);
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
