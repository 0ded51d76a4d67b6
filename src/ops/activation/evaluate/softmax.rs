//! Evaluation of `softmax`.

use rayon::prelude::*;

use crate::ops::evaluate::{Call, Results, in_parameter, one};
use crate::tensor::{Tensor, split_at_axis};

/// Tensors with fewer elements than this are not worth a second thread.
const PARALLEL_ELEMENTS: usize = 1 << 14;

/// e^(x − greatest) divided by the sum of these along an axis. The sum is kept in fp64. As IEEE 754
/// has it, everything along the axis is NaN if an element is NaN or +∞, or if all are −∞.
pub(super) fn softmax(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let axis = call.axis("axis", -1, x.rank())?;
    let (_, size, behind) = split_at_axis(x.shape(), axis);
    let mut elements = x.as_floats().map_err(in_parameter("x"))?.into_owned();
    if !elements.is_empty() {
        let block = size * behind;
        let one_block = |block: &mut [f32]| {
            if behind == 1 {
                softmax_row(block);
            } else {
                softmax_columns(block, behind);
            }
        };
        if elements.len() < PARALLEL_ELEMENTS {
            elements.chunks_mut(block).for_each(one_block);
        } else {
            elements.par_chunks_mut(block).for_each(one_block);
        }
    }
    one(Tensor::floats(x.dtype(), x.shape().to_vec(), elements))
}

/// The softmax of one row, in place.
pub(in crate::ops) fn softmax_row(row: &mut [f32]) {
    const LANES: usize = 8;
    let mut greatest = [f32::NEG_INFINITY; LANES];
    for chunk in row.chunks(LANES) {
        for (greatest, x) in greatest.iter_mut().zip(chunk) {
            if *x > *greatest {
                *greatest = *x;
            }
        }
    }
    let greatest = greatest.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0f64;
    for x in row.iter_mut() {
        *x = (*x - greatest).exp();
        sum += f64::from(*x);
    }
    let sum = sum as f32;
    for x in row {
        *x /= sum;
    }
}

/// The softmax of each column of a row-major matrix with rows of this length, in place.
fn softmax_columns(matrix: &mut [f32], length: usize) {
    let mut greatest = vec![f32::NEG_INFINITY; length];
    for row in matrix.chunks_exact(length) {
        for (greatest, x) in greatest.iter_mut().zip(row) {
            if *x > *greatest {
                *greatest = *x;
            }
        }
    }
    let mut sums = vec![0f64; length];
    for row in matrix.chunks_exact_mut(length) {
        for ((x, greatest), sum) in row.iter_mut().zip(&greatest).zip(&mut sums) {
            *x = (*x - greatest).exp();
            *sum += f64::from(*x);
        }
    }
    for row in matrix.chunks_exact_mut(length) {
        for (x, sum) in row.iter_mut().zip(&sums) {
            *x /= *sum as f32;
        }
    }
}
