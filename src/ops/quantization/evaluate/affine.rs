//! `quantize` and `dequantize`: one scale and zero point for all elements, or for each index of an
//! axis.

use std::borrow::Cow;

use rayon::prelude::*;

use super::BLOCK;
use super::grid::Grid;
use crate::ir::types::DType;
use crate::ops::evaluate::{Call, EvalError, Results, one};
use crate::tensor::{Tensor, TensorError};

/// Scales and zero points, one of each for each block of a grid.
struct Parameters {
    grid: Grid,
    scales: Vec<f32>,
    zero_points: Vec<f32>,
}

impl Parameters {
    fn new(call: &Call, shape: &[usize]) -> Result<Self, EvalError> {
        let scales = call.floats("scale")?;
        let zero_points: Cow<[f32]> = match call.tensor_if_any("zero_point")? {
            None => Cow::Owned(vec![0.0]),
            Some(tensor) => {
                let mut values = vec![0.0; tensor.len()];
                tensor.read_floats(0, &mut values)?;
                Cow::Owned(values)
            }
        };
        let (grid, blocks) = if scales.len() == 1 && zero_points.len() == 1 {
            (Grid::new(shape, &vec![1; shape.len()])?, 1)
        } else {
            let axis = call.axis("axis", 0, shape.len())?;
            (Grid::along(shape, axis)?, shape[axis])
        };
        let spread = |parameter: &str, values: &[f32]| match values {
            [value] => Ok(vec![*value; blocks]),
            _ if values.len() == blocks => Ok(values.to_vec()),
            _ => Err(EvalError::invalid(format!(
                "`{parameter}` has {} elements for an axis of size {blocks}",
                values.len()
            ))),
        };
        Ok(Self {
            grid,
            scales: spread("scale", &scales)?,
            zero_points: spread("zero_point", &zero_points)?,
        })
    }
}

/// Rounds x / scale half to even, adds the zero point, and clips to the range of the type. NaN
/// becomes 0, which nothing says: it is what a saturating conversion gives.
pub(super) fn quantize(call: &Call) -> Results {
    let input = call.tensor("input")?;
    let word = call.string_or("output_dtype", "int8")?;
    let (dtype, lowest, highest) = match DType::from_word(word) {
        Some(DType::Int8) => (DType::Int8, -128.0, 127.0),
        Some(DType::UInt8) => (DType::UInt8, 0.0, 255.0),
        _ => {
            return Err(EvalError::invalid(format!(
                "`output_dtype` is \"{word}\", not int8 or uint8"
            )));
        }
    };
    let parameters = Parameters::new(call, input.shape())?;
    let elements = input.as_floats()?;
    let mut codes = vec![0i64; call.room_for(input.shape())?];
    codes
        .par_chunks_mut(BLOCK)
        .zip(elements.par_chunks(BLOCK))
        .enumerate()
        .for_each(|(index, (codes, elements))| {
            parameters
                .grid
                .each_run(index * BLOCK, codes.len(), |first, count, block| {
                    let (scale, zero) = (parameters.scales[block], parameters.zero_points[block]);
                    let run = first..first + count;
                    for (code, value) in codes[run.clone()].iter_mut().zip(&elements[run]) {
                        let rounded = (value / scale).round_ties_even() + zero;
                        *code = rounded.clamp(lowest, highest) as i64;
                    }
                });
        });
    one(Tensor::ints(dtype, input.shape().to_vec(), codes))
}

/// scale · (q − zero point), of the type of the scale.
pub(super) fn dequantize(call: &Call, parameter: &'static str) -> Results {
    let input = call.tensor(parameter)?;
    let parameters = Parameters::new(call, input.shape())?;
    let mut result = vec![0f32; call.room_for(input.shape())?];
    result.par_chunks_mut(BLOCK).enumerate().try_for_each(
        |(index, result)| -> Result<(), TensorError> {
            input.read_floats(index * BLOCK, result)?;
            parameters
                .grid
                .each_run(index * BLOCK, result.len(), |first, count, block| {
                    let (scale, zero) = (parameters.scales[block], parameters.zero_points[block]);
                    for value in &mut result[first..first + count] {
                        *value = scale * (*value - zero);
                    }
                });
            Ok(())
        },
    )?;
    let dtype = call.tensor("scale")?.dtype();
    one(Tensor::floats(dtype, input.shape().to_vec(), result))
}
