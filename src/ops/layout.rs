//! Changes of shape that keep every element: `reshape`, `transpose`, `expand_dims`, `squeeze`, and
//! the exchanges between channels, batch and space.

use crate::ir::Opset;
use crate::ir::types::{Dim, TensorType};
use crate::ops::dims::{
    Types, axes, axis, check_rank, dim, one, product, signed, signed_dim, unknown,
};
use crate::ops::elementwise::like_x;
use crate::ops::infer::{InferError, Rule};
use crate::ops::view::{Argument, OpView, Stop};

pub(super) use evaluate::kernel;

mod evaluate;

pub(super) fn rule(op_type: &str) -> Option<Rule> {
    Some(match op_type {
        "reshape" => reshape,
        "reshape_like" => reshape_like,
        "flatten2d" => flatten2d,
        "transpose" => transpose,
        "expand_dims" => expand_dims,
        "squeeze" => squeeze,
        "reverse" | "reverse_sequence" => like_x,
        "depth_to_space" => |view| to_space(view, "block_size"),
        "pixel_shuffle" => |view| to_space(view, "upscale_factor"),
        "space_to_depth" => |view| to_depth(view, "block_size"),
        "pixel_unshuffle" => |view| to_depth(view, "downscale_factor"),
        "space_to_batch" => space_to_batch,
        "batch_to_space" => batch_to_space,
        _ => return None,
    })
}

/// `shape` may hold one −1 (what remains) and zeros (the size of `x` there). Up to iOS 16 zeros need
/// a shape as long as the rank of `x`; since iOS 17 they count from the last dimension, and one that
/// `x` does not have is 1.
fn reshape(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    let Some(shape) = view.ints("shape").known() else {
        return one(x.dtype, unknown(view.length("shape")?));
    };
    let aligned = view.opset >= Opset::CoreML7;
    one(x.dtype, reshaped(&x.dims, &shape, aligned)?)
}

/// The dimensions of a tensor of dimensions `from` after `reshape` with a known `shape`, whose
/// zeros count from the last dimension if `aligned`.
fn reshaped(from: &[Dim], shape: &[i64], aligned: bool) -> Result<Vec<Dim>, InferError> {
    let invalid = |reason: &str| InferError::Invalid {
        reason: format!("`shape` {shape:?} {reason}"),
    };
    if shape.iter().filter(|size| **size == -1).count() > 1 {
        return Err(invalid("has more than one -1"));
    }
    let mut dims = shape
        .iter()
        .enumerate()
        .map(|(index, size)| match *size {
            -1 => Ok(Dim::UNKNOWN),
            0 if aligned || shape.len() == from.len() => Ok((index + from.len())
                .checked_sub(shape.len())
                .and_then(|source| from.get(source).copied())
                .unwrap_or(Dim::Known(1))),
            0 => Err(invalid("has a 0 but not the rank of `x`")),
            size => u64::try_from(size)
                .map(Dim::Known)
                .map_err(|_| invalid("has a negative size")),
        })
        .collect::<Result<Vec<_>, _>>()?;
    let Some(elements) = product(from) else {
        return Ok(dims);
    };
    let rest: Vec<_> = (0..dims.len()).filter(|i| shape[*i] != -1).collect();
    let others = product(&rest.iter().map(|i| dims[*i]).collect::<Vec<_>>());
    match (shape.iter().position(|size| *size == -1), others) {
        (_, None) | (Some(_), Some(0)) => {}
        (Some(open), Some(others)) if elements % others == 0 => {
            dims[open] = Dim::Known(elements / others);
        }
        (None, Some(others)) if elements == others => {}
        _ => {
            return Err(invalid(&format!(
                "does not fit the {elements} elements of `x`"
            )));
        }
    }
    Ok(dims)
}

/// Joins parts of the shapes of `ref_tensors`: from `begins` to `ends`, or to the end where
/// `end_masks` says so.
fn reshape_like(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    let references = view.all_ranked("ref_tensors")?;
    let begins = scalars(view, "begins", references.len())?;
    let ends = scalars(view, "ends", references.len())?;
    let end_masks = scalars(view, "end_masks", references.len())?;
    let mut dims = Vec::new();
    for (index, reference) in references.iter().enumerate() {
        let rank = reference.dims.len() as i64;
        let bound = |value: i64| {
            let value = if value < 0 {
                value.saturating_add(rank)
            } else {
                value
            };
            value.clamp(0, rank) as usize
        };
        let begin = bound(begins[index]);
        let end = if end_masks[index] != 0 {
            reference.dims.len()
        } else {
            bound(ends[index])
        };
        dims.extend_from_slice(reference.dims.get(begin..end).unwrap_or(&[]));
    }
    if let (Some(have), Some(want)) = (product(&x.dims), product(&dims))
        && have != want
    {
        return Err(InferError::Invalid {
            reason: format!("`ref_tensors` give {want} elements but `x` has {have}"),
        }
        .into());
    }
    one(x.dtype, dims)
}

/// The integers (or bools) of a variadic parameter of scalars, or of one list or tuple of them.
fn scalars(view: &OpView, parameter: &'static str, count: usize) -> Result<Vec<i64>, Stop> {
    let mut values = Vec::new();
    for operand in view.operands(parameter) {
        let constant = operand.constant.ok_or(Stop::NoRule)?;
        values.extend(crate::ops::constant::integers(constant).ok_or(Stop::NoRule)?);
    }
    if values.len() == count {
        Ok(values)
    } else {
        Err(InferError::Length {
            parameter,
            length: values.len(),
            expected: count,
        }
        .into())
    }
}

fn flatten2d(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    let rank = x.dims.len() as i64;
    let value = view.int("axis").required_or(1)?;
    // As a Python slice bound: counts from the end if negative, and is clamped.
    let index = if value < 0 {
        value.saturating_add(rank)
    } else {
        value
    };
    let (outer, inner) = x.dims.split_at(index.clamp(0, rank) as usize);
    one(x.dtype, vec![dim(product(outer)), dim(product(inner))])
}

fn transpose(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    let rank = x.dims.len();
    let perm = view.ints("perm").required("perm")?;
    if perm.len() != rank {
        return Err(InferError::Length {
            parameter: "perm",
            length: perm.len(),
            expected: rank,
        }
        .into());
    }
    let sources = perm
        .iter()
        .map(|value| axis(*value, rank))
        .collect::<Result<Vec<_>, _>>()?;
    if axes(&perm, rank)?.len() != rank {
        return Err(InferError::Invalid {
            reason: format!("`perm` {perm:?} repeats an axis"),
        }
        .into());
    }
    one(x.dtype, sources.into_iter().map(|i| x.dims[i]).collect())
}

/// `axes` count in the result.
fn expand_dims(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    let values = view.ints("axes").required("axes")?;
    let rank = x.dims.len() + values.len();
    let new = axes(&values, rank)?;
    if new.len() != values.len() {
        return Err(InferError::Invalid {
            reason: format!("`axes` {values:?} repeats an axis"),
        }
        .into());
    }
    let mut old = x.dims.iter().copied();
    let dims = (0..rank)
        .map(|index| {
            if new.contains(&index) {
                Dim::Known(1)
            } else {
                old.next().unwrap_or(Dim::UNKNOWN)
            }
        })
        .collect();
    one(x.dtype, dims)
}

/// Drops the named axes of size 1, or all of them. A named axis of another size stays; whether one
/// of unknown size does cannot be said, so coremltools' answer is taken: it stays.
fn squeeze(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    let rank = x.dims.len();
    let dropped = match view.ints("axes") {
        Argument::Missing => (0..rank).collect(),
        argument => axes(&argument.required("axes")?, rank)?,
    };
    let dims = x
        .dims
        .iter()
        .enumerate()
        .filter(|(index, dim)| !(dropped.contains(index) && **dim == Dim::Known(1)))
        .map(|(_, dim)| *dim)
        .collect();
    one(x.dtype, dims)
}

fn times(dim: Dim, factor: i64) -> Result<Dim, Stop> {
    signed_dim(
        signed(dim).and_then(|size| size.checked_mul(factor)),
        "the block",
    )
}

/// The quotient, rounded down as in coremltools.
fn divided(dim: Dim, divisor: i64) -> Result<Dim, Stop> {
    signed_dim(
        signed(dim).and_then(|size| size.checked_div(divisor)),
        "the block",
    )
}

/// The type of `x` \[N, C, H, W\], and a block size.
fn blocks<'a>(view: &OpView<'a>, parameter: &'static str) -> Result<(&'a TensorType, i64), Stop> {
    let x = view.ranked("x")?;
    check_rank("x", &x.dims, 4..=4, "4")?;
    let block = view.int(parameter).required(parameter)?;
    if (1..=i64::from(u16::MAX)).contains(&block) {
        Ok((x, block))
    } else {
        Err(InferError::Invalid {
            reason: format!("`{parameter}` is {block}"),
        }
        .into())
    }
}

/// Channels become blocks of pixels.
fn to_space(view: &OpView, parameter: &'static str) -> Types {
    let (x, block) = blocks(view, parameter)?;
    let dims = vec![
        x.dims[0],
        divided(x.dims[1], block * block)?,
        times(x.dims[2], block)?,
        times(x.dims[3], block)?,
    ];
    one(x.dtype, dims)
}

/// Blocks of pixels become channels.
fn to_depth(view: &OpView, parameter: &'static str) -> Types {
    let (x, block) = blocks(view, parameter)?;
    let dims = vec![
        x.dims[0],
        times(x.dims[1], block * block)?,
        divided(x.dims[2], block)?,
        divided(x.dims[3], block)?,
    ];
    one(x.dtype, dims)
}

/// `x` \[N, C, H, W\], the two block sizes, and before and after amounts for H and then for W.
struct Batched<'a> {
    x: &'a TensorType,
    block: [i64; 2],
    amounts: [i64; 4],
}

fn batched<'a>(view: &OpView<'a>, parameter: &'static str) -> Result<Batched<'a>, Stop> {
    let x = view.ranked("x")?;
    check_rank("x", &x.dims, 4..=4, "4")?;
    let block = view.ints("block_shape").required("block_shape")?;
    let amounts = view.ints(parameter).required(parameter)?;
    match (<[i64; 2]>::try_from(block), <[i64; 4]>::try_from(amounts)) {
        (Ok(block), Ok(amounts))
            if block[0] > 0 && block[1] > 0 && block[0].checked_mul(block[1]).is_some() =>
        {
            Ok(Batched { x, block, amounts })
        }
        _ => Err(InferError::Invalid {
            reason: format!("`block_shape` must hold two sizes and `{parameter}` two pairs"),
        }
        .into()),
    }
}

fn space_to_batch(view: &OpView) -> Types {
    let Batched { x, block, amounts } = batched(view, "paddings")?;
    let mut dims = vec![times(x.dims[0], block[0] * block[1])?, x.dims[1]];
    for index in 0..2 {
        let padded = signed(x.dims[2 + index]).and_then(|size| {
            size.checked_add(amounts[2 * index])?
                .checked_add(amounts[2 * index + 1])
        });
        dims.push(signed_dim(
            padded.map(|size| size.div_euclid(block[index])),
            "`paddings`",
        )?);
    }
    one(x.dtype, dims)
}

fn batch_to_space(view: &OpView) -> Types {
    let Batched { x, block, amounts } = batched(view, "crops")?;
    let mut dims = vec![divided(x.dims[0], block[0] * block[1])?, x.dims[1]];
    for index in 0..2 {
        let cropped = signed(x.dims[2 + index]).and_then(|size| {
            size.checked_mul(block[index])?
                .checked_sub(amounts[2 * index])?
                .checked_sub(amounts[2 * index + 1])
        });
        dims.push(signed_dim(cropped, "`crops`")?);
    }
    one(x.dtype, dims)
}
