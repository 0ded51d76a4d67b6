//! The command line: one file a command. The only place that prints.
//!
//! Results go to standard output, everything else to standard error. The exit status is 0 (done),
//! 1 (done, with findings or differences) or 2 (could not).

mod args;
mod diff;
mod explain;
mod list;
mod optimize;
mod output;
mod print;
mod report;
mod why;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;

use crate::pass::verify::{self, Known};
use args::{Cli, Command};
use output::Output;

/// Could not: bad input, bad usage, refused.
const COULD_NOT: u8 = 2;

/// Runs the command that the process was started with.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    let output = Output::new(&cli);
    let result = match &cli.command {
        Command::Optimize(args) => optimize::run(args, &output),
        Command::Print(args) => print::run(args, &output),
        Command::List(args) => list::run(args, &output),
        Command::Explain(args) => explain::run(args, &output),
        Command::Why(args) => why::run(args, &output),
        Command::Diff(args) => diff::run(args, &output),
    };
    match result {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output.error(&error);
            ExitCode::from(COULD_NOT)
        }
    }
}

/// Whether the reader of our output has gone, as `head` does: nothing is wrong then.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
}

/// A model with what does not hold of each of its programs, in their order.
struct Opened {
    file: crate::model::ModelFile,
    issues: Vec<Known>,
}

/// Opens a model, says which file is meant if that fails, and passes its warnings on.
fn open(path: &Path, output: &Output) -> anyhow::Result<Opened> {
    let file = crate::model::ModelFile::open(path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    for warning in file.package.warnings() {
        output.warning(warning);
    }
    if let Some(field) = file.model.unknown_field() {
        output.warning(&format!(
            "it holds a field that milwright does not know ({field}); it can be read, not written"
        ));
    }
    let parts = file.model.programs();
    let issues: Vec<Known> = parts
        .iter()
        .map(|part| verify::issues(part.program))
        .collect();
    for issue in issues.iter().flatten() {
        output.warning(issue);
    }
    Ok(Opened { file, issues })
}
