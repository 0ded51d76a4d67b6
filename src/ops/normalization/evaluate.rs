//! Evaluation of the normalizations.
//!
//! Means and variances are kept in fp64, the variance as the mean of squared distances from the
//! mean; each element is then computed in fp32. `gamma` and `beta` are 1 and 0 if they are missing.

use std::borrow::Cow;

use rayon::prelude::*;

use crate::ops::elementwise::epsilon;
use crate::ops::evaluate::{Call, EvalError, Kernel, Results, in_parameter, one};
use crate::tensor::Tensor;

mod local_response;

#[cfg(test)]
mod tests;

pub(in crate::ops) fn kernel(op_type: &str) -> Option<Kernel> {
    Some(match op_type {
        "batch_norm" => batch_norm,
        "instance_norm" => instance_norm,
        "l2_norm" => l2_norm,
        "layer_norm" => layer_norm,
        "local_response_norm" => local_response::local_response_norm,
        _ => return None,
    })
}

/// Tensors with fewer elements than this are not worth a second thread.
const PARALLEL_ELEMENTS: usize = 1 << 14;

/// Changes every row of this length in place; `normalize` is given its index too.
fn each_row(elements: &mut [f32], length: usize, normalize: &(dyn Fn(usize, &mut [f32]) + Sync)) {
    if elements.is_empty() || length == 0 {
        return;
    }
    let visit = |(index, row): (usize, &mut [f32])| normalize(index, row);
    if elements.len() < PARALLEL_ELEMENTS {
        elements.chunks_mut(length).enumerate().for_each(visit);
    } else {
        elements.par_chunks_mut(length).enumerate().for_each(visit);
    }
}

/// The sum of a term of each element, in a fixed number of interleaved partial sums.
fn sum(row: &[f32], term: impl Fn(f64) -> f64) -> f64 {
    const LANES: usize = 8;
    let mut sums = [0f64; LANES];
    for chunk in row.chunks(LANES) {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum += term(f64::from(*x));
        }
    }
    sums.iter().sum()
}

/// Mean, and the reciprocal of the root of the variance and `epsilon`, of a row.
fn moments(row: &[f32], epsilon: f32) -> (f32, f32) {
    let count = row.len() as f64;
    let mean = sum(row, |x| x) / count;
    let variance = sum(row, |x| (x - mean) * (x - mean)) / count;
    (
        mean as f32,
        (1.0 / (variance + f64::from(epsilon)).sqrt()) as f32,
    )
}

/// The elements of a vector that must have so many, if it is given.
fn vector<'a>(
    call: &'a Call,
    parameter: &'static str,
    length: usize,
) -> Result<Option<Cow<'a, [f32]>>, EvalError> {
    let Some(tensor) = call.tensor_if_any(parameter)? else {
        return Ok(None);
    };
    if tensor.len() != length {
        return Err(EvalError::invalid(format!(
            "`{parameter}` has {} elements, not {length}",
            tensor.len()
        )));
    }
    tensor
        .as_floats()
        .map(Some)
        .map_err(in_parameter(parameter))
}

/// The element for a channel, or a default.
fn at(vector: Option<&Cow<'_, [f32]>>, index: usize, default: f32) -> f32 {
    vector
        .and_then(|vector| vector.get(index))
        .copied()
        .unwrap_or(default)
}

/// Number of channels (axis 1), and of elements behind each.
fn channels(x: &Tensor) -> Result<(usize, usize), EvalError> {
    match x.shape() {
        [_, channels, behind @ ..] => Ok((*channels, behind.iter().product())),
        shape => Err(EvalError::invalid(format!(
            "`x` of shape {shape:?} has no channels"
        ))),
    }
}

/// gamma · (x − mean) / √(variance + epsilon) + beta, each for a channel.
fn batch_norm(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let (channels, behind) = channels(x)?;
    let epsilon = f64::from(epsilon(call, 1e-5)?);
    let (mean, variance) = (
        vector(call, "mean", channels)?.ok_or(EvalError::Missing("mean"))?,
        vector(call, "variance", channels)?.ok_or(EvalError::Missing("variance"))?,
    );
    let (gamma, beta) = (
        vector(call, "gamma", channels)?,
        vector(call, "beta", channels)?,
    );
    let scale: Vec<f32> = variance
        .iter()
        .enumerate()
        .map(|(channel, variance)| {
            let gamma = f64::from(at(gamma.as_ref(), channel, 1.0));
            (gamma / (f64::from(*variance) + epsilon).sqrt()) as f32
        })
        .collect();
    let mut elements = x.as_floats().map_err(in_parameter("x"))?.into_owned();
    each_row(&mut elements, behind, &|index, row: &mut [f32]| {
        let channel = index % channels;
        let (mean, scale) = (mean[channel], scale[channel]);
        let beta = at(beta.as_ref(), channel, 0.0);
        for x in row {
            *x = (*x - mean) * scale + beta;
        }
    });
    one(Tensor::floats(x.dtype(), x.shape().to_vec(), elements))
}

/// As `batch_norm`, with mean and variance of each channel of each batch element.
fn instance_norm(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let (channels, behind) = channels(x)?;
    let epsilon = epsilon(call, 1e-5)?;
    let (gamma, beta) = (
        vector(call, "gamma", channels)?,
        vector(call, "beta", channels)?,
    );
    let mut elements = x.as_floats().map_err(in_parameter("x"))?.into_owned();
    each_row(&mut elements, behind, &|index, row: &mut [f32]| {
        let channel = index % channels;
        let (mean, factor) = moments(row, epsilon);
        let scale = factor * at(gamma.as_ref(), channel, 1.0);
        let beta = at(beta.as_ref(), channel, 0.0);
        for x in row {
            *x = (*x - mean) * scale + beta;
        }
    });
    one(Tensor::floats(x.dtype(), x.shape().to_vec(), elements))
}

/// gamma · (x − mean) / √(variance + epsilon) + beta over `axes` together (all if missing), with
/// gamma and beta of the shape of those axes in rising order.
fn layer_norm(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let rank = x.rank();
    let mut normalized = match call.ints_if_any("axes")? {
        None => (0..rank).collect(),
        Some(axes) => axes
            .iter()
            .map(|axis| crate::tensor::axis(*axis, rank).map_err(in_parameter("axes")))
            .collect::<Result<Vec<_>, _>>()?,
    };
    normalized.sort_unstable();
    normalized.dedup();
    let length = normalized.iter().map(|axis| x.shape()[*axis]).product();
    let epsilon = epsilon(call, 1e-5)?;
    let (gamma, beta) = (
        vector(call, "gamma", length)?,
        vector(call, "beta", length)?,
    );
    // Axes that are not the last ones go there, and afterwards back.
    let order: Vec<usize> = (0..rank)
        .filter(|axis| !normalized.contains(axis))
        .chain(normalized.iter().copied())
        .collect();
    let in_order = order.is_sorted();
    let ordered = if in_order {
        x.clone()
    } else {
        x.transposed(&order)?
    };
    let mut elements = ordered.as_floats().map_err(in_parameter("x"))?.into_owned();
    each_row(&mut elements, length, &|_, row: &mut [f32]| {
        let (mean, factor) = moments(row, epsilon);
        match (&gamma, &beta) {
            (Some(gamma), Some(beta)) => {
                for ((x, gamma), beta) in row.iter_mut().zip(gamma.iter()).zip(beta.iter()) {
                    *x = (*x - mean) * factor * gamma + beta;
                }
            }
            _ => {
                for (index, x) in row.iter_mut().enumerate() {
                    let gamma = at(gamma.as_ref(), index, 1.0);
                    *x = (*x - mean) * factor * gamma + at(beta.as_ref(), index, 0.0);
                }
            }
        }
    });
    let result = Tensor::floats(x.dtype(), ordered.shape().to_vec(), elements);
    if in_order {
        return one(result);
    }
    let mut back = vec![0; rank];
    for (index, axis) in order.iter().enumerate() {
        back[*axis] = index;
    }
    one(result.transposed(&back)?)
}

/// x / √(Σx² + epsilon), the sum over the last three axes together.
fn l2_norm(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let Some(first) = x.rank().checked_sub(3) else {
        return Err(EvalError::invalid(format!(
            "`x` has rank {}, not 3 or more",
            x.rank()
        )));
    };
    let length = x.shape()[first..].iter().product();
    let epsilon = f64::from(epsilon(call, 1e-6)?);
    let mut elements = x.as_floats().map_err(in_parameter("x"))?.into_owned();
    each_row(&mut elements, length, &|_, row: &mut [f32]| {
        let root = (sum(row, |x| x * x) + epsilon).sqrt();
        for x in row {
            *x = (f64::from(*x) / root) as f32;
        }
    });
    one(Tensor::floats(x.dtype(), x.shape().to_vec(), elements))
}
