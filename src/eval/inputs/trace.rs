//! Where the numbers of the inputs go in a program: as indices, as positions, as masks.
//!
//! Integers are followed through ops that only move or shift them. What is lost on the way gives no
//! constraint; then an input gets small numbers.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::linear::{Constraint, Linear, Unknown};
use super::mask;
use crate::eval::constants::datum;
use crate::ir::types::{DType, ValueType};
use crate::ir::{Binding, Graph, Node, NodeId, Operation, Value, ValueId};
use crate::ops::Datum;
use crate::package::Weights;

/// Tensors of more elements are not followed element by element.
const MOST_ELEMENTS: usize = 64;

/// Size arguments (of `fill`, `tile`, `range_1d` and the like) that come from inputs are at most this.
const LARGEST_SIZE: i64 = 8;

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

struct Walk<'w> {
    graph: &'w Graph,
    values: HashMap<ValueId, Traced>,
    weights: &'w Arc<Weights>,
    trace: &'w mut Trace,
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
    fn of(&self, op: &Operation, parameter: &str) -> Traced {
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
    fn ints(&self, op: &Operation, parameter: &str) -> Option<Vec<i64>> {
        match self.of(op, parameter) {
            Traced::Elements(elements) => elements
                .iter()
                .map(|element| element.as_ref()?.as_constant())
                .collect(),
            _ => None,
        }
    }

    fn int(&self, op: &Operation, parameter: &str) -> Option<i64> {
        match self.ints(op, parameter)?.as_slice() {
            [one] => Some(*one),
            _ => None,
        }
    }

    /// The sizes of an argument as far as they are declared.
    fn shape(&self, op: &Operation, parameter: &str) -> Option<Vec<Option<i64>>> {
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
                begin + 1
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

    /// What an op asks of its arguments.
    fn constrain(&mut self, op: &Operation) {
        match op.op_type() {
            "gather" | "gather_along_axis" => self.index_of(op, "indices", "x", 0),
            "scatter" | "scatter_along_axis" => self.index_of(op, "indices", "data", 0),
            "gather_nd" => self.index_of_many(op, "x"),
            "scatter_nd" => self.index_of_many(op, "data"),
            "one_hot" => {
                if let Some(size) = self.int(op, "one_hot_vector_size") {
                    self.within(op, "indices", 0, size - 1);
                }
            }
            "slice_by_index" => self.slice(op, None),
            "slice_update" => self.slice(op, Some("update")),
            "slice_by_size" => self.slice_by_size(op),
            "crop_resize" => {
                if let Some(Some(count)) = self.shape(op, "x").and_then(|s| s.first().copied()) {
                    self.within(op, "box_indices", 0, count - 1);
                }
            }
            "topk" => {
                let axis = self.int(op, "axis").unwrap_or(-1);
                if let Some(size) = self.size(op, "x", axis) {
                    self.within(op, "k", 1, size);
                }
            }
            "range_1d" => self.within(op, "end", 1, LARGEST_SIZE),
            "fill" => self.within(op, "shape", 1, LARGEST_SIZE),
            "tile" => self.within(op, "reps", 1, LARGEST_SIZE),
            "list_read" | "list_write" => self.within(op, "index", 0, 0),
            "floor_div" | "mod" | "real_div" => self.within(op, "y", 1, i64::MAX),
            "less" | "less_equal" | "greater" | "greater_equal" | "equal" | "not_equal" => {
                self.compared(op);
            }
            "cast" => self.cast_to_bool(op),
            _ => {}
        }
    }

    fn size(&self, op: &Operation, parameter: &str, axis: i64) -> Option<i64> {
        let shape = self.shape(op, parameter)?;
        let rank = shape.len() as i64;
        let axis = if axis < 0 { axis + rank } else { axis };
        *shape.get(usize::try_from(axis).ok()?)?
    }

    fn index_of(&mut self, op: &Operation, indices: &str, table: &str, default: i64) {
        let axis = self.int(op, "axis").unwrap_or(default);
        if let Some(size) = self.size(op, table, axis) {
            self.within(op, indices, 0, size - 1);
        }
    }

    /// Indices whose last axis holds one for each of several axes: all must fit the shortest.
    fn index_of_many(&mut self, op: &Operation, table: &str) {
        let shape = self.shape(op, table).unwrap_or_default();
        let depth = self.shape(op, "indices").and_then(|s| *s.last()?);
        let batch = self.int(op, "batch_dims").unwrap_or(0);
        let skipped = usize::try_from(batch).unwrap_or(0);
        let taken = depth.and_then(|depth| usize::try_from(depth).ok());
        let sizes = shape.iter().skip(skipped);
        let least = sizes
            .take(taken.unwrap_or(usize::MAX))
            .flatten()
            .min()
            .copied();
        if let Some(size) = least {
            self.within(op, "indices", 0, size - 1);
        }
    }

    /// Every element of an argument must be between these.
    fn within(&mut self, op: &Operation, parameter: &str, low: i64, high: i64) {
        if let Traced::Among(sums) = self.of(op, parameter).shuffled() {
            for sum in sums {
                self.require(op, parameter, sum, low, high);
            }
        }
    }

    fn require(&mut self, op: &Operation, parameter: &str, sum: Linear, low: i64, high: i64) {
        if sum.terms.is_empty() {
            return;
        }
        for unknown in sum.terms.keys() {
            if let Unknown::Element { input, .. } = unknown {
                self.trace.reasons.entry(*input).or_insert_with(|| {
                    let name = op.results().first().map_or("", |r| r.name.as_str());
                    format!("`{parameter}` of {} `{name}`", op.op_type())
                });
            }
        }
        let constraint = Constraint { sum, low, high };
        if !self.trace.constraints.contains(&constraint) {
            self.trace.constraints.push(constraint);
        }
    }

    fn slice(&mut self, op: &Operation, update: Option<&str>) {
        let Some(shape) = self.shape(op, "x") else {
            return;
        };
        let taken = match update {
            Some(parameter) => self.shape(op, parameter),
            None => op.results().first().and_then(|result| {
                let ty = result.ty.as_ref()?.as_tensor()?;
                sizes(ty)
            }),
        };
        // Squeezed axes are gone from the result, so that its sizes stand elsewhere.
        let taken = taken.filter(|taken| taken.len() == shape.len());
        let (begin, end) = (self.of(op, "begin"), self.of(op, "end"));
        if let (Traced::Among(_), _) | (_, Traced::Among(_)) = (&begin, &end) {
            // Which axis an element belongs to is not known.
            if let Some(least) = shape.iter().flatten().min().copied() {
                self.within(op, "begin", 0, least - 1);
                self.within(op, "end", 1, least);
            }
            return;
        }
        let flags = |parameter| self.ints(op, parameter).unwrap_or_default();
        let (begin_mask, end_mask, squeeze_mask, stride) = (
            flags("begin_mask"),
            flags("end_mask"),
            flags("squeeze_mask"),
            flags("stride"),
        );
        for (axis, size) in shape.iter().enumerate() {
            let is_set = |mask: &[i64]| mask.get(axis).is_some_and(|flag| *flag != 0);
            let stride = stride.get(axis).copied().unwrap_or(1);
            let mut from = begin.element(axis);
            let mut to = end.element(axis);
            if is_set(&begin_mask) {
                from = Some(Linear::constant(0));
            }
            if is_set(&squeeze_mask) {
                to = from.as_ref().and_then(|b| b.plus(&Linear::constant(1), 1));
            } else if is_set(&end_mask) {
                to = size.map(Linear::constant);
            }
            let length = taken.as_ref().and_then(|taken| taken[axis]);
            let places = Places {
                from,
                to,
                size: *size,
                length,
                stride,
            };
            self.slice_axis(op, places, update.is_some());
        }
    }

    fn slice_axis(&mut self, op: &Operation, places: Places, writes: bool) {
        let Places {
            from,
            to,
            size,
            length,
            stride,
        } = places;
        if stride < 1 {
            // Backwards, which no position is: any place will do.
            for sum in [from, to].into_iter().flatten() {
                self.require(op, "begin", sum, 0, size.unwrap_or(1).saturating_sub(1));
            }
            return;
        }
        // How far a slice of this length reaches: at least and at most.
        let reach = length.map(|length| {
            let most = length.saturating_mul(stride);
            (most.saturating_sub(stride).saturating_add(1), most)
        });
        let most = size.unwrap_or(i64::MAX);
        let is_open = |sum: &Option<Linear>| sum.as_ref().is_some_and(|s| !s.terms.is_empty());
        if !is_open(&from) && !is_open(&to) {
            return;
        }
        if let Some(from) = from.clone().filter(|from| !from.terms.is_empty()) {
            let room = reach.map_or(1, |(least, _)| least);
            self.require(op, "begin", from, 0, most.saturating_sub(room));
        }
        if let Some(to) = to.clone().filter(|to| !to.terms.is_empty()) {
            self.require(op, "end", to, 1, most);
        }
        let (Some(from), Some(to)) = (from, to) else {
            return;
        };
        if let Some(span) = to.plus(&from, -1) {
            let (least, most) = reach.unwrap_or((1, i64::MAX));
            self.require(op, "end", span, least, most);
        }
        if writes {
            self.trace.positions.push(Position {
                begin: from,
                end: to,
                size,
            });
        }
    }

    fn slice_by_size(&mut self, op: &Operation) {
        let shape = self.shape(op, "x").unwrap_or_default();
        let (begin, length) = (self.of(op, "begin"), self.of(op, "size"));
        for (axis, size) in shape.iter().enumerate() {
            let Some(size) = *size else { continue };
            let taken = length.element(axis).and_then(|sum| sum.as_constant());
            if let Some(from) = begin.element(axis) {
                let room = taken.filter(|taken| *taken > 0).unwrap_or(1);
                self.require(op, "begin", from, 0, size - room);
            }
            if let Some(length) = length.element(axis) {
                self.require(op, "size", length, 1, size);
            }
        }
    }

    /// What an input is compared with says how large its numbers are.
    fn compared(&mut self, op: &Operation) {
        for (one, other) in [("x", "y"), ("y", "x")] {
            let Traced::Among(sums) = self.of(op, one).shuffled() else {
                continue;
            };
            let Some(limit) = self.greatest(op, other).filter(|limit| *limit > 0) else {
                continue;
            };
            for unknown in sums.iter().flat_map(|sum| sum.terms.keys()) {
                if let Unknown::Element { input, .. } = unknown {
                    let known = self.trace.limits.entry(*input).or_insert(limit);
                    *known = (*known).max(limit);
                }
            }
        }
    }

    /// The greatest element of a constant, one more than the last number of a range 0, 1, ….
    fn greatest(&self, op: &Operation, parameter: &str) -> Option<i64> {
        /// Constants with more elements are not looked through.
        const MOST: u64 = 1 << 16;
        let value = match op.binding(parameter)? {
            Binding::Immediate(value) => value,
            Binding::Value(value) => self.graph.op(value.node)?.const_value()?,
            Binding::Absent => return None,
        };
        let ty = value.tensor_type()?;
        if !ty.dtype.is_int() || ty.elements()? > MOST {
            return None;
        }
        let Datum::Tensor(tensor) = datum(value, self.weights).ok()? else {
            return None;
        };
        let ints = tensor.as_ints().ok()?;
        let greatest = ints.iter().max().copied()?;
        Some(greatest.saturating_add(i64::from(ints.len() > 1)))
    }

    fn cast_to_bool(&mut self, op: &Operation) {
        let is_bool = op.results().first().is_some_and(|result| {
            let ty = result.ty.as_ref().and_then(ValueType::as_tensor);
            ty.is_some_and(|ty| ty.dtype == DType::Bool)
        });
        if !is_bool {
            return;
        }
        if let Traced::Among(sums) = self.of(op, "x").shuffled() {
            for unknown in sums.iter().flat_map(|sum| sum.terms.keys()) {
                if let Unknown::Element { input, .. } = unknown {
                    self.trace.roles.entry(*input).or_insert(Role::Flags);
                }
            }
        }
    }
}

/// A slice along one axis.
struct Places {
    from: Option<Linear>,
    to: Option<Linear>,
    /// Of the tensor.
    size: Option<i64>,
    /// Of the slice.
    length: Option<i64>,
    stride: i64,
}

fn sizes(ty: &crate::ir::types::TensorType) -> Option<Vec<Option<i64>>> {
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
    fn shuffled(self) -> Self {
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
    fn element(&self, at: usize) -> Option<Linear> {
        match self {
            Self::Elements(elements) => elements.get(at)?.clone(),
            _ => None,
        }
    }
}
