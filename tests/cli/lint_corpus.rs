//! `lint` over all packages of `tests/data` and of the collection, and what it has to find there.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use milwright::passes;

use crate::command::{args, collection, data_packages, run};
use crate::linting::json;
use crate::support::folders::corpus;

#[test]
fn linting_never_panics_and_is_the_same_each_time() {
    for package in data_packages() {
        for target in ["core-ml", "ane-direct"] {
            let once = run(args![
                "lint", package, "--target", target, "--format", "json"
            ]);
            assert!((0..2).contains(&once.status), "{once:?}");
            let again = run(args![
                "lint", package, "--target", target, "--format", "json"
            ]);
            assert_eq!(once.stdout, again.stdout);
        }
    }
}

/// Rules that `EXPECT.tsv` names and that there are not yet.
const NOT_YET: [&str; 0] = [];

/// A line of `EXPECT.tsv`: a package with a known defect.
struct Expected {
    package: String,
    /// One of these is found.
    must: Vec<String>,
    /// These may be errors too.
    may: Vec<String>,
    note: String,
}

fn expected(folder: &Path) -> Vec<Expected> {
    let text = fs::read_to_string(folder.join("EXPECT.tsv")).unwrap();
    let lines = text.lines().skip(1).filter(|line| !line.trim().is_empty());
    lines
        .map(|line| {
            let mut cells = line.split('\t').map(str::trim);
            let mut next = || cells.next().unwrap_or_default();
            let words = |cell: &str, by: char| -> Vec<String> {
                let words = cell
                    .split(by)
                    .map(str::trim)
                    .filter(|word| !word.is_empty());
                words.map(str::to_owned).collect()
            };
            Expected {
                package: next().to_owned(),
                must: words(next(), '|'),
                may: words(next(), ','),
                note: next().to_owned(),
            }
        })
        .collect()
}

#[test]
fn every_known_bug_is_found_and_nothing_else_is_called_an_error() {
    let Some(corpus) = corpus() else { return };
    let folder = corpus.join("bugs");
    let exists = |id: &str| passes::rule(id).is_some();
    for id in NOT_YET {
        assert!(
            !exists(id),
            "the rule `{id}` is there: take it out of NOT_YET"
        );
    }
    let mut wrong = Vec::new();
    for expected in expected(&folder) {
        let package = folder.join(format!("{}.mlpackage", expected.package));
        let ran = run(args!["lint", package, "--format", "json"]);
        assert!((0..2).contains(&ran.status), "{ran:?}");
        let document = json(&ran);
        let found: BTreeSet<(&str, &str)> = document["findings"]
            .as_array()
            .unwrap()
            .iter()
            .map(|finding| {
                (
                    finding["id"].as_str().unwrap(),
                    finding["severity"].as_str().unwrap(),
                )
            })
            .collect();
        for id in expected.must.iter().chain(&expected.may) {
            let is_known = exists(id) || NOT_YET.contains(&id.as_str());
            assert!(is_known, "`{id}` is no rule and not in NOT_YET");
        }
        let name = &expected.package;
        let is_found = |id: &String| found.iter().any(|(found, _)| found == id);
        let is_pending = expected.must.iter().any(|id| !exists(id));
        if !expected.must.is_empty() && !is_pending && !expected.must.iter().any(is_found) {
            wrong.push(format!("{name}: none of {:?} in {found:?}", expected.must));
        }
        for (id, severity) in &found {
            let named = expected
                .must
                .iter()
                .chain(&expected.may)
                .any(|known| known == id);
            let is_too_bad = match *severity {
                "error" => !named || expected.note == "warning only",
                "warning" => {
                    expected.must.is_empty() && !named && !expected.note.starts_with("no error")
                }
                _ => false,
            };
            if is_too_bad {
                wrong.push(format!("{name}: {severity}[{id}]"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn models_by_other_people_are_linted_without_a_panic() {
    let Some(packages) = collection(&["real"]) else {
        return;
    };
    for package in packages {
        let ran = run(args!["lint", package, "--format", "json"]);
        assert!(
            (0..2).contains(&ran.status),
            "{}: {ran:?}",
            package.display()
        );
    }
}
