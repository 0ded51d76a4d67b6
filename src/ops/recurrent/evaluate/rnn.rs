//! `rnn`: h ← act(W·x + R·h + b).

use super::{Layer, Results, activation, hidden_size, initial, reversed};
use crate::ops::evaluate::{Call, Datum, Results as Outcome};
use crate::tensor::Tensor;

pub(super) fn rnn(call: &Call) -> Outcome {
    let x = call.floats("x")?;
    let layer = Layer::new(call, &x, hidden_size(call)?, 1)?;
    let weights = layer.weights(call, ["weight_ih", "weight_hh", "bias"])?;
    let activation = activation(call, "activation", "tanh")?;
    let reverse = reversed(call)?;
    let mut h = initial(call, "initial_h", layer.batch, layer.hidden)?;
    let mut results = Results::new(&layer, 1);
    let mut projected = layer.projected(&weights);
    let size = layer.batch * layer.hidden;
    for step in 0..layer.steps {
        let at = if reverse {
            layer.steps - 1 - step
        } else {
            step
        };
        let gates = &mut projected[at * size..][..size];
        layer.add_hidden(&weights, 0, &h, gates);
        for (h, gate) in h.iter_mut().zip(gates) {
            *h = activation(*gate);
        }
        if layer.every_step {
            results.write(step, 0, &h);
        }
    }
    if !layer.every_step {
        results.write(0, 0, &h);
    }
    let state = Tensor::floats(
        call.tensor("x")?.dtype(),
        vec![layer.batch, layer.hidden],
        h,
    );
    Ok(vec![
        Datum::Tensor(results.tensor(call)?),
        Datum::Tensor(state),
    ])
}
