//! `milwright lint --fix`: runs the passes that repair what is found, until there is nothing left to
//! repair.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, bail};

use super::args::LintArgs;
use super::output::{Output, count};
use super::{pipeline, save};
use crate::lint::{Baseline, Linter, Report, Setup};
use crate::pass::verify::{self, Known};
use crate::pass::{Settings, Silent};
use crate::source::{Missing, ModelFile};

/// Repairs may bring new findings, whose repairs may bring others; after so many rounds that each changed
/// something, there is no end to it.
const MOST_ROUNDS: usize = 16;

/// Refuses what could not be written, before any work is done.
pub(super) fn check(args: &LintArgs) -> anyhow::Result<()> {
    if args.models.len() > 1 {
        bail!("--fix takes one model, and {} are given", args.models.len());
    }
    match &args.output {
        Some(out) => save::check_free(out, args.force),
        None => bail!("--fix needs -o OUT"),
    }
}

/// Repairs a model and writes it; gives what is found then.
pub(super) fn run(
    linter: &Linter<'_>,
    file: &mut ModelFile,
    setup: &Setup,
    baseline: Option<&mut Baseline>,
    args: &LintArgs,
    output: &Output,
) -> anyhow::Result<Report> {
    let missing = if args.allow_missing_weights {
        Missing::Allow
    } else {
        Missing::Refuse
    };
    let out = args.output.as_deref().unwrap_or(std::path::Path::new(""));
    let place = || format!("cannot fix {}", file.path().display());
    if save::is_text(out) {
        file.check_blobs(Missing::Allow).with_context(place)?;
    } else {
        if !file.is_writable() {
            bail!(
                "{}: it is {}, which is only read; use -o FILE.mil",
                place(),
                file.kind().words()
            );
        }
        file.check_blobs(missing).with_context(place)?;
    }
    let known: Vec<Known> = file
        .model
        .programs()
        .iter()
        .map(|part| verify::issues(part.program))
        .collect();
    let weights = Arc::clone(file.weights());
    let mut made: BTreeMap<&'static str, usize> = BTreeMap::new();
    let mut last = String::new();
    let is_settled = settle(MOST_ROUNDS, || -> anyhow::Result<usize> {
        let mut unused = baseline.as_deref().cloned();
        let report = linter.lint(file, setup, unused.as_mut())?;
        let fixes = linter.fixes(&report, setup, args.interface_changes);
        if fixes.steps.is_empty() {
            return Ok(0);
        }
        last = fixes.ids().join(" and ");
        let settings = Settings {
            interface_changes: args.interface_changes,
            calibration: Arc::clone(&linter.calibration),
            ..Settings::default()
        };
        let model = &mut file.model;
        let outcome = pipeline::apply(&fixes, settings, model, &weights, &known, &mut Silent)?;
        let rewrites = outcome.rewrites();
        for pass in outcome.passes {
            *made.entry(pass.id).or_default() += pass.rewrites;
        }
        Ok(rewrites)
    })?;
    if !is_settled {
        bail!(
            "{}: after {MOST_ROUNDS} rounds {last} still find something in what they wrote; leave one \
             out with --ignore",
            file.path().display()
        );
    }
    let report = linter.lint(file, setup, baseline)?;
    if save::is_text(out) {
        save::text(file, out, args.force)
            .with_context(|| format!("cannot write {}", out.display()))?;
    } else {
        save::package(file, out, missing, args.force, output)?;
    }
    for (pass, rewrites) in &made {
        output.note(&format!("  {pass:20} {}", count(*rewrites, "rewrite")));
    }
    output.note(&format!("wrote {}", out.display()));
    Ok(report)
}

/// Calls `round` until it changes nothing; gives whether that came before so many rounds were over.
fn settle<E>(most: usize, mut round: impl FnMut() -> Result<usize, E>) -> Result<bool, E> {
    for _ in 0..most {
        if round()? == 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::settle;

    #[test]
    fn repairs_that_never_end_are_given_up_and_others_are_not() {
        let mut rounds = 0;
        let endless = settle(16, || {
            rounds += 1;
            Ok::<_, ()>(1)
        });
        assert_eq!((endless, rounds), (Ok(false), 16));
        let mut left = 3usize;
        let finite = settle(16, || {
            left = left.saturating_sub(1);
            Ok::<_, ()>(left)
        });
        assert_eq!((finite, left), (Ok(true), 0));
        assert_eq!(settle(16, || Err::<usize, _>("refused")), Err("refused"));
    }
}
