//! constant-output: outputs that no input changes, and values that are returned more than once.

use std::collections::BTreeMap;

use crate::ir::{Binding, Graph, Node, Operation, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Evidence, Exactness, Family, Meta, Pass, Rule, Severity, Target, Whole, WholeAttempt,
    WholeMatcher,
};

/// The check.
pub(super) struct ConstantOutput;

static META: Meta = Meta {
    id: "constant-output",
    family: Family::Integrity,
    summary: "an output that is the same whatever the inputs are",
    exactness: Exactness::None,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Reported,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const CONSTANT_OUTPUT: Rule = Rule {
    id: "constant-output",
    summary: META.summary,
    why: "Mostly a trace that lost its input. One constant as two outputs failed to convert; models \
          with one, such as the prompt encoder of SAM 2, work.",
    help: "Keep the constant outside of the model. If the output should depend on an input, look at \
           where the trace lost it.",
    evidence: META.evidence,
    sources: &[
        "https://github.com/apple/coremltools/issues/1450",
        "https://github.com/pytorch/executorch/issues/11719",
    ],
    severity: Severity::Info.everywhere(),
    catalog: &[],
};

const ALIASED_OUTPUT: Rule = Rule {
    id: "aliased-output",
    summary: "one value as two outputs, or an input as an output",
    why: "Two outputs with one name are one output to whoever reads them, and such models failed. An \
          input that is returned works in published models, but coremltools avoids it with an \
          `identity`.",
    help: "Return the value once, or put an `identity` between.",
    evidence: Evidence::Reported,
    sources: &["https://github.com/apple/coremltools/issues/1450"],
    severity: Severity::Warning.everywhere(),
    catalog: &[],
};

impl Pass for ConstantOutput {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[CONSTANT_OUTPUT, ALIASED_OUTPUT]
    }

    fn whole_matcher(
        &self,
        options: &OptionMap,
    ) -> Result<Option<Box<dyn WholeMatcher>>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Some(Box::new(Outputs)))
    }
}

struct Outputs;

impl WholeMatcher for Outputs {
    fn attempts(&mut self, whole: &Whole<'_>) -> Vec<WholeAttempt> {
        let mut attempts = Vec::new();
        for (function, bodies) in &whole.program.functions {
            for body in bodies.specializations.values() {
                look(function, &body.graph, &mut attempts);
            }
        }
        attempts
    }
}

fn look(function: &str, graph: &Graph, attempts: &mut Vec<WholeAttempt>) {
    let depends = dependent(graph);
    let mut times: BTreeMap<ValueId, usize> = BTreeMap::new();
    for value in graph.outputs() {
        let times = times.entry(*value).or_default();
        *times += 1;
        let name = graph.name(*value);
        let (op_type, found) = match graph.node(value.node) {
            Some(Node::Input(..)) => (
                "input",
                ALIASED_OUTPUT
                    .found("an input is returned as it is")
                    .severity(Severity::Info),
            ),
            Some(Node::Op(op)) if *times == 2 => (
                op.op_type(),
                ALIASED_OUTPUT.found("it is returned more than once"),
            ),
            // Without inputs everything is constant, which another rule is about.
            Some(Node::Op(op))
                if *times == 1 && !depends[value.node.index()] && !graph.inputs().is_empty() =>
            {
                (
                    op.op_type(),
                    CONSTANT_OUTPUT.found(if op.op_type() == "const" {
                        "the output is a const".to_owned()
                    } else {
                        "it is computed from constants alone".to_owned()
                    }),
                )
            }
            _ => continue,
        };
        attempts.push(WholeAttempt::found([function, name, op_type], found));
    }
}

/// Which nodes depend on an input, on a state, or on chance.
fn dependent(graph: &Graph) -> Vec<bool> {
    let mut depends = vec![false; graph.bound()];
    for (node, content) in graph.nodes() {
        if matches!(content, Node::Input(..)) {
            depends[node.index()] = true;
        }
    }
    for node in graph.schedule().unwrap_or_default().iter() {
        if let Some(op) = graph.op(*node) {
            depends[node.index()] = op.op_type().starts_with("random_")
                || operands(op).any(|value| depends[value.node.index()]);
        }
    }
    depends
}

/// The values that an operation reads, in its blocks as well.
fn operands(op: &Operation) -> impl Iterator<Item = ValueId> + '_ {
    let arguments = op
        .arguments()
        .iter()
        .flat_map(|argument| &argument.bindings);
    let bound = arguments.filter_map(|binding| match binding {
        Binding::Value(value) => Some(*value),
        Binding::Immediate(_) | Binding::Absent => None,
    });
    let captured = op
        .blocks()
        .iter()
        .flat_map(|block| block.captures().map(|(_, source)| source));
    bound.chain(captured)
}
