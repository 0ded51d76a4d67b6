//! Tensors enlarged at their borders.

use super::movement::for_kind;
use super::strided::filled_by_rows;
use super::{Element, Tensor, TensorError};

/// What stands beyond the border.
#[derive(Clone, Copy, Debug)]
pub enum Border<'a> {
    /// The one element of a tensor of the same kind.
    Constant(&'a Tensor),
    /// The elements in reverse order, without the one at the border.
    Reflect,
    /// The element at the border.
    Replicate,
}

/// What one place along an axis holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Fill,
    Element(usize),
}

/// A stretch of the innermost axis.
enum Stretch {
    Fill(usize),
    Elements { from: usize, count: usize },
}

impl Tensor {
    /// This tensor with so many elements before and after it along each axis.
    ///
    /// # Errors
    ///
    /// If the amounts do not fit the rank, the result has too many elements to count, an axis is
    /// shorter than [`Border::Reflect`] needs (amounts below its size) or empty where
    /// [`Border::Replicate`] needs an element, or the constant is of another kind.
    pub fn padded(&self, amounts: &[(usize, usize)], border: Border) -> Result<Self, TensorError> {
        if amounts.len() != self.rank() {
            return Err(TensorError::Data(format!(
                "{} pairs of amounts do not fit the rank {}",
                amounts.len(),
                self.rank()
            )));
        }
        if amounts.iter().all(|pair| *pair == (0, 0)) {
            return Ok(self.clone());
        }
        let too_large = || TensorError::TooLarge(self.shape().to_vec());
        let shape = self
            .shape()
            .iter()
            .zip(amounts)
            .map(|(size, (before, after))| size.checked_add(*before)?.checked_add(*after))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(too_large)?;
        let len = super::elements(&shape).ok_or_else(too_large)?;
        if len == 0 {
            return Ok(Self::zeros(self.dtype(), shape));
        }
        let axes = self
            .shape()
            .iter()
            .zip(amounts)
            .map(|(size, (before, after))| sources(*size, *before, *after, border))
            .collect::<Result<Vec<_>, _>>()?;
        let Some((inner, outer)) = axes.split_last() else {
            return Ok(self.clone());
        };
        let stretches = stretches(inner);
        let width = inner.len();
        let strides = super::strides(self.shape());
        for_kind!(self, Kind => {
            let elements = Kind::read(self)?;
            let fill = match border {
                Border::Constant(value) => Kind::read(value)?.first().cloned(),
                Border::Reflect | Border::Replicate => Some(Kind::default()),
            };
            let fill = fill.ok_or_else(|| TensorError::Data("no value to pad with".to_owned()))?;
            let padded = filled_by_rows(len, width, |first, block: &mut [Kind]| {
                for (index, row) in block.chunks_exact_mut(width.max(1)).enumerate() {
                    let Some(start) = row_start(outer, &strides, first + index) else {
                        row.fill(fill.clone());
                        continue;
                    };
                    let mut rest = row;
                    for stretch in &stretches {
                        match stretch {
                            Stretch::Fill(count) => {
                                let (part, behind) = rest.split_at_mut(*count);
                                part.fill(fill.clone());
                                rest = behind;
                            }
                            Stretch::Elements { from, count } => {
                                let (part, behind) = rest.split_at_mut(*count);
                                part.clone_from_slice(&elements[start + from..start + from + count]);
                                rest = behind;
                            }
                        }
                    }
                }
            });
            Ok(Kind::make(self.dtype(), shape, padded))
        })
    }
}

/// What each place along a padded axis holds.
fn sources(
    size: usize,
    before: usize,
    after: usize,
    border: Border,
) -> Result<Vec<Source>, TensorError> {
    let wrong = |needs: &str| {
        TensorError::Data(format!(
            "a dimension of size {size} cannot be padded by {before} and {after}: {needs}"
        ))
    };
    let (before_it, after_it): (Vec<Source>, Vec<Source>) = match border {
        Border::Constant(_) => (vec![Source::Fill; before], vec![Source::Fill; after]),
        _ if before == 0 && after == 0 => (Vec::new(), Vec::new()),
        Border::Replicate => {
            let last = size.checked_sub(1).ok_or_else(|| wrong("it is empty"))?;
            (
                vec![Source::Element(0); before],
                vec![Source::Element(last); after],
            )
        }
        Border::Reflect => {
            if before >= size || after >= size {
                return Err(wrong("a reflection needs amounts below the size"));
            }
            (
                (1..=before).rev().map(Source::Element).collect(),
                (size - 1 - after..size - 1)
                    .rev()
                    .map(Source::Element)
                    .collect(),
            )
        }
    };
    let middle = (0..size).map(Source::Element);
    Ok(before_it
        .into_iter()
        .chain(middle)
        .chain(after_it)
        .collect())
}

/// The innermost axis as stretches that are copied at once.
fn stretches(axis: &[Source]) -> Vec<Stretch> {
    let mut stretches: Vec<Stretch> = Vec::new();
    for source in axis {
        match (stretches.last_mut(), source) {
            (Some(Stretch::Fill(count)), Source::Fill) => *count += 1,
            (Some(Stretch::Elements { from, count }), Source::Element(at))
                if *from + *count == *at =>
            {
                *count += 1;
            }
            (_, Source::Fill) => stretches.push(Stretch::Fill(1)),
            (_, Source::Element(at)) => stretches.push(Stretch::Elements {
                from: *at,
                count: 1,
            }),
        }
    }
    stretches
}

/// Where the row of the source begins that a row of the result copies; `None` if all of it is fill.
fn row_start(outer: &[Vec<Source>], strides: &[usize], row: usize) -> Option<usize> {
    let (mut rest, mut start) = (row, 0);
    for (axis, stride) in outer.iter().zip(strides).rev() {
        match axis[rest % axis.len()] {
            Source::Fill => return None,
            Source::Element(at) => start += at * stride,
        }
        rest /= axis.len();
    }
    Some(start)
}
