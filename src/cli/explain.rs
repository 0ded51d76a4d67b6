//! `milwright explain`: the page of a pass.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::bail;

use super::args::ExplainArgs;
use super::output::Output;
use crate::pass::{Pass, Target, nearest};
use crate::passes;

/// The pass with this id, or an error that names the nearest one.
pub(super) fn find(id: &str) -> anyhow::Result<&'static dyn Pass> {
    if let Some(pass) = passes::by_id(id) {
        return Ok(pass);
    }
    match nearest(id, passes::ALL.iter().map(|pass| pass.meta().id)) {
        Some(name) => bail!("there is no pass `{id}`; did you mean `{name}`?"),
        None => bail!("there is no pass `{id}`; `milwright list` shows them all"),
    }
}

pub(super) fn run(args: &ExplainArgs, output: &Output) -> anyhow::Result<ExitCode> {
    let pass = find(&args.id)?;
    let meta = pass.meta();
    let mut out = output.results();
    let targets: Vec<&str> = meta.targets.iter().copied().map(Target::name).collect();
    writeln!(out, "{}", meta.page.trim_end())?;
    writeln!(out, "\n---\n")?;
    writeln!(out, "family      {}", meta.family.name())?;
    writeln!(out, "exactness   {}", meta.exactness.word())?;
    writeln!(out, "targets     {}", targets.join(", "))?;
    writeln!(out, "opsets      {}", meta.opsets().join(", "))?;
    writeln!(out, "evidence    {}", meta.evidence.name())?;
    if !meta.catalog.is_empty() {
        writeln!(out, "catalogue   {}", meta.catalog.join(", "))?;
    }
    let default = if meta.default { "yes" } else { "no" };
    writeln!(out, "by default  {default}")?;
    for (name, value) in pass.options() {
        writeln!(out, "option      {name} = {value}")?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
