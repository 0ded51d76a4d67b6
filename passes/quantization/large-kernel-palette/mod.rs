//! large-kernel-palette: large convolution kernels whose weights come from a table.

use crate::ir::{Node, NodeId, Operation, TensorType, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Rule, Severity, Target,
};

/// The check.
pub(super) struct LargeKernelPalette;

static META: Meta = Meta {
    id: "large-kernel-palette",
    family: Family::Quantization,
    summary: "a convolution with a large kernel and palettized weights",
    exactness: Exactness::None,
    since: Opset::CoreML6,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Reported,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const LARGE_KERNEL_PALETTE: Rule = Rule {
    id: "large-kernel-palette",
    summary: META.summary,
    why: "The Neural Engine's register for the size of a kernel has 6 bits. The compiler takes larger \
          kernels apart, and by the messages in it not if the weights are palettized: then the \
          convolution does not run there.",
    help: "Leave this weight out of the palettization, or quantize it linearly.",
    evidence: META.evidence,
    sources: &["https://github.com/freedomtan/coreml_modelc_converter"],
    severity: &[
        (Target::CoreMl, Severity::Warning),
        (Target::AneDirect, Severity::Error),
    ],
    catalog: &[],
};

/// The largest kernel that is not taken apart: the largest number of the register's 6 bits. Read from
/// dumps of compiled programs and from the compiler's messages, not measured.
const LARGEST: u64 = 63;

impl Pass for LargeKernelPalette {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[LARGE_KERNEL_PALETTE]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(find))
    }
}

fn find(block: &Block<'_>, node: NodeId) -> Attempt {
    let conv = block
        .op(node)
        .filter(|op| matches!(op.op_type(), "conv" | "conv_transpose"));
    let Some(weight) = conv.and_then(|conv| conv.value("weight")) else {
        return Attempt::NoMatch;
    };
    let shape = block
        .tensor(weight)
        .and_then(TensorType::shape)
        .unwrap_or_default();
    // Channels stand before the kernel.
    let kernel = shape.get(2..).unwrap_or_default();
    match kernel.iter().max() {
        Some(size) if *size > LARGEST && is_palettized(block, weight) => LARGE_KERNEL_PALETTE
            .found(format!(
                "its palettized kernel is {kernel:?}, more than {LARGEST}"
            ))
            .parameter("weight")
            .into(),
        _ => Attempt::NoMatch,
    }
}

/// Whether a weight is looked up in a table, and perhaps scaled.
fn is_palettized(block: &Block<'_>, value: ValueId) -> bool {
    match block.graph.node(value.node) {
        Some(Node::Op(op)) if op.op_type() == "constexpr_lut_to_dense" => true,
        Some(Node::Op(op)) if is_scale(op) => op
            .value("data")
            .is_some_and(|data| is_palettized(block, data)),
        Some(Node::Capture { source, .. }) => block
            .outer
            .is_some_and(|outer| is_palettized(outer, *source)),
        _ => false,
    }
}

fn is_scale(op: &Operation) -> bool {
    op.op_type() == "constexpr_blockwise_shift_scale"
}
