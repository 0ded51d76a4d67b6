//! Sparse weights: a mask, and the elements where it is set.

use super::spelled_shape;
use crate::ir::Opset;
use crate::ir::types::DType;
use crate::ops::evaluate::{Call, EvalError, Results, one};
use crate::tensor::{Element, Tensor};

/// A mask in row-major order.
pub(super) struct Mask {
    /// Where an element is.
    pub(super) bits: Vec<bool>,
}

impl Mask {
    /// Reads a mask that must be set as often as there are elements.
    pub(super) fn read(mask: &Tensor, elements: usize) -> Result<Self, EvalError> {
        let mut codes = vec![0; mask.len()];
        mask.read_codes(0, &mut codes)?;
        let bits: Vec<bool> = codes.into_iter().map(|code| code != 0).collect();
        let set = bits.iter().filter(|bit| **bit).count();
        if set == elements {
            Ok(Self { bits })
        } else {
            Err(EvalError::invalid(format!(
                "the mask is set {set} times, but there are {elements} elements"
            )))
        }
    }
}

/// The elements where the mask says, zeros elsewhere. Up to iOS 17 the mask is bytes, its bits
/// from the low one up, and `shape` gives the shape.
pub(super) fn sparse_to_dense(call: &Call) -> Results {
    let nonzero = call.tensor("nonzero_data")?;
    let mut mask = call.tensor("mask")?.clone();
    if call.opset < Opset::CoreML8 {
        let shape = spelled_shape(call)?;
        call.room_for(&shape)?;
        mask = mask.bytes_as(DType::UInt1, shape)?;
    }
    call.room_for(mask.shape())?;
    let shape = mask.shape().to_vec();
    let mask = Mask::read(&mask, nonzero.len())?;
    one(if nonzero.dtype().is_float() {
        spread::<f32>(&mask, nonzero, shape, 0.0)?
    } else {
        spread::<i64>(&mask, nonzero, shape, 0)?
    })
}

fn spread<T: Element + Copy>(
    mask: &Mask,
    nonzero: &Tensor,
    shape: Vec<usize>,
    zero: T,
) -> Result<Tensor, EvalError> {
    let elements = T::read(nonzero)?;
    let mut next = elements.iter();
    let dense = mask.bits.iter().map(|bit| {
        let element = if *bit { next.next() } else { None };
        element.copied().unwrap_or(zero)
    });
    Ok(T::make(nonzero.dtype(), shape, dense.collect()))
}
