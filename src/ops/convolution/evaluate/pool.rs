//! `avg_pool`, `max_pool`, `l2_pool`: one number for the elements of each window.

use rayon::prelude::*;

use super::windows::{Geometry, Settings};
use crate::ops::evaluate::{Call, EvalError, Results, one};
use crate::tensor::Tensor;

/// How a window becomes a number.
#[derive(Clone, Copy)]
enum Pool {
    /// The largest element, NaN if there is one; padding is no element. A window of padding alone
    /// gives −∞.
    Max,
    /// The sum divided by the number of elements; whether padding counts as elements is said for
    /// each window by the counts. A window without elements gives 0.
    Average,
    /// The root of the sum of squares.
    L2,
}

/// x \[N, C, …\]. Sums are made in fp64 and rounded to fp32 once.
pub(super) fn pool(call: &Call) -> Results {
    let pool = match call.op_type {
        "max_pool" => Pool::Max,
        "avg_pool" => Pool::Average,
        _ => Pool::L2,
    };
    let x = call.tensor("x")?;
    let &[batch, channels, ref sizes @ ..] = x.shape() else {
        return Err(EvalError::invalid("`x` has a rank below 2"));
    };
    let kernel = call
        .ints("kernel_sizes")?
        .iter()
        .map(|size| usize::try_from(*size).ok())
        .collect::<Option<Vec<_>>>()
        .filter(|kernel| kernel.len() == sizes.len() && (1..=3).contains(&sizes.len()))
        .ok_or_else(|| {
            EvalError::invalid(format!(
                "`kernel_sizes` does not fit `x` of rank {}",
                x.rank()
            ))
        })?;
    let ceil_mode = call.bool_or("ceil_mode", false)?;
    let geometry = Settings::new(call, &kernel)?.over(sizes, &kernel, ceil_mode)?;
    let mut shape = vec![batch, channels];
    shape.extend(geometry.windows(sizes.len()));
    let mut result = vec![0f32; call.room_for(&shape)?];
    let elements = x.as_floats()?;
    if result.is_empty() {
        return one(Tensor::floats(x.dtype(), shape, result));
    }
    let counts = match pool {
        Pool::Average => {
            let exclude = call.bool_or("exclude_padding_from_average", false)?;
            counts(&geometry, !exclude)
        }
        Pool::Max | Pool::L2 => Vec::new(),
    };
    let positions: usize = geometry.windows(3).iter().product();
    let plane: usize = sizes.iter().product();
    result.par_chunks_mut(positions).enumerate().for_each_init(
        Vec::new,
        |sums, (channel, result)| {
            let plane = elements.get(channel * plane..(channel + 1) * plane);
            let plane = plane.unwrap_or_default();
            if let Pool::Max = pool {
                largest(&geometry, plane, result);
                return;
            }
            sums.clear();
            sums.resize(positions, 0f64);
            if let Pool::Average = pool {
                add_up(&geometry, plane, sums, |value| value);
                for ((value, sum), count) in result.iter_mut().zip(&*sums).zip(&counts) {
                    *value = (sum / f64::from(*count).max(1.0)) as f32;
                }
            } else {
                add_up(&geometry, plane, sums, |value| value * value);
                for (value, sum) in result.iter_mut().zip(&*sums) {
                    *value = sum.sqrt() as f32;
                }
            }
        },
    );
    one(Tensor::floats(x.dtype(), shape, result))
}

/// The number of elements of each window, with padding or without.
fn counts(geometry: &Geometry, with_padding: bool) -> Vec<f32> {
    let [outer, middle, inner] = &geometry.axes;
    let inner = inner.hits(with_padding);
    let middle = middle.hits(with_padding);
    let mut counts = Vec::new();
    for a in outer.hits(with_padding) {
        for b in &middle {
            counts.extend(inner.iter().map(|c| (a as f32) * (*b as f32) * (*c as f32)));
        }
    }
    counts
}

fn add_up(geometry: &Geometry, plane: &[f32], sums: &mut [f64], of: impl Fn(f64) -> f64) {
    let stride = geometry.axes[2].stride;
    geometry.each_tap(|_, tap| {
        geometry.each_run(tap, |window, source, count| {
            let values = plane[source..].iter().step_by(stride);
            for (sum, value) in sums[window..window + count].iter_mut().zip(values) {
                *sum += of(f64::from(*value));
            }
        });
    });
}

fn largest(geometry: &Geometry, plane: &[f32], result: &mut [f32]) {
    let stride = geometry.axes[2].stride;
    result.fill(f32::NEG_INFINITY);
    geometry.each_tap(|_, tap| {
        geometry.each_run(tap, |window, source, count| {
            let values = plane[source..].iter().step_by(stride);
            for (most, value) in result[window..window + count].iter_mut().zip(values) {
                if *value > *most || value.is_nan() {
                    *most = *value;
                }
            }
        });
    });
}
