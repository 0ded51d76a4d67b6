//! `list`, `explain` and `why`.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::command::{args, done, refused, snapshot};
use crate::support::folders::test_package;

/// The passes of `list --json`, each held to the contract.
fn listed() -> Vec<Value> {
    let text = done(["list", "--json"]).stdout;
    let Value::Array(passes) = serde_json::from_str(&text).unwrap() else {
        panic!("{text}");
    };
    passes
}

fn words(value: &Value) -> Vec<&str> {
    let items = value.as_array().unwrap();
    items.iter().map(|item| item.as_str().unwrap()).collect()
}

#[test]
fn the_list_as_json_keeps_its_contract() {
    let passes = listed();
    assert!(passes.len() >= 7);
    for pass in &passes {
        let keys: BTreeSet<&str> = pass
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let expected = [
            "id",
            "family",
            "summary",
            "exactness",
            "targets",
            "default",
            "fix",
            "evidence",
            "catalog",
            "opsets",
        ];
        assert_eq!(keys, BTreeSet::from(expected));
        let id = pass["id"].as_str().unwrap();
        assert!(
            id.chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        );
        assert!(!pass["summary"].as_str().unwrap().contains('\n'));
        let families = [
            "cleanup",
            "numerics",
            "attention",
            "state",
            "placement",
            "quantization",
            "integrity",
        ];
        assert!(families.contains(&pass["family"].as_str().unwrap()), "{id}");
        let exactness = pass["exactness"].as_str().unwrap();
        assert!(
            ["exact", "real", "interface", "none"].contains(&exactness)
                || exactness.starts_with("approx("),
            "{id}: {exactness}"
        );
        assert_eq!(pass["fix"] == false, exactness == "none", "{id}");
        let evidence = ["documented", "measured", "reported", "disputed"];
        assert!(
            evidence.contains(&pass["evidence"].as_str().unwrap()),
            "{id}"
        );
        assert!(
            pass["default"].is_boolean() && pass["fix"].is_boolean(),
            "{id}"
        );
        let targets = words(&pass["targets"]);
        assert!(!targets.is_empty(), "{id}");
        assert!(
            targets
                .iter()
                .all(|t| ["core-ml", "ane-direct"].contains(t)),
            "{id}"
        );
        let opsets = words(&pass["opsets"]);
        assert!(opsets.iter().all(|o| o.starts_with("CoreML")), "{id}");
        assert_eq!(opsets.last(), Some(&"CoreML9"), "{id}");
        words(&pass["catalog"]);
    }
}

#[test]
fn the_list_of_one_family_is_that_part_of_the_list() {
    let all = listed();
    let text = done(["list", "--json", "--family", "numerics"]).stdout;
    let numerics: Vec<Value> = serde_json::from_str(&text).unwrap();
    let expected: Vec<Value> = all
        .into_iter()
        .filter(|pass| pass["family"] == "numerics")
        .collect();
    assert_eq!(numerics, expected);
    refused(
        ["list", "--family", "numeric"],
        &["`numeric`", "did you mean `numerics`?"],
    );
    // A family without passes is an empty list, not an error.
    assert_eq!(done(["list", "--json", "--family", "integrity"]).stderr, "");
}

#[test]
fn the_list_for_people() {
    let text = done(["list"]).stdout;
    // A tree in which someone works has drafts behind the passes.
    let passes = text.split("\ndrafts\n").next().unwrap();
    snapshot("list", passes);
}

#[test]
fn every_pass_explains_itself() {
    for pass in listed() {
        let id = pass["id"].as_str().unwrap();
        let page = done(["explain", id]).stdout;
        assert!(page.starts_with(&format!("# {id}\n")), "{page}");
        let headings = if pass["fix"] == true {
            ["## What it does", "## Why", "## Exactness", "## Evidence"]
        } else {
            ["## What it finds", "## Why", "## Example", "## Evidence"]
        };
        for heading in headings {
            assert!(page.contains(heading), "{id}: {heading}");
        }
        assert!(page.contains(pass["evidence"].as_str().unwrap()), "{id}");
    }
}

#[test]
fn an_unknown_pass_is_refused_with_the_nearest_one() {
    let package = test_package("metadata");
    let words = ["no pass `pow-to-mull`", "did you mean `pow-to-mul`?"];
    refused(["explain", "pow-to-mull"], &words);
    refused(args!["why", package, "pow-to-mull"], &words);
    refused(
        args!["optimize", package, "--dry-run", "--skip", "pow-to-mull"],
        &words,
    );
    refused(
        args![
            "optimize",
            package,
            "--dry-run",
            "--set",
            "pow-to-mull.max_exponent=2"
        ],
        &words,
    );
    refused(
        args!["optimize", package, "--dry-run", "--passes", "pow-to-mull"],
        &["`pow-to-mull`", "did you mean `pow-to-mul`?"],
    );
    refused(["explain", "zzz"], &["no pass `zzz`", "milwright list"]);
}

#[test]
fn why_says_what_stopped_each_near_match() {
    let ran = done(args![
        "why",
        test_package("rmsnorm_ios16"),
        "fold-rsqrt-epsilon"
    ]);
    snapshot("why_rmsnorm_ios16", &ran.stdout);
    let ran = done(args!["why", test_package("pow_zoo"), "pow-to-mul"]);
    snapshot("why_pow_zoo", &format!("{}{}", ran.stdout, ran.stderr));
    let ran = done(args!["why", test_package("attention_block"), "pow-to-mul"]);
    assert_eq!(ran.stdout, "");
    assert_eq!(ran.stderr, "pow-to-mul: 2 matches, 0 near matches\n");
}

#[test]
fn why_of_one_operation_says_whether_it_matches() {
    let package = test_package("pow_zoo");
    let why = |op: &str| done(args!["why", package, "pow-to-mul", "--op", op]).stdout;
    assert_eq!(why("by_row").lines().count(), 1);
    assert!(why("by_row").starts_with("main/by_row (pow): "));
    assert!(why("pow_p2").contains("matches: pow(x, 2) becomes mul(x, x)"));
}

#[test]
fn why_of_an_operation_that_resembles_nothing_says_so() {
    let ran = done(args![
        "why",
        test_package("attention_block"),
        "fuse-casts",
        "--op",
        "q"
    ]);
    assert_eq!(
        ran.stdout,
        "q: fuse-casts sees nothing here that resembles its pattern\n"
    );
    refused(
        args![
            "why",
            test_package("attention_block"),
            "fuse-casts",
            "--op",
            "nowhere"
        ],
        &["`nowhere`", "attention_block"],
    );
}

#[test]
fn why_takes_options_of_the_pass() {
    let package = test_package("pow_zoo");
    let ran = done(args![
        "why",
        package,
        "pow-to-mul{max_exponent=2}",
        "--op",
        "pow_p3"
    ]);
    assert!(ran.stdout.contains("exponent 3"), "{}", ran.stdout);
    refused(
        args!["why", package, "pow-to-mul{nonsense=2}"],
        &["pow-to-mul", "nonsense"],
    );
    refused(
        args!["why", package, "pow-to-mul,dead-code"],
        &["no pass `pow-to-mul,dead-code`"],
    );
}
