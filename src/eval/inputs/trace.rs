//! Where the numbers of the inputs go in a program: as indices, as positions, as masks.
//!
//! Integers are followed through ops that only move or shift them. What is lost on the way gives no
//! constraint; then an input gets small numbers.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::linear::{Constraint, Linear, Unknown};
use super::mask;
use crate::eval::constants::datum;
use crate::ir::types::DType;
use crate::ir::{Binding, Graph, Node, NodeId, Operation, Value, ValueId};
use crate::ops::Datum;
use crate::package::Weights;

/// Tensors of more elements are not followed element by element.
const MOST_ELEMENTS: usize = 64;

/// What is known of a tensor's elements.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Traced {
    /// Nothing.
    Lost,
    /// Each element in row-major order, as far as it is known.
    Elements(Vec<Option<Linear>>),
    /// Every element is one of these.
    Among(Vec<Linear>),
}

/// What an input is for, where that is not its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Added to attention scores.
    AdditiveMask,
    /// One for what counts and zero for what does not.
    Flags,
}

/// A place in a state that a call writes to: `begin` up to `end` of an axis of this size.
#[derive(Clone, Debug)]
pub(super) struct Position {
    pub(super) begin: Linear,
    pub(super) end: Linear,
    pub(super) size: Option<i64>,
    /// How much is written, if it is declared.
    pub(super) length: Option<i64>,
}

/// What a program does with its inputs.
#[derive(Debug, Default)]
pub(super) struct Trace {
    pub(super) constraints: Vec<Constraint>,
    pub(super) positions: Vec<Position>,
    pub(super) roles: BTreeMap<usize, Role>,
    /// The greatest constant that elements of an input are compared with.
    pub(super) limits: BTreeMap<usize, i64>,
    /// For an input with constraints, the op that the first is from.
    pub(super) reasons: BTreeMap<usize, String>,
}

/// Follows the inputs of a graph. `inputs` says which number each of the graph's inputs has, and
/// what is known of its elements.
pub(super) fn follow(
    graph: &Graph,
    inputs: HashMap<NodeId, (usize, Traced)>,
    weights: &Arc<Weights>,
    trace: &mut Trace,
) {
    let numbers = inputs.iter().map(|(node, (n, _))| (*node, *n)).collect();
    mask::find(graph, &numbers, &mut trace.roles);
    let values = inputs
        .into_iter()
        .map(|(node, (_, traced))| (ValueId::first(node), traced))
        .collect();
    block(graph, values, weights, trace);
}

fn block(
    graph: &Graph,
    values: HashMap<ValueId, Traced>,
    weights: &Arc<Weights>,
    trace: &mut Trace,
) {
    // A graph with a cycle does not run anyway.
    let Ok(order) = graph.schedule() else { return };
    let mut walk = Walk {
        graph,
        values,
        weights,
        trace,
    };
    for node in order.iter() {
        if let Some(op) = graph.op(*node) {
            for inner in op.blocks() {
                walk.nested(inner);
            }
            walk.op(*node, op);
        }
    }
}

pub(super) struct Walk<'w> {
    pub(super) graph: &'w Graph,
    values: HashMap<ValueId, Traced>,
    pub(super) weights: &'w Arc<Weights>,
    pub(super) trace: &'w mut Trace,
}

impl Walk<'_> {
    fn nested(&mut self, inner: &Graph) {
        let captured = inner
            .captures()
            .filter_map(|(node, source)| {
                let traced = self.values.get(&source)?.clone();
                Some((ValueId::first(node), traced))
            })
            .collect();
        block(inner, captured, self.weights, self.trace);
    }

    /// What is known of an argument.
    pub(super) fn of(&self, op: &Operation, parameter: &str) -> Traced {
        op.binding(parameter)
            .map_or(Traced::Lost, |binding| self.of_binding(binding))
    }

    fn of_binding(&self, binding: &Binding) -> Traced {
        match binding {
            Binding::Value(value) => self.values.get(value).cloned().unwrap_or(Traced::Lost),
            Binding::Immediate(value) => self.constant(value),
            Binding::Absent => Traced::Lost,
        }
    }

    fn constant(&self, value: &Value) -> Traced {
        let small = value
            .tensor_type()
            .filter(|ty| ty.dtype.is_int() || ty.dtype == DType::Bool)
            .and_then(crate::ir::types::TensorType::elements)
            .is_some_and(|count| count <= MOST_ELEMENTS as u64);
        if !small {
            return Traced::Lost;
        }
        let Ok(Datum::Tensor(tensor)) = datum(value, self.weights) else {
            return Traced::Lost;
        };
        if let Ok(bools) = tensor.as_bools() {
            let elements = bools.iter().map(|b| Some(Linear::constant(i64::from(*b))));
            return Traced::Elements(elements.collect());
        }
        match tensor.as_ints() {
            Ok(ints) => Traced::Elements(
                ints.iter()
                    .map(|int| Some(Linear::constant(*int)))
                    .collect(),
            ),
            Err(_) => Traced::Lost,
        }
    }

    /// The elements of an argument, if all of them are constants.
    pub(super) fn ints(&self, op: &Operation, parameter: &str) -> Option<Vec<i64>> {
        match self.of(op, parameter) {
            Traced::Elements(elements) => elements
                .iter()
                .map(|element| element.as_ref()?.as_constant())
                .collect(),
            _ => None,
        }
    }

    pub(super) fn int(&self, op: &Operation, parameter: &str) -> Option<i64> {
        match self.ints(op, parameter)?.as_slice() {
            [one] => Some(*one),
            _ => None,
        }
    }

    /// The sizes of an argument as far as they are declared.
    pub(super) fn shape(&self, op: &Operation, parameter: &str) -> Option<Vec<Option<i64>>> {
        let ty = match op.binding(parameter)? {
            Binding::Value(value) => self.graph.ty(*value)?.as_tensor()?,
            Binding::Immediate(value) => value.tensor_type()?,
            Binding::Absent => return None,
        };
        sizes(ty)
    }

    fn rank(&self, op: &Operation, parameter: &str) -> Option<usize> {
        self.shape(op, parameter).map(|shape| shape.len())
    }

    fn op(&mut self, node: NodeId, op: &Operation) {
        let first = ValueId::first(node);
        if let Some(value) = op.const_value() {
            let traced = self.constant(value);
            self.values.insert(first, traced);
            return;
        }
        self.constrain(op);
        let traced = match op.op_type() {
            // Ops that keep the elements in their order.
            "identity" | "cast" | "reshape" | "expand_dims" | "squeeze" | "flatten2d"
            | "reshape_like" => self.of(op, "x"),
            "transpose" | "tile" | "reverse" | "slice_by_size" | "gather_along_axis"
            | "gather_nd" | "pad" | "clip" => self.of(op, "x").shuffled(),
            "maximum" | "minimum" => self.bounded(op),
            "slice_by_index" => self.sliced(op),
            "gather" => self.gathered(op),
            "split" => return self.split(node, op),
            "shape" => self.shape_of(op),
            "add" => self.sum(op, 1),
            "sub" => self.sum(op, -1),
            "mul" => self.product(op),
            "select" => self.selected(op),
            "concat" | "stack" => self.joined(op),
            _ => Traced::Lost,
        };
        if traced != Traced::Lost {
            self.values.insert(first, traced);
        }
    }

    /// A maximum or minimum with constants leaves what is in between as it is.
    fn bounded(&self, op: &Operation) -> Traced {
        match (self.of(op, "x"), self.of(op, "y")) {
            (x, Traced::Elements(y)) if constants(&y) => x.shuffled(),
            (Traced::Elements(x), y) if constants(&x) => y.shuffled(),
            _ => Traced::Lost,
        }
    }

    fn sliced(&self, op: &Operation) -> Traced {
        let x = self.of(op, "x");
        let Traced::Elements(elements) = &x else {
            return x;
        };
        let slice = || {
            if self.rank(op, "x")? != 1 {
                return None;
            }
            let flag = |parameter| self.int(op, parameter).unwrap_or(0) != 0;
            let count = i64::try_from(elements.len()).ok()?;
            let place = |at: i64| if at < 0 { at + count } else { at };
            let begin = if flag("begin_mask") {
                0
            } else {
                place(self.int(op, "begin")?)
            };
            let end = if flag("squeeze_mask") {
                begin.saturating_add(1)
            } else if flag("end_mask") {
                count
            } else {
                place(self.int(op, "end")?)
            };
            let only = self.int(op, "stride").unwrap_or(1) == 1;
            let range = usize::try_from(begin).ok()?..usize::try_from(end).ok()?;
            only.then(|| elements.get(range).map(<[_]>::to_vec))?
        };
        slice().map_or_else(|| x.clone().shuffled(), Traced::Elements)
    }

    fn gathered(&self, op: &Operation) -> Traced {
        let x = self.of(op, "x");
        if let (Traced::Elements(elements), Some(1), Some(indices)) =
            (&x, self.rank(op, "x"), self.ints(op, "indices"))
        {
            let count = elements.len() as i64;
            let picked = indices.iter().map(|index| {
                let index = if *index < 0 { index + count } else { *index };
                let index = usize::try_from(index).ok()?;
                elements.get(index)?.clone()
            });
            return Traced::Elements(picked.collect());
        }
        x.shuffled()
    }

    fn split(&mut self, node: NodeId, op: &Operation) {
        let traced = self.of(op, "x").shuffled();
        if traced != Traced::Lost {
            for result in 0..op.results().len() as u32 {
                self.values.insert(ValueId { node, result }, traced.clone());
            }
        }
    }

    /// Sizes: those that are declared, and those of inputs.
    fn shape_of(&self, op: &Operation) -> Traced {
        let Some(shape) = self.shape(op, "x") else {
            return Traced::Lost;
        };
        let mut value = op.value("x");
        // A cast has the shape of its argument.
        while let Some(op) = value.and_then(|value| self.graph.op(value.node)) {
            value = match op.op_type() {
                "cast" | "identity" => op.value("x"),
                _ => None,
            };
        }
        let input = value.and_then(|value| match self.values.get(&value)? {
            Traced::Among(one) => one.first()?.terms.keys().next().copied(),
            Traced::Elements(elements) => {
                let first = elements.first()?.as_ref()?;
                first.terms.keys().next().copied()
            }
            Traced::Lost => None,
        });
        let is_input =
            value.is_some_and(|value| matches!(self.graph.node(value.node), Some(Node::Input(..))));
        let sizes = shape.iter().enumerate().map(|(axis, size)| {
            if let Some(size) = size {
                return Some(Linear::constant(*size));
            }
            match input {
                Some(Unknown::Element { input, .. }) if is_input => {
                    Some(Linear::unknown(Unknown::Size { input, axis }))
                }
                _ => None,
            }
        });
        Traced::Elements(sizes.collect())
    }

    fn sum(&self, op: &Operation, factor: i64) -> Traced {
        let combine = |x: &Option<Linear>, y: &Option<Linear>| -> Option<Linear> {
            x.as_ref()?.plus(y.as_ref()?, factor)
        };
        match (self.of(op, "x"), self.of(op, "y")) {
            (Traced::Elements(x), Traced::Elements(y)) => {
                let elements = match (x.as_slice(), y.as_slice()) {
                    (x, y) if x.len() == y.len() => {
                        x.iter().zip(y).map(|(x, y)| combine(x, y)).collect()
                    }
                    ([x], y) => y.iter().map(|y| combine(x, y)).collect(),
                    (x, [y]) => x.iter().map(|x| combine(x, y)).collect(),
                    _ => return Traced::Lost,
                };
                Traced::Elements(elements)
            }
            (Traced::Among(x), Traced::Elements(y)) => each_with(&x, &y, |x, y| x.plus(y, factor)),
            (Traced::Elements(x), Traced::Among(y)) => each_with(&y, &x, |y, x| x.plus(y, factor)),
            _ => Traced::Lost,
        }
    }

    fn product(&self, op: &Operation) -> Traced {
        let (traced, times) = match (self.int(op, "x"), self.int(op, "y")) {
            (_, Some(times)) => (self.of(op, "x"), times),
            (Some(times), None) => (self.of(op, "y"), times),
            (None, None) => return Traced::Lost,
        };
        traced.map(&|linear| Linear::default().plus(linear, times))
    }

    /// Indices from the end are brought into range by `select(index < 0, index + size, index)`;
    /// ours are never negative, so that of the two the one without an offset is meant.
    fn selected(&self, op: &Operation) -> Traced {
        let plain = |x: &Linear, y: &Linear| -> Option<Linear> {
            let same = x.terms == y.terms && !x.terms.is_empty();
            let x_is_plain = x.constant.abs() <= y.constant.abs();
            same.then(|| if x_is_plain { x.clone() } else { y.clone() })
        };
        match (self.of(op, "a"), self.of(op, "b")) {
            (Traced::Elements(a), Traced::Elements(b)) if a.len() == b.len() => {
                let pairs = a.iter().zip(&b);
                Traced::Elements(
                    pairs
                        .map(|(x, y)| plain(x.as_ref()?, y.as_ref()?))
                        .collect(),
                )
            }
            (Traced::Among(a), Traced::Among(b)) if a.len() == b.len() => {
                let chosen: Option<Vec<Linear>> =
                    a.iter().zip(&b).map(|(x, y)| plain(x, y)).collect();
                chosen.map_or(Traced::Lost, Traced::Among)
            }
            _ => Traced::Lost,
        }
    }

    fn joined(&self, op: &Operation) -> Traced {
        let Some(values) = op.argument("values") else {
            return Traced::Lost;
        };
        let rank = op.results().first().and_then(|result| {
            let ty = result.ty.as_ref()?.as_tensor()?;
            sizes(ty).map(|shape| shape.len())
        });
        let parts: Vec<(Traced, Option<usize>)> = values
            .bindings
            .iter()
            .map(|binding| (self.of_binding(binding), self.count(binding)))
            .collect();
        if rank == Some(1) {
            let mut elements = Vec::new();
            for (traced, count) in &parts {
                match (traced, count) {
                    (Traced::Elements(own), _) => elements.extend(own.iter().cloned()),
                    (Traced::Among(own), Some(1)) if own.len() == 1 => {
                        elements.extend(own.iter().cloned().map(Some));
                    }
                    (_, Some(count)) if *count <= MOST_ELEMENTS => {
                        elements.extend(std::iter::repeat_n(None, *count));
                    }
                    _ => return Traced::Lost,
                }
                if elements.len() > MOST_ELEMENTS {
                    return Traced::Lost;
                }
            }
            return Traced::Elements(elements);
        }
        let mut among = Vec::new();
        for (traced, _) in parts {
            match traced.shuffled() {
                Traced::Among(own) => among.extend(own),
                _ => return Traced::Lost,
            }
        }
        Traced::Elements(among.into_iter().map(Some).collect()).shuffled()
    }

    /// The declared number of elements of a binding.
    fn count(&self, binding: &Binding) -> Option<usize> {
        let ty = match binding {
            Binding::Value(value) => self.graph.ty(*value)?.as_tensor()?,
            Binding::Immediate(value) => value.tensor_type()?,
            Binding::Absent => return None,
        };
        usize::try_from(ty.elements()?).ok()
    }
}

pub(super) fn sizes(ty: &crate::ir::types::TensorType) -> Option<Vec<Option<i64>>> {
    (ty.rank >= 0).then(|| {
        let dims = ty.dims.iter();
        dims.map(|dim| dim.size().and_then(|size| i64::try_from(size).ok()))
            .collect()
    })
}

fn constants(elements: &[Option<Linear>]) -> bool {
    elements
        .iter()
        .all(|element| element.as_ref().is_some_and(|sum| sum.terms.is_empty()))
}

/// Every sum with the one element of the other side.
fn each_with(
    sums: &[Linear],
    one: &[Option<Linear>],
    combine: impl Fn(&Linear, &Linear) -> Option<Linear>,
) -> Traced {
    let [Some(one)] = one else {
        return Traced::Lost;
    };
    let combined: Option<Vec<Linear>> = sums.iter().map(|sum| combine(sum, one)).collect();
    combined.map_or(Traced::Lost, Traced::Among)
}

impl Traced {
    /// The same elements in any order and number.
    pub(super) fn shuffled(self) -> Self {
        match self {
            Self::Elements(elements) => {
                let mut among: Vec<Linear> = Vec::new();
                for sum in elements.into_iter().flatten() {
                    if !among.contains(&sum) {
                        among.push(sum);
                    }
                }
                Self::Among(among)
            }
            other => other,
        }
    }

    fn map(self, change: &dyn Fn(&Linear) -> Option<Linear>) -> Self {
        match self {
            Self::Lost => Self::Lost,
            Self::Elements(elements) => Self::Elements(
                elements
                    .iter()
                    .map(|element| element.as_ref().and_then(change))
                    .collect(),
            ),
            Self::Among(sums) => {
                let changed: Option<Vec<Linear>> = sums.iter().map(change).collect();
                changed.map_or(Self::Lost, Self::Among)
            }
        }
    }

    /// The element in this place, if it is known.
    pub(super) fn element(&self, at: usize) -> Option<Linear> {
        match self {
            Self::Elements(elements) => elements.get(at)?.clone(),
            _ => None,
        }
    }
}
