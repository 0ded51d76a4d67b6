//! Ops that join, part or enlarge tensors: `concat`, `stack`, `split`, `tile`, `pad`.

use crate::ir::types::{DType, Dim, TensorType};
use crate::ops::dims::{
    Types, axis, check_rank, dim, one, same, same_shape, signed, signed_dim, tensor, unknown,
};
use crate::ops::infer::{InferError, Rule};
use crate::ops::view::{Argument, OpView, Stop};

/// The values of `pad`'s `mode`.
pub const PAD_MODES: [&str; 3] = ["constant", "reflect", "replicate"];

pub(super) use evaluate::kernel;

mod evaluate;

pub(super) fn rule(op_type: &str) -> Option<Rule> {
    Some(match op_type {
        "concat" => concat,
        "stack" => stack,
        "split" => split,
        "tile" => tile,
        "pad" => pad,
        _ => return None,
    })
}

/// The element type that all values share.
fn shared_dtype(values: &[&TensorType]) -> Result<DType, Stop> {
    let (first, rest) = values.split_first().ok_or(Stop::NoRule)?;
    match rest.iter().find(|value| value.dtype != first.dtype) {
        None => Ok(first.dtype),
        Some(other) => Err(InferError::DTypes {
            left: ("values", first.dtype),
            right: ("values", other.dtype),
        }
        .into()),
    }
}

/// Scalars count as tensors of one element.
fn concat(view: &OpView) -> Types {
    let values = view.all_ranked("values")?;
    let dtype = shared_dtype(&values)?;
    let interleave = view.bool_or("interleave", false).ok_or(Stop::NoRule)?;
    let scalar = [Dim::Known(1)];
    let shapes: Vec<&[Dim]> = values
        .iter()
        .map(|value| match value.dims.as_slice() {
            [] => scalar.as_slice(),
            dims => dims,
        })
        .collect();
    let rank = shapes.first().map_or(0, |dims| dims.len());
    let joined = match view.int("axis").required("axis")? {
        _ if values.iter().all(|value| value.dims.is_empty()) => 0,
        value => axis(value, rank)?,
    };
    let mut dims = shapes.first().map_or(Vec::new(), |dims| dims.to_vec());
    let mut total = Some(0u64);
    for (shape, value) in shapes.iter().zip(&values) {
        if value.dims.len() != values.first().map_or(0, |first| first.dims.len()) {
            return Err(InferError::Ranks {
                left: ("values", rank),
                right: ("values", value.dims.len()),
            }
            .into());
        }
        for (index, size) in shape.iter().enumerate() {
            if index != joined || interleave {
                dims[index] = same(index, ("values", dims[index]), ("values", *size))?;
            }
        }
        total = total.and_then(|total| total.checked_add(shape[joined].size()?));
    }
    dims[joined] = dim(total);
    one(dtype, dims)
}

fn stack(view: &OpView) -> Types {
    let values = view.all_ranked("values")?;
    let dtype = shared_dtype(&values)?;
    let mut dims = values
        .first()
        .map_or(Vec::new(), |first| first.dims.clone());
    for value in &values {
        dims = same_shape(("values", &dims), ("values", &value.dims))?;
    }
    let index = axis(view.int("axis").required("axis")?, dims.len() + 1)?;
    dims.insert(index, Dim::Known(values.len() as u64));
    one(dtype, dims)
}

/// Into `num_splits` equal parts, or parts of `split_sizes`.
fn split(view: &OpView) -> Types {
    /// Refuses counts that no program has and that would only exhaust memory.
    const MOST_PARTS: i64 = 1 << 16;
    let x = view.ranked("x")?;
    let index = axis(view.int("axis").required("axis")?, x.dims.len())?;
    let length = x.dims[index];
    let sizes = match (view.ints("split_sizes"), view.int("num_splits")) {
        (Argument::Missing, Argument::Missing) => {
            return Err(InferError::Missing {
                parameter: "split_sizes",
            }
            .into());
        }
        (Argument::Missing, number) => {
            let number = number.required("num_splits")?;
            let count = usize::try_from(number)
                .ok()
                .filter(|_| (1..=MOST_PARTS).contains(&number))
                .ok_or_else(|| InferError::Invalid {
                    reason: format!("`num_splits` is {number}"),
                })?;
            if let Some(size) = signed(length)
                && size % number != 0
            {
                return Err(InferError::Invalid {
                    reason: format!("`num_splits` {number} does not divide {size}"),
                }
                .into());
            }
            vec![dim(length.size().map(|size| size / count as u64)); count]
        }
        (sizes, number) => {
            let sizes = sizes.required("split_sizes")?;
            if let Some(number) = number.known()
                && number != sizes.len() as i64
            {
                return Err(InferError::Invalid {
                    reason: format!(
                        "`num_splits` is {number} but `split_sizes` has {}",
                        sizes.len()
                    ),
                }
                .into());
            }
            let total = sizes
                .iter()
                .try_fold(0i64, |total, size| total.checked_add(*size));
            if let (Some(total), Some(size)) = (total, signed(length))
                && total != size
            {
                return Err(InferError::Invalid {
                    reason: format!("`split_sizes` add up to {total}, not to {size}"),
                }
                .into());
            }
            sizes
                .iter()
                .map(|size| signed_dim(Some(*size), "`split_sizes`"))
                .collect::<Result<Vec<_>, _>>()?
        }
    };
    Ok(sizes
        .into_iter()
        .map(|size| {
            let mut dims = x.dims.clone();
            dims[index] = size;
            tensor(x.dtype, dims)
        })
        .collect())
}

fn tile(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    let Some(reps) = view.ints("reps").known() else {
        return one(x.dtype, unknown(x.dims.len()));
    };
    if reps.len() != x.dims.len() {
        return Err(InferError::Length {
            parameter: "reps",
            length: reps.len(),
            expected: x.dims.len(),
        }
        .into());
    }
    let dims = x
        .dims
        .iter()
        .zip(&reps)
        .map(|(size, reps)| match reps {
            1 => Ok(*size),
            reps if *reps > 0 => signed_dim(
                signed(*size).and_then(|size| size.checked_mul(*reps)),
                "`reps`",
            ),
            reps => Err(InferError::Invalid {
                reason: format!("`reps` has {reps}"),
            }
            .into()),
        })
        .collect::<Result<Vec<_>, _>>()?;
    one(x.dtype, dims)
}

/// `pad` holds amounts before and after for each of the trailing dimensions.
fn pad(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    if let Some(mode) = view.string("mode").known()
        && !PAD_MODES.contains(&mode)
    {
        return Err(InferError::Invalid {
            reason: format!("`mode` \"{mode}\" is none of {}", PAD_MODES.join(", ")),
        }
        .into());
    }
    let pad_type = view.ranked("pad")?;
    check_rank("pad", &pad_type.dims, 1..=1, "1")?;
    let amounts = view.ints("pad").known();
    let length = match &amounts {
        Some(amounts) => amounts.len(),
        None => view.length("pad")?,
    };
    let rank = x.dims.len();
    let Some(first) = rank.checked_sub(length / 2).filter(|_| length % 2 == 0) else {
        return Err(InferError::Length {
            parameter: "pad",
            length,
            expected: 2 * rank,
        }
        .into());
    };
    let mut dims = x.dims.clone();
    for (index, size) in dims.iter_mut().enumerate().skip(first) {
        let Some(amounts) = &amounts else {
            *size = Dim::UNKNOWN;
            continue;
        };
        let (before, after) = (
            amounts[2 * (index - first)],
            amounts[2 * (index - first) + 1],
        );
        if before < 0 || after < 0 {
            return Err(InferError::Invalid {
                reason: format!("`pad` {amounts:?} has a negative amount"),
            }
            .into());
        }
        let padded = signed(*size).and_then(|size| size.checked_add(before)?.checked_add(after));
        *size = signed_dim(padded, "`pad`")?;
    }
    one(x.dtype, dims)
}
