//! Evaluation of the elementwise functions of one tensor.
//!
//! Floats are computed in fp32, integers (where the op takes them) exactly. NaN gives NaN
//! everywhere.

use super::like_x;
use crate::ops::evaluate::{Call, EvalError, Kernel, Results, in_parameter};
use crate::tensor::{map, round_to_half};

pub(super) fn kernel(op_type: &str) -> Option<Kernel> {
    Some(match op_type {
        "abs" => |call| numbers(call, f32::abs, i64::wrapping_abs),
        "acos" => |call| floats(call, f32::acos),
        "asin" => |call| floats(call, f32::asin),
        "atan" => |call| floats(call, f32::atan),
        "atanh" => |call| floats(call, in_double(f64::atanh)),
        "ceil" => |call| floats(call, f32::ceil),
        "clip" => clip,
        "cos" => |call| floats(call, f32::cos),
        "cosh" => |call| floats(call, f32::cosh),
        "erf" => |call| floats(call, in_double(libm::erf)),
        "exp" => |call| floats(call, f32::exp),
        "exp2" => |call| numbers(call, f32::exp2, power_of_two),
        "floor" => |call| floats(call, f32::floor),
        "inverse" => |call| with_epsilon(call, 1e-4, f32::recip),
        "log" => |call| with_epsilon(call, 1e-45, f32::ln),
        "logical_not" => logical_not,
        "round" => |call| floats(call, f32::round_ties_even),
        "rsqrt" => |call| with_epsilon(call, 1e-12, |x| 1.0 / x.sqrt()),
        "sign" => |call| numbers(call, sign, i64::signum),
        "sin" => |call| floats(call, f32::sin),
        "sinh" => |call| floats(call, f32::sinh),
        "sqrt" => |call| floats(call, f32::sqrt),
        "square" => |call| numbers(call, |x| x * x, |x| x.wrapping_mul(x)),
        "tan" => |call| floats(call, f32::tan),
        "tanh" => |call| floats(call, f32::tanh),
        "threshold" => threshold,
        _ => return None,
    })
}

/// A function of each element of `x`, which are floats.
pub(in crate::ops) fn floats(call: &Call, function: impl Fn(f32) -> f32 + Sync) -> Results {
    let x = call.tensor("x")?;
    let elements = x.as_floats().map_err(in_parameter("x"))?;
    like_x(x, map(&elements, function))
}

/// A function of each element of `x`: one for floats, one for integers.
fn numbers(
    call: &Call,
    of_float: impl Fn(f32) -> f32 + Sync,
    of_int: impl Fn(i64) -> i64 + Sync,
) -> Results {
    let x = call.tensor("x")?;
    if x.dtype().is_float() {
        return floats(call, of_float);
    }
    let elements = x.as_ints().map_err(in_parameter("x"))?;
    like_x(x, map(&elements, of_int))
}

/// A function computed in fp64 and rounded once to fp32, where the fp32 function of the standard
/// library is missing or loses digits.
fn in_double(function: impl Fn(f64) -> f64 + Sync) -> impl Fn(f32) -> f32 + Sync {
    move |x| function(f64::from(x)) as f32
}

/// A function of `x + epsilon`, the sum in fp32 whatever the two types are.
fn with_epsilon(call: &Call, default: f32, function: impl Fn(f32) -> f32 + Sync) -> Results {
    let epsilon = epsilon(call, default)?;
    floats(call, |x| function(x + epsilon))
}

/// The argument `epsilon`. A missing one is the default in the type of `x`, in which most defaults
/// are 0 if that is fp16 and fp16 is being rounded.
pub(in crate::ops) fn epsilon(call: &Call, default: f32) -> Result<f32, EvalError> {
    let mut default = [default];
    if call.numerics.round_half && call.numerics.is_half(call.tensor("x")?.dtype()) {
        round_to_half(&mut default, call.numerics.flush_subnormals);
    }
    call.float_or("epsilon", default[0])
}

/// 1, −1, or 0 for both zeros; NaN for NaN.
fn sign(x: f32) -> f32 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else {
        x + 0.0
    }
}

/// 2^x in integers: 0 for negative x, where the fraction is cut off; modulo 2^64 for large x.
fn power_of_two(x: i64) -> i64 {
    u32::try_from(x).map_or(0, |x| 1i64.checked_shl(x).unwrap_or(0))
}

/// `x` raised to `alpha` and then lowered to `beta`, as the definition does it: with an `alpha` above
/// `beta`, which the opsets from iOS17 on forbid, every element is `beta`.
fn clip(call: &Call) -> Results {
    let (alpha, beta) = (call.float("alpha")?, call.float("beta")?);
    floats(call, |x| {
        let raised = if x < alpha { alpha } else { x };
        if raised > beta { beta } else { raised }
    })
}

/// `x`, or `alpha` where `x` is less. `alpha` is of the type of `x`.
fn threshold(call: &Call) -> Results {
    let x = call.tensor("x")?;
    if x.dtype().is_float() {
        let alpha = call.float("alpha")?;
        return floats(call, |x| if x < alpha { alpha } else { x });
    }
    let alpha = call.int("alpha")?;
    let elements = x.as_ints().map_err(in_parameter("x"))?;
    like_x(x, map(&elements, |x| x.max(alpha)))
}

fn logical_not(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let elements = x.as_bools().map_err(in_parameter("x"))?;
    like_x(x, map(&elements, |x| !x))
}
