//! Masks: what is added to the scores of an attention, or selects among them.
//!
//! ```text
//! const bool                    true where a query attends; causal, all true, or any
//! const float                   0 where it attends, −1000 or less elsewhere; else it is a bias
//! bool at run time              true where a query attends
//! mul(sub(1, m), c)             Hugging Face's (1 − m)·c: m is 1 where a query attends
//! mul(m, c)                     m is 1 where it does not
//! select(cond, 0, c)            0 and c in either order, c at most −1000
//! any other float at run time
//! ```
//!
//! The last four are seen through `cast`, `identity`, `reshape`, `expand_dims`, `squeeze`, `transpose`,
//! `tile` and slices. Bools of [`kind`] are those of the fused attention; the condition of a `select`
//! among scores may mean the opposite, see [`super::attention::Applied`].

use half::f16;

use crate::ir::{Binding, DType, Dim, Operation, Value, ValueId};
use crate::pass::Block;

/// Scores that have this or less added to them have no weight beside those that have 0 added.
pub const MASKED: f32 = -1000.0;

/// Operations that are seen through, at most.
const MAX_DEPTH: usize = 32;

/// What a mask is.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// A bool constant.
    ConstantBool(Pattern),
    /// A float constant that is 0 where a query attends and at most [`MASKED`] elsewhere.
    ConstantFloat(Pattern),
    /// A float constant that does more, or one whose data cannot be read.
    Bias,
    /// Bools that are known only when the model runs.
    Bool,
    /// A mask of zeros and ones times a low number.
    Scaled {
        /// The mask.
        mask: ValueId,
        /// The low number.
        low: f64,
        /// Whether it is 1 − mask that is multiplied, so that the mask is 1 where a query attends.
        is_inverted: bool,
    },
    /// 0 or a low number, by a condition.
    Chosen {
        /// The condition.
        condition: ValueId,
        /// The low number.
        low: f64,
        /// Whether a query attends where the condition is true.
        attends_where_true: bool,
    },
    /// Floats that are known only when the model runs.
    Float,
}

/// Where a constant mask lets queries attend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Everywhere.
    All,
    /// To the keys up to the query's own place, see [`is_causal`].
    Causal,
    /// Somewhere else.
    Other,
}

/// What a mask is, as the fused attention reads it; `None` if its type is not known.
///
/// A constant's elements are read, once: linear in its size.
pub fn kind(block: &Block<'_>, mask: &Binding) -> Option<Kind> {
    let ty = match mask {
        Binding::Value(value) => block.tensor(*value)?,
        Binding::Immediate(value) => value.tensor_type()?,
        Binding::Absent => return None,
    };
    if let Some(value) = constant(block, mask) {
        let is_bool = ty.dtype == DType::Bool;
        let keep = if is_bool {
            bools(block, value)
        } else {
            attends(block, value)
        };
        let pattern = keep.map(|keep| pattern(&ty.dims, &keep));
        return match pattern {
            Some(pattern) if is_bool => Some(Kind::ConstantBool(pattern)),
            Some(pattern) => Some(Kind::ConstantFloat(pattern)),
            None if is_bool => None,
            None => Some(Kind::Bias),
        };
    }
    let Binding::Value(value) = mask else {
        return None;
    };
    if ty.dtype == DType::Bool {
        return Some(Kind::Bool);
    }
    Some(made(block, *value).unwrap_or(Kind::Float))
}

/// The constant that a mask is, if it is one.
pub fn constant<'a>(block: &Block<'a>, mask: &'a Binding) -> Option<&'a Value> {
    match mask {
        Binding::Value(value) => block.constant(*value),
        Binding::Immediate(value) => Some(value),
        Binding::Absent => None,
    }
}

/// How a float mask is made when the model runs.
fn made(block: &Block<'_>, value: ValueId) -> Option<Kind> {
    let value = through_layout(block, value);
    let op = block.op(value.node)?;
    let low = |number: f64| number <= f64::from(MASKED);
    match op.op_type() {
        "mul" => {
            let (low, mask) = match (block.uniform_of(op, "x"), block.uniform_of(op, "y")) {
                (_, Some(y)) if low(y.value) => (y.value, op.value("x")?),
                (Some(x), _) if low(x.value) => (x.value, op.value("y")?),
                _ => return None,
            };
            let mask = through_layout(block, mask);
            let inverted = block.producer_of_type(mask, "sub").filter(|sub| {
                block
                    .uniform_of(sub, "x")
                    .is_some_and(|one| one.value == 1.0)
            });
            Some(match inverted.and_then(|sub| sub.value("y")) {
                Some(mask) => Kind::Scaled {
                    mask: through_layout(block, mask),
                    low,
                    is_inverted: true,
                },
                None => Kind::Scaled {
                    mask,
                    low,
                    is_inverted: false,
                },
            })
        }
        "select" => {
            let (a, b) = (block.uniform_of(op, "a")?, block.uniform_of(op, "b")?);
            let (low, attends_where_true) = match (a.value, b.value) {
                (0.0, b) if low(b) => (b, true),
                (a, 0.0) if low(a) => (a, false),
                _ => return None,
            };
            Some(Kind::Chosen {
                condition: op.value("cond")?,
                low,
                attends_where_true,
            })
        }
        _ => None,
    }
}

fn through_layout(block: &Block<'_>, mut value: ValueId) -> ValueId {
    for _ in 0..MAX_DEPTH {
        match block.op(value.node).and_then(behind) {
            Some(before) => value = before,
            None => break,
        }
    }
    value
}

/// What an operation arranges or casts, without changing the numbers.
fn behind(op: &Operation) -> Option<ValueId> {
    match op.op_type() {
        "cast" | "identity" | "reshape" | "expand_dims" | "squeeze" | "transpose" | "tile"
        | "slice_by_index" | "slice_by_size" => op.value("x"),
        _ => None,
    }
}

/// The elements of a bool constant, as many as its type says.
pub fn bools(block: &Block<'_>, value: &Value) -> Option<Vec<bool>> {
    let bytes = block.bytes(value)?;
    let keep: Vec<bool> = bytes.iter().map(|byte| *byte != 0).collect();
    let elements = value.tensor_type()?.elements()?;
    (keep.len() as u64 == elements).then_some(keep)
}

/// Where a constant float mask lets a query attend; `None` if it does more than mask.
pub fn attends(block: &Block<'_>, value: &Value) -> Option<Vec<bool>> {
    let bytes = block.bytes(value)?;
    let keep = |number: f32| match number {
        0.0 => Some(true),
        number if number <= MASKED => Some(false),
        _ => None,
    };
    match value.tensor_type()?.dtype {
        DType::Float16 => bytes
            .chunks_exact(2)
            .map(|two| keep(f16::from_le_bytes(two.try_into().ok()?).to_f32()))
            .collect(),
        DType::Float32 => bytes
            .chunks_exact(4)
            .map(|four| keep(f32::from_le_bytes(four.try_into().ok()?)))
            .collect(),
        _ => None,
    }
}

/// Where a mask of this shape lets queries attend.
pub fn pattern(dims: &[Dim], keep: &[bool]) -> Pattern {
    if keep.iter().all(|keep| *keep) {
        Pattern::All
    } else if is_causal(dims, keep) {
        Pattern::Causal
    } else {
        Pattern::Other
    }
}

/// Whether each query attends to the keys up to its own place, the last query to all of them. Queries
/// are the second axis from the end, keys the last.
pub fn is_causal(dims: &[Dim], keep: &[bool]) -> bool {
    let [.., rows, columns] = dims else {
        return false;
    };
    let size = |dim: &Dim| dim.size().and_then(|size| usize::try_from(size).ok());
    let (Some(rows), Some(columns)) = (size(rows), size(columns)) else {
        return false;
    };
    let is_triangle = |matrix: &[bool]| {
        let mut lines = matrix.chunks(columns).enumerate();
        lines.all(|(row, line)| {
            let mut line = line.iter().enumerate();
            line.all(|(column, keep)| *keep == (column + rows <= row + columns))
        })
    };
    rows > 1
        && columns >= rows
        && rows
            .checked_mul(columns)
            .is_some_and(|size| keep.chunks(size).all(is_triangle))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::sample::Sample;

    fn of(inputs: &str, operations: &str) -> Option<Kind> {
        let sample = Sample::new(inputs, operations, "y");
        let block = sample.block();
        kind(&block, &Binding::Value(sample.value("y")))
    }

    #[test]
    fn a_triangle_of_bools_is_causal() {
        let operations = "tensor<bool, [2, 2]> y = const()[val = tensor<bool, [2, 2]>([[true, false], [true, true]])];";
        let found = of("tensor<fp16, [1]> x", operations);
        assert_eq!(found, Some(Kind::ConstantBool(Pattern::Causal)));
    }

    #[test]
    fn queries_that_follow_a_cache_are_causal_in_each_matrix() {
        let operations = "tensor<fp16, [2, 2, 3]> y = const()[val = tensor<fp16, [2, 2, 3]>([[[0, 0, -10000], [0, 0, 0]], [[0, 0, -10000], [0, 0, 0]]])];";
        let found = of("tensor<fp16, [1]> x", operations);
        assert_eq!(found, Some(Kind::ConstantFloat(Pattern::Causal)));
    }

    #[test]
    fn an_upper_triangle_is_not_causal() {
        let operations =
            "tensor<fp32, [2, 2]> y = const()[val = tensor<fp32, [2, 2]>([[0, 0], [-10000, 0]])];";
        let found = of("tensor<fp16, [1]> x", operations);
        assert_eq!(found, Some(Kind::ConstantFloat(Pattern::Other)));
    }

    #[test]
    fn small_numbers_are_a_bias() {
        let operations =
            "tensor<fp32, [2, 2]> y = const()[val = tensor<fp32, [2, 2]>([[0, 0.5], [-1, 0]])];";
        let found = of("tensor<fp16, [1]> x", operations);
        assert_eq!(found, Some(Kind::Bias));
    }

    #[test]
    fn bools_at_run_time() {
        let operations = "tensor<bool, [2, 2]> y = logical_not(x = m);";
        assert_eq!(of("tensor<bool, [2, 2]> m", operations), Some(Kind::Bool));
    }

    #[test]
    fn one_minus_a_mask_times_a_low_number_through_layout() {
        let sample = Sample::new(
            "tensor<fp16, [1, 4]> m",
            "tensor<fp16, [1, 4]> a = sub(x = fp16(1), y = m);
             tensor<fp16, [1, 1, 4]> b = expand_dims(axes = tensor<int32, [1]>([1]), x = a);
             tensor<fp16, [1, 1, 4]> c = mul(x = b, y = fp16(-10000));
             tensor<fp16, [1, 1, 1, 4]> y = expand_dims(axes = tensor<int32, [1]>([1]), x = c);",
            "y",
        );
        let block = sample.block();
        let found = kind(&block, &Binding::Value(sample.value("y")));
        let expected = Kind::Scaled {
            mask: sample.value("m"),
            low: -10000.0,
            is_inverted: true,
        };
        assert_eq!(found, Some(expected));
    }

    #[test]
    fn a_mask_of_masked_keys_times_a_low_number() {
        let sample = Sample::new(
            "tensor<bool, [1, 4]> m",
            "tensor<fp16, [1, 4]> a = cast(dtype = string(\"fp16\"), x = m);
             tensor<fp16, [1, 4]> y = mul(x = fp16(-10000), y = a);",
            "y",
        );
        let found = kind(&sample.block(), &Binding::Value(sample.value("y")));
        let expected = Kind::Scaled {
            mask: sample.value("m"),
            low: -10000.0,
            is_inverted: false,
        };
        assert_eq!(found, Some(expected));
    }

    #[test]
    fn zero_or_a_low_number_by_a_condition() {
        for (a, b, attends_where_true) in [("0", "-20000", true), ("-20000", "0", false)] {
            let operations =
                format!("tensor<fp16, [1, 4]> y = select(a = fp16({a}), b = fp16({b}), cond = m);");
            let sample = Sample::new("tensor<bool, [1, 4]> m", &operations, "y");
            let found = kind(&sample.block(), &Binding::Value(sample.value("y")));
            let expected = Kind::Chosen {
                condition: sample.value("m"),
                low: -20000.0,
                attends_where_true,
            };
            assert_eq!(found, Some(expected));
        }
    }

    #[test]
    fn other_products_are_plain_floats() {
        let operations = "tensor<fp16, [1, 4]> y = mul(x = m, y = fp16(0.5));";
        assert_eq!(of("tensor<fp16, [1, 4]> m", operations), Some(Kind::Float));
    }
}
