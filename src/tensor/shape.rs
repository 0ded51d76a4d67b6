//! Arithmetic of shapes: element counts, strides, axes, broadcasting.

use super::TensorError;

/// Number of elements of a shape, if it can be counted.
pub fn elements(shape: &[usize]) -> Option<usize> {
    shape
        .iter()
        .try_fold(1usize, |product, size| product.checked_mul(*size))
}

/// The distance in elements between neighbours along each axis of a row-major tensor.
pub fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    for axis in (1..shape.len()).rev() {
        // Only a tensor without elements can have sizes whose product does not fit.
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis]);
    }
    strides
}

/// The strides as [`Tensor::strided`](super::Tensor::strided) takes them; all 0 for a tensor without
/// elements, whose sizes need not multiply to anything that fits.
pub fn steps(shape: &[usize]) -> Vec<isize> {
    if shape.contains(&0) {
        return vec![0; shape.len()];
    }
    strides(shape)
        .iter()
        .map(|stride| *stride as isize)
        .collect()
}

/// The index of an axis that may count from the end.
pub fn axis(axis: i64, rank: usize) -> Result<usize, TensorError> {
    let index = if axis < 0 {
        axis.saturating_add(rank as i64)
    } else {
        axis
    };
    usize::try_from(index)
        .ok()
        .filter(|index| *index < rank)
        .ok_or(TensorError::Axis { axis, rank })
}

/// The shape of two tensors broadcast together, the shorter one padded with ones in front.
pub fn broadcast_shapes(a: &[usize], b: &[usize]) -> Result<Vec<usize>, TensorError> {
    let rank = a.len().max(b.len());
    let at = |shape: &[usize], index: usize| {
        (index + shape.len())
            .checked_sub(rank)
            .map_or(1, |own| shape[own])
    };
    (0..rank)
        .map(|index| match (at(a, index), at(b, index)) {
            (1, size) | (size, 1) => Ok(size),
            (left, right) if left == right => Ok(left),
            _ => Err(TensorError::Broadcast(a.to_vec(), b.to_vec())),
        })
        .collect()
}

/// The strides with which a tensor of shape `from` is read as one of shape `to`: 0 along the axes
/// that are repeated. `from` must broadcast to `to`.
pub fn broadcast_strides(from: &[usize], to: &[usize]) -> Result<Vec<isize>, TensorError> {
    let missing = to
        .len()
        .checked_sub(from.len())
        .ok_or_else(|| TensorError::Broadcast(from.to_vec(), to.to_vec()))?;
    let own = strides(from);
    (0..to.len())
        .map(|index| match index.checked_sub(missing) {
            None => Ok(0),
            Some(axis) if from[axis] == to[index] => Ok(own[axis] as isize),
            Some(axis) if from[axis] == 1 => Ok(0),
            Some(_) => Err(TensorError::Broadcast(from.to_vec(), to.to_vec())),
        })
        .collect()
}

/// The shape around an axis: elements before it, its size, and elements behind it, so that the
/// element (outer, index, inner) is at `(outer · size + index) · behind + inner`.
pub fn split_at_axis(shape: &[usize], axis: usize) -> (usize, usize, usize) {
    // Only a tensor without elements can have sizes whose product does not fit.
    let product = |sizes: &[usize]| sizes.iter().fold(1usize, |p, size| p.saturating_mul(*size));
    (
        product(&shape[..axis]),
        shape[axis],
        product(&shape[axis + 1..]),
    )
}
