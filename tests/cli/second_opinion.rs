//! The scripts that ask coremltools and numpy; run when `MILWRIGHT_PYTHON` names a Python that has
//! both.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Runs a script over a list of jobs, each a line of paths; gives one JSON object for each job, in
/// order. `None`, and a word about it, if there is no Python.
pub(crate) fn ask(script: &str, options: &[&str], jobs: &[Vec<PathBuf>]) -> Option<Vec<Value>> {
    let Some(python) = std::env::var_os("MILWRIGHT_PYTHON") else {
        println!("skipped: MILWRIGHT_PYTHON is not set");
        return None;
    };
    if jobs.is_empty() {
        return Some(Vec::new());
    }
    let list = tempfile::NamedTempFile::new().unwrap();
    let lines: Vec<String> = jobs
        .iter()
        .map(|job| {
            let paths: Vec<_> = job.iter().map(|path| path.display().to_string()).collect();
            paths.join("\t")
        })
        .collect();
    fs::write(list.path(), lines.join("\n")).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/second_opinion");
    let output = Command::new(python)
        .arg(folder.join(script))
        .arg("--pairs")
        .arg(list.path())
        .args(options)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    // Status 1 says that something differs, which the lines tell better.
    assert!(
        matches!(output.status.code(), Some(0 | 1)),
        "{script}: {errors}"
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let found: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(found.len(), jobs.len(), "{script}: {errors}");
    Some(found)
}

/// Panics unless coremltools parses both packages of each pair to equal messages, and all other
/// files are equal.
pub(crate) fn assert_equal(pairs: &[(PathBuf, PathBuf)]) {
    let jobs: Vec<Vec<PathBuf>> = pairs
        .iter()
        .map(|(before, after)| vec![before.clone(), after.clone()])
        .collect();
    let Some(found) = ask("message_equal.py", &[], &jobs) else {
        return;
    };
    let differences: Vec<&Value> = found
        .iter()
        .filter(|line| !line["difference"].is_null())
        .collect();
    assert!(differences.is_empty(), "{differences:#?}");
    println!("{} packages equal by coremltools' parser", found.len());
}

/// Panics unless coremltools accepts each AFTER of the pairs (before, after) in all points in which
/// it accepts BEFORE, and finds the interface unchanged.
pub(crate) fn assert_accepted(pairs: &[(PathBuf, PathBuf)]) {
    let jobs: Vec<Vec<PathBuf>> = pairs
        .iter()
        .map(|(before, after)| vec![after.clone(), before.clone()])
        .collect();
    let Some(after) = ask("accepts.py", &["--jobs", "2"], &jobs) else {
        return;
    };
    let doubtful: Vec<usize> = (0..pairs.len())
        .filter(|index| !complaints(&after[*index]).is_empty())
        .collect();
    let jobs: Vec<Vec<PathBuf>> = doubtful
        .iter()
        .map(|index| vec![pairs[*index].0.clone()])
        .collect();
    let before = ask("accepts.py", &["--jobs", "2"], &jobs).unwrap_or_default();
    let mut worse = Vec::new();
    for (index, was) in doubtful.iter().zip(&before) {
        let known = complaints(was);
        for (check, verdict) in complaints(&after[*index]) {
            // Of a package that does not open, no more is known.
            let opened = known.iter().all(|(of, _)| of != "spec");
            if opened && !known.iter().any(|(of, _)| *of == check) {
                worse.push(format!("{}: {check}: {verdict}", pairs[*index].0.display()));
            }
        }
    }
    assert!(worse.is_empty(), "{worse:#?}");
    let doubtful = doubtful.len();
    println!(
        "{} packages accepted by coremltools, {doubtful} refused before and after alike",
        pairs.len() - doubtful
    );
}

/// The checks that do not hold, with the reasons.
fn complaints(line: &Value) -> Vec<(String, String)> {
    ["spec", "unknown", "blobs", "types", "interface"]
        .into_iter()
        .filter_map(|check| {
            let verdict = line[check].as_str()?;
            (verdict != "ok").then(|| (check.to_owned(), verdict.to_owned()))
        })
        .collect()
}
