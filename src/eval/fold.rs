//! Evaluating one op on constants.

use std::collections::BTreeMap;

use super::constants::{Blobs, ConstantError, datum, value};
use super::typed::{describe, fits, rounded, words};
use crate::ir::{NamedType, Opset, Value};
use crate::ops::{Call, Datum, EvalError, Numerics, evaluate};

/// Why an op cannot be folded.
#[derive(Debug, thiserror::Error)]
pub enum FoldError {
    /// An argument cannot be read.
    #[error(transparent)]
    Constant(#[from] ConstantError),
    /// The op fails.
    #[error(transparent)]
    Eval(#[from] EvalError),
    /// A result is no tensor, or not of the declared type.
    #[error("its result is {found}, but it is declared as {declared}")]
    Declared {
        /// What was computed.
        found: String,
        /// The declared type.
        declared: String,
    },
}

/// The results of an op whose arguments are all constant, as constants. fp16 results are rounded to
/// nearest even, everything else is computed as in the precision mode fp32: at the program's own
/// types, the interpreter gives the same bits before and after.
pub fn fold(
    op_type: &str,
    opset: Opset,
    arguments: &BTreeMap<&str, Vec<&Value>>,
    results: &[NamedType],
    blobs: &dyn Blobs,
    memory: u64,
) -> Result<Vec<Value>, FoldError> {
    let numerics = Numerics::FP16;
    let arguments = arguments
        .iter()
        .map(|(parameter, values)| {
            let data = values
                .iter()
                .map(|value| Ok(rounded(&numerics, value.ty.as_ref(), datum(value, blobs)?)?))
                .collect::<Result<Vec<_>, FoldError>>()?;
            Ok((*parameter, data))
        })
        .collect::<Result<BTreeMap<_, _>, FoldError>>()?;
    let call = Call {
        op_type,
        opset,
        arguments,
        results,
        numerics: &numerics,
        seed: 0,
        memory,
    };
    evaluate(&call)?
        .into_iter()
        .zip(results)
        .map(|(result, named)| {
            let ty = named.ty.as_ref();
            match rounded(&numerics, ty, result)? {
                Datum::Tensor(tensor) if fits(ty, &Datum::Tensor(tensor.clone())) => {
                    Ok(value(&tensor).map_err(EvalError::from)?)
                }
                other => Err(FoldError::Declared {
                    found: describe(&other),
                    declared: words(ty),
                }),
            }
        })
        .collect()
}
