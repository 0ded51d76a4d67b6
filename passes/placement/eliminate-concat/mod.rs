//! eliminate-concat: a concat goes where what reads it can read the operands.

mod outputs;
mod plan;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use self::plan::{Plan, Step};
use crate::analysis::joined::Joined;
use crate::eval::fold;
use crate::ir::{Binding, DType, NodeId, Operation, Value, ValueId};
use crate::ops::Opset;
use crate::pass::options::{self, OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Edit, EditError, Evidence, Exactness, Family, Found, Matcher, Meta, Pass,
    Readable, Rule, Severity, Target, Whole, WholeAttempt, WholeMatcher,
};

/// The pass.
pub(super) struct EliminateConcat;

static META: Meta = Meta {
    id: "eliminate-concat",
    family: Family::Placement,
    summary: "products of a concat become sums of products of its operands; slices read an operand",
    exactness: Exactness::Real,
    since: Opset::CoreML5,
    targets: &[Target::AneDirect],
    evidence: Evidence::Disputed,
    catalog: &["orion-1"],
    default: false,
    after: &["fold-consts"],
    page: include_str!("README.md"),
};

const CONCAT: Rule = Rule {
    id: "eliminate-concat",
    summary: "a concat of floats, which the private interface is reported to reject",
    why: "Orion's seven training kernels with concat were rejected by the private interface's compiler, \
          and the one without was not (row 1). maderix/ANE compiles the same kernels with every argument \
          bound to a named const, so that it may be the spelling. Core ML runs concat on the Neural \
          Engine.",
    help: "eliminate-concat lets what reads it read the operands, and with its option `outputs` makes \
           one output of each operand; or bind `axis` and `interleave` to named consts. Not for Core ML.",
    evidence: META.evidence,
    sources: &[
        "https://github.com/mechramc/Orion",
        "https://github.com/maderix/ANE",
    ],
    severity: &[(Target::AneDirect, Severity::Error)],
    catalog: META.catalog,
};

#[derive(Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    /// Whether an output that is a concat becomes several.
    outputs: bool,
}

impl Pass for EliminateConcat {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[CONCAT]
    }

    fn options(&self) -> OptionMap {
        options::defaults::<Options>()
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        Ok(Box::new(Eliminate(options::read(META.id, options)?)))
    }

    fn whole_matcher(
        &self,
        options: &OptionMap,
    ) -> Result<Option<Box<dyn WholeMatcher>>, OptionError> {
        let Options { outputs } = options::read(META.id, options)?;
        Ok(outputs.then(|| Box::new(Outputs) as Box<dyn WholeMatcher>))
    }

    fn changes_interface(&self, options: &OptionMap) -> Result<bool, OptionError> {
        let Options { outputs } = options::read(META.id, options)?;
        Ok(outputs)
    }
}

struct Outputs;

impl WholeMatcher for Outputs {
    fn attempts(&mut self, whole: &Whole<'_>) -> Vec<WholeAttempt> {
        let functions = whole.program.functions.iter();
        functions
            .flat_map(|(name, function)| outputs::attempts(whole, name, function))
            .collect()
    }
}

struct Eliminate(Options);

impl Matcher for Eliminate {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let Some(concat) = block.op_of_type(node, "concat") else {
            return Attempt::NoMatch;
        };
        // Integers build shapes and indices.
        let dtype = block.dtype(ValueId::first(node));
        if !dtype.is_some_and(DType::is_float) {
            return Attempt::NoMatch;
        }
        let outputs = self.0.outputs && block.outer.is_none();
        eliminate(block, node, outputs).with(found(concat))
    }
}

/// An error as it was reported, a warning in the spelling that others compile.
fn found(concat: &Operation) -> Found {
    let values = concat.argument("values");
    let count = values.map_or(0, |values| values.bindings.len());
    let found = CONCAT.found(format!("a concat of {count} operands"));
    let mut parameters = ["axis", "interleave"].into_iter();
    if parameters.all(|parameter| concat.value(parameter).is_some()) {
        found.severities(&[(Target::AneDirect, Severity::Warning)])
    } else {
        found
    }
}

fn eliminate(block: &Block<'_>, node: NodeId, outputs: bool) -> Attempt {
    let joined = match joined(block, node) {
        Ok(joined) => joined,
        Err(attempt) => return attempt,
    };
    match Plan::of(block, ValueId::first(node), &joined, outputs) {
        // They are the matter of the other matcher, which has been asked before.
        Ok(plan) if !plan.outputs.is_empty() => {
            Attempt::missed(node, "it is an output of the block")
        }
        Ok(plan) => {
            let operands: Vec<ValueId> = joined.operands.iter().map(|(v, ..)| *v).collect();
            let what = plan.what().unwrap_or_default();
            Attempt::matched(what, move |edit| apply(edit, plan, &operands).map(|_| ()))
        }
        Err((at, why)) => Attempt::missed(at, why),
    }
}

/// The places of the operands of a concat whose readers might do without it; otherwise how the
/// attempt ends.
fn joined(block: &Block<'_>, node: NodeId) -> Result<Joined, Attempt> {
    let concat = block.op_of_type(node, "concat").ok_or(Attempt::NoMatch)?;
    // Integers build shapes and indices.
    if !block
        .dtype(ValueId::first(node))
        .is_some_and(DType::is_float)
    {
        return Err(Attempt::NoMatch);
    }
    if let Some(operands) = constants(block, concat) {
        return Err(folded(block, node, concat, operands));
    }
    let missed = |why: &str| Attempt::missed(node, why);
    if block.bool_or(concat, "interleave", false) != Some(false) {
        return Err(missed("it interleaves its operands"));
    }
    let joined =
        Joined::of(block, concat).ok_or_else(|| missed("the size of an operand is not known"))?;
    if joined.operands.iter().any(|(_, begin, end)| begin == end) {
        return Err(missed("an operand has no elements"));
    }
    Ok(joined)
}

/// The operands of a concat, if all of them are constants.
fn constants<'a>(block: &Block<'a>, concat: &'a Operation) -> Option<Vec<&'a Value>> {
    let bindings = &concat.argument("values")?.bindings;
    let constant = |binding: &'a Binding| match binding {
        Binding::Immediate(value) => Some(value),
        Binding::Value(value) => block.constant(*value),
        Binding::Absent => None,
    };
    bindings.iter().map(constant).collect()
}

/// A concat of constants becomes one.
fn folded(block: &Block<'_>, node: NodeId, concat: &Operation, operands: Vec<&Value>) -> Attempt {
    let result = ValueId::first(node);
    if block.graph.is_output(result) {
        return Attempt::missed(
            node,
            "it is an output of the block, which should be computed",
        );
    }
    let Some(opset) = block.opset else {
        return Attempt::missed(node, "the opset is not known");
    };
    let mut arguments = BTreeMap::new();
    for name in ["axis", "interleave"] {
        if concat.argument(name).is_some() {
            let Some(value) = block.constant_of(concat, name) else {
                return Attempt::missed(node, format!("its `{name}` is not a constant"));
            };
            arguments.insert(name, vec![value]);
        }
    }
    arguments.insert("values", operands);
    let blobs = Readable(block.blobs);
    let folded = fold(
        "concat",
        opset,
        &arguments,
        concat.results(),
        &blobs,
        u64::MAX,
    );
    match folded.map(|mut values| values.pop()) {
        Ok(Some(value)) => {
            Attempt::matched("a concat of constants becomes one", move |edit| match edit
                .constant(value)
            {
                Binding::Value(constant) => edit.replace(result, constant),
                _ => Ok(()),
            })
        }
        Ok(None) => Attempt::missed(node, "it has no result"),
        Err(error) => Attempt::missed(node, error.to_string()),
    }
}

/// Outputs of the block, each with the values that it becomes.
type MakesOutputs = Vec<(ValueId, Vec<ValueId>)>;

/// What a plan changes when everything is made.
#[derive(Default)]
struct Changes {
    replaced: Vec<(ValueId, ValueId)>,
    bound: Vec<(NodeId, Vec<Binding>)>,
    outputs: MakesOutputs,
}

/// Makes what a plan says: everything new first, so that nothing is replaced if something is refused.
/// Gives what outputs are to become.
fn apply(edit: &mut Edit<'_>, plan: Plan, operands: &[ValueId]) -> Result<MakesOutputs, EditError> {
    let mut changes = Changes::default();
    make(edit, plan.steps, operands, &mut changes)?;
    for (old, new) in changes.replaced {
        edit.replace(old, new)?;
    }
    for (node, bindings) in changes.bound {
        edit.bind(node, "values", Some(bindings));
    }
    Ok(changes.outputs)
}

/// Makes the operations of the steps for values in the place of the concat's operands.
fn make(
    edit: &mut Edit<'_>,
    steps: Vec<Step>,
    values: &[ValueId],
    changes: &mut Changes,
) -> Result<(), EditError> {
    for step in steps {
        match step {
            Step::Sum { result, sum } => changes.replaced.push((result, sum.make(edit, values)?)),
            Step::Slices(parts) => {
                for (result, operand) in parts {
                    let value = values.get(operand);
                    changes.replaced.extend(value.map(|value| (result, *value)));
                }
            }
            Step::Output(value) => changes.outputs.push((value, values.to_vec())),
            Step::Join { node, value } => {
                let own: Vec<Binding> = values.iter().copied().map(Binding::Value).collect();
                // A concat may read this one more than once.
                let bindings = match changes.bound.iter().position(|(other, _)| *other == node) {
                    Some(index) => changes.bound.swap_remove(index).1,
                    None => edit
                        .graph()
                        .op(node)
                        .and_then(|op| op.argument("values"))
                        .map(|argument| argument.bindings.clone())
                        .unwrap_or_default(),
                };
                let bindings = bindings.into_iter().flat_map(|binding| {
                    if binding == Binding::Value(value) {
                        own.clone()
                    } else {
                        vec![binding]
                    }
                });
                changes.bound.push((node, bindings.collect()));
            }
            Step::Each {
                op_type,
                parameter,
                mut arguments,
                then,
            } => {
                let mut results = Vec::new();
                for value in values {
                    arguments.insert(parameter.clone(), vec![Binding::Value(*value)]);
                    let node = edit.variadic_op(&op_type, arguments.clone())?;
                    results.push(ValueId::first(node));
                }
                make(edit, then, &results, changes)?;
            }
        }
    }
    Ok(())
}
