//! runtime-trig: sine and cosine of positions, computed at run time.

use crate::ir::{Binding, Node, NodeId, Operation, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Rule, Severity, Target,
};

/// The check.
pub(super) struct RuntimeTrig;

static META: Meta = Meta {
    id: "runtime-trig",
    family: Family::Attention,
    summary: "the sine or cosine of positions that are known only at run time",
    exactness: Exactness::None,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Reported,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const RUNTIME_TRIG: Rule = Rule {
    id: "runtime-trig",
    summary: META.summary,
    why: "In fp16 positions above 2048 are not exact, and angles of some thousand radians are off by \
          whole radians. Integers are computed on the CPU, and so the angles often are too.",
    help: "Gather sines and cosines from tables that are constants, or hand them in as inputs.",
    evidence: META.evidence,
    sources: &["https://github.com/Anemll/Anemll"],
    severity: Severity::Info.everywhere(),
    catalog: &[],
};

/// How many values are looked at behind an angle.
const NEAR: usize = 32;

impl Pass for RuntimeTrig {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[RUNTIME_TRIG]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(find))
    }
}

fn find(block: &Block<'_>, node: NodeId) -> Attempt {
    let Some(op) = block.op(node) else {
        return Attempt::NoMatch;
    };
    if !matches!(op.op_type(), "sin" | "cos") {
        return Attempt::NoMatch;
    }
    let Some(positions) = op.value("x").and_then(|x| positions(block, x)) else {
        return Attempt::NoMatch;
    };
    let dtype = match block.dtype(ValueId::first(node)) {
        Some(dtype) => dtype.word(),
        None => String::new(),
    };
    RUNTIME_TRIG
        .found(format!(
            "`{}` in {dtype} of integers, `{}`",
            op.op_type(),
            block.graph.name(positions)
        ))
        .into()
}

/// The integers that an angle is computed of.
fn positions(block: &Block<'_>, angle: ValueId) -> Option<ValueId> {
    let mut pending = vec![angle];
    for _ in 0..NEAR {
        let value = pending.pop()?;
        let Some(Node::Op(op)) = block.graph.node(value.node) else {
            continue;
        };
        match op.op_type() {
            "cast" => {
                let x = op.value("x")?;
                if block.dtype(x).is_some_and(|dtype| dtype.is_int()) {
                    if block.constant(x).is_none() {
                        return Some(x);
                    }
                } else {
                    pending.push(x);
                }
            }
            "mul" | "matmul" | "add" | "sub" | "real_div" | "concat" | "stack" | "identity"
            | "reshape" | "expand_dims" | "squeeze" | "transpose" | "tile" | "slice_by_index"
            | "einsum" | "gather" => pending.extend(operands(op)),
            _ => {}
        }
    }
    None
}

/// What an operation computes with: not its indices.
fn operands(op: &Operation) -> Vec<ValueId> {
    ["x", "y", "values"]
        .iter()
        .filter_map(|parameter| op.argument(parameter))
        .flat_map(|argument| &argument.bindings)
        .filter_map(|binding| match binding {
            Binding::Value(value) => Some(*value),
            _ => None,
        })
        .collect()
}
