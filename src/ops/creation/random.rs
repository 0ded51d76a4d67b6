//! Evaluation of the random ops.
//!
//! Core ML does not say which numbers a seed gives. Here a seed gives the same numbers in every run:
//! those of PCG64 (O'Neill 2014). A missing seed, or −1, takes one that differs from op to op but not
//! from run to run.

use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng as _, SeedableRng as _};

use super::evaluate::shape_of;
use crate::ir::types::DType;
use crate::ops::evaluate::{Call, EvalError, Results, one};
use crate::tensor::Tensor;

fn generator(call: &Call) -> Result<Pcg64, EvalError> {
    let seed = match call.int_or("seed", -1)? {
        -1 => call.seed,
        seed => seed as u64,
    };
    Ok(Pcg64::seed_from_u64(seed))
}

/// The element type that a parameter sets.
fn dtype_of(call: &Call, parameter: &'static str) -> Result<DType, EvalError> {
    let given = call.tensor_if_any(parameter)?.map(Tensor::dtype);
    Ok(given
        .or_else(|| call.result_dtype(0))
        .unwrap_or(DType::Float32))
}

/// A tensor of the argument `shape` whose elements `draw` gives.
fn drawn(call: &Call, dtype: DType, mut draw: impl FnMut(&mut Pcg64) -> f32) -> Results {
    let shape = shape_of(call)?;
    let count = call.room_for(&shape)?;
    let mut generator = generator(call)?;
    let values = (0..count).map(|_| draw(&mut generator)).collect();
    one(Tensor::floats(dtype, shape, values))
}

/// A number in \[0, 1).
fn unit(generator: &mut Pcg64) -> f64 {
    const BITS: u32 = f64::MANTISSA_DIGITS;
    (generator.next_u64() >> (64 - BITS)) as f64 / (1u64 << BITS) as f64
}

/// A number of the standard normal distribution, by the method of Box and Muller (1958).
fn standard_normal(generator: &mut Pcg64) -> f64 {
    // 1 − u is in (0, 1], so that its logarithm is finite.
    let radius = (-2.0 * (1.0 - unit(generator)).ln()).sqrt();
    radius * (std::f64::consts::TAU * unit(generator)).cos()
}

/// 1 with the probability `prob`, else 0.
pub(super) fn bernoulli(call: &Call) -> Results {
    let prob = call.float_or("prob", 0.5)?;
    if !(0.0..=1.0).contains(&prob) {
        return Err(EvalError::invalid(format!("`prob` is {prob}")));
    }
    let dtype = dtype_of(call, "prob")?;
    drawn(call, dtype, |generator| {
        f32::from(u8::from(unit(generator) < f64::from(prob)))
    })
}

pub(super) fn normal(call: &Call) -> Results {
    let (mean, deviation) = (call.float_or("mean", 0.0)?, call.float_or("stddev", 1.0)?);
    if !(mean.is_finite() && deviation.is_finite() && deviation >= 0.0) {
        return Err(EvalError::invalid(format!(
            "`mean` is {mean} and `stddev` is {deviation}"
        )));
    }
    let dtype = dtype_of(call, "mean")?;
    drawn(call, dtype, |generator| {
        (f64::from(mean) + f64::from(deviation) * standard_normal(generator)) as f32
    })
}

/// In \[low, high), before rounding to the element type; `low` if both are equal.
pub(super) fn uniform(call: &Call) -> Results {
    let (low, high) = (call.float_or("low", 0.0)?, call.float_or("high", 1.0)?);
    if !(low.is_finite() && high.is_finite() && low <= high) {
        return Err(EvalError::invalid(format!(
            "`low` is {low} and `high` is {high}"
        )));
    }
    let dtype = dtype_of(call, "low")?;
    let (from, width) = (f64::from(low), f64::from(high) - f64::from(low));
    drawn(call, dtype, |generator| {
        let number = (from + width * unit(generator)) as f32;
        if number < high || low == high {
            number
        } else {
            high.next_down().max(low)
        }
    })
}

/// Numbers of categories: `size` for each row of `x`, which holds their probabilities (times any
/// factor) or the logarithms of them.
pub(super) fn categorical(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let size = call.int_or("size", 1)?;
    let size =
        usize::try_from(size).map_err(|_| EvalError::invalid(format!("`size` is {size}")))?;
    let Some((categories, outer)) = x.shape().split_last() else {
        return Err(EvalError::invalid("`x` is a scalar"));
    };
    let logarithmic = match call.string_or("mode", "logits")? {
        "logits" => true,
        "probs" => false,
        other => {
            return Err(EvalError::invalid(format!(
                "there is no `mode` \"{other}\""
            )));
        }
    };
    let shape = [outer, &[size]].concat();
    let count = call.room_for(&shape)?;
    if count > 0 && *categories == 0 {
        return Err(EvalError::invalid("there is no category to draw"));
    }
    let mut generator = generator(call)?;
    let mut drawn = Vec::with_capacity(count);
    if count > 0 {
        let mut sums = vec![0f64; *categories];
        for row in x.as_floats()?.chunks_exact(*categories) {
            let highest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut total = 0f64;
            for (sum, value) in sums.iter_mut().zip(row) {
                let weight = if logarithmic {
                    (f64::from(*value) - f64::from(highest)).exp()
                } else {
                    f64::from(*value)
                };
                total += if weight >= 0.0 { weight } else { f64::NAN };
                *sum = total;
            }
            if !(total.is_finite() && total > 0.0) {
                return Err(EvalError::invalid("a row of `x` gives no probabilities"));
            }
            for _ in 0..size {
                let place = unit(&mut generator) * total;
                let index = sums.partition_point(|sum| *sum <= place);
                drawn.push(index.min(categories - 1) as f32);
            }
        }
    }
    one(Tensor::floats(x.dtype(), shape, drawn))
}
