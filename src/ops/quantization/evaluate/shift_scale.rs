//! Scales and offsets for each block of a weight, dense or sparse.

use rayon::prelude::*;

use super::BLOCK;
use super::grid::Grid;
use super::sparse::Mask;
use crate::ops::evaluate::{Call, Datum, EvalError, Results, one};
use crate::tensor::{Tensor, TensorError};

/// The scale and the offset of each block of a grid.
struct Blocks {
    grid: Grid,
    scales: Vec<f32>,
    offsets: Vec<f32>,
}

impl Blocks {
    fn new(call: &Call, shape: &[usize]) -> Result<Self, EvalError> {
        let scale = call.tensor("scale")?;
        let offsets = match call.tensor_if_any("offset")? {
            None => vec![0.0; scale.len()],
            Some(offset) if offset.shape() == scale.shape() => {
                let mut values = vec![0.0; offset.len()];
                offset.read_floats(0, &mut values)?;
                values
            }
            Some(offset) => {
                return Err(EvalError::invalid(format!(
                    "`offset` has the shape {:?}, `scale` {:?}",
                    offset.shape(),
                    scale.shape()
                )));
            }
        };
        Ok(Self {
            grid: Grid::new(shape, scale.shape())?,
            scales: scale.as_floats()?.into_owned(),
            offsets,
        })
    }
}

/// scale · (data − offset), of the type of the scale.
pub(super) fn blockwise_shift_scale(call: &Call) -> Results {
    let data = call.tensor("data")?;
    let blocks = Blocks::new(call, data.shape())?;
    let mut result = vec![0f32; call.room_for(data.shape())?];
    result.par_chunks_mut(BLOCK).enumerate().try_for_each(
        |(index, result)| -> Result<(), TensorError> {
            data.read_floats(index * BLOCK, result)?;
            blocks
                .grid
                .each_run(index * BLOCK, result.len(), |first, count, block| {
                    let (scale, offset) = (blocks.scales[block], blocks.offsets[block]);
                    for value in &mut result[first..first + count] {
                        *value = scale * (*value - offset);
                    }
                });
            Ok(())
        },
    )?;
    let dtype = call.tensor("scale")?.dtype();
    one(Tensor::floats(dtype, data.shape().to_vec(), result))
}

/// The same for the elements that a mask leaves; the mask is the first result.
pub(super) fn sparse_blockwise_shift_scale(call: &Call) -> Results {
    let (mask, nonzero) = (call.tensor("data_mask")?, call.tensor("nonzero_data")?);
    let blocks = Blocks::new(call, mask.shape())?;
    call.room_for(mask.shape())?;
    let set = Mask::read(mask, nonzero.len())?;
    let mut values = vec![0f32; call.room_for(nonzero.shape())?];
    nonzero.read_floats(0, &mut values)?;
    let mut next = values.iter_mut();
    blocks.grid.each_run(0, mask.len(), |first, count, block| {
        let (scale, offset) = (blocks.scales[block], blocks.offsets[block]);
        let set = set.bits[first..first + count].iter().filter(|bit| **bit);
        for (_, value) in set.zip(&mut next) {
            *value = scale * (*value - offset);
        }
    });
    let dtype = call.tensor("scale")?.dtype();
    let values = Tensor::floats(dtype, nonzero.shape().to_vec(), values);
    Ok(vec![Datum::Tensor(mask.clone()), Datum::Tensor(values)])
}
