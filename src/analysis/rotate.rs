//! Rotations of half a vector, as rotary position embeddings have them.
//!
//! ```text
//! concat(−x[d/2:], x[:d/2])          Llama, Gemma, Qwen, GPT-NeoX
//! concat(x[d/2:], −x[:d/2])          the inverse rotation
//! reshape(stack(−x[1::2], x[0::2]))  interleaved, as GPT-J has it; also concat of expanded halves
//! ```
//!
//! The halves come from `split`, `slice_by_index` or `slice_by_size`, one of each is possible. The minus
//! is `mul` by −1, `real_div` by −1, or `sub` from 0, and stands after the slice or before it.

use crate::ir::{Binding, NodeId, Operation, ValueId};
use crate::pass::Block;

/// A rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// What is rotated.
    pub x: ValueId,
    /// The axis along which it is.
    pub axis: usize,
    /// The size of that axis.
    pub size: u64,
    /// Which elements change places.
    pub style: Style,
    /// Which of the two parts of the result is negated, the usual one or the other.
    pub negates: Negates,
}

/// Which elements change places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Each of the first half with its counterpart in the second.
    Halves,
    /// Neighbours.
    Interleaved,
}

/// Which part of the result is negated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Negates {
    /// The one that comes first: (−b, a) for (a, b).
    First,
    /// The one that comes second: (b, −a).
    Second,
}

impl Rotation {
    /// For each element of the result along the axis, which element of x it is, and whether negated.
    pub fn source(&self, at: u64) -> (u64, bool) {
        let half = self.size / 2;
        let (source, is_first) = match self.style {
            Style::Halves if at < half => (at + half, true),
            Style::Halves => (at - half, false),
            Style::Interleaved => (at ^ 1, at.is_multiple_of(2)),
        };
        (source, is_first == (self.negates == Negates::First))
    }
}

/// A half of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Half {
    x: ValueId,
    begin: u64,
    end: u64,
    stride: u64,
    is_negated: bool,
}

/// Why a concat of two parts of one value, one of them negated, is no rotation.
pub type Refusal = &'static str;

/// The rotation whose result this operation makes. `None`: nothing of the kind; `Some(Err(…))`: nearly.
pub fn at(block: &Block<'_>, node: NodeId) -> Option<Result<Rotation, Refusal>> {
    let op = block.op(node)?;
    match op.op_type() {
        "concat" => halves(block, op, node),
        "reshape" => interleaved(block, op, node),
        _ => None,
    }
}

fn halves(block: &Block<'_>, op: &Operation, node: NodeId) -> Option<Result<Rotation, Refusal>> {
    let result = block.tensor(ValueId::first(node))?;
    let axis = place(block.int_of(op, "axis")?, result.dims.len())?;
    let [first, second] = pair(op)?;
    let (first, second) = (half(block, first, axis)?, half(block, second, axis)?);
    if first.x != second.x || first.is_negated == second.is_negated {
        return None;
    }
    let Some(size) = block.tensor(first.x)?.dims.get(axis)?.size() else {
        return Some(Err("the size of what is rotated is not known"));
    };
    if block.bool_or(op, "interleave", false) != Some(false) {
        return Some(Err("the concat interleaves the halves"));
    }
    let half = size / 2;
    let is = |part: &Half, begin, end| part.begin == begin && part.end == end && part.stride == 1;
    if !size.is_multiple_of(2) || !is(&first, half, size) || !is(&second, 0, half) {
        return Some(Err(
            "the parts are not the second half and the first, in this order",
        ));
    }
    Some(Ok(Rotation {
        x: first.x,
        axis,
        size,
        style: Style::Halves,
        negates: negates(&first),
    }))
}

fn interleaved(
    block: &Block<'_>,
    op: &Operation,
    node: NodeId,
) -> Option<Result<Rotation, Refusal>> {
    let joined = op.value("x")?;
    let join = block.op(joined.node)?;
    let rank = block.tensor(joined)?.dims.len();
    // The pairs stand on a last dimension of their own, of size 2.
    let axis = place(block.int_of(join, "axis")?, rank)?;
    let parts = pair(join)?;
    let [first, second] = match join.op_type() {
        "stack" => parts,
        "concat" => {
            let mut expanded = [parts[0]; 2];
            for (slot, part) in expanded.iter_mut().zip(parts) {
                let expand = block.producer_of_type(part, "expand_dims")?;
                let [at] = block.ints_of(expand, "axes")?.as_slice().try_into().ok()?;
                if place(at, rank)? != axis {
                    return None;
                }
                *slot = expand.value("x")?;
            }
            expanded
        }
        _ => return None,
    };
    if axis + 1 != rank {
        return None;
    }
    let along = rank.checked_sub(2)?;
    let (first, second) = (half(block, first, along)?, half(block, second, along)?);
    if first.x != second.x || first.is_negated == second.is_negated {
        return None;
    }
    let dims = &block.tensor(first.x)?.dims;
    let size = match dims.get(along)?.size() {
        Some(size) if dims.len() == along + 1 => size,
        _ => return Some(Err("the size of what is rotated is not known")),
    };
    if block.tensor(ValueId::first(node))?.dims != *dims {
        return Some(Err("the pairs are not flattened again"));
    }
    let is = |part: &Half, begin| {
        let count = part.end.saturating_sub(begin).div_ceil(2);
        part.begin == begin && part.stride == 2 && count == size / 2
    };
    if !size.is_multiple_of(2) || !is(&first, 1) || !is(&second, 0) {
        return Some(Err(
            "the parts are not the odd elements and the even ones, in this order",
        ));
    }
    Some(Ok(Rotation {
        x: first.x,
        axis: along,
        size,
        style: Style::Interleaved,
        negates: negates(&first),
    }))
}

fn negates(first: &Half) -> Negates {
    if first.is_negated {
        Negates::First
    } else {
        Negates::Second
    }
}

/// The two values that are joined.
fn pair(op: &Operation) -> Option<[ValueId; 2]> {
    match op.argument("values")?.bindings.as_slice() {
        [Binding::Value(first), Binding::Value(second)] => Some([*first, *second]),
        _ => None,
    }
}

/// A part of a value, negated or not.
fn half(block: &Block<'_>, value: ValueId, axis: usize) -> Option<Half> {
    let outer = negated(block, value);
    let part = slice(block, outer.unwrap_or(value), axis)?;
    let inner = negated(block, part.x);
    Some(Half {
        x: inner.unwrap_or(part.x),
        is_negated: outer.is_some() != inner.is_some(),
        ..part
    })
}

/// x, if the value is −x.
fn negated(block: &Block<'_>, value: ValueId) -> Option<ValueId> {
    let op = block.op(value.node)?;
    let is = |parameter, number| {
        block
            .uniform_of(op, parameter)
            .is_some_and(|found| found.value == number)
    };
    let x = match op.op_type() {
        "mul" | "real_div" if is("y", -1.0) => op.value("x")?,
        "mul" if is("x", -1.0) => op.value("y")?,
        "sub" if is("x", 0.0) => op.value("y")?,
        _ => return None,
    };
    (block.tensor(x)? == block.tensor(value)?).then_some(x)
}

/// The part of another value that a value is, along one axis only.
fn slice(block: &Block<'_>, value: ValueId, axis: usize) -> Option<Half> {
    let op = block.op(value.node)?;
    let x = op.value("x")?;
    let dims = &block.tensor(x)?.dims;
    let after = &block.tensor(value)?.dims;
    if dims.len() != after.len() {
        return None;
    }
    let size = i64::try_from(dims.get(axis)?.size()?).ok()?;
    let part = |begin: i64, end: i64, stride: i64| {
        Some(Half {
            x,
            begin: u64::try_from(begin).ok()?,
            end: u64::try_from(end.min(size)).ok()?,
            stride: u64::try_from(stride).ok().filter(|stride| *stride > 0)?,
            is_negated: false,
        })
    };
    let count = dims.len();
    match op.op_type() {
        "split" => {
            if place(block.int_of(op, "axis")?, count)? != axis {
                return None;
            }
            let length = i64::try_from(after.get(axis)?.size()?).ok()?;
            let mut begin = 0i64;
            for result in 0..value.result {
                let before = block.tensor(ValueId {
                    node: value.node,
                    result,
                })?;
                let length = i64::try_from(before.dims.get(axis)?.size()?).ok()?;
                begin = begin.checked_add(length)?;
            }
            part(begin, begin.checked_add(length)?, 1)
        }
        "slice_by_size" => {
            let (begin, sizes) = (block.ints_of(op, "begin")?, block.ints_of(op, "size")?);
            for other in (0..count).filter(|other| *other != axis) {
                let whole = dims.get(other)?.size().map(|size| size as i64);
                if *begin.get(other)? != 0 || ![Some(-1), whole].contains(&Some(*sizes.get(other)?))
                {
                    return None;
                }
            }
            let (begin, length) = (*begin.get(axis)?, *sizes.get(axis)?);
            let end = if length == -1 {
                size
            } else {
                begin.checked_add(length)?
            };
            part(begin, end, 1)
        }
        "slice_by_index" => {
            let flags = |parameter| match op.argument(parameter) {
                Some(_) => block.bools_of(op, parameter).filter(|f| f.len() == count),
                None => Some(vec![false; count]),
            };
            let (begins, ends) = (block.ints_of(op, "begin")?, block.ints_of(op, "end")?);
            let strides = match op.argument("stride") {
                Some(_) => block.ints_of(op, "stride")?,
                None => vec![1; count],
            };
            let (begin_mask, end_mask) = (flags("begin_mask")?, flags("end_mask")?);
            let limits = |at: usize| {
                let size = dims.get(at)?.size().map(|size| size as i64);
                let resolve = |index: i64| Some(if index < 0 { index + size? } else { index });
                let begin = if begin_mask[at] {
                    0
                } else {
                    resolve(*begins.get(at)?)?
                };
                let end = if end_mask[at] {
                    None
                } else {
                    Some(resolve(*ends.get(at)?)?)
                };
                Some((begin, end, size, *strides.get(at)?))
            };
            for other in (0..count).filter(|other| *other != axis) {
                let (begin, end, size, stride) = limits(other)?;
                if begin != 0 || stride != 1 || end.is_some_and(|end| size.is_none_or(|s| end < s))
                {
                    return None;
                }
            }
            let (begin, end, _, stride) = limits(axis)?;
            part(begin, end.unwrap_or(size), stride)
        }
        _ => None,
    }
}

/// An axis that may count from the end.
fn place(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    let axis = if axis < 0 { axis + rank } else { axis };
    usize::try_from(axis)
        .ok()
        .filter(|axis| (*axis as i64) < rank)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::sample::Sample;

    fn of(operations: &str) -> Option<Result<Rotation, Refusal>> {
        let sample = Sample::new("tensor<fp16, [1, 2, 3, 8]> x", operations, "y");
        let found = at(&sample.block(), sample.node("y"));
        if let Some(Ok(rotation)) = &found {
            assert_eq!(rotation.x, sample.value("x"));
            assert_eq!((rotation.axis, rotation.size), (3, 8));
        }
        found
    }

    fn style(operations: &str) -> (Style, Negates) {
        let rotation = of(operations).unwrap().unwrap();
        (rotation.style, rotation.negates)
    }

    const SPLIT: &str = "tensor<fp16, [1, 2, 3, 4]> a, tensor<fp16, [1, 2, 3, 4]> b = split(axis = int32(-1), num_splits = int32(2), x = x);";
    const JOIN: &str = "tensor<fp16, [1, 2, 3, 8]> y = concat(axis = int32(-1), interleave = bool(false), values = (n, a));";

    #[test]
    fn halves_of_a_split_with_each_minus() {
        for minus in [
            "mul(x = b, y = fp16(-1))",
            "mul(x = fp16(-1), y = b)",
            "real_div(x = b, y = fp16(-1))",
            "sub(x = fp16(0), y = b)",
        ] {
            let text = format!("{SPLIT} tensor<fp16, [1, 2, 3, 4]> n = {minus}; {JOIN}");
            assert_eq!(style(&text), (Style::Halves, Negates::First), "{minus}");
        }
    }

    #[test]
    fn halves_of_slices_by_index() {
        let text = format!(
            "tensor<fp16, [1, 2, 3, 4]> a = slice_by_index(begin = tensor<int32, [4]>([0, 0, 0, 0]), end = tensor<int32, [4]>([1, 2, 3, 4]), end_mask = tensor<bool, [4]>([true, true, true, false]), x = x);
             tensor<fp16, [1, 2, 3, 4]> b = slice_by_index(begin = tensor<int32, [4]>([0, 0, 0, -4]), end = tensor<int32, [4]>([1, 2, 3, 8]), x = x);
             tensor<fp16, [1, 2, 3, 4]> n = mul(x = b, y = fp16(-1)); {JOIN}"
        );
        assert_eq!(style(&text), (Style::Halves, Negates::First));
    }

    #[test]
    fn halves_of_slices_by_size_of_what_is_negated_before() {
        let text = format!(
            "tensor<fp16, [1, 2, 3, 8]> m = mul(x = x, y = fp16(-1));
             tensor<fp16, [1, 2, 3, 4]> a = slice_by_size(begin = tensor<int32, [4]>([0, 0, 0, 0]), size = tensor<int32, [4]>([1, 2, 3, 4]), x = x);
             tensor<fp16, [1, 2, 3, 4]> n = slice_by_size(begin = tensor<int32, [4]>([0, 0, 0, 4]), size = tensor<int32, [4]>([-1, -1, -1, -1]), x = m); {JOIN}"
        );
        assert_eq!(style(&text), (Style::Halves, Negates::First));
    }

    #[test]
    fn the_inverse_rotation() {
        let text = format!(
            "{SPLIT} tensor<fp16, [1, 2, 3, 4]> n = mul(x = a, y = fp16(-1));
             tensor<fp16, [1, 2, 3, 8]> y = concat(axis = int32(3), interleave = bool(false), values = (b, n));"
        );
        assert_eq!(style(&text), (Style::Halves, Negates::Second));
    }

    const EVEN_AND_ODD: &str = "
        tensor<fp16, [1, 2, 3, 4]> a = slice_by_index(begin = tensor<int32, [4]>([0, 0, 0, 0]), end = tensor<int32, [4]>([1, 2, 3, 8]), stride = tensor<int32, [4]>([1, 1, 1, 2]), x = x);
        tensor<fp16, [1, 2, 3, 4]> b = slice_by_index(begin = tensor<int32, [4]>([0, 0, 0, 1]), end = tensor<int32, [4]>([1, 2, 3, 8]), stride = tensor<int32, [4]>([1, 1, 1, 2]), x = x);
        tensor<fp16, [1, 2, 3, 4]> n = mul(x = b, y = fp16(-1));";

    #[test]
    fn neighbours_of_a_stack() {
        let text = format!(
            "{EVEN_AND_ODD}
             tensor<fp16, [1, 2, 3, 4, 2]> s = stack(axis = int32(-1), values = (n, a));
             tensor<fp16, [1, 2, 3, 8]> y = reshape(shape = tensor<int32, [4]>([1, 2, 3, 8]), x = s);"
        );
        assert_eq!(style(&text), (Style::Interleaved, Negates::First));
    }

    #[test]
    fn neighbours_of_a_concat() {
        let text = format!(
            "{EVEN_AND_ODD}
             tensor<fp16, [1, 2, 3, 4, 1]> c = expand_dims(axes = tensor<int32, [1]>([-1]), x = n);
             tensor<fp16, [1, 2, 3, 4, 1]> d = expand_dims(axes = tensor<int32, [1]>([4]), x = a);
             tensor<fp16, [1, 2, 3, 4, 2]> s = concat(axis = int32(-1), interleave = bool(false), values = (c, d));
             tensor<fp16, [1, 2, 3, 8]> y = reshape(shape = tensor<int32, [4]>([1, 2, 3, 8]), x = s);"
        );
        assert_eq!(style(&text), (Style::Interleaved, Negates::First));
    }

    #[test]
    fn halves_in_their_old_order_are_no_rotation() {
        let text = format!(
            "{SPLIT} tensor<fp16, [1, 2, 3, 4]> n = mul(x = b, y = fp16(-1));
             tensor<fp16, [1, 2, 3, 8]> y = concat(axis = int32(-1), interleave = bool(false), values = (a, n));"
        );
        assert!(matches!(of(&text), Some(Err(_))));
    }

    #[test]
    fn without_a_minus_it_is_nothing_of_the_kind() {
        let text =
            format!("{SPLIT} tensor<fp16, [1, 2, 3, 4]> n = mul(x = b, y = fp16(-2)); {JOIN}");
        assert_eq!(of(&text), None);
    }

    #[test]
    fn the_places_of_the_elements() {
        let rotation = |style, negates| {
            let sample = Sample::new(
                "tensor<fp16, [4]> x",
                "tensor<fp16, [4]> y = relu(x = x);",
                "y",
            );
            let x = sample.value("x");
            let rotation = Rotation {
                x,
                axis: 0,
                size: 4,
                style,
                negates,
            };
            (0..4).map(|at| rotation.source(at)).collect::<Vec<_>>()
        };
        assert_eq!(
            rotation(Style::Halves, Negates::First),
            [(2, true), (3, true), (0, false), (1, false)]
        );
        assert_eq!(
            rotation(Style::Interleaved, Negates::Second),
            [(1, false), (0, true), (3, false), (2, true)]
        );
    }
}
