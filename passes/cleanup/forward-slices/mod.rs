//! forward-slices: a slice or split that picks exactly one operand of a concat reads that operand.

use crate::ir::{Binding, NodeId, Operation, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Target};

/// The pass.
pub(super) struct ForwardSlices;

static META: Meta = Meta {
    id: "forward-slices",
    family: Family::Cleanup,
    summary: "a slice or split that picks exactly one operand of a concat reads that operand",
    exactness: Exactness::Exact,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Documented,
    catalog: &[],
    default: true,
    after: &[],
    page: include_str!("README.md"),
};

impl Pass for ForwardSlices {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(Forward))
    }
}

struct Forward;

impl Matcher for Forward {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let Some(op) = block.op(node) else {
            return Attempt::NoMatch;
        };
        if !matches!(op.op_type(), "slice_by_index" | "split") {
            return Attempt::NoMatch;
        }
        let Some(concat) = op
            .value("x")
            .and_then(|x| block.producer_of_type(x, "concat"))
        else {
            return Attempt::NoMatch;
        };
        let Some(joined) = Joined::of(block, concat) else {
            return Attempt::missed(
                node,
                "the concat interleaves, or the size of an operand is not known",
            );
        };
        let Some(parts) = parts(block, op, node, &joined) else {
            return Attempt::missed(
                node,
                "it strides, cuts another axis, or its bounds are not known",
            );
        };
        let mut replacements = Vec::new();
        let mut refused = None;
        for (result, begin, end) in parts {
            let Some(operand) = joined.operand(begin, end) else {
                continue;
            };
            if block.graph.uses(result).next().is_none() {
                continue;
            }
            match block.graph.can_replace(result, operand) {
                Ok(()) => replacements.push((result, operand)),
                Err(refusal) => refused = Some(refusal),
            }
        }
        if replacements.is_empty() {
            let why = refused.map_or_else(
                || "what it picks is not exactly one operand of the concat".to_owned(),
                |refusal| refusal.to_string(),
            );
            return Attempt::missed(node, why);
        }
        let names: Vec<String> = replacements
            .iter()
            .map(|(_, operand)| format!("`{}`", block.graph.name(*operand)))
            .collect();
        let what = format!("reads {} instead of the concat", names.join(", "));
        Attempt::matched(what, move |edit| {
            replacements
                .iter()
                .try_for_each(|(old, new)| edit.replace(*old, *new))
        })
    }
}

/// A concat with the places of its operands along its axis.
struct Joined {
    axis: usize,
    /// Operand, begin and end.
    operands: Vec<(ValueId, i64, i64)>,
    total: i64,
}

impl Joined {
    fn of(block: &Block<'_>, concat: &Operation) -> Option<Self> {
        if block.bool_or(concat, "interleave", false)? {
            return None;
        }
        let axis = block.int_of(concat, "axis")?;
        let mut operands = Vec::new();
        let mut total = 0i64;
        let mut at = None;
        for binding in &concat.argument("values")?.bindings {
            let Binding::Value(value) = binding else {
                return None;
            };
            let tensor = block.tensor(*value)?;
            let axis = normalize(axis, tensor.dims.len())?;
            let size = i64::try_from(tensor.dims.get(axis)?.size()?).ok()?;
            let end = total.checked_add(size)?;
            operands.push((*value, total, end));
            total = end;
            at = Some(axis);
        }
        Some(Self {
            axis: at?,
            operands,
            total,
        })
    }

    fn operand(&self, begin: i64, end: i64) -> Option<ValueId> {
        self.operands
            .iter()
            .find(|(_, from, to)| (*from, *to) == (begin, end) && begin < end)
            .map(|(value, ..)| *value)
    }
}

fn normalize(axis: i64, rank: usize) -> Option<usize> {
    let axis = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(axis).ok().filter(|axis| *axis < rank)
}

/// The ranges along the concat's axis that a slice or split takes, one for each result, if it takes
/// everything on all other axes.
fn parts(
    block: &Block<'_>,
    op: &Operation,
    node: NodeId,
    joined: &Joined,
) -> Option<Vec<(ValueId, i64, i64)>> {
    if op.op_type() == "split" {
        let mut at = 0;
        return op
            .results()
            .iter()
            .enumerate()
            .map(|(index, result)| {
                let tensor = result.ty.as_ref()?.as_tensor()?;
                let axis = normalize(block.int_of(op, "axis")?, tensor.dims.len())?;
                let size = i64::try_from(tensor.dims.get(axis)?.size()?).ok()?;
                let begin = at;
                at += size;
                let value = ValueId {
                    node,
                    result: index as u32,
                };
                (axis == joined.axis).then_some((value, begin, at))
            })
            .collect();
    }
    let (begin, end) = sliced_range(block, op, joined)?;
    Some(vec![(ValueId::first(node), begin, end)])
}

fn sliced_range(block: &Block<'_>, op: &Operation, joined: &Joined) -> Option<(i64, i64)> {
    let bools = |parameter: &str| match op.argument(parameter) {
        None => Some(Vec::new()),
        Some(_) => block.bools_of(op, parameter),
    };
    let set = |mask: &[bool], axis: usize| mask.get(axis).copied().unwrap_or(false);
    let (begin_mask, end_mask) = (bools("begin_mask")?, bools("end_mask")?);
    let squeeze = bools("squeeze_mask")?;
    let strides = match op.argument("stride") {
        None => Vec::new(),
        Some(_) => block.ints_of(op, "stride")?,
    };
    if squeeze.contains(&true) || strides.iter().any(|stride| *stride != 1) {
        return None;
    }
    let (begins, ends) = (block.ints_of(op, "begin")?, block.ints_of(op, "end")?);
    let dims = &block.tensor(op.value("x")?)?.dims;
    let mut range = None;
    for (axis, dim) in dims.iter().enumerate() {
        let size = if axis == joined.axis {
            Some(joined.total)
        } else {
            dim.size().and_then(|size| i64::try_from(size).ok())
        };
        let bound = |given: Option<&i64>| {
            let given = *given?;
            if given < 0 {
                Some(given + size?)
            } else {
                Some(given)
            }
        };
        let begin = if set(&begin_mask, axis) {
            0
        } else {
            bound(begins.get(axis))?
        };
        let to_the_end = set(&end_mask, axis);
        if axis == joined.axis {
            let end = if to_the_end {
                joined.total
            } else {
                bound(ends.get(axis))?
            };
            range = Some((begin, end.min(joined.total)));
        } else if begin != 0 || !(to_the_end || size.is_some() && bound(ends.get(axis))? >= size?) {
            return None;
        }
    }
    range
}
