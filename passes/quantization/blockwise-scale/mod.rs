//! blockwise-scale: compressed weights in forms that the Neural Engine does not take.

use crate::ir::{Node, NodeId, Operation, TensorType, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Block, Evidence, Exactness, Family, Meta, Pass, Rule, Severity, Target, Whole, WholeAttempt,
    WholeMatcher,
};

/// The check.
pub(super) struct BlockwiseScale;

static META: Meta = Meta {
    id: "blockwise-scale",
    family: Family::Quantization,
    summary: "weights whose scale varies along two axes",
    exactness: Exactness::None,
    since: Opset::CoreML8,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const BLOCKWISE_SCALE: Rule = Rule {
    id: "blockwise-scale",
    summary: META.summary,
    why: "The Neural Engine takes one scale a tensor or a channel. With one a block the outputs of an \
          encoder on an iPhone 16 Pro Max (iOS 27) had a cosine of 0.367 to the right ones, 0.999 on \
          the GPU; others saw the operations leave the Neural Engine or the compiler crash. One \
          source asserts that it works.",
    help: "For the Neural Engine quantize by channel, or palettize by groups of channels; blocks are for \
           models that run on a Mac's GPU.",
    evidence: META.evidence,
    sources: &[
        "https://github.com/apple/coreai-models/issues/279",
        "https://github.com/apple/coremltools/issues/2510",
    ],
    severity: Severity::Warning.everywhere(),
    catalog: &[],
};

const SCALED_LUT: Rule = Rule {
    id: "scaled-lut",
    summary: "palettized weights that are scaled afterwards",
    why: "A palette followed by a scale of each channel fails Metal's verification on macOS 26 \
          (`mps.dequantize`, operand 2), and the chain is reported to fail on the Neural Engine with \
          error -14.",
    help: "Fold the scale into the table, or apply it to the convolution's result; coremltools' pass \
           `reorder_lut_per_channel_scale` does the latter. Do not set `enable_per_channel_scale`.",
    evidence: Evidence::Measured,
    sources: &["https://github.com/apple/coremltools/pull/2688"],
    severity: Severity::Warning.everywhere(),
    catalog: &[],
};

impl Pass for BlockwiseScale {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[BLOCKWISE_SCALE, SCALED_LUT]
    }

    fn whole_matcher(
        &self,
        options: &OptionMap,
    ) -> Result<Option<Box<dyn WholeMatcher>>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Some(Box::new(Scales)))
    }
}

/// The weights of one kind in one function: how many, and the first.
#[derive(Default)]
struct Kind {
    count: usize,
    first: Option<(String, String)>,
}

impl Kind {
    fn add(&mut self, name: impl FnOnce() -> String, what: impl FnOnce() -> String) {
        self.count += 1;
        self.first.get_or_insert_with(|| (name(), what()));
    }

    /// One finding for all of them: they have one cause, the setting of one quantizer.
    fn report(self, function: &str, rule: &Rule, attempts: &mut Vec<WholeAttempt>) {
        let Some((name, what)) = self.first else {
            return;
        };
        let more = match self.count {
            1 => String::new(),
            count => format!("; so it is with {count} weights of the function"),
        };
        let found = rule.found(what + &more).parameter("scale");
        let place = [function, &name, "constexpr_blockwise_shift_scale"];
        attempts.push(WholeAttempt::found(place, found));
    }
}

struct Scales;

impl WholeMatcher for Scales {
    fn attempts(&mut self, whole: &Whole<'_>) -> Vec<WholeAttempt> {
        let mut attempts = Vec::new();
        for name in whole.program.functions.keys() {
            let (mut blocks, mut scaled) = (Kind::default(), Kind::default());
            whole.for_each_op(name, &mut |block, node| {
                let Some(op) = block.op_of_type(node, "constexpr_blockwise_shift_scale") else {
                    return;
                };
                let scale = block
                    .constant_of(op, "scale")
                    .and_then(|scale| scale.tensor_type()?.shape());
                let Some(scale) = scale else { return };
                if scale.iter().filter(|size| **size > 1).count() > 1 {
                    blocks.add(|| block.label(node), || sizes(block, node, &scale));
                }
                if op
                    .value("data")
                    .is_some_and(|data| is_palettized(block, data))
                {
                    scaled.add(
                        || block.label(node),
                        || format!("the weights of a table are scaled by {scale:?} numbers"),
                    );
                }
            });
            blocks.report(name, &BLOCKWISE_SCALE, &mut attempts);
            scaled.report(name, &SCALED_LUT, &mut attempts);
        }
        attempts
    }
}

fn sizes(block: &Block<'_>, node: NodeId, scale: &[u64]) -> String {
    let data = block
        .tensor(ValueId::first(node))
        .and_then(TensorType::shape);
    match data {
        Some(data) => format!("weights of {data:?} have scales of {scale:?}"),
        None => format!("its scales are {scale:?}"),
    }
}

/// Whether a value is looked up in a table, here or in a block around.
fn is_palettized(block: &Block<'_>, value: ValueId) -> bool {
    match block.graph.node(value.node) {
        Some(Node::Op(op)) => is_lookup(op),
        Some(Node::Capture { source, .. }) => block
            .outer
            .is_some_and(|outer| is_palettized(outer, *source)),
        _ => false,
    }
}

fn is_lookup(op: &Operation) -> bool {
    op.op_type() == "constexpr_lut_to_dense"
}
