//! Normalizations: the result has the type of `x`.

use crate::ops::dims::{Types, axes, check_rank, one, same, same_shape};
use crate::ops::elementwise::like_x;
use crate::ops::infer::Rule;
use crate::ops::view::OpView;

pub(super) use evaluate::kernel;

mod evaluate;

pub(super) fn rule(op_type: &str) -> Option<Rule> {
    Some(match op_type {
        "batch_norm" => batch_norm,
        "instance_norm" => instance_norm,
        "l2_norm" => l2_norm,
        "layer_norm" => layer_norm,
        "local_response_norm" => like_x,
        _ => return None,
    })
}

fn batch_norm(view: &OpView) -> Types {
    per_channel(view, &["mean", "variance", "gamma", "beta"])
}

fn instance_norm(view: &OpView) -> Types {
    per_channel(view, &["gamma", "beta"])
}

/// The type of `x`; each parameter that is there has one element for each channel (dimension 1).
fn per_channel(view: &OpView, parameters: &[&'static str]) -> Types {
    let x = view.ranked("x")?;
    check_rank("x", &x.dims, 3..=5, "3, 4 or 5")?;
    for parameter in parameters {
        let Some(ty) = view.ranked_if_any(parameter)? else {
            continue;
        };
        check_rank(parameter, &ty.dims, 1..=1, "1")?;
        if let (Some(channels), Some(length)) = (x.dims.get(1), ty.dims.first()) {
            same(1, ("x", *channels), (parameter, *length))?;
        }
    }
    one(x.dtype, x.dims.clone())
}

/// Normalizes over the last three dimensions together.
fn l2_norm(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    check_rank("x", &x.dims, 3.., "3 or more")?;
    one(x.dtype, x.dims.clone())
}

/// `gamma` and `beta` have the shape of the normalized axes of `x`, in rising order.
fn layer_norm(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    let rank = x.dims.len();
    if let Some(values) = view.ints("axes").or((0..rank as i64).collect()) {
        let normalized: Vec<_> = axes(&values, rank)?
            .into_iter()
            .filter_map(|axis| x.dims.get(axis).copied())
            .collect();
        for parameter in ["gamma", "beta"] {
            if let Some(ty) = view.ranked_if_any(parameter)? {
                same_shape(("x", &normalized), (parameter, &ty.dims))?;
            }
        }
    }
    one(x.dtype, x.dims.clone())
}
