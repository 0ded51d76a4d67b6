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
        if block.bool_or(concat, "interleave", false) != Some(false) {
            return Attempt::missed(node, "the concat interleaves its operands");
        }
        let Some(joined) = Joined::of(block, concat) else {
            return Attempt::missed(node, "the size of an operand of the concat is not known");
        };
        let parts = match parts(block, op, node, &joined) {
            Ok(parts) => parts,
            Err(why) => return Attempt::missed(node, why),
        };
        let mut replacements = Vec::new();
        let mut refused = None;
        // An operand can take the name of one output only.
        let mut outputs = Vec::new();
        for (result, begin, end) in parts {
            let Some(operand) = joined.operand(begin, end) else {
                continue;
            };
            if block.graph.uses(result).next().is_none() {
                continue;
            }
            let is_output = block.graph.is_output(result);
            if is_output && outputs.contains(&operand) {
                continue;
            }
            match block.graph.can_replace(result, operand) {
                Ok(()) => {
                    outputs.extend(is_output.then_some(operand));
                    replacements.push((result, operand));
                }
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

/// Why a slice or split does not simply take ranges along the concat's axis.
type Reason = &'static str;

const UNKNOWN_BOUNDS: Reason = "its bounds are not known";
const OTHER_AXIS: Reason = "it cuts another axis than the concat's";

/// The ranges along the concat's axis that a slice or split takes, one for each result, if it takes
/// everything on all other axes.
fn parts(
    block: &Block<'_>,
    op: &Operation,
    node: NodeId,
    joined: &Joined,
) -> Result<Vec<(ValueId, i64, i64)>, Reason> {
    if op.op_type() != "split" {
        let (begin, end) = sliced_range(block, op, joined)?;
        return Ok(vec![(ValueId::first(node), begin, end)]);
    }
    let axis = block.int_of(op, "axis").ok_or(UNKNOWN_BOUNDS)?;
    let mut at = 0;
    let mut parts = Vec::new();
    for (index, result) in op.results().iter().enumerate() {
        let dims = result
            .ty
            .as_ref()
            .and_then(|ty| ty.as_tensor())
            .map_or(&[][..], |tensor| &tensor.dims);
        let axis = normalize(axis, dims.len()).ok_or(UNKNOWN_BOUNDS)?;
        if axis != joined.axis {
            return Err(OTHER_AXIS);
        }
        let size = dims[axis].size().and_then(|size| i64::try_from(size).ok());
        let begin = at;
        at += size.ok_or(UNKNOWN_BOUNDS)?;
        let value = ValueId {
            node,
            result: index as u32,
        };
        parts.push((value, begin, at));
    }
    Ok(parts)
}

fn sliced_range(block: &Block<'_>, op: &Operation, joined: &Joined) -> Result<(i64, i64), Reason> {
    let bools = |parameter: &str| match op.argument(parameter) {
        None => Ok(Vec::new()),
        Some(_) => block.bools_of(op, parameter).ok_or(UNKNOWN_BOUNDS),
    };
    let set = |mask: &[bool], axis: usize| mask.get(axis).copied().unwrap_or(false);
    let (begin_mask, end_mask) = (bools("begin_mask")?, bools("end_mask")?);
    if bools("squeeze_mask")?.contains(&true) {
        return Err("it drops an axis");
    }
    let strides = match op.argument("stride") {
        None => Vec::new(),
        Some(_) => block.ints_of(op, "stride").ok_or(UNKNOWN_BOUNDS)?,
    };
    if strides.iter().any(|stride| *stride != 1) {
        return Err("it has strides");
    }
    let begins = block.ints_of(op, "begin").ok_or(UNKNOWN_BOUNDS)?;
    let ends = block.ints_of(op, "end").ok_or(UNKNOWN_BOUNDS)?;
    let dims = op
        .value("x")
        .and_then(|x| block.tensor(x))
        .map_or(&[][..], |tensor| &tensor.dims);
    let mut range = Err(UNKNOWN_BOUNDS);
    for (axis, dim) in dims.iter().enumerate() {
        let joins = axis == joined.axis;
        let size = if joins {
            Some(joined.total)
        } else {
            dim.size().and_then(|size| i64::try_from(size).ok())
        };
        // A bound from the end needs the size to be known.
        let bound = |given: Option<&i64>| match (given, size) {
            (Some(given), Some(size)) if *given < 0 => Ok(given + size),
            (Some(given), _) if *given >= 0 => Ok(*given),
            _ => Err(UNKNOWN_BOUNDS),
        };
        let begin = if set(&begin_mask, axis) {
            0
        } else {
            bound(begins.get(axis))?
        };
        let end = if set(&end_mask, axis) {
            size.unwrap_or(i64::MAX)
        } else {
            bound(ends.get(axis))?
        };
        if joins {
            range = Ok((begin, end.min(joined.total)));
        } else if begin != 0 || end < size.unwrap_or(i64::MAX) {
            return Err(OTHER_AXIS);
        }
    }
    range
}
