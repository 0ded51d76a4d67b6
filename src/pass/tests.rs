//! Tests of the manager, with passes made for the purpose.

use std::collections::BTreeMap;

use super::options::{OptionError, OptionMap};
use super::*;
use crate::ir::{
    Binding, Body, BodyBuilder, DType, DraftBinding, Function, InputOrigin, NamedType, NodeId,
    OpDraft, Program, TensorType, ValueId, ValueType,
};
use crate::model::{Interface, Model, Origin, Side};
use crate::ops::Opset;

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
/// Exchanges an operation, then asks for what must be refused.
static HALFWAY: Fake = Fake {
    meta: &meta("halfway", Exactness::Exact),
    attempt: |block, node| {
        let Some(x) = block.op_of_type(node, "relu").and_then(|op| op.value("x")) else {
            return Attempt::NoMatch;
        };
        Attempt::matched("exchanged", move |edit| {
            let new = edit.op("abs", &[("x", Binding::Value(x))])?;
            edit.replace(ValueId::first(node), new)?;
            edit.replace(new, x)
        })
    },
};
static INTERFACE: Fake = Fake {
    meta: &meta("interface", Exactness::Interface),
    attempt: |block, node| exchange(block, node, "relu", "abs"),
};

/// Renames the input `x` and, if told to, fails after that.
struct Renamer {
    meta: &'static Meta,
    fails: bool,
}

struct RenamerMatcher {
    fails: bool,
}

impl Pass for Renamer {
    fn meta(&self) -> &'static Meta {
        self.meta
    }

    fn whole_matcher(&self, _: &OptionMap) -> Result<Option<Box<dyn WholeMatcher>>, OptionError> {
        Ok(Some(Box::new(RenamerMatcher { fails: self.fails })))
    }
}

impl WholeMatcher for RenamerMatcher {
    fn attempts(&mut self, whole: &Whole<'_>) -> Vec<WholeAttempt> {
        let fails = self.fails;
        let functions = whole.program.functions.iter();
        functions
            .filter(|(_, function)| function.inputs.iter().any(|input| input.name == "x"))
            .map(|(name, _)| {
                let function = name.clone();
                let place = [name.as_str(), "x", "input"];
                WholeAttempt::matched(place, "x becomes renamed", move |edit| {
                    edit.function(&function)?.rename_input("x", "renamed")?;
                    let description = edit.description();
                    description.rename(&function, Side::Input, "x", "renamed");
                    description.set_user_defined("renamer", Some("was here".to_owned()));
                    if fails {
                        return Err(WholeError::Other("it thinks better of it".to_owned()));
                    }
                    Ok(())
                })
            })
            .collect()
    }
}

static RENAMER: Renamer = Renamer {
    meta: &meta("renamer", Exactness::Interface),
    fails: false,
};
static DOUBTER: Renamer = Renamer {
    meta: &meta("doubter", Exactness::Interface),
    fails: true,
};

/// Exchanges operations, and renames the input `x` where interfaces may change.
struct Partly;

impl Pass for Partly {
    fn meta(&self) -> &'static Meta {
        const META: Meta = meta("partly", Exactness::Real);
        &META
    }

    fn matcher(&self, _: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        fn attempt(block: &Block<'_>, node: NodeId) -> Attempt {
            exchange(block, node, "relu", "abs")
        }
        Ok(Box::new(attempt))
    }

    fn whole_matcher(&self, _: &OptionMap) -> Result<Option<Box<dyn WholeMatcher>>, OptionError> {
        Ok(Some(Box::new(RenamerMatcher { fails: false })))
    }

    fn changes_interface(&self, _: &OptionMap) -> Result<bool, OptionError> {
        Ok(true)
    }
}

static FAKES: &[&dyn Pass] = &[
    &THERE, &BACK, &IDLE, &BREAKER, &HALFWAY, &INTERFACE, &RENAMER, &DOUBTER, &Partly,
];

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
fn a_rewrite_that_is_refused_halfway_counts_for_what_it_did() {
    let mut program = chain(1);
    let settings = Settings {
        verify_each: true,
        ..Settings::default()
    };
    let outcome = run("halfway", &mut program, settings).unwrap();
    assert_eq!(outcome.rewrites(), 1);
    let body = program.functions["main"].active().unwrap();
    assert!(body.graph.ops().all(|(_, op)| op.op_type() == "abs"));
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
fn what_a_pass_does_besides_waits_for_the_request_if_it_changes_the_interface() {
    let mut program = chain(1);
    let outcome = run("partly", &mut program, Settings::default()).unwrap();
    assert_eq!(outcome.rewrites(), 1);
    assert!(outcome.notes[0].contains("--interface-changes"));
    assert_eq!(program.functions["main"].inputs[0].name, "x");
    let settings = Settings {
        interface_changes: true,
        ..Settings::default()
    };
    let outcome = run("partly", &mut program, settings).unwrap();
    assert_eq!((outcome.rewrites(), outcome.notes.len()), (1, 0));
    assert_eq!(program.functions["main"].inputs[0].name, "renamed");
}

#[test]
fn a_report_finds_what_a_run_would_rewrite_and_changes_nothing() {
    let program = chain(3);
    let whole = Whole {
        program: &program,
        interface: &Interface::default(),
        metadata: &BTreeMap::new(),
        blobs: &NoBlobs,
        stage: "",
        calibration: &Calibration::default(),
    };
    let remarks = report(&THERE, &OptionMap::new(), &whole).unwrap();
    assert_eq!(remarks.len(), 3);
    let mut program = program.clone();
    let outcome = run("there", &mut program, Settings::default()).unwrap();
    assert_eq!(remarks, outcome.remarks);
}

/// Runs a pass over a model that may have its interface changed.
fn run_whole(id: &str, model: &mut Model) -> Outcome {
    let settings = Settings {
        interface_changes: true,
        ..Settings::default()
    };
    let pipeline = Pipeline::parse(id, FAKES).expect("a pipeline");
    let part = model.parts_mut().pop().expect("a program");
    let known = verify::issues(part.program);
    Manager::new(FAKES, settings)
        .run_part(&pipeline, part, &known, &NoBlobs, &mut Silent)
        .expect("it runs")
}

#[test]
fn a_pass_over_whole_programs_changes_bodies_functions_and_description_together() {
    let mut model = Model::for_reading(chain(2), &Origin::default());
    let outcome = run_whole("renamer", &mut model);
    assert_eq!(outcome.rewrites(), 1);
    assert_eq!(
        outcome.remarks[0].to_string(),
        "renamer: applied at main/x (input): x becomes renamed"
    );
    assert_eq!(model.interface_problems(), Vec::<String>::new());
    let interface = model.interface();
    assert_eq!(interface.functions[0].inputs[0].name, "renamed");
    assert_eq!(model.user_defined()["renamer"], "was here");
    let parts = model.programs();
    let body = parts[0].program.functions["main"].active().expect("a body");
    let input = ValueId::first(body.graph.inputs()[0]);
    assert_eq!(body.graph.name(input), "renamed");
}

#[test]
fn what_a_refused_rewrite_of_a_whole_program_did_is_taken_back() {
    let mut model = Model::for_reading(chain(2), &Origin::default());
    let before = model.programs()[0].program.clone();
    let outcome = run_whole("doubter", &mut model);
    assert_eq!(outcome.rewrites(), 0);
    assert_eq!(
        outcome.remarks[0].to_string(),
        "doubter: missed at main/x (input): it thinks better of it"
    );
    let parts = model.programs();
    assert_eq!(
        verify::fingerprint(parts[0].program),
        verify::fingerprint(&before)
    );
    assert_eq!(model.interface().functions[0].inputs[0].name, "x");
    assert!(!model.user_defined().contains_key("renamer"));
}

const RULE: Rule = Rule {
    id: "a-rule",
    summary: "a rule for tests",
    why: "no reason",
    help: "none",
    evidence: Evidence::Documented,
    sources: &[],
    severity: &[(Target::CoreMl, Severity::Warning)],
    catalog: &[],
};

#[test]
fn findings_stand_beside_any_end_of_an_attempt() {
    let (attempt, findings) = Attempt::from(RULE.found("one")).split();
    assert!(matches!(attempt, Attempt::NoMatch));
    assert_eq!(findings.len(), 1);
    let attempt = Attempt::matched("what", |_| Ok(()))
        .with(RULE.found("one"))
        .on_match(|| RULE.found("two"));
    let (attempt, findings) = attempt.split();
    assert!(matches!(attempt, Attempt::Match(_)));
    let messages: Vec<&str> = findings.iter().map(|f| f.message.as_str()).collect();
    assert_eq!(messages, ["one", "two"]);
    for attempt in [Attempt::NoMatch, Attempt::NoEffect, Attempt::found([])] {
        assert!(
            attempt
                .on_match(|| RULE.found("never"))
                .split()
                .1
                .is_empty()
        );
    }
    assert!(matches!(Attempt::found([]), Attempt::NoMatch));
}

#[test]
fn a_finding_is_as_bad_as_its_rule_unless_it_says_otherwise() {
    let on = |found: &Found| Target::ALL.map(|target| found.severity_for(target));
    let warning = Some(Severity::Warning);
    assert_eq!(on(&RULE.found("x")), [warning, None]);
    let error = Some(Severity::Error);
    assert_eq!(
        on(&RULE.found("x").severity(Severity::Error)),
        [error, error]
    );
    let direct = RULE
        .found("x")
        .severities(&[(Target::AneDirect, Severity::Info)]);
    assert_eq!(on(&direct), [None, Some(Severity::Info)]);
}

/// Finds each `relu`, says of the last one that it is rewritten, and counts them in the whole program.
struct Finder;

impl Pass for Finder {
    fn meta(&self) -> &'static Meta {
        &const { meta("finder", Exactness::Exact) }
    }

    fn rules(&self) -> &'static [Rule] {
        &[RULE]
    }

    fn matcher(&self, _: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        Ok(Box::new(|block: &Block<'_>, node: NodeId| {
            let Some(x) = block.op(node).and_then(|op| op.value("x")) else {
                return Attempt::NoMatch;
            };
            let found = RULE.found("relu").parameter("x");
            match block.label(node).as_str() {
                "y" => {
                    Attempt::matched("it goes", move |edit| edit.replace(ValueId::first(node), x))
                        .with(found)
                }
                "v0" => Attempt::missed(node, "the first").with(found.at(x.node)),
                _ => found.into(),
            }
        }))
    }

    fn whole_matcher(&self, _: &OptionMap) -> Result<Option<Box<dyn WholeMatcher>>, OptionError> {
        struct Count;
        impl WholeMatcher for Count {
            fn attempts(&mut self, whole: &Whole<'_>) -> Vec<WholeAttempt> {
                let count = whole.program.count_ops();
                let found = RULE.found(format!("{count} ops"));
                vec![WholeAttempt::found(["main", "", "function"], found)]
            }
        }
        Ok(Some(Box::new(Count)))
    }
}

#[test]
fn a_scan_gives_what_a_pass_finds_in_operations_and_in_the_whole() {
    let program = chain(3);
    let whole = Whole {
        program: &program,
        interface: &crate::model::Interface::default(),
        metadata: &BTreeMap::new(),
        blobs: &NoBlobs,
        stage: "",
        calibration: &Calibration::default(),
    };
    let hits = scan(&Finder, &OptionMap::new(), &whole).unwrap();
    let found: Vec<(&str, &str, bool)> = hits
        .iter()
        .map(|hit| (hit.place.op.as_str(), hit.found.message.as_str(), hit.fix))
        .collect();
    assert_eq!(
        found,
        [
            ("x", "relu", false),
            ("v1", "relu", false),
            ("y", "relu", true),
            ("", "3 ops", false)
        ]
    );
    let spot = hits[2].spot.as_ref().unwrap();
    let graph = spot.graph(&program).unwrap();
    assert_eq!(graph.name(ValueId::first(spot.node)), "y");
    assert!(hits[3].spot.is_none());
}
