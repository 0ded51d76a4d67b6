//! Compares two blocks operation by operation, nested blocks included.

use std::collections::HashMap;

use super::Blobs;
use super::edits::{Edit, Kind, Place};
use super::functions::attributes;
use super::matching::{Matching, View, matching, name_of};
use super::operations::{self, type_text};
use super::values::{self, Values};
use crate::ir::{
    Access, Argument, Binding, Graph, InputOrigin, Node, NodeId, Operation, Value, ValueId,
};
use crate::text;

/// Longer lists of operands are shown by their number.
const MAX_LISTED: usize = 8;

/// Two blocks with the counterparts in them.
pub(super) struct Graphs<'a> {
    a: View<'a>,
    b: View<'a>,
    matching: Matching,
}

impl<'a> Graphs<'a> {
    /// Finds the counterparts; `anchors` are nodes known to be counterparts.
    pub(super) fn new(
        a: &'a Graph,
        b: &'a Graph,
        blobs: (&'a dyn Blobs, &'a dyn Blobs),
        anchors: &[(NodeId, NodeId)],
    ) -> Self {
        let (a, b) = (View::new(a, blobs.0), View::new(b, blobs.1));
        let matching = matching(&a, &b, anchors);
        Self { a, b, matching }
    }

    /// The graphs.
    pub(super) fn graphs(&self) -> (&'a Graph, &'a Graph) {
        (self.a.graph, self.b.graph)
    }

    /// True if the two values are counterparts.
    pub(super) fn agree(&self, a: ValueId, b: ValueId) -> bool {
        self.matching.agree(a, b)
    }

    /// The counterpart in the first graph of a value of the second.
    pub(super) fn in_a(&self, value: ValueId) -> Option<ValueId> {
        let node = self.matching.in_a(value.node)?;
        Some(ValueId { node, ..value })
    }

    /// Adds the edits that make the second block of the first, in the order of the text. `path` is
    /// that of the operations around.
    pub(super) fn compare(
        &self,
        place: &Place,
        path: &str,
        values: &mut Values,
        edits: &mut Vec<Edit>,
    ) {
        let order = StateOrder::new(self);
        let mut passed = 0;
        let index_in_a: HashMap<NodeId, usize> = self
            .a
            .order
            .iter()
            .enumerate()
            .map(|(index, node)| (*node, index))
            .collect();
        for node in &self.b.order {
            match self.matching.in_a(*node) {
                Some(counterpart) => {
                    let until = index_in_a.get(&counterpart).copied().unwrap_or(0);
                    self.removed(passed..until, place, path, edits);
                    passed = passed.max(until);
                    let pair = Pair {
                        graphs: self,
                        path,
                        nodes: (counterpart, *node),
                    };
                    pair.compare(place, &order, values, edits);
                }
                None => {
                    if let Some(op) = self.b.graph.op(*node) {
                        let place = place_of(place, path, op);
                        let shown = text::print_op(self.b.graph, *node);
                        edits.push(Edit::new(&place, Kind::Op, "", None, Some(shown)));
                    }
                }
            }
        }
        self.removed(passed..self.a.order.len(), place, path, edits);
    }

    /// Operations of the first graph in this range of its text that have no counterpart.
    fn removed(
        &self,
        range: std::ops::Range<usize>,
        place: &Place,
        path: &str,
        edits: &mut Vec<Edit>,
    ) {
        for node in self.a.order.get(range).unwrap_or_default() {
            if self.matching.in_b(*node).is_some() {
                continue;
            }
            if let Some(op) = self.a.graph.op(*node) {
                let place = place_of(place, path, op);
                let shown = text::print_op(self.a.graph, *node);
                edits.push(Edit::new(&place, Kind::Op, "", Some(shown), None));
            }
        }
    }
}

fn place_of(function: &Place, path: &str, op: &Operation) -> Place {
    Place {
        op: format!("{path}{}", name_of(op)),
        op_type: op.op_type().to_owned(),
        ..function.clone()
    }
}

/// For each access to a state, the last write before it among those that have counterparts.
struct StateOrder {
    before_a: HashMap<(NodeId, NodeId), Option<NodeId>>,
    before_b: HashMap<(NodeId, NodeId), Option<NodeId>>,
}

impl StateOrder {
    fn new(graphs: &Graphs) -> Self {
        Self {
            before_a: last_writes(&graphs.a, &|node| graphs.matching.in_b(node).is_some()),
            before_b: last_writes(&graphs.b, &|node| graphs.matching.in_a(node).is_some()),
        }
    }
}

fn last_writes(
    view: &View,
    counts: &dyn Fn(NodeId) -> bool,
) -> HashMap<(NodeId, NodeId), Option<NodeId>> {
    let mut last: HashMap<NodeId, NodeId> = HashMap::new();
    let mut before = HashMap::new();
    for node in &view.order {
        let Some(op) = view.graph.op(*node).filter(|_| counts(*node)) else {
            continue;
        };
        for (state, access) in view.graph.state_accesses(op) {
            before.insert((*node, state.node), last.get(&state.node).copied());
            if access == Access::Write {
                last.insert(state.node, *node);
            }
        }
    }
    before
}

/// Two operations that are counterparts.
struct Pair<'g, 'a> {
    graphs: &'g Graphs<'a>,
    path: &'g str,
    nodes: (NodeId, NodeId),
}

impl Pair<'_, '_> {
    fn compare(
        &self,
        function: &Place,
        order: &StateOrder,
        values: &mut Values,
        edits: &mut Vec<Edit>,
    ) {
        let (graph_a, graph_b) = self.graphs.graphs();
        let (Some(a), Some(b)) = (graph_a.op(self.nodes.0), graph_b.op(self.nodes.1)) else {
            return;
        };
        let place = place_of(function, self.path, a);
        if a.op_type() == b.op_type() {
            operations::names(&place, (a, b), edits);
            self.parameters(&place, (a, b), values, edits);
            let retyped = operations::attributes(&place, (a, b), values, edits);
            operations::results(&place, (a, b), retyped, edits);
        } else {
            let before = Some(text::print_op(graph_a, self.nodes.0));
            let after = Some(text::print_op(graph_b, self.nodes.1));
            edits.push(Edit::new(&place, Kind::Op, b.op_type(), before, after));
        }
        self.state_order(&place, order, edits);
        self.blocks(&place, (a, b), values, edits);
    }

    fn parameters(
        &self,
        place: &Place,
        (a, b): (&Operation, &Operation),
        values: &mut Values,
        edits: &mut Vec<Edit>,
    ) {
        for argument in a.arguments() {
            if let Some(other) = b.argument(&argument.parameter) {
                self.argument(place, argument, other, values, edits);
            } else {
                let before = Some(bindings_text(self.graphs.a.graph, &argument.bindings));
                edits.push(Edit::new(
                    place,
                    Kind::Parameter,
                    &argument.parameter,
                    before,
                    None,
                ));
            }
        }
        for argument in b.arguments() {
            if a.argument(&argument.parameter).is_none() {
                let after = Some(bindings_text(self.graphs.b.graph, &argument.bindings));
                edits.push(Edit::new(
                    place,
                    Kind::Parameter,
                    &argument.parameter,
                    None,
                    after,
                ));
            }
        }
    }

    fn argument(
        &self,
        place: &Place,
        a: &Argument,
        b: &Argument,
        values: &mut Values,
        edits: &mut Vec<Edit>,
    ) {
        let (graph_a, graph_b) = self.graphs.graphs();
        if a.bindings.len() != b.bindings.len() {
            let before = Some(bindings_text(graph_a, &a.bindings));
            let after = Some(bindings_text(graph_b, &b.bindings));
            edits.push(Edit::new(
                place,
                Kind::Parameter,
                &a.parameter,
                before,
                after,
            ));
            return;
        }
        for (index, pair) in a.bindings.iter().zip(&b.bindings).enumerate() {
            let subject = match a.bindings.len() {
                1 => a.parameter.clone(),
                _ => format!("{}[{index}]", a.parameter),
            };
            match pair {
                (Binding::Value(a), Binding::Value(b)) if self.graphs.agree(*a, *b) => {}
                (Binding::Absent, Binding::Absent) => {}
                (Binding::Immediate(a), Binding::Immediate(b)) => {
                    if let Some(change) = values.compare(a, b) {
                        edits.push(change.edit(place, Kind::Parameter, &subject));
                    }
                }
                (before, after) => {
                    let equal = self.are_equal_consts(before, after, values);
                    let before = binding_text(graph_a, before);
                    let mut after = binding_text(graph_b, after);
                    if before == after {
                        after.push_str(" (another value of that name)");
                    } else if equal {
                        after.push_str(" (of the same value)");
                    }
                    let (before, after) = (Some(before), Some(after));
                    edits.push(Edit::new(place, Kind::Parameter, &subject, before, after));
                }
            }
        }
    }

    /// True if both are consts, or a const and a literal, and hold the same.
    fn are_equal_consts(&self, a: &Binding, b: &Binding, values: &mut Values) -> bool {
        let (graph_a, graph_b) = self.graphs.graphs();
        let pair = const_value(graph_a, a).zip(const_value(graph_b, b));
        pair.is_some_and(|(a, b)| values.are_equal(a, b))
    }

    /// Accesses to states that no longer follow the same write.
    fn state_order(&self, place: &Place, order: &StateOrder, edits: &mut Vec<Edit>) {
        let (graph_a, graph_b) = self.graphs.graphs();
        let Some(op) = graph_a.op(self.nodes.0) else {
            return;
        };
        for (state, _) in graph_a.state_accesses(op) {
            let Some(other) = self.graphs.matching.in_b(state.node) else {
                continue;
            };
            let before = order.before_a.get(&(self.nodes.0, state.node));
            let after = order.before_b.get(&(self.nodes.1, other));
            let (Some(before), Some(after)) = (before, after) else {
                continue;
            };
            if before.and_then(|node| self.graphs.matching.in_b(node)) != *after {
                let name = |graph: &Graph, node: &Option<NodeId>| {
                    let op = node.and_then(|node| graph.op(node));
                    op.map_or("no write".to_owned(), |op| name_of(op).to_owned())
                };
                let (before, after) = (name(graph_a, before), name(graph_b, after));
                let subject = graph_a.name(state);
                edits.push(Edit::new(
                    place,
                    Kind::Order,
                    subject,
                    Some(before),
                    Some(after),
                ));
            }
        }
    }

    fn blocks(
        &self,
        place: &Place,
        (a, b): (&Operation, &Operation),
        values: &mut Values,
        edits: &mut Vec<Edit>,
    ) {
        if a.blocks().len() != b.blocks().len() {
            let number = |op: &Operation| Some(op.blocks().len().to_string());
            edits.push(Edit::new(place, Kind::Blocks, "", number(a), number(b)));
            return;
        }
        for (index, (block_a, block_b)) in a.blocks().iter().zip(b.blocks()).enumerate() {
            let anchors = self.captures(block_a, block_b);
            let blobs = (self.graphs.a.blobs, self.graphs.b.blobs);
            let graphs = Graphs::new(block_a, block_b, blobs, &anchors);
            let mut inside = place.clone();
            inside.op = format!("{}[{index}]", place.op);
            attributes(
                values,
                &inside,
                block_a.attributes(),
                block_b.attributes(),
                edits,
            );
            block_interface(&graphs, &inside, edits);
            let path = format!("{}[{index}]/", place.op);
            let function = Place {
                op: String::new(),
                op_type: String::new(),
                ..place.clone()
            };
            graphs.compare(&function, &path, values, edits);
        }
    }

    /// The captures of two nested blocks whose sources are counterparts.
    fn captures(&self, a: &Graph, b: &Graph) -> Vec<(NodeId, NodeId)> {
        let sources: HashMap<ValueId, NodeId> =
            b.captures().map(|(node, source)| (source, node)).collect();
        a.captures()
            .filter_map(|(node, source)| {
                let counterpart = ValueId {
                    node: self.graphs.matching.in_b(source.node)?,
                    result: source.result,
                };
                Some((node, *sources.get(&counterpart)?))
            })
            .collect()
    }
}

/// Inputs and outputs of two nested blocks, by place.
fn block_interface(graphs: &Graphs, place: &Place, edits: &mut Vec<Edit>) {
    let (a, b) = graphs.graphs();
    let inputs = |graph: &Graph| -> Vec<String> {
        let named = graph
            .inputs()
            .iter()
            .filter_map(|node| match graph.node(*node) {
                Some(Node::Input(named, InputOrigin::Block)) => Some(named.clone()),
                _ => None,
            });
        named
            .map(|named| format!("{} {}", type_text(&named), named.name))
            .collect()
    };
    let (before, after) = (inputs(a), inputs(b));
    for index in 0..before.len().max(after.len()) {
        let (before, after) = (before.get(index).cloned(), after.get(index).cloned());
        if before != after {
            edits.push(Edit::new(
                place,
                Kind::Input,
                &index.to_string(),
                before,
                after,
            ));
        }
    }
    let (before, after) = (a.outputs(), b.outputs());
    for index in 0..before.len().max(after.len()) {
        let (before, after) = (before.get(index), after.get(index));
        if let (Some(before), Some(after)) = (before, after)
            && graphs.agree(*before, *after)
        {
            continue;
        }
        let before = before.map(|value| a.name(*value).to_owned());
        let mut after = after.map(|value| b.name(*value).to_owned());
        if let (true, Some(after)) = (before == after, &mut after) {
            after.push_str(" (another value of that name)");
        }
        edits.push(Edit::new(
            place,
            Kind::Output,
            &index.to_string(),
            before,
            after,
        ));
    }
}

/// What a const or a literal holds.
fn const_value<'a>(graph: &'a Graph, binding: &'a Binding) -> Option<&'a Value> {
    match binding {
        Binding::Value(value) => graph.producer(*value)?.const_value(),
        Binding::Immediate(value) => Some(value),
        Binding::Absent => None,
    }
}

fn bindings_text(graph: &Graph, bindings: &[Binding]) -> String {
    if let [binding] = bindings {
        return binding_text(graph, binding);
    }
    let shown = bindings.iter().take(MAX_LISTED);
    let mut shown: Vec<String> = shown.map(|binding| binding_text(graph, binding)).collect();
    if bindings.len() > MAX_LISTED {
        shown.push(format!("… {} more", bindings.len() - MAX_LISTED));
    }
    format!("({})", shown.join(", "))
}

fn binding_text(graph: &Graph, binding: &Binding) -> String {
    match binding {
        Binding::Value(value) => graph.name(*value).to_owned(),
        Binding::Immediate(value) => values::shown(value),
        Binding::Absent => "nothing".to_owned(),
    }
}
