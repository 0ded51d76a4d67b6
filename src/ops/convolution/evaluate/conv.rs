//! `conv`: products of the weights with columns of input elements, one column for each window.

use rayon::prelude::*;

use super::blocks::{Block, blocks};
use super::windows::{Geometry, Settings};
use super::{add_bias, bias, groups};
use crate::ops::evaluate::{Call, EvalError, Results, one};
use crate::tensor::{Matrix, Output, Tensor, gemm};

/// x \[N, Cin, …\], weight \[Cout, Cin / groups, …\].
pub(super) fn conv(call: &Call) -> Results {
    let weight = call.tensor("weight")?;
    convolved(call, &weight.as_floats()?, weight.shape())
}

/// The same with weights `quant_scale · w + quant_bias`, both scalars or one for each output channel.
/// Only the quantization type "linear" is documented well enough to be evaluated.
pub(super) fn conv_quantized(call: &Call) -> Results {
    let kind = call.string_or("quantization_type", "linear")?;
    if kind != "linear" {
        return Err(EvalError::invalid(format!(
            "the quantization type \"{kind}\" is not evaluated"
        )));
    }
    let weight = call.tensor("weight")?;
    let channels = weight.shape().first().copied().unwrap_or(0);
    let per_channel = weight.len().checked_div(channels).unwrap_or(0).max(1);
    let (scale, offset) = (call.floats("quant_scale")?, call.floats("quant_bias")?);
    for values in [&scale, &offset] {
        if values.len() != 1 && values.len() != channels {
            return Err(EvalError::invalid(format!(
                "{} scales or biases are given for {channels} output channels",
                values.len()
            )));
        }
    }
    let weights: Vec<f32> = weight
        .as_ints()?
        .iter()
        .enumerate()
        .map(|(index, value)| {
            let channel = index / per_channel;
            *value as f32 * scale[channel % scale.len()] + offset[channel % offset.len()]
        })
        .collect();
    convolved(call, &weights, weight.shape())
}

fn convolved(call: &Call, weights: &[f32], shape: &[usize]) -> Results {
    let x = call.tensor("x")?;
    let (&[batch, inputs, ref sizes @ ..], &[outputs, per_group, ref kernel @ ..]) =
        (x.shape(), shape)
    else {
        return Err(EvalError::invalid("`x` or `weight` has a rank below 2"));
    };
    if sizes.is_empty() || sizes.len() > 3 || sizes.len() != kernel.len() {
        return Err(EvalError::invalid(format!(
            "`x` of rank {} and `weight` of rank {} cannot be convolved",
            x.rank(),
            shape.len()
        )));
    }
    let groups = groups(call, inputs, outputs)?;
    if per_group.checked_mul(groups) != Some(inputs) {
        return Err(EvalError::invalid(format!(
            "`x` has {inputs} channels, `weight` has {per_group} for each of {groups} groups"
        )));
    }
    let geometry = Settings::new(call, kernel)?.over(sizes, kernel, false)?;
    let bias = bias(call, outputs)?;
    let mut shape = vec![batch, outputs];
    shape.extend(geometry.windows(sizes.len()));
    let mut result = vec![0f32; call.room_for(&shape)?];
    let elements = x.as_floats()?;
    let job = Convolution {
        geometry: &geometry,
        inputs: per_group,
        outputs: outputs / groups,
        plane: sizes.iter().product(),
        positions: geometry.windows(3).iter().product(),
        limit: call.accumulator_limit(),
    };
    if !result.is_empty() && !elements.is_empty() && !weights.is_empty() {
        job.run(&elements, weights, groups, &mut result);
    }
    add_bias(bias.as_deref(), job.positions, &mut result);
    one(Tensor::floats(x.dtype(), shape, result))
}

/// The convolutions of all groups.
struct Convolution<'a> {
    geometry: &'a Geometry,
    /// Input channels of a group.
    inputs: usize,
    /// Output channels of a group.
    outputs: usize,
    /// Elements of an input channel.
    plane: usize,
    /// Elements of an output channel.
    positions: usize,
    limit: Option<f32>,
}

impl Convolution<'_> {
    fn run(&self, x: &[f32], weights: &[f32], groups: usize, result: &mut [f32]) {
        let kernel = self.geometry.kernel();
        // One channel in a group leaves nothing to multiply matrices with.
        if self.inputs == 1 && self.limit.is_none() {
            let channels = self.outputs * groups;
            result
                .par_chunks_mut(self.positions)
                .enumerate()
                .for_each(|(index, result)| {
                    let (n, channel) = (index / channels, index % channels);
                    let source = n * groups + channel / self.outputs;
                    let plane = &x[source * self.plane..][..self.plane];
                    self.slide(plane, &weights[channel * kernel..][..kernel], result);
                });
            return;
        }
        let (inputs, weight) = (
            self.inputs * self.plane,
            self.outputs * self.inputs * kernel,
        );
        result
            .par_chunks_mut(self.outputs * self.positions)
            .enumerate()
            .for_each_init(Vec::new, |scratch, (index, result)| {
                let group = index % groups;
                let x = &x[index * inputs..][..inputs];
                self.group(x, &weights[group * weight..][..weight], scratch, result);
            });
    }

    /// One channel with one kernel.
    fn slide(&self, plane: &[f32], weights: &[f32], result: &mut [f32]) {
        let stride = self.geometry.axes[2].stride;
        self.geometry.each_tap(|index, tap| {
            let weight = weights[index];
            self.geometry.each_run(tap, |window, source, count| {
                let result = &mut result[window..window + count];
                let plane = &plane[source..];
                if stride == 1 {
                    for (sum, value) in result.iter_mut().zip(plane) {
                        *sum += weight * value;
                    }
                } else {
                    for (sum, value) in result.iter_mut().zip(plane.iter().step_by(stride)) {
                        *sum += weight * value;
                    }
                }
            });
        });
    }

    /// One group of one image, in blocks of windows.
    fn group(&self, x: &[f32], weights: &[f32], scratch: &mut Vec<f32>, result: &mut [f32]) {
        let rows = self.inputs * self.geometry.kernel();
        let weights = Matrix::rows(weights, self.outputs, rows);
        if self.geometry.is_pointwise() {
            let mut out = Output {
                data: result,
                row_stride: self.positions,
            };
            let columns = Matrix::rows(x, rows, self.positions);
            gemm(weights, columns, &mut out, false, self.limit);
            return;
        }
        for block in blocks(self.geometry, rows) {
            let columns = block.len();
            scratch.clear();
            scratch.resize(rows * columns, 0.0);
            self.gather(x, &block, scratch);
            let mut out = Output {
                data: &mut result[block.start(self.geometry)..],
                row_stride: self.positions,
            };
            let columns = Matrix::rows(scratch, rows, columns);
            gemm(weights, columns, &mut out, false, self.limit);
        }
    }

    /// Fills a row for each input channel and tap, a column for each window of the block; what falls
    /// on padding stays zero.
    fn gather(&self, x: &[f32], block: &Block, columns: &mut [f32]) {
        let (kernel, stride) = (self.geometry.kernel(), self.geometry.axes[2].stride);
        columns
            .par_chunks_mut(kernel * block.len())
            .zip(x.par_chunks(self.plane))
            .for_each(|(columns, plane)| {
                self.geometry.each_tap(|index, tap| {
                    let row = &mut columns[index * block.len()..][..block.len()];
                    block.each_run(self.geometry, tap, |window, source, count| {
                        let row = &mut row[window..window + count];
                        let plane = &plane[source..];
                        if stride == 1 {
                            row.copy_from_slice(&plane[..count]);
                        } else {
                            for (place, value) in row.iter_mut().zip(plane.iter().step_by(stride)) {
                                *place = *value;
                            }
                        }
                    });
                });
            });
    }
}
