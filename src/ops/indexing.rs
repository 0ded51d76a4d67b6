//! Gathers and scatters.

use crate::ir::types::TensorType;
use crate::ops::dims::{Types, axis, one, same, same_shape};
use crate::ops::infer::{InferError, Rule};
use crate::ops::view::{OpView, Stop};

pub(super) use evaluate::kernel;

mod evaluate;
mod places;

pub(super) fn rule(op_type: &str) -> Option<Rule> {
    Some(match op_type {
        "gather" => gather,
        "gather_along_axis" => gather_along_axis,
        "gather_nd" => gather_nd,
        "scatter" => scatter,
        "scatter_along_axis" => scatter_along_axis,
        "scatter_nd" => scatter_nd,
        _ => return None,
    })
}

/// `batch_dims`, which exists since iOS 16, as a number of dimensions that `indices` has too.
fn batch_dims(view: &OpView, indices: &TensorType) -> Result<usize, Stop> {
    let value = view.int("batch_dims").required_or(0)?;
    usize::try_from(value)
        .ok()
        .filter(|batch| *batch <= indices.dims.len())
        .ok_or_else(|| {
            InferError::Invalid {
                reason: format!(
                    "`batch_dims` is {value} but `indices` has rank {}",
                    indices.dims.len()
                ),
            }
            .into()
        })
}

/// The axis of `x` is replaced by the dimensions of `indices` behind the batch dimensions.
fn gather(view: &OpView) -> Types {
    let (x, indices) = (view.ranked("x")?, view.ranked("indices")?);
    let index = axis(view.int("axis").required_or(0)?, x.dims.len())?;
    let batch = batch_dims(view, indices)?;
    if batch > index {
        return Err(InferError::Invalid {
            reason: format!("`batch_dims` is {batch} but `axis` is {index}"),
        }
        .into());
    }
    for (dimension, (left, right)) in x.dims.iter().zip(&indices.dims).take(batch).enumerate() {
        same(dimension, ("x", *left), ("indices", *right))?;
    }
    let dims = [
        &x.dims[..index],
        &indices.dims[batch..],
        &x.dims[index + 1..],
    ]
    .concat();
    one(x.dtype, dims)
}

/// The shape of `indices`, which agrees with `x` but for the axis.
fn gather_along_axis(view: &OpView) -> Types {
    let (x, indices) = (view.ranked("x")?, view.ranked("indices")?);
    same_but_axis(view, ("x", x), ("indices", indices))?;
    one(x.dtype, indices.dims.clone())
}

/// The last dimension of `indices` addresses as many dimensions of `x` behind the batch dimensions.
fn gather_nd(view: &OpView) -> Types {
    let (x, indices) = (view.ranked("x")?, view.ranked("indices")?);
    let batch = batch_dims(view, indices)?;
    let (outer, first_kept) = addressed(("x", x), indices, batch)?;
    let dims = [outer, &x.dims[first_kept..]].concat();
    one(x.dtype, dims)
}

fn scatter(view: &OpView) -> Types {
    let (data, indices) = (view.ranked("data")?, view.ranked("indices")?);
    let updates = view.ranked("updates")?;
    let index = axis(view.int("axis").required_or(0)?, data.dims.len())?;
    let expected = [
        &data.dims[..index],
        &indices.dims[..],
        &data.dims[index + 1..],
    ]
    .concat();
    same_shape(("data", &expected), ("updates", &updates.dims))?;
    one(data.dtype, data.dims.clone())
}

fn scatter_along_axis(view: &OpView) -> Types {
    let (data, indices) = (view.ranked("data")?, view.ranked("indices")?);
    let updates = view.ranked("updates")?;
    same_but_axis(view, ("data", data), ("indices", indices))?;
    same_shape(("indices", &indices.dims), ("updates", &updates.dims))?;
    one(data.dtype, data.dims.clone())
}

fn scatter_nd(view: &OpView) -> Types {
    let (data, indices) = (view.ranked("data")?, view.ranked("indices")?);
    let updates = view.ranked("updates")?;
    let (outer, first_kept) = addressed(("data", data), indices, 0)?;
    let expected = [outer, &data.dims[first_kept..]].concat();
    same_shape(("data", &expected), ("updates", &updates.dims))?;
    one(data.dtype, data.dims.clone())
}

/// The dimensions of `indices` but the last, and the first dimension of the data that the last of
/// `indices` does not address.
fn addressed<'a>(
    data: (&'static str, &TensorType),
    indices: &'a TensorType,
    batch: usize,
) -> Result<(&'a [crate::ir::types::Dim], usize), Stop> {
    let (depth, outer) = indices.dims.split_last().ok_or(InferError::Rank {
        parameter: "indices",
        rank: 0,
        expected: "1 or more",
    })?;
    let depth = depth.size().ok_or(Stop::NoRule)?;
    usize::try_from(depth)
        .ok()
        .and_then(|depth| depth.checked_add(batch))
        .filter(|kept| *kept <= data.1.dims.len())
        .map(|kept| (outer, kept))
        .ok_or_else(|| {
            InferError::Invalid {
                reason: format!(
                    "`indices` addresses {depth} dimensions behind {batch} of `{}`, which has rank {}",
                    data.0,
                    data.1.dims.len()
                ),
            }
            .into()
        })
}

/// Checks that two tensors have the same shape but for `axis`.
fn same_but_axis(
    view: &OpView,
    data: (&'static str, &TensorType),
    indices: (&'static str, &TensorType),
) -> Result<(), Stop> {
    let rank = data.1.dims.len();
    if rank != indices.1.dims.len() {
        return Err(InferError::Ranks {
            left: (data.0, rank),
            right: (indices.0, indices.1.dims.len()),
        }
        .into());
    }
    if let Some(value) = view.int("axis").or(0) {
        let skipped = axis(value, rank)?;
        for (index, (left, right)) in data.1.dims.iter().zip(&indices.1.dims).enumerate() {
            if index != skipped {
                same(index, (data.0, *left), (indices.0, *right))?;
            }
        }
    }
    Ok(())
}
