//! `lint --placement`: the estimate of where operations run, and a plan in its place.

use std::fs;

use crate::command::{args, done, refused, run, snapshot};
use crate::linting::model;

#[test]
fn the_table_says_what_it_is_and_where_it_is_from() {
    let (_folder, path) = model();
    let ran = done(args![
        "lint",
        path,
        "--select",
        "no-input-function",
        "--placement"
    ]);
    snapshot("lint_placement", &ran.stdout);
}

#[test]
fn the_table_is_for_people_who_look_at_a_whole_model_for_core_ml() {
    let (_folder, path) = model();
    let has_table = |more: &[&str]| {
        let mut arguments = args!["lint", path];
        arguments.extend(more.iter().map(std::ffi::OsString::from));
        run(arguments).stdout.contains("placement of")
    };
    assert!(has_table(&[]));
    assert!(!has_table(&["--select", "pow"]));
    assert!(has_table(&["--select", "pow", "--placement"]));
    assert!(!has_table(&["--format", "concise"]));
    assert!(has_table(&["--format", "concise", "--placement"]));
    assert!(!has_table(&["--target", "ane-direct"]));
    assert!(!has_table(&["--quiet"]));
}

#[test]
fn a_share_on_the_neural_engine_is_held() {
    let (_folder, path) = model();
    // Two of three operations.
    let lint = |share: &str| run(args!["lint", path, "--assert-ane-fraction", share]);
    assert_eq!(lint("0.6").status, 0);
    let ran = lint("0.7");
    assert_eq!(ran.status, 1, "{ran:?}");
    let warning = "function `main`: 0.667 of the operations are expected on the Neural Engine";
    assert!(ran.stderr.contains(warning), "{}", ran.stderr);
    let ran = lint("2");
    assert_eq!(ran.status, 2, "{ran:?}");
    assert!(ran.stderr.contains("not a number from 0 to 1"), "{ran:?}");
}

#[test]
fn a_plan_goes_before_the_estimate() {
    let (folder, path) = model();
    let plan = folder.join("plan.json");
    let rows = r#"{"functions": {"main": [
        {"output": "two", "preferred": null},
        {"output": "square", "preferred": "MLCPUComputeDevice"},
        {"output": "soft", "preferred": "MLGPUComputeDevice"},
        {"output": "y", "preferred": "MLCPUComputeDevice"}]}}"#;
    fs::write(&plan, rows).unwrap();
    let ran = done(args!["lint", path, "--plan", plan]);
    let table = ran.stdout.split_once("placement of").unwrap().1;
    for text in [
        "from the plan:",
        "2 times",
        "GPU      1: the plan says so, first `soft`",
    ] {
        assert!(table.contains(text), "{table}");
    }
    assert!(!table.contains("estimate"), "{table}");
    let held = run(args![
        "lint",
        path,
        "--plan",
        plan,
        "--assert-ane-fraction",
        "0.1"
    ]);
    assert_eq!(held.status, 1, "{held:?}");
}

#[test]
fn a_plan_of_another_model_or_of_another_form_is_noticed() {
    let (folder, path) = model();
    let plan = folder.join("plan.json");
    fs::write(&plan, r#"[{"name": "other", "device": "ane"}]"#).unwrap();
    let ran = done(args!["lint", path, "--plan", plan]);
    assert!(
        ran.stderr.contains("it is of another one"),
        "{}",
        ran.stderr
    );
    fs::write(&plan, "[]").unwrap();
    refused(
        args!["lint", path, "--plan", plan],
        &["plan.json", "no row"],
    );
    fs::write(&plan, "{").unwrap();
    refused(args!["lint", path, "--plan", plan], &["plan.json"]);
    let missing = folder.join("missing.json");
    refused(args!["lint", path, "--plan", missing], &["missing.json"]);
}
