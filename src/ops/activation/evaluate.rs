//! Evaluation of the activations, in fp32. NaN gives NaN.

use crate::ops::elementwise::floats;
use crate::ops::evaluate::{Call, EvalError, Kernel, Results, in_parameter, one};
use crate::tensor::{Broadcast, Tensor, zip};

mod softmax;

#[cfg(test)]
mod tests;

pub(in crate::ops) use softmax::softmax_row;

pub(in crate::ops) fn kernel(op_type: &str) -> Option<Kernel> {
    Some(match op_type {
        "clamped_relu" => clamped_relu,
        "elu" => elu,
        "gelu" => gelu,
        "leaky_relu" => leaky_relu,
        "linear_activation" => linear_activation,
        "prelu" => prelu,
        "relu" => |call| floats(call, |x| if x < 0.0 { 0.0 } else { x }),
        "relu6" => |call| floats(call, |x| bounded(x, 0.0, 6.0)),
        "scaled_tanh" => scaled_tanh,
        "sigmoid" => |call| floats(call, sigmoid),
        "sigmoid_hard" => sigmoid_hard,
        "silu" => |call| floats(call, |x| x * sigmoid(x)),
        "softmax" => softmax::softmax,
        "softplus" => softplus,
        "softplus_parametric" => softplus_parametric,
        "softsign" => |call| floats(call, |x| x / (1.0 + x.abs())),
        "thresholded_relu" => thresholded_relu,
        _ => return None,
    })
}

/// `x` raised to the lowest and lowered to the highest value.
fn bounded(x: f32, lowest: f32, highest: f32) -> f32 {
    if x < lowest {
        lowest
    } else if x > highest {
        highest
    } else {
        x
    }
}

/// 1 / (1 + e^−x); exact at both ends, where the exponential is 0 or infinite.
pub(in crate::ops) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// log(1 + e^x), in a form that neither overflows nor loses the digits of a small e^x.
fn log_of_one_plus_exp(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// x, or `alpha`·x below 0, and at most `beta`.
fn clamped_relu(call: &Call) -> Results {
    let (alpha, beta) = (call.float("alpha")?, call.float("beta")?);
    floats(call, |x| {
        let x = if x >= 0.0 { x } else { alpha * x };
        if x > beta { beta } else { x }
    })
}

/// x, or `alpha`·(e^x − 1) below 0.
fn elu(call: &Call) -> Results {
    let alpha = call.float("alpha")?;
    floats(call, |x| if x > 0.0 { x } else { alpha * x.exp_m1() })
}

/// The three forms that `mode` names. The exact one is ½·x·(1 + erf(x/√2)), in fp64 because the sum
/// cancels for negative x.
fn gelu(call: &Call) -> Results {
    match call.string_or("mode", "EXACT")? {
        "EXACT" => floats(call, |x| {
            let x = f64::from(x);
            (0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2))) as f32
        }),
        "TANH_APPROXIMATION" => {
            let factor = (2.0 / std::f64::consts::PI).sqrt() as f32;
            floats(call, |x| {
                0.5 * x * (1.0 + (factor * (x + 0.044_715 * x * x * x)).tanh())
            })
        }
        "SIGMOID_APPROXIMATION" => floats(call, |x| x * sigmoid(1.702 * x)),
        other => Err(EvalError::invalid(format!(
            "`mode` \"{other}\" is none of {}",
            super::GELU_MODES.join(", ")
        ))),
    }
}

fn leaky_relu(call: &Call) -> Results {
    let alpha = call.float("alpha")?;
    floats(call, |x| if x >= 0.0 { x } else { alpha * x })
}

fn linear_activation(call: &Call) -> Results {
    let (alpha, beta) = (call.float("alpha")?, call.float("beta")?);
    floats(call, |x| alpha * x + beta)
}

fn scaled_tanh(call: &Call) -> Results {
    let (alpha, beta) = (call.float("alpha")?, call.float("beta")?);
    floats(call, |x| alpha * (beta * x).tanh())
}

fn sigmoid_hard(call: &Call) -> Results {
    let (alpha, beta) = (call.float("alpha")?, call.float("beta")?);
    floats(call, |x| bounded(alpha * x + beta, 0.0, 1.0))
}

/// log(1 + e^x). Where the numerics have a limit, an fp16 argument above it gives 0.
fn softplus(call: &Call) -> Results {
    let limit = call.numerics.softplus_limit.filter(|_| {
        call.tensor("x")
            .is_ok_and(|x| call.numerics.is_half(x.dtype()))
    });
    match limit {
        None => floats(call, log_of_one_plus_exp),
        Some(limit) => floats(call, |x| {
            if x > limit {
                0.0
            } else {
                log_of_one_plus_exp(x)
            }
        }),
    }
}

/// x where it is at least `alpha`, 0 elsewhere.
fn thresholded_relu(call: &Call) -> Results {
    let alpha = call.float("alpha")?;
    floats(call, |x| if x < alpha { 0.0 } else { x })
}

/// `alpha` holds a slope for each channel, the second axis of `x`. Apple's runtime takes different
/// slopes at rank 4 only; the definition is followed at every rank.
fn prelu(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let alpha = per_channel(call, "alpha", x)?;
    let plan = Broadcast::new([x.shape(), alpha.shape()])?;
    let elements = zip(
        &plan,
        &x.as_floats().map_err(in_parameter("x"))?,
        &alpha.as_floats().map_err(in_parameter("alpha"))?,
        |x: f32, alpha: f32| if x > 0.0 { x } else { alpha * x },
    );
    one(Tensor::floats(x.dtype(), x.shape().to_vec(), elements))
}

/// `alpha`·log(1 + e^(`beta`·x)) with one alpha and beta for each channel.
fn softplus_parametric(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let alpha = per_channel(call, "alpha", x)?;
    let beta = per_channel(call, "beta", x)?;
    let plan = Broadcast::new([x.shape(), alpha.shape()])?;
    let alpha = alpha.as_floats().map_err(in_parameter("alpha"))?;
    let beta = beta.as_floats().map_err(in_parameter("beta"))?;
    let both: Vec<(f32, f32)> = alpha.iter().copied().zip(beta.iter().copied()).collect();
    let elements = zip(
        &plan,
        &x.as_floats().map_err(in_parameter("x"))?,
        &both,
        |x: f32, (alpha, beta)| alpha * log_of_one_plus_exp(beta * x),
    );
    one(Tensor::floats(x.dtype(), x.shape().to_vec(), elements))
}

/// A vector with one element for each channel, shaped to broadcast over `x`.
fn per_channel(call: &Call, parameter: &'static str, x: &Tensor) -> Result<Tensor, EvalError> {
    let vector = call.tensor(parameter)?;
    match x.shape() {
        [_, channels, behind @ ..] if vector.len() == *channels => {
            let mut shape = vec![1; behind.len() + 1];
            shape[0] = *channels;
            Ok(vector.reshaped(shape)?)
        }
        shape => Err(EvalError::invalid(format!(
            "`{parameter}` has {} elements, but `x` of shape {shape:?} needs one for each channel",
            vector.len()
        ))),
    }
}
