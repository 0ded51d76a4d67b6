//! Evaluation of the ops that order, select or mark.

use super::order::{argsort, topk};
use super::suppression::non_maximum_suppression;
use crate::ir::types::DType;
use crate::ops::evaluate::{Call, EvalError, Kernel, Results, one};
use crate::tensor::{Element, Tensor, for_kind, split_at_axis, strides};

#[cfg(test)]
mod tests;

pub(in crate::ops) fn kernel(op_type: &str) -> Option<Kernel> {
    Some(match op_type {
        "argsort" => argsort,
        "band_part" => band_part,
        "cumsum" => cumsum,
        "topk" => topk,
        "one_hot" => one_hot,
        "non_zero" => non_zero,
        "non_maximum_suppression" => non_maximum_suppression,
        _ => return None,
    })
}

/// Elements outside of the band become 0 (or false), infinite and NaN ones too.
fn band_part(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let (lower, upper) = (call.int_or("lower", -1)?, call.int_or("upper", -1)?);
    let [.., rows, columns] = *x.shape() else {
        return Err(EvalError::invalid(format!(
            "`x` has rank {}, not 2 or more",
            x.rank()
        )));
    };
    let columns_kept = |row: usize| {
        let from = match usize::try_from(lower) {
            Ok(lower) => row.saturating_sub(lower),
            Err(_) => 0,
        };
        let to = match usize::try_from(upper) {
            Ok(upper) => row.saturating_add(upper).saturating_add(1),
            Err(_) => columns,
        };
        (from.min(columns), to.min(columns))
    };
    for_kind!(x, Kind => {
        let mut elements = Kind::read(x)?.into_owned();
        if columns > 0 {
            for (row, values) in elements.chunks_exact_mut(columns).enumerate() {
                let (from, to) = columns_kept(row % rows);
                values[..from].fill(Kind::default());
                values[to.max(from)..].fill(Kind::default());
            }
        }
        one(Kind::make(x.dtype(), x.shape().to_vec(), elements))
    })
}

/// Sums of floats are kept in f64 and rounded to f32 where they are written.
fn cumsum(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let axis = call.axis("axis", 0, x.rank())?;
    let lines = Lines {
        shape: split_at_axis(x.shape(), axis),
        exclusive: call.bool_or("exclusive", false)?,
        reverse: call.bool_or("reverse", false)?,
    };
    let shape = x.shape().to_vec();
    if x.dtype().is_float() {
        let values = x.as_floats()?;
        let sums = lines.sums(&values, 0f64, |sum, v| sum + f64::from(v), |sum| sum as f32);
        return one(Tensor::floats(x.dtype(), shape, sums));
    }
    let sums = lines.sums(&x.as_ints()?, 0i64, i64::wrapping_add, |sum| sum);
    one(Tensor::ints(x.dtype(), shape, sums))
}

/// The lines along an axis, and how they are summed.
struct Lines {
    shape: (usize, usize, usize),
    exclusive: bool,
    reverse: bool,
}

impl Lines {
    /// All lines of a block at once, so that neighbouring elements are read together.
    fn sums<T: Copy + Default, Sum: Copy>(
        &self,
        values: &[T],
        zero: Sum,
        add: impl Fn(Sum, T) -> Sum,
        round: impl Fn(Sum) -> T,
    ) -> Vec<T> {
        let (_, size, inner) = self.shape;
        let mut result = vec![T::default(); values.len()];
        if values.is_empty() {
            return result;
        }
        let block = size * inner;
        for (values, result) in values
            .chunks_exact(block)
            .zip(result.chunks_exact_mut(block))
        {
            let mut sums = vec![zero; inner];
            for step in 0..size {
                let place = if self.reverse { size - 1 - step } else { step };
                let range = place * inner..(place + 1) * inner;
                let row = values[range.clone()].iter().zip(&mut result[range]);
                for ((value, target), sum) in row.zip(&mut sums) {
                    let next = add(*sum, *value);
                    *target = round(if self.exclusive { *sum } else { next });
                    *sum = next;
                }
            }
        }
        result
    }
}

/// An index outside of the vector, which Core ML does not speak of, gives a vector of `off_value`
/// alone, as in TensorFlow.
fn one_hot(call: &Call) -> Results {
    let indices = call.tensor("indices")?;
    let chosen = call.ints("indices")?;
    let size = call.int("one_hot_vector_size")?;
    let size = usize::try_from(size)
        .map_err(|_| EvalError::invalid(format!("`one_hot_vector_size` is {size}")))?;
    let axis = call.axis("axis", -1, indices.rank() + 1)?;
    // Both values are int32 unless given; one that is missing beside a float is a float.
    let (on, off) = (
        call.tensor_if_any("on_value")?,
        call.tensor_if_any("off_value")?,
    );
    let dtype = on.or(off).map_or(DType::Int32, Tensor::dtype);
    let default = |value: i64| match dtype {
        DType::Bool => Tensor::bools(Vec::new(), vec![value != 0]),
        _ if dtype.is_float() => Tensor::floats(dtype, Vec::new(), vec![value as f32]),
        _ => Tensor::ints(dtype, Vec::new(), vec![value]),
    };
    let (one_value, zero_value) = (default(1), default(0));
    let (on, off) = (on.unwrap_or(&one_value), off.unwrap_or(&zero_value));
    let mut shape = indices.shape().to_vec();
    shape.insert(axis, size);
    call.room_for(&shape)?;
    let (_, _, inner) = split_at_axis(&shape, axis);
    let place = |(number, index): (usize, &i64)| {
        let index = usize::try_from(*index).ok().filter(|index| *index < size)?;
        Some((number / inner * size + index) * inner + number % inner)
    };
    let places: Vec<usize> = chosen.iter().enumerate().filter_map(place).collect();
    let off = off.reshaped(Vec::new())?.broadcast_to(&shape)?;
    let on = on.reshaped(Vec::new())?.broadcast_to(&[places.len()])?;
    one(off.replaced(&places, &on)?)
}

/// The places of the elements that are not zero, in their order; NaN is not zero, −0 is.
fn non_zero(call: &Call) -> Results {
    let x = call.tensor("x")?;
    for_kind!(x, Kind => {
        let elements = Kind::read(x)?;
        let steps = strides(x.shape());
        let mut places = Vec::new();
        let mut count = 0;
        for (index, value) in elements.iter().enumerate() {
            if *value != Kind::default() {
                count += 1;
                places.extend(steps.iter().zip(x.shape()).map(|(step, size)| (index / step % size) as i64));
            }
        }
        one(Tensor::ints(DType::Int32, vec![count, x.rank()], places))
    })
}
