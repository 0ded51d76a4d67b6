//! Evaluation of the changes of shape. Those that keep the order of the elements share the buffer of
//! their argument.

use crate::ir::Opset;
use crate::ir::types::Dim;
use crate::ops::dims;
use crate::ops::evaluate::{Call, Datum, EvalError, Kernel, Results, one};
use crate::tensor::{Border, Tensor, axis, elements, steps, strides};

#[cfg(test)]
mod tests;

pub(in crate::ops) fn kernel(op_type: &str) -> Option<Kernel> {
    Some(match op_type {
        "reshape" => reshape,
        "reshape_like" => reshape_like,
        "flatten2d" => flatten2d,
        "transpose" => transpose,
        "expand_dims" => expand_dims,
        "squeeze" => squeeze,
        "reverse" => reverse,
        "reverse_sequence" => reverse_sequence,
        "depth_to_space" => |call| to_space(call, "block_size", ChannelOrder::BlockFirst),
        "pixel_shuffle" => |call| to_space(call, "upscale_factor", ChannelOrder::BlockLast),
        "space_to_depth" => |call| to_depth(call, "block_size", ChannelOrder::BlockFirst),
        "pixel_unshuffle" => |call| to_depth(call, "downscale_factor", ChannelOrder::BlockLast),
        "space_to_batch" => space_to_batch,
        "batch_to_space" => batch_to_space,
        _ => return None,
    })
}

/// A shape as dimensions, for the rules that types and values share.
fn known(shape: &[usize]) -> Vec<Dim> {
    shape.iter().map(|size| Dim::Known(*size as u64)).collect()
}

fn wrong(error: impl std::fmt::Display) -> EvalError {
    EvalError::invalid(error.to_string())
}

/// A −1 cannot be resolved if the other sizes multiply to 0.
fn reshape(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let shape = call.ints("shape")?;
    let aligned = call.opset >= Opset::CoreML7;
    let shape = super::reshaped(&known(x.shape()), &shape, aligned)
        .map_err(wrong)?
        .iter()
        .map(|dim| dim.size().and_then(|size| usize::try_from(size).ok()))
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| {
            wrong(format!(
                "`shape` {shape:?} does not say what remains of {:?}",
                x.shape()
            ))
        })?;
    one(x.reshaped(shape)?)
}

/// The bounds are those of Python slices: they count from the end if negative and are clamped.
fn reshape_like(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let references = flat(call, "ref_tensors")?;
    let begins = scalars(call, "begins", references.len())?;
    let ends = scalars(call, "ends", references.len())?;
    let end_masks = scalars(call, "end_masks", references.len())?;
    let mut shape = Vec::new();
    for (index, reference) in references.iter().enumerate() {
        let rank = reference.rank();
        let begin = python_bound(begins[index], rank);
        let end = if end_masks[index] == 0 {
            python_bound(ends[index], rank)
        } else {
            rank
        };
        shape.extend_from_slice(reference.shape().get(begin..end).unwrap_or(&[]));
    }
    one(x.reshaped(shape)?)
}

/// A bound that counts from the end if negative, clamped.
fn python_bound(value: i64, length: usize) -> usize {
    let length = length as i64;
    let value = if value < 0 {
        value.saturating_add(length)
    } else {
        value
    };
    value.clamp(0, length) as usize
}

/// The tensors of a variadic parameter, or of one list or tuple.
fn flat<'a>(call: &'a Call, parameter: &'static str) -> Result<Vec<&'a Tensor>, EvalError> {
    fn add<'a>(datum: &'a Datum, tensors: &mut Vec<&'a Tensor>) -> Option<()> {
        match datum {
            Datum::Tensor(tensor) => tensors.push(tensor),
            Datum::List(items) => {
                for item in items.iter() {
                    tensors.push(item.as_ref()?);
                }
            }
            Datum::Tuple(items) => {
                for item in items.iter() {
                    add(item, tensors)?;
                }
            }
            Datum::Dictionary(_) | Datum::State(_) => return None,
        }
        Some(())
    }
    let arguments = call
        .arguments
        .get(parameter)
        .ok_or(EvalError::Missing(parameter))?;
    let mut tensors = Vec::new();
    for argument in arguments {
        add(argument, &mut tensors)
            .ok_or_else(|| wrong(format!("`{parameter}` holds {}", argument.words())))?;
    }
    Ok(tensors)
}

/// The integers (or bools) of a variadic parameter of so many scalars.
fn scalars(call: &Call, parameter: &'static str, count: usize) -> Result<Vec<i64>, EvalError> {
    let mut values = Vec::new();
    for tensor in flat(call, parameter)? {
        match tensor.as_bools() {
            Ok(bools) => values.extend(bools.iter().map(|value| i64::from(*value))),
            Err(_) => values.extend_from_slice(&tensor.as_ints()?),
        }
    }
    if values.len() == count {
        Ok(values)
    } else {
        Err(wrong(format!(
            "`{parameter}` has {} values, not {count}",
            values.len()
        )))
    }
}

/// `axis` is a Python slice bound: it counts from the end if negative and is clamped.
fn flatten2d(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let index = python_bound(call.int_or("axis", 1)?, x.rank());
    let (outer, inner) = x.shape().split_at(index);
    let shape = elements(outer).zip(elements(inner));
    let (outer, inner) = shape.ok_or_else(|| wrong("the shape cannot be counted"))?;
    one(x.reshaped(vec![outer, inner])?)
}

fn transpose(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let perm = call.ints("perm")?;
    let permutation = perm
        .iter()
        .map(|value| axis(*value, x.rank()))
        .collect::<Result<Vec<_>, _>>()?;
    let mut sorted = permutation.clone();
    sorted.sort_unstable();
    if !sorted.into_iter().eq(0..x.rank()) {
        return Err(wrong(format!(
            "`perm` {perm:?} is not an order of {} axes",
            x.rank()
        )));
    }
    one(x.transposed(&permutation)?)
}

/// `axes` count in the result.
fn expand_dims(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let values = call.ints("axes")?;
    let rank = x.rank() + values.len();
    let axes = dims::axes(&values, rank).map_err(wrong)?;
    if axes.len() != values.len() {
        return Err(wrong(format!("`axes` {values:?} repeats an axis")));
    }
    let mut shape = x.shape().to_vec();
    for axis in axes {
        shape.insert(axis, 1);
    }
    one(x.reshaped(shape)?)
}

/// A named axis whose size is not 1 stays.
fn squeeze(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let dropped = match call.ints_if_any("axes")? {
        None => (0..x.rank()).collect(),
        Some(values) => dims::axes(&values, x.rank()).map_err(wrong)?,
    };
    let shape = x.shape().iter().enumerate();
    let shape = shape
        .filter(|(index, size)| !(dropped.contains(index) && **size == 1))
        .map(|(_, size)| *size)
        .collect();
    one(x.reshaped(shape)?)
}

/// Along `axes`, or along all. An axis that is named twice is reversed once.
fn reverse(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let reversed = match call.ints_if_any("axes")? {
        None => (0..x.rank()).collect(),
        Some(values) => dims::axes(&values, x.rank()).map_err(wrong)?,
    };
    if x.is_empty() {
        return one(x.clone());
    }
    let mut start = 0;
    let mut steps = steps(x.shape());
    for axis in reversed {
        start += (x.shape()[axis] as isize - 1) * steps[axis];
        steps[axis] = -steps[axis];
    }
    one(x.strided(x.shape().to_vec(), start, &steps)?)
}

/// The first `lengths[i]` elements along `seq_axis` of the i-th slice along `batch_axis` are
/// reversed; the two axes must differ, as in TensorFlow.
fn reverse_sequence(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let sequence = call.axis("seq_axis", 0, x.rank())?;
    let batch = call.axis("batch_axis", 0, x.rank())?;
    if sequence == batch {
        return Err(wrong("`seq_axis` and `batch_axis` are the same axis"));
    }
    let lengths = call.ints("lengths")?;
    let shape = x.shape();
    let (size, batches) = (shape[sequence], shape[batch]);
    if lengths.len() != batches {
        return Err(wrong(format!(
            "`lengths` has {} values for {batches} slices",
            lengths.len()
        )));
    }
    if let Some(index) = lengths.iter().find(|l| !(0..=size as i64).contains(*l)) {
        return Err(EvalError::OutOfRange {
            parameter: "lengths",
            index: *index,
            lowest: 0,
            highest: size as i64,
        });
    }
    if x.is_empty() {
        return one(x.clone());
    }
    let (outer, inner) = shape.split_at(sequence.max(batch) + 1);
    let run: usize = inner.iter().product();
    let steps = strides(outer);
    let starts: Vec<usize> = (0..outer.iter().product())
        .map(|row| {
            let place = row / steps[sequence] % size;
            let length = lengths[row / steps[batch] % batches] as usize;
            let source = if place < length {
                length - 1 - place
            } else {
                place
            };
            (row - place * steps[sequence] + source * steps[sequence]) * run
        })
        .collect();
    one(x.runs(shape.to_vec(), run, &starts)?)
}

/// Which part of a channel's number is the place inside of the block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChannelOrder {
    /// The high part, as TensorFlow orders `depth_to_space`.
    BlockFirst,
    /// The low part, as PyTorch orders `PixelShuffle`.
    BlockLast,
}

/// The sizes of `x`.
#[derive(Clone, Copy)]
struct Image {
    batch: usize,
    channels: usize,
    height: usize,
    width: usize,
}

impl Image {
    fn of(x: &Tensor) -> Result<Self, EvalError> {
        match *x.shape() {
            [batch, channels, height, width] => Ok(Self {
                batch,
                channels,
                height,
                width,
            }),
            _ => Err(wrong(format!("`x` has rank {}, not 4", x.rank()))),
        }
    }
}

/// A block size.
fn block(call: &Call, parameter: &'static str) -> Result<usize, EvalError> {
    let block = call.int(parameter)?;
    u16::try_from(block)
        .ok()
        .filter(|block| *block > 0)
        .map(usize::from)
        .ok_or_else(|| wrong(format!("`{parameter}` is {block}")))
}

/// The quotient, if there is no rest.
fn parts(size: usize, count: usize, what: &str) -> Result<usize, EvalError> {
    if count > 0 && size.is_multiple_of(count) {
        Ok(size / count)
    } else {
        Err(wrong(format!("{what} {size} is no multiple of {count}")))
    }
}

fn to_space(call: &Call, parameter: &'static str, order: ChannelOrder) -> Results {
    let x = call.tensor("x")?;
    let Image {
        batch,
        channels,
        height,
        width,
    } = Image::of(x)?;
    let block = block(call, parameter)?;
    let channels = parts(channels, block * block, "the number of channels")?;
    let split = match order {
        ChannelOrder::BlockFirst => x
            .reshaped(vec![batch, block, block, channels, height, width])?
            .transposed(&[0, 3, 4, 1, 5, 2])?,
        ChannelOrder::BlockLast => x
            .reshaped(vec![batch, channels, block, block, height, width])?
            .transposed(&[0, 1, 4, 2, 5, 3])?,
    };
    one(split.reshaped(vec![
        batch,
        channels,
        height.saturating_mul(block),
        width.saturating_mul(block),
    ])?)
}

fn to_depth(call: &Call, parameter: &'static str, order: ChannelOrder) -> Results {
    let x = call.tensor("x")?;
    let Image {
        batch,
        channels,
        height,
        width,
    } = Image::of(x)?;
    let block = block(call, parameter)?;
    let rows = parts(height, block, "the height")?;
    let columns = parts(width, block, "the width")?;
    let permutation = match order {
        ChannelOrder::BlockFirst => [0, 3, 5, 1, 2, 4],
        ChannelOrder::BlockLast => [0, 1, 3, 5, 2, 4],
    };
    let split = x.reshaped(vec![batch, channels, rows, block, columns, block])?;
    let channels = channels.saturating_mul(block * block);
    one(split
        .transposed(&permutation)?
        .reshaped(vec![batch, channels, rows, columns])?)
}

/// The two block sizes, and amounts before and after for the height and for the width.
fn block_shape(
    call: &Call,
    parameter: &'static str,
) -> Result<([usize; 2], [usize; 4]), EvalError> {
    let sizes = |parameter: &'static str| -> Result<Vec<usize>, EvalError> {
        call.ints(parameter)?
            .iter()
            .map(|value| {
                u32::try_from(*value)
                    .map(|value| value as usize)
                    .map_err(|_| wrong(format!("`{parameter}` has {value}")))
            })
            .collect()
    };
    let block = <[usize; 2]>::try_from(sizes("block_shape")?);
    match (block, <[usize; 4]>::try_from(sizes(parameter)?)) {
        (Ok(block), Ok(amounts)) if !block.contains(&0) => Ok((block, amounts)),
        _ => Err(wrong(format!(
            "`block_shape` must hold two sizes and `{parameter}` two pairs"
        ))),
    }
}

/// The place inside of the block is the high part of the result's batch number, as in TensorFlow.
fn space_to_batch(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let ([high, wide], [top, bottom, left, right]) = block_shape(call, "paddings")?;
    let image = Image::of(x)?;
    let (batch, channels) = (image.batch, image.channels);
    let height = image.height.saturating_add(top + bottom);
    let width = image.width.saturating_add(left + right);
    call.room_for(&[batch, channels, height, width])?;
    let rows = parts(height, high, "the padded height")?;
    let columns = parts(width, wide, "the padded width")?;
    let zero = Tensor::zeros(x.dtype(), Vec::new());
    let split = x
        .padded(
            &[(0, 0), (0, 0), (top, bottom), (left, right)],
            Border::Constant(&zero),
        )?
        .reshaped(vec![batch, channels, rows, high, columns, wide])?
        .transposed(&[3, 5, 0, 1, 2, 4])?;
    let batch = batch.saturating_mul(high).saturating_mul(wide);
    one(split.reshaped(vec![batch, channels, rows, columns])?)
}

/// The inverse of [`space_to_batch`].
fn batch_to_space(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let ([high, wide], [top, bottom, left, right]) = block_shape(call, "crops")?;
    let image = Image::of(x)?;
    let channels = image.channels;
    let batch = parts(image.batch, high.saturating_mul(wide), "the batch")?;
    let height = image.height.saturating_mul(high);
    let width = image.width.saturating_mul(wide);
    let whole = x
        .reshaped(vec![high, wide, batch, channels, image.height, image.width])?
        .transposed(&[2, 3, 4, 0, 5, 1])?
        .reshaped(vec![batch, channels, height, width])?;
    let cropped = |size: usize, before: usize, after: usize| {
        size.checked_sub(before + after).ok_or_else(|| {
            wrong(format!(
                "`crops` {before} and {after} leave nothing of {size}"
            ))
        })
    };
    let rows = cropped(height, top, bottom)?;
    let columns = cropped(width, left, right)?;
    let steps = steps(whole.shape());
    let start = top as isize * steps[2] + left as isize * steps[3];
    one(whole.strided(vec![batch, channels, rows, columns], start, &steps)?)
}
