//! The epsilon of `log`, for the passes that rewrite logarithms of sums of exponentials.

use half::f16;

use crate::ir::{Binding, DType, Operation, ValueId};
use crate::ops::registry;
use crate::pass::{Block, Edit, EditError};

/// The default epsilon of `log`, in x's type: in fp16 it rounds to zero. Source: coremltools'
/// op definition.
const DEFAULT: f64 = 1e-45;

/// Half the distance from 1 to the next fp32 number, 2^-24. For s ≥ 1, log(s + e) differs from
/// log(s) by at most e, and s + e rounds to s.
pub(in crate::passes) const LOST_BESIDE_ONE: f64 = 1.0 / 16_777_216.0;

/// The smallest positive fp32 number, 2^-149, which is also what the default rounds to in fp32. It
/// is lost beside every normal number of either type.
pub(in crate::passes) const SMALLEST: f64 = f32::from_bits(1) as f64;

/// Whether the epsilon of a `log` has at most this magnitude; if not, why.
pub(in crate::passes) fn negligible(
    block: &Block<'_>,
    log: &Operation,
    limit: f64,
) -> Result<(), String> {
    let epsilon = match log.argument("epsilon") {
        Some(_) => block.uniform_of(log, "epsilon").map(|found| found.value),
        None if log.value("x").and_then(|x| block.dtype(x)) == Some(DType::Float16) => {
            Some(f16::from_f64(DEFAULT).to_f64())
        }
        None => Some(f64::from(DEFAULT as f32)),
    };
    match epsilon {
        None => Err("the epsilon of the log is not known".to_owned()),
        Some(epsilon) if epsilon.abs() <= limit => Ok(()),
        Some(epsilon) => Err(format!(
            "the epsilon {epsilon:e} of the log is not negligible"
        )),
    }
}

/// The type that an epsilon of a `log` of this type is to have: fp32 where the opset allows it.
/// `None` if the opset is not known.
pub(in crate::passes) fn epsilon_type(block: &Block<'_>, dtype: DType) -> Option<DType> {
    // From CoreML7 on epsilon has a type of its own; before, it has x's type.
    let own_type = registry::domain_mates("log", block.opset?, "epsilon")
        .is_none_or(|mut mates| mates.any(|mate| mate == "x"));
    Some(if own_type { dtype } else { DType::Float32 })
}

/// `log(x, epsilon = 0)`, for an x that is at least 1.
pub(in crate::passes) fn unguarded(
    edit: &mut Edit<'_>,
    x: ValueId,
    epsilon_type: DType,
) -> Result<ValueId, EditError> {
    let epsilon = edit.scalar(epsilon_type, 0.0)?;
    edit.op("log", &[("x", Binding::Value(x)), ("epsilon", epsilon)])
}
