//! Evaluation of `local_response_norm`.

use super::channels;
use crate::ops::evaluate::{Call, EvalError, Results, in_parameter, one};
use crate::tensor::{Tensor, in_blocks};

/// x / (k + alpha / size · Σx²)^beta, the sum over the `size` channels around each element's own. Of
/// an even size, the channel that is left over stands before it, as in PyTorch. Channels that do not
/// exist count as zeros.
///
/// A test of coremltools at rank 3 (\[1, 3, 2\], sizes 2 and 3) has numbers that are sums over one
/// channel only, as if the channels were the first axis. The documentation, and the tests against
/// PyTorch at the same rank, count them along the second, as here.
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
    let (before, after) = ((size / 2) as usize, ((size - 1) / 2) as usize);
    let elements = x.as_floats().map_err(in_parameter("x"))?;
    let image = channels * behind;
    let results = in_blocks(elements.len(), &|range, out: &mut [f32]| {
        for (out, index) in out.iter_mut().zip(range) {
            let (start, within) = (index - index % image, index % image);
            let (channel, position) = (within / behind, within % behind);
            let first = channel.saturating_sub(before);
            let last = channel.saturating_add(after).min(channels - 1);
            let sum: f64 = (first..=last)
                .map(|channel| f64::from(elements[start + channel * behind + position]).powi(2))
                .sum();
            *out = (f64::from(elements[index]) / (k + factor * sum).powf(beta)) as f32;
        }
    });
    one(Tensor::floats(x.dtype(), x.shape().to_vec(), results))
}
