//! accumulator-range: a product whose sum may pass what the accumulator of the Neural Engine holds.

use crate::analysis::range;
use crate::eval::ranges::PRODUCT_MAX;
use crate::ir::{DType, NodeId, Operation, TensorType, Value, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Rule, Severity, Target,
};

/// The check.
pub(super) struct AccumulatorRange;

static META: Meta = Meta {
    id: "accumulator-range",
    family: Family::Numerics,
    summary: "a product in fp16 whose sum may pass 32768",
    exactness: Exactness::None,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const ACCUMULATOR_RANGE: Rule = Rule {
    id: "accumulator-range",
    summary: META.summary,
    why: "The Neural Engine adds up products, with the bias, in a fixed-point number that ends at 2^15: \
          16384 + 16384 is infinite and stays so, whatever is subtracted after it (a study of the M4 \
          and M6). fp16 itself goes to 65504, so that CPU and GPU show nothing.",
    help: "Scale the input or the weights down, and the result up again in what follows.",
    evidence: META.evidence,
    sources: &[
        "https://github.com/751K/Apple-Neural-Engine-Microarchitecture-Study-M6",
        "https://github.com/sbryngelson/ANEForge/issues/115",
    ],
    severity: Severity::Info.everywhere(),
    catalog: &[],
};

/// Where the accumulator ends. Sources: the study of the M4 and M6, ANEForge issue 115 (measured).
const LIMIT: f64 = 32_768.0;

/// What gives sums of products.
const PRODUCTS: [&str; 6] = [
    "conv",
    "conv_transpose",
    "einsum",
    "linear",
    "matmul",
    "scaled_dot_product_attention",
];

/// Inputs of which nothing is known are usually no larger; this project's choice.
const USUAL: f64 = 16.0;

/// Weights with more elements are not read.
const MAX_ELEMENTS: u64 = 1 << 20;

/// No more elements than these are read in one block.
const MAX_IN_ALL: u64 = 1 << 22;

impl Pass for AccumulatorRange {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[ACCUMULATOR_RANGE]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(Sums { left: MAX_IN_ALL }))
    }
}

struct Sums {
    /// How many more elements may be read.
    left: u64,
}

impl Matcher for Sums {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let result = ValueId::first(node);
        let Some(op) = block
            .op(node)
            .filter(|_| block.dtype(result) == Some(DType::Float16))
        else {
            return Attempt::NoMatch;
        };
        let reached = range::measured(block, result).filter(|_| PRODUCTS.contains(&op.op_type()));
        if let Some(peak) = reached.filter(|peak| *peak > PRODUCT_MAX) {
            let what = format!(
                "its result was measured up to {peak:.0}, and is infinite on the Neural Engine from about \
                 32752 on"
            );
            return ACCUMULATOR_RANGE
                .found(what)
                .severity(Severity::Error)
                .into();
        }
        match self.judge(block, op) {
            Some(mut what) => {
                if let Some(peak) = reached {
                    what = format!("{what}; its result was measured up to {peak:.1}");
                }
                ACCUMULATOR_RANGE.found(what).into()
            }
            None => Attempt::NoMatch,
        }
    }
}

/// A product with constant weights.
struct Product<'a> {
    x: ValueId,
    weight: &'a Value,
    parameter: &'static str,
    /// The dimensions of the weight, and which of them is that of the results.
    dims: Vec<u64>,
    axis: usize,
}

impl<'a> Product<'a> {
    fn of(block: &Block<'a>, op: &'a Operation) -> Option<Self> {
        let (parameter, is_transposed) = match op.op_type() {
            "conv" | "linear" => ("weight", true),
            "matmul" => ("y", block.bool_or(op, "transpose_y", false)?),
            _ => return None,
        };
        let weight = block.constant_of(op, parameter)?;
        let dims = weight.tensor_type().and_then(TensorType::shape)?;
        // A weight of another rank has several matrices.
        if op.op_type() == "matmul" && dims.len() != 2 {
            return None;
        }
        Some(Self {
            x: op.value("x")?,
            weight,
            parameter,
            axis: usize::from(!is_transposed),
            dims,
        })
    }

    /// How many products each result adds up.
    fn terms(&self) -> u64 {
        let others = self.dims.iter().enumerate();
        others
            .filter(|(axis, _)| *axis != self.axis)
            .map(|(_, size)| *size)
            .fold(1, u64::saturating_mul)
    }
}

impl Sums {
    fn judge(&mut self, block: &Block<'_>, op: &Operation) -> Option<String> {
        let product = Product::of(block, op)?;
        let known = range::of(block, product.x).magnitude();
        let measured = range::measured(block, product.x).filter(|peak| *peak < known);
        let largest = measured.unwrap_or(known);
        let up_to = if measured.is_some() {
            "measured up to"
        } else {
            "up to"
        };
        let terms = product.terms();
        // Of equal weights the first tells everything, and of others the first two that they differ.
        if let Some(weight) = block.uniform_of(op, product.parameter) {
            let sum = weight.value.abs() * terms as f64;
            let input = if largest.is_finite() { largest } else { USUAL };
            if sum * input < LIMIT {
                return None;
            }
            if measured.is_some() {
                return Some(format!(
                    "with inputs {up_to} {largest:.1} its {terms} products, with weights of {}, may add up \
                     to {:.0}",
                    weight.value,
                    sum * input
                ));
            }
            let from = LIMIT / sum;
            return Some(format!(
                "adds {terms} products with weights of {}: from inputs of {from} on it may pass 32768",
                weight.value
            ));
        }
        let count = terms.checked_mul(*product.dims.get(product.axis)?)?;
        if !largest.is_finite() || largest == 0.0 || count > MAX_ELEMENTS {
            return None;
        }
        self.left = self.left.checked_sub(count)?;
        let weights = block.elements(product.weight)?.to_f64().ok()?;
        let bias = bias(block, op);
        let sum = sums(&weights, &product)
            .into_iter()
            .enumerate()
            .map(|(index, sum)| sum * largest + bias.get(index).map_or(0.0, |bias| bias.abs()))
            .fold(0.0, f64::max);
        (sum >= LIMIT && sum.is_finite()).then(|| {
            format!("with inputs {up_to} {largest} its {terms} products may add up to {sum:.0}")
        })
    }
}

/// The sums of the magnitudes of the weights, for each result.
fn sums(weights: &[f64], product: &Product<'_>) -> Vec<f64> {
    let results = product.dims.get(product.axis).copied().unwrap_or(0) as usize;
    let inner = product.dims.iter().skip(product.axis + 1).product::<u64>() as usize;
    let mut sums = vec![0.0; results];
    for (index, weight) in weights.iter().enumerate() {
        let result = (index / inner.max(1)) % results.max(1);
        if let Some(sum) = sums.get_mut(result) {
            *sum += weight.abs();
        }
    }
    sums
}

/// The bias, if there is a constant one that can be read.
fn bias(block: &Block<'_>, op: &Operation) -> Vec<f64> {
    let constant = block.constant_of(op, "bias");
    let is_small = |bias: &&Value| {
        let elements = bias.tensor_type().and_then(TensorType::elements);
        elements.is_some_and(|elements| elements <= MAX_ELEMENTS)
    };
    constant
        .filter(is_small)
        .and_then(|bias| block.elements(bias)?.to_f64().ok())
        .unwrap_or_default()
}
