//! Pipelines as text.

use milwright::pass::{NAMED, Pipeline, PipelineError, Step};
use milwright::passes;

fn parse(text: &str) -> Result<Pipeline, PipelineError> {
    Pipeline::parse(text, passes::ALL)
}

#[test]
fn a_pipeline_is_passes_options_groups_and_named_pipelines() {
    let pipeline =
        parse(" dead-code , (fuse-casts{through_exact_ops=true},dedup-consts)* ").unwrap();
    let text = "dead-code,(fuse-casts{through_exact_ops=true},dedup-consts)*";
    assert_eq!(pipeline.to_string(), text);
    assert_eq!(pipeline.ids(), ["dead-code", "fuse-casts", "dedup-consts"]);
    assert_eq!(parse("none").unwrap(), Pipeline::default());
    assert_eq!(parse("").unwrap(), Pipeline::default());
    assert_eq!(parse(&pipeline.to_string()).unwrap(), pipeline);
}

#[test]
fn every_named_pipeline_parses() {
    for (name, _) in NAMED {
        parse(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn option_values_are_bools_numbers_and_text() {
    let pipeline = parse("pow-to-mul{a=true,b=-1e-4,c=layer-norm,d=12}").unwrap();
    let [Step::Pass { options, .. }] = pipeline.steps.as_slice() else {
        panic!("one pass");
    };
    let expected = serde_json::json!({"a": true, "b": -1e-4, "c": "layer-norm", "d": 12});
    assert_eq!(serde_json::Value::Object(options.clone()), expected);
}

#[test]
fn a_faulty_pipeline_is_refused_at_the_column_of_the_fault() {
    for (text, column) in [
        ("dead-code,", 11),
        ("(dead-code", 11),
        ("(dead-code)", 12),
        ("dead-code dedup-consts", 11),
        ("pow-to-mul{max_exponent}", 24),
        ("pow-to-mul{max_exponent=}", 25),
        ("pow-to-mul{max_exponent=2", 26),
        ("((((((((((dead-code)*", 9),
    ] {
        match parse(text) {
            Err(PipelineError::Syntax { column: found, .. }) => assert_eq!(found, column, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn an_unknown_name_is_refused_with_the_nearest_known_one() {
    let nearest_of = |text| match parse(text) {
        Err(PipelineError::Unknown { nearest, .. }) => nearest,
        other => panic!("{text}: {other:?}"),
    };
    assert_eq!(nearest_of("dedup-const").as_deref(), Some("dedup-consts"));
    assert_eq!(nearest_of("defualt").as_deref(), Some("default"));
    assert_eq!(nearest_of("quantize"), None);
    assert!(matches!(
        parse("default{a=1}"),
        Err(PipelineError::Options(_))
    ));
}

#[test]
fn skipping_and_setting_reach_into_groups() {
    let mut pipeline = parse("(dead-code)*,(fuse-casts,dead-code)*").unwrap();
    assert!(pipeline.skip("dead-code"));
    assert!(!pipeline.skip("dead-code"));
    assert!(pipeline.set("fuse-casts", "through_exact_ops", &true.into()));
    assert!(!pipeline.set("dead-code", "a", &true.into()));
    assert_eq!(
        pipeline.to_string(),
        "(fuse-casts{through_exact_ops=true})*"
    );
}

#[test]
fn options_that_a_pass_does_not_take_are_refused_with_those_that_it_does() {
    let refused = |text| {
        let error = parse(text).unwrap().check_options(passes::ALL).unwrap_err();
        error.to_string()
    };
    assert!(refused("pow-to-mul{max_exponnet=2}").contains("`max_exponent`"));
    assert!(refused("pow-to-mul{max_exponent=two}").contains("pow-to-mul"));
    assert!(refused("dead-code{a=1}").contains("no options"));
}

#[test]
fn the_pipelines_for_other_targets_have_every_pass_of_the_default_one() {
    let ids = |name| -> Vec<String> {
        let pipeline = parse(name).unwrap();
        pipeline.ids().into_iter().map(str::to_owned).collect()
    };
    for name in ["llm", "ane-direct"] {
        let own = ids(name);
        for id in ids("default") {
            assert!(own.contains(&id), "{name} lacks {id}");
        }
    }
}
