//! Evaluation of gathers and scatters.

use std::borrow::Cow;

use super::places::{Places, addressed, along, along_axis};
use crate::ops::evaluate::{Call, EvalError, Kernel, Results, one};
use crate::tensor::{Element, Tensor, for_kind};

#[cfg(test)]
mod tests;

pub(in crate::ops) fn kernel(op_type: &str) -> Option<Kernel> {
    Some(match op_type {
        "gather" => |call| gathered(call, along),
        "gather_along_axis" => |call| gathered(call, along_axis),
        "gather_nd" => |call| gathered(call, addressed),
        "scatter" => |call| scattered(call, along),
        "scatter_along_axis" => |call| scattered(call, along_axis),
        "scatter_nd" => |call| scattered(call, addressed),
        _ => return None,
    })
}

/// The places that an op reads or writes of its data.
type Rule = fn(&Call, &Tensor) -> Result<Places, EvalError>;

fn gathered(call: &Call, rule: Rule) -> Results {
    let x = call.tensor("x")?;
    let places = rule(call, x)?;
    one(x.runs(places.shape, places.run, &places.starts)?)
}

/// The data with `updates` in it. Updates of the same place take effect in their order: with the
/// mode "update", where Core ML leaves it open, the last one stays. "div" of integers rounds towards
/// zero; "max" and "min" give NaN if either value is.
fn scattered(call: &Call, rule: Rule) -> Results {
    let (data, updates) = (call.tensor("data")?, call.tensor("updates")?);
    let places = rule(call, data)?;
    if updates.shape() != places.shape || updates.dtype() != data.dtype() {
        return Err(EvalError::invalid(format!(
            "`updates` is {} {:?}, not {} {:?}",
            updates.dtype(),
            updates.shape(),
            data.dtype(),
            places.shape
        )));
    }
    let mode = call.string_or("mode", "add")?;
    if mode == "update" {
        return for_kind!(data, Kind => {
            let mut elements = Kind::read(data)?.into_owned();
            let updates = Kind::read(updates)?;
            if places.run > 0 {
                for (start, update) in places.starts.iter().zip(updates.chunks_exact(places.run)) {
                    elements[*start..*start + places.run].clone_from_slice(update);
                }
            }
            one(Kind::make(data.dtype(), data.shape().to_vec(), elements))
        });
    }
    let unknown = || EvalError::invalid(format!("there is no `mode` \"{mode}\""));
    if data.dtype().is_float() {
        let combine: fn(f32, f32) -> f32 = match mode {
            "add" => |a, b| a + b,
            "sub" => |a, b| a - b,
            "mul" => |a, b| a * b,
            "div" => |a, b| a / b,
            "max" => |a, b| if a.is_nan() || a > b { a } else { b },
            "min" => |a, b| if a.is_nan() || a < b { a } else { b },
            _ => return Err(unknown()),
        };
        let elements = combined(data.as_floats()?, &updates.as_floats()?, &places, combine);
        return one(Tensor::floats(
            data.dtype(),
            data.shape().to_vec(),
            elements,
        ));
    }
    let combine: fn(i64, i64) -> i64 = match mode {
        "add" => i64::wrapping_add,
        "sub" => i64::wrapping_sub,
        "mul" => i64::wrapping_mul,
        "div" => i64::wrapping_div,
        "max" => i64::max,
        "min" => i64::min,
        _ => return Err(unknown()),
    };
    let updates = updates.as_ints()?;
    if mode == "div" && updates.contains(&0) {
        return Err(EvalError::DivisionByZero);
    }
    let elements = combined(data.as_ints()?, &updates, &places, combine);
    one(Tensor::ints(data.dtype(), data.shape().to_vec(), elements))
}

/// `data` with every update combined with what stands at its place.
fn combined<T: Copy>(
    data: Cow<'_, [T]>,
    updates: &[T],
    places: &Places,
    combine: fn(T, T) -> T,
) -> Vec<T>
where
    [T]: ToOwned<Owned = Vec<T>>,
{
    let mut elements = data.into_owned();
    for (start, updates) in places
        .starts
        .iter()
        .zip(updates.chunks_exact(places.run.max(1)))
    {
        for (element, update) in elements[*start..*start + places.run]
            .iter_mut()
            .zip(updates)
        {
            *element = combine(*element, *update);
        }
    }
    elements
}
