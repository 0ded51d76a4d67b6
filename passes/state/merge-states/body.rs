//! One body with the merged state: each read of a layer is a slice of it, each write an update.

use std::collections::BTreeMap;

use super::Writes;
use super::group::Group;
use crate::analysis::state::{Kind, StateAccess, states};
use crate::ir::{Binding, DType, Graph, NodeId, Operation, Value, ValueId};
use crate::ops::constant;
use crate::pass::{Block, Edit, EditError, NoBlobs, WholeEdit, WholeError};

/// The merged state as it is at some point of the body.
#[derive(Default)]
struct Now {
    /// A tensor with what it holds, if one has been made.
    value: Option<ValueId>,
    /// The last operation that touches it.
    last: Option<NodeId>,
    /// The write behind the last update, which the next update makes superfluous.
    write: Option<NodeId>,
}

/// Lets the body use the merged state, which is its input already, instead of the group's states.
pub(super) fn rewrite(
    edit: &mut WholeEdit<'_>,
    function: &str,
    opset: &str,
    group: &Group,
    writes: Writes,
) -> Result<(), WholeError> {
    let graph = graph(edit, function, opset)?;
    let named = |node: &&NodeId| graph.name(ValueId::first(**node)) == group.name;
    let inputs = graph.inputs().iter();
    let state = inputs
        .copied()
        .find(|node| named(&node))
        .map(ValueId::first)
        .ok_or_else(|| WholeError::Other(format!("`{}` is no input", group.name)))?;
    let mut accesses: Vec<(usize, StateAccess)> = states(graph)
        .into_iter()
        .filter_map(|chain| Some((group.layer(&chain.name)?, chain.accesses)))
        .flat_map(|(layer, accesses)| accesses.into_iter().map(move |access| (layer, access)))
        .collect();
    accesses.sort_by_key(|(_, access)| access.place);
    let mut now = Now::default();
    for (layer, access) in accesses {
        let graph = self::graph(edit, function, opset)?;
        match access.kind {
            Kind::Read { result, .. } if graph.uses(result).next().is_none() => {
                edit.at(function, opset, access.node, |edit| {
                    edit.remove(access.node)
                })?;
            }
            Kind::Read { result, .. } => {
                edit.at(function, opset, access.node, |edit| {
                    let all = read(edit, state, &mut now)?;
                    let slice = slice(edit, group, layer, all)?;
                    edit.replace(result, slice)
                })?;
            }
            Kind::Write { updates, .. } => {
                let data = graph.op(access.node).and_then(|op| op.value("data"));
                let data = data.ok_or_else(|| {
                    WholeError::Other(format!("a write to `{}` has no data", group.members[layer]))
                })?;
                let direct = updates.and_then(|update| Direct::of(graph, update, group));
                // Named after what is written, if that is an operation's: a write has no result.
                let anchor = match graph.op(data.node) {
                    Some(_) => data.node,
                    None => access.node,
                };
                edit.at(function, opset, anchor, |edit| {
                    let all = read(edit, state, &mut now)?;
                    let updated = match &direct {
                        Some(direct) => direct.update(edit, group, layer, all)?,
                        None => update(edit, group, layer, all, data)?,
                    };
                    write(edit, state, updated, writes, &mut now)?;
                    edit.remove(access.node)
                })?;
            }
            Kind::Other(_) => {
                let why = format!("`{}` is used in another way", group.members[layer]);
                return Err(WholeError::Other(why));
            }
        }
    }
    Ok(())
}

fn graph<'a>(
    edit: &'a WholeEdit<'_>,
    function: &str,
    opset: &str,
) -> Result<&'a Graph, WholeError> {
    let function = edit.program().functions.get(function);
    let body = function.and_then(|function| function.specializations.get(opset));
    body.map(|body| &body.graph)
        .ok_or_else(|| WholeError::Other("a function is gone".to_owned()))
}

/// What the merged state holds, read now if no tensor has it.
fn read(edit: &mut Edit<'_>, state: ValueId, now: &mut Now) -> Result<ValueId, EditError> {
    if let Some(value) = now.value {
        return Ok(value);
    }
    let value = edit.op("read_state", &[("input", Binding::Value(state))])?;
    then(edit, now, value.node);
    now.value = Some(value);
    Ok(value)
}

/// Writes the merged state; instead of the write before, if one write is enough.
fn write(
    edit: &mut Edit<'_>,
    state: ValueId,
    updated: ValueId,
    writes: Writes,
    now: &mut Now,
) -> Result<(), EditError> {
    let data = vec![Binding::Value(updated)];
    let arguments = [("input", vec![Binding::Value(state)]), ("data", data)];
    let arguments = arguments.map(|(parameter, bindings)| (parameter.to_owned(), bindings));
    let node = edit.variadic_op("write_state", arguments.into())?;
    then(edit, now, node);
    match writes {
        Writes::Chained => {
            if let Some(before) = now.write.replace(node) {
                edit.remove(before)?;
            }
            now.value = Some(updated);
        }
        Writes::Each => now.value = None,
    }
    Ok(())
}

/// Lets an access come behind the last one.
fn then(edit: &mut Edit<'_>, now: &mut Now, node: NodeId) {
    if let Some(last) = now.last.replace(node) {
        edit.order(last, node);
    }
}

/// The bounds of a layer: begin, end, and the mask of the axis that the layers do not have.
fn bounds(group: &Group, layer: usize) -> (Value, Value, Option<Value>) {
    let mut begin = vec![0; group.shape.len()];
    let mut end: Vec<i32> = group.shape.iter().map(|size| *size as i32).collect();
    let mut squeeze = None;
    if group.new_axis {
        begin.insert(0, 0);
        end.insert(0, 0);
        squeeze = Some(first_only(begin.len()));
    }
    begin[0] = layer as i32;
    end[0] = layer as i32 + 1;
    (Value::int32s(&begin), Value::int32s(&end), squeeze)
}

/// Bools of which only the first is true.
fn first_only(length: usize) -> Value {
    Value::bools(&(0..length).map(|index| index == 0).collect::<Vec<_>>())
}

/// A layer of the merged state, with the type of the state that it was.
fn slice(
    edit: &mut Edit<'_>,
    group: &Group,
    layer: usize,
    all: ValueId,
) -> Result<ValueId, EditError> {
    let (begin, end, squeeze) = bounds(group, layer);
    let mut arguments = vec![
        ("x", Binding::Value(all)),
        ("begin", edit.constant(begin)),
        ("end", edit.constant(end)),
    ];
    if let Some(squeeze) = squeeze {
        arguments.push(("squeeze_mask", edit.constant(squeeze)));
    }
    edit.op("slice_by_index", &arguments)
}

/// The merged state with another value of one layer.
fn update(
    edit: &mut Edit<'_>,
    group: &Group,
    layer: usize,
    all: ValueId,
    data: ValueId,
) -> Result<ValueId, EditError> {
    let (begin, end, squeeze) = bounds(group, layer);
    let mut arguments = vec![
        ("x", Binding::Value(all)),
        ("update", Binding::Value(data)),
        ("begin", edit.constant(begin)),
        ("end", edit.constant(end)),
    ];
    if let Some(squeeze) = squeeze {
        arguments.push(("squeeze_mask", edit.constant(squeeze)));
    }
    edit.op("slice_update", &arguments)
}

/// An update of a part of a layer that becomes an update of a part of the merged state: the same
/// with the layer as the first index.
struct Direct {
    update: Binding,
    begin: Bound,
    end: Bound,
    stride: Option<Vec<i32>>,
    begin_mask: Option<Vec<bool>>,
    end_mask: Option<Vec<bool>>,
    squeeze_mask: Option<Vec<bool>>,
}

/// Where an update begins or ends.
enum Bound {
    /// At known indices.
    At(Vec<i32>),
    /// At indices that a concat makes.
    Joined(Box<Joined>),
}

/// Indices that a concat makes, of which the first are constant.
struct Joined {
    first: Vec<i32>,
    /// Whether the operands are scalars; else they have one dimension.
    of_scalars: bool,
    others: Vec<Binding>,
    axis: Binding,
    interleave: Option<Binding>,
}

impl Direct {
    fn of(graph: &Graph, node: NodeId, group: &Group) -> Option<Self> {
        let block = Block {
            graph,
            outer: None,
            opset: None,
            blobs: &NoBlobs,
            ranges: None,
        };
        let op = graph.op(node)?;
        let rank = group.shape.len();
        let bools = |parameter: &str| {
            if op.argument(parameter).is_none() {
                return Some(None);
            }
            let mask = block.bools_of(op, parameter)?;
            (mask.len() == rank).then_some(Some(mask))
        };
        let mut stride = None;
        if op.argument("stride").is_some() {
            let given = block.ints_of(op, "stride")?;
            if given.len() != rank || (!group.new_axis && given.first() != Some(&1)) {
                return None;
            }
            stride = Some(narrow(&given)?);
        }
        Some(Self {
            update: op.binding("update")?.clone(),
            begin: Bound::of(&block, op, "begin", rank)?,
            end: Bound::of(&block, op, "end", rank)?,
            stride,
            begin_mask: bools("begin_mask")?,
            end_mask: bools("end_mask")?,
            squeeze_mask: bools("squeeze_mask")?,
        })
    }

    fn update(
        &self,
        edit: &mut Edit<'_>,
        group: &Group,
        layer: usize,
        all: ValueId,
    ) -> Result<ValueId, EditError> {
        let layer = layer as i32;
        // The layer's own first axis of size 1 is taken whole, whatever its bounds say.
        let bools = |mask: &Option<Vec<bool>>, first: Option<bool>, new: bool| {
            let mut mask = match (mask, new && group.new_axis) {
                (Some(mask), _) => mask.clone(),
                (None, true) => vec![false; group.shape.len()],
                (None, false) => return None,
            };
            if group.new_axis {
                mask.insert(0, first.unwrap_or(new));
            } else if let (Some(own), Some(first)) = (mask.first_mut(), first) {
                *own = first;
            }
            Some(Value::bools(&mask))
        };
        let masks = [
            ("begin_mask", bools(&self.begin_mask, Some(false), false)),
            ("end_mask", bools(&self.end_mask, Some(false), false)),
            ("squeeze_mask", bools(&self.squeeze_mask, None, true)),
        ];
        let mut arguments = vec![
            ("x", Binding::Value(all)),
            ("update", self.update.clone()),
            ("begin", self.begin.at(edit, layer, group.new_axis)?),
            ("end", self.end.at(edit, layer + 1, group.new_axis)?),
        ];
        for (parameter, mask) in masks {
            if let Some(mask) = mask {
                arguments.push((parameter, edit.constant(mask)));
            }
        }
        if let Some(stride) = &self.stride {
            let mut stride = stride.clone();
            if group.new_axis {
                stride.insert(0, 1);
            }
            arguments.push(("stride", edit.constant(Value::int32s(&stride))));
        }
        edit.op("slice_update", &arguments)
    }
}

impl Bound {
    fn of(block: &Block<'_>, op: &Operation, parameter: &str, rank: usize) -> Option<Self> {
        if let Some(known) = block.ints_of(op, parameter) {
            return (known.len() == rank).then_some(Self::At(narrow(&known)?));
        }
        let concat = block.producer_of_type(op.value(parameter)?, "concat")?;
        if block.int_of(concat, "axis") != Some(0)
            || block.bool_or(concat, "interleave", false) != Some(false)
        {
            return None;
        }
        let (first, others) = concat.argument("values")?.bindings.split_first()?;
        let constant = match first {
            Binding::Value(value) => block.constant(*value)?,
            Binding::Immediate(value) => value,
            Binding::Absent => return None,
        };
        let ty = constant.tensor_type()?;
        let first = narrow(&constant::integers(constant)?)?;
        if first.is_empty() || ty.dtype != DType::Int32 {
            return None;
        }
        Some(Self::Joined(Box::new(Joined {
            first,
            of_scalars: ty.dims.is_empty(),
            others: others.to_vec(),
            axis: concat.binding("axis")?.clone(),
            interleave: concat.binding("interleave").cloned(),
        })))
    }

    /// The bound with this index of the layer.
    fn at(&self, edit: &mut Edit<'_>, layer: i32, new_axis: bool) -> Result<Binding, EditError> {
        let indexed = |known: &[i32]| {
            let mut known = known.to_vec();
            if new_axis {
                known.insert(0, layer);
            } else if let Some(first) = known.first_mut() {
                *first = layer;
            }
            known
        };
        match self {
            Self::At(known) => Ok(edit.constant(Value::int32s(&indexed(known)))),
            Self::Joined(joined) => {
                let first = indexed(&joined.first);
                let mut values: Vec<Binding> = if joined.of_scalars {
                    let scalars = first.into_iter();
                    scalars
                        .map(|value| edit.constant(Value::int32(value)))
                        .collect()
                } else {
                    vec![edit.constant(Value::int32s(&first))]
                };
                values.extend(joined.others.iter().cloned());
                let mut arguments = BTreeMap::from([
                    ("values".to_owned(), values),
                    ("axis".to_owned(), vec![joined.axis.clone()]),
                ]);
                if let Some(interleave) = &joined.interleave {
                    arguments.insert("interleave".to_owned(), vec![interleave.clone()]);
                }
                let node = edit.variadic_op("concat", arguments)?;
                Ok(Binding::Value(ValueId::first(node)))
            }
        }
    }
}

fn narrow(values: &[i64]) -> Option<Vec<i32>> {
    values
        .iter()
        .map(|value| i32::try_from(*value).ok())
        .collect()
}
