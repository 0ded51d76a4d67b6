//! Evaluation of `local_response_norm`.

use super::channels;
use crate::ops::evaluate::{Call, EvalError, Results, in_parameter, one};
use crate::tensor::{Tensor, in_blocks};

/// x / (k + alpha / size · Σx²)^beta, the sum over each element's own channel and (size − 1) / 2 of
/// its neighbours on either side. Channels that do not exist count as zeros.
///
/// For an even size the documentation leaves open which channels are meant. The numbers in
/// coremltools' own tests count as many on either side, as here (so a size of 2 is a sum over one
/// channel), where PyTorch counts one more before.
pub(super) fn local_response_norm(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let (channels, behind) = channels(x)?;
    let size = call.int("size")?;
    if size < 1 {
        return Err(EvalError::invalid(format!(
            "`size` is {size}, not 1 or more"
        )));
    }
    let (alpha, beta, k) = (
        f64::from(call.float_or("alpha", 1e-4)?),
        f64::from(call.float_or("beta", 0.75)?),
        f64::from(call.float_or("k", 1.0)?),
    );
    let factor = alpha / size as f64;
    let reach = ((size - 1) / 2) as usize;
    let elements = x.as_floats().map_err(in_parameter("x"))?;
    let image = channels * behind;
    let results = in_blocks(elements.len(), &|range, out: &mut [f32]| {
        for (out, index) in out.iter_mut().zip(range) {
            let (start, within) = (index - index % image, index % image);
            let (channel, position) = (within / behind, within % behind);
            let first = channel.saturating_sub(reach);
            let last = channel.saturating_add(reach).min(channels - 1);
            let sum: f64 = (first..=last)
                .map(|channel| f64::from(elements[start + channel * behind + position]).powi(2))
                .sum();
            *out = (f64::from(elements[index]) / (k + factor * sum).powf(beta)) as f32;
        }
    });
    one(Tensor::floats(x.dtype(), x.shape().to_vec(), results))
}
