//! Tests of the harness itself: passes with a deliberate defect, each caught by another check.

use std::sync::atomic::{AtomicUsize, Ordering};

use libtest_mimic::{Failed, Trial};
use milwright::ir::{Binding, NodeId, TensorType, ValueId};
use milwright::ops::Opset;
use milwright::pass::options::{OptionError, OptionMap};
use milwright::pass::{
    Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Pipeline, Step, Target,
};

use crate::case::Case;
use crate::check::check;

/// A defect.
#[derive(Clone, Copy)]
enum Defect {
    /// Says that it rewrote something, and did not.
    Boasts,
    /// Gives a value a type that its operation does not have.
    Retypes,
    /// Finds something again in what it made, without end.
    NeverSettles,
    /// Changes the program in a different way each time it runs.
    NotIdempotent,
    /// Does nothing and says nothing.
    Idle,
    /// Works.
    None,
}

struct Broken(&'static Meta, Defect);

const fn meta(id: &'static str) -> Meta {
    Meta {
        id,
        family: Family::Cleanup,
        summary: "a defect",
        exactness: Exactness::Exact,
        since: Opset::CoreML5,
        targets: &[Target::CoreMl],
        evidence: Evidence::Documented,
        catalog: &[],
        default: false,
        after: &[],
        page: "",
    }
}

static BOASTS: Broken = Broken(&const { meta("boasts") }, Defect::Boasts);
static RETYPES: Broken = Broken(&const { meta("retypes") }, Defect::Retypes);
static NEVER_SETTLES: Broken = Broken(&const { meta("never-settles") }, Defect::NeverSettles);
static NOT_IDEMPOTENT: Broken = Broken(&const { meta("not-idempotent") }, Defect::NotIdempotent);
static IDLE: Broken = Broken(&const { meta("idle") }, Defect::Idle);
static WORKS: Broken = Broken(&const { meta("works") }, Defect::None);

impl Pass for Broken {
    fn meta(&self) -> &'static Meta {
        self.0
    }

    fn matcher(&self, _: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        let counts = matches!(self.1, Defect::NotIdempotent);
        Ok(Box::new(Attempts {
            defect: self.1,
            first: counts && SWEEPS.fetch_add(1, Ordering::Relaxed).is_multiple_of(2),
        }))
    }
}

/// Sweeps of the pass that is not idempotent.
static SWEEPS: AtomicUsize = AtomicUsize::new(0);

struct Attempts {
    defect: Defect,
    /// The first sweep of a run, as each run has two over the program below.
    first: bool,
}

impl Matcher for Attempts {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let Some(op) = block.op_of_type(node, "relu") else {
            return Attempt::NoMatch;
        };
        let (Some(x), result) = (op.value("x"), ValueId::first(node)) else {
            return Attempt::NoMatch;
        };
        let Some(tensor) = block.tensor(result).cloned() else {
            return Attempt::NoMatch;
        };
        match self.defect {
            Defect::Idle => Attempt::NoMatch,
            Defect::Boasts => Attempt::matched("nothing", |_| Ok(())),
            Defect::Retypes => Attempt::matched("wrong type", move |edit| {
                edit.retype(result, TensorType::scalar(tensor.dtype).into());
                Ok(())
            }),
            Defect::NeverSettles => Attempt::matched("one more", move |edit| {
                let new = edit.op("abs", &[("x", Binding::Value(x))])?;
                let new = edit.op("relu", &[("x", Binding::Value(new))])?;
                edit.replace(result, new)
            }),
            Defect::NotIdempotent if !self.first => Attempt::NoMatch,
            Defect::NotIdempotent => Attempt::matched("abs and relu", move |edit| {
                let new = edit.op("abs", &[("x", Binding::Value(x))])?;
                let new = edit.op("relu", &[("x", Binding::Value(new))])?;
                edit.replace(result, new)
            }),
            Defect::None => Attempt::matched("abs", move |edit| {
                let new = edit.op("abs", &[("x", Binding::Value(x))])?;
                edit.replace(result, new)
            }),
        }
    }
}

/// A program with one `relu`.
const PROGRAM: &str = "program(1.3)\n{\n    func main<ios18>(tensor<fp16, [2]> x) {\n\
    tensor<fp16, [2]> y = relu(x = x)[name = string(\"y\")];\n} -> (y);\n}\n";

fn caught(name: &str, pass: &'static Broken, by: Option<&str>) -> Result<(), Failed> {
    let mut case = Case::read(PROGRAM, name, "dead-code")?;
    case.pipeline = Pipeline {
        steps: vec![Step::Pass {
            id: pass.0.id.to_owned(),
            options: OptionMap::new(),
        }],
    };
    match (check(&case, &[pass]), by) {
        (Err(error), Some(by)) if error.contains(by) => Ok(()),
        (Ok(_), None) => Ok(()),
        (Err(error), _) => Err(format!("caught by another check: {error}").into()),
        (Ok(_), Some(_)) => Err("the defect is not caught".into()),
    }
}

/// The tests of the harness.
pub(crate) fn trials() -> Vec<Trial> {
    let trial =
        |title: &str, name: &'static str, pass: &'static Broken, by: Option<&'static str>| {
            Trial::test(format!("harness::{title}"), move || caught(name, pass, by))
        };
    vec![
        trial("a_good_case_passes", "case", &WORKS, None),
        trial(
            "a_rewrite_that_is_none_is_caught",
            "case",
            &BOASTS,
            Some("the program is the same as before"),
        ),
        trial(
            "a_wrong_type_is_caught",
            "case",
            &RETYPES,
            Some("broke the program"),
        ),
        trial(
            "a_pass_without_end_is_caught",
            "case",
            &NEVER_SETTLES,
            Some("still found something"),
        ),
        trial(
            "a_pass_that_changes_its_own_result_is_caught",
            "case",
            &NOT_IDEMPOTENT,
            Some("a second run changes it again"),
        ),
        trial(
            "a_case_that_does_not_change_is_caught",
            "case",
            &IDLE,
            Some("nothing changed"),
        ),
        trial(
            "a_negative_case_that_changes_is_caught",
            "no_case",
            &WORKS,
            Some("`no_…` changed"),
        ),
        trial(
            "a_negative_case_without_a_reason_is_caught",
            "no_case",
            &IDLE,
            Some("no near match"),
        ),
    ]
}
