//! fold-consts: ops on constants become constants.

use std::collections::{BTreeMap, BTreeSet};

use crate::eval::fold;
use crate::ir::{Binding, NodeId, Operation, TensorType, Value, ValueId};
use crate::ops::{Opset, has_evaluation};
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Readable, Target,
};

/// The pass.
pub(super) struct FoldConsts;

static META: Meta = Meta {
    id: "fold-consts",
    family: Family::Cleanup,
    summary: "ops on constants become constants",
    exactness: Exactness::Exact,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Documented,
    catalog: &[],
    default: true,
    after: &[],
    page: include_str!("README.md"),
};

/// Bytes by which results may be larger than the constants that they take the place of.
const ALLOWANCE: u64 = 4096;

/// An evaluation may take this many bytes for each byte of its results: elements of any width are
/// held in up to eight bytes, and the narrowest take an eighth of one.
const WORKING_BYTES: u64 = 64;

impl Pass for FoldConsts {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(Fold))
    }
}

struct Fold;

impl Matcher for Fold {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let Some(op) = block.op(node) else {
            return Attempt::NoMatch;
        };
        if !is_candidate(op) {
            return Attempt::NoMatch;
        }
        let Some(arguments) = constants(block, op) else {
            return Attempt::NoMatch;
        };
        match folded(block, node, op, &arguments) {
            Ok(values) => {
                let results = 0..op.results().len() as u32;
                let results: Vec<_> = results.map(|result| ValueId { node, result }).collect();
                let what = format!("`{}` of constants", op.op_type());
                Attempt::matched(what, move |edit| {
                    for (result, value) in results.into_iter().zip(values) {
                        if let Binding::Value(constant) = edit.constant(value) {
                            edit.replace(result, constant)?;
                        }
                    }
                    Ok(())
                })
            }
            Err(why) => Attempt::missed(node, why),
        }
    }
}

/// Whether an op is one of those that compute something from their arguments alone. A `constexpr_*`
/// op is how a compressed weight is stored, and an `identity` is no computation.
fn is_candidate(op: &Operation) -> bool {
    let kept = ["const", "identity", "read_state", "write_state", "classify"];
    op.blocks().is_empty()
        && !kept.contains(&op.op_type())
        && !["constexpr_", "random_", "list_", "make_list"]
            .iter()
            .any(|prefix| op.op_type().starts_with(prefix))
        && !op.arguments().is_empty()
}

/// The arguments, if all of them are constant.
fn constants<'a>(
    block: &Block<'a>,
    op: &'a Operation,
) -> Option<BTreeMap<&'a str, Vec<&'a Value>>> {
    let mut arguments = BTreeMap::new();
    for argument in op.arguments() {
        let values = argument
            .bindings
            .iter()
            .map(|binding| match binding {
                Binding::Value(value) => block.constant(*value),
                Binding::Immediate(value) => Some(value),
                Binding::Absent => None,
            })
            .collect::<Option<Vec<_>>>()?;
        arguments.insert(argument.parameter.as_str(), values);
    }
    Some(arguments)
}

/// The results as constants, or why they cannot be.
fn folded(
    block: &Block<'_>,
    node: NodeId,
    op: &Operation,
    arguments: &BTreeMap<&str, Vec<&Value>>,
) -> Result<Vec<Value>, String> {
    let opset = block.opset.ok_or("the opset is not known")?;
    if !has_evaluation(op.op_type()) {
        return Err(format!(
            "nothing is known about how to compute `{}`",
            op.op_type()
        ));
    }
    let mut size = 0u64;
    for (index, result) in (0u32..).zip(op.results()) {
        if block.graph.is_output(ValueId {
            node,
            result: index,
        }) {
            return Err("it is an output of the block, which should be computed".to_owned());
        }
        let ty = result.ty.as_ref().and_then(|ty| ty.as_tensor());
        let bytes = ty.and_then(TensorType::packed_bytes);
        size = bytes
            .and_then(|bytes| size.checked_add(bytes))
            .ok_or_else(|| format!("the size of `{}` is not fixed by its type", result.name))?;
    }
    let freed = freed(block, node, op);
    let limit = freed.saturating_add(ALLOWANCE);
    if size > limit {
        return Err(format!(
            "its result would take {size} bytes, and only {freed} bytes of constants would go"
        ));
    }
    let memory = limit.saturating_mul(WORKING_BYTES);
    let blobs = Readable(block.blobs);
    fold(op.op_type(), opset, arguments, op.results(), &blobs, memory).map_err(|e| e.to_string())
}

/// Bytes of the constants that nothing else reads.
fn freed(block: &Block<'_>, node: NodeId, op: &Operation) -> u64 {
    let bindings = op
        .arguments()
        .iter()
        .flat_map(|argument| &argument.bindings);
    let mut seen = BTreeSet::new();
    bindings
        .filter_map(|binding| match binding {
            Binding::Immediate(value) => value.tensor_type()?.packed_bytes(),
            Binding::Value(value) => {
                let is_first = seen.insert(*value);
                let only = block.graph.uses(*value).all(|one| one.user == node);
                let constant = block.graph.producer(*value)?.const_value()?;
                (is_first && only).then(|| constant.tensor_type()?.packed_bytes())?
            }
            Binding::Absent => None,
        })
        .fold(0, u64::saturating_add)
}
