//! Concats as ranges along their axis, and slices and splits that take such ranges.
//!
//! ```text
//! c = concat(values = (a, b), axis = 1, interleave = false)
//! slice_by_index(x = c, begin = [0, 4], end = [0, 6], begin_mask = [true, false], end_mask = [true, false])
//! split(x = c, num_splits = 2, axis = 1)
//! ```
//!
//! Bounds may count from the end, and masks may leave them out.

use crate::ir::{Binding, NodeId, Operation, ValueId};
use crate::pass::Block;

/// A concat with the places of its operands along its axis.
pub struct Joined {
    /// The axis along which it joins, from the front.
    pub axis: usize,
    /// Operand, begin and end.
    pub operands: Vec<(ValueId, i64, i64)>,
    /// The size of the result along the axis.
    pub total: i64,
}

impl Joined {
    /// The places of the operands of a concat; `None` if a size or the axis is not known.
    pub fn of(block: &Block<'_>, concat: &Operation) -> Option<Self> {
        let axis = block.int_of(concat, "axis")?;
        let mut operands = Vec::new();
        let mut total = 0i64;
        let mut at = None;
        for binding in &concat.argument("values")?.bindings {
            let Binding::Value(value) = binding else {
                return None;
            };
            let tensor = block.tensor(*value)?;
            let axis = normalize(axis, tensor.dims.len())?;
            let size = i64::try_from(tensor.dims.get(axis)?.size()?).ok()?;
            let end = total.checked_add(size)?;
            operands.push((*value, total, end));
            total = end;
            at = Some(axis);
        }
        Some(Self {
            axis: at?,
            operands,
            total,
        })
    }

    /// The operand that is at exactly this range, if it is not empty.
    pub fn operand(&self, begin: i64, end: i64) -> Option<ValueId> {
        self.operands
            .iter()
            .find(|(_, from, to)| (*from, *to) == (begin, end) && begin < end)
            .map(|(value, ..)| *value)
    }
}

fn normalize(axis: i64, rank: usize) -> Option<usize> {
    let axis = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(axis).ok().filter(|axis| *axis < rank)
}

/// Why a slice or split does not simply take ranges along the concat's axis.
pub type Reason = &'static str;

const UNKNOWN_BOUNDS: Reason = "its bounds are not known";
const OTHER_AXIS: Reason = "it cuts another axis than the concat's";

/// The ranges along the concat's axis that a slice or split takes, one for each result, if it takes
/// everything on all other axes.
pub fn parts(
    block: &Block<'_>,
    op: &Operation,
    node: NodeId,
    joined: &Joined,
) -> Result<Vec<(ValueId, i64, i64)>, Reason> {
    if op.op_type() != "split" {
        let (begin, end) = sliced_range(block, op, joined)?;
        return Ok(vec![(ValueId::first(node), begin, end)]);
    }
    let axis = block.int_of(op, "axis").ok_or(UNKNOWN_BOUNDS)?;
    let mut at = 0;
    let mut parts = Vec::new();
    for (index, result) in op.results().iter().enumerate() {
        let dims = result
            .ty
            .as_ref()
            .and_then(|ty| ty.as_tensor())
            .map_or(&[][..], |tensor| &tensor.dims);
        let axis = normalize(axis, dims.len()).ok_or(UNKNOWN_BOUNDS)?;
        if axis != joined.axis {
            return Err(OTHER_AXIS);
        }
        let size = dims[axis].size().and_then(|size| i64::try_from(size).ok());
        let begin = at;
        at += size.ok_or(UNKNOWN_BOUNDS)?;
        let value = ValueId {
            node,
            result: index as u32,
        };
        parts.push((value, begin, at));
    }
    Ok(parts)
}

fn sliced_range(block: &Block<'_>, op: &Operation, joined: &Joined) -> Result<(i64, i64), Reason> {
    let bools = |parameter: &str| match op.argument(parameter) {
        None => Ok(Vec::new()),
        Some(_) => block.bools_of(op, parameter).ok_or(UNKNOWN_BOUNDS),
    };
    let set = |mask: &[bool], axis: usize| mask.get(axis).copied().unwrap_or(false);
    let (begin_mask, end_mask) = (bools("begin_mask")?, bools("end_mask")?);
    if bools("squeeze_mask")?.contains(&true) {
        return Err("it drops an axis");
    }
    let strides = match op.argument("stride") {
        None => Vec::new(),
        Some(_) => block.ints_of(op, "stride").ok_or(UNKNOWN_BOUNDS)?,
    };
    if strides.iter().any(|stride| *stride != 1) {
        return Err("it has strides");
    }
    let begins = block.ints_of(op, "begin").ok_or(UNKNOWN_BOUNDS)?;
    let ends = block.ints_of(op, "end").ok_or(UNKNOWN_BOUNDS)?;
    let dims = op
        .value("x")
        .and_then(|x| block.tensor(x))
        .map_or(&[][..], |tensor| &tensor.dims);
    let mut range = Err(UNKNOWN_BOUNDS);
    for (axis, dim) in dims.iter().enumerate() {
        let joins = axis == joined.axis;
        let size = if joins {
            Some(joined.total)
        } else {
            dim.size().and_then(|size| i64::try_from(size).ok())
        };
        // A bound from the end needs the size to be known.
        let bound = |given: Option<&i64>| match (given, size) {
            (Some(given), Some(size)) if *given < 0 => Ok(given + size),
            (Some(given), _) if *given >= 0 => Ok(*given),
            _ => Err(UNKNOWN_BOUNDS),
        };
        let begin = if set(&begin_mask, axis) {
            0
        } else {
            bound(begins.get(axis))?
        };
        let end = if set(&end_mask, axis) {
            size.unwrap_or(i64::MAX)
        } else {
            bound(ends.get(axis))?
        };
        if joins {
            range = Ok((begin, end.min(joined.total)));
        } else if begin != 0 || end < size.unwrap_or(i64::MAX) {
            return Err(OTHER_AXIS);
        }
    }
    range
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::sample::Sample;

    /// The ranges that the operation `y` takes of the concat `c` of 2, 3 and 1 elements along axis 1.
    fn ranges(operation: &str) -> Result<Vec<(i64, i64)>, Reason> {
        let inputs = "tensor<fp16, [2, 2]> a, tensor<fp16, [2, 3]> b, tensor<fp16, [2, 1]> d";
        let concat = "tensor<fp16, [2, 6]> c = concat(values = (a, b, d), axis = int32(-1), \
                      interleave = bool(false));";
        let sample = Sample::new(inputs, &format!("{concat}\n{operation}"), "y");
        let block = sample.block();
        let joined = block
            .op(sample.node("c"))
            .and_then(|c| Joined::of(&block, c));
        let joined = joined.expect("a concat of known sizes");
        assert_eq!((joined.axis, joined.total), (1, 6));
        let node = sample.node("y");
        let op = block.op(node).expect("an operation");
        let found = parts(&block, op, node, &joined)?;
        Ok(found
            .into_iter()
            .map(|(_, begin, end)| (begin, end))
            .collect())
    }

    #[test]
    fn slices_and_splits_are_ranges_along_the_axis() {
        let slice = |arguments: &str, size: u64| {
            ranges(&format!(
                "tensor<fp16, [2, {size}]> y = slice_by_index(x = c, {arguments});"
            ))
        };
        let bounds = |begin: &str, end: &str| {
            format!("begin = tensor<int32, [2]>({begin}), end = tensor<int32, [2]>({end})")
        };
        assert_eq!(slice(&bounds("[0, 2]", "[2, 5]"), 3), Ok(vec![(2, 5)]));
        assert_eq!(slice(&bounds("[0, -4]", "[2, -1]"), 3), Ok(vec![(2, 5)]));
        let masked = format!(
            "{}, begin_mask = tensor<bool, [2]>([true, false]), end_mask = tensor<bool, [2]>([true, true])",
            bounds("[1, 5]", "[1, 1]")
        );
        assert_eq!(slice(&masked, 1), Ok(vec![(5, 6)]));
        let split = "tensor<fp16, [2, 2]> y, tensor<fp16, [2, 4]> z = split(x = c, \
                     split_sizes = tensor<int32, [2]>([2, 4]), axis = int32(1));";
        assert_eq!(ranges(split), Ok(vec![(0, 2), (2, 6)]));
    }

    #[test]
    fn other_cuts_have_a_reason() {
        let rows = "tensor<fp16, [1, 6]> y = slice_by_index(x = c, begin = tensor<int32, [2]>([0, 0]), \
                    end = tensor<int32, [2]>([1, 6]));";
        assert_eq!(ranges(rows), Err(OTHER_AXIS));
        let strided = "tensor<fp16, [2, 3]> y = slice_by_index(x = c, begin = tensor<int32, [2]>([0, 0]), \
                       end = tensor<int32, [2]>([2, 6]), stride = tensor<int32, [2]>([1, 2]));";
        assert_eq!(ranges(strided), Err("it has strides"));
    }
}
