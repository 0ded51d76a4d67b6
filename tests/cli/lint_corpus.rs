//! `lint` over all packages of `tests/data` and of the collection, and what it has to find there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use milwright::passes;

use crate::command::{args, collection, data_packages, in_parallel, run};
use crate::linting::json;
use crate::support::folders::{corpus, found_below, root};

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
            assert!(exists(id), "`{id}` is no rule");
        }
        let name = &expected.package;
        let is_found = |id: &String| found.iter().any(|(found, _)| found == id);
        if !expected.must.is_empty() && !expected.must.iter().any(is_found) {
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

/// What is found in a model, as id, operation and severity.
fn found_in(model: &Path) -> Vec<(String, String, String)> {
    let ran = run(args!["lint", model, "--format", "json"]);
    assert!((0..2).contains(&ran.status), "{ran:?}");
    let document = json(&ran);
    let findings = document["findings"].as_array().unwrap().iter();
    let mut found: Vec<_> = findings
        .map(|finding| {
            ["id", "op", "severity"].map(|key| finding[key].as_str().unwrap().to_owned())
        })
        .map(|[id, op, severity]| (id, op, severity))
        .collect();
    found.sort();
    found
}

#[test]
fn the_document_names_all_errors_and_warnings_in_models_by_other_people() {
    let Some(corpus) = corpus() else { return };
    let models = found_below(&corpus.join("real"), &["mlpackage", "mlmodelc"]);
    let mut kinds: BTreeMap<(String, String), (usize, usize)> = BTreeMap::new();
    for found in in_parallel(&models, |_, model| found_in(model)) {
        let mut own: BTreeMap<(String, String), usize> = BTreeMap::new();
        for (id, _, severity) in found {
            *own.entry((severity, id)).or_default() += 1;
        }
        for (kind, count) in own {
            let (findings, models) = kinds.entry(kind).or_default();
            *findings += count;
            *models += 1;
        }
    }
    let found: BTreeSet<String> = kinds
        .iter()
        .filter(|((severity, _), _)| severity != "info")
        .map(|((severity, id), (findings, models))| {
            format!("### {severity}[{id}]: {findings} in {models}")
        })
        .collect();
    let document = fs::read_to_string(root().join("tests/data/real-findings.md")).unwrap();
    let named: BTreeSet<String> = document
        .lines()
        .filter(|line| line.starts_with("### "))
        .map(str::to_owned)
        .collect();
    let differ: Vec<&String> = found.symmetric_difference(&named).collect();
    assert!(
        differ.is_empty(),
        "found or named only: {differ:#?}\nLook whether what is new is right, and say so in \
         tests/data/real-findings.md"
    );
}

/// Models of which the collection has the package and what was compiled of it. (`unified_palette_2bit`
/// is there in both forms as well, but of two versions of the model.)
const PAIRS: [(&str, &str); 3] = [
    (
        "FluidInference__FluidAudio/streaming_encoder.mlpackage",
        "FluidInference__FluidAudio/streaming_encoder.mlmodelc",
    ),
    (
        "FluidInference__mobius/silero-vad-unified-256ms-v6.0.0.mlpackage",
        "FluidInference__mobius/silero-vad-unified-256ms-v6.0.0.v2.mlmodelc",
    ),
    (
        "FluidInference__mobius/unified_int8.mlpackage",
        "FluidInference__mobius/unified_int8.mlmodelc",
    ),
];

#[test]
fn a_compiled_model_has_the_findings_of_its_package() {
    let Some(corpus) = corpus() else { return };
    for (package, compiled) in PAIRS {
        let found = |model: &str| found_in(&corpus.join("real").join(model));
        let found = [found(package), found(compiled)];
        assert!(!found[0].is_empty(), "{package}");
        assert_eq!(found[0], found[1], "{package}");
    }
}
