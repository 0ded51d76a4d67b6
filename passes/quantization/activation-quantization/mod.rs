//! activation-quantization: values that are rounded to integers while the model runs.

use crate::ir::{Binding, Node, NodeId, Operation, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Block, Evidence, Exactness, Family, Meta, Pass, Rule, Severity, Target, Whole, WholeAttempt,
    WholeMatcher,
};

/// The check.
pub(super) struct ActivationQuantization;

static META: Meta = Meta {
    id: "activation-quantization",
    family: Family::Quantization,
    summary: "values that are quantized while the model runs",
    exactness: Exactness::None,
    since: Opset::CoreML7,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Disputed,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const ACTIVATION_QUANTIZATION: Rule = Rule {
    id: "activation-quantization",
    summary: META.summary,
    why: "Sources contradict each other. Apple and one measurement on an M4 (1.88 times as fast) speak \
          for it. Against it: the Neural Engine's compiler failed on iPhones with iOS 26, an M4 Max was \
          no faster, and language models kept a cosine of 0.5 to 0.6. The product of a value and a \
          quantized one, quantized with another scale, came out 2, 4 or 8 times too large (Core AI).",
    help: "Measure speed and accuracy on the devices that you ship to. Clamping a product to the range \
           of the next quantization gave right numbers.",
    evidence: META.evidence,
    sources: &[
        "https://github.com/apple/coreai-torch/issues/112",
        "https://apple.github.io/coremltools/docs-guides/source/opt-overview.html",
        "https://github.com/john-rocky/CoreML-LLM",
    ],
    severity: Severity::Info.everywhere(),
    catalog: &[],
};

impl Pass for ActivationQuantization {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[ACTIVATION_QUANTIZATION]
    }

    fn whole_matcher(
        &self,
        options: &OptionMap,
    ) -> Result<Option<Box<dyn WholeMatcher>>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Some(Box::new(Activations)))
    }
}

struct Activations;

impl WholeMatcher for Activations {
    fn attempts(&mut self, whole: &Whole<'_>) -> Vec<WholeAttempt> {
        let mut attempts = Vec::new();
        for name in whole.program.functions.keys() {
            let (mut count, mut first, mut requantized) = (0usize, None, None);
            whole.for_each_op(name, &mut |block, node| {
                let Some(input) = quantized(block, node) else {
                    return;
                };
                count += 1;
                first.get_or_insert_with(|| block.label(node));
                if is_product_of_quantized(block, input) {
                    requantized.get_or_insert_with(|| block.label(node));
                }
            });
            let Some(first) = first else { continue };
            let values = if count == 1 {
                "one value is".to_owned()
            } else {
                format!("{count} values are")
            };
            let product = match &requantized {
                Some(product) => format!("; `{product}` quantizes a product of a quantized value"),
                None => String::new(),
            };
            let found = ACTIVATION_QUANTIZATION
                .found(format!(
                    "{values} quantized while the function runs{product}"
                ))
                .parameter("input");
            attempts.push(WholeAttempt::found([name, &first, "quantize"], found));
        }
        attempts
    }
}

/// What a `quantize` rounds, if it is no constant.
fn quantized(block: &Block<'_>, node: NodeId) -> Option<ValueId> {
    let op = block.op_of_type(node, "quantize")?;
    let input = op.value("input")?;
    block.constant(input).is_none().then_some(input)
}

/// Whether a value is a product with a factor that was quantized.
fn is_product_of_quantized(block: &Block<'_>, value: ValueId) -> bool {
    let Some(product) = block.producer_of_type(value, "mul") else {
        return false;
    };
    ["x", "y"].into_iter().any(|factor| {
        matches!(product.binding(factor), Some(Binding::Value(value)) if matches!(
            block.graph.node(value.node),
            Some(Node::Op(op)) if is_dequantize(op)
        ))
    })
}

fn is_dequantize(op: &Operation) -> bool {
    op.op_type() == "dequantize"
}
