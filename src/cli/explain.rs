//! `milwright explain`: the page of a pass, and what its rules say.

use std::io::Write;
use std::process::ExitCode;

use anyhow::bail;

use super::args::ExplainArgs;
use super::output::Output;
use crate::pass::{Pass, Rule, Severity, Target, nearest};
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

/// The pass with this id or with the rule of this id, or an error that names the nearest one.
fn find_any(id: &str) -> anyhow::Result<&'static dyn Pass> {
    if let Some((pass, _)) = passes::rule(id) {
        return Ok(pass);
    }
    if let Some(pass) = passes::by_id(id) {
        return Ok(pass);
    }
    let rules = passes::ALL.iter().flat_map(|pass| pass.rules());
    let known = rules
        .map(|rule| rule.id)
        .chain(passes::ALL.iter().map(|pass| pass.meta().id));
    match nearest(id, known) {
        Some(name) => {
            bail!("there is no pass `{id}`, nor a rule of that name; did you mean `{name}`?")
        }
        None => bail!(
            "there is no pass `{id}`, nor a rule of that name; `milwright list` shows them all"
        ),
    }
}

pub(super) fn run(args: &ExplainArgs, output: &Output) -> anyhow::Result<ExitCode> {
    let pass = find_any(&args.id)?;
    let meta = pass.meta();
    let mut out = output.results();
    let targets: Vec<&str> = meta.targets.iter().copied().map(Target::name).collect();
    // A rule first, if its id was given and is not the pass's.
    let asked = pass.rules().iter().find(|rule| rule.id == args.id);
    if let Some(rule) = asked.filter(|_| args.id != meta.id) {
        write_rule(&mut out, rule, pass)?;
        writeln!(out, "\nIt is a rule of the pass {}:\n", meta.id)?;
    }
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
    for rule in pass.rules() {
        if rule.id != args.id || args.id == meta.id {
            writeln!(out)?;
            write_rule(&mut out, rule, pass)?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// What the linter says of one kind of finding.
fn write_rule(out: &mut impl Write, rule: &Rule, pass: &dyn Pass) -> std::io::Result<()> {
    writeln!(out, "rule        {}", rule.id)?;
    writeln!(out, "finds       {}", rule.summary)?;
    for target in Target::ALL {
        let severity = rule.severity_for(target).map_or("silent", Severity::name);
        writeln!(out, "            {severity} for {}", target.name())?;
    }
    writeln!(out, "why         {}", rule.why)?;
    writeln!(out, "help        {}", rule.help)?;
    let fix = if pass.meta().is_check() {
        "none"
    } else {
        pass.meta().id
    };
    writeln!(out, "fix         {fix}")?;
    writeln!(out, "evidence    {}", rule.evidence.name())?;
    if !rule.catalog.is_empty() {
        writeln!(out, "catalogue   {}", rule.catalog.join(", "))?;
    }
    for source in rule.sources {
        writeln!(out, "source      {source}")?;
    }
    Ok(())
}
