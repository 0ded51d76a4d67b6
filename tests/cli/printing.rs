//! `print`: formats, functions, dialects.

use serde_json::Value;

use crate::command::{Folder, args, data_packages, done, refused, snapshot};
use crate::support::folders::test_package;

#[test]
fn every_package_prints_in_every_format() {
    for package in data_packages() {
        for format in ["mil", "summary", "json", "dot"] {
            let ran = done(args!["print", "--format", format, package]);
            assert!(ran.stdout.len() > 50, "{}: {format}", package.display());
            if format == "json" {
                let parsed: Result<Value, _> = serde_json::from_str(&ran.stdout);
                assert!(parsed.is_ok(), "{}", package.display());
            }
        }
    }
}

#[test]
fn the_summary_for_people() {
    let text = done(args![
        "print",
        "--format",
        "summary",
        test_package("attention_block")
    ])
    .stdout;
    // The first line is the path.
    let (_, text) = text.split_once('\n').unwrap();
    snapshot("summary_attention_block", text);
}

#[test]
fn the_dialect_follows_the_opset_unless_it_is_given() {
    let first = |arguments| {
        let text = done(arguments).stdout;
        text.lines().next().unwrap().to_owned()
    };
    let (old, new) = (
        test_package("rmsnorm_ios16"),
        test_package("attention_block"),
    );
    assert_eq!(first(args!["print", old]), "program(1.0)");
    assert_eq!(first(args!["print", new]), "program(1.3)");
    assert_eq!(
        first(args!["print", "--dialect", "1.3", old]),
        "program(1.3)"
    );
    assert_eq!(
        first(args!["print", "--dialect", "1.0", new]),
        "program(1.0)"
    );
}

#[test]
fn one_function_of_several_prints_alone() {
    let package = test_package("multifunction");
    let both = done(args!["print", package]).stdout;
    let one = done(args!["print", "--function", "decode", package]).stdout;
    assert!(both.contains("func decode<") && both.contains("func prefill<"));
    assert!(one.contains("func decode<") && !one.contains("func prefill<"));
    refused(
        args!["print", "--function", "main", package],
        &["no function `main`", "decode, prefill"],
    );
}

#[test]
fn types_of_operands_are_shown_on_request() {
    let package = test_package("metadata");
    let plain = done(args!["print", package]).stdout;
    let typed = done(args!["print", "--types", package]).stdout;
    assert_ne!(plain, typed);
    assert_eq!(plain.lines().count(), typed.lines().count());
}

#[test]
fn a_pipeline_prints_each_program_under_the_name_of_its_stage() {
    let text = done(args!["print", test_package("pipeline")]).stdout;
    let headings: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("// "))
        .collect();
    assert_eq!(headings.len(), 2, "{text}");
    assert!(headings[0].contains("stage 0") && headings[1].contains("stage 1"));
}

#[test]
fn the_same_text_comes_from_a_zip_and_a_bare_model_file() {
    let folder = Folder::new();
    let zip = folder.join("a.zip");
    let package = test_package("metadata");
    done(args![
        "optimize",
        "-q",
        "--pipeline",
        "none",
        package,
        "-o",
        zip
    ]);
    let text = done(args!["print", package]).stdout;
    assert_eq!(done(args!["print", zip]).stdout, text);
    let model = package.join(crate::command::MODEL);
    assert_eq!(done(args!["print", model]).stdout, text);
    let out = folder.join("out.mlpackage");
    refused(
        args!["optimize", model, "-o", out],
        &["model.mlmodel", "only read"],
    );
}
