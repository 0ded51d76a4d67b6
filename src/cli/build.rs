//! `milwright build`: a package from MIL text.

use std::process::ExitCode;

use anyhow::Context as _;

use super::args::BuildArgs;
use super::output::{Output, count};
use super::save;
use crate::pass::verify;
use crate::source::{self, BuildOptions, Missing};

pub(super) fn run(args: &BuildArgs, output: &Output) -> anyhow::Result<ExitCode> {
    let out = &args.output;
    save::check_free(out, args.force)?;
    let missing = if args.allow_missing_weights {
        Missing::Allow
    } else {
        Missing::Refuse
    };
    let options = BuildOptions {
        missing,
        weights: args.weights.as_deref(),
        description: args.description.as_deref(),
    };
    let place = || format!("cannot build {}", args.text.display());
    let built = source::build(&args.text, &options).with_context(place)?;
    for note in &built.notes {
        output.note(note);
    }
    let file = built.file;
    for part in file.model.programs() {
        for issue in verify::issues(part.program) {
            output.warning(&issue);
        }
    }
    if let Some(error) = file.first_missing() {
        output.warning(&error.to_string());
    }
    file.check_blobs(missing).with_context(place)?;
    save::package(&file, out, missing, args.force, output)?;
    let ops: usize = file
        .model
        .programs()
        .iter()
        .map(|part| part.program.count_ops())
        .sum();
    output.note(&format!("{}; wrote {}", count(ops, "op"), out.display()));
    Ok(ExitCode::SUCCESS)
}
