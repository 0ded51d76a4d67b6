//! Ops that order, select or mark: `argsort`, `topk`, `one_hot`, `non_zero`, `cumsum`,
//! `band_part`, `non_maximum_suppression`.

use crate::ir::Opset;
use crate::ir::types::{DType, Dim};
use crate::ops::dims::{Types, axis, check_rank, one, signed_dim, tensor};
use crate::ops::elementwise::like_x;
use crate::ops::infer::{InferError, Rule};
use crate::ops::view::{OpView, Stop};

pub(super) use evaluate::kernel;

mod evaluate;
mod order;
mod suppression;

pub(super) fn rule(op_type: &str) -> Option<Rule> {
    Some(match op_type {
        "argsort" => argsort,
        "band_part" => like_x,
        "cumsum" => cumsum,
        "topk" => topk,
        "one_hot" => one_hot,
        "non_zero" => non_zero,
        "non_maximum_suppression" => non_maximum_suppression,
        _ => return None,
    })
}

fn argsort(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    if let Some(value) = view.int("axis").or(-1) {
        axis(value, x.dims.len())?;
    }
    one(DType::Int32, x.dims.clone())
}

fn cumsum(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    if let Some(value) = view.int("axis").or(0) {
        axis(value, x.dims.len())?;
    }
    one(x.dtype, x.dims.clone())
}

/// The values, and unless `return_indices` is false their indices.
fn topk(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    let index = axis(view.int("axis").required_or(-1)?, x.dims.len())?;
    let k = view.int("k");
    let count = k.or(1);
    if let (Some(count), Some(length)) = (count, x.dims[index].size())
        && u64::try_from(count).is_ok_and(|count| count > length)
    {
        return Err(InferError::Invalid {
            reason: format!("`k` is {count} but the axis has {length} elements"),
        }
        .into());
    }
    let mut dims = x.dims.clone();
    dims[index] = signed_dim(count, "`k`")?;
    let mut types = vec![tensor(x.dtype, dims.clone())];
    if view.bool_or("return_indices", true).ok_or(Stop::NoRule)? {
        let word = view.string("output_indices_dtype").required_or("int32")?;
        let dtype = DType::from_word(word)
            .filter(|dtype| dtype.is_int())
            .ok_or_else(|| InferError::Invalid {
                reason: format!("`output_indices_dtype` \"{word}\" is not an index type"),
            })?;
        types.push(tensor(dtype, dims));
    }
    Ok(types)
}

/// A new axis of `one_hot_vector_size`, counted in the result.
fn one_hot(view: &OpView) -> Types {
    let indices = view.ranked("indices")?;
    let index = axis(view.int("axis").required_or(-1)?, indices.dims.len() + 1)?;
    // Both values default to int32.
    let value = view.ranked_if_any("on_value")?;
    let size = view.int("one_hot_vector_size").known();
    let mut dims = indices.dims.clone();
    dims.insert(index, signed_dim(size, "`one_hot_vector_size`")?);
    one(value.map_or(DType::Int32, |value| value.dtype), dims)
}

/// One row of indices for each element that is not zero.
fn non_zero(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    one(
        DType::Int32,
        vec![Dim::UNKNOWN, Dim::Known(x.dims.len() as u64)],
    )
}

/// Up to iOS 16: boxes \[N, B, 4\], scores \[N, B, K\], and the numbers of boxes kept.
/// Since iOS 17: boxes \[N, 4, B\], scores \[N, K, B\].
fn non_maximum_suppression(view: &OpView) -> Types {
    let (boxes, scores) = (view.ranked("boxes")?, view.ranked("scores")?);
    check_rank("boxes", &boxes.dims, 3..=3, "3")?;
    check_rank("scores", &scores.dims, 3..=3, "3")?;
    let kept = signed_dim(view.int("max_boxes").known(), "`max_boxes`")?;
    let batch = scores.dims[0];
    let indices = tensor(DType::Int32, vec![batch, kept]);
    if view.opset >= Opset::CoreML7 {
        return Ok(vec![
            tensor(boxes.dtype, vec![batch, Dim::Known(4), kept]),
            tensor(scores.dtype, vec![batch, scores.dims[1], kept]),
            indices,
        ]);
    }
    Ok(vec![
        tensor(boxes.dtype, vec![batch, kept, Dim::Known(4)]),
        tensor(scores.dtype, vec![batch, kept, scores.dims[2]]),
        indices,
        tensor(DType::Int32, vec![batch]),
    ])
}
