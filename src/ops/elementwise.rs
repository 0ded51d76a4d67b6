//! Elementwise ops: unary, binary with broadcasting, comparisons, logic, `select`, `cast`, `clip`.

use crate::ir::types::{DType, Dim};
use crate::ops::dims::{Types, broadcast, one};
use crate::ops::infer::{InferError, Rule};
use crate::ops::registry::accepts;
use crate::ops::view::{OpView, Stop};

pub(super) use evaluate::{epsilon, floats, kernel};

mod evaluate;

pub(super) fn rule(op_type: &str) -> Option<Rule> {
    Some(match op_type {
        "abs" | "acos" | "asin" | "atan" | "atanh" | "ceil" | "clip" | "cos" | "cosh" | "erf"
        | "exp" | "exp2" | "floor" | "inverse" | "log" | "logical_not" | "round" | "rsqrt"
        | "sign" | "sin" | "sinh" | "sqrt" | "square" | "tan" | "tanh" | "threshold" => like_x,
        "add" | "floor_div" | "maximum" | "minimum" | "mod" | "mul" | "pow" | "real_div"
        | "sub" => arithmetic,
        "equal" | "greater" | "greater_equal" | "less" | "less_equal" | "logical_and"
        | "logical_or" | "logical_xor" | "not_equal" => comparison,
        "select" => select,
        "cast" => cast,
        "identity" => identity,
        _ => return None,
    })
}

/// The type of `x`.
pub(super) fn like_x(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    one(x.dtype, x.dims.clone())
}

fn arithmetic(view: &OpView) -> Types {
    let (x, y) = (view.ranked("x")?, view.ranked("y")?);
    one(x.dtype, broadcast(&x.dims, &y.dims, ("x", "y"))?)
}

fn comparison(view: &OpView) -> Types {
    let (x, y) = (view.ranked("x")?, view.ranked("y")?);
    one(DType::Bool, broadcast(&x.dims, &y.dims, ("x", "y"))?)
}

/// `a`, `b` and `cond` broadcast together. coremltools leaves `cond` out of the result's shape; where
/// that matters, the declared type cannot be foretold and there is no rule.
fn select(view: &OpView) -> Types {
    let (a, b) = (view.ranked("a")?, view.ranked("b")?);
    let chosen = broadcast(&a.dims, &b.dims, ("a", "b"))?;
    let all = broadcast(&view.ranked("cond")?.dims, &chosen, ("cond", "a"))?;
    let enlarged = chosen.len() != all.len()
        || chosen
            .iter()
            .zip(&all)
            .any(|(chosen, all)| *chosen == Dim::Known(1) && chosen != all);
    if enlarged {
        return Err(Stop::NoRule);
    }
    one(a.dtype, all)
}

fn cast(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    let word = view.string("dtype").required("dtype")?;
    let invalid = || InferError::Invalid {
        reason: format!(
            "`dtype` \"{word}\" is not a type that {} casts to",
            view.opset
        ),
    };
    let dtype = DType::from_word(word).ok_or_else(invalid)?;
    // A cast's result may be of the types that its operand may be of.
    if accepts(view.op_type, view.opset, "x", dtype) == Some(true) {
        one(dtype, x.dims.clone())
    } else {
        Err(invalid().into())
    }
}

/// The type of `x`, which may be of any kind.
fn identity(view: &OpView) -> Types {
    let x = view
        .operand("x")
        .ok_or(InferError::Missing { parameter: "x" })?;
    Ok(vec![x.ty.clone()])
}
