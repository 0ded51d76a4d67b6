//! Tests of selections, configurations and ignores, on the passes of this crate and on made-up texts.

use super::*;
use crate::pass::{Severity, Target};
use crate::passes::ALL;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, ALL)
}

fn selects(words: &[&str], id: &str) -> bool {
    let selection = Selection::parse(words, ALL).unwrap();
    let (_, rule) = crate::passes::rule(id).unwrap();
    selection.contains(rule)
}

#[test]
fn rules_are_selected_by_their_id_their_pass_family_catalogue_and_evidence() {
    for word in ["pow", "pow-to-mul", "numerics", "measured", "all"] {
        assert!(selects(&[word], "pow"), "{word}");
    }
    for word in ["mish", "placement", "disputed", "orion", "finite-masks"] {
        assert!(!selects(&[word], "pow"), "{word}");
    }
    assert!(selects(&["orion"], "masked-sdpa"));
    assert!(selects(&["orion-6"], "masked-sdpa"));
    assert!(!selects(&["orion-13"], "masked-sdpa"));
    assert!(selects(&["mish", " pow "], "pow"));
    assert!(!selects(&[""], "pow"));
}

#[test]
fn an_unknown_word_names_the_nearest_one() {
    let error = Selection::parse(&["sofplus"], ALL).unwrap_err();
    assert_eq!(error.nearest.as_deref(), Some("softplus"));
    let error = Selection::parse(&["numeric"], ALL).unwrap_err();
    assert!(
        error.to_string().contains("did you mean `numerics`?"),
        "{error}"
    );
    let error = Selection::parse(&["xyzzy-plugh"], ALL).unwrap_err();
    assert!(
        error.to_string().contains("milwright list --rules"),
        "{error}"
    );
}

#[test]
fn a_family_or_pass_without_rules_selects_nothing_and_is_no_error() {
    assert!(!selects(&["cleanup", "dead-code"], "pow"));
}

#[test]
fn a_configuration_says_all_that_it_can() {
    let config = parse(
        r#"
        target = "ane-direct"
        select = ["numerics", "placement"]
        baseline = "known.json"

        [severity]
        pow = "info"

        [[ignore]]
        rule = "softplus"
        op = "head_*"
        reason = "stays below 8"

        [[ignore]]
        rule = "placement"
        reason = "the CPU is fine"

        [rule.pow]
        max_exponent = 2
        "#,
    )
    .unwrap();
    assert_eq!(config.target, Some(Target::AneDirect));
    assert_eq!(config.severity["pow"], Severity::Info);
    assert_eq!(config.ignores.len(), 2);
    assert_eq!(config.ignores[0].reason, "stays below 8");
    assert_eq!(config.ignores[1].op, "*");
    assert_eq!(config.options["pow-to-mul"]["max_exponent"], 2);
    assert_eq!(config.baseline.unwrap().to_str(), Some("known.json"));
}

#[test]
fn words_to_ignore_may_be_a_list() {
    let config = parse("ignore = [\"pow\", \"attention\"]").unwrap();
    let (_, pow) = crate::passes::rule("pow").unwrap();
    assert!(config.ignore.contains(pow));
    assert!(config.ignores.is_empty());
}

#[test]
fn what_is_wrong_with_a_configuration_is_said_with_the_nearest_word() {
    for (text, words) in [
        (
            "tagret = \"core-ml\"",
            &["key `tagret`", "`target`"] as &[&str],
        ),
        ("target = \"coreml\"", &["target `coreml`", "`core-ml`"]),
        ("select = [\"numeric\"]", &["`numeric`", "`numerics`"]),
        (
            "[severity]\nsoftpluss = \"info\"",
            &["softpluss", "`softplus`"],
        ),
        ("[severity]\npow = \"warn\"", &["severity `warn`"]),
        ("[severity]\npow = \"eror\"", &["`error`"]),
        ("[[ignore]]\nrule = \"pow\"", &["no `reason`"]),
        (
            "[[ignore]]\nrule = \"pow\"\nreason = \" \"",
            &["no `reason`"],
        ),
        ("[[ignore]]\nreason = \"x\"", &["no `rule`"]),
        (
            "[[ignore]]\nrule = \"pow\"\nreason = \"x\"\nops = \"y\"",
            &["key `ops`", "`op`"],
        ),
        (
            "[[ignore]]\nrule = \"sofplus\"\nreason = \"x\"",
            &["`softplus`"],
        ),
        (
            "[[ignore]]\nrule = 3\nreason = \"x\"",
            &["`rule` is no text"],
        ),
        (
            "[rule.pow]\nmax_exponents = 2",
            &["`max_exponents`", "`max_exponent`"],
        ),
        (
            "[rule.pow]\nmax_exponent = \"x\"",
            &["rule.pow", "max_exponent"],
        ),
        ("[rule.powr]\nmax_exponent = 2", &["`powr`", "`pow`"]),
        ("ignore = 3", &["`ignore`"]),
        ("target = ", &["line 1"]),
        ("target = \"core-ml\"\nselect = 1", &["line 2"]),
    ] {
        let error = parse(text).unwrap_err();
        for word in words {
            assert!(error.contains(word), "{text}: {error}");
        }
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn an_ignore_fits_an_operation_by_its_name_or_by_the_end_of_its_path() {
    let fits = |op: &str, path: &str| {
        let text = format!("[[ignore]]\nrule = \"pow\"\nreason = \"x\"\nop = \"{op}\"");
        parse(&text).unwrap().ignores[0].fits(path)
    };
    assert!(fits("y", "main/y"));
    assert!(fits("main/y", "main/y"));
    assert!(fits("main/*", "stage 1/main/y"));
    assert!(fits("layer_?", "main/layer_3"));
    assert!(!fits("layer_?", "main/layer_33"));
    assert!(!fits("main", "main/y"));
    assert!(fits("*", ""));
}

#[test]
fn the_catalogue_has_20_rows_in_order_and_each_says_what_is_known() {
    let numbers: Vec<u8> = CATALOG.iter().map(|row| row.number).collect();
    assert_eq!(numbers, (1..=20).collect::<Vec<u8>>());
    for row in &CATALOG {
        assert!(
            !row.constraint.is_empty() && !row.note.is_empty(),
            "{}",
            row.number
        );
    }
    for pass in ALL {
        let of_rules = pass.rules().iter().flat_map(|rule| rule.catalog);
        for id in pass.meta().catalog.iter().chain(of_rules) {
            let is_orion = id.starts_with("orion-");
            let row = CATALOG.iter().find(|row| row.id() == **id);
            assert!(!is_orion || row.is_some(), "{} names {id}", pass.meta().id);
        }
    }
}
