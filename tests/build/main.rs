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
mod weights;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use milwright::package::SaveOptions;
use milwright::source::{BuildOptions, FileError, Missing, ModelFile, build};
use milwright::text::{PrintOptions, program_text};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn test_package(name: &str) -> PathBuf {
    root().join("tests/data/packages").join(name)
}

/// All `.mlpackage` folders below a folder, sorted.
fn packages(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        for path in entries.map(|entry| entry.unwrap().path()) {
            if path.extension().is_some_and(|e| e == "mlpackage") {
                found.push(path);
            } else if path.is_dir() {
                folders.push(path);
            }
        }
    }
    found.sort();
    found
}

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

/// All files of a folder by their paths in it.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for path in fs::read_dir(&next).unwrap().map(|e| e.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_owned();
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// Runs a script of second opinions over lines of tab-separated paths; gives its lines.
fn second_opinion(script: &str, rows: &[Vec<&Path>]) -> Option<Vec<serde_json::Value>> {
    let python = std::env::var_os("MILWRIGHT_PYTHON")?;
    let list = tempfile::NamedTempFile::new().unwrap();
    let rows: Vec<String> = rows
        .iter()
        .map(|row| {
            let row: Vec<String> = row.iter().map(|path| path.display().to_string()).collect();
            row.join("\t")
        })
        .collect();
    fs::write(list.path(), rows.join("\n")).unwrap();
    let output = Command::new(python)
        .arg(root().join("tests/second_opinion").join(script))
        .args(["--jobs", "2", "--pairs"])
        .arg(list.path())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() != Some(2), "{errors}");
    let lines = String::from_utf8(output.stdout).unwrap();
    Some(
        lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect(),
    )
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
