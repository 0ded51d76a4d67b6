//! The command as scripts see it.

use std::path::Path;
use std::process::{Command, Output};

use assert_cmd::cargo::CommandCargoExt as _;

use crate::support::folders::test_package;

fn diff(arguments: &[&Path]) -> Output {
    let mut command = Command::cargo_bin("milwright").expect("the binary is built");
    command.arg("diff").args(arguments);
    command.output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_exit_status_says_same_different_or_could_not() {
    let (one, other) = (test_package("rmsnorm_ios16"), test_package("rmsnorm_fp32"));
    let same = diff(&[&one, &one]);
    assert_eq!(same.status.code(), Some(0));
    assert_eq!(text(&same.stdout), "no differences\n");
    let different = diff(&[&one, &other]);
    assert_eq!(
        different.status.code(),
        Some(1),
        "{}",
        text(&different.stderr)
    );
    assert!(text(&different.stdout).contains(" differences: "));
    let missing = diff(&[&one, Path::new("no such model")]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(missing.stdout.is_empty());
    assert!(text(&missing.stderr).contains("no such model"));
}

#[test]
fn json_holds_the_edits() {
    let (one, other) = (test_package("rmsnorm_ios16"), test_package("rmsnorm_fp32"));
    let output = diff(&[&one, &other, "--format".as_ref(), "json".as_ref()]);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(document["version"], 1);
    assert_eq!(document["same"], false);
    let edits = document["edits"].as_array().expect("a list");
    assert!(edits.iter().all(|edit| edit["kind"].is_string()));
    assert!(edits.iter().any(|edit| edit["kind"] == "op"));
}

#[test]
fn a_text_that_was_printed_has_no_differences_from_its_package() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("printed.mil");
    let source = test_package("attention_block");
    let mut print = Command::cargo_bin("milwright").expect("the binary is built");
    let printed = print.arg("print").arg(&source).output().expect("it runs");
    std::fs::write(&path, printed.stdout).expect("a writable folder");
    let output = diff(&[&source, &path]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    // The weights are not in the text.
    assert!(text(&output.stderr).contains("cannot be read"));
    let weights = diff(&[&source, &path, "--weights".as_ref()]);
    assert_eq!(weights.status.code(), Some(2));
}
