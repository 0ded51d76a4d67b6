//! Lists of tensors, and `classify`, whose result is a dictionary.

use crate::ir::types::{DType, Dim, TensorType, ValueType};
use crate::ops::dims::{Types, one, signed_dim, tensor};
use crate::ops::infer::{InferError, Rule};
use crate::ops::view::{OpView, Stop};

pub(super) use evaluate::kernel;

mod evaluate;

pub(super) fn rule(op_type: &str) -> Option<Rule> {
    Some(match op_type {
        "make_list" => make_list,
        "list_length" => |_| one(DType::Int32, Vec::new()),
        "list_read" => list_read,
        "list_gather" => list_gather,
        "list_write" => list_write,
        "list_scatter" => list_scatter,
        "classify" => classify,
        _ => return None,
    })
}

/// The list's type and, if it has one, its item's.
fn list<'a>(
    view: &OpView<'a>,
    parameter: &'static str,
) -> Result<(&'a ValueType, Option<&'a ValueType>), Stop> {
    let operand = view
        .operand(parameter)
        .ok_or(InferError::Missing { parameter })?;
    match operand.ty {
        ValueType::List { item, .. } => Ok((operand.ty, item.as_deref())),
        _ => Err(InferError::Kind {
            parameter,
            expected: "a list",
        }
        .into()),
    }
}

/// A list of `init_length` tensors of `elem_shape`, whose sizes are unknown where they are named
/// by a string.
fn make_list(view: &OpView) -> Types {
    let word = view.string("dtype").required_or("fp32")?;
    let dtype = DType::from_word(word).ok_or_else(|| InferError::Invalid {
        reason: format!("`dtype` \"{word}\" is not a type"),
    })?;
    let dims = view
        .operands("elem_shape")
        .iter()
        .map(|operand| {
            let constant = operand.constant.ok_or(Stop::NoRule)?;
            match crate::ops::constant::integers(constant).as_deref() {
                Some([size]) => signed_dim(Some(*size), "`elem_shape`"),
                None if constant.as_str().is_some() => Ok(Dim::UNKNOWN),
                _ => Err(Stop::NoRule),
            }
        })
        .collect::<Result<Vec<_>, _>>()?;
    let length = view.int("init_length").or(1);
    Ok(vec![ValueType::List {
        item: Some(Box::new(tensor(dtype, dims))),
        length: Some(signed_dim(length, "`init_length`")?),
    }])
}

fn list_read(view: &OpView) -> Types {
    let (_, item) = list(view, "ls")?;
    Ok(vec![item.cloned().ok_or(Stop::NoRule)?])
}

fn list_gather(view: &OpView) -> Types {
    let (_, item) = list(view, "ls")?;
    let item = item.and_then(ValueType::as_tensor).ok_or(Stop::NoRule)?;
    let indices = view.ranked("indices")?;
    let first = indices.dims.first().copied().ok_or(Stop::NoRule)?;
    one(item.dtype, [&[first], item.dims.as_slice()].concat())
}

/// The list's own type; a list without item type takes that of `value`.
fn list_write(view: &OpView) -> Types {
    let value = view.ranked("value")?;
    updated(view, value.clone())
}

/// As [`list_write`], with one item for each index in the first dimension of `value`.
fn list_scatter(view: &OpView) -> Types {
    let value = view.ranked("value")?;
    let items = value.dims.get(1..).ok_or(Stop::NoRule)?;
    updated(view, TensorType::new(value.dtype, items.to_vec()))
}

fn updated(view: &OpView, written: TensorType) -> Types {
    let (ty, _) = list(view, "ls")?;
    Ok(vec![match ty {
        ValueType::List { item: None, length } => ValueType::List {
            item: Some(Box::new(ValueType::Tensor(written))),
            length: *length,
        },
        ty => ty.clone(),
    }])
}

/// The most probable label, and the probability of each (fp64).
fn classify(view: &OpView) -> Types {
    let (_, item) = list(view, "classes")?;
    let label = item.cloned().ok_or(Stop::NoRule)?;
    Ok(vec![
        label.clone(),
        ValueType::Dictionary {
            key: Some(Box::new(label)),
            value: Some(Box::new(tensor(DType::Float64, Vec::new()))),
        },
    ])
}
