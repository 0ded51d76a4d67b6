//! `milwright preflight`: how large the values of a model are, what fp16 makes of them, what to do.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;

use super::args::{PreflightArgs, ResultFormat};
use super::calibration::{Source, bar};
use super::evaluating;
use super::output::Output;
use crate::preflight::{Preflight, Report, Subject, render};

/// Something goes wrong in fp16.
const FOUND: u8 = 1;

pub(super) fn run(args: &PreflightArgs, output: &Output) -> anyhow::Result<ExitCode> {
    let file = evaluating::open(&args.model, output)?;
    let source = Source {
        file: &file,
        function: args.function.as_deref(),
        inputs: &args.inputs,
        seed: args.seed,
    };
    let preflight = Preflight {
        subject: Subject {
            model: &file.model,
            weights: file.weights(),
            function: args.function.as_deref(),
            seed: args.seed,
        },
        path: args.model.display().to_string(),
        fingerprint: file.fingerprint(),
        samples: source.samples(&source.runner(args.function.as_deref())?, output)?,
        sweep: args.sweep,
    };
    let calls: usize = preflight.samples.iter().map(|s| s.calls.len()).sum();
    let bar = bar(&file, calls * preflight.runs(), output);
    let report = preflight
        .run(&mut || bar.inc(1))
        .with_context(|| format!("cannot run {}", args.model.display()))?;
    bar.finish_and_clear();
    if args.sweep && report.sweep.is_empty() {
        output.warning("no sweep: there is no residual stream to clamp");
    }
    if let Some(path) = &args.output {
        write(&report, path)?;
    }
    let mut out = output.results();
    match args.format {
        ResultFormat::Json => {
            serde_json::to_writer_pretty(&mut out, &report)?;
            writeln!(out)?;
        }
        ResultFormat::Full => render::write(&mut out, &report)?,
    }
    out.flush()?;
    Ok(if report.fp16.works && report.issues.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(FOUND)
    })
}

fn write(report: &Report, path: &Path) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(report)?;
    text.push('\n');
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
