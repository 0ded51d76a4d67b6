//! Evaluation of the elementwise ops: which function each op type is. The functions of one tensor
//! stand in `unary`, those of two in `binary`, `cast` in its own file.

use crate::ops::evaluate::{Call, Datum, EvalError, Kernel, Results, in_parameter, one};
use crate::tensor::{Broadcast, Element, Tensor, choose};

mod binary;
mod cast;
mod unary;

#[cfg(test)]
mod tests;

pub(in crate::ops) use unary::{epsilon, floats};

pub(in crate::ops) fn kernel(op_type: &str) -> Option<Kernel> {
    let own: Kernel = match op_type {
        "cast" => cast::cast,
        "identity" => identity,
        "select" => select,
        _ => return unary::kernel(op_type).or_else(|| binary::kernel(op_type)),
    };
    Some(own)
}

/// `x` itself, a value of any kind.
fn identity(call: &Call) -> Results {
    let x = call.argument("x").ok_or(EvalError::Missing("x"))?;
    Ok(vec![x.clone()])
}

/// The elements of `a` where `cond` is true, those of `b` elsewhere; all three broadcast together.
fn select(call: &Call) -> Results {
    fn chosen<T>(call: &Call, plan: &Broadcast<3>, condition: &[bool]) -> Result<Tensor, EvalError>
    where
        T: Element + Copy + Default,
    {
        let a = call.tensor("a")?;
        let from = T::read(a).map_err(in_parameter("a"))?;
        let other = T::read(call.tensor("b")?).map_err(in_parameter("b"))?;
        let elements = choose(plan, condition, &from, &other);
        Ok(T::make(a.dtype(), plan.shape().to_vec(), elements))
    }
    let (condition, a, b) = (call.tensor("cond")?, call.tensor("a")?, call.tensor("b")?);
    let plan = Broadcast::new([condition.shape(), a.shape(), b.shape()])?;
    call.room_for(plan.shape())?;
    let condition = condition.as_bools().map_err(in_parameter("cond"))?;
    let result = match a.dtype() {
        crate::ir::types::DType::Bool => chosen::<bool>(call, &plan, &condition)?,
        dtype if dtype.is_float() => chosen::<f32>(call, &plan, &condition)?,
        _ => chosen::<i64>(call, &plan, &condition)?,
    };
    Ok(vec![Datum::Tensor(result)])
}

/// The result of a function of `x` that keeps the type.
fn like_x<T: Element>(x: &Tensor, elements: Vec<T>) -> Results {
    one(T::make(x.dtype(), x.shape().to_vec(), elements))
}
