//! Evaluation of convolutions and pools.

use crate::ops::evaluate::{Call, EvalError, Kernel};

mod blocks;
mod conv;
mod pool;
mod transpose;
mod windows;

pub(in crate::ops) fn kernel(op_type: &str) -> Option<Kernel> {
    Some(match op_type {
        "conv" => conv::conv,
        "conv_quantized" => conv::conv_quantized,
        "conv_transpose" => transpose::conv_transpose,
        "avg_pool" | "max_pool" | "l2_pool" => pool::pool,
        _ => return None,
    })
}

/// `groups`, which must divide both numbers of channels.
fn groups(call: &Call, inputs: usize, outputs: usize) -> Result<usize, EvalError> {
    let groups = call.int_or("groups", 1)?;
    usize::try_from(groups)
        .ok()
        .filter(|groups| {
            *groups > 0 && inputs.is_multiple_of(*groups) && outputs.is_multiple_of(*groups)
        })
        .ok_or_else(|| {
            EvalError::invalid(format!(
                "`groups` is {groups}, with {inputs} input and {outputs} output channels"
            ))
        })
}

/// Adds an element of `bias` to each channel, if there is a bias. The sums of products have been
/// rounded to fp32 before.
fn add_bias(bias: Option<&[f32]>, positions: usize, result: &mut [f32]) {
    let Some(bias) = bias else { return };
    if positions == 0 || bias.is_empty() {
        return;
    }
    for (channel, plane) in result.chunks_mut(positions).enumerate() {
        let addend = bias[channel % bias.len()];
        for value in plane {
            *value += addend;
        }
    }
}

/// `bias` as floats; there must be one for each output channel.
fn bias(call: &Call, channels: usize) -> Result<Option<Vec<f32>>, EvalError> {
    let Some(tensor) = call.tensor_if_any("bias")? else {
        return Ok(None);
    };
    let values: Vec<f32> = tensor.to_f64()?.into_iter().map(|v| v as f32).collect();
    if values.len() == channels {
        Ok(Some(values))
    } else {
        Err(EvalError::invalid(format!(
            "`bias` has {} elements for {channels} output channels",
            values.len()
        )))
    }
}

#[cfg(test)]
mod tests;
