//! States: how a block touches each of them, in order, and what for.
//!
//! ```text
//! now = read_state(s)                      what the state holds: at first, what it held before the call
//! new = slice_update(now, update, …)       an update of a part, if `now` is what the state holds
//! write_state(s, new)                      from here on it holds `new`
//! now = read_state(s)                      the same value as `new`
//! ```
//!
//! What a state is for follows from where its value goes, through slices, `reshape`, `transpose`,
//! `expand_dims`, `squeeze`, `tile`, `cast`, `concat`, `split`, `gather`, `identity`, products with a
//! scalar and updates of a part:
//!
//! ```text
//! keys     key of scaled_dot_product_attention; operand of a matmul or einsum whose result reaches
//!          softmax through mul, real_div, add, sub, select, cast, reshape, clip, maximum, minimum
//! values   value of scaled_dot_product_attention; operand of a matmul or einsum whose other operand
//!          comes from softmax through cast, reshape, transpose, mul, select
//! ```
//!
//! The value that is written counts as well as the value that is read: converters let what follows an
//! update read either. A name decides only where the graph says neither or both.

use std::collections::HashSet;

use crate::ir::{Access, Binding, Graph, Node, NodeId, Operation, Slot, TensorType, ValueId};

/// Operations that lie between a product and its softmax, at most.
const MAX_STEPS: usize = 64;

/// A state and what a block does with it.
#[derive(Clone, Debug)]
pub struct StateChain {
    /// The input.
    pub state: ValueId,
    /// Its name.
    pub name: String,
    /// The type of the tensor that it holds.
    pub ty: TensorType,
    /// All accesses in the order in which they run.
    pub accesses: Vec<StateAccess>,
    /// What the graph says of its use.
    pub evidence: Evidence,
}

/// One operation that touches a state.
#[derive(Clone, Debug)]
pub struct StateAccess {
    /// The operation; for an access in a nested block, its owner.
    pub node: NodeId,
    /// The operation's index in the block's schedule.
    pub place: usize,
    /// What it does.
    pub kind: Kind,
}

/// What an operation does with a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It reads the state; the value that it gets.
    Read {
        /// The result.
        result: ValueId,
        /// What the state holds.
        held: Held,
    },
    /// It writes the state.
    Write {
        /// The value that is written; `None` if it is a literal.
        data: Option<ValueId>,
        /// The `slice_update` that makes the value of what the state holds until then.
        updates: Option<NodeId>,
    },
    /// Something else takes the state, or a nested block touches it.
    Other(Access),
}

/// What a state holds at some point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// What it held before the call.
    Initial,
    /// A value that was written.
    Value(ValueId),
    /// Something that cannot be told.
    Unknown,
}

/// Which ways of use the graph shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// It goes into Q·Kᵀ as K.
    pub keys: bool,
    /// It goes into P·V as V.
    pub values: bool,
}

/// What a state is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// The keys of an attention.
    Keys,
    /// The values of an attention.
    Values,
    /// Something else.
    Other,
}

impl Role {
    /// The role that the evidence shows, or else the one that the name says.
    pub fn of(evidence: Evidence, name: &str) -> Self {
        match (evidence.keys, evidence.values) {
            (true, false) => Self::Keys,
            (false, true) => Self::Values,
            _ => Self::by_name(name),
        }
    }

    fn by_name(name: &str) -> Self {
        let name = name.to_lowercase();
        let words = || name.split(|c: char| !c.is_alphabetic());
        let has = |known: &[&str]| words().any(|word| known.contains(&word));
        let keys = has(&["k", "key", "keys", "kcache", "keycache", "keyscache"]);
        let values = has(&[
            "v",
            "value",
            "values",
            "vcache",
            "valuecache",
            "valuescache",
        ]);
        match (keys, values) {
            (true, false) => Self::Keys,
            (false, true) => Self::Values,
            _ => Self::Other,
        }
    }

    /// The word for many of them.
    pub fn word(self) -> &'static str {
        match self {
            Self::Keys => "keys",
            Self::Values => "values",
            Self::Other => "states",
        }
    }
}

impl std::ops::BitOr for Evidence {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self {
            keys: self.keys || other.keys,
            values: self.values || other.values,
        }
    }
}

/// The states that are inputs of a block, in the order of the inputs.
pub fn states(graph: &Graph) -> Vec<StateChain> {
    let order = graph.schedule().unwrap_or_default();
    let mut place = vec![usize::MAX; graph.bound()];
    for (index, node) in order.iter().enumerate() {
        if let Some(place) = place.get_mut(node.index()) {
            *place = index;
        }
    }
    let inputs = graph.inputs().iter().map(|node| ValueId::first(*node));
    inputs
        .filter_map(|state| {
            let named = graph.named(state)?;
            let ty = named.ty.as_ref()?.as_state()?;
            let accesses = accesses(graph, state, &place);
            Some(StateChain {
                state,
                name: named.name.clone(),
                ty: ty.clone(),
                evidence: evidence(graph, &accesses),
                accesses,
            })
        })
        .collect()
}

impl StateChain {
    /// An access that is neither a plain read nor a plain write.
    pub fn other_access(&self) -> Option<&StateAccess> {
        let mut accesses = self.accesses.iter();
        accesses
            .find(|access| matches!(access.kind, Kind::Other(_) | Kind::Write { data: None, .. }))
    }

    /// Whether anything writes it.
    pub fn is_written(&self) -> bool {
        let mut accesses = self.accesses.iter();
        accesses
            .any(|access| matches!(access.kind, Kind::Write { .. } | Kind::Other(Access::Write)))
    }
}

/// All accesses of one state; `place` has each operation's index in the schedule.
fn accesses(graph: &Graph, state: ValueId, place: &[usize]) -> Vec<StateAccess> {
    let mut users: Vec<(usize, NodeId)> = graph
        .uses(state)
        .map(|site| {
            let at = place.get(site.user.index()).copied().unwrap_or(usize::MAX);
            (at, site.user)
        })
        .collect();
    users.sort_unstable();
    users.dedup();
    let mut held = Held::Initial;
    // The results of reads that still are what the state holds.
    let mut current: Vec<ValueId> = Vec::new();
    let mut found = Vec::new();
    for (place, node) in users {
        let kind = match graph.op(node) {
            Some(op) if op.op_type() == "read_state" => {
                let result = ValueId::first(node);
                current.push(result);
                Kind::Read { result, held }
            }
            Some(op) if op.op_type() == "write_state" => {
                let data = op.value("data");
                let updates = data.filter(|data| {
                    let update = graph.producer(*data);
                    let update = update.filter(|op| op.op_type() == "slice_update");
                    let x = update.and_then(|op| op.value("x"));
                    x.is_some_and(|x| current.contains(&x))
                });
                held = data.map_or(Held::Unknown, Held::Value);
                current.clear();
                current.extend(data);
                Kind::Write {
                    data,
                    updates: updates.map(|value| value.node),
                }
            }
            op => {
                let access = op.and_then(|op| {
                    let mut touched = graph.state_accesses(op).into_iter();
                    touched.find(|(touched, _)| *touched == state)
                });
                let access = access.map_or(Access::Write, |(_, access)| access);
                if access == Access::Write {
                    held = Held::Unknown;
                    current.clear();
                }
                Kind::Other(access)
            }
        };
        found.push(StateAccess { node, place, kind });
    }
    found
}

/// Where what is read and written goes.
fn evidence(graph: &Graph, accesses: &[StateAccess]) -> Evidence {
    let mut evidence = Evidence::default();
    let mut seen: HashSet<ValueId> = HashSet::new();
    let mut waiting: Vec<ValueId> = Vec::new();
    for access in accesses {
        match access.kind {
            Kind::Read { result, .. } => waiting.push(result),
            Kind::Write {
                data: Some(data),
                updates: Some(_),
            } => waiting.push(data),
            _ => {}
        }
    }
    while let Some(value) = waiting.pop() {
        if !seen.insert(value) {
            continue;
        }
        for site in graph.uses(value) {
            let Slot::Argument { argument, .. } = site.slot else {
                continue;
            };
            let Some(op) = graph.op(site.user) else {
                continue;
            };
            let parameter = op
                .arguments()
                .get(argument as usize)
                .map_or("", |argument| argument.parameter.as_str());
            match (op.op_type(), parameter) {
                ("scaled_dot_product_attention", "key") => evidence.keys = true,
                ("scaled_dot_product_attention", "value") => evidence.values = true,
                ("matmul", _) | ("einsum", "values") => {
                    if reaches_softmax(graph, ValueId::first(site.user)) {
                        evidence.keys = true;
                    } else if others(op, value).any(|other| comes_from_softmax(graph, other)) {
                        evidence.values = true;
                    }
                }
                (
                    "slice_by_index" | "slice_by_size" | "reshape" | "transpose" | "expand_dims"
                    | "squeeze" | "tile" | "cast" | "split" | "identity" | "slice_update"
                    | "gather",
                    "x",
                )
                | ("concat", "values") => waiting.extend(results(op, site.user)),
                ("mul" | "real_div", "x" | "y")
                    if others(op, value).all(|v| is_scalar(graph, v)) =>
                {
                    waiting.extend(results(op, site.user));
                }
                _ => {}
            }
        }
    }
    evidence
}

fn results(op: &Operation, node: NodeId) -> impl Iterator<Item = ValueId> + use<> {
    (0..op.results().len() as u32).map(move |result| ValueId { node, result })
}

/// The values that an operation is bound to, other than this one.
fn others(op: &Operation, value: ValueId) -> impl Iterator<Item = ValueId> + '_ {
    let bindings = op
        .arguments()
        .iter()
        .flat_map(|argument| &argument.bindings);
    bindings.filter_map(move |binding| match binding {
        Binding::Value(other) if *other != value => Some(*other),
        _ => None,
    })
}

fn is_scalar(graph: &Graph, value: ValueId) -> bool {
    let ty = graph.ty(value).and_then(|ty| ty.as_tensor());
    ty.is_some_and(|ty| ty.elements() == Some(1))
}

/// Whether a product becomes the scores of a softmax.
fn reaches_softmax(graph: &Graph, product: ValueId) -> bool {
    let mut waiting = vec![product];
    let mut steps = 0;
    while let Some(value) = waiting.pop() {
        for site in graph.uses(value) {
            steps += 1;
            if steps > MAX_STEPS {
                return false;
            }
            let Some(op) = graph.op(site.user) else {
                continue;
            };
            match op.op_type() {
                "softmax" => return true,
                "mul" | "real_div" | "add" | "sub" | "select" | "cast" | "reshape" | "clip"
                | "tanh" | "maximum" | "minimum" | "transpose" | "expand_dims" | "squeeze"
                | "identity" | "concat" => waiting.extend(results(op, site.user)),
                _ => {}
            }
        }
    }
    false
}

/// Whether a value is the weights of a softmax.
fn comes_from_softmax(graph: &Graph, value: ValueId) -> bool {
    let mut waiting = vec![value];
    let mut steps = 0;
    while let Some(value) = waiting.pop() {
        steps += 1;
        if steps > MAX_STEPS {
            return false;
        }
        let Some(Node::Op(op)) = graph.node(value.node) else {
            continue;
        };
        let next: &[&str] = match op.op_type() {
            "softmax" => return true,
            "cast" | "reshape" | "transpose" | "expand_dims" | "squeeze" | "identity"
            | "slice_by_index" | "slice_by_size" | "split" => &["x"],
            "mul" => &["x", "y"],
            "select" => &["a", "b"],
            _ => continue,
        };
        waiting.extend(next.iter().filter_map(|parameter| op.value(parameter)));
    }
    false
}

#[cfg(test)]
mod tests;
