//! What a norm of the stream has to add to its mean so that it gives what it gave before.
//!
//! The mean of the squares grows with α², so what is added to it has to. A norm that divides by the
//! largest magnitude first computes the same mean as before: there it is the floor of the magnitude that
//! grows with α, and an epsilon over its square with it.

use std::collections::BTreeSet;

use half::f16;

use crate::analysis::norm::{self, Form, Norm};
use crate::eval::ranges::HALF_LEAST;
use crate::ir::{DType, NodeId, Operation, ValueId};
use crate::ops::registry;
use crate::pass::{Block, Uniform};

use super::plan::{Change, Slot, Stop};

/// The default epsilon of `layer_norm` and `instance_norm`. Source: coremltools' op definitions.
const LAYER_EPSILON: f64 = 1e-5;

/// The default epsilon of `rsqrt`. Source: coremltools' op definition.
const RSQRT_EPSILON: f64 = 1e-12;

/// How deep a floor's quotient may be nested.
const MAX_DEPTH: usize = 8;

/// The root of a norm that is written out.
struct Root {
    node: NodeId,
    epsilon: f64,
    dtype: DType,
    /// Whether its epsilon may be fp32 where x is fp16.
    takes_wide: bool,
}

/// Collects what changes in norms.
pub(super) struct Epsilons<'b, 'a> {
    block: &'b Block<'a>,
    alpha: f64,
    pub(super) changes: Vec<Change>,
    /// Epsilons that fp16 holds only as a subnormal number or as zero.
    pub(super) subnormal: usize,
    /// What norms share changes once.
    seen: BTreeSet<NodeId>,
}

impl<'b, 'a> Epsilons<'b, 'a> {
    pub(super) fn new(block: &'b Block<'a>, alpha: f64) -> Self {
        Self {
            block,
            alpha,
            changes: Vec::new(),
            subnormal: 0,
            seen: BTreeSet::new(),
        }
    }

    /// Lets a norm follow the stream.
    pub(super) fn follow(&mut self, norm: &Norm) -> Result<(), Stop> {
        let inside = norm::inside(self.block, norm);
        match norm.form {
            Form::Whole => self.own(norm.root, LAYER_EPSILON),
            Form::Mirrored => {
                for node in inside {
                    if self.block.op_of_type(node, "layer_norm").is_some() {
                        self.own(node, LAYER_EPSILON);
                    }
                }
            }
            Form::Plain => self.added(&inside),
            Form::MaxScaled => return self.floored(norm, &inside),
            // x over its largest magnitude does not depend on the size of x.
            Form::MaxScaledWrongly => {}
        }
        Ok(())
    }

    /// The epsilon that an operation has itself.
    fn own(&mut self, node: NodeId, default: f64) {
        let Some(op) = self.block.op(node) else {
            return;
        };
        if !self.seen.insert(node) {
            return;
        }
        let before = self.epsilon_of(op, default);
        if let Some(before) = before.filter(|before| before.value != 0.0) {
            let number = before.value * self.alpha * self.alpha;
            let slot = Slot::new(node, "epsilon");
            let mut dtype = before.dtype;
            if !holds(dtype, number) && self.takes_wide(op) {
                dtype = DType::Float32;
            }
            self.number(slot, dtype, number);
        }
    }

    /// The epsilon that an operation has now.
    fn epsilon_of(&self, op: &Operation, default: f64) -> Option<Uniform> {
        if op.argument("epsilon").is_some() {
            return self.block.uniform_of(op, "epsilon");
        }
        let dtype = op.value("x").and_then(|x| self.block.dtype(x))?;
        let value = match dtype {
            DType::Float16 => f16::from_f64(default).to_f64(),
            _ => f64::from(default as f32),
        };
        Some(Uniform { value, dtype })
    }

    /// Whether the epsilon of an operation may be fp32: the opset gives it a type of its own, and no
    /// gain or bias that is there has to have the same.
    fn takes_wide(&self, op: &Operation) -> bool {
        self.block.opset.is_some_and(|opset| {
            registry::domain_mates(op.op_type(), opset, "epsilon")
                .is_some_and(|mut mates| mates.all(|mate| op.argument(mate).is_none()))
        })
    }

    /// Puts a number into an operand.
    fn number(&mut self, slot: Slot, dtype: DType, number: f64) {
        let mut number = number;
        if !holds(dtype, number) {
            self.subnormal += 1;
            // Not zero: that would make a row of zeros NaN.
            number = number.max(HALF_LEAST);
        }
        self.changes.push(Change::Number {
            slot,
            dtype,
            number,
        });
    }

    /// The epsilons of a norm that is written out: what is added to the mean, and that of `rsqrt`.
    fn added(&mut self, inside: &[NodeId]) {
        for node in inside {
            let Some(add) = self.block.op_of_type(*node, "add") else {
                continue;
            };
            let sides = [("x", "y"), ("y", "x")];
            let constant = sides.into_iter().find_map(|(mean, side)| {
                Some((add.value(mean)?, side, self.block.uniform_of(add, side)?))
            });
            let Some((mean, side, before)) = constant else {
                continue;
            };
            if before.value == 0.0 || !self.seen.insert(*node) {
                continue;
            }
            let square = self.alpha * self.alpha;
            let root = self.root_of(ValueId::first(*node), mean);
            match root.filter(|_| !holds(before.dtype, before.value * square)) {
                // fp32 holds the sum of both, in the one place that has a type of its own.
                Some(root) if root.takes_wide => {
                    self.seen.insert(root.node);
                    self.changes.push(Change::Value {
                        slot: Slot::new(root.node, "x"),
                        value: mean,
                    });
                    let both = (before.value + root.epsilon) * square;
                    self.number(Slot::new(root.node, "epsilon"), DType::Float32, both);
                }
                // Both together round less than each.
                Some(root) if root.dtype == before.dtype && root.epsilon != 0.0 => {
                    self.seen.insert(root.node);
                    let both = (before.value + root.epsilon) * square;
                    self.number(Slot::new(*node, side), before.dtype, both);
                    self.number(Slot::new(root.node, "epsilon"), root.dtype, 0.0);
                }
                _ => self.number(Slot::new(*node, side), before.dtype, before.value * square),
            }
        }
        for node in inside {
            if self.block.op_of_type(*node, "rsqrt").is_some() {
                self.own(*node, RSQRT_EPSILON);
            }
        }
    }

    /// The `rsqrt` that alone reads a sum and could read the mean in its place.
    fn root_of(&self, sum: ValueId, mean: ValueId) -> Option<Root> {
        let node = self.block.graph.only_user(sum)?;
        let op = self.block.op_of_type(node, "rsqrt")?;
        let own = self.epsilon_of(op, RSQRT_EPSILON)?;
        (self.block.tensor(sum) == self.block.tensor(mean)).then_some(Root {
            node,
            epsilon: own.value,
            dtype: own.dtype,
            takes_wide: self.takes_wide(op),
        })
    }

    /// The floor of the largest magnitude, and an epsilon over its square.
    fn floored(&mut self, norm: &Norm, inside: &[NodeId]) -> Result<(), Stop> {
        for node in inside {
            let Some(op) = self.block.op(*node) else {
                continue;
            };
            let bounds: &[&str] = match op.op_type() {
                "maximum" => &["x", "y"],
                "clip" => &["alpha", "beta"],
                _ => continue,
            };
            if !self.seen.insert(*node) {
                continue;
            }
            for bound in bounds {
                if let Some(before) = self.block.uniform_of(op, bound) {
                    let slot = Slot::new(*node, bound);
                    self.number(slot, before.dtype, before.value * self.alpha);
                }
            }
        }
        if norm.epsilon.is_some() {
            return Ok(());
        }
        for node in inside {
            let Some(add) = self.block.op_of_type(*node, "add") else {
                continue;
            };
            if self.seen.contains(node) {
                continue;
            }
            let sides = [add.value("x"), add.value("y")].into_iter().flatten();
            let mut guards = sides.filter_map(|side| self.guard(side, MAX_DEPTH));
            let Some(guard) = guards.next() else {
                let why = "the epsilon of this norm is no constant over the largest magnitude";
                return Err(Stop::new(*node, why));
            };
            self.seen.insert(*node);
            for (slot, before, power) in guard {
                let number = before.value * self.alpha.powi(power);
                self.number(slot, before.dtype, number);
            }
        }
        Ok(())
    }

    /// The numerators of a guard, with the power of the largest magnitude that each is divided by.
    fn guard(&self, value: ValueId, depth: usize) -> Option<Vec<(Slot, Uniform, i32)>> {
        let depth = depth.checked_sub(1)?;
        let op = self.block.op(value.node)?;
        match op.op_type() {
            "cast" | "identity" | "square" => self.guard(op.value("x")?, depth),
            "real_div" => {
                let numerator = self.block.uniform_of(op, "x")?;
                let power = self.power(op.value("y")?, depth)?;
                Some(vec![(Slot::new(value.node, "x"), numerator, power)])
            }
            "mul" => {
                let [x, y] = [op.value("x")?, op.value("y")?];
                let mut slots = self.guard(x, depth)?;
                if x != y {
                    slots.extend(self.guard(y, depth)?);
                }
                Some(slots)
            }
            _ => None,
        }
    }

    /// With which power of the largest magnitude a value grows.
    fn power(&self, value: ValueId, depth: usize) -> Option<i32> {
        let depth = depth.checked_sub(1)?;
        let op = self.block.op(value.node)?;
        match op.op_type() {
            "reduce_max" => Some(1),
            "cast" | "identity" | "clip" => self.power(op.value("x")?, depth),
            "maximum" => {
                let side = if self.block.uniform_of(op, "y").is_some() {
                    "x"
                } else {
                    "y"
                };
                self.power(op.value(side)?, depth)
            }
            "square" => Some(2 * self.power(op.value("x")?, depth)?),
            "pow" => {
                let exponent = self.block.uniform_of(op, "y")?.value;
                (exponent == 2.0).then_some(2 * self.power(op.value("x")?, depth)?)
            }
            "mul" => Some(self.power(op.value("x")?, depth)? + self.power(op.value("y")?, depth)?),
            _ => None,
        }
    }
}

/// Whether a type holds a number with all its digits: as a normal number, or exactly.
fn holds(dtype: DType, number: f64) -> bool {
    match dtype {
        DType::Float16 => {
            let half = f16::from_f64(number);
            half.is_normal() || half.to_f64() == number
        }
        _ => (number as f32).is_normal() || f64::from(number as f32) == number,
    }
}
