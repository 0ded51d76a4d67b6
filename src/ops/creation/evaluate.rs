//! Evaluation of the ops that make tensors.

use half::f16;

use super::random::{bernoulli, categorical, normal, uniform};
use crate::ir::types::DType;
use crate::ops::evaluate::{Call, EvalError, Kernel, Results, one};
use crate::tensor::Tensor;

#[cfg(test)]
mod tests;

pub(in crate::ops) fn kernel(op_type: &str) -> Option<Kernel> {
    Some(match op_type {
        "fill" => |call| filled(call, &shape_of(call)?),
        "fill_like" => |call| filled(call, call.tensor("ref_tensor")?.shape()),
        "range_1d" => range_1d,
        "shape" => shape,
        "random_bernoulli" => bernoulli,
        "random_categorical" => categorical,
        "random_normal" => normal,
        "random_uniform" => uniform,
        _ => return None,
    })
}

/// The shape that the argument `shape` spells.
pub(super) fn shape_of(call: &Call) -> Result<Vec<usize>, EvalError> {
    let shape = call.ints("shape")?;
    shape
        .iter()
        .map(|size| usize::try_from(*size).ok())
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| EvalError::invalid(format!("`shape` {shape:?} has a negative size")))
}

fn filled(call: &Call, shape: &[usize]) -> Results {
    call.room_for(shape)?;
    let zero = Tensor::zeros(DType::Float32, Vec::new());
    let value = call.tensor_if_any("value")?.unwrap_or(&zero);
    one(value.reshaped(Vec::new())?.broadcast_to(shape)?)
}

/// `start`, `start + step`, … below `end`, or above it if `step` is negative; nothing if `end` lies
/// the other way.
///
/// The number of elements is ⌈(end − start) / step⌉ in the arithmetic of the element type, as
/// coremltools infers it, and each element is computed from its number: rounding does not add up.
fn range_1d(call: &Call) -> Results {
    let start = call.tensor("start")?;
    let dtype = start.dtype();
    if !dtype.is_float() {
        let [start, end, step] = [call.int("start")?, call.int("end")?, call.int("step")?];
        let step_wide = i128::from(step);
        let distance = i128::from(end) - i128::from(start);
        let (distance, size) = match step {
            0 => return Err(EvalError::DivisionByZero),
            1.. => (distance, step_wide),
            _ => (-distance, -step_wide),
        };
        // The size is at least 1, and the distance of two i64 fits.
        let count = (distance.max(0) + size - 1) / size;
        let count = call.room_for(&[usize::try_from(count).unwrap_or(usize::MAX)])?;
        let values = (0..count as i64)
            .map(|index| start.wrapping_add(index.wrapping_mul(step)))
            .collect();
        return one(Tensor::ints(dtype, vec![count], values));
    }
    let [start, end, step] = [
        call.float("start")?,
        call.float("end")?,
        call.float("step")?,
    ];
    let count = if dtype == DType::Float16 {
        let [start, end, step] = [start, end, step].map(f16::from_f32);
        ((end - start) / step).to_f32().ceil()
    } else {
        ((end - start) / step).ceil()
    };
    if !count.is_finite() {
        return Err(EvalError::invalid(format!(
            "steps of {step} from {start} never reach {end}"
        )));
    }
    let count = call.room_for(&[count.max(0.0) as usize])?;
    let values = (0..count)
        .map(|index| (f64::from(start) + index as f64 * f64::from(step)) as f32)
        .collect();
    one(Tensor::floats(dtype, vec![count], values))
}

fn shape(call: &Call) -> Results {
    let shape = call.tensor("x")?.shape();
    let sizes = shape.iter().map(|size| *size as i64).collect();
    one(Tensor::ints(DType::Int32, vec![shape.len()], sizes))
}
