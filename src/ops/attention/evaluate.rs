//! Evaluation of `scaled_dot_product_attention`.

use std::borrow::Cow;

use rayon::prelude::*;

use crate::ir::types::DType;
use crate::ops::activation::softmax_row;
use crate::ops::evaluate::{Call, EvalError, Kernel, Results, in_parameter, one};
use crate::tensor::{
    Matrix, Output, Tensor, TensorError, broadcast_shapes, broadcast_strides, elements, gemm,
};

#[cfg(test)]
mod tests;

pub(in crate::ops) fn kernel(op_type: &str) -> Option<Kernel> {
    (op_type == "scaled_dot_product_attention").then_some(attention as Kernel)
}

/// Scores that one task holds at a time, as long as one row has no more.
const SCORES: usize = 1 << 20;

/// softmax(query · keyᵀ / √E + mask) · value for query \[…, L, E\], key \[…, S, E\] and value
/// \[…, S, EV\], of which the leading dimensions broadcast together. Scores and weights are fp32 also
/// where the tensors are fp16; the products may overflow as the numerics say, the first one before it
/// is scaled.
///
/// A mask broadcasts to \[…, L, S\]; true keeps a score, false makes it −∞, a float is added. As
/// IEEE 754 has it, a query whose scores are all −∞ gives NaN. Without any key the result is 0.
fn attention(call: &Call) -> Results {
    let (query, key, value) = (
        call.tensor("query")?,
        call.tensor("key")?,
        call.tensor("value")?,
    );
    let sizes = Sizes::of(query, key, value)?;
    let mut shape = sizes.lead.clone();
    shape.extend([sizes.length, sizes.source, sizes.inner]);
    if elements(&shape).is_none() {
        return Err(TensorError::TooLarge(shape).into());
    }
    let mut shape = sizes.lead.clone();
    shape.extend([sizes.length, sizes.outer]);
    let len = call.room_for(&shape)?;
    if len == 0 {
        return one(Tensor::floats(query.dtype(), shape, Vec::new()));
    }
    let mask = call
        .tensor_if_any("attn_mask")?
        .map(|mask| Mask::new(mask, &sizes))
        .transpose()?;
    let (queries, keys, values) = (
        Operand::new(query, &sizes.lead, "query")?,
        Operand::new(key, &sizes.lead, "key")?,
        Operand::new(value, &sizes.lead, "value")?,
    );
    let mut out = vec![0f32; len];
    let rows = (SCORES / sizes.source.max(1)).clamp(1, sizes.length);
    call.room_for(&[rows, sizes.source])?;
    let of_batch = |(batch, out): (usize, &mut [f32])| {
        let query = queries.matrix(batch, sizes.length, sizes.inner);
        let key = keys.matrix(batch, sizes.source, sizes.inner);
        let value = values.matrix(batch, sizes.source, sizes.outer);
        let mut scores = vec![0f32; rows * sizes.source];
        for (block, out) in out.chunks_mut(rows * sizes.outer).enumerate() {
            let first = block * rows;
            let rows = out.len() / sizes.outer;
            let scores = &mut scores[..rows * sizes.source];
            let query = Matrix::rows(
                &query[first * sizes.inner..(first + rows) * sizes.inner],
                rows,
                sizes.inner,
            );
            weights(call, &sizes, query, key, scores);
            for (row, scores) in scores.chunks_mut(sizes.source.max(1)).enumerate() {
                if let Some(mask) = &mask {
                    mask.apply(batch, first + row, scores);
                }
                softmax_row(scores);
            }
            gemm(
                Matrix::rows(scores, rows, sizes.source),
                Matrix::rows(value, sizes.source, sizes.outer),
                &mut Output {
                    data: out,
                    row_stride: sizes.outer,
                },
                false,
                call.accumulator_limit(),
            );
        }
    };
    out.par_chunks_mut(sizes.length * sizes.outer)
        .enumerate()
        .for_each(of_batch);
    one(Tensor::floats(query.dtype(), shape, out))
}

/// Writes query · keyᵀ / √E.
fn weights(call: &Call, sizes: &Sizes, query: Matrix<'_>, key: &[f32], scores: &mut [f32]) {
    gemm(
        query,
        Matrix::rows(key, sizes.source, sizes.inner).transposed(),
        &mut Output {
            data: scores,
            row_stride: sizes.source,
        },
        false,
        call.accumulator_limit(),
    );
    let root = (sizes.inner as f32).sqrt();
    for score in scores {
        *score /= root;
    }
}

/// The sizes that the shapes of query, key and value agree on.
struct Sizes {
    /// The leading dimensions.
    lead: Vec<usize>,
    /// L: queries.
    length: usize,
    /// S: keys, each with its value.
    source: usize,
    /// E: size of a query and of a key.
    inner: usize,
    /// EV: size of a value.
    outer: usize,
}

impl Sizes {
    fn of(query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Self, EvalError> {
        let (
            [query_lead @ .., length, inner],
            [key_lead @ .., source, key_inner],
            [value_lead @ .., value_source, outer],
        ) = (query.shape(), key.shape(), value.shape())
        else {
            return Err(EvalError::invalid(
                "`query`, `key` and `value` need a rank of 2 or more",
            ));
        };
        if inner != key_inner || source != value_source {
            return Err(EvalError::invalid(format!(
                "`query` {:?}, `key` {:?} and `value` {:?} do not fit each other",
                query.shape(),
                key.shape(),
                value.shape()
            )));
        }
        let lead = broadcast_shapes(&broadcast_shapes(query_lead, key_lead)?, value_lead)?;
        Ok(Self {
            lead,
            length: *length,
            source: *source,
            inner: *inner,
            outer: *outer,
        })
    }
}

/// Where the part of a tensor that belongs to each batch element starts.
fn starts(lead: &[usize], strides: &[isize]) -> Vec<usize> {
    let mut starts = vec![0usize];
    for (size, stride) in lead.iter().zip(strides) {
        starts = starts
            .iter()
            .flat_map(|start| (0..*size).map(move |index| start + index * *stride as usize))
            .collect();
    }
    starts
}

/// A stack of matrices, one for each batch element.
struct Operand<'a> {
    elements: Cow<'a, [f32]>,
    starts: Vec<usize>,
}

impl<'a> Operand<'a> {
    fn new(tensor: &'a Tensor, lead: &[usize], parameter: &'static str) -> Result<Self, EvalError> {
        let own = &tensor.shape()[..tensor.rank() - 2];
        let matrix: usize = tensor.shape()[tensor.rank() - 2..].iter().product();
        let strides: Vec<isize> = broadcast_strides(own, lead)?
            .into_iter()
            .map(|stride| stride * matrix as isize)
            .collect();
        Ok(Self {
            elements: tensor.as_floats().map_err(in_parameter(parameter))?,
            starts: starts(lead, &strides),
        })
    }

    fn matrix(&self, batch: usize, rows: usize, columns: usize) -> &[f32] {
        let start = self.starts[batch];
        &self.elements[start..start + rows * columns]
    }
}

/// A mask, read as \[…, L, S\].
struct Mask<'a> {
    elements: MaskElements<'a>,
    starts: Vec<usize>,
    row_stride: usize,
    stride: usize,
}

enum MaskElements<'a> {
    Keep(Cow<'a, [bool]>),
    Add(Cow<'a, [f32]>),
}

impl<'a> Mask<'a> {
    fn new(mask: &'a Tensor, sizes: &Sizes) -> Result<Self, EvalError> {
        let mut shape = sizes.lead.clone();
        shape.extend([sizes.length, sizes.source]);
        let wrong = in_parameter("attn_mask");
        let mut strides = broadcast_strides(mask.shape(), &shape).map_err(&wrong)?;
        let stride = strides.pop().unwrap_or_default() as usize;
        let row_stride = strides.pop().unwrap_or_default() as usize;
        let elements = if mask.dtype() == DType::Bool {
            MaskElements::Keep(mask.as_bools().map_err(wrong)?)
        } else {
            MaskElements::Add(mask.as_floats().map_err(wrong)?)
        };
        Ok(Self {
            elements,
            starts: starts(&sizes.lead, &strides),
            row_stride,
            stride,
        })
    }

    /// Masks a row of scores.
    fn apply(&self, batch: usize, row: usize, scores: &mut [f32]) {
        let start = self.starts[batch] + row * self.row_stride;
        match &self.elements {
            MaskElements::Keep(keep) => {
                for (index, score) in scores.iter_mut().enumerate() {
                    if !keep[start + index * self.stride] {
                        *score = f32::NEG_INFINITY;
                    }
                }
            }
            MaskElements::Add(add) => {
                for (index, score) in scores.iter_mut().enumerate() {
                    *score += add[start + index * self.stride];
                }
            }
        }
    }
}
