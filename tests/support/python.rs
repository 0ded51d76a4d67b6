//! The Python that `MILWRIGHT_PYTHON` names, which has coremltools and numpy, and the scripts of
//! second opinions.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use super::folders::root;

/// The Python; `None`, and a word about it, if there is none.
pub(crate) fn python() -> Option<OsString> {
    let python = std::env::var_os("MILWRIGHT_PYTHON");
    if python.is_none() {
        println!("skipped: MILWRIGHT_PYTHON is not set");
    }
    python
}

/// What a code prints that gets these paths as arguments, and that must end well.
pub(crate) fn output_of(code: &str, arguments: &[&Path]) -> Option<String> {
    let mut command = Command::new(python()?);
    command.args(["-W", "ignore", "-c", code]).args(arguments);
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    Some(String::from_utf8(output.stdout).unwrap())
}

/// Runs a script of `tests/second_opinion` over a list of jobs, each a line of paths; gives one JSON
/// object for each job, in order.
pub(crate) fn ask<P: AsRef<Path>>(
    script: &str,
    options: &[&str],
    jobs: &[Vec<P>],
) -> Option<Vec<Value>> {
    let python = python()?;
    if jobs.is_empty() {
        return Some(Vec::new());
    }
    let list = tempfile::NamedTempFile::new().unwrap();
    let lines: Vec<String> = jobs
        .iter()
        .map(|job| {
            let paths = job.iter().map(|path| path.as_ref().display().to_string());
            paths.collect::<Vec<_>>().join("\t")
        })
        .collect();
    std::fs::write(list.path(), lines.join("\n")).unwrap();
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(python)
        .arg(root().join("tests/second_opinion").join(script))
        .arg("--pairs")
        .arg(list.path())
        .args(options)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&stderr);
    // Status 1 says that something differs, which the lines tell better.
    assert!(matches!(status.code(), Some(0 | 1)), "{script}: {errors}");
    let text = String::from_utf8(stdout).unwrap();
    let found: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(found.len(), jobs.len(), "{script}: {errors}");
    Some(found)
}
