//! Operations on padded tensors, in the place of the same operations on what was sliced of them.
//!
//! Behind each padded dimension are zeros. They stay zeros through slices of other dimensions,
//! `transpose`, `reshape` that keeps the last dimension, `tile`, `expand_dims`, `squeeze`, `cast`,
//! `identity`, `concat`, updates of a part, and products with one number. A sum of products over a
//! padded dimension has only zeros more; a product that keeps the dimension is sliced behind.

use std::collections::{BTreeMap, HashMap};

use crate::ir::{Binding, Graph, NodeId, Operation, Value, ValueId};
use crate::pass::{Block, Edit, EditError, NoBlobs};

/// A tensor with zeros behind what counts.
#[derive(Clone, Debug)]
pub(super) struct Wide {
    /// The padded tensor.
    pub(super) value: ValueId,
    /// How much is behind each dimension.
    pub(super) padding: Vec<usize>,
}

impl Wide {
    /// What counts of it.
    pub(super) fn slice(&self, edit: &mut Edit<'_>) -> Result<ValueId, EditError> {
        let dims = edit.graph().ty(self.value).and_then(|ty| ty.as_tensor());
        let dims = dims.map(|ty| ty.dims.clone()).unwrap_or_default();
        let mut end = Vec::new();
        let mut end_mask = Vec::new();
        for (dim, padding) in dims.iter().zip(&self.padding) {
            let size = dim.size().unwrap_or_default() as usize;
            end.push(if *padding > 0 {
                size.saturating_sub(*padding) as i32
            } else {
                0
            });
            end_mask.push(*padding == 0);
        }
        let arguments = [
            ("x", Binding::Value(self.value)),
            ("begin", edit.constant(Value::int32s(&vec![0; end.len()]))),
            ("end", edit.constant(Value::int32s(&end))),
            ("end_mask", edit.constant(Value::bools(&end_mask))),
        ];
        edit.op("slice_by_index", &arguments)
    }
}

/// Puts zeros behind a tensor's dimensions.
pub(super) fn pad(
    edit: &mut Edit<'_>,
    value: ValueId,
    padding: &[usize],
) -> Result<ValueId, EditError> {
    let ty = edit.graph().ty(value).and_then(|ty| ty.as_tensor());
    let dtype = ty.map_or(crate::ir::DType::Float16, |ty| ty.dtype);
    let pairs: Vec<i32> = padding
        .iter()
        .flat_map(|after| [0, *after as i32])
        .collect();
    let arguments = [
        ("x", Binding::Value(value)),
        ("pad", edit.constant(Value::int32s(&pairs))),
        ("mode", edit.constant(Value::string("constant"))),
        ("constant_val", edit.scalar(dtype, 0.0)?),
    ];
    edit.op("pad", &arguments)
}

/// An operation to be made on padded tensors.
pub(super) struct Plan {
    old: ValueId,
    op_type: String,
    arguments: BTreeMap<String, Vec<Operand>>,
    /// How much is behind each dimension of the result; `None` if it is the result itself.
    padding: Option<Vec<usize>>,
}

/// An argument of a planned operation.
#[derive(Clone)]
enum Operand {
    Binding(Binding),
    Constant(Value),
    Padded(ValueId, Vec<usize>),
}

impl Plan {
    /// Makes the operation; gives the slice that takes the old result's place, with what it is of.
    pub(super) fn make(self, edit: &mut Edit<'_>) -> Result<Option<(ValueId, Wide)>, EditError> {
        let mut arguments = BTreeMap::new();
        for (parameter, operands) in self.arguments {
            let mut bindings = Vec::new();
            for operand in operands {
                bindings.push(match operand {
                    Operand::Binding(binding) => binding,
                    Operand::Constant(value) => edit.constant(value),
                    Operand::Padded(value, padding) => Binding::Value(pad(edit, value, &padding)?),
                });
            }
            arguments.insert(parameter, bindings);
        }
        let value = ValueId::first(edit.variadic_op(&self.op_type, arguments)?);
        let Some(padding) = self.padding else {
            edit.replace(self.old, value)?;
            return Ok(None);
        };
        let wide = Wide { value, padding };
        let slice = wide.slice(edit)?;
        edit.replace(self.old, slice)?;
        Ok(Some((slice, wide)))
    }
}

/// What is known of an operation.
struct Reader<'a> {
    graph: &'a Graph,
    block: Block<'a>,
    op: &'a Operation,
    node: NodeId,
    slices: &'a HashMap<ValueId, Wide>,
}

/// How an operation on slices can be made on what they were taken of, if it can.
pub(super) fn plan(graph: &Graph, node: NodeId, slices: &HashMap<ValueId, Wide>) -> Option<Plan> {
    let op = graph.op(node)?;
    if op.results().len() != 1 || !op.blocks().is_empty() {
        return None;
    }
    let reader = Reader {
        graph,
        block: Block {
            graph,
            outer: None,
            opset: None,
            blobs: &NoBlobs,
            ranges: None,
        },
        op,
        node,
        slices,
    };
    match op.op_type() {
        "identity" | "cast" => reader.same(),
        "mul" | "real_div" => reader.scaled(),
        "transpose" => reader.transpose(),
        "expand_dims" => reader.expand_dims(),
        "squeeze" => reader.squeeze(),
        "reshape" => reader.reshape(),
        "tile" => reader.tile(),
        "concat" => reader.concat(),
        "slice_by_index" => reader.slice(),
        "slice_update" => reader.update(),
        "matmul" => reader.matmul(),
        "scaled_dot_product_attention" => reader.attention(),
        _ => None,
    }
}

impl<'a> Reader<'a> {
    fn wide(&self, parameter: &str) -> Option<&'a Wide> {
        self.slices.get(&self.op.value(parameter)?)
    }

    fn dims(&self, value: ValueId) -> Option<&'a [crate::ir::Dim]> {
        Some(&self.graph.ty(value)?.as_tensor()?.dims)
    }

    /// The operation with other arguments.
    fn plan(&self, changed: Vec<(&str, Operand)>, padding: Option<Vec<usize>>) -> Plan {
        let mut arguments: BTreeMap<String, Vec<Operand>> = BTreeMap::new();
        for argument in self.op.arguments() {
            let bindings = argument.bindings.iter().cloned();
            let operands = bindings.map(Operand::Binding).collect();
            arguments.insert(argument.parameter.clone(), operands);
        }
        for (parameter, operand) in changed {
            arguments.insert(parameter.to_owned(), vec![operand]);
        }
        Plan {
            old: ValueId::first(self.node),
            op_type: self.op.op_type().to_owned(),
            arguments,
            padding,
        }
    }

    fn same(&self) -> Option<Plan> {
        let x = self.wide("x")?;
        Some(self.plan(vec![("x", padded(x))], Some(x.padding.clone())))
    }

    /// A product with one number, or a quotient by one.
    fn scaled(&self) -> Option<Plan> {
        let (wide, other) = match (self.wide("x"), self.wide("y")) {
            (Some(_), None) => ("x", "y"),
            (None, Some(_)) if self.op.op_type() == "mul" => ("y", "x"),
            _ => return None,
        };
        let factor = self.block.uniform_of(self.op, other)?.value;
        let number = match self.op.binding(other)? {
            Binding::Value(value) => self.graph.ty(*value)?.as_tensor()?,
            Binding::Immediate(value) => value.tensor_type()?,
            Binding::Absent => return None,
        };
        let x = self.wide(wide)?;
        let is_one = number.elements() == Some(1) && number.dims.len() <= x.padding.len();
        if !is_one || !factor.is_finite() || (factor == 0.0 && self.op.op_type() != "mul") {
            return None;
        }
        Some(self.plan(vec![(wide, padded(x))], Some(x.padding.clone())))
    }

    fn transpose(&self) -> Option<Plan> {
        let x = self.wide("x")?;
        let rank = x.padding.len();
        let perm = self.block.ints_of(self.op, "perm")?;
        let padding = perm
            .into_iter()
            .map(|axis| x.padding.get(normalize(axis, rank)?).copied());
        let padding = padding.collect::<Option<Vec<_>>>()?;
        Some(self.plan(vec![("x", padded(x))], Some(padding)))
    }

    fn expand_dims(&self) -> Option<Plan> {
        let x = self.wide("x")?;
        let axes = self.block.ints_of(self.op, "axes")?;
        let rank = x.padding.len() + axes.len();
        let axes = axes.into_iter().map(|axis| normalize(axis, rank));
        let axes = axes.collect::<Option<Vec<_>>>()?;
        let mut old = x.padding.iter().copied();
        let mut next = |axis| {
            if axes.contains(&axis) {
                Some(0)
            } else {
                old.next()
            }
        };
        let padding = (0..rank).map(&mut next).collect::<Option<Vec<_>>>()?;
        Some(self.plan(vec![("x", padded(x))], Some(padding)))
    }

    fn squeeze(&self) -> Option<Plan> {
        let x = self.wide("x")?;
        let rank = x.padding.len();
        let axes = self.block.ints_of(self.op, "axes")?;
        let axes = axes.into_iter().map(|axis| normalize(axis, rank));
        let axes = axes.collect::<Option<Vec<_>>>()?;
        if axes.iter().any(|axis| x.padding[*axis] > 0) {
            return None;
        }
        let kept = (0..rank).filter(|axis| !axes.contains(axis));
        let padding = kept.map(|axis| x.padding[axis]).collect();
        Some(self.plan(vec![("x", padded(x))], Some(padding)))
    }

    /// Only the last dimension is padded, and it stays what it is.
    fn reshape(&self) -> Option<Plan> {
        let x = self.wide("x")?;
        let (last, others) = x.padding.split_last()?;
        if others.iter().any(|padding| *padding > 0) {
            return None;
        }
        let size = self.dims(self.op.value("x")?)?.last()?.size()?;
        let dims = self.dims(ValueId::first(self.node))?;
        let mut shape = self.block.ints_of(self.op, "shape")?;
        if dims.last()?.size() != Some(size) || shape.len() != dims.len() {
            return None;
        }
        *shape.last_mut()? = i64::try_from(size).ok()? + i64::try_from(*last).ok()?;
        let mut padding = vec![0; shape.len()];
        *padding.last_mut()? = *last;
        let shape = Operand::Constant(Value::int32s(&narrow(&shape)?));
        Some(self.plan(vec![("x", padded(x)), ("shape", shape)], Some(padding)))
    }

    fn tile(&self) -> Option<Plan> {
        let x = self.wide("x")?;
        let reps = self.block.ints_of(self.op, "reps")?;
        let whole = |(reps, padding): (&i64, &usize)| *reps == 1 || *padding == 0;
        if reps.len() != x.padding.len() || !reps.iter().zip(&x.padding).all(whole) {
            return None;
        }
        Some(self.plan(vec![("x", padded(x))], Some(x.padding.clone())))
    }

    fn concat(&self) -> Option<Plan> {
        let values = &self.op.argument("values")?.bindings;
        let wide_of = |binding: &Binding| match binding {
            Binding::Value(value) => self.slices.get(value),
            _ => None,
        };
        let padding = values.iter().find_map(wide_of)?.padding.clone();
        let axis = normalize(self.block.int_of(self.op, "axis")?, padding.len())?;
        if padding[axis] > 0 || self.block.bool_or(self.op, "interleave", false) != Some(false) {
            return None;
        }
        let operands = values
            .iter()
            .map(|binding| match (binding, wide_of(binding)) {
                (_, Some(wide)) => (wide.padding == padding).then(|| padded(wide)),
                (Binding::Value(value), None) => Some(Operand::Padded(*value, padding.clone())),
                _ => None,
            });
        let operands = operands.collect::<Option<Vec<_>>>()?;
        let mut plan = self.plan(Vec::new(), Some(padding));
        plan.arguments.insert("values".to_owned(), operands);
        Some(plan)
    }

    /// What a slice or an update needs so that it takes each padded dimension whole: the new `end`,
    /// and which dimensions the slice does not have.
    fn whole(&self, x: &Wide) -> Option<(Option<Operand>, Vec<bool>)> {
        let rank = x.padding.len();
        let mask = |parameter| match self.op.argument(parameter) {
            None => Some(vec![false; rank]),
            Some(_) => self
                .block
                .bools_of(self.op, parameter)
                .filter(|mask| mask.len() == rank),
        };
        let (begin_mask, end_mask) = (mask("begin_mask")?, mask("end_mask")?);
        let squeeze_mask = mask("squeeze_mask")?;
        let begin = self.block.ints_of(self.op, "begin");
        let mut end = self.block.ints_of(self.op, "end");
        let stride = match self.op.argument("stride") {
            None => vec![1; rank],
            Some(_) => self.block.ints_of(self.op, "stride")?,
        };
        let dims = self.dims(self.op.value("x")?)?;
        let mut changed = false;
        for axis in (0..rank).filter(|axis| x.padding[*axis] > 0) {
            let size = i64::try_from(dims.get(axis)?.size()?).ok()?;
            if squeeze_mask[axis] || stride.get(axis) != Some(&1) {
                return None;
            }
            if !begin_mask[axis] && self.known_zero(begin.as_deref(), axis) != Some(true) {
                return None;
            }
            if !end_mask[axis] {
                let end = end.as_mut()?.get_mut(axis)?;
                if *end < size {
                    return None;
                }
                *end = size + i64::try_from(x.padding[axis]).ok()?;
                changed = true;
            }
        }
        let end = match end {
            Some(end) if changed => Some(Operand::Constant(Value::int32s(&narrow(&end)?))),
            _ => None,
        };
        Some((end, squeeze_mask))
    }

    /// Whether a slice begins at 0, where all bounds are known or a concat of known ones makes them.
    fn known_zero(&self, begin: Option<&[i64]>, axis: usize) -> Option<bool> {
        if let Some(begin) = begin {
            return Some(*begin.get(axis)? == 0);
        }
        let concat = self
            .block
            .producer_of_type(self.op.value("begin")?, "concat")?;
        let mut at = 0;
        for binding in &concat.argument("values")?.bindings {
            let (count, known) = match binding {
                Binding::Value(value) => {
                    let ty = self.graph.ty(*value)?.as_tensor()?;
                    (ty.elements()?, self.block.constant(*value))
                }
                Binding::Immediate(value) => (value.tensor_type()?.elements()?, Some(value)),
                Binding::Absent => return None,
            };
            let count = usize::try_from(count).ok()?;
            if axis < at + count {
                let known = crate::ops::constant::integers(known?)?;
                return Some(*known.get(axis - at)? == 0);
            }
            at += count;
        }
        None
    }

    fn slice(&self) -> Option<Plan> {
        let x = self.wide("x")?;
        let (end, squeezed) = self.whole(x)?;
        let mut changed = vec![("x", padded(x))];
        changed.extend(end.map(|end| ("end", end)));
        Some(self.plan(changed, Some(left(&x.padding, &squeezed))))
    }

    fn update(&self) -> Option<Plan> {
        let x = self.wide("x")?;
        let (end, squeezed) = self.whole(x)?;
        let behind = left(&x.padding, &squeezed);
        let update = match self.wide("update") {
            Some(wide) if wide.padding == behind => padded(wide),
            Some(_) => return None,
            None => Operand::Padded(self.op.value("update")?, behind),
        };
        let mut changed = vec![("x", padded(x)), ("update", update)];
        changed.extend(end.map(|end| ("end", end)));
        Some(self.plan(changed, Some(x.padding.clone())))
    }

    fn matmul(&self) -> Option<Plan> {
        let transposed = |parameter| self.block.bool_or(self.op, parameter, false);
        let (transpose_x, transpose_y) = (transposed("transpose_x")?, transposed("transpose_y")?);
        // Counted from the end: the dimension that is summed over.
        let summed = [1 + usize::from(transpose_x), 2 - usize::from(transpose_y)];
        let [x, y] = [self.op.value("x")?, self.op.value("y")?];
        let ranks = [self.dims(x)?.len(), self.dims(y)?.len()];
        if ranks.iter().any(|rank| *rank < 2) {
            return None;
        }
        let (wides, sides) = ([self.wide("x"), self.wide("y")], ["x", "y"]);
        // Which dimension, from the end, is the only padded one.
        let only = |wide: &Wide| {
            let rank = wide.padding.len();
            let mut padded = (0..rank).filter(|axis| wide.padding[*axis] > 0);
            match (padded.next(), padded.next()) {
                (Some(axis), None) => Some(rank - axis),
                _ => None,
            }
        };
        for (side, other) in [(1, 0), (0, 1)] {
            let Some(wide) = wides[side] else { continue };
            let Some(axis) = only(wide).filter(|axis| *axis <= 2) else {
                continue;
            };
            let amount = wide.padding[wide.padding.len() - axis];
            let own = (sides[side], padded(wide));
            if axis == summed[side] {
                let mut behind = vec![0; ranks[other]];
                behind[ranks[other] - summed[other]] = amount;
                let operand = match wides[other] {
                    Some(wide) if wide.padding == behind => padded(wide),
                    _ => Operand::Padded([x, y][other], behind),
                };
                return Some(self.plan(vec![own, (sides[other], operand)], None));
            }
            let rank = self.dims(ValueId::first(self.node))?.len();
            let mut behind = vec![0; rank];
            *behind.get_mut(rank.checked_sub(2 - side)?)? = amount;
            return Some(self.plan(vec![own], Some(behind)));
        }
        None
    }

    /// Only the width of the values may be padded: the fused operation scales by the width of the
    /// queries, and that of the keys must be the same.
    fn attention(&self) -> Option<Plan> {
        let value = self.wide("value")?;
        let (last, others) = value.padding.split_last()?;
        if others.iter().any(|padding| *padding > 0) {
            return None;
        }
        let mut padding = vec![0; self.dims(ValueId::first(self.node))?.len()];
        *padding.last_mut()? = *last;
        Some(self.plan(vec![("value", padded(value))], Some(padding)))
    }
}

fn padded(wide: &Wide) -> Operand {
    Operand::Binding(Binding::Value(wide.value))
}

/// What is left of a padding without the squeezed dimensions.
fn left(padding: &[usize], squeezed: &[bool]) -> Vec<usize> {
    let kept = padding.iter().zip(squeezed);
    kept.filter(|(_, squeezed)| !**squeezed)
        .map(|(padding, _)| *padding)
        .collect()
}

fn normalize(axis: i64, rank: usize) -> Option<usize> {
    let axis = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(axis).ok().filter(|axis| *axis < rank)
}

fn narrow(values: &[i64]) -> Option<Vec<i32>> {
    values
        .iter()
        .map(|value| i32::try_from(*value).ok())
        .collect()
}
