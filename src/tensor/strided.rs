//! Strided views, copied out of a tensor or written into a copy of it.

use rayon::prelude::*;

use super::movement::for_kind;
use super::{Element, Tensor, TensorError};

/// Copies of fewer elements than this are not worth a second thread.
const PARALLEL_ELEMENTS: usize = 1 << 16;

impl Tensor {
    /// The tensor of this shape whose element at (i, j, …) is the element at
    /// `start + i·strides[0] + j·strides[1] + …` of this one. A stride of 0 repeats, a negative one
    /// reverses: this is every transpose, slice, broadcast and reversal. The buffer is shared if
    /// the elements stand in the same order as in this tensor.
    ///
    /// # Errors
    ///
    /// If some index is outside of this tensor, or `strides` has another length than `shape`.
    pub fn strided(
        &self,
        shape: Vec<usize>,
        start: isize,
        strides: &[isize],
    ) -> Result<Self, TensorError> {
        let len = self.check_view(&shape, start, strides)?;
        let axes = merged(&shape, strides);
        let in_order = axes.is_empty() || matches!(axes[..], [(_, 1)]);
        if start == 0 && len == self.len() && (in_order || len == 0) {
            return self.reshaped(shape);
        }
        let (inner, stride, outer) = innermost(&axes);
        if self.packed().is_some() && stride == 1 && len > 0 && len < self.len() {
            // Of a part of a weight no more than that part is widened.
            let mut rows = Rows::new(outer, start, 0);
            let starts: Vec<usize> = (0..len / inner).map(|_| rows.next() as usize).collect();
            return self.runs(shape, inner, &starts);
        }
        for_kind!(self, Kind => {
            let source = Kind::read(self)?;
            let elements = copy(&source, &axes, start, len);
            Ok(Kind::make(self.dtype(), shape, elements))
        })
    }

    /// A copy of this tensor in which the view that [`Self::strided`] would give holds the elements
    /// of `update`, which has the shape of the view. No two elements of the view may be the same.
    ///
    /// # Errors
    ///
    /// If some index is outside of this tensor, or the two are of different kinds.
    pub fn with_strided(
        &self,
        start: isize,
        strides: &[isize],
        update: &Self,
    ) -> Result<Self, TensorError> {
        let len = self.check_view(update.shape(), start, strides)?;
        if len == 0 {
            return Ok(self.clone());
        }
        let axes = merged(update.shape(), strides);
        let (inner, stride, outer) = innermost(&axes);
        for_kind!(self, Kind => {
            let update = Kind::read(update)?;
            let mut elements = Kind::read(self)?.into_owned();
            let mut rows = Rows::new(outer, start, 0);
            for row in update.chunks_exact(inner) {
                let at = rows.next();
                if stride == 1 {
                    elements[at as usize..at as usize + inner].clone_from_slice(row);
                } else {
                    for (index, value) in row.iter().enumerate() {
                        elements[(at + index as isize * stride) as usize] = value.clone();
                    }
                }
            }
            Ok(Kind::make(self.dtype(), self.shape().to_vec(), elements))
        })
    }

    /// The number of elements of a view, all of which must be inside of this tensor.
    fn check_view(
        &self,
        shape: &[usize],
        start: isize,
        strides: &[isize],
    ) -> Result<usize, TensorError> {
        let len = super::elements(shape).ok_or_else(|| TensorError::TooLarge(shape.to_vec()))?;
        if shape.len() != strides.len() {
            return Err(TensorError::Data(format!(
                "{} strides do not fit the shape {shape:?}",
                strides.len()
            )));
        }
        if len == 0 {
            return Ok(0);
        }
        let (mut lowest, mut highest) = (start as i128, start as i128);
        for (size, stride) in shape.iter().zip(strides) {
            let reach = (*size as i128 - 1) * *stride as i128;
            lowest += reach.min(0);
            highest += reach.max(0);
        }
        if lowest < 0 || highest >= self.len() as i128 {
            return Err(TensorError::Data(format!(
                "elements {lowest} to {highest} are read of {}",
                self.len()
            )));
        }
        Ok(len)
    }
}

/// The axes of a view as (size, stride), without those of size 1, and with neighbours joined where
/// one walks on exactly where the other ends.
fn merged(shape: &[usize], strides: &[isize]) -> Vec<(usize, isize)> {
    let mut axes: Vec<(usize, isize)> = Vec::with_capacity(shape.len());
    for (size, stride) in shape.iter().zip(strides) {
        if *size == 1 {
            continue;
        }
        match axes.last_mut() {
            Some((outer, outer_stride))
                if stride.checked_mul(*size as isize) == Some(*outer_stride) =>
            {
                *outer *= size;
                *outer_stride = *stride;
            }
            _ => axes.push((*size, *stride)),
        }
    }
    axes
}

/// Size and stride of the last axis, and the axes before it.
fn innermost(axes: &[(usize, isize)]) -> (usize, isize, &[(usize, isize)]) {
    match axes.split_last() {
        Some(((size, stride), outer)) => (*size, *stride, outer),
        None => (1, 1, &[]),
    }
}

/// The positions of the rows of a view, one after the other.
struct Rows<'a> {
    axes: &'a [(usize, isize)],
    index: Vec<usize>,
    at: isize,
}

impl<'a> Rows<'a> {
    /// From the row of this number on.
    fn new(axes: &'a [(usize, isize)], start: isize, row: usize) -> Self {
        let mut index = vec![0; axes.len()];
        let (mut rest, mut at) = (row, start);
        for (place, (size, stride)) in index.iter_mut().zip(axes).rev() {
            *place = rest % size;
            at += *place as isize * stride;
            rest /= size;
        }
        Self { axes, index, at }
    }

    /// The position of this row; goes on to the next.
    fn next(&mut self) -> isize {
        let at = self.at;
        for (place, (size, stride)) in self.index.iter_mut().zip(self.axes).rev() {
            *place += 1;
            self.at += stride;
            if *place < *size {
                break;
            }
            self.at -= *size as isize * stride;
            *place = 0;
        }
        at
    }
}

/// Elements of a view in order. All of them are inside of `source`.
fn copy<T: Element>(source: &[T], axes: &[(usize, isize)], start: isize, len: usize) -> Vec<T> {
    if len == 0 {
        return Vec::new();
    }
    let (inner, stride, outer) = innermost(axes);
    if stride == 1 && outer.is_empty() {
        return source[start as usize..start as usize + len].to_vec();
    }
    filled_by_rows(len, inner, |first, block| {
        let mut rows = Rows::new(outer, start, first);
        for row in block.chunks_exact_mut(inner) {
            let at = rows.next();
            match stride {
                1 => row.clone_from_slice(&source[at as usize..at as usize + inner]),
                0 => row.fill(source[at as usize].clone()),
                _ => {
                    let mut at = at;
                    for value in row {
                        *value = source[at as usize].clone();
                        at += stride;
                    }
                }
            }
        }
    })
}

/// `len` elements in rows of `row` elements each, filled in blocks of whole rows by `fill`, which is
/// told the number of the block's first row. Blocks are filled in parallel if there are many elements.
pub(super) fn filled_by_rows<T: Element>(
    len: usize,
    row: usize,
    fill: impl Fn(usize, &mut [T]) + Sync,
) -> Vec<T> {
    let mut elements = vec![T::default(); len];
    if len < PARALLEL_ELEMENTS || row == 0 {
        fill(0, &mut elements);
        return elements;
    }
    let rows = (len / row)
        .div_ceil(rayon::current_num_threads() * 4)
        .max(1);
    elements
        .par_chunks_mut(rows * row)
        .enumerate()
        .for_each(|(block, part)| fill(block * rows, part));
    elements
}
