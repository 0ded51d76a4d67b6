//! `milwright why`: for each near match of a pass, what stopped it.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, bail};

use super::args::WhyArgs;
use super::output::{Output, count};
use super::{explain, open};
use crate::pass::{Calibration, Pipeline, Remark, RemarkKind, Step, Whole, report};
use crate::passes;

pub(super) fn run(args: &WhyArgs, output: &Output) -> anyhow::Result<ExitCode> {
    let name = args.pass.split('{').next().unwrap_or_default().trim();
    let pass = explain::find(name)?;
    let id = pass.meta().id;
    if pass.meta().is_check() {
        bail!("{id} is a check, which rewrites nothing; `milwright lint --select {id}` runs it");
    }
    let pipeline = Pipeline::parse(&args.pass, passes::ALL)?;
    let [Step::Pass { options, .. }] = pipeline.steps.as_slice() else {
        bail!("`{}` is not one pass", args.pass);
    };
    let file = open(&args.model, output)?.file;
    let metadata = file.model.user_defined();
    let mut remarks = Vec::new();
    for part in file.model.programs() {
        let whole = Whole {
            program: part.program,
            interface: &part.interface,
            metadata: &metadata,
            blobs: file.weights().as_ref(),
            stage: &part.stage,
            calibration: &Calibration::default(),
        };
        remarks.extend(report(pass, options, &whole)?);
    }
    if let Some(op) = &args.op {
        let exists = file
            .model
            .programs()
            .iter()
            .any(|part| part.program.has_op(op));
        if !exists {
            bail!("no operation or value `{op}` in {}", args.model.display());
        }
        remarks.retain(|remark| concerns(remark, op));
    }
    write(&remarks, id, args.op.as_deref(), output).context("cannot write the result")?;
    Ok(ExitCode::SUCCESS)
}

fn concerns(remark: &Remark, op: &str) -> bool {
    remark.place.op == op
        || remark
            .stopped_at
            .as_ref()
            .is_some_and(|place| place.op == op)
}

fn write(remarks: &[Remark], id: &str, op: Option<&str>, output: &Output) -> std::io::Result<()> {
    let mut out = output.results();
    let of_kind = |kind| remarks.iter().filter(move |remark| remark.kind == kind);
    let (matches, misses) = (
        of_kind(RemarkKind::Applied).count(),
        of_kind(RemarkKind::Missed).count(),
    );
    for remark in of_kind(RemarkKind::Missed) {
        writeln!(out, "{}: {}", remark.place, remark.what)?;
        if let Some(place) = &remark.stopped_at {
            writeln!(out, "    stopped at {} ({})", place.op, place.op_type)?;
        }
    }
    for remark in of_kind(RemarkKind::Applied) {
        if op.is_some() || output.is_verbose() {
            writeln!(out, "{}: matches: {}", remark.place, remark.what)?;
        }
    }
    if let (Some(op), 0, 0) = (op, matches, misses) {
        writeln!(
            out,
            "{op}: {id} sees nothing here that resembles its pattern"
        )?;
    }
    out.flush()?;
    output.note(&format!(
        "{id}: {}, {}",
        count(matches, "match"),
        count(misses, "near match")
    ));
    Ok(())
}
