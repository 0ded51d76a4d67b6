//! Arithmetic of dimensions that may be unknown: axes, broadcasting, and rank-preserving changes.

use crate::ir::types::{DType, Dim, TensorType, ValueType};
use crate::ops::infer::InferError;
use crate::ops::view::Stop;

/// What a rule gives: the types of the results.
pub(super) type Types = Result<Vec<ValueType>, Stop>;

/// One result, a tensor.
#[expect(
    clippy::unnecessary_wraps,
    reason = "the last expression of most rules"
)]
pub(super) fn one(dtype: DType, dims: Vec<Dim>) -> Types {
    Ok(vec![tensor(dtype, dims)])
}

/// A tensor type as a value type.
pub(super) fn tensor(dtype: DType, dims: Vec<Dim>) -> ValueType {
    ValueType::Tensor(TensorType::new(dtype, dims))
}

/// A dimension of this size, or an unknown one.
pub(super) fn dim(size: Option<u64>) -> Dim {
    size.map_or(Dim::UNKNOWN, Dim::Known)
}

/// A dimension computed in signed arithmetic; a negative size is an error.
pub(super) fn signed_dim(size: Option<i64>, what: &'static str) -> Result<Dim, Stop> {
    match size {
        None => Ok(Dim::UNKNOWN),
        Some(size) => match u64::try_from(size) {
            Ok(size) => Ok(Dim::Known(size)),
            Err(_) => Err(InferError::Invalid {
                reason: format!("{what} gives a dimension of size {size}"),
            }
            .into()),
        },
    }
}

/// The size in signed arithmetic, if known.
pub(super) fn signed(dim: Dim) -> Option<i64> {
    i64::try_from(dim.size()?).ok()
}

/// `count` unknown dimensions.
pub(super) fn unknown(count: usize) -> Vec<Dim> {
    vec![Dim::UNKNOWN; count]
}

/// The product of all sizes, if all are known and it fits.
pub(super) fn product(dims: &[Dim]) -> Option<u64> {
    dims.iter()
        .try_fold(1u64, |product, dim| product.checked_mul(dim.size()?))
}

/// The index of an axis that may count from the end.
pub(super) fn axis(axis: i64, rank: usize) -> Result<usize, InferError> {
    let error = InferError::Axis { axis, rank };
    let signed_rank = rank as i64;
    let index = if axis < 0 {
        axis.checked_add(signed_rank).ok_or(error.clone())?
    } else {
        axis
    };
    match usize::try_from(index) {
        Ok(index) if index < rank => Ok(index),
        _ => Err(error),
    }
}

/// The indices of axes that may count from the end, in rising order without repeats.
pub(super) fn axes(values: &[i64], rank: usize) -> Result<Vec<usize>, InferError> {
    let mut axes = values
        .iter()
        .map(|value| axis(*value, rank))
        .collect::<Result<Vec<_>, _>>()?;
    axes.sort_unstable();
    axes.dedup();
    Ok(axes)
}

/// The shape of `a` and `b` broadcast together, shorter one padded with ones in front.
///
/// As in coremltools, an unknown dimension against a known one other than 1 is taken to be equal
/// to it. `names` are the two parameters, for the error.
pub(super) fn broadcast(
    a: &[Dim],
    b: &[Dim],
    names: (&'static str, &'static str),
) -> Result<Vec<Dim>, InferError> {
    let rank = a.len().max(b.len());
    let at = |dims: &[Dim], index: usize| -> Dim {
        (index + dims.len())
            .checked_sub(rank)
            .and_then(|own| dims.get(own).copied())
            .unwrap_or(Dim::Known(1))
    };
    (0..rank)
        .map(|index| match (at(a, index).size(), at(b, index).size()) {
            (Some(1), other) | (other, Some(1)) => Ok(dim(other)),
            (Some(size), None) | (None, Some(size)) => Ok(Dim::Known(size)),
            (None, None) => Ok(Dim::UNKNOWN),
            (Some(left), Some(right)) if left == right => Ok(Dim::Known(left)),
            (Some(left), Some(right)) => Err(InferError::Sizes {
                dimension: index,
                left: (names.0, left),
                right: (names.1, right),
            }),
        })
        .collect()
}

/// Two dimensions that must be the same size: the known one of them, or an error.
pub(super) fn same(
    dimension: usize,
    left: (&'static str, Dim),
    right: (&'static str, Dim),
) -> Result<Dim, InferError> {
    match (left.1.size(), right.1.size()) {
        (Some(a), Some(b)) if a != b => Err(InferError::Sizes {
            dimension,
            left: (left.0, a),
            right: (right.0, b),
        }),
        (Some(size), _) | (_, Some(size)) => Ok(Dim::Known(size)),
        (None, None) => Ok(Dim::UNKNOWN),
    }
}

/// Two shapes that must be the same.
pub(super) fn same_shape(
    left: (&'static str, &[Dim]),
    right: (&'static str, &[Dim]),
) -> Result<Vec<Dim>, InferError> {
    if left.1.len() != right.1.len() {
        return Err(InferError::Ranks {
            left: (left.0, left.1.len()),
            right: (right.0, right.1.len()),
        });
    }
    left.1
        .iter()
        .zip(right.1)
        .enumerate()
        .map(|(index, (a, b))| same(index, (left.0, *a), (right.0, *b)))
        .collect()
}

/// A rank that must lie in a range.
pub(super) fn check_rank(
    parameter: &'static str,
    dims: &[Dim],
    allowed: impl std::ops::RangeBounds<usize>,
    expected: &'static str,
) -> Result<(), InferError> {
    if allowed.contains(&dims.len()) {
        Ok(())
    } else {
        Err(InferError::Rank {
            parameter,
            rank: dims.len(),
            expected,
        })
    }
}
