//! Evaluation of recurrent layers over x \[S, B, I\].
//!
//! The documentation leaves open what coremltools' own tests settle, and what is done here: a
//! reversed layer gives its outputs in the order in which it computes them, the last step of `x`
//! first (the backward half of a bidirectional one stands at its step of `x`); `clip` holds the cell
//! state; a scaled tanh is a tanh, a hard sigmoid is max(0, min(1, 0.2·x + 0.5)).
//!
//! States stay fp32 from step to step: only results are rounded.

use crate::ops::evaluate::{Call, EvalError, Kernel};
use crate::tensor::{Matrix, Output, Tensor, gemm};

mod gru;
mod lstm;
mod rnn;

pub(in crate::ops) fn kernel(op_type: &str) -> Option<Kernel> {
    Some(match op_type {
        "rnn" => rnn::rnn,
        "gru" => gru::gru,
        "lstm" => lstm::lstm,
        _ => return None,
    })
}

/// A function applied to each gate.
type Activation = fn(f32) -> f32;

fn activation(
    call: &Call,
    parameter: &'static str,
    default: &str,
) -> Result<Activation, EvalError> {
    let word = call.string_or(parameter, default)?;
    Ok(match word.to_ascii_lowercase().as_str() {
        "sigmoid" => |x| 1.0 / (1.0 + (-x).exp()),
        "tanh" | "scaled_tanh" => f32::tanh,
        "relu" => |x| if x < 0.0 { 0.0 } else { x },
        "linear" => |x| x,
        "hard_sigmoid" | "sigmoid_hard" => |x| (0.2 * x + 0.5).clamp(0.0, 1.0),
        _ => {
            return Err(EvalError::invalid(format!(
                "`{parameter}` is \"{word}\", which is not known"
            )));
        }
    })
}

/// The weights of one direction. A gate is a block of H rows.
struct Weights {
    /// \[gates · H, I\].
    input: Vec<f32>,
    /// \[gates · H, H\].
    hidden: Vec<f32>,
    /// gates · H elements.
    bias: Vec<f32>,
}

/// The sizes of a layer and its input.
struct Layer<'a> {
    x: &'a [f32],
    steps: usize,
    batch: usize,
    inputs: usize,
    hidden: usize,
    gates: usize,
    /// Whether every step is given, or the last one only.
    every_step: bool,
    limit: Option<f32>,
}

impl<'a> Layer<'a> {
    fn new(call: &Call, x: &'a [f32], hidden: usize, gates: usize) -> Result<Self, EvalError> {
        let &[steps, batch, inputs] = call.tensor("x")?.shape() else {
            return Err(EvalError::invalid("`x` has not the rank 3"));
        };
        let layer = Self {
            x,
            steps,
            batch,
            inputs,
            hidden,
            gates,
            every_step: call.bool_or("output_sequence", false)?,
            limit: call.accumulator_limit(),
        };
        let width = hidden.saturating_mul(gates);
        call.room_for(&[steps, batch, width])?;
        call.room_for(&[layer.given_steps(), batch, hidden, 2])?;
        Ok(layer)
    }

    fn given_steps(&self) -> usize {
        if self.every_step { self.steps } else { 1 }
    }

    /// Elements of a row of gates.
    fn width(&self) -> usize {
        self.gates * self.hidden
    }

    /// The weights that these parameters hold.
    fn weights(
        &self,
        call: &Call,
        [input, hidden, bias]: [&'static str; 3],
    ) -> Result<Weights, EvalError> {
        Ok(Weights {
            input: elements(call, input, &[self.width(), self.inputs])?,
            hidden: elements(call, hidden, &[self.width(), self.hidden])?,
            bias: elements_if_any(call, bias, self.width())?,
        })
    }

    /// W·x + b for all steps: \[S, B, gates · H\].
    fn projected(&self, weights: &Weights) -> Vec<f32> {
        let rows = self.steps * self.batch;
        let mut gates = vec![0f32; rows * self.width()];
        let mut out = Output {
            data: &mut gates,
            row_stride: self.width(),
        };
        let matrix = Matrix::rows(&weights.input, self.width(), self.inputs);
        let x = Matrix::rows(self.x, rows, self.inputs);
        gemm(x, matrix.transposed(), &mut out, false, self.limit);
        for row in gates.chunks_mut(self.width().max(1)) {
            for (gate, bias) in row.iter_mut().zip(&weights.bias) {
                *gate += bias;
            }
        }
        gates
    }

    /// Adds R·h to `gates` \[B, columns\], for the rows of R that begin with `first`; h is
    /// \[B, H\].
    fn add_hidden(&self, weights: &Weights, first: usize, h: &[f32], gates: &mut [f32]) {
        let columns = gates.len().checked_div(self.batch).unwrap_or(0);
        let matrix = &weights.hidden[first * self.hidden..][..columns * self.hidden];
        let matrix = Matrix::rows(matrix, columns, self.hidden);
        let mut out = Output {
            data: gates,
            row_stride: columns,
        };
        let h = Matrix::rows(h, self.batch, self.hidden);
        gemm(h, matrix.transposed(), &mut out, true, self.limit);
    }
}

/// Where the results of each direction go: y \[steps, B, directions · H\] and states
/// \[B, directions · H\].
struct Results {
    y: Vec<f32>,
    steps: usize,
    batch: usize,
    hidden: usize,
    directions: usize,
}

impl Results {
    fn new(layer: &Layer, directions: usize) -> Self {
        let steps = layer.given_steps();
        Self {
            y: vec![0.0; steps * layer.batch * directions * layer.hidden],
            steps,
            batch: layer.batch,
            hidden: layer.hidden,
            directions,
        }
    }

    /// Writes the states h \[B, H\] of a direction after a step.
    fn write(&mut self, step: usize, direction: usize, h: &[f32]) {
        let width = self.directions * self.hidden;
        let rows = self.y.chunks_mut(width.max(1)).skip(step * self.batch);
        for (row, h) in rows.zip(h.chunks(self.hidden.max(1))) {
            row[direction * self.hidden..][..self.hidden].copy_from_slice(h);
        }
    }

    fn tensor(self, call: &Call) -> Result<Tensor, EvalError> {
        let shape = vec![self.steps, self.batch, self.directions * self.hidden];
        Ok(Tensor::floats(call.tensor("x")?.dtype(), shape, self.y))
    }
}

/// The columns of one direction of a state \[B, directions · H\].
fn half(state: &[f32], hidden: usize, direction: usize, directions: usize) -> Vec<f32> {
    state
        .chunks((directions * hidden).max(1))
        .flat_map(|row| &row[direction * hidden..][..hidden])
        .copied()
        .collect()
}

/// The opposite of [`half`].
fn joined(halves: &[Vec<f32>], hidden: usize, batch: usize) -> Vec<f32> {
    (0..batch)
        .flat_map(|row| {
            halves
                .iter()
                .flat_map(move |half| &half[row * hidden..][..hidden])
        })
        .copied()
        .collect()
}

/// The elements of an argument of this shape.
fn elements(call: &Call, parameter: &'static str, shape: &[usize]) -> Result<Vec<f32>, EvalError> {
    let found = call.tensor(parameter)?.shape();
    if found == shape {
        Ok(call.floats(parameter)?.into_owned())
    } else {
        Err(EvalError::invalid(format!(
            "`{parameter}` has the shape {found:?}, not {shape:?}"
        )))
    }
}

/// The initial states \[B, columns\]. There may be more rows than B, of which the first count:
/// coremltools converts packed sequences of PyTorch to such programs, and expects their results.
fn initial(
    call: &Call,
    parameter: &'static str,
    batch: usize,
    columns: usize,
) -> Result<Vec<f32>, EvalError> {
    match *call.tensor(parameter)?.shape() {
        [rows, found] if rows >= batch && found == columns => {
            let states = call.floats(parameter)?;
            Ok(states.get(..batch * columns).unwrap_or_default().to_vec())
        }
        ref found => Err(EvalError::invalid(format!(
            "`{parameter}` has the shape {found:?}, not [{batch}, {columns}]"
        ))),
    }
}

/// The elements of a vector of this length; zeros if it is missing.
fn elements_if_any(
    call: &Call,
    parameter: &'static str,
    length: usize,
) -> Result<Vec<f32>, EvalError> {
    if call.has(parameter) {
        elements(call, parameter, &[length])
    } else {
        Ok(vec![0.0; length])
    }
}

/// The size of the states, from `weight_hh` \[gates · H, H\].
fn hidden_size(call: &Call) -> Result<usize, EvalError> {
    match call.tensor("weight_hh")?.shape() {
        [_, hidden] => Ok(*hidden),
        shape => Err(EvalError::invalid(format!(
            "`weight_hh` has the shape {shape:?}"
        ))),
    }
}

/// Whether `direction` is "reverse", where "bidirectional" is not possible.
fn reversed(call: &Call) -> Result<bool, EvalError> {
    match call.string_or("direction", "forward")? {
        "forward" => Ok(false),
        "reverse" => Ok(true),
        word => Err(EvalError::invalid(format!(
            "`direction` \"{word}\" is neither forward nor reverse"
        ))),
    }
}

#[cfg(test)]
mod tests;
