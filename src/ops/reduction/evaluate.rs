//! Evaluation of the reductions.
//!
//! Sums and products of floats are kept in fp64 and rounded once to fp32. Those of integers are
//! exact modulo 2^64 and brought to the width of their type afterwards; what is not an integer then
//! (a mean, a norm, a logarithm) loses its fraction. Sums of rows run in a fixed number of
//! interleaved partial sums, so that the number of threads never changes a result. A reduction over
//! no axis at all (`axes` empty) has one element in each sum.

use std::num::FpCategory;

use half::f16;

use crate::ops::evaluate::{Call, EvalError, Kernel, Results, in_parameter, one};
use crate::tensor::{Element, Tensor};

mod argument;
mod fold;

#[cfg(test)]
mod tests;

use fold::{Fold, Reduced};

/// States that take in the elements of a row in turn, where their order is free.
const LANES: usize = 8;

pub(in crate::ops) fn kernel(op_type: &str) -> Option<Kernel> {
    Some(match op_type {
        "reduce_argmax" => |call| argument::argument(call, |x, best| x > best, |x, best| x > best),
        "reduce_argmin" => |call| argument::argument(call, |x, best| x < best, |x, best| x < best),
        "reduce_l1_norm" => l1_norm,
        "reduce_l2_norm" => l2_norm,
        "reduce_log_sum" => log_sum,
        "reduce_log_sum_exp" => log_sum_exp,
        "reduce_max" => |call| extreme(call, |x, best| x > best, |x, best| x > best),
        "reduce_mean" => |call| total(call, true),
        "reduce_min" => |call| extreme(call, |x, best| x < best, |x, best| x < best),
        "reduce_prod" => product,
        "reduce_sum" => |call| total(call, false),
        "reduce_sum_square" => |call| sum(call, |x| x * x, square, |sum| sum, |sum| sum),
        _ => return None,
    })
}

/// `x` with the axes to reduce brought into one place, and the shape of the result.
fn reduced(call: &Call) -> Result<(Tensor, Reduced), EvalError> {
    let x = call.tensor("x")?;
    let axes = match call.ints_if_any("axes")? {
        None => (0..x.rank()).collect(),
        Some(axes) => axes
            .iter()
            .map(|axis| crate::tensor::axis(*axis, x.rank()).map_err(in_parameter("axes")))
            .collect::<Result<Vec<_>, _>>()?,
    };
    let (x, layout) = Reduced::new(x, &axes, call.bool_or("keep_dims", false)?)?;
    call.room_for(&layout.shape)?;
    Ok((x, layout))
}

fn made<T: Element>(x: &Tensor, layout: &Reduced, elements: Vec<T>) -> Results {
    one(T::make(x.dtype(), layout.shape.clone(), elements))
}

/// A function of the sum of a term of each element, for floats and for integers.
fn sum(
    call: &Call,
    term: impl Fn(f64) -> f64 + Sync,
    int_term: impl Fn(i64) -> i64 + Sync,
    finish: impl Fn(f64) -> f64 + Sync,
    int_finish: impl Fn(i64) -> i64 + Sync,
) -> Results {
    let (x, layout) = reduced(call)?;
    if x.dtype().is_float() {
        let fold = Fold {
            start: 0f64,
            step: |sum, x: f32| sum + term(f64::from(x)),
            merge: |a, b| a + b,
            finish: |sum| finish(sum) as f32,
        };
        return made(
            &x,
            &layout,
            fold.over::<LANES, _, _>(&x.as_floats()?, &layout),
        );
    }
    let fold = Fold {
        start: 0i64,
        step: |sum: i64, x: i64| sum.wrapping_add(int_term(x)),
        merge: i64::wrapping_add,
        finish: int_finish,
    };
    let ints = x.as_ints().map_err(in_parameter("x"))?;
    made(&x, &layout, fold.over::<LANES, _, _>(&ints, &layout))
}

fn l1_norm(call: &Call) -> Results {
    sum(call, f64::abs, i64::wrapping_abs, |sum| sum, |sum| sum)
}

fn l2_norm(call: &Call) -> Results {
    let int_root = |sum: i64| (sum as f64).sqrt() as i64;
    sum(call, |x| x * x, square, f64::sqrt, int_root)
}

fn log_sum(call: &Call) -> Results {
    sum(call, |x| x, |x| x, f64::ln, |sum| (sum as f64).ln() as i64)
}

fn square(x: i64) -> i64 {
    x.wrapping_mul(x)
}

/// `reduce_sum`, or `reduce_mean`. Where the numerics keep half sums, the running sum of an fp16
/// tensor is rounded to fp16 after each addition, in row-major order, and the mean is the quotient of
/// that sum. The mean of no element is NaN, or an error for integers.
fn total(call: &Call, mean: bool) -> Results {
    let (x, layout) = reduced(call)?;
    let count = layout.count;
    let numerics = call.numerics;
    if numerics.half_sums && numerics.is_half(x.dtype()) {
        let divisor = if mean { count as f32 } else { 1.0 };
        let fold = Fold {
            start: 0f32,
            step: |sum, x: f32| half(sum + x, numerics.flush_subnormals),
            merge: |sum, _| sum,
            finish: |sum| sum / divisor,
        };
        return made(&x, &layout, fold.over::<1, _, _>(&x.as_floats()?, &layout));
    }
    if !mean {
        return sum(call, |x| x, |x| x, |sum| sum, |sum| sum);
    }
    if x.dtype().is_int() && count == 0 && layout.results() > 0 {
        return Err(EvalError::DivisionByZero);
    }
    let (divisor, int_divisor) = (count as f64, count as i64);
    sum(
        call,
        |x| x,
        |x| x,
        |sum| sum / divisor,
        |sum| sum.checked_div(int_divisor).unwrap_or(0),
    )
}

/// The nearest fp16; a zero of the same sign for a subnormal one if `flush`.
fn half(x: f32, flush: bool) -> f32 {
    let half = f16::from_f32(x);
    if flush && half.classify() == FpCategory::Subnormal {
        return 0f32.copysign(x);
    }
    half.to_f32()
}

/// The greatest or the least element; NaN if one is.
fn extreme(
    call: &Call,
    better: impl Fn(f32, f32) -> bool + Sync,
    int_better: impl Fn(i64, i64) -> bool + Sync,
) -> Results {
    let (x, layout) = reduced(call)?;
    if layout.count == 0 && layout.results() > 0 {
        return Err(EvalError::invalid("there is no element to choose from"));
    }
    if x.dtype().is_float() {
        let pick = |best: f32, x: f32| {
            if better(x, best) || x.is_nan() {
                x
            } else {
                best
            }
        };
        let fold = Fold {
            start: if better(1.0, 0.0) {
                f32::NEG_INFINITY
            } else {
                f32::INFINITY
            },
            step: pick,
            merge: pick,
            finish: |best| best,
        };
        return made(
            &x,
            &layout,
            fold.over::<LANES, _, _>(&x.as_floats()?, &layout),
        );
    }
    let pick = |best: i64, x: i64| if int_better(x, best) { x } else { best };
    let fold = Fold {
        start: if int_better(1, 0) { i64::MIN } else { i64::MAX },
        step: pick,
        merge: pick,
        finish: |best| best,
    };
    let ints = x.as_ints().map_err(in_parameter("x"))?;
    made(&x, &layout, fold.over::<LANES, _, _>(&ints, &layout))
}

fn product(call: &Call) -> Results {
    let (x, layout) = reduced(call)?;
    if x.dtype().is_float() {
        let fold = Fold {
            start: 1f64,
            step: |product, x: f32| product * f64::from(x),
            merge: |a, b| a * b,
            finish: |product| product as f32,
        };
        return made(
            &x,
            &layout,
            fold.over::<LANES, _, _>(&x.as_floats()?, &layout),
        );
    }
    let fold = Fold {
        start: 1i64,
        step: i64::wrapping_mul,
        merge: i64::wrapping_mul,
        finish: |product| product,
    };
    let ints = x.as_ints().map_err(in_parameter("x"))?;
    made(&x, &layout, fold.over::<LANES, _, _>(&ints, &layout))
}

/// log Σ exp(x) as g + log Σ exp(x − g) around the greatest element g, so that it never overflows.
/// An infinite g is the result itself: −∞ if all elements are that, where coremltools' folding gives
/// NaN.
fn log_sum_exp(call: &Call) -> Results {
    /// The greatest element so far, and the sum of the exponentials around it.
    type State = (f64, f64);
    fn merge((greatest, sum): State, (other, others): State) -> State {
        if greatest.is_nan() || other.is_nan() {
            (f64::NAN, f64::NAN)
        } else if other > greatest {
            (other, sum * (greatest - other).exp() + others)
        } else if greatest.is_infinite() {
            (greatest, 1.0)
        } else {
            (greatest, sum + others * (other - greatest).exp())
        }
    }
    fn finish((greatest, sum): State) -> f64 {
        if greatest.is_infinite() {
            greatest
        } else {
            greatest + sum.ln()
        }
    }
    const START: State = (f64::NEG_INFINITY, 0.0);
    let (x, layout) = reduced(call)?;
    if x.dtype().is_float() {
        let fold = Fold {
            start: START,
            step: |state, x: f32| merge(state, (f64::from(x), 1.0)),
            merge,
            finish: |state| finish(state) as f32,
        };
        return made(&x, &layout, fold.over::<1, _, _>(&x.as_floats()?, &layout));
    }
    let fold = Fold {
        start: START,
        step: |state, x: i64| merge(state, (x as f64, 1.0)),
        merge,
        finish: |state| finish(state) as i64,
    };
    let ints = x.as_ints().map_err(in_parameter("x"))?;
    made(&x, &layout, fold.over::<1, _, _>(&ints, &layout))
}
