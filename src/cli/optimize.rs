//! `milwright optimize`: runs a pipeline and writes the result.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};

use super::args::{OptimizeArgs, PrintWhen, Remarks};
use super::output::{Output, count, plural};
use super::report::Report;
use super::{Opened, explain, open, save};
use crate::ir::Program;
use crate::pass::{
    Manager, Observer, Outcome, PassRun, Pipeline, Remark, RemarkKind, Settings, nearest, options,
};
use crate::passes;
use crate::source::{Missing, ModelFile};
use crate::text::{self, PrintOptions, diff};

/// Unchanged lines around each change in a diff.
const DIFF_CONTEXT: usize = 2;

pub(super) fn run(args: &OptimizeArgs, output: &Output) -> anyhow::Result<ExitCode> {
    let pipeline = pipeline(args)?;
    check_output(args)?;
    let Opened { mut file, issues } = open(&args.model, output)?;
    check_input(args, &file, output)?;
    let ops_before = count_ops(&file);
    let interface_before = file.model.interface_problems();

    let stages: Vec<String> = file.model.programs().into_iter().map(|p| p.stage).collect();
    let weights = Arc::clone(file.weights());
    let mut printer = Printer {
        when: args.print,
        before: String::new(),
        output,
        failed: None,
    };
    let settings = Settings {
        max_rewrites: args.max_rewrites,
        interface_changes: args.interface_changes,
        ..Settings::default()
    };
    let mut manager = Manager::new(passes::ALL, settings);
    let mut total = Outcome::default();
    let programs = file.model.programs_mut().into_iter();
    for ((program, stage), known) in programs.zip(&stages).zip(&issues) {
        let blobs = weights.as_ref();
        let outcome = manager.run(&pipeline, program, stage, known, blobs, &mut printer)?;
        merge(&mut total, outcome);
    }
    if let Some(error) = printer.failed {
        return Err(error.into());
    }
    for problem in file.model.interface_problems() {
        if !interface_before.contains(&problem) {
            bail!("internal error: a pass broke the interface: {problem}");
        }
    }

    let ops = (ops_before, count_ops(&file));
    print_remarks(args, &total, output);
    if let Some(out) = args.output.as_deref().filter(|_| !args.dry_run) {
        save(args, &mut file, out, output)?;
    }
    if let Some(path) = &args.report {
        let out = args.output.as_deref().filter(|_| !args.dry_run);
        let report = Report::new(&args.model, out, &total.passes, ops);
        write_report(&report, path)?;
    }
    summarize(args, &total, ops, output);
    Ok(ExitCode::SUCCESS)
}

/// The pipeline that the arguments ask for.
fn pipeline(args: &OptimizeArgs) -> anyhow::Result<Pipeline> {
    let mut pipeline = match (&args.pipeline, &args.passes) {
        (Some(text), _) => Pipeline::parse(text, passes::ALL)?,
        (None, Some(_)) => Pipeline::default(),
        (None, None) => Pipeline::parse("default", passes::ALL)?,
    };
    if let Some(list) = &args.passes {
        pipeline.append(Pipeline::parse(list, passes::ALL)?);
    }
    for setting in &args.set {
        let parts = setting
            .split_once('=')
            .and_then(|(name, value)| Some((name.split_once('.')?, value)));
        let Some(((id, option), value)) = parts else {
            bail!("`--set {setting}` is not of the form PASS.OPTION=VALUE");
        };
        let known = explain::find(id)?.options();
        if !known.contains_key(option) {
            match nearest(option, known.keys().map(String::as_str)) {
                Some(name) => bail!("pass `{id}` has no option `{option}`; did you mean `{name}`?"),
                None => bail!("pass `{id}` has no option `{option}`; see `milwright explain {id}`"),
            }
        }
        if !pipeline.set(id, option, &options::parse_value(value)) {
            bail!("`--set {setting}`: the pipeline has no pass `{id}`");
        }
    }
    for id in &args.skip {
        explain::find(id)?;
        pipeline.skip(id);
    }
    // Options of the wrong type are an error before anything is read.
    pipeline.check_options(passes::ALL)?;
    Ok(pipeline)
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

fn count_ops(file: &ModelFile) -> usize {
    let parts = file.model.programs();
    parts.iter().map(|part| part.program.count_ops()).sum()
}

/// Adds what happened to one program to what happened to those before it.
fn merge(total: &mut Outcome, outcome: Outcome) {
    for run in outcome.passes {
        match total.passes.iter_mut().find(|known| known.id == run.id) {
            Some(known) => {
                known.rewrites += run.rewrites;
                known.missed += run.missed;
                known.time += run.time;
            }
            None => total.passes.push(run),
        }
    }
    total.remarks.extend(outcome.remarks);
    for note in outcome.notes {
        if !total.notes.contains(&note) {
            total.notes.push(note);
        }
    }
    total.stopped |= outcome.stopped;
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

/// What happened, in a few lines.
fn summarize(args: &OptimizeArgs, outcome: &Outcome, ops: (usize, usize), output: &Output) {
    if args.timings {
        for PassRun { id, time, .. } in &outcome.passes {
            output.diagnostic(&format!("{:9.3} ms  {id}", time.as_secs_f64() * 1e3));
        }
    }
    for note in &outcome.notes {
        output.note(note);
    }
    for run in outcome
        .passes
        .iter()
        .filter(|run| run.rewrites > 0 || run.missed > 0)
    {
        let missed = match run.missed {
            0 => String::new(),
            number => format!(", {}", count(number, "near match")),
        };
        output.note(&format!(
            "  {:20} {:>4} {}{missed}",
            run.id,
            run.rewrites,
            plural(run.rewrites, "rewrite")
        ));
    }
    let rewrites = outcome.rewrites();
    let stopped = if outcome.stopped {
        " (stopped by --max-rewrites)"
    } else {
        ""
    };
    let where_to = match args.output.as_deref().filter(|_| !args.dry_run) {
        Some(out) => format!("; wrote {}", out.display()),
        None => "; wrote nothing (dry run)".to_owned(),
    };
    output.note(&format!(
        "{}{stopped}, {} before, {} after{where_to}",
        count(rewrites, "rewrite"),
        count(ops.0, "op"),
        ops.1
    ));
    let missed: usize = outcome.passes.iter().map(|run| run.missed).sum();
    if missed > 0 && args.remarks.is_none() {
        output.note(&format!(
            "{}; --remarks missed says what stopped {}",
            count(missed, "near match"),
            if missed == 1 { "it" } else { "them" }
        ));
    }
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
