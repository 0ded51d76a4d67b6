//! Where a factor goes: into the nearest constants that make a value as large as it is.

use std::cell::RefCell;

use crate::analysis::weight;
use crate::ir::{Binding, BlobRef, DType, NodeId, Operation, ValueId};
use crate::pass::Block;

use super::plan::Slot;

/// How many operations a factor is carried through.
const MAX_DEPTH: usize = 32;

/// So many uses of weights in files, by their place there.
pub(super) type BlobUses = std::collections::BTreeMap<BlobRef, usize>;

/// Carries factors to constants.
pub(super) struct Carrier<'b, 'a> {
    block: &'b Block<'a>,
    /// The values of the stream and their copies: no factor is carried into it.
    is_stream: &'b dyn Fn(ValueId) -> bool,
    /// How many constants have the data of each place in a weight file.
    blobs: &'b BlobUses,
    absorbed: RefCell<Vec<Absorbed>>,
}

/// A constant, by one of its uses, and what it is multiplied by.
#[derive(Clone, Debug)]
pub(super) struct Absorbed {
    pub(super) slot: Slot,
    pub(super) factor: f64,
}

impl<'b, 'a> Carrier<'b, 'a> {
    pub(super) fn new(
        block: &'b Block<'a>,
        is_stream: &'b dyn Fn(ValueId) -> bool,
        blobs: &'b BlobUses,
    ) -> Self {
        Self {
            block,
            is_stream,
            blobs,
            absorbed: RefCell::default(),
        }
    }

    /// The constants that have to be multiplied so that what is bound here is; `None` if that takes more
    /// than constants.
    pub(super) fn operand(&self, slot: &Slot, factor: f64) -> Option<Vec<Absorbed>> {
        let done = self.carry_to(slot, factor, MAX_DEPTH);
        let absorbed = self.absorbed.take();
        done.then_some(absorbed)
    }

    /// The same so that the first result of an operation is multiplied, for all who read it.
    pub(super) fn result(&self, node: NodeId, factor: f64) -> Option<Vec<Absorbed>> {
        let done = self.carry_through(node, factor, MAX_DEPTH);
        let absorbed = self.absorbed.take();
        done.then_some(absorbed)
    }

    fn carry_to(&self, slot: &Slot, factor: f64, depth: usize) -> bool {
        let Some(depth) = depth.checked_sub(1) else {
            return false;
        };
        let Some(binding) = slot.binding(self.block) else {
            return false;
        };
        if weight::can_scale(self.block, binding) {
            self.absorbed.borrow_mut().push(Absorbed {
                slot: slot.clone(),
                factor,
            });
            return true;
        }
        let Binding::Value(value) = *binding else {
            return false;
        };
        let dtype = self.block.dtype(value);
        matches!(dtype, Some(DType::Float16 | DType::Float32))
            && value.result == 0
            && !(self.is_stream)(value)
            && self.block.graph.only_user(value) == Some(slot.node)
            && self.carry_through(value.node, factor, depth)
    }

    fn carry_through(&self, node: NodeId, factor: f64, depth: usize) -> bool {
        let Some(op) = self.block.op(node) else {
            return false;
        };
        let known = self.absorbed.borrow().len();
        let item = |parameter: &str, index: usize| {
            let slot = Slot {
                index,
                ..Slot::new(node, parameter)
            };
            self.carry_to(&slot, factor, depth)
        };
        let one = |parameter: &str| item(parameter, 0);
        let done = match op.op_type() {
            "cast" | "expand_dims" | "identity" | "reduce_mean" | "reduce_sum" | "reshape"
            | "reverse" | "slice_by_index" | "slice_by_size" | "squeeze" | "tile" | "transpose" => {
                one("x")
            }
            "mul" => self.constant_first(op, ["x", "y"]).into_iter().any(one),
            "matmul" => self.constant_first(op, ["y", "x"]).into_iter().any(one),
            "real_div" => {
                let divisor = Slot::new(node, "y");
                one("x")
                    || (self.is_constant(op, "y") && self.carry_to(&divisor, 1.0 / factor, depth))
            }
            "add" | "sub" => ["x", "y"]
                .into_iter()
                .all(|side| self.is_zero(op, side) || one(side)),
            "linear" | "conv" | "conv_transpose" => {
                (one("weight") || one("x")) && (self.adds_nothing(op, "bias") || one("bias"))
            }
            "layer_norm" | "batch_norm" | "instance_norm" => {
                op.argument("gamma").is_some()
                    && one("gamma")
                    && (self.adds_nothing(op, "beta") || one("beta"))
            }
            // Not a table that is read elsewhere too: it would have to be there twice.
            "gather" | "gather_along_axis" => !self.is_shared(op, "x") && one("x"),
            "concat" | "stack" => {
                let count = op
                    .argument("values")
                    .map_or(0, |values| values.bindings.len());
                (0..count).all(|index| item("values", index))
            }
            "einsum" => item("values", 1) || item("values", 0),
            _ => false,
        };
        if !done {
            self.absorbed.borrow_mut().truncate(known);
        }
        done
    }

    fn is_constant(&self, op: &Operation, parameter: &str) -> bool {
        op.binding(parameter)
            .is_some_and(|binding| weight::can_scale(self.block, binding))
    }

    /// Two parameters, first the one with a constant.
    fn constant_first(&self, op: &Operation, sides: [&'static str; 2]) -> [&'static str; 2] {
        let [first, second] = sides;
        if !self.is_constant(op, first) && self.is_constant(op, second) {
            [second, first]
        } else {
            sides
        }
    }

    fn is_zero(&self, op: &Operation, parameter: &str) -> bool {
        self.block
            .uniform_of(op, parameter)
            .is_some_and(|uniform| uniform.value == 0.0)
    }

    /// Whether a bias is not there or zero.
    fn adds_nothing(&self, op: &Operation, parameter: &str) -> bool {
        op.argument(parameter).is_none() || self.is_zero(op, parameter)
    }

    /// Whether a constant has other uses than this one, or its data has.
    fn is_shared(&self, op: &Operation, parameter: &str) -> bool {
        let Some(value) = op.value(parameter) else {
            return false;
        };
        let blob = self
            .block
            .op(value.node)
            .and_then(|op| op.const_value()?.blob());
        let again = blob.and_then(|blob| self.blobs.get(blob));
        !self.block.graph.used_once(value) || again.is_some_and(|uses| *uses > 1)
    }
}
