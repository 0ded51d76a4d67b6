//! Makes the changes of a plan.

use std::collections::BTreeMap;

use crate::analysis::weight;
use crate::ir::{Binding, ValueId};
use crate::pass::{Edit, EditError, WholeEdit, WholeError};

use super::plan::{Change, Plan, Slot};

/// What was made so far in one body.
#[derive(Default)]
struct Made {
    /// New constants, by the old one and the bits of the factor.
    constants: BTreeMap<(ValueId, u64), Binding>,
    /// α, by the word for its type.
    alphas: BTreeMap<String, Binding>,
}

/// Changes one body.
pub(super) fn apply(
    edit: &mut WholeEdit<'_>,
    function: &str,
    opset: &str,
    plan: Plan,
    alpha: f64,
) -> Result<(), WholeError> {
    let mut made = Made::default();
    for change in plan.changes {
        match change {
            Change::Constant { slots, factor } => {
                let Some(first) = slots.first() else { continue };
                let graph = &edit.body(function, opset)?.graph;
                let anchor = match operand(graph, first) {
                    Some(Binding::Value(value)) => value.node,
                    _ => first.node,
                };
                edit.at(function, opset, anchor, |edit| {
                    constant(edit, &mut made, &slots, factor)
                })?;
            }
            Change::Number {
                slot,
                dtype,
                number,
            } => edit.at(function, opset, slot.node, |edit| {
                let number = edit.scalar(dtype, number)?;
                put(edit, &slot, number);
                Ok(())
            })?,
            Change::Value { slot, value } => edit.at(function, opset, slot.node, |edit| {
                put(edit, &slot, Binding::Value(value));
                Ok(())
            })?,
            Change::Product { value, slots } => edit.at(function, opset, value.node, |edit| {
                product(edit, &mut made, value, &slots, alpha)
            })?,
        }
    }
    Ok(())
}

fn operand(graph: &crate::ir::Graph, slot: &Slot) -> Option<Binding> {
    let argument = graph.op(slot.node)?.argument(&slot.parameter)?;
    argument.bindings.get(slot.index).cloned()
}

/// Puts a binding into an operand.
fn put(edit: &mut Edit<'_>, slot: &Slot, binding: Binding) {
    let argument = edit
        .graph()
        .op(slot.node)
        .and_then(|op| op.argument(&slot.parameter));
    let mut bindings = argument.map_or_else(Vec::new, |argument| argument.bindings.clone());
    match bindings.get_mut(slot.index) {
        Some(old) => *old = binding,
        None => bindings.push(binding),
    }
    edit.bind(slot.node, &slot.parameter, Some(bindings));
}

/// Lets operands read a constant times a factor. One that nothing else reads keeps its name.
fn constant(
    edit: &mut Edit<'_>,
    made: &mut Made,
    slots: &[Slot],
    factor: f64,
) -> Result<(), EditError> {
    let Some(old) = slots.first().and_then(|slot| operand(edit.graph(), slot)) else {
        return Err(EditError::Unreadable);
    };
    let known = match &old {
        Binding::Value(value) => Some((*value, factor.to_bits())),
        _ => None,
    };
    let new = match known.and_then(|key| made.constants.get(&key)) {
        Some(new) => new.clone(),
        None => weight::scaled(edit, &old, factor)?,
    };
    if let (Binding::Value(before), Binding::Value(after)) = (&old, &new)
        && edit.graph().uses(*before).count() == slots.len()
        && !made.constants.contains_key(&(*before, factor.to_bits()))
    {
        return edit.replace(*before, *after);
    }
    if let Some(key) = known {
        made.constants.insert(key, new.clone());
    }
    for slot in slots {
        put(edit, slot, new.clone());
    }
    Ok(())
}

/// Lets operands read a value times α.
fn product(
    edit: &mut Edit<'_>,
    made: &mut Made,
    value: ValueId,
    slots: &[Slot],
    alpha: f64,
) -> Result<(), EditError> {
    let dtype = edit.block().dtype(value);
    let dtype = dtype.ok_or_else(|| EditError::NoRule("mul".to_owned()))?;
    let factor = if let Some(factor) = made.alphas.get(dtype.word().as_str()) {
        factor.clone()
    } else {
        let factor = edit.scalar(dtype, alpha)?;
        made.alphas.insert(dtype.word(), factor.clone());
        factor
    };
    let product = edit.op("mul", &[("x", Binding::Value(value)), ("y", factor)])?;
    for slot in slots {
        put(edit, slot, Binding::Value(product));
    }
    Ok(())
}
