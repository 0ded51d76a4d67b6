//! `milwright optimize`: runs a pipeline and writes the result.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};

use super::args::{OptimizeArgs, PrintWhen, Remarks, VerifyArg};
use super::calibration::Source;
use super::output::{Output, count};
use super::report::Report;
use super::summary::{self, Size};
use super::verify::{self, Judgement, Side};
use super::{Opened, open, pipeline, save};
use crate::ir::Program;
use crate::model::Model;
use crate::pass::{Observer, Outcome, Remark, RemarkKind, Settings};
use crate::source::{Missing, ModelFile};
use crate::text::{self, PrintOptions, diff};

/// The result is not equivalent to the model.
const NOT_EQUIVALENT: u8 = 1;

/// Unchanged lines around each change in a diff.
const DIFF_CONTEXT: usize = 2;

pub(super) fn run(args: &OptimizeArgs, output: &Output) -> anyhow::Result<ExitCode> {
    let pipeline = args.passes.pipeline()?;
    check_output(args)?;
    let Opened { mut file, issues } = open(&args.model, output)?;
    check_input(args, &file, output)?;
    let before = Size::of(&file.model);
    let original = args.verify.map(|_| file.model.clone());

    let weights = Arc::clone(file.weights());
    let mut printer = Printer {
        when: args.print,
        before: String::new(),
        output,
        failed: None,
    };
    let source = Source {
        file: &file,
        function: None,
        inputs: args.inputs.as_slice(),
        seed: 0,
    };
    let calibration = source.calibration(&pipeline, output)?;
    let is_unused = calibration.ranges.is_empty() && calibration.samples.is_empty();
    if args.inputs.is_some() && args.verify.is_none() && is_unused {
        output.warning(
            "--inputs is not used: no pass has to run the model, and --verify is not given",
        );
    }
    let settings = Settings {
        calibration,
        max_rewrites: args.max_rewrites,
        interface_changes: args.passes.interface_changes,
        ..Settings::default()
    };
    let model = &mut file.model;
    let total = pipeline::apply(&pipeline, settings, model, &weights, &issues, &mut printer)?;
    if let Some(error) = printer.failed {
        return Err(error.into());
    }

    let sizes = [before, Size::of(&file.model)];
    print_remarks(args, &total, output);
    let verified = match &original {
        Some(original) => Some(verify(args, original, &file, &total, output)?),
        None => None,
    };
    let is_good = verified.as_ref().is_none_or(Judgement::is_equivalent);
    let out = args.output.as_deref().filter(|_| !args.dry_run && is_good);
    if let Some(out) = out {
        save(args, &mut file, out, output)?;
    }
    if let Some(path) = &args.report {
        let ops = (sizes[0].ops, sizes[1].ops);
        let report = Report::new(&args.model, out, &total.passes, ops, verified.as_ref());
        write_report(&report, path)?;
    }
    summary::tell(args, &total, sizes, out, output);
    if !is_good {
        return Ok(ExitCode::from(NOT_EQUIVALENT));
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the model before and after, and says what came of it.
fn verify(
    args: &OptimizeArgs,
    original: &Model,
    file: &ModelFile,
    outcome: &Outcome,
    output: &Output,
) -> anyhow::Result<Judgement> {
    let judge = verify::Judge {
        precision: args.verify.and_then(VerifyArg::precision),
        inputs: args.inputs.as_deref(),
        function: None,
        seed: 0,
        lets_repair: true,
    };
    let weights = file.weights();
    let sides = [original, &file.model].map(|model| Side { model, weights });
    let judgement = judge
        .judge(sides, outcome, output)
        .with_context(|| format!("cannot verify {}", args.model.display()))?;
    judgement.tell(output);
    Ok(judgement)
}

/// Refuses an output that is there already, before any work is done.
fn check_output(args: &OptimizeArgs) -> anyhow::Result<()> {
    let Some(out) = args.output.as_deref().filter(|_| !args.dry_run) else {
        return Ok(());
    };
    save::check_free(out, args.force)?;
    match &args.weights_dir {
        Some(_) if !save::is_text(out) => bail!("--weights-dir is for text: give -o FILE.mil"),
        _ => Ok(()),
    }
}

/// Refuses what could not be written, before any work is done.
fn check_input(args: &OptimizeArgs, file: &ModelFile, output: &Output) -> anyhow::Result<()> {
    let place = || format!("cannot optimize {}", args.model.display());
    if args.dry_run || args.output.as_deref().is_some_and(save::is_text) {
        file.check_blobs(Missing::Allow).with_context(place)?;
        if let Some(error) = file.first_missing() {
            output.warning(&error.to_string());
        }
        return Ok(());
    }
    if let Some(field) = file.model.unknown_field() {
        bail!(
            "cannot optimize {}: {}",
            args.model.display(),
            crate::model::Error::UnknownField(field.to_owned())
        );
    }
    if !file.is_writable() {
        bail!(
            "cannot optimize {}: it is {}, which is only read; use --dry-run, or -o FILE.mil",
            args.model.display(),
            file.kind().words()
        );
    }
    let missing = missing(args);
    if let (Missing::Refuse, Some(error)) = (missing, file.first_missing()) {
        bail!(
            "cannot optimize {}: {error}; or give --allow-missing-weights to write it without",
            args.model.display()
        );
    }
    file.check_blobs(missing).with_context(place)
}

fn missing(args: &OptimizeArgs) -> Missing {
    if args.allow_missing_weights {
        Missing::Allow
    } else {
        Missing::Refuse
    }
}

fn print_remarks(args: &OptimizeArgs, outcome: &Outcome, output: &Output) {
    let wanted = |remark: &&Remark| match args.remarks {
        None => false,
        Some(Remarks::All) => true,
        Some(Remarks::Applied) => remark.kind == RemarkKind::Applied,
        Some(Remarks::Missed) => remark.kind == RemarkKind::Missed,
    };
    for remark in outcome.remarks.iter().filter(wanted) {
        output.diagnostic(&remark.to_string());
    }
}

fn save(
    args: &OptimizeArgs,
    file: &mut ModelFile,
    out: &Path,
    output: &Output,
) -> anyhow::Result<()> {
    let place = || format!("cannot write {}", out.display());
    if save::is_text(out) {
        if let Some(folder) = &args.weights_dir {
            save::split_weights(file, folder, args.force, output)?;
        }
        return save::text(file, out, args.force).with_context(place);
    }
    save::package(file, out, missing(args), args.force, output)
}

fn write_report(report: &Report, path: &Path) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(report)?;
    text.push('\n');
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Prints the program around passes, to standard output.
struct Printer<'a> {
    when: Option<PrintWhen>,
    before: String,
    output: &'a Output,
    failed: Option<std::io::Error>,
}

impl Printer<'_> {
    fn text(program: &Program) -> String {
        text::program_text(program, &PrintOptions::default())
            .unwrap_or_else(|error| error.to_string())
    }

    fn write(&mut self, heading: &str, text: &str) {
        let mut out = self.output.results();
        let result = write!(out, "// {heading}\n{text}").and_then(|()| out.flush());
        if let Err(error) = result {
            self.failed.get_or_insert(error);
        }
    }
}

impl Observer for Printer<'_> {
    fn before(&mut self, pass: &'static str, program: &Program) {
        match self.when {
            Some(PrintWhen::Before) => {
                self.write(&format!("before {pass}"), &Self::text(program));
            }
            Some(PrintWhen::Diff) => self.before = Self::text(program),
            _ => {}
        }
    }

    fn after(&mut self, pass: &'static str, program: &Program, rewrites: usize) {
        let heading = format!("after {pass}: {}", count(rewrites, "rewrite"));
        match self.when {
            Some(PrintWhen::After) => self.write(&heading, &Self::text(program)),
            Some(PrintWhen::Changed) if rewrites > 0 => self.write(&heading, &Self::text(program)),
            Some(PrintWhen::Diff) if rewrites > 0 => {
                let after = Self::text(program);
                let diff =
                    diff::unified_diff(&self.before, &after, ("before", "after"), DIFF_CONTEXT);
                self.write(&heading, &diff);
            }
            _ => {}
        }
    }
}
