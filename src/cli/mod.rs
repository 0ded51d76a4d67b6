//! The command line: one file a command. The only place that prints.
//!
//! Results go to standard output, everything else to standard error. The exit status is 0 (done),
//! 1 (done, with findings or differences) or 2 (could not).

mod args;
mod bisect;
mod build;
mod calibration;
mod diff;
mod evaluating;
mod explain;
mod fix;
mod lint;
mod list;
mod new;
mod optimize;
mod output;
mod pipeline;
mod preflight;
mod print;
mod report;
mod run;
mod save;
mod summary;
mod text_errors;
mod verify;
mod why;

use std::path::Path;
use std::process::ExitCode;

use clap::Parser as _;

use crate::model::Part;
use crate::ops::Opset;
use crate::pass::verify::{Known, issues};
use crate::source::{FileError, ModelFile};
use args::{Cli, Command};
use output::Output;

/// Could not: bad input, bad usage, refused.
const COULD_NOT: u8 = 2;

/// So many things that do not hold of a model are shown without `--verbose`.
const SHOWN_ISSUES: usize = 20;

/// Runs the command that the process was started with.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    let output = Output::new(&cli);
    let result = match &cli.command {
        Command::Optimize(args) => optimize::run(args, &output),
        Command::Lint(args) => lint::run(args, &output),
        Command::Print(args) => print::run(args, &output),
        Command::Build(args) => build::run(args, &output),
        Command::List(args) => list::run(args, &output),
        Command::Explain(args) => explain::run(args, &output),
        Command::Why(args) => why::run(args, &output),
        Command::Run(args) => run::run(args, &output),
        Command::Verify(args) => verify::run(args, &output),
        Command::Preflight(args) => preflight::run(args, &output),
        Command::Bisect(args) => bisect::run(args, &output),
        Command::Diff(args) => diff::run(args, &output),
        Command::New(args) => new::run(args, &output),
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
        .filter_map(|cause| {
            let io = cause.downcast_ref::<std::io::Error>();
            let json = cause.downcast_ref::<serde_json::Error>();
            io.map(std::io::Error::kind)
                .or_else(|| json.and_then(serde_json::Error::io_error_kind))
        })
        .any(|kind| kind == std::io::ErrorKind::BrokenPipe)
}

/// A model with what does not hold of each of its programs, in their order.
struct Opened {
    file: ModelFile,
    issues: Vec<Known>,
}

/// An error with its place, unless it begins with a path: what is wrong with a package does.
fn with_path(error: FileError, place: String) -> anyhow::Error {
    match error {
        FileError::Package(error) => error.into(),
        error => anyhow::Error::from(error).context(place),
    }
}

/// Opens a model, says which file is meant if that fails, and passes its warnings on.
fn open(path: &Path, output: &Output) -> anyhow::Result<Opened> {
    let file =
        ModelFile::open(path).map_err(|error| with_path(error, path.display().to_string()))?;
    for warning in file.warnings() {
        output.warning(warning);
    }
    if let Some(field) = file.model.unknown_field() {
        output.warning(&format!(
            "it holds a field that milwright does not know ({field}); it can be read, not written"
        ));
    }
    let parts = file.model.programs();
    let issues: Vec<Known> = parts.iter().map(|part| issues(part.program)).collect();
    warn_of_opsets(&parts, output);
    let shown = if output.is_verbose() {
        usize::MAX
    } else {
        SHOWN_ISSUES
    };
    for issue in issues.iter().flatten().take(shown) {
        output.warning(issue);
    }
    let all = issues.iter().map(Known::len).sum::<usize>();
    if all > shown {
        output.warning(&format!("{} more; --verbose shows all", all - shown));
    }
    Ok(Opened { file, issues })
}

/// Says which functions no pass will touch because their opset is not known.
fn warn_of_opsets(parts: &[Part<'_>], output: &Output) {
    for part in parts {
        for (name, function) in &part.program.functions {
            for opset in function.specializations.keys() {
                if Opset::parse(opset).is_none() {
                    output.warning(&format!(
                        "function `{name}`: the opset `{opset}` is unknown; it is kept as it is"
                    ));
                }
            }
        }
    }
}
