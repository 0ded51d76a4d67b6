//! Reductions over some or all axes.

use crate::ir::types::{DType, Dim};
use crate::ops::dims::{Types, axes, axis, one};
use crate::ops::infer::{InferError, Rule};
use crate::ops::view::{Argument, OpView, Stop};

pub(super) use evaluate::kernel;

mod evaluate;

pub(super) fn rule(op_type: &str) -> Option<Rule> {
    Some(match op_type {
        "reduce_l1_norm" | "reduce_l2_norm" | "reduce_log_sum" | "reduce_log_sum_exp"
        | "reduce_max" | "reduce_mean" | "reduce_min" | "reduce_prod" | "reduce_sum"
        | "reduce_sum_square" => reduce,
        "reduce_argmax" | "reduce_argmin" => reduce_arg,
        _ => return None,
    })
}

fn reduce(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    let rank = x.dims.len();
    let reduced = match view.ints("axes") {
        Argument::Missing => (0..rank).collect(),
        argument => axes(&argument.required("axes")?, rank)?,
    };
    one(x.dtype, without(&x.dims, &reduced, keep_dims(view)?))
}

fn reduce_arg(view: &OpView) -> Types {
    let x = view.ranked("x")?;
    let reduced = axis(view.int("axis").required_or(-1)?, x.dims.len())?;
    let word = view.string("output_dtype").required_or("int32")?;
    let dtype = DType::from_word(word)
        .filter(|dtype| {
            matches!(
                dtype,
                DType::Int32 | DType::UInt16 | DType::Int16 | DType::UInt8 | DType::Int8
            )
        })
        .ok_or_else(|| InferError::Invalid {
            reason: format!("`output_dtype` \"{word}\" is not an index type"),
        })?;
    one(dtype, without(&x.dims, &[reduced], keep_dims(view)?))
}

fn keep_dims(view: &OpView) -> Result<bool, Stop> {
    view.bool_or("keep_dims", false).ok_or(Stop::NoRule)
}

/// The dimensions with the reduced ones set to 1 or dropped.
fn without(dims: &[Dim], reduced: &[usize], keep: bool) -> Vec<Dim> {
    dims.iter()
        .enumerate()
        .filter_map(|(index, dim)| {
            if reduced.contains(&index) {
                keep.then_some(Dim::Known(1))
            } else {
                Some(*dim)
            }
        })
        .collect()
}
