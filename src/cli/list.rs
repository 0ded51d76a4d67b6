//! `milwright list`: all passes, or all rules.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::bail;
use serde::Serialize;

use super::args::ListArgs;
use super::output::Output;
use crate::pass::{Family, Pass, Rule, Severity, Target, nearest};
use crate::passes;

/// One pass in `list --json`.
#[derive(Serialize)]
struct Row {
    id: &'static str,
    family: &'static str,
    summary: &'static str,
    exactness: String,
    targets: Vec<&'static str>,
    default: bool,
    fix: bool,
    evidence: &'static str,
    catalog: &'static [&'static str],
    opsets: Vec<&'static str>,
}

/// One rule in `list --rules --json`.
#[derive(Serialize)]
struct RuleRow {
    id: &'static str,
    pass: &'static str,
    family: &'static str,
    fix: bool,
    summary: &'static str,
    evidence: &'static str,
    catalog: &'static [&'static str],
    severity: BTreeMap<&'static str, &'static str>,
}

impl RuleRow {
    fn of(pass: &dyn Pass, rule: &Rule) -> Self {
        let meta = pass.meta();
        Self {
            id: rule.id,
            pass: meta.id,
            family: meta.family.name(),
            fix: !meta.is_check(),
            summary: rule.summary,
            evidence: rule.evidence.name(),
            catalog: rule.catalog,
            severity: rule
                .severity
                .iter()
                .map(|(target, severity)| (target.name(), severity.name()))
                .collect(),
        }
    }
}

impl Row {
    fn of(pass: &dyn Pass) -> Self {
        let meta = pass.meta();
        Self {
            id: meta.id,
            family: meta.family.name(),
            summary: meta.summary,
            exactness: meta.exactness.word(),
            targets: meta.targets.iter().copied().map(Target::name).collect(),
            default: meta.default,
            fix: !meta.is_check(),
            evidence: meta.evidence.name(),
            catalog: meta.catalog,
            opsets: meta.opsets(),
        }
    }
}

pub(super) fn run(args: &ListArgs, output: &Output) -> anyhow::Result<ExitCode> {
    let wanted = args.family.as_deref().map(family).transpose()?;
    let passes: Vec<&dyn Pass> = passes::ALL
        .iter()
        .copied()
        .filter(|pass| wanted.is_none_or(|family| pass.meta().family == family))
        .collect();
    let mut out = output.results();
    if args.json {
        if args.rules {
            let rows: Vec<RuleRow> = passes
                .iter()
                .flat_map(|pass| pass.rules().iter().map(|rule| RuleRow::of(*pass, rule)))
                .collect();
            serde_json::to_writer_pretty(&mut out, &rows)?;
        } else {
            let rows: Vec<Row> = passes.iter().map(|pass| Row::of(*pass)).collect();
            serde_json::to_writer_pretty(&mut out, &rows)?;
        }
        writeln!(out)?;
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.rules {
        rules(&mut out, &passes)?;
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    let (drafts, finished): (Vec<_>, Vec<_>) = passes.iter().partition(|pass| pass.is_draft());
    table(&mut out, &finished)?;
    if !drafts.is_empty() {
        writeln!(out, "\ndrafts\n")?;
        table(&mut out, &drafts)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The family of this name, or an error that names the nearest one.
pub(super) fn family(name: &str) -> anyhow::Result<Family> {
    if let Some(family) = Family::ALL.into_iter().find(|known| known.name() == name) {
        return Ok(family);
    }
    let names = Family::ALL.map(Family::name);
    match nearest(name, names) {
        Some(nearest) => bail!("there is no family `{name}`; did you mean `{nearest}`?"),
        None => bail!(
            "there is no family `{name}`; the families are {}",
            names.join(", ")
        ),
    }
}

/// How bad findings of a rule are, in short: `error`, or `info/warning` where the targets differ.
pub(super) fn severity(rule: &Rule) -> String {
    let names = Target::ALL.map(|target| rule.severity_for(target).map_or("-", Severity::name));
    match names {
        [one, other] if one == other => one.to_owned(),
        several => several.join("/"),
    }
}

/// Rules below the names of their families, each with how bad it is for Core ML and for the private
/// interface, whether there is a fix, and how well the reason is known.
fn rules(out: &mut impl Write, passes: &[&dyn Pass]) -> io::Result<()> {
    let rows: Vec<(&dyn Pass, &Rule)> = passes
        .iter()
        .flat_map(|pass| pass.rules().iter().map(|rule| (*pass, rule)))
        .collect();
    let width =
        |of: &dyn Fn(&Rule) -> usize| rows.iter().map(|(_, rule)| of(rule)).max().unwrap_or(0);
    let id = width(&|rule| rule.id.len());
    let bad = width(&|rule| severity(rule).len());
    let mut family = None;
    for (pass, rule) in &rows {
        let meta = pass.meta();
        if family != Some(meta.family) {
            let line = if family.is_some() { "\n" } else { "" };
            writeln!(out, "{line}{}", meta.family.name())?;
            family = Some(meta.family);
        }
        writeln!(
            out,
            "  {:id$}  {:bad$}  {:3}  {:10}  {}",
            rule.id,
            severity(rule),
            if meta.is_check() { "" } else { "fix" },
            rule.evidence.name(),
            rule.summary
        )?;
    }
    Ok(())
}

/// Passes below the names of their families.
fn table(out: &mut impl Write, passes: &[&dyn Pass]) -> io::Result<()> {
    let rows: Vec<Row> = passes.iter().map(|pass| Row::of(*pass)).collect();
    let width = |of: fn(&Row) -> usize| rows.iter().map(of).max().unwrap_or(0);
    let id = width(|row| row.id.len());
    let exactness = width(|row| row.exactness.len());
    for (index, row) in rows.iter().enumerate() {
        if index == 0 || rows[index - 1].family != row.family {
            writeln!(out, "{}{}", if index == 0 { "" } else { "\n" }, row.family)?;
        }
        let default = if row.default { "default" } else { "" };
        writeln!(
            out,
            "  {:id$}  {:exactness$}  {default:7}  {}",
            row.id, row.exactness, row.summary
        )?;
    }
    Ok(())
}
