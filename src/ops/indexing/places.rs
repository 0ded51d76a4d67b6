//! Where gathers read and scatters write: the places of runs of neighbouring elements.

use crate::ir::Opset;
use crate::ops::evaluate::{Call, EvalError, in_parameter};
use crate::tensor::{Tensor, elements, split_at_axis, strides};

/// Runs of `run` elements of some data, each given by its first element.
pub(super) struct Places {
    /// Elements of each run.
    pub(super) run: usize,
    /// The first element of each.
    pub(super) starts: Vec<usize>,
    /// The shape that all runs together fill.
    pub(super) shape: Vec<usize>,
}

/// The elements of `indices` as numbers below `size`.
///
/// Up to iOS 16 a negative index counts from the end; since then it is out of range. What an index
/// out of range does is undefined in Core ML unless `validate_indices` is set. Here it is an error
/// in every case: a program that relies on such an index has no meaning to keep.
struct Indices {
    wraps: bool,
}

impl Indices {
    fn of(call: &Call) -> Self {
        Self {
            wraps: call.opset < Opset::CoreML7,
        }
    }

    fn resolve(&self, index: i64, size: usize) -> Result<usize, EvalError> {
        let from_start = if index < 0 && self.wraps {
            index.saturating_add(size as i64)
        } else {
            index
        };
        usize::try_from(from_start)
            .ok()
            .filter(|index| *index < size)
            .ok_or(EvalError::OutOfRange {
                parameter: "indices",
                index,
                lowest: if self.wraps { -(size as i64) } else { 0 },
                highest: size as i64 - 1,
            })
    }

    fn resolve_all(&self, indices: &[i64], size: usize) -> Result<Vec<usize>, EvalError> {
        indices
            .iter()
            .map(|index| self.resolve(*index, size))
            .collect()
    }
}

/// `batch_dims`, in which `data` and `indices` agree.
fn batch_dims(call: &Call, data: &Tensor, indices: &Tensor) -> Result<usize, EvalError> {
    let value = call.int_or("batch_dims", 0)?;
    usize::try_from(value)
        .ok()
        .filter(|batch| {
            let (left, right) = (data.shape().get(..*batch), indices.shape().get(..*batch));
            left.is_some() && left == right
        })
        .ok_or_else(|| {
            EvalError::invalid(format!(
                "`batch_dims` is {value}, but the shapes are {:?} and {:?}",
                data.shape(),
                indices.shape()
            ))
        })
}

fn count(shape: &[usize]) -> Result<usize, EvalError> {
    elements(shape).ok_or_else(|| EvalError::invalid(format!("{shape:?} cannot be counted")))
}

/// Slices along `axis`, which the dimensions of `indices` behind the batch dimensions replace.
pub(super) fn along(call: &Call, data: &Tensor) -> Result<Places, EvalError> {
    let indices = call.tensor("indices")?;
    let axis = call.axis("axis", 0, data.rank())?;
    let batch = batch_dims(call, data, indices)?;
    if batch > axis {
        return Err(EvalError::invalid(format!(
            "`batch_dims` is {batch} but `axis` is {axis}"
        )));
    }
    let (_, size, run) = split_at_axis(data.shape(), axis);
    let chosen = indices.as_ints().map_err(in_parameter("indices"))?;
    let chosen = Indices::of(call).resolve_all(&chosen, size)?;
    let shape = [
        &data.shape()[..axis],
        &indices.shape()[batch..],
        &data.shape()[axis + 1..],
    ]
    .concat();
    let total = call.room_for(&shape)?;
    let middle = count(&data.shape()[batch..axis])?;
    let each = count(&indices.shape()[batch..])?;
    let mut starts = Vec::new();
    if total > 0 {
        starts.reserve(total / run);
        for (batch, chosen) in chosen.chunks_exact(each).enumerate() {
            for outer in batch * middle..(batch + 1) * middle {
                starts.extend(chosen.iter().map(|index| (outer * size + index) * run));
            }
        }
    }
    Ok(Places { run, starts, shape })
}

/// One element for each of `indices`, which stands in for its place along `axis` and agrees with the
/// data in all other dimensions.
pub(super) fn along_axis(call: &Call, data: &Tensor) -> Result<Places, EvalError> {
    let indices = call.tensor("indices")?;
    let axis = call.axis("axis", 0, data.rank())?;
    let mut expected = data.shape().to_vec();
    if let Some(size) = indices.shape().get(axis) {
        expected[axis] = *size;
    }
    if indices.shape() != expected {
        return Err(EvalError::invalid(format!(
            "`indices` has the shape {:?}, which does not agree with {:?} but for axis {axis}",
            indices.shape(),
            data.shape()
        )));
    }
    let (_, size, inner) = split_at_axis(data.shape(), axis);
    let chosen = indices.as_ints().map_err(in_parameter("indices"))?;
    let resolver = Indices::of(call);
    let mut starts = Vec::with_capacity(chosen.len());
    if !chosen.is_empty() {
        let each = expected[axis] * inner;
        for (outer, chosen) in chosen.chunks_exact(each).enumerate() {
            for row in chosen.chunks_exact(inner) {
                for (place, index) in row.iter().enumerate() {
                    let index = resolver.resolve(*index, size)?;
                    starts.push((outer * size + index) * inner + place);
                }
            }
        }
    }
    Ok(Places {
        run: 1,
        starts,
        shape: expected,
    })
}

/// The last dimension of `indices` holds an index for each of as many dimensions of the data behind
/// the batch dimensions.
pub(super) fn addressed(call: &Call, data: &Tensor) -> Result<Places, EvalError> {
    let indices = call.tensor("indices")?;
    let batch = batch_dims(call, data, indices)?;
    let (depth, outer) = indices
        .shape()
        .split_last()
        .ok_or_else(|| EvalError::invalid("`indices` is a scalar"))?;
    let last = batch.saturating_add(*depth);
    if last > data.rank() || batch > outer.len() {
        return Err(EvalError::invalid(format!(
            "`indices` addresses {depth} dimensions behind {batch} of {:?}",
            data.shape()
        )));
    }
    let (sizes, rest) = (&data.shape()[batch..last], &data.shape()[last..]);
    let shape = [outer, rest].concat();
    let total = call.room_for(&shape)?;
    let run = count(rest)?;
    let chosen = indices.as_ints().map_err(in_parameter("indices"))?;
    let resolver = Indices::of(call);
    let steps = strides(data.shape());
    let steps = &steps[batch..last];
    // Elements of the data, and rows of `indices`, in each batch.
    let (stride, each) = (count(sizes)?.saturating_mul(run), count(&outer[batch..])?);
    let rows = count(outer)?;
    let mut starts = Vec::new();
    if total > 0 {
        starts.reserve(rows);
        for row in 0..rows {
            let mut start = row / each * stride;
            let tuple = &chosen[row * depth..(row + 1) * depth];
            for ((index, size), step) in tuple.iter().zip(sizes).zip(steps) {
                start += resolver.resolve(*index, *size)? * step;
            }
            starts.push(start);
        }
    }
    Ok(Places { run, starts, shape })
}
