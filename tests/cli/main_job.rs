//! The main job: the default pipeline over models as a converter wrote them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{
    Folder, args, collection, data_packages, defines_a_value_twice, done, in_parallel, snapshot,
};
use crate::leftovers::leftovers;
use crate::second_opinion::{assert_accepted, assert_equal};
use crate::support::folders::content;

/// Runs `optimize` with this pipeline; gives the report.
pub(crate) fn optimize(input: &Path, out: &Path, pipeline: &str) -> serde_json::Value {
    let report = out.with_extension("json");
    done(args![
        "optimize",
        "--allow-missing-weights",
        "--quiet",
        "--pipeline",
        pipeline,
        "--report",
        report,
        input,
        "-o",
        out,
    ]);
    let text = fs::read(&report).unwrap();
    fs::remove_file(&report).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// A package by the names that tell it from others.
fn label(package: &Path) -> String {
    let name = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
    match name(package).as_str() {
        "model" => name(package.parent().unwrap()),
        own => own.to_owned(),
    }
}

/// The passes that did something, with the number of their rewrites.
fn rewrites(report: &serde_json::Value) -> Vec<String> {
    let passes = report["passes"].as_array().unwrap();
    passes
        .iter()
        .filter(|pass| pass["rewrites"] != 0)
        .map(|pass| format!("{} {}", pass["id"].as_str().unwrap(), pass["rewrites"]))
        .collect()
}

/// Optimizes all, asserts that nothing is left to do and that a second run changes nothing, asks
/// coremltools, and gives a line for each: operations before and after, rewrites by pass.
fn main_job(packages: &[PathBuf]) -> String {
    let folder = Folder::new();
    let done = in_parallel(packages, |index, input| {
        let out = folder.join(&format!("{index}.mlpackage"));
        let report = optimize(input, &out, "default");
        let again = folder.join(&format!("{index}.again.mlpackage"));
        optimize(&out, &again, "default");
        let unchanged = content(&again) == content(&out);
        fs::remove_dir_all(&again).unwrap();
        let mut problems = leftovers(&out);
        if !unchanged {
            problems.push("a second run changes something".to_owned());
        }
        let name = input.display();
        let problems: Vec<String> = problems.iter().map(|p| format!("{name}: {p}")).collect();
        (out, report, problems)
    });
    let problems: Vec<&String> = done.iter().flat_map(|(_, _, problems)| problems).collect();
    assert!(problems.is_empty(), "{problems:#?}");
    let (mut changed, mut same) = (Vec::new(), Vec::new());
    for (input, (out, report, _)) in packages.iter().zip(&done) {
        let pair = (input.clone(), out.clone());
        if rewrites(report).is_empty() {
            same.push(pair);
        } else {
            changed.push(pair);
        }
    }
    // What coremltools finds equal it accepts alike.
    assert_equal(&same);
    assert_accepted(&changed);
    let mut table = String::new();
    for (input, (_, report, _)) in packages.iter().zip(&done) {
        let (before, after) = (&report["ops_before"], &report["ops_after"]);
        let line = format!(
            "{:<32} {:>5} -> {:<5} {}",
            label(input),
            before.to_string(),
            after.to_string(),
            rewrites(report).join(", ")
        );
        table.push_str(line.trim_end());
        table.push('\n');
    }
    table
}

#[test]
fn the_packages_of_the_project_are_optimized_whole() {
    snapshot("main_job_data", &main_job(&data_packages()));
}

#[test]
fn the_models_of_the_collection_are_optimized_whole() {
    let Some(packages) = collection(&["models"]) else {
        return;
    };
    snapshot("main_job_models", &main_job(&packages));
}

#[test]
fn every_other_package_of_the_collection_is_optimized_whole() {
    let Some(mut packages) = collection(&["real", "bugs", "probes", "ops", "passes"]) else {
        return;
    };
    packages.retain(|path| !defines_a_value_twice(path));
    main_job(&packages);
}
