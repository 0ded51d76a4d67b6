//! States: `read_state` and `write_state`.

use crate::ir::types::{TensorType, ValueType};
use crate::ops::dims::{Types, same_shape};
use crate::ops::infer::{InferError, Rule};
use crate::ops::view::{OpView, Stop};

pub(super) use evaluate::kernel;

mod evaluate;

pub(super) fn rule(op_type: &str) -> Option<Rule> {
    Some(match op_type {
        "read_state" => read_state,
        "write_state" => write_state,
        _ => return None,
    })
}

/// The tensor type that the state wraps.
fn read_state(view: &OpView) -> Types {
    Ok(vec![ValueType::Tensor(wrapped(view)?.clone())])
}

/// No result; `data` must have the state's type.
fn write_state(view: &OpView) -> Types {
    let state = wrapped(view)?;
    let data = view.ranked("data")?;
    if state.dtype != data.dtype {
        return Err(InferError::DTypes {
            left: ("input", state.dtype),
            right: ("data", data.dtype),
        }
        .into());
    }
    same_shape(("input", &state.dims), ("data", &data.dims))?;
    Ok(Vec::new())
}

fn wrapped<'a>(view: &OpView<'a>) -> Result<&'a TensorType, Stop> {
    let operand = view
        .operand("input")
        .ok_or(InferError::Missing { parameter: "input" })?;
    operand.ty.as_state().ok_or_else(|| {
        InferError::Kind {
            parameter: "input",
            expected: "a state that wraps a tensor",
        }
        .into()
    })
}
