//! The primitive changes to a graph. Each keeps arguments, edges, captures and order in step.
//!
//! Only this layer calls them: passes change a graph through the [`Rewriter`](super::Rewriter),
//! readers build one through the [`BodyBuilder`](super::BodyBuilder).

use petgraph::Direction;
use petgraph::stable_graph::EdgeIndex;
use petgraph::visit::EdgeRef;

use super::effects::Access;
use super::graph::{
    Argument, Binding, Edge, Graph, InputOrigin, NamedType, Node, NodeId, Operation, Position,
    Slot, Use, ValueId,
};
use super::types::ValueType;

impl Graph {
    pub(super) fn add_input(&mut self, named: NamedType, origin: InputOrigin) -> ValueId {
        let node = NodeId(self.store.add_node(Node::Input(named, origin)));
        self.inputs.push(node);
        ValueId::first(node)
    }

    pub(super) fn add_capture(&mut self, value: NamedType, source: ValueId) -> ValueId {
        let node = self.store.add_node(Node::Capture { value, source });
        ValueId::first(NodeId(node))
    }

    /// Adds an operation with the edges of its arguments and of its blocks' captures. Every value
    /// it is bound to must exist.
    pub(super) fn add_op(&mut self, op: Operation) -> NodeId {
        self.order.take();
        let node = NodeId(self.store.add_node(Node::Op(Box::new(op))));
        self.add_use_edges(node);
        node
    }

    /// Makes the edges that the arguments and captures of an operation stand for.
    fn add_use_edges(&mut self, node: NodeId) {
        let Some(op) = self.op(node) else { return };
        let mut edges = Vec::new();
        for (index, argument) in op.arguments.iter().enumerate() {
            for (position, binding) in argument.bindings.iter().enumerate() {
                if let Binding::Value(value) = binding {
                    let slot = Slot::Argument {
                        argument: index as u32,
                        position: position as u32,
                    };
                    edges.push((*value, slot));
                }
            }
        }
        for (block, graph) in op.blocks.iter().enumerate() {
            let mut captures: Vec<_> = graph.captures().collect();
            captures.sort_unstable();
            for (capture, source) in captures {
                let slot = Slot::Capture {
                    block: block as u32,
                    node: capture,
                };
                edges.push((source, slot));
            }
        }
        for (value, slot) in edges {
            self.add_use(value, Use { user: node, slot });
        }
    }

    fn add_use(&mut self, value: ValueId, site: Use) {
        self.order.take();
        let edge = Edge::Use {
            result: value.result,
            slot: site.slot,
        };
        self.store.add_edge(value.node.0, site.user.0, edge);
    }

    pub(super) fn add_order(&mut self, before: NodeId, after: NodeId) {
        let exists = self
            .store
            .edges_connecting(before.0, after.0)
            .any(|edge| matches!(edge.weight(), Edge::Order));
        if !exists && before != after {
            self.order.take();
            self.store.add_edge(before.0, after.0, Edge::Order);
        }
    }

    /// Joins the operations of this block that touch a state by order edges, in the order of their
    /// positions. Those that are joined already stay so.
    pub(super) fn order_accesses(&mut self, state: ValueId) {
        let mut touching: Vec<(Position, NodeId)> = self
            .uses(state)
            .filter_map(|site| Some((self.op(site.user)?.position, site.user)))
            .collect();
        touching.sort_unstable();
        touching.dedup();
        let mut write = None;
        let mut reads: Vec<NodeId> = Vec::new();
        for (_, node) in touching {
            let Some(op) = self.op(node) else { continue };
            let mut accesses = self.state_accesses(op).into_iter();
            let access = accesses.find(|(touched, _)| *touched == state);
            if let Some(write) = write {
                self.add_order(write, node);
            }
            match access {
                Some((_, Access::Write)) => {
                    for read in reads.drain(..) {
                        self.add_order(read, node);
                    }
                    write = Some(node);
                }
                _ => reads.push(node),
            }
        }
    }

    pub(super) fn set_outputs(&mut self, outputs: Vec<ValueId>) {
        let output = self.output;
        self.kill_edges(output, Direction::Incoming, |_| true);
        for (index, value) in outputs.iter().enumerate() {
            let site = Use {
                user: output,
                slot: Slot::Output(index as u32),
            };
            self.add_use(*value, site);
        }
        if let Some(Node::Return(values)) = self.store.node_weight_mut(output.0) {
            *values = outputs;
        }
    }

    /// Puts another value in the place of one output; the others stay as they are.
    pub(super) fn set_output(&mut self, index: usize, value: ValueId) {
        let output = self.output;
        let Some(old) = self.outputs().get(index).copied() else {
            return;
        };
        let slot = Slot::Output(index as u32);
        // Of the old value: it has few uses, where the return has an edge for each output.
        self.kill_edges(
            old.node,
            Direction::Outgoing,
            |edge| matches!(edge, Edge::Use { slot: own, .. } if *own == slot),
        );
        self.add_use(value, Use { user: output, slot });
        if let Some(Node::Return(values)) = self.store.node_weight_mut(output.0) {
            values[index] = value;
        }
    }

    /// Sets (or with `None` removes) the bindings of one parameter.
    pub(super) fn set_argument(
        &mut self,
        node: NodeId,
        parameter: &str,
        bindings: Option<Vec<Binding>>,
    ) {
        self.kill_edges(node, Direction::Incoming, |edge| {
            matches!(edge, Edge::Use { .. })
        });
        if let Some(op) = self.op_mut(node) {
            let at = op
                .arguments
                .binary_search_by(|argument| argument.parameter.as_str().cmp(parameter));
            match (at, bindings) {
                (Ok(index), Some(bindings)) => op.arguments[index].bindings = bindings,
                (Ok(index), None) => {
                    op.arguments.remove(index);
                }
                (Err(index), Some(bindings)) => op.arguments.insert(
                    index,
                    Argument {
                        parameter: parameter.to_owned(),
                        bindings,
                    },
                ),
                (Err(_), None) => {}
            }
        }
        self.add_use_edges(node);
    }

    /// Makes every use of `old` a use of `new`. The types must be equal; the caller checks that.
    pub(super) fn replace_uses(&mut self, old: ValueId, new: ValueId) {
        let uses: Vec<Use> = self.uses(old).collect();
        self.kill_edges(
            old.node,
            Direction::Outgoing,
            |edge| matches!(edge, Edge::Use { result, .. } if *result == old.result),
        );
        let named = self.named(new).cloned();
        for site in uses.into_iter().rev() {
            match (self.store.node_weight_mut(site.user.0), site.slot) {
                (Some(Node::Op(op)), Slot::Argument { argument, position }) => {
                    op.arguments[argument as usize].bindings[position as usize] =
                        Binding::Value(new);
                }
                (Some(Node::Return(values)), Slot::Output(index)) => {
                    values[index as usize] = new;
                }
                (Some(Node::Op(op)), Slot::Capture { block, node }) => {
                    if let Some(named) = &named {
                        op.blocks[block as usize].follow_outer(node, named, Some(new));
                    }
                }
                _ => {}
            }
            self.add_use(new, site);
        }
    }

    /// Keeps a capture equal to the outer value it stands for, here and in deeper blocks.
    fn follow_outer(&mut self, capture: NodeId, named: &NamedType, source: Option<ValueId>) {
        if let Some(Node::Capture {
            value,
            source: old_source,
        }) = self.store.node_weight_mut(capture.0)
        {
            value.clone_from(named);
            if let Some(source) = source {
                *old_source = source;
            }
        }
        self.update_inner_captures(ValueId::first(capture));
    }

    /// Tells the blocks that capture a value about its present name and type.
    fn update_inner_captures(&mut self, value: ValueId) {
        let Some(named) = self.named(value).cloned() else {
            return;
        };
        let sites: Vec<Use> = self
            .uses(value)
            .filter(|site| matches!(site.slot, Slot::Capture { .. }))
            .collect();
        for site in sites {
            if let (Some(op), Slot::Capture { block, node }) = (self.op_mut(site.user), site.slot) {
                op.blocks[block as usize].follow_outer(node, &named, None);
            }
        }
    }

    pub(super) fn rename(&mut self, value: ValueId, name: String) -> String {
        let Some(named) = self.named_mut(value) else {
            return name;
        };
        let old = std::mem::replace(&mut named.name, name);
        self.update_inner_captures(value);
        old
    }

    pub(super) fn set_type(&mut self, value: ValueId, ty: ValueType) {
        if let Some(named) = self.named_mut(value) {
            named.ty = Some(ty);
            self.update_inner_captures(value);
        }
    }

    /// Erases an operation whose results have no uses. What had to come before it still comes
    /// before what had to come after it.
    pub(super) fn erase(&mut self, node: NodeId) {
        self.order.take();
        let before = self.ordered_before(node);
        let after = self.ordered_after(node);
        for first in &before {
            for second in &after {
                self.add_order(*first, *second);
            }
        }
        self.kill_edges(node, Direction::Incoming, |_| true);
        self.kill_edges(node, Direction::Outgoing, |_| true);
        // The node itself goes when its dead edges are swept: petgraph unlinks a node's edges one
        // by one.
        self.store[node.0] = Node::Erased;
        self.sweep_if_worthwhile();
    }

    fn kill_edges(&mut self, node: NodeId, direction: Direction, matches: impl Fn(&Edge) -> bool) {
        let edges: Vec<EdgeIndex> = self
            .store
            .edges_directed(node.0, direction)
            .filter(|edge| !matches!(edge.weight(), Edge::Dead) && matches(edge.weight()))
            .map(|edge| edge.id())
            .collect();
        self.dead_edges += edges.len();
        self.order.take();
        for edge in edges {
            self.store[edge] = Edge::Dead;
        }
    }

    /// Sweeps dead edges and erased nodes when they are about half of the graph, so that the cost
    /// per erased edge is constant.
    fn sweep_if_worthwhile(&mut self) {
        if self.dead_edges > 256 && self.dead_edges * 2 > self.store.edge_count() {
            self.sweep();
        }
    }

    /// Removes dead edges and erased nodes; the other nodes keep their ids.
    pub(super) fn sweep(&mut self) {
        let store = std::mem::take(&mut self.store);
        self.store = store.filter_map_owned(
            |_, node| (!matches!(node, Node::Erased)).then_some(node),
            |_, edge| (!matches!(edge, Edge::Dead)).then_some(edge),
        );
        self.dead_edges = 0;
    }

    pub(super) fn op_mut(&mut self, node: NodeId) -> Option<&mut Operation> {
        match self.store.node_weight_mut(node.0)? {
            Node::Op(op) => Some(op),
            _ => None,
        }
    }

    fn named_mut(&mut self, value: ValueId) -> Option<&mut NamedType> {
        match self.store.node_weight_mut(value.node.0)? {
            Node::Input(named, _) | Node::Capture { value: named, .. } => {
                (value.result == 0).then_some(named)
            }
            Node::Op(op) => op.results.get_mut(value.result as usize),
            Node::Return(_) | Node::Erased => None,
        }
    }

    /// Takes a nested block out of its operation, so that it can be changed while this graph is
    /// read. It must be given back with [`Graph::return_block`].
    pub fn take_block(&mut self, node: NodeId, block: usize) -> Option<Graph> {
        let slot = self.op_mut(node)?.blocks.get_mut(block)?;
        Some(std::mem::take(slot))
    }

    /// Gives back a nested block; captures that nothing uses any more are dropped.
    pub fn return_block(&mut self, node: NodeId, block: usize, mut graph: Graph) {
        let unused: Vec<NodeId> = graph
            .captures()
            .map(|(capture, _)| capture)
            .filter(|capture| !graph.is_used(*capture))
            .collect();
        for capture in unused {
            graph.erase(capture);
            self.kill_edges(node, Direction::Incoming, |edge| {
                matches!(edge, Edge::Use { slot: Slot::Capture { block: b, node: n }, .. }
                    if *b as usize == block && *n == capture)
            });
        }
        if let Some(op) = self.op_mut(node)
            && let Some(slot) = op.blocks.get_mut(block)
        {
            *slot = graph;
        }
        self.sweep_if_worthwhile();
    }
}
