//! Values against the types that a program declares: rounding to them, and whether they fit.

use crate::ir::types::{Dim, TensorType, ValueType};
use crate::ops::{Datum, EvalError, Numerics};
use crate::tensor::Tensor;

/// A value rounded or wrapped to its element type, as the numerics say.
pub(super) fn rounded(
    numerics: &Numerics,
    ty: Option<&ValueType>,
    datum: Datum,
) -> Result<Datum, EvalError> {
    let Datum::Tensor(tensor) = datum else {
        return Ok(datum);
    };
    let dtype = match ty {
        Some(ValueType::Tensor(ty)) => ty.dtype,
        _ => tensor.dtype(),
    };
    Ok(Datum::Tensor(match dtype {
        _ if numerics.round_half && numerics.is_half(dtype) => {
            tensor.rounded_to_half(numerics.flush_subnormals)?
        }
        _ if dtype.is_int() => tensor.wrapped_to_width(),
        _ => tensor,
    }))
}

/// The same for a constant, which may have a rounding of its own.
pub(super) fn rounded_constant(
    numerics: &Numerics,
    ty: Option<&ValueType>,
    datum: Datum,
) -> Result<Datum, EvalError> {
    if numerics.half_constants {
        rounded(&Numerics::FP16.narrowing_full(), ty, datum)
    } else {
        rounded(numerics, ty, datum)
    }
}

/// Whether a value may stand where the program declares this type. A missing type fits all.
pub(super) fn fits(declared: Option<&ValueType>, datum: &Datum) -> bool {
    match (declared, datum) {
        (None | Some(ValueType::Unspecified), _)
        | (Some(ValueType::List { .. }), Datum::List(_))
        | (Some(ValueType::Tuple(_)), Datum::Tuple(_))
        | (Some(ValueType::Dictionary { .. }), Datum::Dictionary(_))
        | (Some(ValueType::State(_)), Datum::State(_)) => true,
        (Some(ValueType::Tensor(ty)), Datum::Tensor(tensor)) => fits_tensor(ty, tensor),
        _ => false,
    }
}

fn fits_tensor(ty: &TensorType, tensor: &Tensor) -> bool {
    let open = ty.rank < 0
        || ty
            .dims
            .iter()
            .any(|dim| matches!(dim, Dim::Unknown { variadic: true }));
    tensor.dtype() == ty.dtype
        && (open
            || (tensor.rank() == ty.dims.len()
                && ty
                    .dims
                    .iter()
                    .zip(tensor.shape())
                    .all(|(dim, size)| dim.size().is_none_or(|known| known == *size as u64))))
}

/// A declared type in a few words.
pub fn words(ty: Option<&ValueType>) -> String {
    match ty {
        Some(ValueType::Tensor(ty)) => {
            let dims: Vec<String> = ty
                .dims
                .iter()
                .map(|dim| dim.size().map_or("?".to_owned(), |size| size.to_string()))
                .collect();
            format!("{} [{}]", ty.dtype, dims.join(", "))
        }
        Some(ValueType::State(Some(inner))) => format!("a state of {}", words(Some(inner))),
        Some(ValueType::List { .. }) => "a list".to_owned(),
        Some(ValueType::Tuple(_)) => "a tuple".to_owned(),
        Some(ValueType::Dictionary { .. }) => "a dictionary".to_owned(),
        _ => "of no type".to_owned(),
    }
}

/// A value in a few words.
pub(super) fn describe(datum: &Datum) -> String {
    match datum {
        Datum::Tensor(tensor) => {
            let dims: Vec<String> = tensor.shape().iter().map(ToString::to_string).collect();
            format!("{} [{}]", tensor.dtype(), dims.join(", "))
        }
        other => other.words().to_owned(),
    }
}
