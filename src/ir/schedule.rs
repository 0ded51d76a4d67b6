//! The order in which a block's operations are written.
//!
//! Kahn's algorithm with a priority queue on original positions: an unchanged graph comes out in
//! its original order, and a new operation comes out beside the one it replaced.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use petgraph::Direction;
use petgraph::visit::{EdgeRef, NodeIndexable};

use super::graph::{Edge, Graph, Node, NodeId, Position};

/// The graph has a cycle, which no block of a program may have.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the operations that make `{value}` depend on their own results (a cycle)")]
pub struct Cycle {
    /// A value on the cycle or behind it.
    pub value: String,
}

impl Graph {
    /// The operations in the order in which they are written. Kept until the graph changes.
    pub fn schedule(&self) -> Result<Arc<[NodeId]>, Cycle> {
        if let Some(order) = self.order.get() {
            return Ok(Arc::clone(order));
        }
        let order: Arc<[NodeId]> = self.find_order()?.into();
        Ok(Arc::clone(self.order.get_or_init(|| order)))
    }

    fn find_order(&self) -> Result<Vec<NodeId>, Cycle> {
        let mut waiting = vec![0u32; self.store.node_bound()];
        let mut ready: BinaryHeap<Reverse<(Position, NodeId)>> = BinaryHeap::new();
        let mut ops = 0usize;
        for index in self.store.node_indices() {
            let Node::Op(op) = &self.store[index] else {
                continue;
            };
            ops += 1;
            let count = self
                .store
                .edges_directed(index, Direction::Incoming)
                .filter(|edge| {
                    !matches!(edge.weight(), Edge::Dead)
                        && matches!(self.store[edge.source()], Node::Op(_))
                })
                .count();
            waiting[index.index()] = count as u32;
            if count == 0 {
                ready.push(Reverse((op.position, NodeId(index))));
            }
        }
        let mut order = Vec::with_capacity(ops);
        while let Some(Reverse((_, node))) = ready.pop() {
            order.push(node);
            for edge in self.store.edges_directed(node.0, Direction::Outgoing) {
                if matches!(edge.weight(), Edge::Dead) {
                    continue;
                }
                let target = edge.target();
                let Node::Op(op) = &self.store[target] else {
                    continue;
                };
                waiting[target.index()] -= 1;
                if waiting[target.index()] == 0 {
                    ready.push(Reverse((op.position, NodeId(target))));
                }
            }
        }
        if order.len() == ops {
            return Ok(order);
        }
        let value = self
            .ops()
            .filter(|(node, _)| waiting[node.index()] > 0)
            .flat_map(|(_, op)| op.results.iter().map(|result| result.name.clone()))
            .min()
            .unwrap_or_default();
        Err(Cycle { value })
    }
}
