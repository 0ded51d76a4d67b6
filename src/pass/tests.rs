//! Tests of pipelines and of the manager, with passes made for the purpose.

use std::collections::BTreeMap;

use super::options::{OptionError, OptionMap};
use super::*;
use crate::ir::{
    Binding, Body, BodyBuilder, DType, DraftBinding, Function, InputOrigin, NamedType, NodeId,
    OpDraft, Program, TensorType, ValueId, ValueType,
};
use crate::ops::Opset;
use crate::passes;

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

/// `relu(relu(… x))`, so many of them; the last one, `y`, is the output.
fn chain(length: usize) -> Program {
    let ty = ValueType::Tensor(TensorType::fixed(DType::Float16, &[2]));
    let named = |name: String| NamedType {
        name,
        ty: Some(ty.clone()),
    };
    let mut builder = BodyBuilder::new();
    builder
        .input(named("x".to_owned()), InputOrigin::Function)
        .unwrap();
    let mut last = "x".to_owned();
    for index in 0..length {
        let name = if index + 1 == length {
            "y".to_owned()
        } else {
            format!("v{index}")
        };
        let argument = vec![DraftBinding::Name(last)];
        let draft = OpDraft {
            op_type: "relu".to_owned(),
            arguments: BTreeMap::from([("x".to_owned(), argument)]),
            results: vec![named(name.clone())],
            ..OpDraft::default()
        };
        builder.op(draft).unwrap();
        last = name;
    }
    let body: Body = builder.finish(&["y".to_owned()], BTreeMap::new()).unwrap();
    let function = Function {
        inputs: vec![named("x".to_owned())],
        opset: "CoreML8".to_owned(),
        specializations: BTreeMap::from([("CoreML8".to_owned(), body)]),
        attributes: BTreeMap::new(),
    };
    Program {
        version: 1,
        functions: BTreeMap::from([("main".to_owned(), function)]),
        ..Program::default()
    }
}

/// A pass that a closure stands for.
struct Fake {
    meta: &'static Meta,
    attempt: fn(&Block<'_>, NodeId) -> Attempt,
}

struct FakeMatcher(fn(&Block<'_>, NodeId) -> Attempt);

impl Pass for Fake {
    fn meta(&self) -> &'static Meta {
        self.meta
    }

    fn matcher(&self, _: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        Ok(Box::new(FakeMatcher(self.attempt)))
    }
}

impl Matcher for FakeMatcher {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        (self.0)(block, node)
    }
}

const fn meta(id: &'static str, exactness: Exactness) -> Meta {
    Meta {
        id,
        family: Family::Cleanup,
        summary: "a pass for tests",
        exactness,
        since: Opset::CoreML5,
        targets: &[Target::CoreMl],
        evidence: Evidence::Documented,
        catalog: &[],
        default: false,
        after: &[],
        page: "",
    }
}

/// Replaces each operation of the first type by one of the second.
fn exchange(block: &Block<'_>, node: NodeId, from: &str, to: &'static str) -> Attempt {
    let Some(x) = block.op_of_type(node, from).and_then(|op| op.value("x")) else {
        return Attempt::NoMatch;
    };
    Attempt::matched("exchanged", move |edit| {
        let new = edit.op(to, &[("x", Binding::Value(x))])?;
        edit.replace(ValueId::first(node), new)
    })
}

static THERE: Fake = Fake {
    meta: &meta("there", Exactness::Exact),
    attempt: |block, node| exchange(block, node, "relu", "abs"),
};
static BACK: Fake = Fake {
    meta: &meta("back", Exactness::Exact),
    attempt: |block, node| exchange(block, node, "abs", "relu"),
};
static IDLE: Fake = Fake {
    meta: &meta("idle", Exactness::Exact),
    attempt: |block, node| match block.op_of_type(node, "relu") {
        Some(_) => Attempt::matched("nothing in truth", |_| Ok(())),
        None => Attempt::NoMatch,
    },
};
static BREAKER: Fake = Fake {
    meta: &meta("breaker", Exactness::Exact),
    attempt: |block, node| match block.op_of_type(node, "relu") {
        Some(_) => Attempt::matched("broken", move |edit| {
            let ty = TensorType::fixed(DType::Float16, &[3]);
            edit.retype(ValueId::first(node), ty.into());
            Ok(())
        }),
        None => Attempt::NoMatch,
    },
};
static INTERFACE: Fake = Fake {
    meta: &meta("interface", Exactness::Interface),
    attempt: |block, node| exchange(block, node, "relu", "abs"),
};

static FAKES: &[&dyn Pass] = &[&THERE, &BACK, &IDLE, &BREAKER, &INTERFACE];

fn run(text: &str, program: &mut Program, settings: Settings) -> Result<Outcome, RunError> {
    let pipeline = Pipeline::parse(text, FAKES).expect("a pipeline");
    let known = verify::issues(program);
    assert!(known.is_empty(), "{known:?}");
    Manager::new(FAKES, settings).run(&pipeline, program, "", &known, &NoBlobs, &mut Silent)
}

#[test]
fn a_pass_runs_until_nothing_is_left_and_everything_is_counted() {
    let mut program = chain(5);
    let outcome = run("there", &mut program, Settings::default()).unwrap();
    assert_eq!(outcome.rewrites(), 5);
    assert_eq!(
        (outcome.passes[0].id, outcome.passes[0].rewrites),
        ("there", 5)
    );
    let body = program.functions["main"].active().unwrap();
    assert!(body.graph.ops().all(|(_, op)| op.op_type() == "abs"));
    assert_eq!(outcome.remarks.len(), 5);
    assert_eq!(outcome.remarks[4].place.op, "y");
}

#[test]
fn the_limit_on_rewrites_stops_the_whole_pipeline_after_exactly_that_many() {
    for limit in 0..=8 {
        let mut program = chain(4);
        let settings = Settings {
            max_rewrites: Some(limit),
            ..Settings::default()
        };
        let outcome = run("there,back", &mut program, settings).unwrap();
        assert_eq!(outcome.rewrites(), limit);
        assert!(outcome.stopped);
        let body = program.functions["main"].active().unwrap();
        let abs = body
            .graph
            .ops()
            .filter(|(_, op)| op.op_type() == "abs")
            .count();
        assert_eq!(abs, if limit <= 4 { limit } else { 8 - limit });
    }
}

#[test]
fn a_group_that_never_settles_is_given_up_with_a_note() {
    let mut program = chain(1);
    let outcome = run("(there,back)*", &mut program, Settings::default()).unwrap();
    assert_eq!(outcome.rewrites(), 2 * 10);
    assert!(
        outcome.notes[0].contains("after 10 rounds"),
        "{:?}",
        outcome.notes
    );
}

#[test]
fn a_pass_that_claims_a_change_and_makes_none_is_found_out() {
    let settings = Settings {
        verify_each: true,
        max_rewrites: Some(1),
        ..Settings::default()
    };
    let error = run("idle", &mut chain(1), settings).unwrap_err();
    assert!(
        matches!(error, RunError::Untruthful { pass: "idle", .. }),
        "{error}"
    );
}

#[test]
fn a_pass_that_breaks_a_type_is_found_out_with_and_without_checks_after_each_pass() {
    for verify_each in [true, false] {
        let settings = Settings {
            verify_each,
            max_rewrites: Some(1),
            ..Settings::default()
        };
        let error = run("breaker", &mut chain(2), settings).unwrap_err();
        assert!(matches!(error, RunError::Broken { .. }), "{error}");
    }
}

#[test]
fn a_pass_that_changes_the_interface_runs_only_on_request() {
    let mut program = chain(1);
    let outcome = run("interface", &mut program, Settings::default()).unwrap();
    assert_eq!(outcome.rewrites(), 0);
    assert!(outcome.notes[0].contains("--interface-changes"));
    let settings = Settings {
        interface_changes: true,
        ..Settings::default()
    };
    assert_eq!(
        run("interface", &mut program, settings).unwrap().rewrites(),
        1
    );
}

#[test]
fn a_report_finds_what_a_run_would_rewrite_and_changes_nothing() {
    let mut program = chain(3);
    let before = verify::fingerprint(&program);
    let manager = Manager::new(FAKES, Settings::default());
    let remarks = manager
        .report("there", &OptionMap::new(), &mut program, "", &NoBlobs)
        .unwrap();
    assert_eq!(remarks.len(), 3);
    assert_eq!(verify::fingerprint(&program), before);
}
