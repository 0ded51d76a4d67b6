//! Evaluation of slices, as NumPy takes them: bounds count from the end if negative and are clamped.
//!
//! For a dimension of size 1, and for bounds that are out of range on both sides, coremltools may
//! expect another size than NumPy gives; such an op then does not have its declared type.

use crate::ops::evaluate::{Call, EvalError, Kernel, Results, one};
use crate::tensor::{Tensor, steps};

#[cfg(test)]
mod tests;

pub(in crate::ops) fn kernel(op_type: &str) -> Option<Kernel> {
    Some(match op_type {
        "slice_by_index" => slice_by_index,
        "slice_update" => slice_update,
        "slice_by_size" => slice_by_size,
        "sliding_windows" => sliding_windows,
        _ => return None,
    })
}

/// A slice of a tensor.
struct Slice {
    /// Its shape, with size 1 where an axis is squeezed away.
    full: Vec<usize>,
    /// Its shape.
    shape: Vec<usize>,
    /// Its first element.
    start: isize,
    /// Elements from one neighbour to the next.
    steps: Vec<isize>,
}

fn slice_by_index(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let slice = slice(call, x)?;
    let full = x.strided(slice.full, slice.start, &slice.steps)?;
    one(full.reshaped(slice.shape)?)
}

fn slice_update(call: &Call) -> Results {
    let (x, update) = (call.tensor("x")?, call.tensor("update")?);
    let slice = slice(call, x)?;
    if update.shape() != slice.shape || update.dtype() != x.dtype() {
        return Err(EvalError::invalid(format!(
            "`update` is {} {:?}, but the slice is {} {:?}",
            update.dtype(),
            update.shape(),
            x.dtype(),
            slice.shape
        )));
    }
    let update = update.reshaped(slice.full)?;
    one(x.with_strided(slice.start, &slice.steps, &update)?)
}

fn slice(call: &Call, x: &Tensor) -> Result<Slice, EvalError> {
    let rank = x.rank();
    let (begin, end) = (call.ints("begin")?, call.ints("end")?);
    let stride = call.ints_if_any("stride")?;
    let stride = stride.map_or_else(|| vec![1; rank], std::borrow::Cow::into_owned);
    for (parameter, length) in [
        ("begin", begin.len()),
        ("end", end.len()),
        ("stride", stride.len()),
    ] {
        check_length(parameter, length, rank)?;
    }
    let mask = |parameter| -> Result<Vec<bool>, EvalError> {
        let Some(mask) = call.bools_if_any(parameter)? else {
            return Ok(vec![false; rank]);
        };
        check_length(parameter, mask.len(), rank)?;
        Ok(mask.into_owned())
    };
    let (begin_mask, end_mask) = (mask("begin_mask")?, mask("end_mask")?);
    let squeeze_mask = mask("squeeze_mask")?;
    let mut steps = steps(x.shape());
    let mut slice = Slice {
        full: Vec::with_capacity(rank),
        shape: Vec::with_capacity(rank),
        start: 0,
        steps: Vec::new(),
    };
    for (index, size) in x.shape().iter().enumerate() {
        let begin = (!begin_mask[index]).then_some(begin[index]);
        if squeeze_mask[index] {
            let at = element("begin", begin.unwrap_or(0), *size)?;
            slice.start += at as isize * steps[index];
            slice.full.push(1);
            continue;
        }
        let end = (!end_mask[index]).then_some(end[index]);
        let range = Range::new(*size, begin, end, stride[index])
            .ok_or_else(|| EvalError::invalid(format!("`stride` is 0 at dimension {index}")))?;
        slice.start += range.start as isize * steps[index];
        if range.count > 1 {
            steps[index] *= stride[index] as isize;
        }
        slice.full.push(range.count);
        slice.shape.push(range.count);
    }
    slice.steps = steps;
    Ok(slice)
}

fn check_length(parameter: &'static str, length: usize, rank: usize) -> Result<(), EvalError> {
    if length == rank {
        return Ok(());
    }
    Err(EvalError::invalid(format!(
        "`{parameter}` has {length} values, but `x` has rank {rank}"
    )))
}

/// The elements of one axis that a slice takes.
struct Range {
    /// The first, 0 if there is none.
    start: usize,
    count: usize,
}

impl Range {
    /// A missing bound reaches as far as it can. Gives `None` if the stride is 0.
    fn new(size: usize, begin: Option<i64>, end: Option<i64>, stride: i64) -> Option<Self> {
        let size = size as i64;
        let bound = |value: i64, lowest: i64, highest: i64| {
            let value = if value < 0 {
                value.saturating_add(size)
            } else {
                value
            };
            value.clamp(lowest, highest)
        };
        let (start, distance) = if stride > 0 {
            let start = begin.map_or(0, |begin| bound(begin, 0, size));
            (start, end.map_or(size, |end| bound(end, 0, size)) - start)
        } else {
            let start = begin.map_or(size - 1, |begin| bound(begin, -1, size - 1));
            let end = end.map_or(-1, |end| bound(end, -1, size - 1));
            (start, start - end)
        };
        let distance = u64::try_from(distance).unwrap_or(0);
        let count = match stride.unsigned_abs() {
            0 => return None,
            step => distance.div_ceil(step),
        };
        Some(Self {
            start: if count == 0 { 0 } else { start as usize },
            count: count as usize,
        })
    }
}

/// An index that may count from the end.
fn element(parameter: &'static str, index: i64, size: usize) -> Result<usize, EvalError> {
    let highest = size as i64 - 1;
    let from_start = if index < 0 {
        index.saturating_add(size as i64)
    } else {
        index
    };
    if (0..=highest).contains(&from_start) {
        Ok(from_start as usize)
    } else {
        Err(EvalError::OutOfRange {
            parameter,
            index,
            lowest: -(size as i64),
            highest,
        })
    }
}

/// A size of −1 reaches to the end; unlike a NumPy slice, one that reaches beyond it is an error.
fn slice_by_size(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let (begin, size) = (call.ints("begin")?, call.ints("size")?);
    check_length("begin", begin.len(), x.rank())?;
    check_length("size", size.len(), x.rank())?;
    let steps = steps(x.shape());
    let (mut start, mut shape) = (0, Vec::with_capacity(x.rank()));
    for (index, length) in x.shape().iter().enumerate() {
        let (begin, size) = (begin[index], size[index]);
        let length = *length as i64;
        let from = if begin < 0 {
            begin.saturating_add(length)
        } else {
            begin
        };
        let count = if size == -1 {
            length.saturating_sub(from)
        } else {
            size
        };
        let fits = from >= 0 && count >= 0 && from.checked_add(count).is_some_and(|e| e <= length);
        if !fits {
            return Err(EvalError::invalid(format!(
                "{size} elements from {begin} on are not in dimension {index}, which has {length}"
            )));
        }
        start += from as isize * steps[index];
        shape.push(count as usize);
    }
    one(x.strided(shape, start, &steps)?)
}

/// Windows begin at 0, `stride`, 2·`stride`, … as long as they fit.
fn sliding_windows(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let index = call.axis("axis", 0, x.rank())?;
    let (size, stride) = (call.int("size")?, call.int_or("stride", 1)?);
    let length = x.shape()[index];
    let sizes = usize::try_from(size).ok().zip(usize::try_from(stride).ok());
    let Some((size, stride)) =
        sizes.filter(|(size, stride)| *size <= length && *size > 0 && *stride > 0)
    else {
        return Err(EvalError::invalid(format!(
            "windows of {size} every {stride} are not in a dimension of {length}"
        )));
    };
    let count = (length - size) / stride + 1;
    let mut steps = steps(x.shape());
    let mut shape = x.shape().to_vec();
    shape[index] = count;
    shape.insert(index + 1, size);
    call.room_for(&shape)?;
    steps.insert(index, steps[index].saturating_mul(stride as isize));
    one(x.strided(shape, 0, &steps)?)
}
