//! How close two tensors are.

use crate::ir::types::DType;
use crate::tensor::{Tensor, TensorError};

/// Two elements a and e agree if |a − e| ≤ absolute + relative · |e|, as in numpy's
/// `assert_allclose`. NaN agrees with NaN, and an infinity with the same one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Relative to the expected magnitude.
    pub relative: f64,
    /// Absolute.
    pub absolute: f64,
}

impl Tolerance {
    /// Only equal elements agree.
    pub const EXACT: Self = Self {
        relative: 0.0,
        absolute: 0.0,
    };
}

/// The outcome of comparing a tensor with the one that was expected.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Closeness {
    /// Number of elements.
    pub elements: usize,
    /// Elements that do not agree.
    pub misses: usize,
    /// The element that is furthest off, of those that do not agree: index, value, expected value.
    pub worst: Option<(usize, f64, f64)>,
}

/// Compares two tensors of the same shape: numbers within the tolerance, strings exactly.
pub fn closeness(
    actual: &Tensor,
    expected: &Tensor,
    tolerance: Tolerance,
) -> Result<Closeness, TensorError> {
    if expected.dtype() == DType::String {
        let (actual, expected) = (actual.as_texts()?, expected.as_texts()?);
        let misses = actual
            .iter()
            .zip(expected.iter())
            .filter(|(a, e)| a != e)
            .count();
        return Ok(Closeness {
            elements: actual.len(),
            misses,
            worst: None,
        });
    }
    let (actual, expected) = (actual.to_f64()?, expected.to_f64()?);
    let mut result = Closeness {
        elements: actual.len(),
        ..Closeness::default()
    };
    let mut furthest = 0.0;
    for (index, (a, e)) in actual.iter().zip(&expected).enumerate() {
        let agree = a == e
            || (a.is_nan() && e.is_nan())
            || ((a - e).abs() <= tolerance.absolute + tolerance.relative * e.abs()
                && e.is_finite());
        if agree {
            continue;
        }
        result.misses += 1;
        let distance = (a - e).abs();
        let distance = if distance.is_nan() {
            f64::INFINITY
        } else {
            distance
        };
        if result.worst.is_none() || distance > furthest {
            furthest = distance;
            result.worst = Some((index, *a, *e));
        }
    }
    Ok(result)
}
