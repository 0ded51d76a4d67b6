//! Matrix products: `matmul`, `linear`, `einsum`.

use std::collections::BTreeMap;

use crate::ir::types::Dim;
use crate::ops::dims::{Types, broadcast, check_rank, one, same};
use crate::ops::infer::{InferError, Rule};
use crate::ops::view::{OpView, Stop};

pub(super) use evaluate::kernel;

mod evaluate;

pub(super) fn rule(op_type: &str) -> Option<Rule> {
    Some(match op_type {
        "matmul" => matmul,
        "linear" => linear,
        "einsum" => einsum,
        _ => return None,
    })
}

/// x \[…, M, K\] times y \[…, K, N\] gives \[…, M, N\], leading dimensions broadcast.
///
/// A vector \[K\] times a matrix \[K, N\] gives \[N\]. Versions of coremltools differ about other
/// operands of rank 1, which have no rule.
fn matmul(view: &OpView) -> Types {
    let (x, y) = (view.ranked("x")?, view.ranked("y")?);
    let transposed = |parameter| view.bool_or(parameter, false).ok_or(Stop::NoRule);
    let (batch_y, inner_y, columns) = matrix(&y.dims, transposed("transpose_y")?)?;
    let dims = if let ([inner_x], []) = (x.dims.as_slice(), batch_y) {
        same(0, ("x", *inner_x), ("y", inner_y))?;
        vec![columns]
    } else {
        let (batch_x, rows, inner_x) = matrix(&x.dims, transposed("transpose_x")?)?;
        same(x.dims.len() - 1, ("x", inner_x), ("y", inner_y))?;
        let mut dims = broadcast(batch_x, batch_y, ("x", "y"))?;
        dims.extend([rows, columns]);
        dims
    };
    // Since iOS 17 a constant factor may be of another type, and the result has the other's.
    let constant = |parameter| {
        view.operand(parameter)
            .is_some_and(|operand| operand.constant.is_some())
    };
    let dtype = if x.dtype != y.dtype && constant("x") && !constant("y") {
        y.dtype
    } else {
        x.dtype
    };
    one(dtype, dims)
}

/// Leading dimensions, rows and columns of a matrix, after transposing it if asked.
fn matrix(dims: &[Dim], transpose: bool) -> Result<(&[Dim], Dim, Dim), Stop> {
    match dims {
        [batch @ .., rows, columns] if transpose => Ok((batch, *columns, *rows)),
        [batch @ .., rows, columns] => Ok((batch, *rows, *columns)),
        _ => Err(Stop::NoRule),
    }
}

/// x \[…, K\] times the transpose of weight \[N, K\], plus bias \[N\], gives \[…, N\].
fn linear(view: &OpView) -> Types {
    let (x, weight) = (view.ranked("x")?, view.ranked("weight")?);
    let [rows, columns] = weight.dims.as_slice() else {
        return Err(InferError::Rank {
            parameter: "weight",
            rank: weight.dims.len(),
            expected: "2",
        }
        .into());
    };
    let Some((inner, batch)) = x.dims.split_last() else {
        return Err(InferError::Rank {
            parameter: "x",
            rank: 0,
            expected: "1 or more",
        }
        .into());
    };
    same(batch.len(), ("x", *inner), ("weight", *columns))?;
    if let Some(bias) = view.ranked_if_any("bias")? {
        check_rank("bias", &bias.dims, 1..=1, "1")?;
        if let Some(length) = bias.dims.first() {
            same(0, ("weight", *rows), ("bias", *length))?;
        }
    }
    let mut dims = batch.to_vec();
    dims.push(*rows);
    one(x.dtype, dims)
}

/// Letters of the equation name dimensions; a size of 1 broadcasts. Core ML knows two equations,
/// the rule holds for any without repeated letters in one operand.
fn einsum(view: &OpView) -> Types {
    let values = view.all_ranked("values")?;
    let equation = view.string("equation").required("equation")?;
    let invalid = |reason: String| Stop::from(InferError::Invalid { reason });
    let (inputs, output) = equation
        .split_once("->")
        .ok_or_else(|| invalid(format!("`equation` \"{equation}\" has no arrow")))?;
    let inputs: Vec<&str> = inputs.split(',').collect();
    if inputs.len() != values.len() {
        return Err(invalid(format!(
            "`equation` \"{equation}\" is not for {} values",
            values.len()
        )));
    }
    let mut sizes: BTreeMap<char, Dim> = BTreeMap::new();
    for (letters, value) in inputs.iter().zip(&values) {
        if letters.chars().count() != value.dims.len() {
            return Err(invalid(format!(
                "`equation` \"{equation}\" has `{letters}` for a value of rank {}",
                value.dims.len()
            )));
        }
        for (letter, dim) in letters.chars().zip(&value.dims) {
            let merged = match sizes.get(&letter) {
                None => *dim,
                Some(known) => broadcast(&[*known], &[*dim], ("values", "values"))?
                    .first()
                    .copied()
                    .unwrap_or(Dim::UNKNOWN),
            };
            sizes.insert(letter, merged);
        }
    }
    let dims = output
        .chars()
        .map(|letter| {
            sizes
                .get(&letter)
                .copied()
                .ok_or_else(|| invalid(format!("`equation` \"{equation}\" makes up `{letter}`")))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let dtype = values
        .first()
        .map(|value| value.dtype)
        .ok_or(Stop::NoRule)?;
    one(dtype, dims)
}
