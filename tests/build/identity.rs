//! Printing and building again, with the package's own description, changes nothing: the models
//! are equal message by message, all other files byte for byte.

use std::fs;
use std::path::{Path, PathBuf};

use milwright::source::{BuildOptions, Missing, ModelFile};

use crate::support::folders::{content, corpus, packages_below, test_packages};
use crate::{build_at, is_one_program, print, second_opinion};

/// Prints and builds each package with its own description. Gives the pairs of package and copy.
fn rebuild_all(all: &[PathBuf], folder: &Path) -> Vec<(PathBuf, PathBuf)> {
    let mut pairs = Vec::new();
    for (index, package) in all.iter().enumerate() {
        let Ok(file) = ModelFile::open(package) else {
            continue;
        };
        if !is_one_program(&file, Missing::Allow) {
            continue;
        }
        let text = folder.join(format!("{index}.mil"));
        fs::write(&text, print(&file)).unwrap();
        let out = folder.join(format!("{index}.mlpackage"));
        let options = BuildOptions {
            weights: None,
            description: Some(package),
            missing: Missing::Allow,
        };
        let notes = build_at(&text, &options, &out)
            .unwrap_or_else(|error| panic!("{}: {error}", package.display()));
        assert!(notes.is_empty(), "{}: {notes:?}", package.display());
        fs::remove_file(text).unwrap();
        let (before, after) = (content(package), content(&out));
        let model = |path: &Path| path.extension().is_some_and(|e| e == "mlmodel");
        assert!(before.keys().eq(after.keys()), "{}", package.display());
        for (name, bytes) in &before {
            let same = model(name) || after[name] == *bytes;
            assert!(same, "{}: {} changed", package.display(), name.display());
        }
        pairs.push((package.clone(), out));
    }
    pairs
}

fn assert_message_equal(pairs: &[(PathBuf, PathBuf)]) {
    let rows: Vec<Vec<&Path>> = pairs.iter().map(|(a, b)| vec![&**a, &**b]).collect();
    let Some(lines) = second_opinion("message_equal.py", &rows) else {
        return;
    };
    assert_eq!(lines.len(), pairs.len());
    let differing: Vec<_> = lines
        .iter()
        .filter(|line| !line["difference"].is_null())
        .collect();
    assert!(differing.is_empty(), "{differing:#?}");
}

#[test]
fn printing_and_building_again_changes_no_test_package() {
    let folder = tempfile::tempdir().unwrap();
    let all = packages_below(&test_packages());
    let pairs = rebuild_all(&all, folder.path());
    // All but two pipelines and a neural network.
    assert_eq!(pairs.len(), all.len() - 3);
    assert_message_equal(&pairs);
}

#[test]
fn printing_and_building_again_changes_no_package_of_the_corpus() {
    let Some(corpus) = corpus() else { return };
    let folder = tempfile::tempdir().unwrap();
    let all = packages_below(&corpus);
    let pairs = rebuild_all(&all, folder.path());
    println!("{} of {} packages were rebuilt", pairs.len(), all.len());
    assert!(pairs.len() >= 200, "only {}", pairs.len());
    assert_message_equal(&pairs);
}
