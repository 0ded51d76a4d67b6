//! stable-logsumexp: the logarithm of a sum of exponentials is computed around the greatest element.

use crate::analysis::range;
use crate::eval::ranges::HALF_MAX;
use crate::ir::{Binding, DType, NodeId, Operation, TensorType, Value, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Edit, EditError, Evidence, Exactness, Family, Matcher, Meta, Pass, Rule,
    Severity, Target,
};

use super::stable_softplus::logarithm;

/// The pass.
pub(super) struct StableLogSumExp;

static META: Meta = Meta {
    id: "stable-logsumexp",
    family: Family::Numerics,
    summary: "reduce_log_sum_exp, also spelled out, takes its exponentials of x - max(x)",
    exactness: Exactness::Real,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &[],
    default: true,
    after: &["stable-log-softmax"],
    page: include_str!("README.md"),
};

const LOGSUMEXP: Rule = Rule {
    id: "logsumexp",
    summary: "the logarithm of a sum of exponentials, not shifted by the greatest",
    why: "On the Neural Engine a sum over 32 channels in fp16 gives 11.1 and then 0 from x of 7.63 \
          on, where 32 * exp(x) passes the largest fp16 number; CPU and GPU are right (coremltools \
          issue 2690).",
    help: "stable-logsumexp takes the exponentials of x - max(x).",
    evidence: META.evidence,
    sources: &["https://github.com/apple/coremltools/issues/2690"],
    severity: Severity::Warning.everywhere(),
    catalog: &[],
};

impl Pass for StableLogSumExp {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[LOGSUMEXP]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(LogSumExp))
    }
}

struct LogSumExp;

impl Matcher for LogSumExp {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let Some(op) = block.op(node) else {
            return Attempt::NoMatch;
        };
        let attempt = match op.op_type() {
            "reduce_log_sum_exp" => match op.value("x") {
                Some(x) => reduction(block, node, op, x, "reduce_log_sum_exp(x)"),
                None => Attempt::missed(node, "x is a literal"),
            },
            "log" => spelled_out(block, node, op),
            _ => return Attempt::NoMatch,
        };
        attempt.on_match(|| {
            let dtype = block.dtype(ValueId::first(node));
            let word = dtype.map_or_else(String::new, DType::word);
            let seen = fits(block, op, node);
            let measured = seen.map_or_else(String::new, |peak| {
                format!("; x was measured up to {peak:.2}, where the sum fits")
            });
            let found = LOGSUMEXP.found(format!("a sum of exponentials of {word}{measured}"));
            if dtype == Some(DType::Float16) && seen.is_none() {
                found
            } else {
                found.severity(Severity::Info)
            }
        })
    }
}

/// The measured peak of what is exponentiated, if a sum of so many exponentials is finite in fp16.
fn fits(block: &Block<'_>, op: &Operation, node: NodeId) -> Option<f64> {
    let x = match op.op_type() {
        "log" => {
            let sum = block.producer_of_type(op.value("x")?, "reduce_sum")?;
            block.producer_of_type(sum.value("x")?, "exp")?.value("x")?
        }
        _ => op.value("x")?,
    };
    let elements = |value: ValueId| block.tensor(value)?.elements();
    let terms = elements(x)?.checked_div(elements(ValueId::first(node))?)?;
    let peak = range::measured(block, x)?;
    (peak + (terms as f64).ln() < HALF_MAX.ln()).then_some(peak)
}

/// `log(reduce_sum(exp(x)))`.
fn spelled_out(block: &Block<'_>, node: NodeId, log: &Operation) -> Attempt {
    let parts = log.value("x").and_then(|sum| {
        let sum = block.producer_of_type(sum, "reduce_sum")?;
        let exponential = block.producer_of_type(sum.value("x")?, "exp")?;
        Some((sum, exponential.value("x")?))
    });
    let Some((sum, x)) = parts else {
        return Attempt::NoMatch;
    };
    let attempt = reduction(block, node, sum, x, "log(reduce_sum(exp(x)))");
    match logarithm::negligible(block, log, logarithm::SMALLEST) {
        Err(why) if matches!(attempt, Attempt::Match(_)) => Attempt::missed(node, why),
        _ => attempt,
    }
}

/// The rewrite of what ends at `node` and sums exponentials of x as the reduction does.
fn reduction(
    block: &Block<'_>,
    node: NodeId,
    reduction: &Operation,
    x: ValueId,
    found: &str,
) -> Attempt {
    let Some(ty) = block.tensor(x).filter(|ty| ty.rank >= 0) else {
        return Attempt::missed(node, "the type of x is not known");
    };
    if !ty.dtype.is_float() {
        return Attempt::missed(node, format!("x is of {}", ty.dtype));
    }
    let Some(axes) = axes(block, reduction, ty.dims.len()) else {
        return Attempt::missed(node, "the axes are not known");
    };
    if axes.is_empty() {
        return Attempt::missed(node, "it reduces no axis");
    }
    let Some(keep_dims) = block.bool_or(reduction, "keep_dims", false) else {
        return Attempt::missed(node, "keep_dims is not known");
    };
    if is_shifted(block, x, &axes) {
        return Attempt::NoEffect;
    }
    if let Err(why) = sum_fits(ty, &axes) {
        return Attempt::missed(node, why);
    }
    let Some(epsilon_type) = logarithm::epsilon_type(block, ty.dtype) else {
        return Attempt::missed(node, "the opset is not known");
    };
    let dtype = ty.dtype;
    let what = format!("{found} becomes log(reduce_sum(exp(x - m))) + m, m = reduce_max(x)");
    Attempt::matched(what, move |edit| {
        let axes = edit.constant(Value::int32s(&axes));
        let greatest = reduce(edit, "reduce_max", x, &axes)?;
        let greatest = finite(edit, greatest, dtype)?;
        let shifted = binary(edit, "sub", x, greatest)?;
        let exponentials = edit.op("exp", &[("x", Binding::Value(shifted))])?;
        let sum = reduce(edit, "reduce_sum", exponentials, &axes)?;
        let logarithm = logarithm::unguarded(edit, sum, epsilon_type)?;
        let mut new = binary(edit, "add", logarithm, greatest)?;
        if !keep_dims {
            new = edit.op("squeeze", &[("x", Binding::Value(new)), ("axes", axes)])?;
        }
        edit.replace(ValueId::first(node), new)
    })
}

/// The axes of a reduction, from 0 and sorted; `None` if they are not known or not those of a
/// tensor of this rank.
fn axes(block: &Block<'_>, reduction: &Operation, rank: usize) -> Option<Vec<i32>> {
    let rank = i32::try_from(rank).ok()?;
    if reduction.argument("axes").is_none() {
        return Some((0..rank).collect());
    }
    let mut axes = block
        .ints_of(reduction, "axes")?
        .into_iter()
        .map(|axis| normal_axis(axis, rank))
        .collect::<Option<Vec<i32>>>()?;
    axes.sort_unstable();
    axes.dedup();
    Some(axes)
}

/// The axis counted from 0, if the rank has it.
fn normal_axis(axis: i64, rank: i32) -> Option<i32> {
    let rank = i64::from(rank);
    let axis = if axis < 0 { axis + rank } else { axis };
    (0..rank).contains(&axis).then_some(axis as i32)
}

/// Whether the value is x − m, m the maximum of x along exactly these axes: then there is nothing
/// to repair.
fn is_shifted(block: &Block<'_>, value: ValueId, wanted: &[i32]) -> bool {
    let found = || {
        // A bound from below, which stable-log-softmax makes, leaves it at most 0.
        let value = match block.producer_of_type(value, "maximum") {
            Some(bounded) if block.uniform_of(bounded, "y")?.value <= 0.0 => bounded.value("x")?,
            _ => value,
        };
        let sub = block.producer_of_type(value, "sub")?;
        let x = sub.value("x")?;
        let mut greatest = sub.value("y")?;
        // Bounds that only infinities reach leave every finite maximum.
        if let Some(clip) = block.producer_of_type(greatest, "clip") {
            let limit = largest(block.dtype(x)?);
            let is_wide = block.uniform_of(clip, "alpha")?.value <= -limit
                && block.uniform_of(clip, "beta")?.value >= limit;
            greatest = clip.value("x").filter(|_| is_wide)?;
        }
        let maximum = block.producer_of_type(greatest, "reduce_max")?;
        let same = maximum.value("x")? == x
            && block.bool_or(maximum, "keep_dims", false)?
            && axes(block, maximum, block.tensor(x)?.dims.len())? == wanted;
        same.then_some(())
    };
    found().is_some()
}

/// Whether a sum of numbers up to 1 along these axes is finite in x's type; if not, why.
pub(super) fn sum_fits(ty: &TensorType, axes: &[i32]) -> Result<(), String> {
    if ty.dtype != DType::Float16 {
        return Ok(());
    }
    let count = axes.iter().try_fold(1u64, |count, axis| {
        let size = ty.dims.get(usize::try_from(*axis).ok()?)?.size()?;
        count.checked_mul(size)
    });
    match count {
        None => Err("it is not known how many numbers are added in fp16".to_owned()),
        Some(count) if count as f64 > largest(ty.dtype) => Err(format!(
            "a sum of {count} numbers up to 1 can be infinite in fp16"
        )),
        Some(_) => Ok(()),
    }
}

/// The largest finite number of a type that has a logarithm, fp16 or fp32.
pub(super) fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::Float16 => half::f16::MAX.to_f64(),
        _ => f64::from(f32::MAX),
    }
}

/// A maximum, as a finite number: subtracted from itself, an infinity gives NaN.
fn finite(edit: &mut Edit<'_>, maximum: ValueId, dtype: DType) -> Result<ValueId, EditError> {
    let alpha = edit.scalar(dtype, -largest(dtype))?;
    let beta = edit.scalar(dtype, largest(dtype))?;
    let arguments = [
        ("x", Binding::Value(maximum)),
        ("alpha", alpha),
        ("beta", beta),
    ];
    edit.op("clip", &arguments)
}

/// A reduction that keeps the reduced axes with size 1.
pub(super) fn reduce(
    edit: &mut Edit<'_>,
    op_type: &str,
    x: ValueId,
    axes: &Binding,
) -> Result<ValueId, EditError> {
    let keep_dims = edit.constant(Value::bool(true));
    let arguments = [
        ("x", Binding::Value(x)),
        ("axes", axes.clone()),
        ("keep_dims", keep_dims),
    ];
    edit.op(op_type, &arguments)
}

/// An operation of two values.
pub(super) fn binary(
    edit: &mut Edit<'_>,
    op_type: &str,
    x: ValueId,
    y: ValueId,
) -> Result<ValueId, EditError> {
    edit.op(
        op_type,
        &[("x", Binding::Value(x)), ("y", Binding::Value(y))],
    )
}
