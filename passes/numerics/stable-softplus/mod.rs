//! stable-softplus: a softplus is computed without the exponential of a positive number.

pub(super) mod logarithm;

use half::f16;

use crate::analysis::range;
use crate::ir::{Binding, DType, NodeId, Operation, TensorData, TensorType, Value, ValueId};
use crate::ops::{Opset, constant};
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Edit, EditError, Evidence, Exactness, Family, Found, Matcher, Meta, Pass, Rule,
    Severity, Target,
};

/// The pass.
pub(super) struct StableSoftplus;

static META: Meta = Meta {
    id: "stable-softplus",
    family: Family::Numerics,
    summary: "softplus, also spelled log(1 + exp(x)), becomes relu(x) + log(1 + exp(-|x|))",
    exactness: Exactness::Real,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &[],
    default: true,
    after: &[],
    page: include_str!("README.md"),
};

const SOFTPLUS: Rule = Rule {
    id: "softplus",
    summary: "softplus in fp16, also spelled log(1 + exp(x))",
    why: "On the Neural Engine fp16 softplus is right up to x of about 10.4 and 0 for every larger x \
          (coremltools issue 2687, confirmed by a second user on an M4); exp(x) is infinite in fp16 \
          from 11.1 on. Not every chip may be concerned.",
    help: "stable-softplus computes it without the exponential of a positive number.",
    evidence: META.evidence,
    sources: &["https://github.com/apple/coremltools/issues/2687"],
    severity: Severity::Warning.everywhere(),
    catalog: &[],
};

const MISH: Rule = Rule {
    id: "mish",
    summary: "mish in fp16: x * tanh(softplus(x))",
    why: "A network with mish has a mean absolute error of 2.955 on the Neural Engine and of 0.001 on \
          the GPU, which was narrowed to the softplus in it (coremltools issue 2359).",
    help: "stable-softplus repairs the softplus in it.",
    sources: &["https://github.com/apple/coremltools/issues/2359"],
    ..SOFTPLUS
};

impl Pass for StableSoftplus {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[SOFTPLUS, MISH]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(Softplus))
    }
}

/// An fp16 softplus of no larger x is right: ln 2^15, "about 10.4" where it was measured. Networks are
/// trained and converted with the operand cut off at 10.39 for that.
const LARGEST_RIGHT: f64 = 10.397_207_708_399_18;

/// So many operations behind the operand are looked at for what cuts it off.
const NEAR: usize = 8;

struct Softplus;

impl Matcher for Softplus {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let Some(op) = block.op(node) else {
            return Attempt::NoMatch;
        };
        let attempt = match op.op_type() {
            "softplus" | "softplus_parametric" => native(block, op, node),
            "log" => spelled_out(block, op, node),
            _ => return Attempt::NoMatch,
        };
        if matches!(attempt, Attempt::Match(_)) && is_cut_off(block, op) {
            return Attempt::NoEffect;
        }
        attempt.on_match(|| finding(block, op, node))
    }
}

/// Whether the operand is known to be nowhere so large that the result is wrong.
fn is_cut_off(block: &Block<'_>, op: &Operation) -> bool {
    operand(block, op).is_some_and(|x| range::near(block, x, NEAR).high <= LARGEST_RIGHT)
}

/// The x of a softplus without factors.
fn operand(block: &Block<'_>, op: &Operation) -> Option<ValueId> {
    match op.op_type() {
        "softplus" => op.value("x"),
        "log" => op
            .value("x")
            .and_then(|sum| exponential(block, sum))
            .and_then(|(exponential, _)| block.op(exponential.node)?.value("x")),
        _ => None,
    }
}

/// What the linter says of a softplus.
fn finding(block: &Block<'_>, op: &Operation, node: NodeId) -> Found {
    let spelling = match op.op_type() {
        "log" => "log(1 + exp(x))",
        native => native,
    };
    let result = ValueId::first(node);
    let dtype = block.dtype(result).map_or_else(String::new, DType::word);
    let peak = operand(block, op)
        .and_then(|x| range::measured(block, x))
        .filter(|peak| *peak <= LARGEST_RIGHT);
    let seen = peak.map_or_else(String::new, |peak| {
        format!("; x was measured up to {peak:.2}, where it is right")
    });
    let is_in_mish = is_in_mish(block, result);
    let found = if is_in_mish {
        MISH.found(format!(
            "x * tanh(softplus(x)) of {dtype}, the softplus as `{spelling}`{seen}"
        ))
    } else {
        SOFTPLUS.found(format!("`{spelling}` of {dtype}{seen}"))
    };
    // fp32 does not run on the Neural Engine, and exp(x) is finite up to 88.
    let is_single = !is_in_mish && block.dtype(result) != Some(DType::Float16);
    if peak.is_some() || is_single {
        found.severity(Severity::Info)
    } else {
        found
    }
}

/// Whether all that a value does is to go through a `tanh` into a product.
fn is_in_mish(block: &Block<'_>, value: ValueId) -> bool {
    let Some(tanh) = block.graph.only_user(value) else {
        return false;
    };
    block.op_of_type(tanh, "tanh").is_some()
        && block
            .graph
            .only_user(ValueId::first(tanh))
            .is_some_and(|product| block.op_of_type(product, "mul").is_some())
}

/// `softplus` and `softplus_parametric`.
fn native(block: &Block<'_>, op: &Operation, node: NodeId) -> Attempt {
    let Some(x) = op.value("x") else {
        return Attempt::missed(node, "x is a literal");
    };
    let Some(ty) = block.tensor(x).filter(|ty| ty.rank >= 0) else {
        return Attempt::missed(node, "the type of x is not known");
    };
    if ty.dtype != DType::Float16 {
        let why = format!(
            "{} does not run on the Neural Engine, and the operation keeps more digits",
            ty.dtype
        );
        return Attempt::missed(node, why);
    }
    let factors = if op.op_type() == "softplus" {
        Factors::ONES
    } else {
        match Factors::of_channels(block, op, ty) {
            Ok(factors) => factors,
            Err(why) => return Attempt::missed(node, why),
        }
    };
    rewrite(block, node, op.op_type(), x, factors)
}

/// `log(add(1, exp(x)))`.
fn spelled_out(block: &Block<'_>, log: &Operation, node: NodeId) -> Attempt {
    let Some(sum) = log.value("x") else {
        return Attempt::NoMatch;
    };
    let Some((exponential, other)) = exponential(block, sum) else {
        return Attempt::NoMatch;
    };
    let Some(x) = block
        .op(exponential.node)
        .and_then(|exponential| exponential.value("x"))
    else {
        return Attempt::NoMatch;
    };
    let addend = block
        .op(sum.node)
        .and_then(|add| block.uniform_of(add, other));
    match addend {
        Some(addend) if addend.value == 1.0 => {}
        Some(addend) => {
            let why = format!("{} is added to the exponential, not 1", addend.value);
            return Attempt::missed(sum.node, why);
        }
        None => {
            let why = "what is added to the exponential is not one constant number";
            return Attempt::missed(sum.node, why);
        }
    }
    if block.tensor(sum).is_none() || block.tensor(sum) != block.tensor(exponential) {
        let why = "the constant's shape gives the sum another shape than the exponential";
        return Attempt::missed(sum.node, why);
    }
    if is_never_positive(block, x) {
        return Attempt::NoEffect;
    }
    if let Err(why) = logarithm::negligible(block, log, logarithm::LOST_BESIDE_ONE) {
        return Attempt::missed(node, why);
    }
    rewrite(block, node, "log(1 + exp(x))", x, Factors::ONES)
}

/// The side of an add that is an `exp`, and the name of the other side.
fn exponential(block: &Block<'_>, sum: ValueId) -> Option<(ValueId, &'static str)> {
    let add = block.producer_of_type(sum, "add")?;
    [("x", "y"), ("y", "x")]
        .into_iter()
        .find_map(|(side, other)| {
            let value = add.value(side)?;
            block.producer_of_type(value, "exp").map(|_| (value, other))
        })
}

/// Whether the value is a magnitude times a negative constant, or subtracted from 0: its
/// exponential is at most 1, and there is nothing to repair.
fn is_never_positive(block: &Block<'_>, value: ValueId) -> bool {
    let Some(op) = block.op(value.node) else {
        return false;
    };
    let is_magnitude = |side: &str| {
        op.value(side)
            .is_some_and(|value| block.producer_of_type(value, "abs").is_some())
    };
    // A vector of factors, which this pass makes for channels that differ, counts too.
    let is_negative = |side: &str| match block.uniform_of(op, side) {
        Some(factor) => factor.value <= 0.0,
        None => channels(block, op, side)
            .is_some_and(|factors| factors.iter().all(|factor| *factor <= 0.0)),
    };
    match op.op_type() {
        "mul" => (is_magnitude("x") && is_negative("y")) || (is_magnitude("y") && is_negative("x")),
        "sub" => is_magnitude("y") && is_negative("x"),
        _ => false,
    }
}

/// The constants of `slope·relu(x) + alpha·log(1 + exp(-beta·|x|))`, with slope = alpha·beta, one
/// for each channel or one for all.
struct Factors {
    slope: Vec<f64>,
    alpha: Vec<f64>,
    minus_beta: Vec<f64>,
    /// The rank of x.
    rank: usize,
}

impl Factors {
    const ONES: Self = Self {
        slope: Vec::new(),
        alpha: Vec::new(),
        minus_beta: Vec::new(),
        rank: 0,
    };

    /// Those of a `softplus_parametric`, or why they cannot be had.
    fn of_channels(block: &Block<'_>, op: &Operation, ty: &TensorType) -> Result<Self, String> {
        let alpha = channels(block, op, "alpha").ok_or("alpha is not known")?;
        let beta = channels(block, op, "beta").ok_or("beta is not known")?;
        if alpha.len() != beta.len() || alpha.is_empty() {
            return Err("alpha and beta have no equal number of elements".to_owned());
        }
        if let Some(least) = beta
            .iter()
            .copied()
            .find(|beta| beta.is_nan() || *beta <= 0.0)
        {
            return Err(format!(
                "beta is {least} for a channel, which is not positive"
            ));
        }
        let slope: Vec<f64> = alpha.iter().zip(&beta).map(|(a, b)| a * b).collect();
        let all = alpha.iter().chain(&beta).chain(&slope);
        let misfit = all
            .copied()
            .find(|value| *value != 0.0 && !f16::from_f64(*value).is_normal());
        if let Some(value) = misfit {
            return Err(format!(
                "the factor {value:e} is no normal {} number",
                ty.dtype
            ));
        }
        Ok(Self {
            slope,
            alpha,
            minus_beta: beta.iter().map(|beta| -beta).collect(),
            rank: ty.dims.len(),
        })
    }
}

/// The elements of a constant vector.
fn channels(block: &Block<'_>, op: &Operation, parameter: &str) -> Option<Vec<f64>> {
    let value = block.constant_of(op, parameter)?;
    if value.blob().is_none() {
        return constant::floats(value);
    }
    let ty = value.tensor_type()?;
    let bytes = block.bytes(value)?;
    let elements: Vec<f64> = match ty.dtype {
        DType::Float16 => bytes
            .chunks_exact(2)
            .map(|pair| f16::from_le_bytes([pair[0], pair[1]]).to_f64())
            .collect(),
        DType::Float32 => bytes
            .chunks_exact(4)
            .map(|four| f64::from(f32::from_le_bytes([four[0], four[1], four[2], four[3]])))
            .collect(),
        _ => return None,
    };
    (ty.elements() == Some(elements.len() as u64)).then_some(elements)
}

fn rewrite(block: &Block<'_>, node: NodeId, found: &str, x: ValueId, factors: Factors) -> Attempt {
    let result = ValueId::first(node);
    let Some(dtype) = block.dtype(x) else {
        return Attempt::missed(node, "the type of x is not known");
    };
    if block.tensor(x) != block.tensor(result) {
        return Attempt::missed(node, "the result has another type than x");
    }
    let Some(epsilon_type) = logarithm::epsilon_type(block, dtype) else {
        return Attempt::missed(node, "the opset is not known");
    };
    let what = if factors.rank == 0 {
        format!("{found} becomes relu(x) + log(1 + exp(-|x|))")
    } else {
        format!("{found} becomes alpha·beta·relu(x) + alpha·log(1 + exp(-beta·|x|))")
    };
    Attempt::matched(what, move |edit| {
        let rank = factors.rank;
        let positive = edit.op("relu", &[("x", Binding::Value(x))])?;
        let positive = scaled(edit, positive, &factors.slope, rank, dtype)?;
        let magnitude = edit.op("abs", &[("x", Binding::Value(x))])?;
        let negative = if factors.minus_beta.is_empty() {
            scaled(edit, magnitude, &[-1.0], rank, dtype)?
        } else {
            scaled(edit, magnitude, &factors.minus_beta, rank, dtype)?
        };
        let small = edit.op("exp", &[("x", Binding::Value(negative))])?;
        let one = edit.scalar(dtype, 1.0)?;
        let sum = edit.op("add", &[("x", Binding::Value(small)), ("y", one)])?;
        let rest = logarithm::unguarded(edit, sum, epsilon_type)?;
        let rest = scaled(edit, rest, &factors.alpha, rank, dtype)?;
        let new = edit.op(
            "add",
            &[("x", Binding::Value(positive)), ("y", Binding::Value(rest))],
        )?;
        edit.replace(result, new)
    })
}

/// The product with one factor for all or for each channel, the second dimension; the value itself
/// if all are 1 in its type.
fn scaled(
    edit: &mut Edit<'_>,
    value: ValueId,
    factors: &[f64],
    rank: usize,
    dtype: DType,
) -> Result<ValueId, EditError> {
    let rounded = |factor: f64| match dtype {
        DType::Float16 => f16::from_f64(factor).to_f64(),
        _ => f64::from(factor as f32),
    };
    let factors: Vec<f64> = factors.iter().copied().map(rounded).collect();
    let Some(first) = factors.first().copied() else {
        return Ok(value);
    };
    let factor = if factors.iter().any(|factor| *factor != first) {
        let mut shape = vec![1; rank.saturating_sub(1)];
        if let Some(channels) = shape.first_mut() {
            *channels = factors.len() as u64;
        }
        let data = match dtype {
            DType::Float16 => TensorData::Bytes(
                factors
                    .iter()
                    .flat_map(|factor| f16::from_f64(*factor).to_le_bytes())
                    .collect(),
            ),
            _ => TensorData::Floats(factors.iter().map(|factor| *factor as f32).collect()),
        };
        edit.constant(Value::tensor(TensorType::fixed(dtype, &shape), data))
    } else if first == 1.0 {
        return Ok(value);
    } else {
        edit.scalar(dtype, first)?
    };
    edit.op("mul", &[("x", Binding::Value(value)), ("y", factor)])
}
