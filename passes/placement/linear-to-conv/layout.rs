//! The layout of convolutions, channels before positions, and how values come in and go out.
//!
//! | rank | as linear has it | as conv has it |
//! |---|---|---|
//! | 2 | \[S, C\] | \[1, C, 1, S\] |
//! | 3 | \[B, S, C\] | \[B, C, 1, S\] |
//! | 4 | \[B, H, S, C\] | \[B, C, H, S\] |

use std::collections::BTreeMap;

use crate::analysis::product::retype;
use crate::ir::{Binding, Operation, Value, ValueId, ValueType};
use crate::pass::{Block, Edit, EditError};

/// The way between both layouts for one rank.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    /// The permutation into the layout of convolutions.
    enter: &'static [i32],
    /// The permutation back.
    leave: &'static [i32],
    /// The axes of size 1 that only convolutions have.
    ones: &'static [i32],
}

/// A value to be had in the layout of convolutions.
pub(super) enum Carried {
    /// It is there already.
    Inside(ValueId),
    /// It has to be brought there: the value, and what another product has brought there already.
    Outside(ValueId, Option<ValueId>),
    /// An operation on elements, made there.
    Op {
        op_type: String,
        arguments: BTreeMap<String, Vec<Binding>>,
        operands: Vec<(String, Carried)>,
    },
}

/// Operations on single elements that may be made in either layout, by their tensor operands.
const ELEMENTWISE: [(&str, &[&str]); 28] = [
    ("abs", &["x"]),
    ("add", &["x", "y"]),
    ("cast", &["x"]),
    ("clamped_relu", &["x"]),
    ("clip", &["x"]),
    ("elu", &["x"]),
    ("erf", &["x"]),
    ("exp", &["x"]),
    ("gelu", &["x"]),
    ("identity", &["x"]),
    ("leaky_relu", &["x"]),
    ("linear_activation", &["x"]),
    ("maximum", &["x", "y"]),
    ("minimum", &["x", "y"]),
    ("mul", &["x", "y"]),
    ("pow", &["x", "y"]),
    ("real_div", &["x", "y"]),
    ("relu", &["x"]),
    ("relu6", &["x"]),
    ("scaled_tanh", &["x"]),
    ("sigmoid", &["x"]),
    ("sigmoid_hard", &["x"]),
    ("silu", &["x"]),
    ("softplus", &["x"]),
    ("softsign", &["x"]),
    ("square", &["x"]),
    ("sub", &["x", "y"]),
    ("tanh", &["x"]),
];

/// Operations between two products that are looked at.
const MAX_DEPTH: usize = 12;
/// Readers of a value that are looked at for one that brings it into the layout.
const MAX_READERS: usize = 32;

impl Layout {
    /// The way for operands of this rank.
    pub(super) fn of_rank(rank: usize) -> Option<Self> {
        let (enter, leave, ones): (&[i32], &[i32], &[i32]) = match rank {
            2 => (&[1, 0], &[1, 0], &[0, 2]),
            3 => (&[0, 2, 1], &[0, 2, 1], &[2]),
            4 => (&[0, 3, 1, 2], &[0, 2, 3, 1], &[]),
            _ => return None,
        };
        Some(Self { enter, leave, ones })
    }

    /// How a value is to be had: through operations on elements, as far as values lead back to a
    /// convolution and nothing else reads what is in between.
    pub(super) fn carry(self, block: &Block<'_>, value: ValueId) -> Carried {
        self.inside(block, value, MAX_DEPTH)
            .unwrap_or_else(|| Carried::Outside(value, self.entered(block, value)))
    }

    /// The value in the layout of convolutions, if it is there as well.
    fn entered(self, block: &Block<'_>, value: ValueId) -> Option<ValueId> {
        let reader = |of: ValueId, op_type: &str, parameter: &str, wanted: &[i32]| {
            block
                .graph
                .uses(of)
                .take(MAX_READERS)
                .filter_map(|one| Some((one.user, block.op_of_type(one.user, op_type)?)))
                .find(|(_, op)| {
                    op.value("x") == Some(of)
                        && block
                            .ints_of(op, parameter)
                            .is_some_and(|ints| same(&ints, wanted))
                })
                .map(|(node, _)| ValueId::first(node))
        };
        let turned = reader(value, "transpose", "perm", self.enter)?;
        if self.ones.is_empty() {
            return Some(turned);
        }
        reader(turned, "expand_dims", "axes", self.ones)
    }

    fn inside(self, block: &Block<'_>, value: ValueId, depth: usize) -> Option<Carried> {
        if let Some(source) = self.left(block, value) {
            return Some(Carried::Inside(source));
        }
        let depth = depth.checked_sub(1)?;
        let op = block.op(value.node)?;
        let (_, parameters) = ELEMENTWISE.iter().find(|(name, _)| *name == op.op_type())?;
        if !block.graph.used_once(value) || block.graph.is_output(value) {
            return None;
        }
        let ty = block.tensor(value)?;
        let mut operands = Vec::new();
        for parameter in *parameters {
            if is_number(block, op, parameter) {
                continue;
            }
            let operand = op.value(parameter)?;
            // Nothing is broadcast, so that both layouts do the same.
            if !block.tensor(operand)?.same_shape(ty) {
                return None;
            }
            operands.push(((*parameter).to_owned(), operand));
        }
        // A value that is read twice by one operation is no tree.
        if operands.is_empty() {
            return None;
        }
        let operands = operands
            .into_iter()
            .map(|(parameter, operand)| Some((parameter, self.inside(block, operand, depth)?)))
            .collect::<Option<Vec<_>>>()?;
        let arguments = op
            .arguments()
            .iter()
            .map(|argument| (argument.parameter.clone(), argument.bindings.clone()))
            .collect();
        Some(Carried::Op {
            op_type: op.op_type().to_owned(),
            arguments,
            operands,
        })
    }

    /// The value of the convolution that a value is, if it has just left the layout.
    fn left(self, block: &Block<'_>, value: ValueId) -> Option<ValueId> {
        let transpose = block.producer_of_type(value, "transpose")?;
        let perm = block.ints_of(transpose, "perm")?;
        if !same(&perm, self.leave) {
            return None;
        }
        let mut source = transpose.value("x")?;
        if !self.ones.is_empty() {
            let squeeze = block.producer_of_type(source, "squeeze")?;
            let axes = block.ints_of(squeeze, "axes")?;
            if !same(&axes, self.ones) {
                return None;
            }
            source = squeeze.value("x")?;
        }
        (block.tensor(source)?.dims.len() == 4).then_some(source)
    }

    /// Makes a value in the layout of convolutions.
    pub(super) fn make(self, edit: &mut Edit<'_>, carried: Carried) -> Result<ValueId, EditError> {
        match carried {
            Carried::Inside(value) | Carried::Outside(_, Some(value)) => Ok(value),
            Carried::Outside(value, None) => {
                let perm = edit.constant(Value::int32s(self.enter));
                let turned = [("x", Binding::Value(value)), ("perm", perm)];
                let turned = edit.op("transpose", &turned)?;
                if self.ones.is_empty() {
                    return Ok(turned);
                }
                let axes = edit.constant(Value::int32s(self.ones));
                edit.op(
                    "expand_dims",
                    &[("x", Binding::Value(turned)), ("axes", axes)],
                )
            }
            Carried::Op {
                op_type,
                mut arguments,
                operands,
            } => {
                for (parameter, operand) in operands {
                    let value = self.make(edit, operand)?;
                    arguments.insert(parameter, vec![Binding::Value(value)]);
                }
                Ok(ValueId::first(edit.variadic_op(&op_type, arguments)?))
            }
        }
    }

    /// Makes the value of a convolution one as linear has it, of the given type.
    pub(super) fn leave(
        self,
        edit: &mut Edit<'_>,
        mut value: ValueId,
        ty: &ValueType,
    ) -> Result<ValueId, EditError> {
        if !self.ones.is_empty() {
            let axes = edit.constant(Value::int32s(self.ones));
            value = edit.op("squeeze", &[("x", Binding::Value(value)), ("axes", axes)])?;
        }
        let perm = edit.constant(Value::int32s(self.leave));
        let back = edit.op("transpose", &[("x", Binding::Value(value)), ("perm", perm)])?;
        retype(edit, back, ty);
        Ok(back)
    }
}

/// Whether integers are those of a layout.
fn same(found: &[i64], wanted: &[i32]) -> bool {
    found
        .iter()
        .copied()
        .eq(wanted.iter().copied().map(i64::from))
}

/// Whether a parameter is bound to one number, which is the same in either layout.
fn is_number(block: &Block<'_>, op: &Operation, parameter: &str) -> bool {
    let ty = match op.binding(parameter) {
        Some(Binding::Immediate(value)) => value.tensor_type(),
        Some(Binding::Value(value)) => block.tensor(*value),
        _ => None,
    };
    ty.is_some_and(|ty| ty.rank == 0)
}
