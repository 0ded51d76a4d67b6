//! `milwright bisect`: the rewrite that breaks a model, or the ops that a low precision breaks.

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use serde::Serialize;

use super::args::{BisectArgs, PrecisionArg, ResultFormat};
use super::calibration::Source;
use super::evaluating;
use super::output::{Output, count};
use super::pipeline;
use super::verify::{Judge, Judgement, Side, calls_of, given};
use crate::eval::Precision;
use crate::eval::bisect::{Departure, OpReport, Walk, WalkOptions, first_that, walk};
use crate::eval::verify::Calls;
use crate::model::Model;
use crate::pass::verify::{self as issues, Known};
use crate::pass::{Calibration, Outcome, Remark, RemarkKind, Settings, Silent};
use crate::source::ModelFile;
use crate::text::{self, PrintOptions, diff};

/// Something was found.
const FOUND: u8 = 1;

/// Unchanged lines around each change in a diff.
const CONTEXT: usize = 3;

pub(super) fn run(args: &BisectArgs, output: &Output) -> anyhow::Result<ExitCode> {
    let pipeline = args.passes.pipeline()?;
    let file = evaluating::open(&args.model, output)?;
    if args.passes.is_given() {
        let source = Source {
            file: &file,
            function: args.function.as_deref(),
            inputs: args.inputs.as_slice(),
            seed: args.seed,
        };
        let search = Search {
            calibration: source.calibration(&pipeline, output)?,
            args,
            file: &file,
            issues: known(&file.model),
            pipeline,
            output,
        };
        return search.run();
    }
    precision(args, &file, output)
}

fn known(model: &Model) -> Vec<Known> {
    let parts = model.programs();
    parts
        .iter()
        .map(|part| issues::issues(part.program))
        .collect()
}

/// The search for the rewrite.
struct Search<'s> {
    calibration: Arc<Calibration>,
    args: &'s BisectArgs,
    file: &'s ModelFile,
    issues: Vec<Known>,
    pipeline: crate::pass::Pipeline,
    output: &'s Output,
}

/// What the search found.
#[derive(Serialize)]
struct Found {
    rewrites: usize,
    /// The first rewrite that breaks the model, counted from 1; null if none does.
    first: Option<Breaking>,
}

#[derive(Serialize)]
struct Breaking {
    number: usize,
    pass: &'static str,
    function: String,
    op: String,
    op_type: String,
    what: String,
    diff: String,
    verified: Judgement,
}

impl Search<'_> {
    fn run(&self) -> anyhow::Result<ExitCode> {
        let (_, all) = self.rewritten(usize::MAX)?;
        let last = all.rewrites();
        let first = first_that(last, |rewrites| -> anyhow::Result<bool> {
            let (model, outcome) = self.rewritten(rewrites)?;
            let judgement = self.judge(&model, &outcome)?;
            let word = if judgement.is_equivalent() {
                "equivalent"
            } else {
                "not equivalent"
            };
            self.output
                .note(&format!("{}: {word}", count(rewrites, "rewrite")));
            Ok(!judgement.is_equivalent())
        })?;
        let found = Found {
            rewrites: last,
            first: first.map(|number| self.breaking(number)).transpose()?,
        };
        let mut out = self.output.results();
        match self.args.format {
            ResultFormat::Json => {
                serde_json::to_writer_pretty(&mut out, &found)?;
                writeln!(out)?;
            }
            ResultFormat::Full => found.write(&mut out)?,
        }
        out.flush()?;
        Ok(match found.first {
            Some(_) => ExitCode::from(FOUND),
            None => ExitCode::SUCCESS,
        })
    }

    /// The model after so many rewrites.
    fn rewritten(&self, rewrites: usize) -> anyhow::Result<(Model, Outcome)> {
        let mut model = self.file.model.clone();
        let settings = Settings {
            max_rewrites: Some(rewrites),
            calibration: Arc::clone(&self.calibration),
            interface_changes: self.args.passes.interface_changes,
            ..Settings::default()
        };
        let outcome = pipeline::apply(
            &self.pipeline,
            settings,
            &mut model,
            self.file.weights(),
            &self.issues,
            &mut Silent,
        )?;
        Ok((model, outcome))
    }

    fn judge(&self, model: &Model, outcome: &Outcome) -> anyhow::Result<Judgement> {
        let judge = Judge {
            precision: self.args.precision,
            inputs: self.args.inputs.as_deref(),
            function: self.args.function.as_deref(),
            seed: self.args.seed,
            lets_repair: false,
        };
        let weights = self.file.weights();
        let sides = [&self.file.model, model].map(|model| Side { model, weights });
        judge
            .judge(sides, outcome, self.output)
            .with_context(|| format!("cannot verify {}", self.args.model.display()))
    }

    fn breaking(&self, number: usize) -> anyhow::Result<Breaking> {
        let (before, outcome_before) = self.rewritten(number.saturating_sub(1))?;
        let (after, outcome) = self.rewritten(number)?;
        let remark = one_more(&outcome_before, &outcome)
            .context("internal error: a rewrite left no remark")?;
        Ok(Breaking {
            number,
            pass: remark.pass,
            function: remark.place.function.clone(),
            op: remark.place.op.clone(),
            op_type: remark.place.op_type.clone(),
            what: remark.what.clone(),
            diff: diff::unified_diff(
                &whole_text(&before),
                &whole_text(&after),
                ("before", "after"),
                CONTEXT,
            ),
            verified: self.judge(&after, &outcome)?,
        })
    }
}

/// The remark of the rewrite that one run made more than the other.
fn one_more<'o>(before: &Outcome, after: &'o Outcome) -> Option<&'o Remark> {
    let is_applied = |remark: &&Remark| remark.kind == RemarkKind::Applied;
    let mut known: Vec<&Remark> = before.remarks.iter().filter(is_applied).collect();
    after.remarks.iter().filter(is_applied).find(|remark| {
        let at = known.iter().position(|other| other == remark);
        at.map(|at| known.swap_remove(at)).is_none()
    })
}

/// The programs of a model as text.
fn whole_text(model: &Model) -> String {
    let options = PrintOptions::default();
    let texts = model.programs().into_iter().map(|part| {
        text::program_text(part.program, &options).unwrap_or_else(|error| error.to_string())
    });
    texts.collect()
}

impl Found {
    fn write(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        let Some(first) = &self.first else {
            let all = count(self.rewrites, "rewrite");
            return writeln!(out, "the model is equivalent after all of {all}");
        };
        writeln!(
            out,
            "rewrite {} of {} breaks the model: {} at {}/{} ({}): {}",
            first.number,
            self.rewrites,
            first.pass,
            first.function,
            first.op,
            first.op_type,
            first.what
        )?;
        writeln!(out, "{}", first.verified.reason())?;
        write!(out, "\n{}", first.diff)
    }
}

/// Compares a low precision with fp32, op by op.
fn precision(args: &BisectArgs, file: &ModelFile, output: &Output) -> anyhow::Result<ExitCode> {
    let precision = match args.precision.unwrap_or(PrecisionArg::Fp16) {
        PrecisionArg::Fp32 => bail!(
            "--precision fp32 departs from fp32 nowhere; give fp16 or ane, or a --pipeline to \
             search in"
        ),
        other => Precision::from(other),
    };
    let options = WalkOptions {
        numerics: precision.numerics(),
        threshold: args.threshold,
        top: args.top,
        seed: args.seed,
    };
    let function = args.function.as_deref();
    let calls = {
        let options = evaluating::options(PrecisionArg::Fp32, args.seed);
        let runner = evaluating::runner(file, function, &options)?;
        if let Some(path) = &args.inputs {
            given(path, &runner, output)?
        } else {
            let plan = evaluating::plan(&runner, file, output)?;
            (0..calls_of(&runner))
                .map(|call| plan.inputs(args.seed, 0, call))
                .collect::<Result<Calls, _>>()?
        }
    };
    let found = walk(&file.model, file.weights(), function, &calls, &options)
        .with_context(|| format!("cannot run {}", args.model.display()))?;
    let mut out = output.results();
    match args.format {
        ResultFormat::Json => {
            #[derive(Serialize)]
            struct Written<'w> {
                precision: &'static str,
                calls: usize,
                #[serde(flatten)]
                walk: &'w Walk,
            }
            let written = Written {
                precision: precision.word(),
                calls: calls.len(),
                walk: &found,
            };
            serde_json::to_writer_pretty(&mut out, &written)?;
            writeln!(out)?;
        }
        ResultFormat::Full => write_walk(&mut out, &found, precision.word())?,
    }
    out.flush()?;
    let departed = !found.first.is_empty()
        || found.first_not_finite.is_some()
        || found.parted_after.is_some()
        || found.low_failed.is_some();
    Ok(if departed {
        ExitCode::from(FOUND)
    } else {
        ExitCode::SUCCESS
    })
}

fn write_walk(out: &mut impl std::io::Write, walk: &Walk, low: &str) -> std::io::Result<()> {
    if let Some(first) = &walk.first_not_finite {
        let own = match &first.local {
            Some(local) if local.not_finite > 0 => "; the operation makes it so by itself",
            Some(_) => "; its arguments make it so",
            None => "",
        };
        writeln!(
            out,
            "first value that is NaN or infinite in {low} and not in fp32{own}"
        )?;
        write_ops(out, std::slice::from_ref(first), low)?;
        writeln!(out)?;
    }
    let percent = walk.threshold;
    if walk.first.is_empty() {
        writeln!(
            out,
            "no value of {} departs from fp32 by more than {percent:e} of its scale",
            walk.results
        )?;
    } else {
        writeln!(
            out,
            "first of {} values that depart from fp32 by more than {percent:e} of their scale",
            walk.results
        )?;
        write_ops(out, &walk.first, low)?;
    }
    writeln!(
        out,
        "\nworst by the error of the operation alone, on the arguments of fp32"
    )?;
    write_ops(out, &walk.worst_local, low)?;
    writeln!(out, "\nworst by the error of all operations up to there")?;
    write_ops(out, &walk.worst_accumulated, low)?;
    if let Some(op) = &walk.parted_after {
        writeln!(out, "\nthe two runs take different branches from `{op}` on")?;
    }
    if let Some(why) = &walk.low_failed {
        writeln!(out, "\nthe run in {low} failed: {why}")?;
    }
    Ok(())
}

fn write_ops(out: &mut impl std::io::Write, ops: &[OpReport], low: &str) -> std::io::Result<()> {
    let mut rows = vec![
        [
            "call", "value", "op", "alone", "all", "element", "fp32", low,
        ]
        .map(str::to_owned),
    ];
    let error = |departure: &Option<Departure>| match departure {
        None => "-".to_owned(),
        Some(d) if d.not_finite > 0 => format!("{} not finite", d.not_finite),
        Some(d) => format!("{:.1e}", d.error),
    };
    for op in ops {
        let shown = op.accumulated.as_ref().or(op.local.as_ref());
        rows.push([
            op.call.to_string(),
            op.name.clone(),
            op.op_type.clone(),
            error(&op.local),
            error(&op.accumulated),
            shown.map_or("-".to_owned(), |d| evaluating::place(d.index, &op.shape)),
            shown.map_or("-".to_owned(), |d| short(d.reference)),
            shown.map_or("-".to_owned(), |d| short(d.low)),
        ]);
    }
    evaluating::table(out, &rows)
}

/// A number in a few digits.
fn short(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 || (1e-3..1e6).contains(&size) {
        format!("{value:.6}")
            .trim_end_matches('0')
            .trim_end_matches('.')
            .to_owned()
    } else {
        format!("{value:.4e}")
    }
}
