//! Recurrent layers: `rnn`, `gru`, `lstm`, over x \[S, B, I\].

use crate::ir::types::{DType, Dim, TensorType};
use crate::ops::dims::{Types, check_rank, signed, signed_dim, tensor};
use crate::ops::infer::{InferError, Rule};
use crate::ops::view::{OpView, Stop};

pub(super) use evaluate::kernel;

mod evaluate;

pub(super) fn rule(op_type: &str) -> Option<Rule> {
    Some(match op_type {
        "rnn" => rnn,
        "gru" => gru,
        "lstm" => lstm,
        _ => return None,
    })
}

fn rnn(view: &OpView) -> Types {
    let hidden = matrix(view, "weight_ih")?.dims[0];
    let (dtype, output, state) = shapes(view, hidden)?;
    Ok(vec![tensor(dtype, output), tensor(dtype, state)])
}

fn gru(view: &OpView) -> Types {
    let hidden = matrix(view, "weight_hh")?.dims[1];
    let (dtype, output, state) = shapes(view, hidden)?;
    Ok(vec![tensor(dtype, output), tensor(dtype, state)])
}

/// Both directions of a bidirectional layer stand side by side in the last dimension.
fn lstm(view: &OpView) -> Types {
    let weight = matrix(view, "weight_hh")?;
    let direction = view.string("direction").required_or("forward")?;
    let hidden = match direction {
        "forward" | "reverse" => weight.dims[1],
        "bidirectional" => signed_dim(
            signed(weight.dims[1]).and_then(|size| size.checked_mul(2)),
            "`direction`",
        )?,
        _ => {
            return Err(InferError::Invalid {
                reason: format!(
                    "`direction` \"{direction}\" is none of forward, reverse, bidirectional"
                ),
            }
            .into());
        }
    };
    let (dtype, output, state) = shapes(view, hidden)?;
    Ok(vec![
        tensor(dtype, output),
        tensor(dtype, state.clone()),
        tensor(dtype, state),
    ])
}

fn matrix<'a>(view: &OpView<'a>, parameter: &'static str) -> Result<&'a TensorType, Stop> {
    let ty = view.ranked(parameter)?;
    check_rank(parameter, &ty.dims, 2..=2, "2")?;
    Ok(ty)
}

/// The element type, the shape of the output (of every step or the last one), that of the state.
fn shapes(view: &OpView, hidden: Dim) -> Result<(DType, Vec<Dim>, Vec<Dim>), Stop> {
    let x = view.ranked("x")?;
    check_rank("x", &x.dims, 3..=3, "3")?;
    let every_step = view.bool_or("output_sequence", false).ok_or(Stop::NoRule)?;
    let steps = if every_step { x.dims[0] } else { Dim::Known(1) };
    let batch = x.dims[1];
    Ok((x.dtype, vec![steps, batch, hidden], vec![batch, hidden]))
}
