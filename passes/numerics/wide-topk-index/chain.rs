//! Integers that a cast narrows to 16 bits on the way, and another widens again.

use std::collections::BTreeMap;

use super::{index_of, largest, last_index};
use crate::ir::{Binding, DType, NodeId, Operation, ValueId};
use crate::pass::{Attempt, Block};

/// How many operations may stand between the casts.
const MAX_DEPTH: usize = 8;

/// Operations that move elements of `x` and compute nothing.
const MOVES: [&str; 11] = [
    "identity",
    "squeeze",
    "expand_dims",
    "reshape",
    "transpose",
    "slice_by_index",
    "slice_by_size",
    "tile",
    "gather",
    "gather_along_axis",
    "gather_nd",
];

/// What is wrong with a cast that narrows an index, if something reads it in the narrow type. (If
/// nothing does, [`widen`] finds it where it is made wide again.)
pub(super) fn narrowed(block: &Block<'_>, op: &Operation, node: NodeId) -> Option<String> {
    let result = ValueId::first(node);
    let dtype = block.dtype(result)?;
    let largest = largest(dtype).filter(|_| dtype != DType::Int32)?;
    let last = last_of(block, op.value("x")?)?;
    let is_read = block.graph.uses(result).any(|user| {
        let reader = block.op(user.user).map(Operation::op_type);
        !reader.is_some_and(|reader| reader == "cast" || MOVES.contains(&reader))
    });
    (is_read && last > largest)
        .then(|| format!("indices up to {last} become {dtype}, which ends at {largest}"))
}

/// `cast(…(cast(x, int16)), int32)`: the same without the casts. Also says what is wrong with it.
pub(super) fn widen(block: &Block<'_>, op: &Operation, node: NodeId) -> Option<(String, Attempt)> {
    let result = ValueId::first(node);
    let is = |value: ValueId, dtype: DType| block.dtype(value) == Some(dtype);
    let mut value = op.value("x").filter(|_| is(result, DType::Int32))?;
    let narrow = block.dtype(value)?;
    if !matches!(
        narrow,
        DType::Int16 | DType::UInt16 | DType::Int8 | DType::UInt8
    ) {
        return None;
    }
    // From the last one to the first.
    let mut moves = Vec::new();
    let source = loop {
        let inner = block.op(value.node).filter(|_| moves.len() <= MAX_DEPTH)?;
        let x = inner.value("x").filter(|_| value.result == 0)?;
        match inner.op_type() {
            "cast" if is(x, DType::Int32) => break x,
            op_type if MOVES.contains(&op_type) && is(x, narrow) => moves.push(value.node),
            _ => return None,
        }
        value = x;
    };
    let gathers = moves.iter().any(|node| {
        let op = block.op(*node);
        op.is_some_and(|op| op.op_type().starts_with("gather"))
    });
    let (found, what) = match (last_of(block, source), largest(narrow)) {
        (Some(last), Some(largest)) if last > largest => (
            format!("indices up to {last} went through {narrow}, which ends at {largest}"),
            format!("indices up to {last} stay int32, not {narrow} for a while"),
        ),
        (None, Some(_)) if gathers && block.constant(source).is_none() => (
            format!("int32 numbers went through {narrow} to be gathered"),
            format!("numbers that are gathered stay int32, not {narrow} for a while"),
        ),
        _ => return None,
    };
    let mut steps = Vec::new();
    for node in moves.iter().rev() {
        let op = block.op(*node)?;
        // Only what moves is widened; indices of another gather stay.
        let reads_twice = op.arguments().iter().any(|argument| {
            argument.parameter != "x"
                && argument.bindings.iter().any(|binding| {
                    matches!(binding, Binding::Value(other) if Some(*other) == op.value("x"))
                })
        });
        if reads_twice {
            let attempt = Attempt::missed(*node, "it reads the narrow numbers twice");
            return Some((found, attempt));
        }
        let arguments: BTreeMap<String, Vec<Binding>> = op
            .arguments()
            .iter()
            .map(|argument| (argument.parameter.clone(), argument.bindings.clone()))
            .collect();
        steps.push((op.op_type().to_owned(), arguments));
    }
    let ty = block.graph.ty(result).cloned()?;
    let attempt = Attempt::matched(what, move |edit| {
        let mut new = source;
        for (op_type, mut arguments) in steps {
            arguments.insert("x".to_owned(), vec![Binding::Value(new)]);
            new = ValueId::first(edit.variadic_op(&op_type, arguments)?);
        }
        if new != source {
            edit.retype(new, ty);
        }
        edit.replace(result, new)
    });
    Some((found, attempt))
}

/// The largest number that a value can have, if it is an index along an axis of known length or a size.
fn last_of(block: &Block<'_>, mut value: ValueId) -> Option<u64> {
    for _ in 0..MAX_DEPTH {
        let op = block.op(value.node)?;
        if let Some((result, _)) = index_of(op.op_type()) {
            return last_index(block, op).filter(|_| value.result == result);
        }
        match op.op_type() {
            // Sizes that are not known are taken to be small, as those who narrow them do.
            "shape" => {
                let sizes = &block.tensor(op.value("x")?)?.dims;
                return sizes.iter().map(|dim| dim.size().unwrap_or(0)).max();
            }
            op_type if MOVES.contains(&op_type) && value.result == 0 => value = op.value("x")?,
            _ => return None,
        }
    }
    None
}
