//! Evaluation of `argsort` and `topk`.
//!
//! Elements of equal value come in the order of their indices, which Core ML leaves open. NaN comes
//! last in either direction, as in NumPy, and −0 equals 0.

use rayon::prelude::*;

use crate::ops::evaluate::{Call, Datum, EvalError, Results, one};
use crate::tensor::{Tensor, split_at_axis};

/// Rows with fewer elements together than this are not worth a second thread.
const PARALLEL_ELEMENTS: usize = 1 << 14;

/// Numbers that rise in the wanted order of the elements.
fn keys(x: &Tensor, ascending: bool) -> Result<Vec<i64>, EvalError> {
    let turned = |key: i64| if ascending { key } else { !key };
    if x.dtype().is_float() {
        let key = |value: &f32| {
            if value.is_nan() {
                return i64::MAX;
            }
            // Adding 0 makes a 0 of −0. The bits of an IEEE number order as its magnitude does.
            let bits = (value + 0.0).to_bits();
            let magnitude = i64::from(bits & 0x7fff_ffff);
            turned(if bits >> 31 == 0 {
                magnitude
            } else {
                -magnitude
            })
        };
        Ok(x.as_floats()?.iter().map(key).collect())
    } else {
        Ok(x.as_ints()?.iter().map(|value| turned(*value)).collect())
    }
}

/// For each line along `axis` the places of its first `count` elements in order; the lines follow
/// each other as in the tensor with that axis last.
fn ordered(x: &Tensor, axis: usize, count: usize, ascending: bool) -> Result<Vec<u32>, EvalError> {
    let (outer, size, inner) = split_at_axis(x.shape(), axis);
    if u32::try_from(size).is_err() {
        return Err(EvalError::invalid(format!(
            "{size} elements cannot be sorted"
        )));
    }
    if x.is_empty() || count == 0 {
        return Ok(Vec::new());
    }
    let keys = keys(x, ascending)?;
    let line = |line: usize, places: &mut [u32]| {
        let first = line / inner * size * inner + line % inner;
        let mut pairs: Vec<(i64, u32)> = (0..size as u32)
            .map(|place| (keys[first + place as usize * inner], place))
            .collect();
        if count < size && count > 0 {
            pairs.select_nth_unstable(count - 1);
            pairs.truncate(count);
        }
        pairs.sort_unstable();
        for (target, (_, place)) in places.iter_mut().zip(pairs) {
            *target = place;
        }
    };
    let mut places = vec![0; outer * inner * count];
    let lines = places.chunks_exact_mut(count).enumerate();
    if keys.len() < PARALLEL_ELEMENTS || outer * inner == 1 {
        lines.for_each(|(index, places)| line(index, places));
    } else {
        let lines = places.par_chunks_exact_mut(count).enumerate();
        lines.for_each(|(index, places)| line(index, places));
    }
    Ok(places)
}

/// The places of [`ordered`] in the layout of a tensor whose axis has `count` elements.
fn laid_out(places: &[u32], inner: usize, count: usize) -> Vec<i64> {
    if inner == 1 {
        return places.iter().map(|place| i64::from(*place)).collect();
    }
    let mut result = vec![0; places.len()];
    for (line, places) in places.chunks_exact(count.max(1)).enumerate() {
        let first = line / inner * count * inner + line % inner;
        for (rank, place) in places.iter().enumerate() {
            result[first + rank * inner] = i64::from(*place);
        }
    }
    result
}

pub(super) fn argsort(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let axis = call.axis("axis", -1, x.rank())?;
    let (_, size, inner) = split_at_axis(x.shape(), axis);
    let places = ordered(x, axis, size, call.bool_or("ascending", false)?)?;
    let places = laid_out(&places, inner, size);
    let dtype = call.result_dtype(0).filter(|dtype| dtype.is_int());
    let dtype = dtype.unwrap_or(crate::ir::types::DType::Int32);
    one(Tensor::ints(dtype, x.shape().to_vec(), places))
}

/// A `k` of −1 takes all elements. They are in order whether `sort` asks for it or not.
pub(super) fn topk(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let axis = call.axis("axis", -1, x.rank())?;
    let (_, size, inner) = split_at_axis(x.shape(), axis);
    let count = match call.int_or("k", 1)? {
        -1 => size,
        k => usize::try_from(k)
            .ok()
            .filter(|k| *k <= size)
            .ok_or_else(|| {
                EvalError::invalid(format!("`k` is {k}, but the axis has {size} elements"))
            })?,
    };
    let places = ordered(x, axis, count, call.bool_or("ascending", false)?)?;
    let places = laid_out(&places, inner, count);
    let mut shape = x.shape().to_vec();
    shape[axis] = count;
    let mut starts = Vec::with_capacity(places.len());
    let blocks = places.chunks_exact(count.saturating_mul(inner).max(1));
    for (outer, block) in blocks.enumerate() {
        for row in block.chunks_exact(inner.max(1)) {
            let at =
                |(column, place): (usize, &i64)| (outer * size + *place as usize) * inner + column;
            starts.extend(row.iter().enumerate().map(at));
        }
    }
    let values = x.runs(shape.clone(), 1, &starts)?;
    let mut results = vec![Datum::Tensor(values)];
    if call.bool_or("return_indices", true)? {
        let word = call.string_or("output_indices_dtype", "int32")?;
        let dtype = crate::ir::types::DType::from_word(word).filter(|dtype| dtype.is_int());
        let dtype = dtype.ok_or_else(|| {
            EvalError::invalid(format!(
                "`output_indices_dtype` \"{word}\" is not an index type"
            ))
        })?;
        results.push(Datum::Tensor(Tensor::ints(dtype, shape, places)));
    }
    Ok(results)
}
