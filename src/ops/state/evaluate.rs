//! Evaluation of `read_state` and `write_state`.

use crate::ops::evaluate::{Call, Datum, EvalError, Kernel, Results, StateCell, one};

pub(in crate::ops) fn kernel(op_type: &str) -> Option<Kernel> {
    Some(match op_type {
        "read_state" => |call| one(cell(call)?.read()),
        "write_state" => write_state,
        _ => return None,
    })
}

fn write_state(call: &Call) -> Results {
    let data = call.tensor("data")?;
    let state = cell(call)?;
    let held = state.read();
    if data.shape() != held.shape() || data.dtype() != held.dtype() {
        return Err(EvalError::invalid(format!(
            "a state of {} {:?} cannot hold {} {:?}",
            held.dtype(),
            held.shape(),
            data.dtype(),
            data.shape()
        )));
    }
    state.write(data.clone());
    Ok(Vec::new())
}

fn cell<'a>(call: &'a Call) -> Result<&'a StateCell, EvalError> {
    match call.argument("input") {
        Some(Datum::State(state)) => Ok(state),
        Some(other) => Err(EvalError::invalid(format!(
            "`input` is {}, not a state",
            other.words()
        ))),
        None => Err(EvalError::Missing("input")),
    }
}
