//! precise-silu: a silu is computed with tanh.

use crate::ir::{Binding, NodeId, Operation, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Target};

/// The pass.
pub(super) struct PreciseSilu;

static META: Meta = Meta {
    id: "precise-silu",
    family: Family::Numerics,
    summary: "silu(x), also spelled x·sigmoid(x), becomes h + h·tanh(h), h = x/2",
    exactness: Exactness::Real,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

impl Pass for PreciseSilu {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(Silu))
    }
}

struct Silu;

impl Matcher for Silu {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let Some(op) = block.op(node) else {
            return Attempt::NoMatch;
        };
        match op.op_type() {
            "silu" => match op.value("x") {
                Some(x) => rewrite(block, node, x, "silu(x)"),
                None => Attempt::missed(node, "x is a literal"),
            },
            "mul" => gated(block, node, op),
            _ => Attempt::NoMatch,
        }
    }
}

/// `mul(x, sigmoid(x))`, in either order.
fn gated(block: &Block<'_>, node: NodeId, mul: &Operation) -> Attempt {
    let (Some(a), Some(b)) = (mul.value("x"), mul.value("y")) else {
        return Attempt::NoMatch;
    };
    let mut inner = None;
    for (x, gate) in [(a, b), (b, a)] {
        let Some(sigmoid) = block.producer_of_type(gate, "sigmoid") else {
            continue;
        };
        if sigmoid.value("x") == Some(x) {
            return rewrite(block, node, x, "x·sigmoid(x)");
        }
        inner = Some((x, sigmoid));
    }
    // Gates of something else are common; x·sigmoid(c·x) is what someone might take for a silu.
    let scaled = inner.is_some_and(|(x, sigmoid)| {
        sigmoid
            .value("x")
            .and_then(|value| block.producer_of_type(value, "mul"))
            .is_some_and(|scaled| scaled.value("x") == Some(x) || scaled.value("y") == Some(x))
    });
    if scaled {
        return Attempt::missed(node, "the sigmoid is of a multiple of x, not of x");
    }
    Attempt::NoMatch
}

fn rewrite(block: &Block<'_>, node: NodeId, x: ValueId, found: &str) -> Attempt {
    let result = ValueId::first(node);
    let Some(dtype) = block.dtype(x) else {
        return Attempt::missed(node, "the type of x is not known");
    };
    if block.tensor(x) != block.tensor(result) {
        return Attempt::missed(node, "the result has another type than x");
    }
    let what = format!("{found} becomes h + h·tanh(h), h = 0.5·x");
    Attempt::matched(what, move |edit| {
        let half = edit.scalar(dtype, 0.5)?;
        let half = edit.op("mul", &[("x", Binding::Value(x)), ("y", half)])?;
        let half = Binding::Value(half);
        let tanh = edit.op("tanh", &[("x", half.clone())])?;
        let product = edit.op("mul", &[("x", half.clone()), ("y", Binding::Value(tanh))])?;
        let new = edit.op("add", &[("x", half), ("y", Binding::Value(product))])?;
        edit.replace(result, new)
    })
}
