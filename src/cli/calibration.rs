//! What passes and rules may know of a model's values: read from a preflight report, or measured.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::args::PrecisionArg;
use super::output::Output;
use super::verify::{calls_of, given};
use super::{evaluating, explain};
use crate::eval::Runner;
use crate::eval::ranges::Ranges;
use crate::pass::{Calibration, Needs, Pipeline, Step};
use crate::preflight::{Report, Sample, Subject, measure};
use crate::source::ModelFile;

/// How many samples of inputs are made up.
const SAMPLES: usize = 2;

/// The option of a pass that names a preflight report.
const REPORT: &str = "report";

/// Where the calibration for a pipeline comes from.
pub(super) struct Source<'s> {
    pub(super) file: &'s ModelFile,
    pub(super) function: Option<&'s str>,
    pub(super) inputs: &'s [PathBuf],
    pub(super) seed: u64,
}

impl Source<'_> {
    /// What the passes of a pipeline need: nothing is measured that none of them asks for.
    ///
    /// # Errors
    ///
    /// If a report is of another model, or the model cannot be run.
    pub(super) fn calibration(
        &self,
        pipeline: &Pipeline,
        output: &Output,
    ) -> anyhow::Result<Arc<Calibration>> {
        let (needs, reports) = needs(pipeline)?;
        let mut calibration = Calibration::default();
        let mut fingerprint = None;
        for path in &reports {
            let own = fingerprint.get_or_insert_with(|| self.file.fingerprint());
            calibration.ranges = ranges(Path::new(path), own)?;
        }
        let measures = needs.ranges && calibration.ranges.is_empty();
        if !measures && !needs.samples {
            return Ok(Arc::new(calibration));
        }
        for function in self.functions() {
            let runner = self.runner(function.as_deref())?;
            let samples = self.samples(&runner, output)?;
            let calls: Vec<_> = samples.into_iter().map(|sample| sample.calls).collect();
            if measures {
                let subject = Subject {
                    model: &self.file.model,
                    weights: self.file.weights(),
                    function: function.as_deref(),
                    seed: self.seed,
                };
                let bar = bar(self.file, calls.iter().map(Vec::len).sum(), output);
                let measured = measure(subject, &calls, &mut || bar.inc(1))
                    .with_context(|| format!("cannot measure {}", self.file.path().display()))?;
                bar.finish_and_clear();
                calibration.ranges.extend(measured);
            }
            if let Some(stage) = runner.stages().first() {
                calibration.samples.insert(stage.function.clone(), calls);
            }
        }
        Ok(Arc::new(calibration))
    }

    /// The functions that are measured, `None` being the one that the description names: all, but
    /// inputs that are given are for one.
    fn functions(&self) -> Vec<Option<String>> {
        if self.function.is_some() || !self.inputs.is_empty() {
            return vec![self.function.map(str::to_owned)];
        }
        match self.file.model.programs().as_slice() {
            [only] if only.stage.is_empty() && only.program.functions.len() > 1 => {
                only.program.functions.keys().cloned().map(Some).collect()
            }
            _ => vec![None],
        }
    }

    /// A runner of a function in fp32.
    pub(super) fn runner(&self, function: Option<&str>) -> anyhow::Result<Runner<'_>> {
        let options = evaluating::options(PrecisionArg::Fp32, self.seed);
        evaluating::runner(self.file, function, &options)
    }

    /// The inputs of what a runner runs: one sample for each file, or some that are made up.
    pub(super) fn samples(
        &self,
        runner: &Runner<'_>,
        output: &Output,
    ) -> anyhow::Result<Vec<Sample>> {
        if !self.inputs.is_empty() {
            let sample = |path: &PathBuf| {
                Ok(Sample {
                    source: path.display().to_string(),
                    calls: given(path, runner, output)?,
                })
            };
            return self.inputs.iter().map(sample).collect();
        }
        let plan = evaluating::plan(runner, self.file, output)?;
        let calls = calls_of(runner);
        (0..SAMPLES)
            .map(|sample| {
                let inputs = (0..calls).map(|call| plan.inputs(self.seed, sample, call));
                Ok(Sample {
                    source: format!("made up, seed {}, sample {sample}", self.seed),
                    calls: inputs.collect::<Result<_, _>>()?,
                })
            })
            .collect()
    }
}

/// What the passes of a pipeline need together, and the reports that they name.
fn needs(pipeline: &Pipeline) -> anyhow::Result<(Needs, Vec<String>)> {
    fn collect(steps: &[Step], needs: &mut Needs, reports: &mut Vec<String>) -> anyhow::Result<()> {
        for step in steps {
            match step {
                Step::Group(inner) => collect(inner, needs, reports)?,
                Step::Pass { id, options } => {
                    let own = explain::find(id)?.needs(options)?;
                    needs.ranges |= own.ranges;
                    needs.samples |= own.samples;
                    let report = options.get(REPORT).and_then(serde_json::Value::as_str);
                    if let Some(report) = report.filter(|report| !report.is_empty())
                        && !reports.iter().any(|known| known == report)
                    {
                        reports.push(report.to_owned());
                    }
                }
            }
        }
        Ok(())
    }
    let mut found = (Needs::default(), Vec::new());
    collect(&pipeline.steps, &mut found.0, &mut found.1)?;
    if found.1.len() > 1 {
        bail!(
            "passes name different reports ({}); give one",
            found.1.join(", ")
        );
    }
    Ok(found)
}

/// What a report says of the values of the model with this fingerprint.
pub(super) fn ranges(path: &Path, fingerprint: &str) -> anyhow::Result<Ranges> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the report {}", path.display()))?;
    let place = || format!("{}", path.display());
    let report = Report::parse(&text).with_context(place)?;
    report.is_of(fingerprint).with_context(place)?;
    Ok(report.ranges())
}

/// A bar for so many calls of a model, which shows itself after a while.
pub(super) fn bar(file: &ModelFile, calls: usize, output: &Output) -> ProgressBar {
    if output.is_quiet() {
        return ProgressBar::hidden();
    }
    let ops: usize = file
        .model
        .programs()
        .iter()
        .flat_map(|part| part.program.functions.values())
        .filter_map(|function| Some(function.active()?.graph.count_ops()))
        .max()
        .unwrap_or(0);
    // indicatif draws only if standard error is a terminal.
    let bar = ProgressBar::with_draw_target(
        Some((ops * calls) as u64),
        ProgressDrawTarget::stderr_with_hz(5),
    );
    let style = ProgressStyle::with_template("running {bar:40} {percent}% {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}
