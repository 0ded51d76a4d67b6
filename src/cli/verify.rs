//! `milwright verify`: whether two models are equivalent; and how `optimize` and `bisect` judge what
//! passes made.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use serde::Serialize;

use super::args::{PrecisionArg, ResultFormat, VerifyArgs};
use super::evaluating;
use super::output::{Output, count};
use crate::eval::inputs::Plan;
use crate::eval::verify::{self, Calls, Criterion, Difference, Maps, Report, Samples, VerifyError};
use crate::eval::{Options, Precision, Runner};
use crate::model::Model;
use crate::package::Weights;
use crate::pass::{Exactness, Outcome};
use crate::passes;

/// The models are not equivalent.
const DIFFERENT: u8 = 1;

/// How far b may be from a, relative to the greatest magnitude of a's array, in fp32: sums in another
/// order stay within it, and an approximation (of gelu, say, which errs by 5e-4) does not.
const FULL: f64 = 1e-5;

/// The same where fp16 values are rounded; one rounding is 5e-4.
const HALF: f64 = 1e-2;

/// How many samples of made-up inputs `optimize` and `bisect` take.
const SAMPLES: usize = 2;

/// How often a model with states is called in each sample.
const CALLS_WITH_STATES: usize = 3;

pub(super) fn run(args: &VerifyArgs, output: &Output) -> anyhow::Result<ExitCode> {
    let first = evaluating::open(&args.first, output)?;
    let second = evaluating::open(&args.second, output)?;
    let sides = [&first, &second].map(|file| Side {
        model: &file.model,
        weights: file.weights(),
    });
    let criterion = match (args.rtol, args.atol) {
        (None, None) => default_criterion(args.precision, 0.0),
        (relative, absolute) => Criterion::Within {
            relative: relative.unwrap_or(0.0),
            absolute: absolute.unwrap_or(0.0),
        },
    };
    let comparison = Comparison {
        function: args.function.as_deref(),
        inputs: args.inputs.as_deref(),
        seed: args.seed,
        samples: args.samples as usize,
        precision: args.precision,
        reference: args.precision,
        criterion,
    };
    let report = comparison.report(sides, output).with_context(|| {
        format!(
            "cannot compare {} and {}",
            args.first.display(),
            args.second.display()
        )
    })?;
    let mut out = output.results();
    match args.format {
        ResultFormat::Json => {
            serde_json::to_writer_pretty(&mut out, &report)?;
            writeln!(out)?;
        }
        ResultFormat::Full => {
            table(&mut out, &report.outputs)?;
            let verdict = if report.equivalent {
                "equivalent"
            } else {
                "not equivalent"
            };
            writeln!(
                out,
                "{verdict}: {}, {}, {}",
                Precision::from(args.precision).word(),
                count(report.samples, "sample"),
                words(criterion)
            )?;
        }
    }
    out.flush()?;
    Ok(if report.equivalent {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(DIFFERENT)
    })
}

/// One of two models.
#[derive(Clone, Copy)]
pub(super) struct Side<'m> {
    pub(super) model: &'m Model,
    pub(super) weights: &'m Arc<Weights>,
}

/// How two models are compared.
struct Comparison<'c> {
    function: Option<&'c str>,
    inputs: Option<&'c Path>,
    seed: u64,
    samples: usize,
    precision: PrecisionArg,
    /// How the first model computes, which counts as right.
    reference: PrecisionArg,
    criterion: Criterion,
}

impl Comparison<'_> {
    /// Compares function by function. Where there are several, the names of outputs begin with the
    /// function's.
    fn report(&self, sides: [Side<'_>; 2], output: &Output) -> anyhow::Result<Report> {
        let functions = self.functions(sides)?;
        let several = functions.len() > 1;
        let mut total: Option<Report> = None;
        for function in functions {
            let mut report = self.function(sides, function.as_deref(), output)?;
            if let Some(function) = function.filter(|_| several) {
                for output in &mut report.outputs {
                    output.name = format!("{function}.{}", output.name);
                }
            }
            match &mut total {
                None => total = Some(report),
                Some(total) => {
                    total.equivalent &= report.equivalent;
                    total.outputs.append(&mut report.outputs);
                }
            }
        }
        Ok(total.unwrap_or(Report {
            equivalent: true,
            outputs: Vec::new(),
            samples: 0,
        }))
    }

    /// The functions that are compared; `None` is the default one.
    fn functions(&self, sides: [Side<'_>; 2]) -> anyhow::Result<Vec<Option<String>>> {
        if self.function.is_some() || self.inputs.is_some() {
            return Ok(vec![self.function.map(str::to_owned)]);
        }
        let names = |side: Side<'_>| -> Vec<String> {
            match side.model.programs().as_slice() {
                [only] if only.stage.is_empty() => only.program.functions.keys().cloned().collect(),
                _ => Vec::new(),
            }
        };
        let [first, second] = sides.map(names);
        if first.len() <= 1 && second.len() <= 1 {
            return Ok(vec![None]);
        }
        if first != second {
            return Err(VerifyError::Interface(format!(
                "the first has the functions {}, the second {}",
                first.join(", "),
                second.join(", ")
            ))
            .into());
        }
        Ok(first.into_iter().map(Some).collect())
    }

    fn function(
        &self,
        [a, b]: [Side<'_>; 2],
        function: Option<&str>,
        output: &Output,
    ) -> anyhow::Result<Report> {
        let options = |precision| -> Options { evaluating::options(precision, self.seed) };
        let (of_first, of_second) = (options(self.reference), options(self.precision));
        let mut first =
            Runner::new(a.model, a.weights, function, &of_first).map_err(VerifyError::First)?;
        let mut second =
            Runner::new(b.model, b.weights, function, &of_second).map_err(VerifyError::Second)?;
        let maps = [
            Maps::of(&a.model.user_defined())?,
            Maps::of(&b.model.user_defined())?,
        ];
        let maps = [&maps[0], &maps[1]];
        if let Some(path) = self.inputs {
            let calls = given(path, &first, output)?;
            let samples = Samples::Given(&calls);
            return Ok(verify::verify(
                &mut first,
                &mut second,
                &samples,
                self.criterion,
                maps,
            )?);
        }
        let plan = if leaves_open(&first) && !leaves_open(&second) && same_names(&first, &second) {
            // The sizes that the second wants, the first takes as well.
            Plan::new(&second, b.weights)?
        } else {
            Plan::new(&first, a.weights)?
        };
        if output.is_verbose() && !first.inputs().is_empty() {
            output.diagnostic(&plan.to_string());
        }
        let samples = Samples::Seeded {
            plan: &plan,
            seed: self.seed,
            samples: self.samples,
            calls: calls_of(&first),
        };
        let report = verify::verify(&mut first, &mut second, &samples, self.criterion, maps)?;
        Ok(report)
    }
}

/// Whether the shape of an input is open.
fn leaves_open(runner: &Runner<'_>) -> bool {
    runner.inputs().iter().any(|input| {
        let ty = input.named.ty.as_ref().and_then(|ty| ty.as_tensor());
        ty.is_some_and(|ty| ty.shape().is_none())
    })
}

fn same_names(first: &Runner<'_>, second: &Runner<'_>) -> bool {
    let names = |runner: &Runner<'_>| -> BTreeSet<String> {
        let inputs = runner.inputs().iter();
        inputs.map(|input| input.named.name.clone()).collect()
    };
    names(first) == names(second)
}

/// How often a model is called on one sample of made-up inputs.
pub(super) fn calls_of(runner: &Runner<'_>) -> usize {
    if runner.has_states() {
        CALLS_WITH_STATES
    } else {
        1
    }
}

/// The inputs of the calls that a file has.
pub(super) fn given(path: &Path, runner: &Runner<'_>, output: &Output) -> anyhow::Result<Calls> {
    let script = evaluating::script(&evaluating::arrays(path)?, path, runner, output)?;
    Ok(script.calls.into_iter().map(|call| call.inputs).collect())
}

fn default_criterion(precision: PrecisionArg, more: f64) -> Criterion {
    Criterion::Scaled(match precision {
        PrecisionArg::Fp32 => FULL + more,
        PrecisionArg::Fp16 | PrecisionArg::Ane => HALF + more,
    })
}

fn words(criterion: Criterion) -> String {
    match criterion {
        Criterion::Exact => "bit by bit".to_owned(),
        Criterion::Scaled(part) => format!("within {part:e} of an output's greatest magnitude"),
        Criterion::Within { relative, absolute } => {
            format!("within {absolute:e} + {relative:e} · |a|")
        }
    }
}

fn table(out: &mut impl std::io::Write, outputs: &[Difference]) -> std::io::Result<()> {
    let mut rows = vec![
        [
            "output", "max abs", "max rel", "SNR dB", "argmax", "NaN a", "NaN b", "Inf a", "Inf b",
            "off",
        ]
        .map(str::to_owned),
    ];
    for output in outputs {
        rows.push([
            output.name.clone(),
            format!("{:.2e}", output.max_abs),
            format!("{:.2e}", output.max_rel),
            output
                .snr_db
                .map_or("-".to_owned(), |db| format!("{db:.1}")),
            format!("{:.4}", output.argmax_match),
            output.nan_a.to_string(),
            output.nan_b.to_string(),
            output.inf_a.to_string(),
            output.inf_b.to_string(),
            format!("{} of {}", output.misses, output.elements),
        ]);
    }
    evaluating::table(out, &rows)
}

/// How passes are judged by what they made.
pub(super) struct Judge<'j> {
    /// How to compute; if it is not said, as the exactness of the passes asks for.
    pub(super) precision: Option<PrecisionArg>,
    pub(super) inputs: Option<&'j Path>,
    pub(super) function: Option<&'j str>,
    pub(super) seed: u64,
    /// Whether a model that goes wrong in lower precision is compared in fp32 with what does not any
    /// more.
    pub(super) lets_repair: bool,
}

/// What came of it.
#[derive(Serialize)]
pub(super) struct Judgement {
    #[serde(flatten)]
    report: Report,
    precision: &'static str,
    /// How the model before was run, if not in the same way: in fp32, if it goes wrong in lower precision
    /// and the changed one does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    reference: Option<&'static str>,
    #[serde(skip)]
    criterion: String,
    /// Why the changed model cannot run, where the original does.
    #[serde(skip)]
    failed: Option<String>,
}

impl Judge<'_> {
    /// Compares a model with what passes made of it, as exactly as the passes that changed something
    /// claim to be.
    pub(super) fn judge(
        &self,
        sides: [Side<'_>; 2],
        outcome: &Outcome,
        output: &Output,
    ) -> anyhow::Result<Judgement> {
        let (precision, criterion) = self.criterion(outcome);
        let (report, failed) = self.compare(sides, [precision; 2], criterion, output)?;
        let mut judgement = Judgement {
            report,
            precision: Precision::from(precision).word(),
            reference: None,
            criterion: words(criterion),
            failed,
        };
        let may_repair =
            self.lets_repair && precision != PrecisionArg::Fp32 && criterion != Criterion::Exact;
        if may_repair && !judgement.is_equivalent() {
            // A model that overflows is no reference for one that does not any more.
            let precisions = [PrecisionArg::Fp32, precision];
            let (report, failed) = self.compare(sides, precisions, criterion, output)?;
            if report.equivalent {
                judgement.report = report;
                judgement.failed = failed;
                judgement.reference = Some(Precision::Fp32.word());
            }
        }
        Ok(judgement)
    }

    /// Compares the models, each in its precision; why the second fails, if it does and the first does
    /// not.
    fn compare(
        &self,
        sides: [Side<'_>; 2],
        [reference, precision]: [PrecisionArg; 2],
        criterion: Criterion,
        output: &Output,
    ) -> anyhow::Result<(Report, Option<String>)> {
        let comparison = Comparison {
            function: self.function,
            inputs: self.inputs,
            seed: self.seed,
            samples: SAMPLES,
            precision,
            reference,
            criterion,
        };
        match comparison.report(sides, output) {
            Ok(report) => Ok((report, None)),
            Err(error) => match error.downcast_ref() {
                Some(VerifyError::Second(why)) => {
                    let report = Report {
                        equivalent: false,
                        outputs: Vec::new(),
                        samples: SAMPLES,
                    };
                    Ok((report, Some(why.to_string())))
                }
                _ => Err(error),
            },
        }
    }

    /// What is exact is exact at the program's own types, which is fp16. What only rounds otherwise is
    /// compared in fp32, where a pass that keeps fp16 from overflowing makes no difference. The errors
    /// that passes allow themselves add up.
    fn criterion(&self, outcome: &Outcome) -> (PrecisionArg, Criterion) {
        let mut is_exact = true;
        let mut bound = 0.0;
        for run in outcome.passes.iter().filter(|run| run.rewrites > 0) {
            match passes::by_id(run.id).map(|pass| pass.meta().exactness) {
                Some(Exactness::Exact) => {}
                Some(Exactness::Approx(most)) => {
                    is_exact = false;
                    bound += most * run.rewrites as f64;
                }
                _ => is_exact = false,
            }
        }
        let precision = self.precision.unwrap_or(if is_exact {
            PrecisionArg::Fp16
        } else {
            PrecisionArg::Fp32
        });
        let criterion = if is_exact && precision == PrecisionArg::Fp16 {
            Criterion::Exact
        } else {
            default_criterion(precision, bound)
        };
        (precision, criterion)
    }
}

impl Judgement {
    pub(super) fn is_equivalent(&self) -> bool {
        self.report.equivalent
    }

    /// The outputs that are off, in words.
    pub(super) fn reason(&self) -> String {
        if let Some(why) = &self.failed {
            return format!("it fails where the model runs: {why}");
        }
        let off = self.report.outputs.iter().filter(|o| o.misses > 0);
        let off: Vec<String> = off
            .map(|o| {
                format!(
                    "`{}`: {} of {} elements, by up to {:.2e}",
                    o.name, o.misses, o.elements, o.max_abs
                )
            })
            .collect();
        off.join("; ")
    }

    /// Says what came of it, on standard error.
    pub(super) fn tell(&self, output: &Output) {
        let how = format!(
            "{}, {}, {}",
            self.precision,
            count(self.report.samples, "sample"),
            self.criterion
        );
        if let (true, Some(reference)) = (self.is_equivalent(), self.reference) {
            output.note(&format!(
                "verified: equivalent to the model in {reference}, which is not so itself in {} ({how})",
                self.precision
            ));
        } else if self.is_equivalent() {
            output.note(&format!("verified: equivalent ({how})"));
        } else {
            output.diagnostic(&format!("not equivalent ({how}): {}", self.reason()));
        }
    }
}
