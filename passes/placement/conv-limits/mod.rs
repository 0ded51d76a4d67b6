//! conv-limits: convolutions and pools that the Neural Engine does not run, or runs slowly.

mod weight;

use crate::analysis::survey::{Survey, grouped};
use crate::ir::{DType, NodeId, Operation, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Block, Evidence, Exactness, Family, Found, Matcher, Meta, Pass, Rule, Severity, Target,
};

/// The check.
pub(super) struct ConvLimits;

static META: Meta = Meta {
    id: "conv-limits",
    family: Family::Placement,
    summary: "convolutions and pools that the Neural Engine does not run, or runs slowly",
    exactness: Exactness::None,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const DYNAMIC_WEIGHT: Rule = Rule {
    id: "dynamic-conv-weight",
    summary: "a convolution whose weight is computed when the model runs",
    why: "On the private interface such a program compiles, and the weight that is computed is silently \
          ignored (measured on an M3 Max). For Core ML nobody shows the same; a convolution on the Neural \
          Engine has its weight in the program.",
    help: "Write it as a matmul, or as a sum of products of slices.",
    evidence: Evidence::Measured,
    sources: &["https://github.com/skyfallsin/apple-neural-engine-field-guide"],
    severity: &[
        (Target::CoreMl, Severity::Warning),
        (Target::AneDirect, Severity::Error),
    ],
    catalog: &[],
};

const WIDE_KERNEL: Rule = Rule {
    id: "wide-kernel",
    summary: "a convolution whose window is wider than the Neural Engine takes",
    why: "A window of 1 x 16 or wider fails in the Neural Engine's compiler, and the whole model silently \
          runs on the CPU, 4 to 7 times slower, measured on the M4 and M6; 31 x 1 and 16 x 16 pass. In \
          one dimension it was not measured.",
    help: "Turn it so that the window is high instead of wide, or split it along the window into a sum.",
    evidence: Evidence::Measured,
    sources: &["https://github.com/751K/Apple-Neural-Engine-Microarchitecture-Study-M6"],
    severity: Severity::Warning.everywhere(),
    catalog: &[],
};

const WIDE_POOL: Rule = Rule {
    id: "wide-pool",
    summary: "a pool whose window is wider than the Neural Engine takes",
    why: "max_pool of 9 x 9 and of 1 x 9 does not run on the Neural Engine, 9 x 1 does, measured on the \
          M4 and M6; neural-engine gives 13 as the most for any pool, as a guess.",
    help: "Chain smaller pools of stride 1: 5 x 5 twice is 9 x 9.",
    evidence: Evidence::Measured,
    sources: &[
        "https://github.com/751K/Apple-Neural-Engine-Microarchitecture-Study-M6",
        "https://github.com/hollance/neural-engine",
    ],
    severity: Severity::Warning.everywhere(),
    catalog: &[],
};

const BIG_STRIDE: Rule = Rule {
    id: "big-stride-or-pad",
    summary: "a convolution with a stride, padding or window beyond the hardware's registers",
    why: "The registers of the Neural Engine hold windows up to 63, strides up to 3 and padding up to 31, \
          read out of compiled programs. Larger ones are taken apart by the compiler, which works but for \
          palettized weights, groups and dilation.",
    help: "Nothing, if it runs where it should; else cut patches with a reshape before.",
    evidence: Evidence::Reported,
    sources: &["https://github.com/freedomtan/coreml_to_ane_hwx"],
    severity: Severity::Info.everywhere(),
    catalog: &[],
};

const DEPTHWISE: Rule = Rule {
    id: "depthwise-wide",
    summary: "a depthwise convolution of very many channels",
    why: "Ten such convolutions of 1024 channels ran on the CPU in LFM2, at 5 ms each for the way there \
          and back; the same project has depthwise convolutions on the Neural Engine in another model.",
    help: "If it runs on the CPU: a sum of slices, each times a constant per channel.",
    evidence: Evidence::Disputed,
    sources: &["https://github.com/john-rocky/CoreML-LLM"],
    severity: Severity::Info.everywhere(),
    catalog: &[],
};

const TRANSPOSE_PAD: Rule = Rule {
    id: "conv-transpose-pad",
    summary: "a transposed convolution in fp16 with unequal padding at the two ends",
    why: "Its results are shifted and wrong in fp16 (coremltools issue 2324, with padding [1, 0], stride \
          2 and a given output shape); in fp32 they are right.",
    help: "Use equal padding, and slice the result.",
    evidence: Evidence::Measured,
    sources: &["https://github.com/apple/coremltools/issues/2324"],
    severity: Severity::Warning.everywhere(),
    catalog: &[],
};

const DMA_NOTCH: Rule = Rule {
    id: "dma-notch",
    summary: "weights whose size a core is close to a multiple of 1 MiB, which stream slowly",
    why: "When what each of the 16 cores reads is within 16 KiB of a multiple of 1 MiB, weights stream at \
          17 to 19 instead of 45 to 60 GB/s: a weight of 2048 x 4096 in fp16 is. Measured on an M4 only.",
    help: "Split the weight along its inputs into two that do not have such a size, and measure.",
    evidence: Evidence::Measured,
    sources: &["https://github.com/kasper0406/stablehlo-coreml/pull/110"],
    severity: Severity::Info.everywhere(),
    catalog: &[],
};

/// A window of height 1 that is so wide fails. Measured: the study of the M4 and M6, defect C9.
const TOO_WIDE: u64 = 16;

/// The widest window of max_pool. Measured: the same study, section 3.3.
const WIDEST_MAX_POOL: i64 = 8;

/// The widest window of other pools. Reported: neural-engine, whose author calls it a guess.
const WIDEST_POOL: i64 = 13;

/// What the registers hold. Read out of compiled programs: `coreml_to_ane_hwx`.
const LARGEST_WINDOW: u64 = 63;
const LARGEST_STRIDE: i64 = 3;
const LARGEST_PAD: i64 = 31;

/// Channels of a depthwise convolution that ran on the CPU. Disputed: CoreML-LLM.
const MANY_CHANNELS: u64 = 1024;

impl Pass for ConvLimits {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[
            DYNAMIC_WEIGHT,
            WIDE_KERNEL,
            WIDE_POOL,
            BIG_STRIDE,
            DEPTHWISE,
            TRANSPOSE_PAD,
            DMA_NOTCH,
        ]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(Survey::new(look)))
    }
}

fn look(block: &Block<'_>) -> Vec<(NodeId, Found)> {
    let mut all = Vec::new();
    for (node, op) in block.graph.ops() {
        let findings = match op.op_type() {
            "conv" => conv(block, op),
            "conv_transpose" => conv_transpose(block, node, op),
            "avg_pool" | "l2_pool" | "max_pool" => pool(block, op).into_iter().collect(),
            "linear" | "matmul" => Vec::new(),
            _ => continue,
        };
        let notch = weight::notch(block, op).map(|what| DMA_NOTCH.found(what));
        all.extend(findings.into_iter().chain(notch).map(|found| (node, found)));
    }
    grouped(all)
}

fn dynamic(block: &Block<'_>, op: &Operation) -> Option<Found> {
    let weight = op.value("weight")?;
    let source = weight::source(block, weight)?;
    let found = DYNAMIC_WEIGHT.found(format!(
        "the weight of `{}` depends on `{source}`",
        op.op_type()
    ));
    Some(found.parameter("weight"))
}

fn conv(block: &Block<'_>, op: &Operation) -> Vec<Found> {
    let mut findings: Vec<Found> = dynamic(block, op).into_iter().collect();
    let shape = weight::shape(block, op).unwrap_or_default();
    let (channels, window) = match shape.as_slice() {
        [outputs, inputs, window @ ..] => ((*outputs, *inputs), window),
        _ => return findings,
    };
    match window {
        [1, width] if *width >= TOO_WIDE => {
            let found = WIDE_KERNEL.found(format!("its window is 1 x {width}"));
            findings.push(found.parameter("weight"));
        }
        [width] if *width >= TOO_WIDE => {
            let found = WIDE_KERNEL.found(format!(
                "its window is {width} long in one dimension, for which nobody has measured the limit"
            ));
            findings.push(found.parameter("weight").severity(Severity::Info));
        }
        _ => {}
    }
    findings.extend(big(block, op, window));
    let groups = block.int_of(op, "groups").unwrap_or(1);
    if channels.1 == 1 && u64::try_from(groups).is_ok_and(|groups| groups >= MANY_CHANNELS) {
        let found = DEPTHWISE.found(format!("a depthwise convolution of {groups} channels"));
        findings.push(found.parameter("groups"));
    }
    findings
}

/// What is beyond the registers: a window, unless it is a wide one, a stride, padding.
fn big(block: &Block<'_>, op: &Operation, window: &[u64]) -> Option<Found> {
    let largest = |parameter: &str| block.ints_of(op, parameter)?.into_iter().max();
    let mut what = Vec::new();
    let is_wide = matches!(window, [_] | [1, _]);
    if let Some(size) = window.iter().max().filter(|size| **size > LARGEST_WINDOW)
        && !is_wide
    {
        what.push(format!("a window of {size}"));
    }
    if let Some(stride) = largest("strides").filter(|stride| *stride > LARGEST_STRIDE) {
        what.push(format!("a stride of {stride}"));
    }
    let is_custom = block.constant_of(op, "pad_type").and_then(|v| v.as_str()) == Some("custom");
    if is_custom && let Some(pad) = largest("pad").filter(|pad| *pad > LARGEST_PAD) {
        what.push(format!("padding of {pad}"));
    }
    let (last, rest) = what.split_last()?;
    Some(BIG_STRIDE.found(match rest {
        [] => format!("it has {last}"),
        _ => format!("it has {} and {last}", rest.join(", ")),
    }))
}

fn conv_transpose(block: &Block<'_>, node: NodeId, op: &Operation) -> Vec<Found> {
    let mut findings: Vec<Found> = dynamic(block, op).into_iter().collect();
    let is_custom = block.constant_of(op, "pad_type").and_then(|v| v.as_str()) == Some("custom");
    let pad = block.ints_of(op, "pad").unwrap_or_default();
    let is_unequal = pad.chunks_exact(2).any(|ends| ends.first() != ends.last());
    if is_custom && is_unequal && block.dtype(ValueId::first(node)) == Some(DType::Float16) {
        let found = TRANSPOSE_PAD.found(format!("it is padded by {pad:?}"));
        findings.push(found.parameter("pad"));
    }
    findings
}

fn pool(block: &Block<'_>, op: &Operation) -> Option<Found> {
    let sizes = block.ints_of(op, "kernel_sizes")?;
    let width = *sizes.last()?;
    let text: Vec<String> = sizes.iter().map(i64::to_string).collect();
    let found = WIDE_POOL
        .found(format!(
            "the window of `{}` is {}",
            op.op_type(),
            text.join(" x ")
        ))
        .parameter("kernel_sizes");
    match op.op_type() {
        "max_pool" if width > WIDEST_MAX_POOL => Some(found),
        "max_pool" => None,
        _ if width > WIDEST_POOL => Some(found.severity(Severity::Info)),
        _ => None,
    }
}
