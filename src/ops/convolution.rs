//! Convolutions and pools: windows that slide over the spatial dimensions, those behind batch and
//! channels.

use crate::ir::types::{Dim, TensorType};
use crate::ops::dims::{Types, check_rank, one, same, signed, signed_dim};
use crate::ops::infer::{InferError, Rule};
use crate::ops::view::{Argument, OpView, Stop};

pub(super) use evaluate::kernel;

mod evaluate;

pub(super) fn rule(op_type: &str) -> Option<Rule> {
    Some(match op_type {
        "conv" | "conv_quantized" => conv,
        "conv_transpose" => conv_transpose,
        "avg_pool" | "max_pool" | "l2_pool" => pool,
        _ => return None,
    })
}

/// How `pad_type` pads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PadType {
    Valid,
    Same,
    Custom,
}

/// The window's way over the spatial dimensions.
struct Windows {
    pad_type: PadType,
    strides: Vec<i64>,
    /// Before and after, for each spatial dimension.
    pad: Vec<i64>,
    /// Size of the window with its dilation, where known.
    kernel: Vec<Option<i64>>,
}

/// A rank-1 argument with `length` elements, none below `least`.
fn numbers(
    view: &OpView,
    parameter: &'static str,
    length: usize,
    default: i64,
    least: i64,
) -> Result<Vec<i64>, Stop> {
    let values = view.ints(parameter).required_or(vec![default; length])?;
    if values.len() != length {
        return Err(InferError::Length {
            parameter,
            length: values.len(),
            expected: length,
        }
        .into());
    }
    if values.iter().any(|value| *value < least) {
        return Err(InferError::Invalid {
            reason: format!("`{parameter}` is {values:?}"),
        }
        .into());
    }
    Ok(values)
}

fn windows(view: &OpView, kernel: &[Option<i64>]) -> Result<Windows, Stop> {
    let spatial = kernel.len();
    let word = view.string("pad_type").required_or("valid")?;
    let pad_type = match word.to_ascii_lowercase().as_str() {
        "valid" => PadType::Valid,
        "same" | "same_lower" => PadType::Same,
        "custom" => PadType::Custom,
        _ => {
            return Err(InferError::Invalid {
                reason: format!("`pad_type` \"{word}\" is none of valid, same, same_lower, custom"),
            }
            .into());
        }
    };
    let pad = match pad_type {
        PadType::Custom => numbers(view, "pad", 2 * spatial, 0, i64::MIN)?,
        _ => vec![0; 2 * spatial],
    };
    let strides = numbers(view, "strides", spatial, 1, 1)?;
    let dilations = numbers(view, "dilations", spatial, 1, 1)?;
    let kernel = kernel
        .iter()
        .zip(&dilations)
        .map(|(size, dilation)| {
            size.and_then(|size| size.checked_sub(1)?.checked_mul(*dilation)?.checked_add(1))
        })
        .collect();
    Ok(Windows {
        pad_type,
        strides,
        pad,
        kernel,
    })
}

impl Windows {
    /// What is added to the spatial dimension before and behind it together.
    fn padding(&self, index: usize, size: i64, kernel: i64) -> Option<i64> {
        let stride = self.strides[index];
        match self.pad_type {
            PadType::Valid => Some(0),
            PadType::Custom => self.pad[2 * index].checked_add(self.pad[2 * index + 1]),
            PadType::Same => {
                let steps = size.checked_add(stride - 1)? / stride;
                let padding = steps
                    .checked_mul(stride)?
                    .checked_sub(size)?
                    .checked_add(kernel)?
                    .checked_sub(stride)?;
                Some(padding.max(0))
            }
        }
    }

    /// Number of windows along a spatial dimension.
    fn count(&self, index: usize, size: Dim, ceil_mode: bool) -> Result<Dim, Stop> {
        let stride = self.strides[index];
        let (Some(size), Some(kernel)) = (signed(size), self.kernel[index]) else {
            return Ok(Dim::UNKNOWN);
        };
        let count = || -> Option<i64> {
            let padding = self.padding(index, size, kernel)?;
            let room = size.checked_add(padding)?.checked_sub(kernel)?;
            if !ceil_mode {
                return room.div_euclid(stride).checked_add(1);
            }
            let count = room
                .checked_add(stride - 1)?
                .div_euclid(stride)
                .checked_add(1)?;
            // The last window must begin inside the input or the padding before it, which is half
            // of the padding: `ceil_mode` wants it symmetric.
            let start = count.checked_sub(1)?.checked_mul(stride)?.checked_mul(2)?;
            let limit = size.checked_mul(2)?.checked_add(padding)?;
            Some(if padding > 0 && start >= limit {
                count - 1
            } else {
                count
            })
        };
        match count() {
            Some(count) if count <= 0 => Err(InferError::Invalid {
                reason: format!(
                    "the window of {kernel} does not fit into {size} at spatial dimension {index}"
                ),
            }
            .into()),
            count => signed_dim(count, "the window"),
        }
    }
}

/// `x`'s batch, channels and spatial dimensions.
fn spatial(x: &TensorType) -> Result<(Dim, Dim, &[Dim]), Stop> {
    check_rank("x", &x.dims, 3..=5, "3, 4 or 5")?;
    match x.dims.as_slice() {
        [batch, channels, spatial @ ..] => Ok((*batch, *channels, spatial)),
        _ => Err(Stop::NoRule),
    }
}

/// A `weight` of the rank of `x`: its first two dimensions and the kernel's sizes.
fn weight(view: &OpView, rank: usize) -> Result<(Dim, Dim, Vec<Option<i64>>), Stop> {
    let ty = view.ranked("weight")?;
    check_rank("weight", &ty.dims, rank..=rank, "that of `x`")?;
    match ty.dims.as_slice() {
        [first, second, kernel @ ..] => Ok((
            *first,
            *second,
            kernel.iter().map(|size| signed(*size)).collect(),
        )),
        _ => Err(Stop::NoRule),
    }
}

fn groups(view: &OpView) -> Result<i64, Stop> {
    let groups = view.int("groups").required_or(1)?;
    if groups < 1 {
        return Err(InferError::Invalid {
            reason: format!("`groups` is {groups}"),
        }
        .into());
    }
    Ok(groups)
}

fn check_bias(view: &OpView, channels: Dim) -> Result<(), Stop> {
    if let Some(bias) = view.ranked_if_any("bias")? {
        check_rank("bias", &bias.dims, 1..=1, "1")?;
        if let Some(length) = bias.dims.first() {
            same(0, ("weight", channels), ("bias", *length))?;
        }
    }
    Ok(())
}

/// x \[N, Cin, …\], weight \[Cout, Cin / groups, …\].
fn conv(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    let (batch, channels, sizes) = spatial(x)?;
    let (out, per_group, kernel) = weight(view, x.dims.len())?;
    let groups = groups(view)?;
    if let (Some(channels), Some(per_group)) = (signed(channels), signed(per_group))
        && per_group.checked_mul(groups) != Some(channels)
    {
        return Err(InferError::Invalid {
            reason: format!(
                "`x` has {channels} channels, `weight` has {per_group} for each of {groups} groups"
            ),
        }
        .into());
    }
    check_bias(view, out)?;
    let windows = windows(view, &kernel)?;
    let mut dims = vec![batch, out];
    for (index, size) in sizes.iter().enumerate() {
        dims.push(windows.count(index, *size, false)?);
    }
    one(x.dtype, dims)
}

/// x \[N, Cin, …\], weight \[Cin, Cout / groups, …\].
fn conv_transpose(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    let (batch, channels, sizes) = spatial(x)?;
    let (input, per_group, kernel) = weight(view, x.dims.len())?;
    same(1, ("x", channels), ("weight", input))?;
    let out = signed_dim(
        signed(per_group).and_then(|size| size.checked_mul(groups(view).ok()?)),
        "`groups`",
    )?;
    check_bias(view, out)?;
    match view.ints("output_shape") {
        Argument::Missing => {}
        argument => {
            let shape = argument.required("output_shape")?;
            if shape.len() != x.dims.len() {
                return Err(InferError::Length {
                    parameter: "output_shape",
                    length: shape.len(),
                    expected: x.dims.len(),
                }
                .into());
            }
            let dims = shape
                .iter()
                .map(|size| signed_dim(Some(*size), "`output_shape`"))
                .collect::<Result<Vec<_>, _>>()?;
            return one(x.dtype, dims);
        }
    }
    let windows = windows(view, &kernel)?;
    let mut dims = vec![batch, out];
    for (index, size) in sizes.iter().enumerate() {
        let stride = windows.strides[index];
        let result = signed(*size).and_then(|size| match windows.pad_type {
            PadType::Same => size.checked_mul(stride),
            PadType::Valid | PadType::Custom => size
                .checked_sub(1)?
                .checked_mul(stride)?
                .checked_add(windows.kernel[index]?)?
                .checked_sub(windows.pad[2 * index])?
                .checked_sub(windows.pad[2 * index + 1]),
        });
        dims.push(signed_dim(result, "`pad`")?);
    }
    one(x.dtype, dims)
}

fn pool(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    let (batch, channels, sizes) = spatial(x)?;
    let kernel: Vec<_> = view
        .ints("kernel_sizes")
        .required("kernel_sizes")?
        .into_iter()
        .map(Some)
        .collect();
    if kernel.len() != sizes.len() {
        return Err(InferError::Length {
            parameter: "kernel_sizes",
            length: kernel.len(),
            expected: sizes.len(),
        }
        .into());
    }
    let windows = windows(view, &kernel)?;
    let ceil_mode = view.bool_or("ceil_mode", false).ok_or(Stop::NoRule)?;
    let mut dims = vec![batch, channels];
    for (index, size) in sizes.iter().enumerate() {
        dims.push(windows.count(index, *size, ceil_mode)?);
    }
    one(x.dtype, dims)
}
