//! stable-log-softmax: the logarithm of a softmax never takes the logarithm of a small number.

use crate::ir::{Binding, NodeId, Value, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Rule, Severity, Target,
};

use super::stable_logsumexp::{binary, largest, reduce, sum_fits};
use super::stable_softplus::logarithm;

/// The pass.
pub(super) struct StableLogSoftmax;

static META: Meta = Meta {
    id: "stable-log-softmax",
    family: Family::Numerics,
    summary: "log(softmax(x)) becomes s - log(sum(exp(s))), s = x - max(x)",
    exactness: Exactness::Real,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &[],
    default: true,
    after: &[],
    page: include_str!("README.md"),
};

const LOG_SOFTMAX: Rule = Rule {
    id: "log-softmax",
    summary: "the logarithm of a softmax",
    why: "A probability below 6e-8 is 0 in fp16, and its logarithm is -infinity or, with the epsilon \
          of log, a constant that has nothing to do with the score (coremltools issue 2728).",
    help: "stable-log-softmax computes it from the scores.",
    evidence: META.evidence,
    sources: &["https://github.com/apple/coremltools/issues/2728"],
    severity: Severity::Warning.everywhere(),
    catalog: &[],
};

impl Pass for StableLogSoftmax {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[LOG_SOFTMAX]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(LogSoftmax))
    }
}

struct LogSoftmax;

/// The axis of a `softmax` that does not say. Source: coremltools' op definition.
const DEFAULT_AXIS: i64 = -1;

impl Matcher for LogSoftmax {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let Some(log) = block.op_of_type(node, "log") else {
            return Attempt::NoMatch;
        };
        let Some(probabilities) = log.value("x") else {
            return Attempt::NoMatch;
        };
        let Some(softmax) = block.producer_of_type(probabilities, "softmax") else {
            let cast = block.producer_of_type(probabilities, "cast");
            let inner = cast.and_then(|cast| cast.value("x"));
            if inner.is_some_and(|inner| block.producer_of_type(inner, "softmax").is_some()) {
                let why = "a cast stands between the softmax and the log";
                return Attempt::missed(probabilities.node, why);
            }
            return Attempt::NoMatch;
        };
        let Some(x) = softmax.value("x") else {
            return Attempt::missed(probabilities.node, "x is a literal");
        };
        let Some(ty) = block.tensor(x).filter(|ty| ty.rank >= 0) else {
            return Attempt::missed(probabilities.node, "the type of x is not known");
        };
        let axis = match softmax.argument("axis") {
            None => Some(DEFAULT_AXIS),
            Some(_) => block.int_of(softmax, "axis"),
        };
        let rank = ty.dims.len() as i64;
        let axis = axis.map(|axis| if axis < 0 { axis + rank } else { axis });
        let Some(axis) = axis.filter(|axis| (0..rank).contains(axis)) else {
            return Attempt::missed(probabilities.node, "the axis is not known");
        };
        let axes = [axis as i32];
        if let Err(why) = logarithm::negligible(block, log, logarithm::SMALLEST) {
            return Attempt::missed(node, why);
        }
        if let Err(why) = sum_fits(ty, &axes) {
            return Attempt::missed(node, why);
        }
        let result = ValueId::first(node);
        if block.tensor(result) != Some(ty) {
            return Attempt::missed(node, "the result has another type than x");
        }
        let Some(epsilon_type) = logarithm::epsilon_type(block, ty.dtype) else {
            return Attempt::missed(node, "the opset is not known");
        };
        let dtype = ty.dtype;
        let what = "log(softmax(x)) becomes s - log(reduce_sum(exp(s))), s = x - reduce_max(x)";
        let finding = LOG_SOFTMAX.found(format!("log(softmax(x)) of {dtype}"));
        let rewrite = Attempt::matched(what, move |edit| {
            let axes = edit.constant(Value::int32s(&axes));
            let greatest = reduce(edit, "reduce_max", x, &axes)?;
            let shifted = binary(edit, "sub", x, greatest)?;
            let lowest = edit.scalar(dtype, -largest(dtype))?;
            let shifted = edit.op("maximum", &[("x", Binding::Value(shifted)), ("y", lowest)])?;
            let exponentials = edit.op("exp", &[("x", Binding::Value(shifted))])?;
            let sum = reduce(edit, "reduce_sum", exponentials, &axes)?;
            let logarithm = logarithm::unguarded(edit, sum, epsilon_type)?;
            let new = binary(edit, "sub", shifted, logarithm)?;
            edit.replace(result, new)
        });
        rewrite.with(finding)
    }
}
