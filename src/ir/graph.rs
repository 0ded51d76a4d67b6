//! The graph of one block: its nodes, its edges, and the questions one may ask of them.
//!
//! The store is a `petgraph` stable graph that no other module can reach. A node is an input, an
//! operation (consts are operations), a value captured from the enclosing block, or the block's
//! return. An edge is a use (which result of the producer, which slot of the consumer) or an
//! order edge between two operations that touch the same state.
//!
//! Edges are the only use lists. An argument repeats the producer's id so that an operand is found
//! in constant time; every change goes through `edit.rs`, which keeps both in step, and the
//! verifier compares them.
//!
//! An erased edge is first marked dead and later swept with all others at once: unlinking one edge
//! costs petgraph time in the number of edges at both ends, which is quadratic for a const with
//! many users.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use petgraph::Direction;
use petgraph::stable_graph::{NodeIndex, StableDiGraph};
use petgraph::visit::EdgeRef;

use super::attributes::Attributes;
use super::types::ValueType;
use super::value::Value;

/// A node of one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub(super) NodeIndex);

impl NodeId {
    /// A dense number below [`Graph::bound`], for side tables.
    pub fn index(self) -> usize {
        self.0.index()
    }
}

/// A value: one result of a node. Inputs and captures have one result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId {
    /// The node that makes the value.
    pub node: NodeId,
    /// Which of its results.
    pub result: u32,
}

impl ValueId {
    /// The first (often only) result of a node.
    pub fn first(node: NodeId) -> Self {
        Self { node, result: 0 }
    }
}

/// Where an input is declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputOrigin {
    /// By the function that owns the block.
    Function,
    /// By the block itself (`while_loop` blocks).
    Block,
}

/// A named, typed value.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedType {
    /// The value's name.
    pub name: String,
    /// The declared type; `None` if the message has none.
    pub ty: Option<ValueType>,
}

/// What an argument is bound to.
#[derive(Clone, Debug, PartialEq)]
pub enum Binding {
    /// A value of this graph.
    Value(ValueId),
    /// A literal written in place.
    Immediate(Value),
    /// A binding message with neither.
    Absent,
}

/// A named input of an operation with its bindings; several for a variadic parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Argument {
    /// Name of the parameter.
    pub parameter: String,
    /// What is bound, in order.
    pub bindings: Vec<Binding>,
}

/// Place of an operation in the block's text: that of the operation it came from or replaced, then
/// the order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) origin: u32,
    pub(super) step: u32,
}

/// An operation.
#[derive(Clone, Debug)]
pub struct Operation {
    pub(super) op_type: String,
    /// Sorted by parameter name.
    pub(super) arguments: Vec<Argument>,
    pub(super) results: Vec<NamedType>,
    pub(super) blocks: Vec<Graph>,
    pub(super) attributes: Attributes,
    pub(super) position: Position,
    pub(super) made_by: Option<&'static str>,
}

impl Operation {
    /// The operation's type, such as `add` or `const`.
    pub fn op_type(&self) -> &str {
        &self.op_type
    }

    /// The arguments, sorted by parameter name.
    pub fn arguments(&self) -> &[Argument] {
        &self.arguments
    }

    /// The argument of a parameter, if it is given.
    pub fn argument(&self, parameter: &str) -> Option<&Argument> {
        self.arguments
            .iter()
            .find(|argument| argument.parameter == parameter)
    }

    /// The only binding of a parameter; `None` if it is not given or variadic with several.
    pub fn binding(&self, parameter: &str) -> Option<&Binding> {
        match self.argument(parameter)?.bindings.as_slice() {
            [binding] => Some(binding),
            _ => None,
        }
    }

    /// The value bound to a parameter, if exactly one value is.
    pub fn value(&self, parameter: &str) -> Option<ValueId> {
        match self.binding(parameter)? {
            Binding::Value(value) => Some(*value),
            _ => None,
        }
    }

    /// The values that it reads, but for those that its blocks capture.
    pub fn operands(&self) -> impl Iterator<Item = ValueId> + '_ {
        let arguments = self.arguments.iter();
        let bindings = arguments.flat_map(|argument| &argument.bindings);
        bindings.filter_map(|binding| match binding {
            Binding::Value(value) => Some(*value),
            _ => None,
        })
    }

    /// The results.
    pub fn results(&self) -> &[NamedType] {
        &self.results
    }

    /// The nested blocks (`cond` has two, `while_loop` has two).
    pub fn blocks(&self) -> &[Graph] {
        &self.blocks
    }

    /// The attributes; `name` is the operation's own name, `val` a const's value.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// The operation's own name, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.attributes.get("name")?.as_str()
    }

    /// The pass that made this operation, if one did.
    pub fn made_by(&self) -> Option<&'static str> {
        self.made_by
    }

    /// The value of a const operation.
    pub fn const_value(&self) -> Option<&Value> {
        if self.op_type == "const" {
            self.attributes.get("val")
        } else {
            None
        }
    }
}

/// A node of the graph.
#[derive(Clone, Debug)]
pub enum Node {
    /// A function or block input.
    Input(NamedType, InputOrigin),
    /// A value of the enclosing block that is used in this one.
    Capture {
        /// Name and type, kept equal to those of the outer value.
        value: NamedType,
        /// The value in the enclosing graph.
        source: ValueId,
    },
    /// An operation.
    Op(Box<Operation>),
    /// The block's return; its operands are the block's outputs in order.
    Return(Vec<ValueId>),
    /// What is left of an erased node until the next sweep.
    Erased,
}

/// Which operand of a consumer a use edge is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Slot {
    /// A binding of an argument, by index into [`Operation::arguments`] and position.
    Argument {
        /// Index of the argument.
        argument: u32,
        /// Index of the binding.
        position: u32,
    },
    /// An output of the block.
    Output(u32),
    /// A capture inside a nested block of the consumer.
    Capture {
        /// Which nested block.
        block: u32,
        /// The capture's node in that block.
        node: NodeId,
    },
}

/// An edge of the graph.
#[derive(Clone, Copy, Debug)]
pub(super) enum Edge {
    Use { result: u32, slot: Slot },
    Order,
    Dead,
}

/// One use of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Use {
    /// The consumer.
    pub user: NodeId,
    /// Which operand of it.
    pub slot: Slot,
}

/// So many outputs are faster to look through than the uses of a value, of which there may be
/// thousands.
const FEW_OUTPUTS: usize = 64;

/// One block as a graph.
#[derive(Clone, Debug)]
pub struct Graph {
    pub(super) store: StableDiGraph<Node, Edge>,
    pub(super) inputs: Vec<NodeId>,
    pub(super) output: NodeId,
    pub(super) attributes: BTreeMap<String, Value>,
    pub(super) dead_edges: usize,
    pub(super) next_origin: u32,
    pub(super) next_step: u32,
    /// The order of the operations, until something changes.
    pub(super) order: OnceLock<Arc<[NodeId]>>,
}

impl Default for Graph {
    fn default() -> Self {
        Self::new()
    }
}

impl Graph {
    /// An empty block.
    pub fn new() -> Self {
        let mut store = StableDiGraph::new();
        let output = NodeId(store.add_node(Node::Return(Vec::new())));
        Self {
            store,
            inputs: Vec::new(),
            output,
            attributes: BTreeMap::new(),
            dead_edges: 0,
            next_origin: 0,
            next_step: 0,
            order: OnceLock::new(),
        }
    }

    /// One more than the largest index a node of this graph has had.
    pub fn bound(&self) -> usize {
        use petgraph::visit::NodeIndexable;
        self.store.node_bound()
    }

    /// The node, if it has not been erased.
    pub fn node(&self, node: NodeId) -> Option<&Node> {
        self.store.node_weight(node.0)
    }

    /// The operation at a node, if it is one and has not been erased.
    pub fn op(&self, node: NodeId) -> Option<&Operation> {
        match self.node(node)? {
            Node::Op(op) => Some(op),
            _ => None,
        }
    }

    /// The operation that makes a value; `None` for inputs and captures.
    pub fn producer(&self, value: ValueId) -> Option<&Operation> {
        self.op(value.node)
    }

    /// The inputs of the block, those of the function first.
    pub fn inputs(&self) -> &[NodeId] {
        &self.inputs
    }

    /// The values that the block returns, in order.
    pub fn outputs(&self) -> &[ValueId] {
        match self.node(self.output) {
            Some(Node::Return(values)) => values,
            _ => &[],
        }
    }

    /// The block's attributes.
    pub fn attributes(&self) -> &BTreeMap<String, Value> {
        &self.attributes
    }

    /// Name and type of a value, if it exists.
    pub fn named(&self, value: ValueId) -> Option<&NamedType> {
        match self.node(value.node)? {
            Node::Input(named, _) | Node::Capture { value: named, .. } => {
                (value.result == 0).then_some(named)
            }
            Node::Op(op) => op.results.get(value.result as usize),
            Node::Return(_) | Node::Erased => None,
        }
    }

    /// Name of a value; empty if the value does not exist.
    pub fn name(&self, value: ValueId) -> &str {
        self.named(value).map_or("", |named| named.name.as_str())
    }

    /// Declared type of a value.
    pub fn ty(&self, value: ValueId) -> Option<&ValueType> {
        self.named(value)?.ty.as_ref()
    }

    /// All operations with their nodes, in no meaningful order (see [`Graph::schedule`]).
    pub fn ops(&self) -> impl Iterator<Item = (NodeId, &Operation)> {
        self.store.node_indices().filter_map(|index| {
            let node = NodeId(index);
            self.op(node).map(|op| (node, op))
        })
    }

    /// All nodes, in no meaningful order.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.store.node_indices().filter_map(|index| {
            self.store
                .node_weight(index)
                .map(|node| (NodeId(index), node))
        })
    }

    /// The uses of a value, the latest made first.
    pub fn uses(&self, value: ValueId) -> impl Iterator<Item = Use> + '_ {
        self.store
            .edges_directed(value.node.0, Direction::Outgoing)
            .filter_map(move |edge| match *edge.weight() {
                Edge::Use { result, slot } if result == value.result => Some(Use {
                    user: NodeId(edge.target()),
                    slot,
                }),
                _ => None,
            })
    }

    /// True if any result of the node is used.
    pub fn is_used(&self, node: NodeId) -> bool {
        self.store
            .edges_directed(node.0, Direction::Outgoing)
            .any(|edge| matches!(edge.weight(), Edge::Use { .. }))
    }

    /// True if the value has exactly one use.
    pub fn used_once(&self, value: ValueId) -> bool {
        self.uses(value).take(2).count() == 1
    }

    /// The consumer of a value that has exactly one use, if that is an operation's argument.
    pub fn only_user(&self, value: ValueId) -> Option<NodeId> {
        let mut uses = self.uses(value);
        match (uses.next(), uses.next()) {
            (Some(one), None) if matches!(one.slot, Slot::Argument { .. }) => Some(one.user),
            _ => None,
        }
    }

    /// True if the block returns this value.
    pub fn is_output(&self, value: ValueId) -> bool {
        let outputs = self.outputs();
        if outputs.len() <= FEW_OUTPUTS {
            return outputs.contains(&value);
        }
        let mut uses = self.uses(value);
        uses.any(|site| matches!(site.slot, Slot::Output(_)))
    }

    /// The operations that must come after this one because they touch the same state.
    pub(super) fn ordered_after(&self, node: NodeId) -> Vec<NodeId> {
        self.order_neighbours(node, Direction::Outgoing)
    }

    /// The operations that must come before this one because they touch the same state.
    pub(super) fn ordered_before(&self, node: NodeId) -> Vec<NodeId> {
        self.order_neighbours(node, Direction::Incoming)
    }

    fn order_neighbours(&self, node: NodeId, direction: Direction) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self
            .store
            .edges_directed(node.0, direction)
            .filter(|edge| matches!(edge.weight(), Edge::Order))
            .map(|edge| match direction {
                Direction::Outgoing => NodeId(edge.target()),
                Direction::Incoming => NodeId(edge.source()),
            })
            .collect();
        nodes.sort_unstable();
        nodes
    }

    /// The order edges as pairs (before, after).
    pub fn order_edges(&self) -> impl Iterator<Item = (NodeId, NodeId)> + '_ {
        self.store.edge_indices().filter_map(|edge| {
            let (from, to) = self.store.edge_endpoints(edge)?;
            matches!(self.store[edge], Edge::Order).then_some((NodeId(from), NodeId(to)))
        })
    }

    /// The node that captures each outer value, with that value.
    pub fn captures(&self) -> impl Iterator<Item = (NodeId, ValueId)> + '_ {
        self.nodes().filter_map(|(id, node)| match node {
            Node::Capture { source, .. } => Some((id, *source)),
            _ => None,
        })
    }

    /// Number of operations, nested blocks included.
    pub fn count_ops(&self) -> usize {
        self.ops()
            .map(|(_, op)| 1 + op.blocks.iter().map(Graph::count_ops).sum::<usize>())
            .sum()
    }
}
