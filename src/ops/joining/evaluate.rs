//! Evaluation of the ops that join, part or enlarge tensors.

use crate::ops::evaluate::{Call, Datum, EvalError, Kernel, Results, in_parameter, one};
use crate::tensor::{Border, Tensor, axis, concat as joined, steps};

#[cfg(test)]
mod tests;

pub(in crate::ops) fn kernel(op_type: &str) -> Option<Kernel> {
    Some(match op_type {
        "concat" => concat,
        "stack" => stack,
        "split" => split,
        "tile" => tile,
        "pad" => pad,
        _ => return None,
    })
}

/// The tensors to join, which share their element type.
fn values<'a>(call: &'a Call) -> Result<Vec<&'a Tensor>, EvalError> {
    let values = call.tensors("values")?;
    let first = values.first().ok_or(EvalError::Missing("values"))?;
    match values.iter().find(|value| value.dtype() != first.dtype()) {
        None => Ok(values),
        Some(other) => Err(EvalError::invalid(format!(
            "`values` holds {} and {}",
            first.dtype(),
            other.dtype()
        ))),
    }
}

/// Scalars count as tensors of one element. With `interleave`, which needs equal shapes, the first
/// element along the axis of every tensor comes first, then the second of every tensor.
fn concat(call: &Call) -> Results {
    let mut values: Vec<Tensor> = values(call)?.into_iter().cloned().collect();
    if values.iter().all(|value| value.rank() == 0) {
        for value in &mut values {
            *value = value.reshaped(vec![1])?;
        }
    }
    let rank = values.first().map_or(0, Tensor::rank);
    let index = match call.axis("axis", 0, rank) {
        // Of scalars there is but one order.
        Err(_)
            if call
                .tensors("values")?
                .iter()
                .all(|value| value.rank() == 0) =>
        {
            0
        }
        index => index?,
    };
    if !call.bool_or("interleave", false)? {
        return one(joined(&values.iter().collect::<Vec<_>>(), index)?);
    }
    let stacked = stacked(&values, index + 1)?;
    let mut shape = stacked.shape().to_vec();
    let count = shape.remove(index + 1);
    shape[index] *= count;
    one(stacked.reshaped(shape)?)
}

/// Tensors of one shape along a new axis.
fn stacked(values: &[Tensor], index: usize) -> Result<Tensor, EvalError> {
    let shape = values.first().map_or(&[][..], Tensor::shape);
    let mut parts = Vec::with_capacity(values.len());
    for value in values {
        if value.shape() != shape {
            return Err(EvalError::invalid(format!(
                "`values` holds the shapes {shape:?} and {:?}",
                value.shape()
            )));
        }
        let mut part = shape.to_vec();
        part.insert(index, 1);
        parts.push(value.reshaped(part)?);
    }
    Ok(joined(&parts.iter().collect::<Vec<_>>(), index)?)
}

fn stack(call: &Call) -> Results {
    let values: Vec<Tensor> = values(call)?.into_iter().cloned().collect();
    let rank = values.first().map_or(0, Tensor::rank);
    let index = call.axis("axis", 0, rank + 1)?;
    one(stacked(&values, index)?)
}

/// Into `num_splits` equal parts, or parts of `split_sizes`.
fn split(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let index = axis(call.int("axis")?, x.rank()).map_err(in_parameter("axis"))?;
    let length = x.shape()[index];
    let number = if call.has("num_splits") {
        Some(call.int("num_splits")?)
    } else {
        None
    };
    let sizes = match (call.ints_if_any("split_sizes")?, number) {
        (None, None) => return Err(EvalError::Missing("split_sizes")),
        (None, Some(number)) => {
            // An empty axis has any number of equal parts; the declared results bound it.
            let most = length.max(call.results.len()).max(1);
            let count = usize::try_from(number)
                .ok()
                .filter(|count| (1..=most).contains(count) && length.is_multiple_of(*count))
                .ok_or_else(|| {
                    EvalError::invalid(format!("{length} has no {number} equal parts"))
                })?;
            vec![length / count; count]
        }
        (Some(sizes), number) => {
            let wrong = || {
                EvalError::invalid(format!(
                    "`split_sizes` {sizes:?} (`num_splits` {number:?}) do not make {length}"
                ))
            };
            let sizes = sizes
                .iter()
                .map(|size| usize::try_from(*size).ok())
                .collect::<Option<Vec<_>>>()
                .ok_or_else(wrong)?;
            let total = sizes
                .iter()
                .try_fold(0usize, |sum, size| sum.checked_add(*size));
            if total != Some(length) || number.is_some_and(|number| number != sizes.len() as i64) {
                return Err(wrong());
            }
            sizes
        }
    };
    let steps = steps(x.shape());
    let mut start = 0;
    let mut results = Vec::with_capacity(sizes.len());
    for size in sizes {
        let mut shape = x.shape().to_vec();
        shape[index] = size;
        results.push(Datum::Tensor(x.strided(shape, start, &steps)?));
        start += size as isize * steps[index];
    }
    Ok(results)
}

/// A count of 0, which coremltools refuses where it can see it but programs of unknown sizes come to,
/// leaves nothing.
fn tile(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let reps = call.ints("reps")?;
    let counts = reps
        .iter()
        .map(|reps| usize::try_from(*reps).ok())
        .collect::<Option<Vec<_>>>()
        .filter(|counts| counts.len() == x.rank())
        .ok_or_else(|| {
            EvalError::invalid(format!("`reps` {reps:?} does not fit {:?}", x.shape()))
        })?;
    let shape: Vec<usize> = x
        .shape()
        .iter()
        .zip(&counts)
        .map(|(size, count)| size.saturating_mul(*count))
        .collect();
    call.room_for(&shape)?;
    let steps = steps(x.shape());
    let parts = counts.iter().zip(x.shape()).zip(&steps);
    let (mut split, mut walk) = (Vec::new(), Vec::new());
    for ((count, size), step) in parts {
        split.extend([*count, *size]);
        walk.extend([0, *step]);
    }
    one(x.strided(split, 0, &walk)?.reshaped(shape)?)
}

/// The amounts are those of the last dimensions, in their order.
fn pad(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let pad = call.ints("pad")?;
    let amounts = pad
        .iter()
        .map(|amount| usize::try_from(*amount).ok())
        .collect::<Option<Vec<_>>>()
        .filter(|amounts| amounts.len() % 2 == 0 && amounts.len() / 2 <= x.rank())
        .ok_or_else(|| EvalError::invalid(format!("`pad` {pad:?} does not fit {:?}", x.shape())))?;
    let untouched = x.rank() - amounts.len() / 2;
    let pairs = amounts.chunks_exact(2).map(|pair| (pair[0], pair[1]));
    let pairs: Vec<(usize, usize)> = vec![(0, 0); untouched].into_iter().chain(pairs).collect();
    let shape: Vec<usize> = x
        .shape()
        .iter()
        .zip(&pairs)
        .map(|(size, (before, after))| size.saturating_add(*before).saturating_add(*after))
        .collect();
    call.room_for(&shape)?;
    let zero = Tensor::zeros(x.dtype(), Vec::new());
    let border = match call.string_or("mode", "constant")? {
        "constant" => Border::Constant(call.tensor_if_any("constant_val")?.unwrap_or(&zero)),
        "reflect" => Border::Reflect,
        "replicate" => Border::Replicate,
        other => {
            return Err(EvalError::invalid(format!(
                "`mode` \"{other}\" is none of {}",
                super::PAD_MODES.join(", ")
            )));
        }
    };
    one(x.padded(&pairs, border)?)
}
