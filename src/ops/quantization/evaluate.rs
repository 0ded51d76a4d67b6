//! Evaluation of quantization and of compressed weights.
//!
//! Codes of weights are read in blocks, straight from the weight file.

use crate::ir::types::DType;
use crate::ops::evaluate::{Call, EvalError, Kernel, Results, one};

mod affine;
mod grid;
mod palette;
mod shift_scale;
mod sparse;

/// Elements that are expanded at a time.
const BLOCK: usize = 1 << 14;

pub(in crate::ops) fn kernel(op_type: &str) -> Option<Kernel> {
    Some(match op_type {
        "quantize" => affine::quantize,
        "dequantize" => |call| affine::dequantize(call, "input"),
        "constexpr_affine_dequantize" => |call| affine::dequantize(call, "quantized_data"),
        "constexpr_cast" => constexpr_cast,
        "constexpr_blockwise_shift_scale" => shift_scale::blockwise_shift_scale,
        "constexpr_lut_to_dense" => palette::lut_to_dense,
        "constexpr_lut_to_sparse" => palette::lut_to_sparse,
        "constexpr_sparse_blockwise_shift_scale" => shift_scale::sparse_blockwise_shift_scale,
        "constexpr_sparse_to_dense" => sparse::sparse_to_dense,
        _ => return None,
    })
}

/// fp16 weights as fp32; nothing is rounded.
fn constexpr_cast(call: &Call) -> Results {
    let source = call.tensor("source_val")?.clone();
    let dtype = call.string_or("output_dtype", "fp32")?;
    match DType::from_word(dtype) {
        Some(dtype) if dtype.is_float() && source.dtype().is_float() => {
            one(source.unpacked()?.retyped(dtype))
        }
        _ => Err(EvalError::invalid(format!(
            "{} cannot be cast to \"{dtype}\"",
            source.dtype()
        ))),
    }
}

/// The shape that the older ops spell in `shape`.
fn spelled_shape(call: &Call) -> Result<Vec<usize>, EvalError> {
    let shape = call.ints("shape")?;
    shape
        .iter()
        .map(|size| usize::try_from(*size).ok())
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| EvalError::invalid(format!("`shape` is {shape:?}")))
}

#[cfg(test)]
mod tests;
