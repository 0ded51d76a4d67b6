//! wide-topk-index: indices that do not fit into 16 bits get 32.

use crate::ir::{Binding, DType, NodeId, Operation, Value, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Rule, Severity, Target,
};

mod chain;

/// The pass.
pub(super) struct WideTopkIndex;

static META: Meta = Meta {
    id: "wide-topk-index",
    family: Family::Numerics,
    summary: "narrow indices over a long axis, of topk and argmax or by a cast, become int32",
    exactness: Exactness::Exact,
    since: Opset::CoreML7,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &[],
    default: true,
    after: &[],
    page: include_str!("README.md"),
};

const WIDE_TOPK_INDEX: Rule = Rule {
    id: "wide-topk-index",
    summary: "topk or argsort over an axis whose indices do not fit into the type that they have",
    why: "coremltools makes the indices of topk uint16 without a look at the length of the axis, and \
          the Neural Engine is said to have no others. With a vocabulary of 262144 a released model \
          got 40156 for token 236764, 3 * 65536 less (CoreML-LLM).",
    help: "wide-topk-index makes declared indices int32; in any case compare the indices with a \
           search on the CPU, or use reduce_argmax.",
    evidence: META.evidence,
    sources: &["https://github.com/john-rocky/CoreML-LLM"],
    severity: Severity::Error.everywhere(),
    catalog: &[],
};

const NARROWED_INDEX: Rule = Rule {
    id: "narrowed-index",
    summary: "integers that may not fit are narrowed to 16 bits or less",
    why: "A pass of coremltools narrows what gather reads and gives to int16, data as well as indices: \
          numbers above 32767 come out as others (coremltools issue 2222, and still so in version 9.0). \
          An index of argmax over a longer axis fares the same.",
    help: "wide-topk-index keeps them int32.",
    evidence: META.evidence,
    sources: &["https://github.com/apple/coremltools/issues/2222"],
    severity: Severity::Error.everywhere(),
    catalog: &[],
};

impl Pass for WideTopkIndex {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[NARROWED_INDEX, WIDE_TOPK_INDEX]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(Indices))
    }
}

struct Indices;

impl Matcher for Indices {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let Some(op) = block.op(node) else {
            return Attempt::NoMatch;
        };
        match op.op_type() {
            "cast" => match chain::narrowed(block, op, node) {
                Some(what) => NARROWED_INDEX.found(what).into(),
                None => match chain::widen(block, op, node) {
                    Some((what, attempt)) => attempt.with(NARROWED_INDEX.found(what)),
                    None => Attempt::NoMatch,
                },
            },
            _ => declared(block, op, node),
        }
    }
}

/// Which result of an operation is an index, and the parameter that gives its type.
fn index_of(op_type: &str) -> Option<(u32, Option<&'static str>)> {
    Some(match op_type {
        "topk" => (1, Some("output_indices_dtype")),
        "reduce_argmax" | "reduce_argmin" => (0, Some("output_dtype")),
        "argsort" => (0, None),
        _ => return None,
    })
}

/// The largest number of a type of indices.
fn largest(dtype: DType) -> Option<u64> {
    Some(match dtype {
        DType::Int8 => 127,
        DType::UInt8 => 255,
        DType::Int16 => 32_767,
        DType::UInt16 => 65_535,
        DType::Int32 => 2_147_483_647,
        _ => return None,
    })
}

/// The largest index that an operation can give: one less than the length of its axis. `None` if the
/// length is not known.
fn last_index(block: &Block<'_>, op: &Operation) -> Option<u64> {
    let ty = block.tensor(op.value("x")?)?;
    let axis = match op.argument("axis") {
        None => -1,
        Some(_) => block.int_of(op, "axis")?,
    };
    let rank = i64::try_from(ty.dims.len()).ok()?;
    let axis = if axis < 0 { axis + rank } else { axis };
    let length = ty.dims.get(usize::try_from(axis).ok()?)?.size()?;
    Some(length.saturating_sub(1))
}

/// A reader of narrow indices that can read wide ones.
enum Reader {
    /// A cast; the type it makes, as bound, and whether this is int32.
    Cast(NodeId, Binding, bool),
    /// A gather, which takes indices of both types.
    Gather(NodeId),
}

/// An operation that is told to give indices of a narrow type.
fn declared(block: &Block<'_>, op: &Operation, node: NodeId) -> Attempt {
    let Some((result, parameter)) = index_of(op.op_type()) else {
        return Attempt::NoMatch;
    };
    let indices = ValueId { node, result };
    let Some(dtype) = block.dtype(indices) else {
        return Attempt::NoMatch;
    };
    let last = last_index(block, op);
    if dtype == DType::Int32 && op.made_by() == Some(META.id) {
        return Attempt::NoEffect;
    }
    if dtype == DType::Int32 {
        let sorts = op.op_type() == "topk" || op.op_type() == "argsort";
        if let Some(last) = last.filter(|last| sorts && *last > 65_535) {
            let why = "its indices are int32 already; what hardware does with them inside is not \
                       a matter of types";
            // Nothing is wrong with the program.
            let found = WIDE_TOPK_INDEX
                .found(format!(
                    "its indices go up to {last}, beyond 16 bits; they are declared as int32"
                ))
                .severity(Severity::Warning);
            return Attempt::missed(node, why).with(found);
        }
        return Attempt::NoMatch;
    }
    let (Some(parameter), Some(largest)) = (parameter, largest(dtype)) else {
        return Attempt::NoMatch;
    };
    let Some(last) = last else {
        let why = format!("how long the axis is, is not known; its indices are {dtype}");
        return Attempt::missed(node, why);
    };
    if last <= largest {
        return Attempt::NoMatch;
    }
    let rule = match op.op_type() {
        "topk" => WIDE_TOPK_INDEX,
        _ => NARROWED_INDEX,
    };
    let found = rule
        .found(format!(
            "its indices go up to {last}, and {dtype} ends at {largest}"
        ))
        .parameter(parameter);
    widened(block, op, node, indices, (dtype, parameter, last)).with(found)
}

/// The same operation with int32 for its indices.
fn widened(
    block: &Block<'_>,
    op: &Operation,
    node: NodeId,
    indices: ValueId,
    (dtype, parameter, last): (DType, &'static str, u64),
) -> Attempt {
    let result = indices.result;
    let mut readers = Vec::new();
    for user in block.graph.uses(indices) {
        let Some(reader) = block.op(user.user) else {
            let why = format!("the indices are an output, of type {dtype}");
            return Attempt::missed(node, why);
        };
        let is = |parameter: &str| reader.value(parameter) == Some(indices);
        match reader.op_type() {
            "cast" => {
                let Some(to) = reader.binding("dtype").cloned() else {
                    return Attempt::missed(user.user, "what a cast makes is not known");
                };
                let wide = block.dtype(ValueId::first(user.user)) == Some(DType::Int32);
                readers.push(Reader::Cast(user.user, to, wide));
            }
            "gather" | "gather_along_axis" | "gather_nd" if is("indices") && !is("x") => {
                readers.push(Reader::Gather(user.user));
            }
            other => {
                let why = format!("`{other}` reads the indices as {dtype}");
                return Attempt::missed(user.user, why);
            }
        }
    }
    let mut arguments: std::collections::BTreeMap<String, Vec<Binding>> = op
        .arguments()
        .iter()
        .map(|argument| (argument.parameter.clone(), argument.bindings.clone()))
        .collect();
    let op_type = op.op_type().to_owned();
    let what = format!("indices up to {last} become int32, not {dtype}");
    let values = ValueId::first(node);
    Attempt::matched(what, move |edit| {
        let word = edit.constant(Value::string("int32"));
        arguments.insert(parameter.to_owned(), vec![word]);
        let new = edit.variadic_op(&op_type, arguments)?;
        let wide = ValueId { node: new, result };
        if result > 0 {
            edit.replace(values, ValueId::first(new))?;
        }
        for reader in readers {
            match reader {
                Reader::Cast(cast, _, true) => edit.replace(ValueId::first(cast), wide)?,
                Reader::Cast(cast, to, false) => {
                    let new = edit.op("cast", &[("x", Binding::Value(wide)), ("dtype", to)])?;
                    edit.replace(ValueId::first(cast), new)?;
                }
                Reader::Gather(gather) => {
                    edit.bind(gather, "indices", Some(vec![Binding::Value(wide)]));
                }
            }
        }
        Ok(())
    })
}
