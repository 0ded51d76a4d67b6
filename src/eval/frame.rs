//! The values of a block while it runs: each is dropped after its last use.

use std::sync::Arc;

use crate::ir::{Binding, Graph, Node, NodeId, Operation, ValueId};
use crate::ops::Datum;
use crate::tensor::Tensor;

/// The values of a block that is being run, by node.
pub(super) struct Frame {
    values: Vec<Vec<Option<Datum>>>,
    /// How many uses of each value are still to come.
    remaining: Vec<Vec<u32>>,
}

impl Frame {
    pub(super) fn new(graph: &Graph) -> Self {
        let mut remaining: Vec<Vec<u32>> = vec![Vec::new(); graph.bound()];
        for (node, kind) in graph.nodes() {
            let results = match kind {
                Node::Op(op) => op.results().len(),
                Node::Input(..) | Node::Capture { .. } => 1,
                Node::Return(_) | Node::Erased => 0,
            };
            remaining[node.index()] = (0..results as u32)
                .map(|result| graph.uses(ValueId { node, result }).count() as u32)
                .collect();
        }
        Self {
            values: vec![Vec::new(); graph.bound()],
            remaining,
        }
    }

    pub(super) fn set(&mut self, node: NodeId, results: Vec<Datum>) {
        let values = results.into_iter().map(Some).collect();
        self.values[node.index()] = values;
    }

    pub(super) fn get(&self, value: ValueId) -> Option<&Datum> {
        self.values
            .get(value.node.index())?
            .get(value.result as usize)?
            .as_ref()
    }

    /// Drops the operands of an op that nothing else needs, and those of its results that nothing
    /// needs; gives the bytes that this frees.
    pub(super) fn release(&mut self, node: NodeId, op: &Operation) -> u64 {
        let mut freed = 0;
        for result in 0..op.results().len() as u32 {
            freed += self.drop_if_done(ValueId { node, result });
        }
        let bound = op
            .arguments()
            .iter()
            .flat_map(|argument| &argument.bindings);
        for binding in bound {
            if let Binding::Value(value) = binding {
                freed += self.used(*value);
            }
        }
        for block in op.blocks() {
            for (_, source) in block.captures() {
                freed += self.used(source);
            }
        }
        freed
    }

    fn used(&mut self, value: ValueId) -> u64 {
        if let Some(count) = self
            .remaining
            .get_mut(value.node.index())
            .and_then(|counts| counts.get_mut(value.result as usize))
        {
            *count = count.saturating_sub(1);
        }
        self.drop_if_done(value)
    }

    fn drop_if_done(&mut self, value: ValueId) -> u64 {
        let index = value.node.index();
        let done = self
            .remaining
            .get(index)
            .and_then(|counts| counts.get(value.result as usize))
            == Some(&0);
        let slot = self
            .values
            .get_mut(index)
            .and_then(|values| values.get_mut(value.result as usize));
        match slot {
            Some(slot) if done => slot.take().as_ref().map_or(0, bytes),
            _ => 0,
        }
    }
}

/// Bytes that go when this value goes.
pub(super) fn bytes(datum: &Datum) -> u64 {
    match datum {
        Datum::Tensor(tensor) => tensor.owned_bytes(),
        Datum::List(items) if Arc::strong_count(items) == 1 => {
            items.iter().flatten().map(Tensor::owned_bytes).sum()
        }
        _ => 0,
    }
}
