//! Evaluation of resampling and cropping.

use crate::ops::evaluate::{Call, EvalError, Kernel, Results, one};

mod boxes;
mod grid;
mod resample;
mod resize;
mod sample;

pub(in crate::ops) fn kernel(op_type: &str) -> Option<Kernel> {
    Some(match op_type {
        "upsample_bilinear" => resize::upsample_bilinear,
        "upsample_nearest_neighbor" => resize::upsample_nearest_neighbor,
        "resize_bilinear" => resize::resize_bilinear,
        "resize_nearest_neighbor" => resize::resize_nearest_neighbor,
        "resize" => resize::resize,
        "crop" => crop,
        "crop_resize" => boxes::crop_resize,
        "affine" => resample::affine,
        "resample" => resample::resample,
        _ => return None,
    })
}

/// Takes elements away at both ends of the last two dimensions.
fn crop(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let rank = x.rank();
    if rank < 3 {
        return Err(EvalError::invalid(format!(
            "`x` has the rank {rank}, not 3 or more"
        )));
    }
    let mut shape = x.shape().to_vec();
    let strides = crate::tensor::strides(&shape);
    let mut start = 0;
    for (axis, parameter) in [(rank - 2, "crop_height"), (rank - 1, "crop_width")] {
        let amounts = call.ints(parameter)?;
        let size = shape[axis];
        let inside = match *amounts {
            [before, after] => usize::try_from(before)
                .ok()
                .zip(usize::try_from(after).ok())
                .and_then(|(before, after)| {
                    Some((before, size.checked_sub(before)?.checked_sub(after)?))
                }),
            _ => None,
        };
        let Some((before, left)) = inside else {
            return Err(EvalError::invalid(format!(
                "`{parameter}` takes {amounts:?} of a dimension of size {size}"
            )));
        };
        start += before * strides[axis];
        shape[axis] = left;
    }
    let strides: Vec<isize> = strides.iter().map(|stride| *stride as isize).collect();
    one(x.strided(shape, start as isize, &strides)?)
}

#[cfg(test)]
mod tests;
