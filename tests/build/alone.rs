//! Packages built from text and weights alone, without any description.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use milwright::source::{BuildOptions, Missing, ModelFile};

use crate::support::folders::{corpus, packages_below, test_packages};
use crate::{build_at, is_one_program, print, second_opinion};

/// Builds each package from its text and weights alone. Gives each with its copy, or
/// the reason why there is none.
fn build_alone(all: &[PathBuf], folder: &Path) -> Vec<(PathBuf, Result<PathBuf, String>)> {
    let mut built = Vec::new();
    for (index, package) in all.iter().enumerate() {
        let Ok(file) = ModelFile::open(package) else {
            continue;
        };
        if !is_one_program(&file, Missing::Refuse) {
            continue;
        }
        let folder = folder.join(index.to_string());
        fs::create_dir(&folder).unwrap();
        let weights = package.join("Data/com.apple.CoreML/weights");
        if weights.is_dir() {
            std::os::unix::fs::symlink(weights, folder.join("weights")).unwrap();
        }
        let text = folder.join("model.mil");
        fs::write(&text, print(&file)).unwrap();
        let out = folder.join("out.mlpackage");
        let result = build_at(&text, &BuildOptions::default(), &out);
        let result = result.map(|_| out).map_err(|error| error.to_string());
        built.push((package.clone(), result));
    }
    built
}

/// The verdicts of coremltools that do not need the package to be compared with.
const CHECKS: [&str; 4] = ["spec", "unknown", "blobs", "types"];

/// Whether coremltools accepts the copies of all packages that it accepts; gives their number.
fn assert_accepted(built: &[(PathBuf, Result<PathBuf, String>)]) -> Option<usize> {
    let pairs: Vec<(&Path, &Path)> = built
        .iter()
        .filter_map(|(package, copy)| Some((package.as_path(), copy.as_ref().ok()?.as_path())))
        .collect();
    let rows =
        |of: fn(&(&Path, &Path)) -> PathBuf| -> Vec<PathBuf> { pairs.iter().map(of).collect() };
    let (before, after) = (rows(|pair| pair.0.into()), rows(|pair| pair.1.into()));
    let ask = |paths: &[PathBuf]| {
        let rows: Vec<Vec<&Path>> = paths.iter().map(|path| vec![path.as_path()]).collect();
        second_opinion("accepts.py", &rows)
    };
    let after = ask(&after)?;
    let refused: Vec<usize> = (0..after.len())
        .filter(|index| CHECKS.iter().any(|check| after[*index][check] != "ok"))
        .collect();
    // What is refused must have been refused before.
    let suspects: Vec<PathBuf> = refused.iter().map(|index| before[*index].clone()).collect();
    let earlier = ask(&suspects)?;
    for (index, earlier) in refused.iter().zip(&earlier) {
        let was_ok = CHECKS.iter().all(|check| earlier[check] == "ok");
        assert!(
            !was_ok,
            "{:#}\nof {}",
            after[*index],
            before[*index].display()
        );
    }
    Some(after.len() - refused.len())
}

#[test]
fn coremltools_accepts_what_is_built_from_the_text_of_test_packages() {
    let folder = tempfile::tempdir().unwrap();
    let all = packages_below(&test_packages());
    let built = build_alone(&all, folder.path());
    let refused: BTreeSet<_> = built
        .iter()
        .filter(|(_, copy)| copy.is_err())
        .map(|(package, _)| package.file_name().unwrap().to_str().unwrap())
        .collect();
    // It has an input of unknown rank.
    assert_eq!(refused, BTreeSet::from(["odd_types.mlpackage"]));
    if let Some(accepted) = assert_accepted(&built) {
        assert!(accepted >= 18, "only {accepted}");
    }
}

#[test]
fn coremltools_accepts_what_is_built_from_the_text_of_the_corpus() {
    let Some(corpus) = corpus() else { return };
    let folder = tempfile::tempdir().unwrap();
    let all = packages_below(&corpus);
    let built = build_alone(&all, folder.path());
    for (package, copy) in &built {
        if let Err(reason) = copy {
            // Programs that no application could call; coremltools' own tests are full of them.
            let known = ["has the element type", "is possible from"];
            let is_known = known.iter().any(|part| reason.contains(part));
            assert!(is_known, "{}: {reason}", package.display());
        }
    }
    let refused = built.iter().filter(|(_, copy)| copy.is_err()).count();
    println!("{} built, {refused} refused", built.len() - refused);
    assert!(refused * 50 < built.len(), "{refused} refused");
    // coremltools takes a quarter of a second for each.
    let sample: Vec<_> = built.into_iter().step_by(8).collect();
    if let Some(accepted) = assert_accepted(&sample) {
        println!("{accepted} of {} accepted by coremltools", sample.len());
        assert!(accepted >= 200, "only {accepted}");
    }
}
