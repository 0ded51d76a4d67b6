//! Which operations return one of their operands unchanged.

use crate::ir::{Binding, Dim, NodeId, Operation, TensorType, ValueId};
use crate::pass::Block;

/// The operand that the operation returns unchanged, and why it does.
pub(super) fn find(
    block: &Block<'_>,
    op: &Operation,
    node: NodeId,
) -> Option<(ValueId, &'static str)> {
    let result = ValueId::first(node);
    match op.op_type() {
        "identity" => Some((op.value("x")?, "`identity`")),
        "cast" => same_type(block, op, result, "cast to its own type"),
        "reshape" => {
            let found = same_type(block, op, result, "reshape to its own shape")?;
            at_most_one_unknown(block.tensor(result)?).then_some(found)
        }
        "transpose" => identity_transpose(block, op).or_else(|| cancelling_transpose(block, op)),
        "slice_by_index" => full_slice(block, op, result),
        "pad" => {
            let pad = block.ints_of(op, "pad")?;
            let zero = pad.iter().all(|amount| *amount == 0);
            zero.then_some((op.value("x")?, "pads by nothing"))
        }
        "split" => (op.results().len() == 1).then_some((op.value("x")?, "splits into one part")),
        "concat" => one_way_concat(op).or_else(|| reassembling_concat(block, op)),
        "mul" => multiplied_by_one(block, op),
        _ => None,
    }
}

fn same_type(
    block: &Block<'_>,
    op: &Operation,
    result: ValueId,
    why: &'static str,
) -> Option<(ValueId, &'static str)> {
    let x = op.value("x")?;
    (block.tensor(x)? == block.tensor(result)?).then_some((x, why))
}

/// With one unknown size the equal product of all sizes fixes it; with two it does not. A known
/// size of zero leaves even one open.
fn at_most_one_unknown(tensor: &TensorType) -> bool {
    let unknown = tensor
        .dims
        .iter()
        .filter(|dim| !matches!(dim, Dim::Known(_)))
        .count();
    let variadic = tensor
        .dims
        .iter()
        .any(|dim| matches!(dim, Dim::Unknown { variadic: true } | Dim::Unspecified));
    !variadic
        && tensor.rank == tensor.dims.len() as i64
        && (unknown == 0 || unknown == 1 && !tensor.dims.contains(&Dim::Known(0)))
}

fn permutation(block: &Block<'_>, op: &Operation) -> Option<Vec<usize>> {
    let perm = block.ints_of(op, "perm")?;
    let rank = perm.len() as i64;
    perm.iter()
        .map(|axis| {
            let axis = if *axis < 0 { *axis + rank } else { *axis };
            usize::try_from(axis).ok().filter(|axis| *axis < perm.len())
        })
        .collect()
}

fn identity_transpose(block: &Block<'_>, op: &Operation) -> Option<(ValueId, &'static str)> {
    let perm = permutation(block, op)?;
    let identity = perm.iter().enumerate().all(|(index, axis)| index == *axis);
    identity.then_some((op.value("x")?, "transpose that moves nothing"))
}

fn cancelling_transpose(block: &Block<'_>, op: &Operation) -> Option<(ValueId, &'static str)> {
    let inner = block.producer_of_type(op.value("x")?, "transpose")?;
    let (outer_perm, inner_perm) = (permutation(block, op)?, permutation(block, inner)?);
    let cancels = outer_perm.len() == inner_perm.len()
        && outer_perm
            .iter()
            .enumerate()
            .all(|(index, axis)| inner_perm[*axis] == index);
    cancels.then_some((inner.value("x")?, "transpose that undoes the one before"))
}

/// A slice with unit strides and no squeezing is full if no size changed, or, where a size is
/// unknown, if both bounds are ignored (or the begin is 0).
fn full_slice(
    block: &Block<'_>,
    op: &Operation,
    result: ValueId,
) -> Option<(ValueId, &'static str)> {
    let (x, why) = same_type(block, op, result, "slice of everything")?;
    let ones = |strides: Vec<i64>| strides.iter().all(|stride| *stride == 1);
    let none = |masks: Vec<bool>| masks.iter().all(|mask| !mask);
    if op.argument("stride").is_some() && !ones(block.ints_of(op, "stride")?) {
        return None;
    }
    if op.argument("squeeze_mask").is_some() && !none(block.bools_of(op, "squeeze_mask")?) {
        return None;
    }
    let mask = |parameter: &str| match op.argument(parameter) {
        None => Some(Vec::new()),
        Some(_) => block.bools_of(op, parameter),
    };
    let (begin_mask, end_mask) = (mask("begin_mask")?, mask("end_mask")?);
    let begin = block.ints_of(op, "begin");
    let full = block.tensor(x)?.dims.iter().enumerate().all(|(axis, dim)| {
        let begins = begin_mask.get(axis) == Some(&true)
            || begin.as_ref().and_then(|begin| begin.get(axis)) == Some(&0);
        let ends = end_mask.get(axis) == Some(&true);
        matches!(dim, Dim::Known(size) if *size > 0) || begins && ends
    });
    full.then_some((x, why))
}

fn one_way_concat(op: &Operation) -> Option<(ValueId, &'static str)> {
    match op.argument("values")?.bindings.as_slice() {
        [Binding::Value(value)] => Some((*value, "concat of one value")),
        _ => None,
    }
}

/// A concat of all parts of one split in their order along the same axis.
fn reassembling_concat(block: &Block<'_>, op: &Operation) -> Option<(ValueId, &'static str)> {
    if block.bool_or(op, "interleave", false)? {
        return None;
    }
    let bindings = &op.argument("values")?.bindings;
    let Binding::Value(first) = bindings.first()? else {
        return None;
    };
    let split = block.producer_of_type(*first, "split")?;
    let all = bindings.len() == split.results().len()
        && bindings.iter().enumerate().all(|(index, binding)| {
            *binding
                == Binding::Value(ValueId {
                    node: first.node,
                    result: index as u32,
                })
        });
    let x = split.value("x")?;
    let rank = block.tensor(x)?.rank;
    let axis = |op| {
        block
            .int_of(op, "axis")
            .map(|a| if a < 0 { a + rank } else { a })
    };
    (all && axis(op)? == axis(split)?).then_some((x, "split and put together again"))
}

fn multiplied_by_one(block: &Block<'_>, op: &Operation) -> Option<(ValueId, &'static str)> {
    let one = |parameter| {
        block
            .uniform_of(op, parameter)
            .is_some_and(|u| u.value == 1.0)
    };
    let result = op.results().first()?;
    [("x", "y"), ("y", "x")]
        .into_iter()
        .find_map(|(factor, other)| {
            let value = op.value(other)?;
            let same = block.graph.ty(value) == result.ty.as_ref();
            (one(factor) && same).then_some((value, "multiplication by 1"))
        })
}
