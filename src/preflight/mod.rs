//! fp16 preflight: how large the values of a model are, what fp16 makes of them, and what to do.
//!
//! The model runs in fp32, which is the reference and what is measured; in fp16; and in fp16 with what
//! is reported of the Neural Engine. A program that computes in fp32 is held to fp16 as if it were
//! converted, and runs once more with its weights alone rounded. Samples of inputs merge to the worst
//! case. What is held in memory are the values that are live, and a few numbers for each value.
//!
//! The score is that of ANEMLL's `fp16_compatibility_check.py`, but for what works: there, outputs
//! without NaN and infinity; here, outputs that also keep 20 dB of signal over error, as a norm whose
//! square overflows gives zeros and no NaN.

mod agreement;
mod anatomy;
mod issues;
pub mod render;
mod report;
mod run;
mod stream;
mod sweep;
mod weights;

use twox_hash::xxhash3_128::Hasher;

pub use agreement::{Agreement, LEAST_SNR_DB};
pub use anatomy::{Anatomy, Class, Layer, Member};
pub use report::{
    Alpha, Clamp, FunctionReport, InputSet, Issue, LargeWeight, LayerReport, LowRun, ReferenceRun,
    Report, ReportError, Status, StreamReport, ValueReport, WeightSummary, WrongValue,
};
pub use run::{Run, Subject};
pub use sweep::SweepError;

use crate::eval::bisect::{OpReport, Walk, WalkOptions, walk};
use crate::eval::ranges::{FunctionRanges, Range, Ranges};
use crate::eval::verify::Calls;
use crate::eval::{Options, Runner, RunnerError};
use crate::ops::Numerics;
use issues::Measured;
use sweep::Sweep;

/// A value is off from this error on, relative to the greatest magnitude of fp32.
const DEPARTED: f64 = 0.1;

/// Inputs with where they came from.
#[derive(Clone, Debug)]
pub struct Sample {
    /// A file, or the seed by which they were made up.
    pub source: String,
    /// The calls.
    pub calls: Calls,
}

/// What a preflight is asked for.
pub struct Preflight<'p> {
    /// What runs.
    pub subject: Subject<'p>,
    /// The model's path as it was given.
    pub path: String,
    /// The model's fingerprint.
    pub fingerprint: String,
    /// What it runs on.
    pub samples: Vec<Sample>,
    /// Whether clamps of the stream are tried.
    pub sweep: bool,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    /// The run in fp32 failed.
    #[error(transparent)]
    Run(#[from] RunnerError),
    /// The sweep failed.
    #[error("the sweep of clamps failed: {0}")]
    Sweep(#[from] SweepError),
}

/// Whether no program of a model computes with fp16 values.
pub fn is_full_precision(model: &crate::model::Model) -> bool {
    !model.programs().iter().any(|part| part.program.has_half())
}

/// What is measured of a model in fp32 alone: for passes.
///
/// # Errors
///
/// If a run fails.
pub fn measure(
    subject: Subject<'_>,
    samples: &[Calls],
    tick: &mut dyn FnMut(),
) -> Result<Ranges, RunnerError> {
    Ok(subject.run(Numerics::FP32, samples, tick)?.ranges)
}

/// How a program is run in each precision.
#[derive(Clone, Copy)]
struct Modes {
    half: Numerics,
    engine: Numerics,
    weights: Option<Numerics>,
}

impl Modes {
    fn of(is_full: bool) -> Self {
        if is_full {
            Self {
                half: Numerics::FP16.narrowing_full(),
                engine: Numerics::ANE.narrowing_full(),
                weights: Some(Numerics {
                    half_constants: true,
                    ..Numerics::FP32
                }),
            }
        } else {
            Self {
                half: Numerics::FP16,
                engine: Numerics::ANE,
                weights: None,
            }
        }
    }
}

impl Preflight<'_> {
    /// How many times the model runs over all samples, as far as is known before.
    pub fn runs(&self) -> usize {
        let of_weights = usize::from(is_full_precision(self.subject.model));
        let of_sweep = if self.sweep { sweep::VALUES.len() } else { 0 };
        3 + of_weights + of_sweep
    }

    /// Runs the model and says what was found. `tick` is called for each operation that was computed.
    ///
    /// # Errors
    ///
    /// If the run in fp32 fails. A run in lower precision that fails is part of the report.
    pub fn run(&self, tick: &mut dyn FnMut()) -> Result<Report, PreflightError> {
        let assumed_fp16 = is_full_precision(self.subject.model);
        let modes = Modes::of(assumed_fp16);
        let samples: Vec<Calls> = self.samples.iter().map(|s| s.calls.clone()).collect();
        let reference = self.subject.run(Numerics::FP32, &samples, tick)?;
        let half = self.subject.run(modes.half, &samples, tick);
        let engine = self.subject.run(modes.engine, &samples, tick);
        let weights_alone = modes
            .weights
            .map(|numerics| (numerics, self.subject.run(numerics, &samples, tick)));

        let parts = self.parts()?;
        let mut functions = Vec::new();
        let mut issues = Vec::new();
        let mut weights = WeightSummary::default();
        let empty = FunctionRanges::default();
        for part in &parts {
            let of = |run: &Run| run.ranges.function(&part.stage, &part.function).cloned();
            let (of_half, of_engine) = (
                half.as_ref().ok().and_then(of),
                engine.as_ref().ok().and_then(of),
            );
            let full = reference.ranges.function(&part.stage, &part.function);
            let measured = Measured {
                stage: &part.stage,
                function: &part.function,
                anatomy: &part.anatomy,
                full: full.unwrap_or(&empty),
                half: of_half.as_ref(),
                engine: of_engine.as_ref(),
            };
            let stream = stream::of(&part.anatomy, measured.full);
            issues.extend(issues::of(&measured, stream.as_ref()));
            weights::add(&mut weights, &part.anatomy, measured.full);
            functions.push(FunctionReport {
                stage: part.stage.clone(),
                function: part.function.clone(),
                stream,
                values: values(&measured),
            });
        }
        weights::keep_largest(&mut weights);

        let low = |numerics, run: &Result<_, _>| {
            self.low(numerics, run.as_ref(), &reference, &samples, &parts)
        };
        let fp16 = low(modes.half, &half);
        let ane = low(modes.engine, &engine);
        let fp16_weights = weights_alone.map(|(numerics, run)| low(numerics, &run));
        let fp32 = reference_run(&reference);
        for (name, run) in [("fp16", &fp16), ("the model of the Neural Engine", &ane)] {
            if issues.is_empty() && !run.works {
                issues.extend(issues::unexplained(name, run, &functions));
            }
        }
        let has_stream = functions.iter().any(|function| function.stream.is_some());
        let sweep = if self.sweep && has_stream {
            let is_square = |issue: &Issue| issue.class == Class::NormSquare;
            let sweep = Sweep {
                subject: self.subject,
                samples: &samples,
                reference: &reference,
                numerics: modes.half,
                with_safe_norms: issues.iter().any(is_square),
            };
            sweep.run(tick)?
        } else {
            Vec::new()
        };
        let weights_work = fp16_weights.as_ref().map_or(fp32.works, |run| run.works);
        Ok(Report {
            version: report::VERSION,
            tool: concat!("milwright ", env!("CARGO_PKG_VERSION")).to_owned(),
            model: self.path.clone(),
            fingerprint: self.fingerprint.clone(),
            assumed_fp16,
            inputs: self.samples.iter().map(input_set).collect(),
            score: score(fp16.works, weights_work, &sweep),
            ane_compatible: fp16.works,
            weights,
            recommendations: recommendations(&issues, &self.path, assumed_fp16),
            fp32,
            fp16,
            fp16_weights,
            ane,
            issues,
            sweep,
            functions,
        })
    }

    /// The functions that run, with their anatomy.
    fn parts(&self) -> Result<Vec<Part>, RunnerError> {
        let options = Options::new(Numerics::FP32);
        let Subject {
            model,
            weights,
            function,
            ..
        } = self.subject;
        let runner = Runner::new(model, weights, function, &options)?;
        let stages = runner.stages().iter();
        Ok(stages
            .filter_map(|stage| {
                let own = stage.program.functions.get(&stage.function)?;
                Some(Part {
                    stage: stage.name.clone(),
                    function: stage.function.clone(),
                    anatomy: Anatomy::of(own.active()?, &own.opset, weights.as_ref()),
                })
            })
            .collect())
    }

    /// What became of a run in lower precision.
    fn low(
        &self,
        numerics: Numerics,
        run: Result<&Run, &RunnerError>,
        reference: &Run,
        samples: &[Calls],
        parts: &[Part],
    ) -> LowRun {
        let mut low = LowRun::default();
        let mut is_broken = false;
        match run {
            Err(error) => low.failed = Some(error.to_string()),
            Ok(run) => {
                low.outputs = agreement::agreements(reference, run);
                // What is NaN already in fp32 works in no precision.
                low.works =
                    reference_run(reference).works && low.outputs.iter().all(Agreement::holds);
                for part in parts {
                    let of =
                        |run: &'_ Run| run.ranges.function(&part.stage, &part.function).cloned();
                    let (Some(full), Some(own)) = (of(reference), of(run)) else {
                        continue;
                    };
                    let breaks = |name: &str| {
                        let count =
                            |ranges: &FunctionRanges| ranges.get(name).map_or(0, Range::not_finite);
                        count(&own) > count(&full)
                    };
                    is_broken |= part.anatomy.members.iter().any(|m| breaks(&m.name));
                    let layers = part.anatomy.layers.iter().enumerate();
                    low.overflow_layers.extend(
                        layers
                            .filter(|(_, layer)| layer.values.iter().any(|value| breaks(value)))
                            .map(|(index, _)| index),
                    );
                }
            }
        }
        if low.works && !is_broken {
            return low;
        }
        let options = WalkOptions {
            numerics,
            threshold: DEPARTED,
            top: 1,
            seed: self.subject.seed,
        };
        for calls in samples {
            let Subject {
                model,
                weights,
                function,
                ..
            } = self.subject;
            let Ok(found) = walk(model, weights, function, calls, &options) else {
                continue;
            };
            let Walk {
                first_not_finite,
                first,
                ..
            } = found;
            let wrong = |report: OpReport| wrong(&report, parts);
            low.first_not_finite = low.first_not_finite.or(first_not_finite.map(wrong));
            low.first_departed = low.first_departed.or(first.into_iter().next().map(wrong));
            if low.first_not_finite.is_some() || low.first_departed.is_some() {
                break;
            }
        }
        low
    }
}

/// One function that runs.
struct Part {
    stage: String,
    function: String,
    anatomy: Anatomy,
}

/// A value of a walk with what it is there for.
fn wrong(report: &OpReport, parts: &[Part]) -> WrongValue {
    let mut members = parts.iter().flat_map(|part| &part.anatomy.members);
    let member = members.find(|member| member.name == report.name);
    let shown = report.accumulated.as_ref().or(report.local.as_ref());
    let by_itself = report.local.as_ref().map(|local| {
        local.not_finite > 0 || (local.error > DEPARTED && shown.is_some_and(|s| s.not_finite == 0))
    });
    let text = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value}"));
    WrongValue {
        value: report.name.clone(),
        op_type: report.op_type.clone(),
        class: member.map_or(Class::Branch, |member| member.class),
        layer: member.and_then(|member| member.layer),
        by_itself,
        reference: text(shown.map(|departure| departure.reference)),
        low: text(shown.map(|departure| departure.low)),
    }
}

fn reference_run(run: &Run) -> ReferenceRun {
    let arrays = run.outputs.iter().flatten();
    let not_finite = arrays
        .filter(|(_, array)| array.dtype().is_float())
        .filter_map(|(_, array)| array.to_f64().ok())
        .map(|elements| elements.iter().filter(|e| !e.is_finite()).count() as u64)
        .sum();
    ReferenceRun {
        works: not_finite == 0,
        not_finite,
    }
}

/// ANEMLL's score.
fn score(half_works: bool, weights_work: bool, sweep: &[Clamp]) -> f64 {
    let can_be_clamped = || {
        sweep
            .iter()
            .any(|clamp| clamp.success && clamp.argmax_match > 0.5)
    };
    match (half_works, weights_work) {
        (true, _) => 1.0,
        (false, true) if can_be_clamped() => 0.7,
        (false, true) => 0.5,
        (false, false) => 0.0,
    }
}

fn values(measured: &Measured<'_>) -> Vec<ValueReport> {
    let members = measured.anatomy.members.iter();
    members
        .filter_map(|member| {
            let range = measured.full.get(&member.name)?;
            let count = |ranges: Option<&FunctionRanges>| {
                let range = ranges.and_then(|ranges| ranges.get(&member.name));
                range.map_or(0, Range::not_finite)
            };
            Some(ValueReport {
                name: member.name.clone(),
                op_type: member.op_type.clone(),
                class: member.class,
                layer: member.layer,
                range: *range,
                fp16_not_finite: count(measured.half),
                ane_not_finite: count(measured.engine),
            })
        })
        .collect()
}

fn input_set(sample: &Sample) -> InputSet {
    let mut hash = Hasher::new();
    for call in &sample.calls {
        for (name, tensor) in call {
            hash.write(name.as_bytes());
            for element in tensor.to_f64().unwrap_or_default() {
                hash.write(&element.to_bits().to_le_bytes());
            }
        }
    }
    InputSet {
        source: sample.source.clone(),
        calls: sample.calls.len(),
        hash: format!("{:032x}", hash.finish_128()),
    }
}

/// The command that cures the issues together; for a program of fp32, which holds all that overflows, what
/// to do first.
fn recommendations(issues: &[Issue], path: &str, assumed_fp16: bool) -> Vec<String> {
    if issues.is_empty() {
        return Vec::new();
    }
    if assumed_fp16 {
        return vec![
            "the program is fp32, which holds all this; convert the source to fp16 and run preflight on \
             what comes of it, then the passes"
                .to_owned(),
        ];
    }
    let mut passes: Vec<&str> = Vec::new();
    for issue in issues {
        let cure = issue.cures.first().map(String::as_str);
        passes.extend(cure.filter(|cure| !passes.contains(cure)));
    }
    // A norm must be safe before the stream that it reads is scaled to the edge of fp16.
    passes.sort_by_key(|pass| !pass.starts_with("safe-rmsnorm"));
    vec![format!(
        "milwright optimize {path} -o OUT.mlpackage --passes '{}' --verify=fp16",
        passes.join(",")
    )]
}
