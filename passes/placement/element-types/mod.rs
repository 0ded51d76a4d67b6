//! element-types: computation in fp32 and in int32, which the Neural Engine does not do.

use std::collections::HashSet;

use crate::analysis::survey::{Survey, counts};
use crate::ir::{Binding, DType, Node, NodeId, Operation, TensorType, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Block, Evidence, Exactness, Family, Found, Matcher, Meta, Pass, Rule, Severity, Target,
};

/// The check.
pub(super) struct ElementTypes;

static META: Meta = Meta {
    id: "element-types",
    family: Family::Placement,
    summary: "computation in fp32 or int32, which the Neural Engine does not do",
    exactness: Exactness::None,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Documented,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const FP32_COMPUTE: Rule = Rule {
    id: "fp32-compute",
    summary: "computation in fp32, which keeps off the Neural Engine",
    why: "The Neural Engine is barred from what is typed fp32 (Apple's guide on typed execution), and its \
          compiler says \"32 bit format not supported\". An island of fp32 is a trip to another device \
          and back. coremlit reports an fp32 model whose results still lose accuracy when all devices \
          are allowed.",
    help: "Convert with compute_precision=FLOAT16; keep fp32 where the numbers need it, in one piece.",
    evidence: Evidence::Documented,
    sources: &[
        "https://apple.github.io/coremltools/docs-guides/source/typed-execution.html",
        "https://github.com/FluidInference/FluidAudio",
        "https://github.com/findit-studio/coremlit",
    ],
    severity: Severity::Warning.everywhere(),
    catalog: &[],
};

const INT32_COMPUTE: Rule = Rule {
    id: "int32-compute",
    summary: "arithmetic in int32, which runs on the CPU",
    why: "The Neural Engine has no int32: the compiler says \"Unsupported tensor data type: int32\" \
          (anemll-profile), the study of the M4 has all such operations on the CPU, and for an int32 \
          matmul with a constant no execution plan could be built (ExecuTorch issue 11691).",
    help: "Let the application compute it, or compute in fp16 where 2048 is never exceeded.",
    evidence: Evidence::Measured,
    sources: &[
        "https://github.com/Anemll/anemll-profile",
        "https://github.com/pytorch/executorch/issues/11691",
        "https://github.com/751K/Apple-Neural-Engine-Microarchitecture-Study-M6",
    ],
    severity: Severity::Info.everywhere(),
    catalog: &[],
};

/// Operations that hand on numbers as they are or only change their type, and recurrent ones, which run
/// on the CPU in any type.
const MOVES: [&str; 33] = [
    "cast",
    "concat",
    "depth_to_space",
    "dequantize",
    "expand_dims",
    "fill",
    "gather",
    "gru",
    "identity",
    "list_gather",
    "list_read",
    "list_scatter",
    "list_write",
    "lstm",
    "pad",
    "quantize",
    "read_state",
    "reshape",
    "reshape_like",
    "reverse",
    "rnn",
    "slice_by_index",
    "slice_by_size",
    "slice_update",
    "space_to_depth",
    "split",
    "squeeze",
    "stack",
    "tile",
    "transpose",
    "write_state",
    "coreml_update_state",
    "make_list",
];

/// Operations that compute with integers.
const ARITHMETIC: [&str; 23] = [
    "abs",
    "add",
    "clip",
    "cumsum",
    "equal",
    "floor_div",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "matmul",
    "maximum",
    "minimum",
    "mod",
    "mul",
    "not_equal",
    "real_div",
    "reduce_max",
    "reduce_min",
    "reduce_prod",
    "reduce_sum",
    "select",
    "sub",
];

/// Integers of fewer elements are counters and shapes, which cost nothing anywhere. Our choice.
const FEW: u64 = 8;

impl Pass for ElementTypes {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[FP32_COMPUTE, INT32_COMPUTE]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(Survey::new(look)))
    }
}

fn look(block: &Block<'_>) -> Vec<(NodeId, Found)> {
    let mut floats = 0;
    let mut fp32 = Vec::new();
    let mut scales = HashSet::new();
    let mut int32 = Vec::new();
    for (node, op) in block.graph.ops() {
        let op_type = op.op_type();
        let is_constant = op_type == "const" || op_type.starts_with("constexpr_");
        if is_constant || MOVES.contains(&op_type) || !op.blocks().is_empty() {
            continue;
        }
        let Some(ty) = computed(block, node, op) else {
            continue;
        };
        match ty.dtype {
            DType::Float32 => {
                if is_scale(block, op, &scales) {
                    scales.insert(node);
                }
                fp32.push((node, op_type));
            }
            DType::Int32
                if ARITHMETIC.contains(&op_type) && ty.elements().is_none_or(|n| n > FEW) =>
            {
                int32.push((node, op_type));
            }
            _ => {}
        }
        floats += usize::from(ty.dtype.is_float());
    }
    let mut findings = Vec::new();
    if let Some((first, _)) = fp32.first() {
        let of = match (fp32.len(), floats) {
            (1, 1) => "the only operation computes".to_owned(),
            (all, floats) if all == floats => format!("all {all} operations compute"),
            (1, floats) => format!("one of {floats} operations computes"),
            (some, floats) => format!("{some} of {floats} operations compute"),
        };
        let which = counts(fp32.iter().map(|(_, op_type)| *op_type));
        let mut found = FP32_COMPUTE.found(format!("{of} in fp32: {which}"));
        if scales.len() == fp32.len() && floats > fp32.len() {
            // Nothing but the scale of an input: before all else, and it cuts nothing in two.
            found = found.severity(Severity::Info);
        }
        findings.push((*first, found));
    }
    if let Some((first, _)) = int32.first() {
        let of = match int32.len() {
            1 => "one operation computes".to_owned(),
            count => format!("{count} operations compute"),
        };
        let which = counts(int32.iter().map(|(_, op_type)| *op_type));
        let found = INT32_COMPUTE.found(format!("{of} in int32: {which}"));
        findings.push((*first, found));
    }
    findings
}

/// Whether an operation scales or shifts an input, or what did, by a constant.
fn is_scale(block: &Block<'_>, op: &Operation, scales: &HashSet<NodeId>) -> bool {
    if !["add", "mul", "real_div", "sub"].contains(&op.op_type()) {
        return false;
    }
    let of_input = |parameter: &str| {
        op.value(parameter).is_some_and(|value| {
            matches!(block.graph.node(value.node), Some(Node::Input(..)))
                || scales.contains(&value.node)
        })
    };
    let by_constant = |parameter: &str| block.constant_of(op, parameter).is_some();
    (of_input("x") && by_constant("y")) || (of_input("y") && by_constant("x"))
}

/// The type that an operation computes in: of its result, or of its operand where that is a bool.
fn computed<'b>(block: &'b Block<'_>, node: NodeId, op: &Operation) -> Option<&'b TensorType> {
    let result = block.tensor(ValueId::first(node))?;
    if result.dtype != DType::Bool {
        return Some(result);
    }
    let bindings = op.arguments().iter().flat_map(|a| &a.bindings);
    let mut operands = bindings.filter_map(|binding| match binding {
        Binding::Value(value) if block.constant(*value).is_none() => block.tensor(*value),
        _ => None,
    });
    operands.find(|ty| ty.dtype != DType::Bool)
}
