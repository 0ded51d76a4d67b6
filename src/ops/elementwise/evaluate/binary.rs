//! Evaluation of the elementwise functions of two tensors, which broadcast together.
//!
//! Floats are computed in fp32. Integers are computed modulo 2^64 and brought to the width of their
//! type afterwards; division by an integer zero is an error.

use crate::ir::types::DType;
use crate::ops::evaluate::{Call, EvalError, Kernel, Results, in_parameter, one};
use crate::tensor::{Broadcast, Element, Tensor, zip};

pub(super) fn kernel(op_type: &str) -> Option<Kernel> {
    Some(match op_type {
        "add" => |call| arithmetic(call, |x, y| x + y, i64::wrapping_add),
        "sub" => |call| arithmetic(call, |x, y| x - y, i64::wrapping_sub),
        "mul" => |call| arithmetic(call, |x, y| x * y, i64::wrapping_mul),
        "maximum" => |call| arithmetic(call, maximum, i64::max),
        "minimum" => |call| arithmetic(call, minimum, i64::min),
        "floor_div" => |call| division(call, floor_div, integer_floor_div),
        "mod" => |call| division(call, remainder, integer_remainder),
        "real_div" => |call| division(call, |x, y| x / y, i64::wrapping_div),
        "pow" => pow,
        "equal" => |call| comparison(call, |x, y| x == y, |x, y| x == y, |x, y| x == y),
        "not_equal" => |call| comparison(call, |x, y| x != y, |x, y| x != y, |x, y| x != y),
        "greater" => |call| comparison(call, |x, y| x > y, |x, y| x > y, |x, y| x && !y),
        "greater_equal" => |call| comparison(call, |x, y| x >= y, |x, y| x >= y, |x, y| x || !y),
        "less" => |call| comparison(call, |x, y| x < y, |x, y| x < y, |x, y| !x && y),
        "less_equal" => |call| comparison(call, |x, y| x <= y, |x, y| x <= y, |x, y| !x || y),
        "logical_and" => |call| logic(call, |x, y| x & y),
        "logical_or" => |call| logic(call, |x, y| x | y),
        "logical_xor" => |call| logic(call, |x, y| x ^ y),
        _ => return None,
    })
}

/// The function of each pair of elements of `x` and `y`, in the given result type.
fn pairs<T, U>(call: &Call, dtype: DType, function: impl Fn(T, T) -> U + Sync) -> Results
where
    T: Element + Copy,
    U: Element + Default,
{
    let (x, y) = (call.tensor("x")?, call.tensor("y")?);
    let plan = Broadcast::new([x.shape(), y.shape()])?;
    call.room_for(plan.shape())?;
    let elements = zip(
        &plan,
        &T::read(x).map_err(in_parameter("x"))?,
        &T::read(y).map_err(in_parameter("y"))?,
        function,
    );
    one(U::make(dtype, plan.shape().to_vec(), elements))
}

fn arithmetic(
    call: &Call,
    of_floats: impl Fn(f32, f32) -> f32 + Sync,
    of_ints: impl Fn(i64, i64) -> i64 + Sync,
) -> Results {
    let dtype = call.tensor("x")?.dtype();
    if dtype.is_float() {
        pairs(call, dtype, of_floats)
    } else {
        pairs(call, dtype, of_ints)
    }
}

fn division(
    call: &Call,
    of_floats: impl Fn(f32, f32) -> f32 + Sync,
    of_ints: impl Fn(i64, i64) -> i64 + Sync,
) -> Results {
    if !call.tensor("x")?.is_empty() && has_zero(call.tensor("y")?)? {
        return Err(EvalError::DivisionByZero);
    }
    arithmetic(call, of_floats, of_ints)
}

/// Whether this is a tensor of integers with a zero among them.
fn has_zero(tensor: &Tensor) -> Result<bool, EvalError> {
    Ok(tensor.dtype().is_int() && tensor.as_ints()?.contains(&0))
}

/// The documentation says x > y ? x : y, which depends on the order of the operands if one is NaN;
/// coremltools folds constants with numpy's rule, which is done here: NaN if either is.
fn maximum(x: f32, y: f32) -> f32 {
    if x >= y || x.is_nan() { x } else { y }
}

/// NaN if either is, as in [`maximum`].
fn minimum(x: f32, y: f32) -> f32 {
    if x <= y || x.is_nan() { x } else { y }
}

/// The remainder with the sign of the divisor (Python's rule). For a zero divisor it is NaN.
fn remainder(x: f32, y: f32) -> f32 {
    let rest = x % y;
    if rest == 0.0 {
        0f32.copysign(y)
    } else if (rest < 0.0) == (y < 0.0) {
        rest
    } else {
        rest + y
    }
}

/// The quotient rounded toward −∞, such that x = y · floor_div + mod with the remainder above
/// (Python's rule): it is the exact quotient that is rounded, where rounding the fp32 quotient could
/// give the integer above. For a zero divisor it is the infinity or NaN of the true division.
fn floor_div(x: f32, y: f32) -> f32 {
    if y == 0.0 {
        return x / y;
    }
    let rest = x % y;
    let mut quotient = (x - rest) / y;
    if rest != 0.0 && (rest < 0.0) != (y < 0.0) {
        quotient -= 1.0;
    }
    if quotient == 0.0 {
        return 0f32.copysign(x / y);
    }
    // The division above may be off by its rounding only.
    let floor = quotient.floor();
    if quotient - floor > 0.5 {
        floor + 1.0
    } else {
        floor
    }
}

/// Rounded toward −∞; the divisor is not zero.
fn integer_floor_div(x: i64, y: i64) -> i64 {
    let quotient = x.wrapping_div(y);
    if x.wrapping_rem(y) != 0 && (x < 0) != (y < 0) {
        quotient - 1
    } else {
        quotient
    }
}

/// With the sign of the divisor, which is not zero.
fn integer_remainder(x: i64, y: i64) -> i64 {
    let rest = x.wrapping_rem(y);
    if rest != 0 && (rest < 0) != (y < 0) {
        rest + y
    } else {
        rest
    }
}

/// `x` to the power `y`. Integers to a negative power are truncated like other quotients of
/// integers, so that only 1 and −1 give anything but 0; 0 to a negative power is a division by zero.
fn pow(call: &Call) -> Results {
    let (x, y) = (call.tensor("x")?, call.tensor("y")?);
    if x.dtype().is_int()
        && !y.is_empty()
        && has_zero(x)?
        && y.as_ints()?.iter().any(|exponent| *exponent < 0)
    {
        let zero_divided: Results = pairs(call, DType::Bool, |x: i64, y: i64| x == 0 && y < 0);
        if let Some(any) = zero_divided?.first().and_then(|datum| datum.as_tensor())
            && any.as_bools()?.contains(&true)
        {
            return Err(EvalError::DivisionByZero);
        }
    }
    arithmetic(
        call,
        |x, y| if y == 2.0 { x * x } else { x.powf(y) },
        integer_pow,
    )
}

/// Modulo 2^64; 0 stands for a zero to a negative power.
fn integer_pow(x: i64, y: i64) -> i64 {
    let Ok(mut exponent) = u64::try_from(y) else {
        return match x {
            1 => 1,
            -1 if y % 2 == 0 => 1,
            -1 => -1,
            _ => 0,
        };
    };
    let (mut base, mut power) = (x, 1i64);
    while exponent > 0 {
        if exponent & 1 == 1 {
            power = power.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        exponent >>= 1;
    }
    power
}

fn comparison(
    call: &Call,
    of_floats: impl Fn(f32, f32) -> bool + Sync,
    of_ints: impl Fn(i64, i64) -> bool + Sync,
    of_bools: impl Fn(bool, bool) -> bool + Sync,
) -> Results {
    match call.tensor("x")?.dtype() {
        DType::Bool => pairs(call, DType::Bool, of_bools),
        dtype if dtype.is_float() => pairs(call, DType::Bool, of_floats),
        _ => pairs(call, DType::Bool, of_ints),
    }
}

fn logic(call: &Call, function: impl Fn(bool, bool) -> bool + Sync) -> Results {
    pairs(call, DType::Bool, function)
}
