//! What the scripts that ask coremltools must say of a package before and after.

use std::path::PathBuf;

use serde_json::Value;

use crate::support::python::ask;

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
