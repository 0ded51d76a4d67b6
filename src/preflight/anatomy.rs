//! What each value of a function is there for: part of the residual stream, of the square of a norm,
//! of attention scores, a weight, a mask, or inside of a branch; and in which layer.
//!
//! All of it is read off the graph; names play no part.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::analysis::attention;
use crate::analysis::norm::{self, Found};
use crate::analysis::residual::{self, Stream};
use crate::ir::{Binding, Body, NodeId, ValueId};
use crate::ops::Opset;
use crate::pass::{Blobs, Block};

/// What a value is there for, or what goes wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// A value of the residual stream: it grows by what each layer adds.
    ResidualAccumulation,
    /// Inside of a branch of the stream, or of a model without one.
    Branch,
    /// Scores of an attention, from the product of queries and keys to the softmax.
    AttentionLogits,
    /// From the square of a norm to its root.
    NormSquare,
    /// A constant of the model.
    Weight,
    /// What is added to attention scores, or chooses among them.
    Mask,
    /// A quotient, root or logarithm whose guard is too small for fp16.
    GuardEpsilon,
}

impl Class {
    /// The class in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::ResidualAccumulation => "residual accumulation",
            Self::Branch => "branch",
            Self::AttentionLogits => "attention logits",
            Self::NormSquare => "norm square",
            Self::Weight => "weight",
            Self::Mask => "mask",
            Self::GuardEpsilon => "guard epsilon",
        }
    }
}

/// One value of a function.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// The type of the operation that makes it; `input` for an input.
    pub op_type: String,
    /// What it is there for.
    pub class: Class,
    /// The layer that it belongs to, counted from 0, if there is a stream.
    pub layer: Option<usize>,
    /// What the operation reads.
    pub operands: Vec<String>,
}

/// One layer of a stream, by names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The values of the stream that the layer makes, in order.
    pub values: Vec<String>,
    /// What it adds.
    pub branches: Vec<String>,
}

/// The values of a function, in the order in which they are computed, those of nested blocks with the
/// operation that owns them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Anatomy {
    /// The values.
    pub members: Vec<Member>,
    /// Where the residual stream begins, if there is one.
    pub start: Option<String>,
    /// Its layers.
    pub layers: Vec<Layer>,
}

impl Anatomy {
    /// The anatomy of a body.
    pub fn of(body: &Body, opset: &str, blobs: &dyn Blobs) -> Self {
        let block = Block {
            graph: &body.graph,
            outer: None,
            opset: Opset::parse(opset),
            blobs,
            ranges: None,
        };
        let stream = residual::longest(&block);
        let mut roles = Roles::new(&block);
        let mut anatomy = Self::default();
        if let Some(stream) = &stream {
            let layers = stream.layers(&block);
            roles.stream(&block, stream, &layers);
            let name = |value: ValueId| block.graph.name(value).to_owned();
            anatomy.start = Some(name(stream.start));
            let layer = |writes: &std::ops::Range<usize>| {
                let writes = stream.writes.get(writes.clone()).unwrap_or_default();
                Layer {
                    values: writes.iter().map(|w| name(ValueId::first(w.add))).collect(),
                    branches: writes.iter().map(|w| name(w.branch)).collect(),
                }
            };
            anatomy.layers = layers.iter().map(layer).collect();
        }
        for input in body.graph.inputs() {
            let (class, layer) = roles.of(*input, false);
            anatomy.members.push(Member {
                name: body.graph.name(ValueId::first(*input)).to_owned(),
                op_type: "input".to_owned(),
                class,
                layer,
                operands: Vec::new(),
            });
        }
        anatomy.add(&block, &|node, is_constant| roles.of(node, is_constant));
        anatomy
    }

    /// Adds the values of a block; `role` gives class and layer of what an operation makes, by whether
    /// that is a constant. What is in a nested block is in the layer of its owner.
    fn add(&mut self, block: &Block<'_>, role: &dyn Fn(NodeId, bool) -> (Class, Option<usize>)) {
        // A graph with a cycle has no order; decoding refuses it.
        for node in block.graph.schedule().unwrap_or_default().iter() {
            let Some(op) = block.op(*node) else { continue };
            let is_constant = op.const_value().is_some() || op.op_type().starts_with("constexpr_");
            let (class, layer) = role(*node, is_constant);
            let inside = |_, is_constant| {
                let class = if is_constant {
                    Class::Weight
                } else {
                    Class::Branch
                };
                (class, layer)
            };
            for graph in op.blocks() {
                let inner = Block {
                    graph,
                    outer: Some(block),
                    ..*block
                };
                self.add(&inner, &inside);
            }
            let operands: Vec<String> = op
                .operands()
                .map(|value| block.graph.name(value).to_owned())
                .collect();
            for result in op.results() {
                self.members.push(Member {
                    name: result.name.clone(),
                    op_type: op.op_type().to_owned(),
                    class,
                    layer,
                    operands: operands.clone(),
                });
            }
        }
    }

    /// The layer that makes a value of the stream.
    pub fn layer_of(&self, value: &str) -> Option<usize> {
        let makes = |layer: &Layer| layer.values.iter().any(|own| own == value);
        self.layers.iter().position(makes)
    }
}

/// What the operations of a block are there for.
struct Roles {
    classes: HashMap<NodeId, Class>,
    layers: HashMap<NodeId, usize>,
}

/// How many operations a walk within a norm or a mask passes.
const MAX_DEPTH: usize = 8;

impl Roles {
    fn new(block: &Block<'_>) -> Self {
        let mut roles = Self {
            classes: HashMap::new(),
            layers: HashMap::new(),
        };
        for (node, _) in block.graph.ops() {
            if let Found::Norm(found) = norm::at(block, node)
                && let Some((square, _)) = found.square
            {
                roles.norm(block, square, found.root);
            }
            let Some(found) = attention::at(block, node) else {
                continue;
            };
            if let Some(chain) = &found.chain {
                roles.classes.insert(chain.first, Class::AttentionLogits);
                // From where a mask is applied on, what is large is the mask's doing.
                let mut class = Class::AttentionLogits;
                for step in chain.steps.iter().take_while(|s| s.node != chain.softmax) {
                    if found.masks.iter().any(|mask| mask.node == step.node) {
                        class = Class::Mask;
                    }
                    roles.classes.insert(step.node, class);
                }
            }
            for mask in &found.masks {
                roles.mask(block, &mask.mask);
            }
        }
        roles
    }

    /// From the square of a norm forward to its root.
    fn norm(&mut self, block: &Block<'_>, square: NodeId, root: NodeId) {
        let mut pending = vec![(square, 0)];
        while let Some((node, depth)) = pending.pop() {
            if node == root || depth > MAX_DEPTH || block.op(node).is_none() {
                continue;
            }
            if self.classes.insert(node, Class::NormSquare).is_none() {
                let users = block.graph.uses(ValueId::first(node));
                pending.extend(users.map(|reader| (reader.user, depth + 1)));
            }
        }
    }

    /// From where a mask is used back to where it comes from.
    fn mask(&mut self, block: &Block<'_>, mask: &Binding) {
        let mut next = match mask {
            Binding::Value(value) => Some(*value),
            _ => None,
        };
        for _ in 0..MAX_DEPTH {
            let Some(value) = next else { return };
            self.classes.insert(value.node, Class::Mask);
            next = block.op(value.node).and_then(|op| op.value("x"));
        }
    }

    /// The values of the stream, and the regions of its branches.
    fn stream(&mut self, block: &Block<'_>, stream: &Stream, layers: &[std::ops::Range<usize>]) {
        let mut visited: HashSet<NodeId> = stream.values().map(|value| value.node).collect();
        for (index, writes) in layers.iter().enumerate() {
            for write in stream.writes.get(writes.clone()).unwrap_or_default() {
                self.layers.insert(write.add, index);
                self.classes.insert(write.add, Class::ResidualAccumulation);
                let mut pending = vec![write.branch.node];
                while let Some(node) = pending.pop() {
                    if !visited.insert(node) {
                        continue;
                    }
                    let Some(op) = block.op(node) else { continue };
                    self.layers.insert(node, index);
                    pending.extend(op.operands().map(|value| value.node));
                }
            }
        }
        self.classes
            .insert(stream.start.node, Class::ResidualAccumulation);
        for clip in &stream.clips {
            self.classes.insert(*clip, Class::ResidualAccumulation);
        }
    }

    fn of(&self, node: NodeId, is_constant: bool) -> (Class, Option<usize>) {
        let known = self.classes.get(&node).copied();
        let class = match known {
            Some(Class::Mask) => Class::Mask,
            _ if is_constant => Class::Weight,
            Some(class) => class,
            None => Class::Branch,
        };
        (class, self.layers.get(&node).copied())
    }
}
