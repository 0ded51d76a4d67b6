//! `gru`, with the gates r (reset), o (output), z (update) in this order:
//! h ← (1 − z)·o + z·h.

use super::{Layer, Results, activation, elements_if_any, hidden_size, initial, reversed};
use crate::ops::evaluate::{Call, Datum, Results as Outcome};
use crate::tensor::Tensor;

/// The output gate is act(W·x + R·(r·h) + b), as coremltools' tests compute it; its documentation
/// writes r·(R·h). Since iOS 18 `reset_after` asks for act(W·x + b′ + r·(R·h + b)) with `input_bias`
/// b′, as PyTorch has it; without it the two biases are added.
pub(super) fn gru(call: &Call) -> Outcome {
    let x = call.floats("x")?;
    let layer = Layer::new(call, &x, hidden_size(call)?, 3)?;
    let mut weights = layer.weights(call, ["weight_ih", "weight_hh", "bias"])?;
    let gate = activation(call, "recurrent_activation", "sigmoid")?;
    let output = activation(call, "activation", "tanh")?;
    let reset_after = call.bool_or("reset_after", false)?;
    let hidden = layer.hidden;
    let input_bias = elements_if_any(call, "input_bias", layer.width())?;
    // The bias of the output gate that stands beside R·h.
    let mut inner_bias = vec![0.0; hidden];
    if reset_after {
        inner_bias.copy_from_slice(&weights.bias[hidden..2 * hidden]);
        weights.bias[hidden..2 * hidden].fill(0.0);
    }
    for (bias, addend) in weights.bias.iter_mut().zip(&input_bias) {
        *bias += addend;
    }
    let reverse = reversed(call)?;
    let mut h = initial(call, "initial_h", layer.batch, hidden)?;
    let mut results = Results::new(&layer, 1);
    let projected = layer.projected(&weights);
    let size = layer.batch * hidden;
    let (mut recurrent, mut r, mut z) = (vec![0f32; size], vec![0f32; size], vec![0f32; size]);
    for step in 0..layer.steps {
        let at = if reverse {
            layer.steps - 1 - step
        } else {
            step
        };
        let projected = &projected[at * size * 3..][..size * 3];
        let of_gate = |index: usize| {
            let rows = projected.chunks(3 * hidden.max(1));
            rows.flat_map(move |row| &row[index * hidden..][..hidden])
        };
        for (values, index) in [(&mut r, 0), (&mut z, 2)] {
            recurrent.fill(0.0);
            layer.add_hidden(&weights, index * hidden, &h, &mut recurrent);
            for ((value, sum), input) in values.iter_mut().zip(&recurrent).zip(of_gate(index)) {
                *value = gate(input + sum);
            }
        }
        recurrent.fill(0.0);
        if reset_after {
            layer.add_hidden(&weights, hidden, &h, &mut recurrent);
            for (index, (sum, reset)) in recurrent.iter_mut().zip(&r).enumerate() {
                *sum = reset * (*sum + inner_bias[index % hidden]);
            }
        } else {
            for (reset, h) in r.iter_mut().zip(&h) {
                *reset *= h;
            }
            layer.add_hidden(&weights, hidden, &r, &mut recurrent);
        }
        for (((h, z), sum), input) in h.iter_mut().zip(&z).zip(&recurrent).zip(of_gate(1)) {
            *h = (1.0 - z) * output(input + sum) + z * *h;
        }
        if layer.every_step {
            results.write(step, 0, &h);
        }
    }
    if !layer.every_step {
        results.write(0, 0, &h);
    }
    let state = Tensor::floats(call.tensor("x")?.dtype(), vec![layer.batch, hidden], h);
    Ok(vec![
        Datum::Tensor(results.tensor(call)?),
        Datum::Tensor(state),
    ])
}
