//! `lstm`, with the gates i (input), f (forget), o (output), z (cell) in this order:
//! c ← f·c + i·z, h ← o·act(c).

use super::{
    Activation, Layer, Results, Weights, activation, elements_if_any, half, hidden_size, initial,
    joined,
};
use crate::ops::evaluate::{Call, Datum, EvalError, Results as Outcome};
use crate::tensor::Tensor;

/// What is the same in both directions.
struct Lstm<'a> {
    layer: Layer<'a>,
    gate: Activation,
    cell: Activation,
    output: Activation,
    /// The largest magnitude of the cell state.
    clip: Option<f32>,
}

pub(super) fn lstm(call: &Call) -> Outcome {
    let x = call.floats("x")?;
    let lstm = Lstm {
        layer: Layer::new(call, &x, hidden_size(call)?, 4)?,
        gate: activation(call, "recurrent_activation", "sigmoid")?,
        cell: activation(call, "cell_activation", "tanh")?,
        output: activation(call, "activation", "tanh")?,
        clip: if call.has("clip") {
            Some(call.float("clip")?.abs())
        } else {
            None
        },
    };
    let (batch, hidden) = (lstm.layer.batch, lstm.layer.hidden);
    let directions: &[bool] = match call.string_or("direction", "forward")? {
        "forward" => &[false],
        "reverse" => &[true],
        "bidirectional" => &[false, true],
        word => {
            return Err(EvalError::invalid(format!(
                "`direction` \"{word}\" is none of forward, reverse, bidirectional"
            )));
        }
    };
    let count = directions.len();
    let (h, c) = (
        initial(call, "initial_h", batch, count * hidden)?,
        initial(call, "initial_c", batch, count * hidden)?,
    );
    let mut results = Results::new(&lstm.layer, count);
    let (mut all_h, mut all_c) = (Vec::new(), Vec::new());
    for (index, reverse) in directions.iter().enumerate() {
        let (names, peephole) = if index == 0 {
            (["weight_ih", "weight_hh", "bias"], "peephole")
        } else {
            (
                ["weight_ih_back", "weight_hh_back", "bias_back"],
                "peephole_back",
            )
        };
        let weights = lstm.layer.weights(call, names)?;
        let peephole = elements_if_any(call, peephole, 3 * hidden)?;
        let mut h = half(&h, hidden, index, count);
        let mut c = half(&c, hidden, index, count);
        lstm.run(
            &weights,
            &peephole,
            *reverse,
            (&mut h, &mut c),
            |step, at, h| {
                let place = if count == 2 { at } else { step };
                results.write(place, index, h);
            },
        );
        if !lstm.layer.every_step {
            results.write(0, index, &h);
        }
        all_h.push(h);
        all_c.push(c);
    }
    let dtype = call.tensor("x")?.dtype();
    let state = |halves: &[Vec<f32>]| {
        let elements = joined(halves, hidden, batch);
        Datum::Tensor(Tensor::floats(dtype, vec![batch, count * hidden], elements))
    };
    Ok(vec![
        Datum::Tensor(results.tensor(call)?),
        state(&all_h),
        state(&all_c),
    ])
}

impl Lstm<'_> {
    /// Runs one direction. `with_step` is called with the number of each step, its place in `x`, and
    /// h after it, if every step is asked for.
    fn run(
        &self,
        weights: &Weights,
        peephole: &[f32],
        reverse: bool,
        (h, c): (&mut [f32], &mut [f32]),
        mut with_step: impl FnMut(usize, usize, &[f32]),
    ) {
        let layer = &self.layer;
        let hidden = layer.hidden;
        let mut projected = layer.projected(weights);
        let size = layer.batch * layer.width();
        for step in 0..layer.steps {
            let at = if reverse {
                layer.steps - 1 - step
            } else {
                step
            };
            let gates = &mut projected[at * size..][..size];
            layer.add_hidden(weights, 0, h, gates);
            let states = h.chunks_mut(hidden.max(1)).zip(c.chunks_mut(hidden.max(1)));
            for (gates, (h, c)) in gates.chunks(layer.width().max(1)).zip(states) {
                for (index, (h, c)) in h.iter_mut().zip(c).enumerate() {
                    let of = |gate: usize| gates[gate * hidden + index];
                    let peep = |gate: usize| peephole[gate * hidden + index];
                    let input = (self.gate)(of(0) + peep(0) * *c);
                    let forget = (self.gate)(of(1) + peep(1) * *c);
                    let mut cell = forget * *c + input * (self.cell)(of(3));
                    if let Some(clip) = self.clip {
                        // Unlike min and max, this keeps NaN.
                        cell = if cell.abs() > clip {
                            clip.copysign(cell)
                        } else {
                            cell
                        };
                    }
                    *c = cell;
                    *h = (self.gate)(of(2) + peep(2) * cell) * (self.output)(cell);
                }
            }
            if layer.every_step {
                with_step(step, at, h);
            }
        }
    }
}
