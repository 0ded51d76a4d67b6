//! Checks what must hold of every graph, whatever its operations mean.
//!
//! Invariants:
//! - every value has a name, and no two values that are visible in one place share one;
//! - every binding, output and capture names a value that exists;
//! - the edges are exactly the uses that bindings, outputs and captures stand for;
//! - a capture has the name and type of the value it stands for;
//! - every operation has a place in the order: there is no cycle;
//! - any two operations that touch one state, one of them writing, are ordered;
//! - a body's first inputs are the function's inputs, with their names and types.
//!
//! What depends on the meaning of operations (opset, parameters, const-ness, types) is checked by
//! [`crate::ops`], what depends on the model's description by the layer above.

use std::collections::{HashMap, HashSet};

use super::effects::Access;
use super::graph::{Binding, Edge, Graph, InputOrigin, Node, NodeId, Slot, ValueId};
use super::program::{Function, Program};

/// An invariant that does not hold.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("function `{function}`: {what}")]
pub struct Violation {
    /// The function.
    pub function: String,
    /// What is wrong, and where.
    pub what: String,
}

/// Checks a whole program; gives the first violation.
pub fn verify(program: &Program) -> Result<(), Violation> {
    for (name, function) in &program.functions {
        verify_function(function).map_err(|what| Violation {
            function: name.clone(),
            what,
        })?;
    }
    Ok(())
}

fn verify_function(function: &Function) -> Result<(), String> {
    for (opset, body) in &function.specializations {
        let declared: Vec<_> = body
            .graph
            .inputs()
            .iter()
            .filter_map(|node| match body.graph.node(*node) {
                Some(Node::Input(named, InputOrigin::Function)) => Some(named),
                _ => None,
            })
            .collect();
        if !declared.iter().copied().eq(function.inputs.iter()) {
            return Err(format!(
                "the inputs of the {opset} body are not the function's"
            ));
        }
        verify_graph(&body.graph, &mut HashSet::new())?;
    }
    Ok(())
}

/// Checks one graph and those nested in it; `outer` holds the names that are visible around it.
fn verify_graph<'a>(graph: &'a Graph, outer: &mut HashSet<&'a str>) -> Result<(), String> {
    let mut added = Vec::new();
    for (_, node) in graph.nodes() {
        let named = match node {
            Node::Input(named, _) => std::slice::from_ref(named),
            Node::Op(op) => op.results(),
            Node::Capture { .. } | Node::Return(_) | Node::Erased => &[],
        };
        for value in named {
            if value.name.is_empty() {
                return Err("a value has an empty name".to_owned());
            }
            if !outer.insert(&value.name) {
                return Err(format!("`{}` is defined twice", value.name));
            }
            added.push(value.name.as_str());
        }
    }
    verify_edges(graph)?;
    let order = graph.schedule().map_err(|cycle| cycle.to_string())?;
    verify_state_order(graph, &order)?;
    for (_, op) in graph.ops() {
        for block in op.blocks() {
            for (capture, source) in block.captures() {
                let inner = block.named(ValueId::first(capture));
                if inner.is_none() || inner != graph.named(source) {
                    return Err(format!(
                        "a block of `{}` captures a value that is not what it says",
                        op.name().unwrap_or(op.op_type())
                    ));
                }
            }
            verify_graph(block, outer)?;
        }
    }
    for name in added {
        outer.remove(name);
    }
    Ok(())
}

/// The edges must be the uses, no more and no less.
fn verify_edges(graph: &Graph) -> Result<(), String> {
    let mut expected: Vec<(NodeId, NodeId, u32, Slot)> = Vec::new();
    let mut expect = |value: ValueId, user: NodeId, slot: Slot, what: &dyn Fn() -> String| {
        if graph.named(value).is_none() {
            return Err(format!("{} uses a value that does not exist", what()));
        }
        expected.push((value.node, user, value.result, slot));
        Ok(())
    };
    for (id, node) in graph.nodes() {
        match node {
            Node::Op(op) => {
                let what = || format!("`{}`", op.name().unwrap_or(op.op_type()));
                for (index, argument) in op.arguments().iter().enumerate() {
                    for (position, binding) in argument.bindings.iter().enumerate() {
                        if let Binding::Value(value) = binding {
                            let slot = Slot::Argument {
                                argument: index as u32,
                                position: position as u32,
                            };
                            expect(*value, id, slot, &what)?;
                        }
                    }
                }
                for (index, block) in op.blocks().iter().enumerate() {
                    for (capture, source) in block.captures() {
                        let slot = Slot::Capture {
                            block: index as u32,
                            node: capture,
                        };
                        expect(source, id, slot, &what)?;
                    }
                }
            }
            Node::Return(values) => {
                for (index, value) in values.iter().enumerate() {
                    expect(*value, id, Slot::Output(index as u32), &|| {
                        "the block's return".to_owned()
                    })?;
                }
            }
            Node::Input(..) | Node::Capture { .. } | Node::Erased => {}
        }
    }
    let mut found: Vec<_> = graph
        .store
        .edge_indices()
        .filter_map(|edge| {
            let (from, to) = graph.store.edge_endpoints(edge)?;
            match graph.store[edge] {
                Edge::Use { result, slot } => Some((NodeId(from), NodeId(to), result, slot)),
                Edge::Order | Edge::Dead => None,
            }
        })
        .collect();
    found.sort_unstable();
    expected.sort_unstable();
    if found == expected {
        Ok(())
    } else {
        Err("the graph's edges disagree with the operations' arguments".to_owned())
    }
}

/// Between two accesses of one state, one of them a write, there must be a path of order edges.
/// It is enough that each access is ordered after the last write, and each write after the reads
/// since then.
fn verify_state_order(graph: &Graph, order: &[NodeId]) -> Result<(), String> {
    let mut last: HashMap<ValueId, (Option<NodeId>, Vec<NodeId>)> = HashMap::new();
    for node in order {
        let Some(op) = graph.op(*node) else { continue };
        for (state, access) in graph.state_accesses(op) {
            let (write, reads) = last.entry(state).or_default();
            let mut needed: Vec<NodeId> = write.iter().copied().collect();
            if access == Access::Write {
                needed.append(reads);
            }
            for before in needed {
                if !is_ordered(graph, before, *node) {
                    return Err(format!(
                        "`{}` touches the state `{}` in no fixed order with another operation",
                        op.name().unwrap_or(op.op_type()),
                        graph.name(state)
                    ));
                }
            }
            match access {
                Access::Read => reads.push(*node),
                Access::Write => *write = Some(*node),
            }
        }
    }
    Ok(())
}

/// True if an order edge, or a path of edges of any kind, leads from one operation to the other.
fn is_ordered(graph: &Graph, before: NodeId, after: NodeId) -> bool {
    if graph.ordered_before(after).contains(&before) {
        return true;
    }
    let live = petgraph::visit::EdgeFiltered::from_fn(&graph.store, |edge| {
        !matches!(edge.weight(), Edge::Dead)
    });
    petgraph::algo::has_path_connecting(&live, before.0, after.0, None)
}
