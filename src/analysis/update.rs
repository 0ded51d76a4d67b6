//! Updates: which part of a tensor a `slice_update` replaces, and where the result goes.
//!
//! ```text
//! new = slice_update(x, update, begin, end)    the axes along which `update` is shorter than `x`
//! write_state(s, new)                          the state that it reaches, also behind more updates,
//!                                              casts, changes of layout, `concat` and sums
//! ```

use std::collections::HashSet;

use crate::ir::{Graph, Operation, Slot, ValueId};
use crate::pass::Block;

/// Uses that are looked at on the way to a state, at most.
const MAX_STEPS: usize = 64;

/// How much of an axis an update replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The axis of the tensor that is updated.
    pub axis: usize,
    /// Elements of the update; `None` if they are known at run time only.
    pub size: Option<u64>,
    /// Elements of the tensor.
    pub whole: u64,
}

/// The axes of which a `slice_update` replaces a part only. None if the shapes cannot be told.
pub fn extents(block: &Block<'_>, op: &Operation) -> Vec<Extent> {
    let shape = |parameter: &str| {
        let dims = &block.tensor(op.value(parameter)?)?.dims;
        Some(dims.iter().map(|dim| dim.size()).collect::<Vec<_>>())
    };
    let (Some(whole), Some(mut update)) = (shape("x"), shape("update")) else {
        return Vec::new();
    };
    if update.len() < whole.len() {
        let squeezed = block.bools_of(op, "squeeze_mask").unwrap_or_default();
        for (axis, _) in squeezed.iter().enumerate().filter(|(_, is)| **is) {
            update.insert(axis.min(update.len()), Some(1));
        }
    }
    if update.len() != whole.len() {
        return Vec::new();
    }
    let axes = whole.into_iter().zip(update).enumerate();
    axes.filter_map(|(axis, (whole, size))| {
        let whole = whole?;
        (size != Some(whole)).then_some(Extent { axis, size, whole })
    })
    .collect()
}

/// Where a value goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// A state that it, or what is made of it, is written to.
    State(ValueId),
    /// No state.
    NoState,
    /// A nested block, or further than is looked.
    Unknown,
}

/// The state that a value is written to, behind updates, casts, changes of layout, `concat` and sums.
pub fn goal(block: &Block<'_>, value: ValueId) -> Goal {
    let graph = block.graph;
    let mut waiting = vec![value];
    let mut seen = HashSet::from([value]);
    let mut steps = 0;
    let mut is_known = true;
    while let Some(value) = waiting.pop() {
        for site in graph.uses(value) {
            steps += 1;
            if steps > MAX_STEPS {
                return Goal::Unknown;
            }
            match site.slot {
                Slot::Argument { .. } => {}
                Slot::Output(_) if block.outer.is_none() => continue,
                Slot::Output(_) | Slot::Capture { .. } => {
                    is_known = false;
                    continue;
                }
            }
            let Some(op) = graph.op(site.user) else {
                continue;
            };
            match op.op_type() {
                "write_state" => {
                    if let Some(state) = op.value("input") {
                        return Goal::State(state);
                    }
                }
                "slice_update" | "cast" | "reshape" | "transpose" | "expand_dims" | "squeeze"
                | "identity" | "concat" | "stack" | "add" | "mul" | "select" => {
                    let result = ValueId::first(site.user);
                    if seen.insert(result) {
                        waiting.push(result);
                    }
                }
                _ => {}
            }
        }
    }
    if is_known {
        Goal::NoState
    } else {
        Goal::Unknown
    }
}

/// The state that a value is a part or another layout of, and through how many operations; `None` if it
/// is something else.
pub fn read_from(graph: &Graph, value: ValueId) -> Option<(ValueId, usize)> {
    let mut value = value;
    for steps in 0..MAX_STEPS {
        let op = graph.producer(value)?;
        match op.op_type() {
            "read_state" => return Some((op.value("input")?, steps)),
            "slice_by_index" | "slice_by_size" | "reshape" | "transpose" | "expand_dims"
            | "squeeze" | "identity" | "cast" | "split" => value = op.value("x")?,
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests;
