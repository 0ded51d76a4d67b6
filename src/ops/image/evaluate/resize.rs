//! Resizing of the last dimensions, one after the other.

use rayon::prelude::*;

use super::grid::Sampling;
use crate::ops::evaluate::{Call, EvalError, Results, one};
use crate::tensor::{Element, Tensor, split_at_axis};

/// Copies of fewer elements than this are not worth a second thread.
const PARALLEL_ELEMENTS: usize = 1 << 16;

/// What stands at each place of a resized dimension: two elements of the original one, and the
/// weight of the second.
struct Blend {
    first: usize,
    second: usize,
    weight: f32,
}

/// The elements around each point.
fn blends(points: &[f64], size: usize) -> Vec<Blend> {
    points
        .iter()
        .map(|point| {
            let below = point.floor();
            let first = (below as usize).min(size.saturating_sub(1));
            Blend {
                first,
                second: (first + 1).min(size.saturating_sub(1)),
                weight: (point - below) as f32,
            }
        })
        .collect()
}

/// Calls `with_row` for each row of elements behind `axis` in a result with `count` indices along
/// it: the index, all rows of `x` over the axis, and the row.
fn rows<T: Send + Sync>(
    x: &[T],
    result: &mut [T],
    (size, count, behind): (usize, usize, usize),
    with_row: impl Fn(usize, &[T], &mut [T]) + Send + Sync,
) {
    let parallel = result.len() >= PARALLEL_ELEMENTS;
    let (from, to) = ((size * behind).max(1), (count * behind).max(1));
    let run = |(x, result): (&[T], &mut [T])| {
        for (index, row) in result.chunks_mut(behind.max(1)).enumerate() {
            with_row(index, x, row);
        }
    };
    if parallel {
        x.par_chunks(from)
            .zip(result.par_chunks_mut(to))
            .for_each(run);
    } else {
        x.chunks(from).zip(result.chunks_mut(to)).for_each(run);
    }
}

/// `x` with a dimension sampled at points, linearly between its elements.
fn linear(call: &Call, x: &Tensor, axis: usize, points: &[f64]) -> Result<Tensor, EvalError> {
    let (_, size, behind) = split_at_axis(x.shape(), axis);
    let mut shape = x.shape().to_vec();
    shape[axis] = points.len();
    let mut result = vec![0f32; call.room_for(&shape)?];
    need_elements(size, &result)?;
    let blends = blends(points, size);
    rows(
        &x.as_floats()?,
        &mut result,
        (size, points.len(), behind),
        |index, x, row| {
            let blend = &blends[index];
            let first = &x[blend.first * behind..][..behind];
            if blend.weight == 0.0 {
                row.copy_from_slice(first);
                return;
            }
            let second = &x[blend.second * behind..][..behind];
            for ((out, first), second) in row.iter_mut().zip(first).zip(second) {
                *out = first * (1.0 - blend.weight) + second * blend.weight;
            }
        },
    );
    Ok(Tensor::floats(x.dtype(), shape, result))
}

/// `x` with the element `places[index]` at each index of a dimension.
fn picked(call: &Call, x: &Tensor, axis: usize, places: &[usize]) -> Result<Tensor, EvalError> {
    if x.dtype().is_float() {
        picked_elements::<f32>(call, x, axis, places, 0.0)
    } else {
        picked_elements::<i64>(call, x, axis, places, 0)
    }
}

fn picked_elements<T: Element + Copy>(
    call: &Call,
    x: &Tensor,
    axis: usize,
    places: &[usize],
    zero: T,
) -> Result<Tensor, EvalError> {
    let (_, size, behind) = split_at_axis(x.shape(), axis);
    let mut shape = x.shape().to_vec();
    shape[axis] = places.len();
    let mut result = vec![zero; call.room_for(&shape)?];
    need_elements(size, &result)?;
    rows(
        &T::read(x)?,
        &mut result,
        (size, places.len(), behind),
        |index, x, row| {
            let place = places[index].min(size - 1);
            row.copy_from_slice(&x[place * behind..][..behind]);
        },
    );
    Ok(T::make(x.dtype(), shape, result))
}

fn need_elements<T>(size: usize, result: &[T]) -> Result<(), EvalError> {
    if size == 0 && !result.is_empty() {
        return Err(EvalError::invalid(
            "a dimension without elements is resized",
        ));
    }
    Ok(())
}

/// `x` and its last two dimensions, height and width.
fn height_and_width<'a>(call: &'a Call) -> Result<(&'a Tensor, [usize; 2]), EvalError> {
    let x = call.tensor("x")?;
    match x.shape() {
        [.., height, width] if x.rank() >= 3 => Ok((x, [*height, *width])),
        _ => Err(EvalError::invalid(format!(
            "`x` has the rank {}, not 3 or more",
            x.rank()
        ))),
    }
}

/// Both dimensions sampled linearly.
fn bilinear(call: &Call, sampling: Sampling, target: [usize; 2]) -> Results {
    let (x, sizes) = height_and_width(call)?;
    let mut result = x.clone();
    for (index, (size, target)) in sizes.into_iter().zip(target).enumerate() {
        let axis = x.rank() - 2 + index;
        result = linear(call, &result, axis, &sampling.over(size, target))?;
    }
    one(result)
}

/// Both dimensions with the element whose cell the beginning of each cell of the result lies in.
fn nearest(call: &Call, target: [usize; 2]) -> Results {
    let (x, sizes) = height_and_width(call)?;
    let mut result = x.clone();
    for (index, (size, target)) in sizes.into_iter().zip(target).enumerate() {
        let places: Vec<usize> = (0..target)
            .map(|place| (place as u128 * size as u128 / target as u128) as usize)
            .collect();
        result = picked(call, &result, x.rank() - 2 + index, &places)?;
    }
    one(result)
}

/// The sizes that the scale factors give, rounded down; the product is rounded to fp32 first, as in
/// the type rule.
fn scaled(call: &Call) -> Result<[usize; 2], EvalError> {
    let (_, [height, width]) = height_and_width(call)?;
    let scaled = |size: usize, parameter: &'static str| -> Result<usize, EvalError> {
        let Some(factor) = call.tensor_if_any(parameter)? else {
            return Ok::<_, EvalError>(size);
        };
        let scaled = if factor.dtype().is_float() {
            let product = size as f32 * call.float(parameter)?;
            (product >= 0.0).then(|| product.floor() as usize)
        } else {
            let factor = usize::try_from(call.int(parameter)?).ok();
            factor.and_then(|factor| size.checked_mul(factor))
        };
        let scaled =
            scaled.ok_or_else(|| EvalError::invalid(format!("`{parameter}` gives no size")))?;
        call.room_for(&[scaled])?;
        Ok(scaled)
    };
    Ok([
        scaled(height, "scale_factor_height")?,
        scaled(width, "scale_factor_width")?,
    ])
}

/// Two sizes, 1 by default; there is memory for as many numbers.
pub(super) fn target(call: &Call, parameters: [&'static str; 2]) -> Result<[usize; 2], EvalError> {
    let size = |parameter: &'static str| {
        let size = call.int_or(parameter, 1)?;
        let size = usize::try_from(size)
            .map_err(|_| EvalError::invalid(format!("`{parameter}` is {size}")))?;
        call.room_for(&[size])?;
        Ok::<_, EvalError>(size)
    };
    Ok([size(parameters[0])?, size(parameters[1])?])
}

/// The scale is that of the sizes, not the factor as given.
pub(super) fn upsample_bilinear(call: &Call) -> Results {
    let align = call.bool_or("align_corners", true)?;
    let half_pixels = call.bool_or("half_pixel_centers", !align)?;
    let sampling = match (align, half_pixels) {
        (true, false) => Sampling::StrictAlignCorners,
        (false, true) => Sampling::UnalignCorners,
        (false, false) => Sampling::Default,
        (true, true) => {
            return Err(EvalError::invalid(
                "`align_corners` and `half_pixel_centers` exclude each other",
            ));
        }
    };
    bilinear(call, sampling, scaled(call)?)
}

pub(super) fn upsample_nearest_neighbor(call: &Call) -> Results {
    nearest(call, scaled(call)?)
}

pub(super) fn resize_bilinear(call: &Call) -> Results {
    let target = target(call, ["target_size_height", "target_size_width"])?;
    bilinear(call, Sampling::of(call)?, target)
}

pub(super) fn resize_nearest_neighbor(call: &Call) -> Results {
    nearest(
        call,
        target(call, ["target_size_height", "target_size_width"])?,
    )
}

/// The last `resized_dims` dimensions become the last of `shape`; a 0 there keeps the size.
///
/// Nearest neighbours are those of the points of the sampling mode; which of two elements equally
/// near is taken is documented nowhere: here, the one behind. Integers between which a point lies
/// are blended and cut off like a cast.
pub(super) fn resize(call: &Call) -> Results {
    let (x, shape) = (call.tensor("x")?, call.ints("shape")?);
    let count = call.int("resized_dims")?;
    let fits = usize::try_from(count)
        .ok()
        .filter(|count| *count <= x.rank() && *count <= shape.len());
    let Some(count) = fits else {
        return Err(EvalError::invalid(format!(
            "`resized_dims` is {count}, `x` has the rank {}, `shape` {} elements",
            x.rank(),
            shape.len()
        )));
    };
    let sampling = Sampling::of(call)?;
    let nearest = match call.string_or("interpolation_mode", "LINEAR")? {
        "LINEAR" => false,
        "NEAREST_NEIGHBOR" => true,
        word => {
            return Err(EvalError::invalid(format!(
                "`interpolation_mode` \"{word}\" is not known"
            )));
        }
    };
    let mut targets = Vec::with_capacity(count);
    for (offset, size) in shape[shape.len() - count..].iter().enumerate() {
        let axis = x.rank() - count + offset;
        targets.push(match usize::try_from(*size) {
            Ok(0) => x.shape()[axis],
            Ok(size) => {
                call.room_for(&[size])?;
                size
            }
            Err(_) => return Err(EvalError::invalid(format!("`shape` is {shape:?}"))),
        });
    }
    let mut result = x.clone();
    let integers = !x.dtype().is_float();
    if integers && !nearest {
        let values = x.as_ints()?.iter().map(|value| *value as f32).collect();
        result = Tensor::floats(crate::ir::types::DType::Float32, x.shape().to_vec(), values);
    }
    for (offset, target) in targets.into_iter().enumerate() {
        let axis = x.rank() - count + offset;
        let size = x.shape()[axis];
        let points = sampling.over(size, target);
        result = if nearest {
            let places: Vec<usize> = points.iter().map(|point| (point + 0.5) as usize).collect();
            picked(call, &result, axis, &places)?
        } else {
            linear(call, &result, axis, &points)?
        };
    }
    if integers && !nearest {
        let values = result.as_floats()?.iter().map(|v| *v as i64).collect();
        result = Tensor::ints(x.dtype(), result.shape().to_vec(), values);
    }
    one(result)
}
