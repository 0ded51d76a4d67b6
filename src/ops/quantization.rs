//! Quantization and compressed weights: `quantize`, `dequantize`, `constexpr_*`.

use crate::ir::Opset;
use crate::ir::types::{DType, Dim};
use crate::ops::dims::{Types, axis, one, signed, signed_dim, tensor};
use crate::ops::infer::{InferError, Rule};
use crate::ops::view::{OpView, Stop};

pub(super) use evaluate::kernel;

mod evaluate;

pub(super) fn rule(op_type: &str) -> Option<Rule> {
    Some(match op_type {
        "quantize" => quantize,
        "dequantize" => dequantize,
        "constexpr_affine_dequantize" => affine_dequantize,
        "constexpr_cast" => constexpr_cast,
        "constexpr_blockwise_shift_scale" => blockwise_shift_scale,
        "constexpr_lut_to_dense" => lut_to_dense,
        "constexpr_lut_to_sparse" => lut_to_sparse,
        "constexpr_sparse_blockwise_shift_scale" => sparse_blockwise_shift_scale,
        "constexpr_sparse_to_dense" => sparse_to_dense,
        _ => return None,
    })
}

fn quantize(view: &OpView) -> Types {
    let input = view.ranked("input")?;
    let dtype = named_dtype(view, "output_dtype", &[DType::Int8, DType::UInt8])?;
    if let Some(zero_point) = view.ranked_if_any("zero_point")?
        && zero_point.dtype != dtype
    {
        return Err(InferError::DTypes {
            left: ("output_dtype", dtype),
            right: ("zero_point", zero_point.dtype),
        }
        .into());
    }
    check_per_channel(view)?;
    one(dtype, input.dims.clone())
}

fn dequantize(view: &OpView) -> Types {
    let input = view.ranked("input")?;
    check_per_channel(view)?;
    one(view.ranked("scale")?.dtype, input.dims.clone())
}

/// `scale` and `zero_point` are scalars, or have one element for each index of `axis`.
fn check_per_channel(view: &OpView) -> Result<(), Stop> {
    let input = view.ranked("input")?;
    for parameter in ["scale", "zero_point"] {
        let Some(ty) = view.ranked_if_any(parameter)? else {
            continue;
        };
        match ty.dims.as_slice() {
            [] => {}
            [length] => {
                if let Some(value) = view.int("axis").known() {
                    let index = axis(value, input.dims.len())?;
                    crate::ops::dims::same(
                        index,
                        ("input", input.dims[index]),
                        (parameter, *length),
                    )?;
                }
            }
            dims => {
                return Err(InferError::Rank {
                    parameter,
                    rank: dims.len(),
                    expected: "0 or 1",
                }
                .into());
            }
        }
    }
    Ok(())
}

/// The type that a string parameter names, one of those allowed.
fn named_dtype(view: &OpView, parameter: &'static str, allowed: &[DType]) -> Result<DType, Stop> {
    let word = view.string(parameter).required(parameter)?;
    DType::from_word(word)
        .filter(|dtype| allowed.contains(dtype))
        .ok_or_else(|| {
            InferError::Invalid {
                reason: format!("`{parameter}` \"{word}\" is not possible here"),
            }
            .into()
        })
}

fn affine_dequantize(view: &OpView) -> Types {
    let data = view.ranked("quantized_data")?;
    if let Some(value) = view.int("axis").known() {
        axis(value, data.dims.len())?;
    }
    one(view.ranked("scale")?.dtype, data.dims.clone())
}

fn constexpr_cast(view: &OpView) -> Types {
    let source = view.ranked("source_val")?;
    one(
        named_dtype(view, "output_dtype", &[DType::Float32])?,
        source.dims.clone(),
    )
}

fn blockwise_shift_scale(view: &OpView) -> Types {
    let (data, scale) = (view.ranked("data")?, view.ranked("scale")?);
    check_blocks(("data", &data.dims), ("scale", &scale.dims))?;
    if let Some(offset) = view.ranked_if_any("offset")? {
        crate::ops::dims::same_shape(("scale", &scale.dims), ("offset", &offset.dims))?;
    }
    one(scale.dtype, data.dims.clone())
}

/// Each dimension of the data is a multiple of the number of blocks along it.
fn check_blocks(
    data: (&'static str, &[Dim]),
    scale: (&'static str, &[Dim]),
) -> Result<(), InferError> {
    if data.1.len() != scale.1.len() {
        return Err(InferError::Ranks {
            left: (data.0, data.1.len()),
            right: (scale.0, scale.1.len()),
        });
    }
    for (dimension, (size, blocks)) in data.1.iter().zip(scale.1).enumerate() {
        if let (Some(size), Some(blocks)) = (size.size(), blocks.size())
            && (blocks == 0 || size % blocks != 0)
        {
            return Err(InferError::Sizes {
                dimension,
                left: (data.0, size),
                right: (scale.0, blocks),
            });
        }
    }
    Ok(())
}

/// The shape that the older ops spell in `shape`.
fn spelled(view: &OpView) -> Result<Vec<Dim>, Stop> {
    view.ints("shape")
        .required("shape")?
        .iter()
        .map(|size| signed_dim(Some(*size), "`shape`"))
        .collect()
}

/// Multiplies the vector axis by the length of the vectors of `lut`, its last dimension.
fn palettized(view: &OpView, indices: &[Dim]) -> Result<Vec<Dim>, Stop> {
    let vector = vector_size(view)?;
    let mut dims = indices.to_vec();
    if vector > 1 {
        let value = view.int("vector_axis").required("vector_axis")?;
        let index = axis(value, dims.len())?;
        dims[index] = signed_dim(
            signed(dims[index]).and_then(|size| size.checked_mul(vector)),
            "`lut`",
        )?;
    }
    Ok(dims)
}

fn vector_size(view: &OpView) -> Result<i64, Stop> {
    let lut = view.ranked("lut")?;
    lut.dims
        .last()
        .copied()
        .and_then(signed)
        .ok_or(Stop::NoRule)
}

fn lut_to_dense(view: &OpView) -> Types {
    let dtype = view.ranked("lut")?.dtype;
    if view.opset < Opset::CoreML8 {
        return one(dtype, spelled(view)?);
    }
    one(dtype, palettized(view, &view.ranked("indices")?.dims)?)
}

/// The mask and the elements that are not zero.
fn lut_to_sparse(view: &OpView) -> Types {
    let mask = view.ranked("indices_mask")?;
    let nonzero = view.ranked("indices_nonzero_data")?;
    let vector = vector_size(view)?;
    let elements = nonzero
        .dims
        .iter()
        .map(|dim| {
            signed_dim(
                signed(*dim).and_then(|size| size.checked_mul(vector)),
                "`lut`",
            )
        })
        .collect::<Result<Vec<_>, _>>()?;
    Ok(vec![
        tensor(mask.dtype, palettized(view, &mask.dims)?),
        tensor(view.ranked("lut")?.dtype, elements),
    ])
}

/// The mask and the elements that are not zero.
fn sparse_blockwise_shift_scale(view: &OpView) -> Types {
    let (mask, nonzero) = (view.ranked("data_mask")?, view.ranked("nonzero_data")?);
    let scale = view.ranked("scale")?;
    check_blocks(("data_mask", &mask.dims), ("scale", &scale.dims))?;
    Ok(vec![
        tensor(mask.dtype, mask.dims.clone()),
        tensor(scale.dtype, nonzero.dims.clone()),
    ])
}

fn sparse_to_dense(view: &OpView) -> Types {
    let dtype = view.ranked("nonzero_data")?.dtype;
    if view.opset < Opset::CoreML8 {
        return one(dtype, spelled(view)?);
    }
    one(dtype, view.ranked("mask")?.dims.clone())
}
