//! Packages from text, and models of every kind that are not packages.
//!
//! Over the test packages, and over all packages below `MILWRIGHT_CORPUS`; coremltools is asked
//! where `MILWRIGHT_PYTHON` names a Python that has it.
#![cfg(unix)]
#![expect(clippy::print_stdout, reason = "tests say what they looked at")]

mod alone;
mod command;
mod description;
mod identity;
#[path = "../support/mod.rs"]
mod support;
mod weights;

use std::path::Path;

use milwright::package::SaveOptions;
use milwright::source::{BuildOptions, FileError, Missing, ModelFile, build};
use milwright::text::{PrintOptions, program_text};
use support::python::ask;

/// The text of a model's one program.
fn print(file: &ModelFile) -> String {
    let parts = file.model.programs();
    program_text(parts[0].program, &PrintOptions::default()).unwrap()
}

/// Builds a package at `out` and says what the notes are.
fn build_at(text: &Path, options: &BuildOptions, out: &Path) -> Result<Vec<String>, FileError> {
    let built = build(text, options)?;
    built.file.check_blobs(options.missing)?;
    let save = SaveOptions::default();
    built
        .file
        .save(out, options.missing, &save, &mut |_, _| {})?;
    Ok(built.notes)
}

/// Runs a script of second opinions over rows of paths; gives its lines.
fn second_opinion(script: &str, rows: &[Vec<&Path>]) -> Option<Vec<serde_json::Value>> {
    ask(script, &["--jobs", "2"], rows)
}

/// True for a model that one text can hold and that can be written; its weight files must be there
/// unless `missing` says otherwise.
fn is_one_program(file: &ModelFile, missing: Missing) -> bool {
    let parts = file.model.programs();
    parts.len() == 1
        && parts[0].stage.is_empty()
        && file.model.unknown_field().is_none()
        && file.check_blobs(missing).is_ok()
}
