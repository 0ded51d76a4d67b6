//! Resampling and cropping of the last two dimensions, height and width.

use crate::ir::Opset;
use crate::ir::types::{Dim, TensorType};
use crate::ops::dims::{Types, check_rank, one, signed, signed_dim};
use crate::ops::infer::{InferError, Rule};
use crate::ops::view::{Argument, OpView, Stop};

pub(super) use evaluate::kernel;

mod evaluate;

pub(super) fn rule(op_type: &str) -> Option<Rule> {
    Some(match op_type {
        "upsample_bilinear" | "upsample_nearest_neighbor" => upsample,
        "resize_bilinear" | "resize_nearest_neighbor" => resize_to_target,
        "resize" => resize,
        "crop" => crop,
        "crop_resize" => crop_resize,
        "affine" => affine,
        "resample" => resample,
        _ => return None,
    })
}

/// `x` with another height and width.
fn with_size(x: &TensorType, size: [Dim; 2]) -> Types {
    let Some((kept, _)) = x.dims.split_last_chunk::<2>() else {
        return Err(rank_error(x));
    };
    one(x.dtype, [kept, &size].concat())
}

fn rank_error(x: &TensorType) -> Stop {
    InferError::Rank {
        parameter: "x",
        rank: x.dims.len(),
        expected: "3 or more",
    }
    .into()
}

fn height_and_width(x: &TensorType) -> Result<[Dim; 2], Stop> {
    check_rank("x", &x.dims, 3.., "3 or more")?;
    x.dims
        .last_chunk::<2>()
        .copied()
        .ok_or_else(|| rank_error(x))
}

fn upsample(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    let [height, width] = height_and_width(x)?;
    with_size(
        x,
        [
            scaled(view, height, "scale_factor_height")?,
            scaled(view, width, "scale_factor_width")?,
        ],
    )
}

/// The size times an integer or fp32 factor, rounded down; the product is rounded to fp32 first,
/// as in coremltools.
fn scaled(view: &OpView, size: Dim, parameter: &'static str) -> Result<Dim, Stop> {
    let factor = match view.int(parameter) {
        Argument::Missing => return Ok(size),
        Argument::Known(factor) => {
            return signed_dim(
                signed(size).and_then(|size| size.checked_mul(factor)),
                parameter,
            );
        }
        Argument::Unknown => view.float(parameter).known(),
    };
    let product = signed(size)
        .zip(factor)
        .map(|(size, factor)| (size as f32 * factor as f32).floor() as i64);
    signed_dim(product, parameter)
}

fn resize_to_target(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    height_and_width(x)?;
    with_size(
        x,
        target(view, ["target_size_height", "target_size_width"])?,
    )
}

/// Two sizes, 1 by default.
fn target(view: &OpView, parameters: [&'static str; 2]) -> Result<[Dim; 2], Stop> {
    let [height, width] = parameters;
    Ok([
        signed_dim(view.int(height).or(1), height)?,
        signed_dim(view.int(width).or(1), width)?,
    ])
}

/// The last `resized_dims` dimensions become the last of `shape`; a 0 there keeps the size.
fn resize(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    let count = view.int("resized_dims").required("resized_dims")?;
    let count = usize::try_from(count)
        .ok()
        .filter(|count| *count <= x.dims.len())
        .ok_or_else(|| InferError::Invalid {
            reason: format!(
                "`resized_dims` is {count} but `x` has rank {}",
                x.dims.len()
            ),
        })?;
    let shape = view.ints("shape").known();
    let first = x.dims.len() - count;
    let mut dims = x.dims.clone();
    for (index, size) in dims.iter_mut().enumerate().skip(first) {
        let Some(shape) = &shape else {
            *size = Dim::UNKNOWN;
            continue;
        };
        let wanted = (shape.len() + index)
            .checked_sub(x.dims.len())
            .and_then(|place| shape.get(place).copied())
            .ok_or(InferError::Length {
                parameter: "shape",
                length: shape.len(),
                expected: count,
            })?;
        if wanted != 0 {
            *size = signed_dim(Some(wanted), "`shape`")?;
        }
    }
    one(x.dtype, dims)
}

fn crop(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    let [height, width] = height_and_width(x)?;
    let cropped = |size: Dim, parameter: &'static str| -> Result<Dim, Stop> {
        let amounts = view.ints(parameter).required(parameter)?;
        let &[before, after] = amounts.as_slice() else {
            return Err(InferError::Length {
                parameter,
                length: amounts.len(),
                expected: 2,
            }
            .into());
        };
        let size = signed(size).and_then(|size| size.checked_sub(before)?.checked_sub(after));
        signed_dim(size, parameter)
    };
    with_size(
        x,
        [
            cropped(height, "crop_height")?,
            cropped(width, "crop_width")?,
        ],
    )
}

/// Up to iOS 16 `roi` \[N, 1, 4 or 5, 1, 1\] gives \[N, B, C, height, width\]; since iOS 17
/// `boxes` \[N, 4\] gives \[N, C, height, width\].
fn crop_resize(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    check_rank("x", &x.dims, 4..=4, "4")?;
    let [height, width] = target(view, ["target_height", "target_width"])?;
    if view.opset >= Opset::CoreML7 {
        let boxes = view.ranked("boxes")?;
        check_rank("boxes", &boxes.dims, 2..=2, "2")?;
        return one(x.dtype, vec![boxes.dims[0], x.dims[1], height, width]);
    }
    let roi = view.ranked("roi")?;
    check_rank("roi", &roi.dims, 5..=5, "5")?;
    one(
        x.dtype,
        vec![roi.dims[0], x.dims[0], x.dims[1], height, width],
    )
}

fn affine(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    check_rank("x", &x.dims, 4..=4, "4")?;
    let transform = view.ranked("transform_matrix")?;
    check_rank("transform_matrix", &transform.dims, 2..=2, "2")?;
    with_size(x, target(view, ["output_height", "output_width"])?)
}

/// x \[N, C, H, W\] at coordinates \[N, H', W', 2\] gives \[N, C, H', W'\].
fn resample(view: &OpView) -> Types {
    let (x, coordinates) = (view.ranked("x")?, view.ranked("coordinates")?);
    check_rank("x", &x.dims, 4..=4, "4")?;
    check_rank("coordinates", &coordinates.dims, 4..=4, "4")?;
    with_size(x, [coordinates.dims[1], coordinates.dims[2]])
}
