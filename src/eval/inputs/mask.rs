//! Which inputs are masks: those that meet the scores of an attention before its softmax.

use std::collections::{BTreeMap, HashMap};

use super::trace::Role;
use crate::ir::types::DType;
use crate::ir::{Binding, Graph, Node, NodeId, Operation, ValueId};

/// How many ops lie between scores and softmax, or between an input and where it is used as a mask,
/// at most.
const DEEPEST: usize = 12;

/// An input on its way into a mask.
#[derive(Clone, Copy)]
struct Source {
    input: usize,
    /// Whether anything was computed with it on the way.
    is_computed: bool,
}

/// Finds the masks among the inputs of a graph and of the blocks in it that the graph's own ops see.
pub(super) fn find(
    graph: &Graph,
    inputs: &HashMap<NodeId, usize>,
    roles: &mut BTreeMap<usize, Role>,
) {
    let mut finder = Finder {
        graph,
        inputs,
        roles,
    };
    for (_, op) in graph.ops() {
        match op.op_type() {
            "softmax" => {
                if let Some(scores) = op.value("x") {
                    finder.scores(scores, 0);
                }
            }
            "scaled_dot_product_attention" => {
                if let Some(mask) = op.value("attn_mask") {
                    finder.mask(mask);
                }
            }
            _ => {}
        }
    }
}

struct Finder<'f> {
    graph: &'f Graph,
    inputs: &'f HashMap<NodeId, usize>,
    roles: &'f mut BTreeMap<usize, Role>,
}

impl Finder<'_> {
    /// Looks for masks in what gives the scores.
    fn scores(&mut self, value: ValueId, depth: usize) {
        let Some(op) = self.graph.op(value.node).filter(|_| depth < DEEPEST) else {
            return;
        };
        let next: Vec<ValueId> = match op.op_type() {
            "cast" | "reshape" | "transpose" | "squeeze" | "expand_dims" | "clip" => {
                op.value("x").into_iter().collect()
            }
            "maximum" | "minimum" | "mul" | "real_div" | "sub" => [op.value("x"), op.value("y")]
                .into_iter()
                .flatten()
                .collect(),
            "add" => {
                self.added(op);
                [op.value("x"), op.value("y")]
                    .into_iter()
                    .flatten()
                    .collect()
            }
            "select" => {
                if let Some(cond) = op.value("cond") {
                    self.flags(cond);
                }
                [op.value("a"), op.value("b")]
                    .into_iter()
                    .flatten()
                    .collect()
            }
            _ => Vec::new(),
        };
        for value in next {
            self.scores(value, depth + 1);
        }
    }

    /// One side of a sum is a mask if it comes from an input and the other side is computed. If both
    /// come from inputs it is the one that something was done to, or the smaller one.
    fn added(&mut self, op: &Operation) {
        let (Some(x), Some(y)) = (op.value("x"), op.value("y")) else {
            return;
        };
        let chosen = match (self.source(x, 0), self.source(y, 0)) {
            (Some(source), None) if !self.is_constant(y) => Some((x, source)),
            (None, Some(source)) if !self.is_constant(x) => Some((y, source)),
            (Some(a), Some(b)) if a.is_computed != b.is_computed => {
                Some(if a.is_computed { (x, a) } else { (y, b) })
            }
            (Some(a), Some(b)) => match self.elements(x).cmp(&self.elements(y)) {
                std::cmp::Ordering::Less => Some((x, a)),
                std::cmp::Ordering::Greater => Some((y, b)),
                std::cmp::Ordering::Equal => None,
            },
            _ => None,
        };
        if let Some((value, source)) = chosen {
            self.mark(value, source);
        }
    }

    fn mask(&mut self, value: ValueId) {
        if let Some(source) = self.source(value, 0) {
            self.mark(value, source);
        }
    }

    fn mark(&mut self, value: ValueId, source: Source) {
        let is_bool = self.dtype(value) == Some(DType::Bool);
        let role = if source.is_computed || is_bool {
            Role::Flags
        } else {
            Role::AdditiveMask
        };
        self.roles.entry(source.input).or_insert(role);
    }

    fn flags(&mut self, value: ValueId) {
        if let Some(source) = self.source(value, 0) {
            self.roles.entry(source.input).or_insert(Role::Flags);
        }
    }

    /// The one input that a value is made of, together with constants.
    fn source(&self, value: ValueId, depth: usize) -> Option<Source> {
        if depth >= DEEPEST {
            return None;
        }
        let op = match self.graph.node(value.node)? {
            Node::Input(..) => {
                return self.inputs.get(&value.node).map(|input| Source {
                    input: *input,
                    is_computed: false,
                });
            }
            Node::Op(op) => op,
            _ => return None,
        };
        match op.op_type() {
            "cast" | "identity" | "reshape" | "expand_dims" | "squeeze" | "transpose" | "tile"
            | "slice_by_index" | "slice_by_size" => self.source(op.value("x")?, depth + 1),
            "logical_not" => self.computed(op.value("x")?, depth),
            "add" | "sub" | "mul" | "real_div" | "equal" | "not_equal" | "greater"
            | "greater_equal" | "less" | "less_equal" => {
                match (self.constant(op, "x"), self.constant(op, "y")) {
                    (true, false) => self.computed(op.value("y")?, depth),
                    (false, true) => self.computed(op.value("x")?, depth),
                    _ => None,
                }
            }
            "select" if self.constant(op, "a") && self.constant(op, "b") => {
                self.computed(op.value("cond")?, depth)
            }
            _ => None,
        }
    }

    fn computed(&self, value: ValueId, depth: usize) -> Option<Source> {
        let source = self.source(value, depth + 1)?;
        Some(Source {
            is_computed: true,
            ..source
        })
    }

    fn constant(&self, op: &Operation, parameter: &str) -> bool {
        match op.binding(parameter) {
            Some(Binding::Immediate(_)) => true,
            Some(Binding::Value(value)) => self.is_constant(*value),
            _ => false,
        }
    }

    fn is_constant(&self, value: ValueId) -> bool {
        let op = self.graph.op(value.node);
        op.is_some_and(|op| op.const_value().is_some() || op.op_type().starts_with("constexpr_"))
    }

    fn dtype(&self, value: ValueId) -> Option<DType> {
        Some(self.graph.ty(value)?.as_tensor()?.dtype)
    }

    fn elements(&self, value: ValueId) -> u64 {
        let ty = self.graph.ty(value).and_then(|ty| ty.as_tensor());
        // An unknown size counts as one: masks and scores share the unknown ones.
        ty.map_or(0, |ty| {
            let sizes = ty.dims.iter().map(|dim| dim.size().unwrap_or(1));
            sizes.fold(1, u64::saturating_mul)
        })
    }
}
