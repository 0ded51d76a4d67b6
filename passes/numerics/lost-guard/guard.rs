//! What keeps a value away from 0.

use crate::ir::{DType, Operation, ValueId};
use crate::pass::Block;

/// How many operations a walk passes.
const MAX_DEPTH: usize = 8;

/// A constant that a value is at least, if what it is added to is not negative.
pub(super) struct Guard {
    /// The constant.
    pub constant: f64,
    /// What is guarded, with the innermost guard.
    pub value: ValueId,
    /// Whether it is added in fp16.
    pub is_half: bool,
}

impl Guard {
    /// The guard of a value: behind casts, changes of shape and roots, something to which a constant is
    /// added, or that is not let below one. Of several, one behind the other, the largest counts.
    pub(super) fn of(block: &Block<'_>, value: ValueId) -> Option<Self> {
        Self::within(block, value, MAX_DEPTH)
    }

    fn within(block: &Block<'_>, value: ValueId, depth: usize) -> Option<Self> {
        let depth = depth.checked_sub(1)?;
        let (value, op) = guarded(block, value)?;
        let (constant, other) = match op.op_type() {
            "clip" => (block.uniform_of(op, "alpha")?.value, "x"),
            _ => [("y", "x"), ("x", "y")]
                .into_iter()
                .find_map(|(side, other)| Some((small(block, op, side)?, other)))?,
        };
        // At least 0 is no guard.
        let is_guard = constant > 0.0 || (constant == 0.0 && op.op_type() == "add");
        let own = is_guard.then_some(Self {
            constant,
            value,
            is_half: block.dtype(value) == Some(DType::Float16),
        });
        let inner = op
            .value(other)
            .and_then(|other| Self::within(block, other, depth));
        match (own, inner) {
            // The root of a subnormal number is a normal one, unless that is taken for 0: what is behind
            // the innermost guard counts.
            (Some(own), Some(inner)) if own.constant > inner.constant => Some(Self {
                value: inner.value,
                ..own
            }),
            (own, inner) => inner.or(own),
        }
    }
}

/// The value and the operation that guards it.
fn guarded<'a>(block: &Block<'a>, mut value: ValueId) -> Option<(ValueId, &'a Operation)> {
    for _ in 0..MAX_DEPTH {
        let op = block.op(value.node)?;
        match op.op_type() {
            "add" | "maximum" | "clip" => return Some((value, op)),
            "sqrt" => value = op.value("x")?,
            op_type if keeps(op_type) => value = op.value("x")?,
            _ => return None,
        }
    }
    None
}

/// The number that an operand is, if it is one. Data of a weight file is none.
fn small(block: &Block<'_>, op: &Operation, side: &str) -> Option<f64> {
    let ty = block.constant_of(op, side)?.tensor_type()?;
    let count = ty.shape()?.iter().product::<u64>();
    (count == 1).then(|| block.uniform_of(op, side).map(|one| one.value))?
}

/// Whether an operation keeps elements as they are.
fn keeps(op_type: &str) -> bool {
    matches!(
        op_type,
        "cast" | "identity" | "reshape" | "expand_dims" | "squeeze" | "transpose" | "tile"
    )
}

/// The value behind operations that keep its elements.
pub(super) fn behind(block: &Block<'_>, mut value: ValueId) -> ValueId {
    for _ in 0..MAX_DEPTH {
        let inner = block
            .op(value.node)
            .filter(|op| keeps(op.op_type()))
            .and_then(|op| op.value("x"));
        match inner {
            Some(inner) => value = inner,
            None => break,
        }
    }
    value
}

/// Whether a value is a mean or a sum of squares, or its root, guarded or not: a norm by hand.
pub(super) fn is_of_squares(block: &Block<'_>, mut value: ValueId) -> bool {
    for _ in 0..MAX_DEPTH {
        let Some(op) = block.op(value.node) else {
            return false;
        };
        let next = match op.op_type() {
            "reduce_sum_square" | "reduce_l2_norm" => return true,
            "reduce_mean" | "reduce_sum" => {
                return op
                    .value("x")
                    .is_some_and(|x| is_square(block, behind(block, x)));
            }
            "sqrt" | "clip" => op.value("x"),
            "add" | "maximum" | "mul" | "real_div" => {
                let constant = |side: &str| small(block, op, side).is_some();
                match (constant("x"), constant("y")) {
                    (false, true) => op.value("x"),
                    (true, false) => op.value("y"),
                    _ => None,
                }
            }
            op_type if keeps(op_type) => op.value("x"),
            _ => None,
        };
        match next {
            Some(next) => value = next,
            None => return false,
        }
    }
    false
}

fn is_square(block: &Block<'_>, value: ValueId) -> bool {
    block.op(value.node).is_some_and(|op| match op.op_type() {
        "square" => true,
        "mul" => op.value("x").is_some() && op.value("x") == op.value("y"),
        "pow" => block.uniform_of(op, "y").is_some_and(|y| y.value == 2.0),
        _ => false,
    })
}

/// Whether a value is a sum of exponentials.
pub(super) fn is_sum_of_exponentials(block: &Block<'_>, value: ValueId) -> bool {
    block
        .producer_of_type(value, "reduce_sum")
        .and_then(|sum| sum.value("x"))
        .is_some_and(|x| block.producer_of_type(behind(block, x), "exp").is_some())
}
