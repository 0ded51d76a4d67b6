//! Evaluation of `reduce_argmax` and `reduce_argmin`.

use rayon::prelude::*;

use super::fold::Reduced;
use crate::ir::types::DType;
use crate::ops::evaluate::{Call, EvalError, Results, in_parameter, one};
use crate::tensor::Tensor;

/// Index along `axis` of the best element: of the first one if several are equal, which the
/// documentation leaves open; of the first NaN if there is one, as in numpy.
pub(super) fn argument(
    call: &Call,
    better: impl Fn(f32, f32) -> bool + Sync,
    int_better: impl Fn(i64, i64) -> bool + Sync,
) -> Results {
    let x = call.tensor("x")?;
    let axis = call.axis("axis", -1, x.rank())?;
    let (x, layout) = Reduced::new(x, &[axis], call.bool_or("keep_dims", false)?)?;
    if layout.count == 0 && layout.results() > 0 {
        return Err(EvalError::invalid("there is no element to choose from"));
    }
    call.room_for(&layout.shape)?;
    let word = call.string_or("output_dtype", "int32")?;
    let dtype = DType::from_word(word)
        .filter(|dtype| dtype.is_int())
        .ok_or_else(|| {
            EvalError::invalid(format!("`output_dtype` \"{word}\" is no integer type"))
        })?;
    let indices = if x.dtype().is_float() {
        best(&x.as_floats()?, &layout, |x, best| {
            better(x, best) || (x.is_nan() && !best.is_nan())
        })
    } else {
        best(
            &x.as_ints().map_err(in_parameter("x"))?,
            &layout,
            int_better,
        )
    };
    one(Tensor::ints(dtype, layout.shape, indices))
}

/// For each row the index of the element that no earlier one equals and none is better than.
fn best<T: Copy + Send + Sync>(
    x: &[T],
    layout: &Reduced,
    better: impl Fn(T, T) -> bool + Sync,
) -> Vec<i64> {
    let (count, behind) = (layout.count, layout.behind);
    let mut out = vec![0i64; layout.results()];
    if out.is_empty() {
        return out;
    }
    out.par_chunks_mut(behind)
        .enumerate()
        .for_each(|(outer, out)| {
            let x = &x[outer * count * behind..(outer + 1) * count * behind];
            if let [out] = out {
                let mut best = x[0];
                for (index, x) in x.iter().enumerate() {
                    if better(*x, best) {
                        (best, *out) = (*x, index as i64);
                    }
                }
                return;
            }
            let mut best = x[..behind].to_vec();
            for (index, x) in x.chunks_exact(behind).enumerate() {
                for ((out, best), x) in out.iter_mut().zip(&mut best).zip(x) {
                    if better(*x, *best) {
                        (*best, *out) = (*x, index as i64);
                    }
                }
            }
        });
    out
}
