//! Parts of a tensor: `slice_by_index`, `slice_by_size`, `slice_update`, `sliding_windows`.

use crate::ir::types::{Dim, TensorType};
use crate::ops::dims::{Types, axis, one, same_shape, signed, signed_dim, unknown};
use crate::ops::infer::{InferError, Rule};
use crate::ops::view::{OpView, Stop};

pub(super) use evaluate::kernel;

mod evaluate;

pub(super) fn rule(op_type: &str) -> Option<Rule> {
    Some(match op_type {
        "slice_by_index" => slice_by_index,
        "slice_update" => slice_update,
        "slice_by_size" => slice_by_size,
        "sliding_windows" => sliding_windows,
        _ => return None,
    })
}

fn slice_by_index(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    one(x.dtype, sliced(view, x)?)
}

/// The type of `x`; `update` has the shape of the slice.
fn slice_update(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    let update = view.ranked("update")?;
    let slice = sliced(view, x)?;
    same_shape(("x", &slice), ("update", &update.dims))?;
    one(x.dtype, x.dims.clone())
}

/// One end of a slice.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bound {
    /// Masked: the slice goes as far as it can.
    Open,
    /// Computed when the model runs.
    Unknown,
    /// Counts from the end if negative.
    At(i64),
}

/// One axis of a slice.
struct Bounds {
    begin: Bound,
    end: Bound,
    stride: i64,
}

/// The shape of the slice of `x`.
fn sliced(view: &OpView, x: &TensorType) -> Result<Vec<Dim>, Stop> {
    let rank = x.dims.len();
    let expect = |parameter, length| {
        if length == rank {
            Ok(())
        } else {
            Err(InferError::Length {
                parameter,
                length,
                expected: rank,
            })
        }
    };
    for parameter in ["begin", "end"] {
        match view.length(parameter) {
            Ok(length) => expect(parameter, length)?,
            Err(Stop::NoRule) => {}
            Err(wrong) => return Err(wrong),
        }
    }
    let mask = |parameter| -> Result<Vec<bool>, Stop> {
        let mask = view.bools(parameter).required_or(vec![false; rank])?;
        expect(parameter, mask.len())?;
        Ok(mask)
    };
    let (begin_mask, end_mask) = (mask("begin_mask")?, mask("end_mask")?);
    let squeeze_mask = mask("squeeze_mask")?;
    let stride = view.ints("stride").required_or(vec![1; rank])?;
    expect("stride", stride.len())?;
    let begin = view.ints("begin").known();
    let end = view.ints("end").known();
    let bound = |masked: bool, values: &Option<Vec<i64>>, index: usize| {
        let value = values.as_ref().and_then(|values| values.get(index));
        match value {
            _ if masked => Bound::Open,
            None => Bound::Unknown,
            Some(value) => Bound::At(*value),
        }
    };
    let mut dims = Vec::new();
    for (index, size) in x.dims.iter().enumerate() {
        if squeeze_mask[index] {
            continue;
        }
        let bounds = Bounds {
            begin: bound(begin_mask[index], &begin, index),
            end: bound(end_mask[index], &end, index),
            stride: stride[index],
        };
        dims.push(sliced_dim(*size, &bounds, index)?);
    }
    Ok(dims)
}

fn sliced_dim(size: Dim, bounds: &Bounds, index: usize) -> Result<Dim, Stop> {
    let stride = bounds.stride;
    if stride == 0 {
        return Err(InferError::Invalid {
            reason: format!("`stride` is 0 at dimension {index}"),
        }
        .into());
    }
    let step = i128::from(stride.unsigned_abs());
    let count = |distance: i128| (distance.max(0) + step - 1) / step;
    let known = |count: i128| u64::try_from(count).map_or(Dim::UNKNOWN, Dim::Known);

    // Sizes that hold whatever the size of `x`: empty and one-element slices.
    if let (Bound::At(begin), Bound::At(end)) = (bounds.begin, bounds.end) {
        let rising = begin >= 0 && end >= 0 && stride > 0;
        let falling = begin < 0 && end < 0 && stride < 0;
        if rising || falling {
            let distance = (i128::from(end) - i128::from(begin)) * i128::from(stride.signum());
            if distance < 0 {
                return Err(InferError::Invalid {
                    reason: format!("slice from {begin} to {end} by {stride} at dimension {index}"),
                }
                .into());
            }
            if count(distance) <= 1 {
                return Ok(known(count(distance)));
            }
        }
    }
    if let (Bound::At(begin), Bound::Open) = (bounds.begin, bounds.end)
        && ((begin == 0 && stride < 0) || (begin == -1 && stride > 0))
    {
        return Ok(Dim::Known(1));
    }

    let Some(length) = signed(size).map(i128::from) else {
        return Ok(Dim::UNKNOWN);
    };
    if bounds.begin == Bound::Open && bounds.end == Bound::Open {
        return Ok(known(count(length)));
    }
    // coremltools takes any slice of a dimension of size 1 to be that one element.
    if length == 1 {
        return Ok(Dim::Known(1));
    }
    if bounds.begin == Bound::Unknown || bounds.end == Bound::Unknown {
        return Ok(Dim::UNKNOWN);
    }
    let bound = |bound: Bound| match bound {
        Bound::At(value) if value < 0 => Some((i128::from(value) + length).max(0)),
        Bound::At(value) => Some(i128::from(value)),
        Bound::Open | Bound::Unknown => None,
    };
    let (begin, end) = (bound(bounds.begin), bound(bounds.end));
    let distance = if stride > 0 {
        end.unwrap_or(length).min(length) - begin.unwrap_or(0)
    } else {
        begin.unwrap_or(length - 1).min(length - 1) - end.unwrap_or(-1)
    };
    Ok(known(count(distance)))
}

/// A size of −1 reaches to the end.
fn slice_by_size(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    let rank = x.dims.len();
    for parameter in ["begin", "size"] {
        let length = match view.length(parameter) {
            Err(Stop::NoRule) => continue,
            length => length?,
        };
        if length != rank {
            return Err(InferError::Length {
                parameter,
                length,
                expected: rank,
            }
            .into());
        }
    }
    let Some(size) = view.ints("size").known() else {
        return one(x.dtype, unknown(rank));
    };
    if size.len() != rank {
        return Err(InferError::Length {
            parameter: "size",
            length: size.len(),
            expected: rank,
        }
        .into());
    }
    let begin = view.ints("begin").known();
    let dims = x
        .dims
        .iter()
        .enumerate()
        .map(|(index, dim)| match size[index] {
            -1 => {
                let begin = begin.as_ref().and_then(|begin| begin.get(index).copied());
                let rest = match (signed(*dim), begin) {
                    (Some(length), Some(begin)) if begin < 0 => {
                        begin.checked_neg().filter(|count| *count <= length)
                    }
                    (Some(length), Some(begin)) => length.checked_sub(begin),
                    _ => None,
                };
                signed_dim(rest, "`begin`")
            }
            size => signed_dim(Some(size), "`size`"),
        })
        .collect::<Result<Vec<_>, _>>()?;
    one(x.dtype, dims)
}

/// Windows of `size` along an axis, each `stride` after the one before; the window's own axis
/// follows.
fn sliding_windows(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    let index = axis(view.int("axis").required("axis")?, x.dims.len())?;
    let size = view.int("size").required("size")?;
    let stride = view.int("stride").required_or(1)?;
    if size < 1 || stride < 1 {
        return Err(InferError::Invalid {
            reason: format!("`size` is {size} and `stride` is {stride}"),
        }
        .into());
    }
    let mut dims = x.dims.clone();
    let windows = signed(dims[index]).map(|length| (length - size).div_euclid(stride) + 1);
    dims[index] = signed_dim(windows, "`size`")?;
    dims.insert(index + 1, signed_dim(Some(size), "`size`")?);
    one(x.dtype, dims)
}
