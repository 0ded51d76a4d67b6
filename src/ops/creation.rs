//! Ops that make tensors: `const`, `fill`, `fill_like`, `range_1d`, `shape`, `random_*`.

use half::f16;

use crate::ir::types::{DType, Dim};
use crate::ops::dims::{Types, one, signed_dim, unknown};
use crate::ops::infer::{InferError, Rule};
use crate::ops::view::{OpView, Stop};

pub(super) use evaluate::kernel;

mod evaluate;
mod random;

pub(super) fn rule(op_type: &str) -> Option<Rule> {
    Some(match op_type {
        "const" => constant,
        "fill" => fill,
        "fill_like" => fill_like,
        "range_1d" => range_1d,
        "shape" => shape,
        "random_bernoulli" => |view| random(view, ["prob", "prob"]),
        "random_normal" => |view| random(view, ["mean", "stddev"]),
        "random_uniform" => |view| random(view, ["low", "high"]),
        "random_categorical" => random_categorical,
        _ => return None,
    })
}

/// The declared type of the value.
fn constant(view: &OpView) -> Types {
    let value = view
        .attributes
        .get("val")
        .ok_or(InferError::Missing { parameter: "val" })?;
    Ok(vec![value.ty.clone().ok_or(Stop::NoRule)?])
}

/// The dimensions that a `shape` argument spells.
fn spelled(view: &OpView) -> Result<Vec<Dim>, Stop> {
    match view.ints("shape").known() {
        Some(shape) => shape
            .iter()
            .map(|size| signed_dim(Some(*size), "`shape`"))
            .collect(),
        None => Ok(unknown(view.length("shape")?)),
    }
}

fn fill(view: &OpView) -> Types {
    // `value` defaults to 0.0.
    let value = view.ranked_if_any("value")?;
    let dims = spelled(view)?;
    one(value.map_or(DType::Float32, |value| value.dtype), dims)
}

fn fill_like(view: &OpView) -> Types {
    let reference = view.ranked("ref_tensor")?;
    let value = view.ranked_if_any("value")?;
    one(
        value.map_or(DType::Float32, |value| value.dtype),
        reference.dims.clone(),
    )
}

/// start, start + step, … below `end`. The length is ⌈(end − start) / step⌉, computed in the
/// element type.
fn range_1d(view: &OpView) -> Types {
    let start = view.ranked("start")?;
    let length = match start.dtype {
        DType::Float16 | DType::Float32 => {
            let read = |parameter| view.float(parameter).known();
            read("start")
                .zip(read("end"))
                .zip(read("step"))
                .map(|((start, end), step)| (start, end, step))
                .map(|(from, to, step)| {
                    if start.dtype == DType::Float16 {
                        let [from, to, step] = [from, to, step].map(f16::from_f64);
                        ((to - from) / step).to_f64().ceil()
                    } else {
                        f64::from(((to as f32 - from as f32) / step as f32).ceil())
                    }
                })
        }
        _ => {
            let read = |parameter| view.int(parameter).known();
            read("start")
                .zip(read("end"))
                .zip(read("step"))
                .map(|((start, end), step)| ((end as f64 - start as f64) / step as f64).ceil())
        }
    };
    let length = match length {
        None => Dim::UNKNOWN,
        Some(length) if length.is_finite() => signed_dim(Some(length as i64), "`step`")?,
        Some(_) => {
            return Err(InferError::Invalid {
                reason: "`step` never reaches `end`".to_owned(),
            }
            .into());
        }
    };
    one(start.dtype, vec![length])
}

/// The dimensions of `x`, as int32.
fn shape(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    one(DType::Int32, vec![Dim::Known(x.dims.len() as u64)])
}

/// A tensor of `shape` in the element type of the distribution's two parameters.
fn random(view: &OpView, parameters: [&'static str; 2]) -> Types {
    let [first, second] = parameters;
    // Each of them defaults to a number of type fp32.
    let dtype = |parameter| -> Result<DType, Stop> {
        Ok(view
            .ranked_if_any(parameter)?
            .map_or(DType::Float32, |ty| ty.dtype))
    };
    let (left, right) = (dtype(first)?, dtype(second)?);
    if left != right {
        return Err(InferError::DTypes {
            left: (first, left),
            right: (second, right),
        }
        .into());
    }
    one(left, spelled(view)?)
}

/// The last dimension of `x`, the categories, is replaced by `size` draws.
fn random_categorical(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    let Some((_, outer)) = x.dims.split_last() else {
        return Err(InferError::Rank {
            parameter: "x",
            rank: 0,
            expected: "1 or more",
        }
        .into());
    };
    let mut dims = outer.to_vec();
    dims.push(signed_dim(view.int("size").or(1), "`size`")?);
    one(x.dtype, dims)
}
