//! What ops ask of their arguments: indices within their table, slices within their tensor.

use super::linear::{Constraint, Linear, Unknown};
use super::trace::{Position, Role, Traced, Walk, sizes};
use crate::eval::constants::datum;
use crate::ir::types::{DType, ValueType};
use crate::ir::{Binding, Operation};
use crate::ops::Datum;

/// Size arguments (of `fill`, `tile`, `range_1d` and the like) that come from inputs are at most this.
const LARGEST_SIZE: i64 = 8;

impl Walk<'_> {
    /// What an op asks of its arguments.
    pub(super) fn constrain(&mut self, op: &Operation) {
        match op.op_type() {
            "gather" | "gather_along_axis" => self.index_of(op, "indices", "x", 0),
            "scatter" | "scatter_along_axis" => self.index_of(op, "indices", "data", 0),
            "gather_nd" => self.index_of_many(op, "x"),
            "scatter_nd" => self.index_of_many(op, "data"),
            "one_hot" => {
                if let Some(size) = self.int(op, "one_hot_vector_size") {
                    self.within(op, "indices", 0, size.saturating_sub(1));
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
                length,
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
