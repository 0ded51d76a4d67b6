//! Evaluation of `cast`.

use crate::ir::types::DType;
use crate::ops::evaluate::{Call, EvalError, Results, in_parameter, one};
use crate::tensor::{Element, Tensor, map};

/// `x` in the type that `dtype` names.
///
/// Floats become integers by cutting off the fraction. What the documentation leaves open is done
/// as the conversion instructions of Apple's processors do it: a float outside the range of the
/// integer type becomes the nearest end of the range, NaN becomes 0. An integer that does not fit a
/// narrower integer type is taken modulo its number of values, as everywhere. Everything but zero
/// becomes true, NaN included; true becomes 1.
pub(super) fn cast(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let word = call.string_or("dtype", "")?;
    let dtype = DType::from_word(word)
        .filter(|dtype| dtype.is_float() || dtype.is_int() || *dtype == DType::Bool)
        .ok_or_else(|| {
            EvalError::invalid(format!("`dtype` \"{word}\" is not a type to cast to"))
        })?;
    if x.dtype() == dtype {
        return one(x.clone());
    }
    let wrong = in_parameter("x");
    if x.dtype().is_float() {
        if dtype.is_float() {
            return one(x.clone().unpacked()?.retyped(dtype));
        }
        let elements = x.as_floats().map_err(wrong)?;
        if dtype == DType::Bool {
            return like(x, dtype, map(&elements, |x| x != 0.0));
        }
        let (lowest, highest) = range(dtype);
        // `as` cuts off the fraction, saturates, and gives 0 for NaN.
        return like(
            x,
            dtype,
            map(&elements, |x| (x as i64).clamp(lowest, highest)),
        );
    }
    if x.dtype() == DType::Bool {
        let elements = x.as_bools().map_err(wrong)?;
        return if dtype.is_float() {
            like(x, dtype, map(&elements, |x| f32::from(u8::from(x))))
        } else {
            like(x, dtype, map(&elements, i64::from))
        };
    }
    let elements = x.as_ints().map_err(wrong)?;
    if dtype == DType::Bool {
        like(x, dtype, map(&elements, |x| x != 0))
    } else if dtype.is_float() {
        like(x, dtype, map(&elements, |x| x as f32))
    } else {
        one(x.clone().unpacked()?.retyped(dtype))
    }
}

fn like<T: Element>(x: &Tensor, dtype: DType, elements: Vec<T>) -> Results {
    one(T::make(dtype, x.shape().to_vec(), elements))
}

/// The least and the greatest value of an integer type; of uint64 as far as `i64` reaches.
fn range(dtype: DType) -> (i64, i64) {
    let bits = dtype.bits().unwrap_or(64).clamp(1, 64);
    let signed = matches!(
        dtype,
        DType::Int4 | DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64
    );
    if signed {
        (i64::MIN >> (64 - bits), i64::MAX >> (64 - bits))
    } else if bits == 64 {
        (0, i64::MAX)
    } else {
        (0, (1i64 << bits) - 1)
    }
}
