//! `milwright lint`: what is found in models, in the form that is asked for.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};

use super::args::{FailOn, LintArgs, LintFormat, TargetArg};
use super::fix;
use super::output::{Output, count};
use super::{calibration, with_path};
use crate::lint::placement::{Placement, Plan, estimate};
use crate::lint::render::{Linted, concise, full, github, json, placement, sarif, table};
use crate::lint::{Baseline, Config, Linter, Report, Request, Selection, Setup, Summary};
use crate::pass::{Calibration, Severity, Target};
use crate::passes;
use crate::source::ModelFile;

/// There are findings at or above the threshold.
const FOUND: u8 = 1;

/// One model, opened, with how it is linted and what was found.
pub(super) struct Subject {
    pub(super) file: ModelFile,
    pub(super) setup: Setup,
    pub(super) report: Report,
}

pub(super) fn run(args: &LintArgs, output: &Output) -> anyhow::Result<ExitCode> {
    let request = request(args)?;
    if args.fix {
        fix::check(args)?;
    }
    if args.report.is_some() && args.models.len() > 1 {
        bail!(
            "--report is of one model, but {} are given",
            args.models.len()
        );
    }
    let mut linter = Linter::new(passes::ALL);
    linter.catalog = args.catalog.is_some();
    let given = args.config.as_deref().map(read_config).transpose()?;
    let mut baselines = Baselines::new(args)?;
    let mut subjects = Vec::new();
    for path in &args.models {
        let config = match &given {
            Some(config) => config.clone(),
            None => match Config::find(path) {
                Some(file) => read_config(&file)?,
                None => Config::default(),
            },
        };
        let setup = Setup::new(&request, &config, passes::ALL);
        let mut file =
            ModelFile::open(path).map_err(|error| with_path(error, path.display().to_string()))?;
        for warning in file.warnings() {
            output.warning(warning);
        }
        if let Some(report) = &args.report {
            linter.calibration = Arc::new(Calibration {
                ranges: calibration::ranges(report, &file.fingerprint())?,
                ..Calibration::default()
            });
        }
        let baseline = baselines.of(&config)?;
        let report = if args.fix {
            fix::run(&linter, &mut file, &setup, baseline, args, output)?
        } else {
            linter.lint(&file, &setup, baseline)?
        };
        warn_of_unused(&report, &config, path, output);
        subjects.push(Subject {
            file,
            setup,
            report,
        });
    }
    if let Some(path) = &args.write_baseline {
        return write_baseline(&subjects, path, output);
    }
    let plan = args.plan.as_deref().map(Plan::read).transpose()?;
    let placements = placements(&subjects, plan.as_ref(), args, output);
    show(&subjects, &placements, args, output)?;
    let mut total = Summary::default();
    for subject in &subjects {
        let summary = subject.report.summary();
        total.error += summary.error;
        total.warning += summary.warning;
        total.info += summary.info;
    }
    summarize(&subjects, total, args, output);
    let threshold = match args.fail_on {
        FailOn::Error => Some(Severity::Error),
        FailOn::Warning => Some(Severity::Warning),
        FailOn::Info => Some(Severity::Info),
        FailOn::Never => None,
    };
    let is_off_the_ane = falls_short(&placements, args, output);
    Ok(match threshold {
        _ if is_off_the_ane => ExitCode::from(FOUND),
        Some(threshold) if total.at_least(threshold) > 0 => ExitCode::from(FOUND),
        _ => ExitCode::SUCCESS,
    })
}

/// What is asked for, with the names of rules looked up.
fn request(args: &LintArgs) -> anyhow::Result<Request> {
    let parse = |words: &[String]| Selection::parse(words, passes::ALL);
    Ok(Request {
        target: args.target.map(|target| match target {
            TargetArg::CoreMl => Target::CoreMl,
            TargetArg::AneDirect => Target::AneDirect,
        }),
        select: args
            .select
            .as_deref()
            .map(parse)
            .transpose()
            .context("--select")?,
        ignore: parse(&args.ignore).context("--ignore")?,
    })
}

fn read_config(path: &Path) -> anyhow::Result<Config> {
    Ok(Config::read(path, passes::ALL)?)
}

/// The baselines: the one of the command line, or those that configurations name, each read once.
struct Baselines {
    given: Option<Baseline>,
    named: Vec<(std::path::PathBuf, Baseline)>,
    /// What is written anew counts nothing as known.
    is_written: bool,
}

impl Baselines {
    fn new(args: &LintArgs) -> anyhow::Result<Self> {
        let given = args.baseline.as_deref().map(Baseline::read).transpose()?;
        Ok(Self {
            given,
            named: Vec::new(),
            is_written: args.write_baseline.is_some(),
        })
    }

    fn of(&mut self, config: &Config) -> anyhow::Result<Option<&mut Baseline>> {
        if self.is_written {
            return Ok(None);
        }
        if self.given.is_some() {
            return Ok(self.given.as_mut());
        }
        let Some(path) = &config.baseline else {
            return Ok(None);
        };
        let known = self.named.iter().position(|(known, _)| known == path);
        let index = if let Some(index) = known {
            index
        } else {
            self.named.push((path.clone(), Baseline::read(path)?));
            self.named.len() - 1
        };
        Ok(self.named.get_mut(index).map(|(_, baseline)| baseline))
    }
}

/// Says which `[[ignore]]` met nothing.
fn warn_of_unused(report: &Report, config: &Config, path: &Path, output: &Output) {
    for (ignore, used) in config.ignores.iter().zip(&report.used_ignores) {
        if !used {
            output.warning(&format!(
                "{}: nothing is ignored by [[ignore]] of `{}` at `{}` ({})",
                path.display(),
                ignore.rule,
                ignore.op,
                ignore.reason
            ));
        }
    }
}

fn write_baseline(subjects: &[Subject], path: &Path, output: &Output) -> anyhow::Result<ExitCode> {
    let mut baseline = Baseline::default();
    for subject in subjects {
        baseline.add(subject.file.path(), &subject.report.findings);
    }
    baseline.write(path)?;
    output.note(&format!(
        "wrote {} to {}",
        count(baseline.count(), "known finding"),
        path.display()
    ));
    Ok(ExitCode::SUCCESS)
}

/// Where the operations of each model run: if that is asked for, and for people who let all rules look
/// at a model for Core ML. On the private interface nothing is placed.
fn placements(
    subjects: &[Subject],
    plan: Option<&Plan>,
    args: &LintArgs,
    output: &Output,
) -> Vec<Vec<Placement>> {
    let is_asked = args.placement || plan.is_some() || args.assert_ane_fraction.is_some();
    let is_whole = args.format == LintFormat::Full && args.select.is_none() && !output.is_quiet();
    let is_placed = |subject: &Subject| subject.setup.target == Target::CoreMl;
    let is_wanted = is_asked || (is_whole && subjects.iter().all(is_placed));
    if !is_wanted {
        return Vec::new();
    }
    let of_model = |subject: &Subject| -> Vec<Placement> {
        let parts = subject.file.model.programs();
        let of_part = parts
            .iter()
            .map(|part| estimate(part.program, &part.stage, plan));
        of_part.flatten().collect()
    };
    let placements: Vec<Vec<Placement>> = subjects.iter().map(of_model).collect();
    let measured = placements.iter().flatten().map(|placed| placed.measured);
    if plan.is_some() && measured.sum::<usize>() == 0 {
        output.warning("the plan has no operation of the model: it is of another one");
    }
    placements
}

/// Whether a function has less on the Neural Engine than it must.
fn falls_short(placements: &[Vec<Placement>], args: &LintArgs, output: &Output) -> bool {
    let Some(least) = args.assert_ane_fraction else {
        return false;
    };
    let mut falls_short = false;
    for placed in placements.iter().flatten() {
        let share = placed.ane_fraction();
        if share < least {
            falls_short = true;
            output.warning(&format!(
                "function `{}`: {share:.3} of the operations are expected on the Neural Engine, less than {least}",
                placed.function
            ));
        }
    }
    falls_short
}

fn show(
    subjects: &[Subject],
    placements: &[Vec<Placement>],
    args: &LintArgs,
    output: &Output,
) -> anyhow::Result<()> {
    let models: Vec<Linted<'_>> = subjects
        .iter()
        .map(|subject| Linted {
            path: subject.file.path(),
            model: &subject.file.model,
            setup: &subject.setup,
            report: &subject.report,
        })
        .collect();
    let mut out = output.results();
    match args.format {
        LintFormat::Full => {
            for linted in &models {
                full::write(&mut out, linted, output.is_verbose())?;
            }
        }
        LintFormat::Concise => {
            for linted in &models {
                concise::write(&mut out, linted)?;
            }
        }
        LintFormat::Github => {
            for linted in &models {
                github::write(&mut out, linted)?;
            }
        }
        LintFormat::Json => {
            let mut documents: Vec<_> = models.iter().map(json::Document::of).collect();
            if !placements.is_empty() {
                let each = documents.into_iter().zip(placements);
                documents = each.map(|(of, placed)| of.with_placement(placed)).collect();
            }
            match documents.as_slice() {
                [only] => serde_json::to_writer_pretty(&mut out, only)?,
                several => serde_json::to_writer_pretty(&mut out, several)?,
            }
            writeln!(out)?;
        }
        LintFormat::Sarif => {
            serde_json::to_writer_pretty(&mut out, &sarif::Log::of(&models, passes::ALL))?;
            writeln!(out)?;
        }
    }
    if matches!(args.format, LintFormat::Full | LintFormat::Concise) {
        for linted in &models {
            if let Some(rows) = &linted.report.catalog {
                if models.len() > 1 {
                    write!(out, "{}: ", linted.path.display())?;
                }
                table::write(&mut out, rows)?;
            }
        }
        for (linted, placed) in models.iter().zip(placements) {
            if models.len() > 1 {
                writeln!(out, "{}:", linted.path.display())?;
            }
            placement::write(&mut out, placed)?;
        }
    }
    out.flush()?;
    Ok(())
}

/// The numbers, on standard error.
fn summarize(subjects: &[Subject], total: Summary, args: &LintArgs, output: &Output) {
    if !matches!(args.format, LintFormat::Full | LintFormat::Concise) {
        return;
    }
    let sum = |of: fn(&Report) -> usize| subjects.iter().map(|s| of(&s.report)).sum::<usize>();
    let mut parts = vec![
        count(total.error, "error"),
        count(total.warning, "warning"),
        format!("{} info", total.info),
    ];
    let (ignored, known) = (sum(|report| report.ignored), sum(|report| report.known));
    if ignored > 0 {
        parts.push(format!("{ignored} ignored"));
    }
    if known > 0 {
        parts.push(format!("{known} in the baseline"));
    }
    let fixable = subjects
        .iter()
        .flat_map(|subject| &subject.report.findings)
        .filter(|finding| finding.fix)
        .count();
    let fix = match fixable {
        0 => String::new(),
        number if args.fix => format!("; {number} could be repaired and were not"),
        number => format!("; --fix -o OUT repairs {number}"),
    };
    output.note(&format!("{}{fix}", parts.join(", ")));
}
