//! `milwright list`: all passes.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::bail;
use serde::Serialize;

use super::args::ListArgs;
use super::output::Output;
use crate::pass::{Family, Meta, Target, nearest};
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

impl Row {
    fn of(meta: &Meta) -> Self {
        Self {
            id: meta.id,
            family: meta.family.name(),
            summary: meta.summary,
            exactness: meta.exactness.word(),
            targets: meta.targets.iter().copied().map(Target::name).collect(),
            default: meta.default,
            // Every pass so far rewrites; a check will not.
            fix: true,
            evidence: meta.evidence.name(),
            catalog: meta.catalog,
            opsets: meta.opsets(),
        }
    }
}

pub(super) fn run(args: &ListArgs, output: &Output) -> anyhow::Result<ExitCode> {
    if let Some(family) = &args.family
        && !Family::ALL.iter().any(|known| known.name() == family)
    {
        let names = Family::ALL.map(Family::name);
        match nearest(family, names) {
            Some(name) => bail!("there is no family `{family}`; did you mean `{name}`?"),
            None => bail!(
                "there is no family `{family}`; the families are {}",
                names.join(", ")
            ),
        }
    }
    let rows: Vec<Row> = passes::ALL
        .iter()
        .map(|pass| Row::of(pass.meta()))
        .filter(|row| {
            args.family
                .as_deref()
                .is_none_or(|family| row.family == family)
        })
        .collect();
    let mut out = output.results();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &rows)?;
        writeln!(out)?;
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
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
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
