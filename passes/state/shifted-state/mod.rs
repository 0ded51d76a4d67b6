//! shifted-state: a cache that moves by one place with each step.

use crate::analysis::update::{Goal, goal, read_from};
use crate::ir::{Binding, NodeId, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Rule, Severity, Target,
};

/// The check.
pub(super) struct ShiftedState;

static META: Meta = Meta {
    id: "shifted-state",
    family: Family::State,
    summary: "a state that drops its first elements and gets new ones at the end",
    exactness: Exactness::None,
    since: Opset::CoreML8,
    targets: &[Target::CoreMl],
    evidence: Evidence::Disputed,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const SHIFTED_STATE: Rule = Rule {
    id: "shifted-state",
    summary: META.summary,
    why: "CoreML-LLM reports that a cache written as concat(state[1:], new) did not compile for the \
          Neural Engine (error -14) in a Qwen3 with tied embeddings. A Gemma 4 of the same authors has \
          such caches and runs.",
    help: "If it fails with -14, write the new elements at a place that moves, with slice_update or \
           with a mask: old * (1 - m) + new * m. Positions must then be applied before the write.",
    evidence: META.evidence,
    sources: &["https://github.com/john-rocky/CoreML-LLM"],
    severity: &[(Target::CoreMl, Severity::Warning)],
    catalog: &[],
};

impl Pass for ShiftedState {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[SHIFTED_STATE]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(find))
    }
}

fn find(block: &Block<'_>, node: NodeId) -> Attempt {
    match shift(block, node) {
        Some(message) => SHIFTED_STATE.found(message).parameter("values").into(),
        None => Attempt::NoMatch,
    }
}

/// What a `concat` does with a state, if it shifts one.
fn shift(block: &Block<'_>, node: NodeId) -> Option<String> {
    let op = block.op_of_type(node, "concat")?;
    let values = &op.argument("values")?.bindings;
    let [Binding::Value(first), _, ..] = values.as_slice() else {
        return None;
    };
    let slice = block.op(first.node)?;
    if !matches!(slice.op_type(), "slice_by_index" | "slice_by_size") {
        return None;
    }
    let x = slice.value("x")?;
    let rank = block.tensor(x)?.dims.len();
    let axis = block.int_of(op, "axis")?;
    let axis = usize::try_from(axis).or_else(|_| usize::try_from(axis + rank as i64));
    let axis = axis.ok()?;
    // A slice that has lost an axis counts the others in another way.
    if block.tensor(*first)?.dims.len() != rank {
        return None;
    }
    let masked = block.bools_of(slice, "begin_mask").unwrap_or_default();
    if masked.get(axis).copied().unwrap_or(false) {
        return None;
    }
    let dropped = *block.ints_of(slice, "begin")?.get(axis)?;
    if dropped == 0 {
        return None;
    }
    let (state, _) = read_from(block.graph, x)?;
    if goal(block, ValueId::first(node)) != Goal::State(state) {
        return None;
    }
    let name = block.graph.name(state);
    let dropped = match dropped {
        1 => "the first element".to_owned(),
        2.. => format!("the first {dropped} elements"),
        _ => format!("all but the last {} elements", -dropped),
    };
    Some(format!(
        "`{name}` loses {dropped} of axis {axis} and gets new ones behind"
    ))
}
