//! Which operation of one graph is which of another.
//!
//! Two readings are tried. The first trusts names: operations of one type whose first results have
//! one name are counterparts. The second trusts structure, for programs whose names were given
//! anew: from the inputs forwards and from the outputs backwards, names deciding only what is left.
//! Whichever explains the two graphs with fewer changes is taken, the first if both do.
//!
//! Structure is a fixpoint of steps, the surest first; each takes unique candidates only:
//!
//! 1. same type, same attributes and literals (a const: same value), operands are counterparts;
//! 2. read at the same place by counterparts, same type;
//! 3. as the first, whatever the attributes and literals;
//! 4. several as in the first on either side: one by one in the order of the text;
//! 5. same name, whatever the type.
//!
//! All steps are near-linear in the number of operations.

use std::collections::HashMap;

use super::Blobs;
use super::signature::{self, Detail};
use crate::ir::{Binding, Graph, InputOrigin, Node, NodeId, Operation, ValueId};

/// After this many rounds of the steps that look at everything left, what is left stays unmatched.
const MAX_ROUNDS: usize = 40;

/// So many readers of a value are asked whether they agree on its counterpart.
const MAX_WITNESSES: usize = 8;

/// What one operation costs that has no counterpart, and one operand that is another.
const CHANGE: usize = 2;

/// What one new name costs.
const RENAME: usize = 1;

/// The counterparts of the nodes of two graphs.
pub(super) struct Matching {
    to_b: Vec<Option<NodeId>>,
    to_a: Vec<Option<NodeId>>,
}

impl Matching {
    /// The counterpart in the second graph.
    pub(super) fn in_b(&self, node: NodeId) -> Option<NodeId> {
        self.to_b.get(node.index()).copied().flatten()
    }

    /// The counterpart in the first graph.
    pub(super) fn in_a(&self, node: NodeId) -> Option<NodeId> {
        self.to_a.get(node.index()).copied().flatten()
    }

    /// True if the two values are counterparts.
    pub(super) fn agree(&self, a: ValueId, b: ValueId) -> bool {
        a.result == b.result && self.in_b(a.node) == Some(b.node)
    }
}

/// One of the two graphs with what the steps look up in it.
pub(super) struct View<'a> {
    pub(super) graph: &'a Graph,
    pub(super) blobs: &'a dyn Blobs,
    /// The operations in the order of the text.
    pub(super) order: Vec<NodeId>,
    /// By node: the nodes that an operation reads, captures of its blocks included.
    operands: Vec<Vec<NodeId>>,
    /// By node: the operations that read it, once for each time.
    users: Vec<Vec<NodeId>>,
}

impl<'a> View<'a> {
    pub(super) fn new(graph: &'a Graph, blobs: &'a dyn Blobs) -> Self {
        let order: Vec<NodeId> = match graph.schedule() {
            Ok(order) => order.to_vec(),
            // Such a graph cannot be written, but it can be compared.
            Err(_) => graph.ops().map(|(node, _)| node).collect(),
        };
        let mut operands = vec![Vec::new(); graph.bound()];
        let mut users = vec![Vec::new(); graph.bound()];
        for node in &order {
            let Some(op) = graph.op(*node) else { continue };
            for operand in read_by(op) {
                operands[node.index()].push(operand);
                users[operand.index()].push(*node);
            }
        }
        Self {
            graph,
            blobs,
            order,
            operands,
            users,
        }
    }

    fn ops(&self) -> impl Iterator<Item = (NodeId, &'a Operation)> + '_ {
        let graph = self.graph;
        self.order
            .iter()
            .filter_map(move |node| graph.op(*node).map(|op| (*node, op)))
    }
}

fn read_by(op: &Operation) -> Vec<NodeId> {
    let bindings = op
        .arguments()
        .iter()
        .flat_map(|argument| &argument.bindings);
    let mut read: Vec<NodeId> = bindings
        .filter_map(|binding| match binding {
            Binding::Value(value) => Some(value.node),
            _ => None,
        })
        .collect();
    for block in op.blocks() {
        let mut captured: Vec<NodeId> = block.captures().map(|(_, value)| value.node).collect();
        captured.sort_unstable();
        read.extend(captured);
    }
    read
}

/// The name by which an operation is known: that of its first result, else its own.
pub(super) fn name_of(op: &Operation) -> &str {
    match op.results().first() {
        Some(result) => &result.name,
        None => op.name().unwrap_or_default(),
    }
}

/// Finds the counterparts. `anchors` are nodes known to be counterparts: captures, for a block
/// inside an operation.
pub(super) fn matching(a: &View, b: &View, anchors: &[(NodeId, NodeId)]) -> Matching {
    let mut by_name = Search::new(a, b, anchors);
    by_name.match_names();
    by_name.exhaust();
    let cost = by_name.cost();
    if cost <= RENAME {
        return by_name.found;
    }
    let mut by_structure = Search::new(a, b, anchors);
    by_structure.match_equal_consts();
    by_structure.spread();
    by_structure.match_names();
    by_structure.exhaust();
    if by_structure.cost() < cost {
        by_structure.found
    } else {
        by_name.found
    }
}

/// Operations with one signature on either side, in the order in which they were found.
type Bucket = (Vec<NodeId>, Vec<NodeId>);

struct Search<'s, 'a> {
    a: &'s View<'a>,
    b: &'s View<'a>,
    found: Matching,
    /// By node: operands that have no counterpart yet.
    waiting_a: Vec<usize>,
    waiting_b: Vec<usize>,
    /// Operations whose operands all have counterparts, not yet looked at.
    ready_a: Vec<NodeId>,
    ready_b: Vec<NodeId>,
    /// Those looked at, by whole signature.
    buckets: HashMap<u64, Bucket>,
    /// The signatures in the order in which they came up.
    signatures: Vec<u64>,
    /// Counterparts whose operands have not been compared yet.
    trail: Vec<(NodeId, NodeId)>,
    next_in_trail: usize,
}

impl<'s, 'a> Search<'s, 'a> {
    fn new(a: &'s View<'a>, b: &'s View<'a>, anchors: &[(NodeId, NodeId)]) -> Self {
        let waiting = |view: &View| view.operands.iter().map(Vec::len).collect();
        let without_operands = |view: &View| -> Vec<NodeId> {
            view.order
                .iter()
                .copied()
                .filter(|node| view.operands[node.index()].is_empty())
                .collect()
        };
        let mut search = Self {
            found: Matching {
                to_b: vec![None; a.graph.bound()],
                to_a: vec![None; b.graph.bound()],
            },
            waiting_a: waiting(a),
            waiting_b: waiting(b),
            ready_a: without_operands(a),
            ready_b: without_operands(b),
            buckets: HashMap::new(),
            signatures: Vec::new(),
            trail: Vec::new(),
            next_in_trail: 0,
            a,
            b,
        };
        for (a, b) in anchors {
            search.pair(*a, *b);
        }
        for (a, b) in inputs(search.a.graph, search.b.graph) {
            search.pair(a, b);
        }
        search
    }

    /// Notes two counterparts, unless one of them has another already.
    fn pair(&mut self, a: NodeId, b: NodeId) -> bool {
        let free =
            |side: &[Option<NodeId>], node: NodeId| matches!(side.get(node.index()), Some(None));
        if !free(&self.found.to_b, a) || !free(&self.found.to_a, b) {
            return false;
        }
        self.found.to_b[a.index()] = Some(b);
        self.found.to_a[b.index()] = Some(a);
        for user in &self.a.users[a.index()] {
            let waiting = &mut self.waiting_a[user.index()];
            *waiting = waiting.saturating_sub(1);
            if *waiting == 0 {
                self.ready_a.push(*user);
            }
        }
        for user in &self.b.users[b.index()] {
            let waiting = &mut self.waiting_b[user.index()];
            *waiting = waiting.saturating_sub(1);
            if *waiting == 0 {
                self.ready_b.push(*user);
            }
        }
        self.trail.push((a, b));
        true
    }

    /// Operations of one type with one name that is unique among those of the type.
    fn match_names(&mut self) {
        let pairs = self.unique_pairs(|op| Some((op.op_type(), name_of(op))));
        for (a, b) in pairs {
            self.pair(a, b);
        }
    }

    /// Consts of one name and one value.
    fn match_equal_consts(&mut self) {
        let pairs =
            self.unique_pairs(|op| (op.op_type() == "const").then(|| (op.op_type(), name_of(op))));
        for (a, b) in pairs {
            if self.signature_a(a, Detail::Whole) == self.signature_b(b, Detail::Whole) {
                self.pair(a, b);
            }
        }
    }

    /// Operations left on both sides that a key tells apart; an empty name tells nothing.
    fn unique_pairs<'k>(
        &self,
        key: impl Fn(&'k Operation) -> Option<(&'k str, &'k str)>,
    ) -> Vec<(NodeId, NodeId)>
    where
        'a: 'k,
    {
        let mut found: HashMap<(&str, &str), Bucket> = HashMap::new();
        let named = |op: &'k Operation| key(op).filter(|(_, name)| !name.is_empty());
        for (node, op) in self.a.ops().filter(|(node, _)| self.is_left_in_a(*node)) {
            if let Some(key) = named(op) {
                found.entry(key).or_default().0.push(node);
            }
        }
        for (node, op) in self.b.ops().filter(|(node, _)| self.is_left_in_b(*node)) {
            if let Some(key) = named(op) {
                found.entry(key).or_default().1.push(node);
            }
        }
        let mut pairs: Vec<(NodeId, NodeId)> = found
            .into_values()
            .filter_map(|(a, b)| match (a.as_slice(), b.as_slice()) {
                ([a], [b]) => Some((*a, *b)),
                _ => None,
            })
            .collect();
        pairs.sort_unstable();
        pairs
    }

    fn is_left_in_a(&self, node: NodeId) -> bool {
        self.found.in_b(node).is_none()
    }

    fn is_left_in_b(&self, node: NodeId) -> bool {
        self.found.in_a(node).is_none()
    }

    fn signature_a(&self, node: NodeId, detail: Detail) -> u64 {
        let Some(op) = self.a.graph.op(node) else {
            return 0;
        };
        signature::of_op(op, detail, self.a.blobs, &|value| {
            self.found.in_b(value.node)?;
            Some((value.node.index(), value.result))
        })
    }

    fn signature_b(&self, node: NodeId, detail: Detail) -> u64 {
        let Some(op) = self.b.graph.op(node) else {
            return 0;
        };
        signature::of_op(op, detail, self.b.blobs, &|value| {
            Some((self.found.in_a(value.node)?.index(), value.result))
        })
    }

    /// All steps, until none finds anything.
    fn exhaust(&mut self) {
        for _ in 0..MAX_ROUNDS {
            self.spread();
            if !(self.alike() || self.in_order() || self.same_name()) {
                return;
            }
        }
    }

    /// The first and the second step, until neither finds anything.
    fn spread(&mut self) {
        self.match_outputs();
        loop {
            self.forwards();
            if !self.backwards() {
                return;
            }
        }
    }

    /// Operations whose operands have counterparts and that are the same in everything else. All
    /// that share a signature are ready in the same round, since they have the same operands.
    fn forwards(&mut self) {
        while !self.ready_a.is_empty() || !self.ready_b.is_empty() {
            let ready_a = std::mem::take(&mut self.ready_a);
            let ready_b = std::mem::take(&mut self.ready_b);
            let mut touched = Vec::new();
            for node in ready_a {
                if self.is_left_in_a(node) {
                    let signature = self.signature_a(node, Detail::Whole);
                    self.buckets.entry(signature).or_default().0.push(node);
                    touched.push(signature);
                }
            }
            for node in ready_b {
                if self.is_left_in_b(node) {
                    let signature = self.signature_b(node, Detail::Whole);
                    self.buckets.entry(signature).or_default().1.push(node);
                }
            }
            for signature in touched {
                if let Some((a, b)) = self.buckets.get(&signature)
                    && let ([a], [b]) = (a.as_slice(), b.as_slice())
                {
                    let (a, b) = (*a, *b);
                    self.pair(a, b);
                } else {
                    self.signatures.push(signature);
                }
            }
        }
    }

    /// What the blocks return, by name and else by place.
    fn match_outputs(&mut self) {
        let (a, b) = (self.a.graph, self.b.graph);
        let same_count = a.outputs().len() == b.outputs().len();
        let names: HashMap<&str, ValueId> = b.outputs().iter().map(|v| (b.name(*v), *v)).collect();
        for (index, value) in a.outputs().iter().enumerate() {
            let namesake = names.get(a.name(*value)).copied();
            let at_same_place = b.outputs().get(index).copied().filter(|_| same_count);
            if let Some(other) = namesake.or(at_same_place) {
                self.pair_alike(*value, other);
            }
        }
    }

    /// Pairs the operations that make two values if both are free and of one kind.
    fn pair_alike(&mut self, a: ValueId, b: ValueId) -> bool {
        if a.result != b.result || !self.is_left_in_a(a.node) || !self.is_left_in_b(b.node) {
            return false;
        }
        let (Some(op_a), Some(op_b)) = (self.a.graph.op(a.node), self.b.graph.op(b.node)) else {
            return false;
        };
        let alike = op_a.op_type() == op_b.op_type()
            && op_a.results().len() == op_b.results().len()
            && (op_a.op_type() != "const" || self.a.graph.ty(a) == self.b.graph.ty(b));
        alike && self.witnesses_agree(a, b) && self.pair(a.node, b.node)
    }

    /// Whether the readers of `a` that have counterparts read `b` there.
    fn witnesses_agree(&self, a: ValueId, b: ValueId) -> bool {
        let users = &self.a.users[a.node.index()];
        users.iter().take(MAX_WITNESSES).all(|user| {
            self.found.in_b(*user).is_none_or(|other| {
                let read = &self.b.operands[other.index()];
                read.iter().take(MAX_WITNESSES).any(|node| *node == b.node)
                    || read.len() > MAX_WITNESSES
            })
        })
    }

    /// Operands of counterparts, until the first that gives a new pair.
    fn backwards(&mut self) -> bool {
        while let Some((a, b)) = self.trail.get(self.next_in_trail).copied() {
            self.next_in_trail += 1;
            let (Some(op_a), Some(op_b)) = (self.a.graph.op(a), self.b.graph.op(b)) else {
                continue;
            };
            let mut found = false;
            for argument in op_a.arguments() {
                let Some(other) = op_b.argument(&argument.parameter) else {
                    continue;
                };
                if argument.bindings.len() != other.bindings.len() {
                    continue;
                }
                for pair in argument.bindings.iter().zip(&other.bindings) {
                    if let (Binding::Value(a), Binding::Value(b)) = pair {
                        found |= self.pair_alike(*a, *b);
                    }
                }
            }
            if found {
                return true;
            }
        }
        false
    }

    /// Operations that differ from a single other one in literals and attributes, or in operands
    /// that have no counterpart.
    fn alike(&mut self) -> bool {
        let mut buckets: HashMap<u64, Bucket> = HashMap::new();
        let has_counterpart = |side: &[Option<NodeId>], node: &NodeId| side[node.index()].is_some();
        let mut in_order = Vec::new();
        for (node, _) in self.a.ops() {
            let operands = &self.a.operands[node.index()];
            if self.is_left_in_a(node)
                && operands
                    .iter()
                    .any(|o| has_counterpart(&self.found.to_b, o))
            {
                let signature = self.signature_a(node, Detail::Operands);
                buckets.entry(signature).or_default().0.push(node);
                in_order.push(signature);
            }
        }
        for (node, _) in self.b.ops() {
            let operands = &self.b.operands[node.index()];
            if self.is_left_in_b(node)
                && operands
                    .iter()
                    .any(|o| has_counterpart(&self.found.to_a, o))
            {
                let signature = self.signature_b(node, Detail::Operands);
                buckets.entry(signature).or_default().1.push(node);
            }
        }
        let mut found = false;
        for signature in in_order {
            if let Some((a, b)) = buckets.get(&signature)
                && let ([a], [b]) = (a.as_slice(), b.as_slice())
            {
                found |= self.pair(*a, *b);
            }
        }
        found
    }

    /// Operations that cannot be told apart from others on their own side: any pairing is right.
    fn in_order(&mut self) -> bool {
        let mut found = false;
        for signature in std::mem::take(&mut self.signatures) {
            let Some((a, b)) = self.buckets.remove(&signature) else {
                continue;
            };
            let a: Vec<NodeId> = a.into_iter().filter(|n| self.is_left_in_a(*n)).collect();
            let b: Vec<NodeId> = b.into_iter().filter(|n| self.is_left_in_b(*n)).collect();
            for (a, b) in a.into_iter().zip(b) {
                found |= self.pair(a, b);
            }
        }
        found
    }

    /// The value of a name is made by an operation of another type.
    fn same_name(&mut self) -> bool {
        let pairs = self.unique_pairs(|op| Some(("", name_of(op))));
        let mut found = false;
        for (a, b) in pairs {
            let is_const =
                |graph: &Graph, node| graph.op(node).is_some_and(|op| op.op_type() == "const");
            // A computed value that became a const, or the other way round, was replaced.
            if is_const(self.a.graph, a) == is_const(self.b.graph, b) {
                found |= self.pair(a, b);
            }
        }
        found
    }

    /// What it takes to make one graph of the other, in units of the constants above.
    fn cost(&self) -> usize {
        let mut cost = 0;
        for (node, op) in self.a.ops() {
            let counterpart = self.found.in_b(node);
            let pair = counterpart.and_then(|b| Some((b, self.b.graph.op(b)?)));
            let Some((counterpart, other)) = pair else {
                cost += CHANGE;
                continue;
            };
            if op.op_type() == "const" {
                let before = self.signature_a(node, Detail::Whole);
                let after = self.signature_b(counterpart, Detail::Whole);
                cost += CHANGE * usize::from(before != after);
            }
            if name_of(op) != name_of(other) {
                cost += RENAME;
            }
            if op.op_type() != other.op_type() {
                cost += CHANGE;
            }
            cost += CHANGE * self.changed_operands(op, other);
        }
        let added = self.b.ops().filter(|(node, _)| self.is_left_in_b(*node));
        cost + CHANGE * added.count()
    }

    fn changed_operands(&self, a: &Operation, b: &Operation) -> usize {
        let mut changed = 0;
        for argument in a.arguments() {
            let Some(other) = b.argument(&argument.parameter) else {
                changed += 1;
                continue;
            };
            changed += argument.bindings.len().abs_diff(other.bindings.len());
            for pair in argument.bindings.iter().zip(&other.bindings) {
                changed += usize::from(match pair {
                    (Binding::Value(a), Binding::Value(b)) => !self.found.agree(*a, *b),
                    (Binding::Immediate(_), Binding::Immediate(_))
                    | (Binding::Absent, Binding::Absent) => false,
                    _ => true,
                });
            }
        }
        changed
    }
}

/// Inputs of two blocks that are the same: those of functions by name, then by type if only one is
/// left of a type; those of blocks by place if there are as many.
fn inputs(a: &Graph, b: &Graph) -> Vec<(NodeId, NodeId)> {
    let mut pairs = Vec::new();
    for origin in [InputOrigin::Function, InputOrigin::Block] {
        let (of_a, of_b) = (inputs_of(a, origin), inputs_of(b, origin));
        if origin == InputOrigin::Block && of_a.len() == of_b.len() {
            pairs.extend(of_a.into_iter().zip(of_b));
            continue;
        }
        let name = |graph: &'_ Graph, node| graph.name(ValueId::first(node)).to_owned();
        let by_name: HashMap<String, NodeId> =
            of_b.iter().map(|node| (name(b, *node), *node)).collect();
        let mut left = Vec::new();
        let mut taken = Vec::new();
        for node in of_a {
            match by_name.get(&name(a, node)) {
                Some(other) => {
                    pairs.push((node, *other));
                    taken.push(*other);
                }
                None => left.push(node),
            }
        }
        taken.sort_unstable();
        let free: Vec<NodeId> = of_b
            .into_iter()
            .filter(|node| taken.binary_search(node).is_err())
            .collect();
        let ty = |graph: &'_ Graph, node| graph.ty(ValueId::first(node)).cloned();
        for node in &left {
            let own = ty(a, *node);
            let rivals = left.iter().filter(|other| ty(a, **other) == own).count();
            let candidates: Vec<NodeId> = free
                .iter()
                .copied()
                .filter(|other| ty(b, *other) == own)
                .collect();
            if let (1, [other]) = (rivals, candidates.as_slice()) {
                pairs.push((*node, *other));
            }
        }
    }
    pairs
}

fn inputs_of(graph: &Graph, origin: InputOrigin) -> Vec<NodeId> {
    let is_of =
        |node: &NodeId| matches!(graph.node(*node), Some(Node::Input(_, own)) if *own == origin);
    graph.inputs().iter().copied().filter(is_of).collect()
}
