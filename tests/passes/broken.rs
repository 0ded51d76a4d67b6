//! Tests of the harness itself: passes with a deliberate defect, each caught by another check.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{fs, io};

use libtest_mimic::{Failed, Trial};
use milwright::ir::{
    Binding, Content, DType, NewBlob, NodeId, TensorData, TensorType, Value, ValueId,
};
use milwright::ops::Opset;
use milwright::pass::options::{OptionError, OptionMap};
use milwright::pass::{
    Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Outcome, Pass, PassRun, Pipeline,
    Step, Target,
};
use tempfile::TempDir;

use crate::case::Case;
use crate::check::{check, known_issues, meant, reads_back};
use crate::{FEWEST, SNAPSHOTS, enough, no_orphans, package, snapshots};

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
    /// Does nothing and says why.
    Hesitates,
    /// Makes a constant that is no tensor of its type, so that its text cannot be read.
    Garbles,
    /// Makes a constant of a type that no weight file holds.
    Unstorable,
    /// Makes what is not equal.
    Miscomputes,
    /// Makes what is equal but for zeros and infinities, and says that it keeps every bit.
    Overstates,
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
static HESITATES: Broken = Broken(&const { meta("hesitates") }, Defect::Hesitates);
static GARBLES: Broken = Broken(&const { meta("garbles") }, Defect::Garbles);
static UNSTORABLE: Broken = Broken(&const { meta("unstorable") }, Defect::Unstorable);
static MISCOMPUTES: Broken = Broken(&const { meta("miscomputes") }, Defect::Miscomputes);
static OVERSTATES: Broken = Broken(&const { meta("overstates") }, Defect::Overstates);
static WORKS: Broken = Broken(
    &const {
        Meta {
            exactness: Exactness::Real,
            ..meta("works")
        }
    },
    Defect::None,
);

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
            Defect::Hesitates => Attempt::missed(node, "not today"),
            Defect::Garbles => Attempt::matched("half a constant", move |edit| {
                let half = edit.constant(new_constant(DType::Float16, &[0, 0x3c]));
                let new = edit.op("add", &[("x", Binding::Value(x)), ("y", half)])?;
                edit.replace(result, new)
            }),
            Defect::Unstorable => Attempt::matched("a constant of bools", move |edit| {
                let bools = edit.constant(new_constant(DType::Bool, &[1, 0]));
                let (x, abs) = (
                    Binding::Value(x),
                    edit.op("abs", &[("x", Binding::Value(x))])?,
                );
                let arguments = [("cond", bools), ("a", Binding::Value(abs)), ("b", x)];
                let new = edit.op("select", &arguments)?;
                edit.replace(result, new)
            }),
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
            Defect::Miscomputes => Attempt::matched("abs", move |edit| {
                let new = edit.op("abs", &[("x", Binding::Value(x))])?;
                edit.replace(result, new)
            }),
            // relu(x) = (x + |x|) / 2, but −0 becomes 0 and −∞ becomes NaN.
            Defect::None | Defect::Overstates => Attempt::matched("halves", move |edit| {
                let abs = edit.op("abs", &[("x", Binding::Value(x))])?;
                let half = edit.scalar(tensor.dtype, 0.5)?;
                let operands = |a, b| [("x", Binding::Value(a)), ("y", b)];
                let sum = edit.op("add", &operands(x, Binding::Value(abs)))?;
                let new = edit.op("mul", &operands(sum, half))?;
                edit.replace(result, new)
            }),
        }
    }
}

/// A tensor of two elements that a pass makes and that has these bytes.
fn new_constant(dtype: DType, bytes: &[u8]) -> Value {
    let mut value = Value::tensor(TensorType::fixed(dtype, &[2]), TensorData::Absent);
    value.content = Content::New(NewBlob {
        dtype,
        elements: 2,
        bytes: bytes.into(),
    });
    value
}

/// A program with one `relu`.
const PROGRAM: &str = "program(1.3)\n{\n    func main<ios18>(tensor<fp16, [2]> x) {\n\
    tensor<fp16, [2]> y = relu(x = x)[name = string(\"y\")];\n} -> (y);\n}\n";

/// A case of this name with that program, whose first lines are these, run through one pass.
fn case(lines: &str, name: &str, pass: &'static Broken) -> Result<Case, String> {
    let mut case = Case::read(&format!("{lines}{PROGRAM}"), name, "dead-code")?;
    case.pipeline = Pipeline {
        steps: vec![Step::Pass {
            id: pass.0.id.to_owned(),
            options: OptionMap::new(),
        }],
    };
    Ok(case)
}

/// The defect is caught, by the check that says this and by no other.
fn is_caught(result: Result<(), String>, by: &str) -> Result<(), Failed> {
    match result {
        Err(error) if error.contains(by) => Ok(()),
        Err(error) => Err(format!("caught by another check: {error}").into()),
        Ok(()) => Err("the defect is not caught".into()),
    }
}

/// The tests of the harness.
pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = with_defects();
    trials.extend(single_checks());
    trials
}

/// Passes with a defect, and cases that say something else than what happens.
fn with_defects() -> Vec<Trial> {
    let trial = |title: &str,
                 lines: &'static str,
                 name: &'static str,
                 pass: &'static Broken,
                 by: &'static str| {
        Trial::test(format!("harness::{title}"), move || {
            let result = check(&case(lines, name, pass)?, &[pass]);
            is_caught(result.map(|_| ()), by)
        })
    };
    vec![
        Trial::test("harness::a_good_case_passes", || {
            check(&case("", "case", &WORKS)?, &[&WORKS])?;
            check(&case("", "no_case", &HESITATES)?, &[&HESITATES])?;
            check(&case("// silent\n", "no_case", &IDLE)?, &[&IDLE])?;
            Ok(())
        }),
        trial(
            "a_rewrite_that_is_none_is_caught",
            "",
            "case",
            &BOASTS,
            "the program is the same as before",
        ),
        trial(
            "a_wrong_type_is_caught",
            "",
            "case",
            &RETYPES,
            "broke the program",
        ),
        trial(
            "a_program_whose_text_cannot_be_read_is_caught",
            "",
            "case",
            &GARBLES,
            "its text does not read back",
        ),
        trial(
            "a_program_that_no_package_holds_is_caught",
            "",
            "case",
            &UNSTORABLE,
            "no package can be written of it",
        ),
        trial(
            "a_pass_without_end_is_caught",
            "",
            "case",
            &NEVER_SETTLES,
            "still found something",
        ),
        trial(
            "a_pass_that_changes_its_own_result_is_caught",
            "",
            "case",
            &NOT_IDEMPOTENT,
            "a second run changes it again",
        ),
        trial(
            "a_wrong_result_is_caught",
            "",
            "case",
            &MISCOMPUTES,
            "before and",
        ),
        trial(
            "a_pass_that_is_less_exact_than_it_says_is_caught",
            "",
            "case",
            &OVERSTATES,
            "before and",
        ),
        trial(
            "a_case_that_can_be_evaluated_after_all_is_caught",
            "// not evaluated: no reason\n",
            "case",
            &WORKS,
            "but it can be",
        ),
        trial(
            "a_case_that_does_not_change_is_caught",
            "",
            "case",
            &IDLE,
            "nothing changed",
        ),
        trial(
            "a_negative_case_that_changes_is_caught",
            "",
            "no_case",
            &WORKS,
            "`no_…` changed",
        ),
        trial(
            "a_negative_case_without_a_reason_is_caught",
            "",
            "no_case",
            &IDLE,
            "no near match",
        ),
        trial(
            "a_silent_case_with_a_reason_is_caught",
            "// silent\n",
            "no_case",
            &HESITATES,
            "it is not silent",
        ),
        trial(
            "a_known_issue_that_is_not_there_is_caught",
            "// expect-issue: no such thing\n",
            "case",
            &WORKS,
            "before the pass there is no issue with `no such thing`",
        ),
    ]
}

/// Checks of which the manager or the types leave no room for a defect of a pass: each is given what
/// it must not let through.
fn single_checks() -> Vec<Trial> {
    let trial = |title: &str, run: fn(&Case) -> Result<(), String>, by: &'static str| {
        Trial::test(format!("harness::{title}"), move || {
            is_caught(run(&case("", "case", &WORKS)?), by)
        })
    };
    /// Not what is printed of any program: it is spaced otherwise.
    const OTHER: &str = "program(1.3) { func main<ios18>(fp16 x) { } -> (x); }";
    vec![
        trial(
            "a_change_without_a_rewrite_is_caught",
            |case| meant(case, &Outcome::default(), true),
            "it counts 0 rewrites, but the text changed",
        ),
        trial(
            "a_rewrite_without_a_change_is_caught",
            |case| {
                let mut outcome = Outcome::default();
                outcome.passes.push(PassRun {
                    id: "boasts",
                    rewrites: 1,
                    missed: 0,
                    time: Duration::ZERO,
                });
                meant(case, &outcome, false)
            },
            "it counts 1 rewrites, but the text did not change",
        ),
        trial(
            "a_text_that_reads_back_as_another_program_is_caught",
            |case| reads_back(case, OTHER),
            "its text reads back as another program",
        ),
        trial(
            "a_package_that_holds_another_program_is_caught",
            |case| package::survives(case, &case.program, OTHER),
            "the package holds another program",
        ),
        trial(
            "an_issue_after_the_pass_is_caught",
            |case| {
                let mut broken = case.program.clone();
                for function in broken.functions.values_mut() {
                    function.inputs.clear();
                }
                known_issues(case, &broken, "after")
            },
            "after the pass the program does not verify",
        ),
        trial(
            "a_pass_with_too_few_cases_is_caught",
            |_| enough([6, FEWEST - 7], FEWEST),
            "only 11 cases",
        ),
        trial(
            "a_pass_without_negative_cases_is_caught",
            |_| enough([FEWEST, 0], FEWEST),
            "12 cases that match, 0 that do not",
        ),
        trial(
            "a_draft_without_negative_cases_is_caught",
            |_| enough([1, 0], 0),
            "1 cases that match, 0 that do not",
        ),
        Trial::test("harness::enough_cases_are_enough", || {
            enough([FEWEST - 1, 1], FEWEST)?;
            Ok(enough([1, 1], 0)?)
        }),
        Trial::test("harness::a_snapshot_without_a_case_is_caught", || {
            let folder = snapshots_with("dead-code/no_such_case.snap", "")?;
            is_caught(
                no_orphans(folder.path(), &[]),
                "dead-code/no_such_case.snap",
            )
        }),
        Trial::test("harness::another_remark_or_change_is_caught", || {
            let name = "dead-code/chain.snap";
            let kept = fs::read_to_string(snapshots().join(name))?;
            assert!(run_with_snapshot(name, &kept)?, "the snapshot itself");
            for (old, new) in [("applied at", "applied on"), ("tensor<", "tensor <")] {
                let other = kept.replacen(old, new, 1);
                assert!(other != kept, "{old} is in the snapshot");
                assert!(!run_with_snapshot(name, &other)?, "{new}");
            }
            Ok(())
        }),
    ]
}

/// A folder of snapshots with this one.
fn snapshots_with(name: &str, content: &str) -> io::Result<TempDir> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join(name);
    fs::create_dir_all(path.parent().unwrap_or(&path))?;
    fs::write(path, content)?;
    Ok(folder)
}

/// Runs one case in a process of its own, with this as its snapshot; gives whether it passed.
fn run_with_snapshot(name: &str, content: &str) -> io::Result<bool> {
    let folder = snapshots_with(name, content)?;
    let title = name.trim_end_matches(".snap").replace('/', "::");
    let output = Command::new(std::env::current_exe()?)
        .args(["--exact", &title])
        .env(SNAPSHOTS, folder.path())
        .env("INSTA_UPDATE", "no")
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains(&title), "{said}");
    Ok(output.status.success())
}
