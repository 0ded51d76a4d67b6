//! `conv_transpose`: each element of `x` adds its multiple of the kernel to the result.

use rayon::prelude::*;

use super::blocks::{Block, blocks};
use super::windows::{Geometry, Settings};
use super::{add_bias, bias, groups};
use crate::ops::evaluate::{Call, EvalError, Results, one};
use crate::tensor::{Matrix, Output, Tensor, gemm};

/// x \[N, Cin, …\], weight \[Cin, Cout / groups, …\].
///
/// `output_shape` changes the size alone: the padding in front stays what `pad_type` makes it, and
/// what the kernel does not reach is zero. With "same" the padding is half of what the size takes
/// away, the smaller half in front.
pub(super) fn conv_transpose(call: &Call) -> Results {
    let (x, weight) = (call.tensor("x")?, call.tensor("weight")?);
    let (&[batch, inputs, ref sizes @ ..], &[weight_inputs, per_group, ref kernel @ ..]) =
        (x.shape(), weight.shape())
    else {
        return Err(EvalError::invalid("`x` or `weight` has a rank below 2"));
    };
    if sizes.is_empty() || sizes.len() > 3 || sizes.len() != kernel.len() {
        return Err(EvalError::invalid(format!(
            "`x` of rank {} and `weight` of rank {} cannot be convolved",
            x.rank(),
            weight.rank()
        )));
    }
    if inputs != weight_inputs {
        return Err(EvalError::invalid(format!(
            "`x` has {inputs} channels, `weight` is for {weight_inputs}"
        )));
    }
    let count = groups(call, inputs, 0)?;
    let outputs = per_group
        .checked_mul(count)
        .ok_or_else(|| EvalError::invalid("`groups` gives too many channels"))?;
    let asked = asked_shape(call, batch, outputs, sizes.len())?;
    let geometry = Settings::new(call, kernel)?.behind(sizes, kernel, asked.as_deref())?;
    let bias = bias(call, outputs)?;
    let mut shape = vec![batch, outputs];
    shape.extend(geometry.sizes(sizes.len()));
    let mut result = vec![0f32; call.room_for(&shape)?];
    let positions: usize = geometry.sizes(3).iter().product();
    let (elements, weights) = (x.as_floats()?, weight.as_floats()?);
    if !result.is_empty() && !elements.is_empty() && !weights.is_empty() {
        let job = Transposed {
            geometry: &geometry,
            inputs: inputs / count,
            outputs: per_group,
            limit: call.accumulator_limit(),
        };
        let inputs = job.inputs * sizes.iter().product::<usize>();
        let weight = job.inputs * job.outputs * geometry.kernel();
        result
            .par_chunks_mut(per_group * positions)
            .enumerate()
            .for_each(|(index, result)| {
                let group = index % count;
                let x = &elements[index * inputs..][..inputs];
                job.group(x, &weights[group * weight..][..weight], result);
            });
    }
    add_bias(bias.as_deref(), positions, &mut result);
    one(Tensor::floats(x.dtype(), shape, result))
}

/// The spatial sizes of `output_shape`, if it is given.
fn asked_shape(
    call: &Call,
    batch: usize,
    outputs: usize,
    spatial: usize,
) -> Result<Option<Vec<usize>>, EvalError> {
    let Some(shape) = call.ints_if_any("output_shape")? else {
        return Ok(None);
    };
    let sizes: Option<Vec<usize>> = shape.iter().map(|v| usize::try_from(*v).ok()).collect();
    match sizes.as_deref() {
        Some([n, channels, sizes @ ..])
            if *n == batch && *channels == outputs && sizes.len() == spatial =>
        {
            Ok(Some(sizes.to_vec()))
        }
        _ => Err(EvalError::invalid(format!(
            "`output_shape` is {shape:?}, for batch {batch} and {outputs} channels"
        ))),
    }
}

/// The transposed convolution of a group.
struct Transposed<'a> {
    geometry: &'a Geometry,
    /// Input channels of a group.
    inputs: usize,
    /// Output channels of a group.
    outputs: usize,
    limit: Option<f32>,
}

impl Transposed<'_> {
    /// One group of one image: a product gives what each element of `x` adds for each output channel
    /// and tap, in blocks of elements of `x`.
    ///
    /// With a limit, the sums over input channels and then those over taps have it.
    fn group(&self, x: &[f32], weights: &[f32], result: &mut [f32]) {
        let kernel = self.geometry.kernel();
        let windows: usize = self.geometry.windows(3).iter().product();
        let plane: usize = self.geometry.sizes(3).iter().product();
        let rows = self.outputs * kernel;
        // Row i of the weights is one input channel with all its output channels and taps.
        let weights = Matrix::rows(weights, self.inputs, rows).transposed();
        let mut scratch = Vec::new();
        for block in blocks(self.geometry, rows) {
            let columns = block.len();
            scratch.resize(rows * columns, 0f32);
            let x = Matrix {
                data: &x[block.start(self.geometry)..],
                rows: self.inputs,
                columns,
                row_stride: windows,
                column_stride: 1,
            };
            let mut out = Output {
                data: &mut scratch,
                row_stride: columns,
            };
            gemm(weights, x, &mut out, false, self.limit);
            result
                .par_chunks_mut(plane)
                .zip(scratch.par_chunks(kernel * columns))
                .for_each(|(result, addends)| self.scatter(&block, addends, result));
        }
    }

    /// Adds the multiples of the taps of one output channel where they belong.
    fn scatter(&self, block: &Block, addends: &[f32], result: &mut [f32]) {
        let stride = self.geometry.axes[2].stride;
        self.geometry.each_tap(|index, tap| {
            let addends = &addends[index * block.len()..][..block.len()];
            block.each_run(self.geometry, tap, |window, target, count| {
                let places = result[target..].iter_mut().step_by(stride);
                for (place, addend) in places.zip(&addends[window..window + count]) {
                    match self.limit {
                        None => *place += addend,
                        Some(limit) if place.is_finite() => {
                            *place += addend;
                            if place.abs() >= limit {
                                *place = f32::INFINITY.copysign(*place);
                            }
                        }
                        Some(_) => {}
                    }
                }
            });
        });
    }
}
