//! Activations: `relu` and its kin, `gelu`, `prelu`, `softmax`.

use crate::ops::dims::{Types, axis, check_rank, one, same};
use crate::ops::elementwise::like_x;
use crate::ops::infer::{InferError, Rule};
use crate::ops::view::OpView;

/// The values of `gelu`'s `mode`.
pub const GELU_MODES: [&str; 3] = ["EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION"];

pub(super) use evaluate::{kernel, softmax_row};

mod evaluate;

pub(super) fn rule(op_type: &str) -> Option<Rule> {
    Some(match op_type {
        "clamped_relu" | "elu" | "leaky_relu" | "linear_activation" | "relu" | "relu6"
        | "scaled_tanh" | "sigmoid" | "sigmoid_hard" | "silu" | "softplus" | "softsign"
        | "thresholded_relu" => like_x,
        "gelu" => gelu,
        "prelu" => prelu,
        "softplus_parametric" => softplus_parametric,
        "softmax" => softmax,
        _ => return None,
    })
}

fn gelu(view: &OpView) -> Types {
    match view.string("mode").known() {
        Some(mode) if !GELU_MODES.contains(&mode) => Err(InferError::Invalid {
            reason: format!("`mode` \"{mode}\" is none of {}", GELU_MODES.join(", ")),
        }
        .into()),
        _ => like_x(view),
    }
}

fn softmax(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    if let Some(value) = view.int("axis").or(-1) {
        axis(value, x.dims.len())?;
    }
    one(x.dtype, x.dims.clone())
}

fn prelu(view: &OpView) -> Types {
    check_rank("x", &view.ranked("x")?.dims, 3..=5, "3, 4 or 5")?;
    per_channel(view, &["alpha"])
}

fn softplus_parametric(view: &OpView) -> Types {
    check_rank("x", &view.ranked("x")?.dims, 3.., "3 or more")?;
    per_channel(view, &["alpha", "beta"])
}

/// The type of `x`; each parameter has one element for each channel (dimension 1).
fn per_channel(view: &OpView, parameters: &[&'static str]) -> Types {
    let x = view.ranked("x")?;
    for parameter in parameters {
        let ty = view.ranked(parameter)?;
        check_rank(parameter, &ty.dims, 1..=1, "1")?;
        if let (Some(channels), Some(length)) = (x.dims.get(1), ty.dims.first()) {
            same(1, ("x", *channels), (parameter, *length))?;
        }
    }
    one(x.dtype, x.dims.clone())
}
