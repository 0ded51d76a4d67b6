//! Evaluation of lists of tensors, and of `classify`.
//!
//! Writing beyond the end makes a list longer. An item that was never written reads as zeros, as
//! coremltools' own tests expect. To read an index out of range is an error.

use std::sync::Arc;

use crate::ir::types::DType;
use crate::ops::evaluate::{Call, Datum, EvalError, Kernel, Results, one};
use crate::tensor::{Tensor, concat};

#[cfg(test)]
mod tests;

pub(in crate::ops) fn kernel(op_type: &str) -> Option<Kernel> {
    Some(match op_type {
        "make_list" => make_list,
        "list_length" => list_length,
        "list_read" => list_read,
        "list_gather" => list_gather,
        "list_write" => list_write,
        "list_scatter" => list_scatter,
        "classify" => classify,
        _ => return None,
    })
}

type Items = Vec<Option<Tensor>>;

/// Checks that a list of so many items fits in memory.
fn room_for_items(call: &Call, count: usize) -> Result<(), EvalError> {
    // In elements of 8 bytes, as `room_for` counts.
    const ITEM: usize = size_of::<Option<Tensor>>().div_ceil(8);
    call.room_for(&[count, ITEM]).map(|_| ())
}

fn make_list(call: &Call) -> Results {
    let length = call.int_or("init_length", 1)?;
    let length = usize::try_from(length)
        .map_err(|_| EvalError::invalid(format!("`init_length` is {length}")))?;
    room_for_items(call, length)?;
    Ok(vec![Datum::List(Arc::new(vec![None; length]))])
}

fn items<'a>(call: &'a Call, parameter: &'static str) -> Result<&'a Arc<Items>, EvalError> {
    match call.argument(parameter) {
        Some(Datum::List(items)) => Ok(items),
        Some(other) => Err(EvalError::invalid(format!(
            "`{parameter}` is {}, not a list",
            other.words()
        ))),
        None => Err(EvalError::Missing(parameter)),
    }
}

fn list_length(call: &Call) -> Results {
    let length = items(call, "ls")?.len();
    one(Tensor::ints(DType::Int32, Vec::new(), vec![length as i64]))
}

/// The item at an index, if it was ever written.
fn item<'a>(
    items: &'a Items,
    parameter: &'static str,
    index: i64,
) -> Result<Option<&'a Tensor>, EvalError> {
    usize::try_from(index)
        .ok()
        .and_then(|index| items.get(index))
        .map(Option::as_ref)
        .ok_or(EvalError::OutOfRange {
            parameter,
            index,
            lowest: 0,
            highest: items.len() as i64 - 1,
        })
}

/// What stands for an item that was never written: zeros like one that was, or else of the type that
/// the op declares behind so many `leading` dimensions.
fn zeros(call: &Call, items: &Items, leading: usize) -> Result<Tensor, EvalError> {
    let declared = call.result_type(0).and_then(|ty| ty.as_tensor());
    let (dtype, shape) = match (items.iter().flatten().next(), declared) {
        (Some(item), _) => (item.dtype(), Some(item.shape().to_vec())),
        (None, Some(ty)) => {
            let dims = ty.dims.iter().skip(leading);
            let shape = dims.map(|dim| usize::try_from(dim.size()?).ok());
            (ty.dtype, (ty.rank >= 0).then(|| shape.collect()).flatten())
        }
        (None, None) => (DType::Float32, None),
    };
    let shape = shape.ok_or_else(|| {
        EvalError::invalid("nothing was written to the list, so its items have no shape")
    })?;
    call.room_for(&shape)?;
    Ok(Tensor::zeros(dtype, shape))
}

fn list_read(call: &Call) -> Results {
    let items = items(call, "ls")?;
    match item(items, "index", call.int("index")?)? {
        Some(item) => one(item.clone()),
        None => one(zeros(call, items, 0)?),
    }
}

fn list_gather(call: &Call) -> Results {
    let (items, indices) = (items(call, "ls")?, call.ints("indices")?);
    let chosen = indices
        .iter()
        .map(|index| item(items, "indices", *index))
        .collect::<Result<Vec<_>, _>>()?;
    let blank = match chosen.iter().copied().collect::<Option<Vec<_>>>() {
        Some(written) if !written.is_empty() => None,
        _ => Some(zeros(call, items, 1)?),
    };
    let rows: Vec<&Tensor> = chosen
        .into_iter()
        .filter_map(|row| row.or(blank.as_ref()))
        .collect();
    let Some(like) = rows.first().copied().or(blank.as_ref()) else {
        return Err(EvalError::invalid("there is nothing to gather"));
    };
    let same = |row: &&Tensor| row.dtype() == like.dtype() && row.shape() == like.shape();
    if !rows.iter().all(same) {
        return Err(EvalError::invalid(
            "the items differ in their type or shape",
        ));
    }
    call.room_for(&[rows.len(), like.len()])?;
    let shape = [&[1], like.shape()].concat();
    if rows.is_empty() {
        return one(Tensor::zeros(like.dtype(), [&[0], like.shape()].concat()));
    }
    let rows = rows
        .into_iter()
        .map(|row| row.reshaped(shape.clone()))
        .collect::<Result<Vec<_>, _>>()?;
    one(concat(&rows.iter().collect::<Vec<_>>(), 0)?)
}

/// Puts a tensor at an index, beyond the end too.
fn write(
    call: &Call,
    items: &mut Items,
    parameter: &'static str,
    index: i64,
    value: Tensor,
) -> Result<(), EvalError> {
    let place = u32::try_from(index).map_err(|_| EvalError::OutOfRange {
        parameter,
        index,
        lowest: 0,
        highest: i64::from(u32::MAX),
    })? as usize;
    if place >= items.len() {
        room_for_items(call, place + 1)?;
        items.resize(place + 1, None);
    }
    items[place] = Some(value);
    Ok(())
}

fn list_write(call: &Call) -> Results {
    let mut items = Items::clone(items(call, "ls")?);
    let value = call.tensor("value")?.clone();
    write(call, &mut items, "index", call.int("index")?, value)?;
    Ok(vec![Datum::List(Arc::new(items))])
}

/// The slices of `value` along its first dimension; of several for one index the last stays.
fn list_scatter(call: &Call) -> Results {
    let mut items = Items::clone(items(call, "ls")?);
    let (indices, value) = (call.ints("indices")?, call.tensor("value")?);
    let shape = match value.shape().split_first() {
        Some((count, rest)) if *count == indices.len() => rest,
        _ => {
            return Err(EvalError::invalid(format!(
                "`value` of shape {:?} does not hold {} items",
                value.shape(),
                indices.len()
            )));
        }
    };
    let run = if indices.is_empty() {
        0
    } else {
        value.len() / indices.len()
    };
    for (number, index) in indices.iter().enumerate() {
        let slice = value.runs(shape.to_vec(), run, &[number * run])?;
        write(call, &mut items, "indices", *index, slice)?;
    }
    Ok(vec![Datum::List(Arc::new(items))])
}

/// The label of the highest probability (the first of equals, NaN never), and every label with its
/// probability in the order of the classes.
fn classify(call: &Call) -> Results {
    let (classes, probabilities) = (items(call, "classes")?, call.floats("probabilities")?);
    let labels = classes.iter().cloned().collect::<Option<Vec<Tensor>>>();
    let labels = labels
        .filter(|labels| labels.len() == probabilities.len() && !labels.is_empty())
        .ok_or_else(|| {
            EvalError::invalid(format!(
                "{} probabilities do not fit {} classes",
                probabilities.len(),
                classes.len()
            ))
        })?;
    let (mut best, mut highest) = (0, f32::NEG_INFINITY);
    for (index, probability) in probabilities.iter().enumerate() {
        if *probability > highest {
            (best, highest) = (index, *probability);
        }
    }
    let label = labels[best].clone();
    let pairs = labels
        .into_iter()
        .zip(probabilities.iter())
        .map(|(label, probability)| {
            let probability = Tensor::floats(DType::Float64, Vec::new(), vec![*probability]);
            (label, probability)
        })
        .collect();
    Ok(vec![
        Datum::Tensor(label),
        Datum::Dictionary(Arc::new(pairs)),
    ])
}
