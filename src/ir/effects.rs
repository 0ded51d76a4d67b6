//! Which states an operation touches, and how.
//!
//! On disk a state is a value of state type: `read_state(input)` makes a tensor of it and
//! `write_state(input, data)` changes it and has no result. Any other operation that takes a state
//! is treated as a write, so that nothing moves across an operation that we do not know. An
//! operation with nested blocks touches what its blocks touch.

use super::graph::{Binding, Graph, NodeId, Operation, Slot, ValueId};
use super::types::ValueType;

/// How an operation touches a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// The value of the state is read.
    Read,
    /// The state may change.
    Write,
}

impl Graph {
    /// The states that an operation touches, each once with its strongest access.
    pub fn state_accesses(&self, op: &Operation) -> Vec<(ValueId, Access)> {
        let mut accesses = Vec::new();
        let mut add = |value: ValueId, access: Access| match accesses
            .iter_mut()
            .find(|(state, _)| *state == value)
        {
            Some((_, strongest)) => *strongest = access.max(*strongest),
            None => accesses.push((value, access)),
        };
        for argument in op.arguments() {
            for binding in &argument.bindings {
                if let Binding::Value(value) = binding
                    && self.ty(*value).is_some_and(ValueType::is_state)
                {
                    let access = match op.op_type() {
                        "read_state" => Access::Read,
                        _ => Access::Write,
                    };
                    add(*value, access);
                }
            }
        }
        for block in op.blocks() {
            for (capture, source) in block.captures() {
                if let Some(access) = block.accesses_of(ValueId::first(capture)) {
                    add(source, access);
                }
            }
        }
        accesses
    }

    /// The strongest access that this block makes to a state value; `None` if there is none or the
    /// value is not a state.
    fn accesses_of(&self, state: ValueId) -> Option<Access> {
        if !self.ty(state)?.is_state() {
            return None;
        }
        self.uses(state)
            .filter_map(|site| match site.slot {
                Slot::Argument { .. } => match self.op(site.user)?.op_type() {
                    "read_state" => Some(Access::Read),
                    _ => Some(Access::Write),
                },
                Slot::Capture { block, node } => {
                    let inner = self.op(site.user)?.blocks().get(block as usize)?;
                    inner.accesses_of(ValueId::first(node))
                }
                Slot::Output(_) => Some(Access::Write),
            })
            .max()
    }

    /// True if the operation may change a state.
    pub fn writes_state(&self, node: NodeId) -> bool {
        self.op(node).is_some_and(|op| {
            self.state_accesses(op)
                .iter()
                .any(|(_, access)| *access == Access::Write)
        })
    }
}
