//! Which block of a tensor an element belongs to: each axis is cut into equal parts.

use crate::ops::evaluate::EvalError;

/// A tensor cut into blocks, numbered in row-major order. Neighbouring axes are merged where the
/// numbering allows it, so that runs within a block are long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grid {
    /// Size of each axis and number of blocks along it, at least one axis.
    axes: Vec<(usize, usize)>,
}

impl Grid {
    /// The grid of a tensor of shape `sizes` with so many blocks along each axis.
    ///
    /// # Errors
    ///
    /// If a size is not a multiple of its number of blocks, or the ranks differ.
    pub(super) fn new(sizes: &[usize], counts: &[usize]) -> Result<Self, EvalError> {
        let fits = |(size, count): (&usize, &usize)| *count > 0 && size % count == 0;
        if sizes.len() != counts.len() || !sizes.iter().zip(counts).all(fits) {
            return Err(EvalError::invalid(format!(
                "the shape {sizes:?} cannot be cut into {counts:?} blocks"
            )));
        }
        let mut axes: Vec<(usize, usize)> = vec![(1, 1)];
        for (&size, &count) in sizes.iter().zip(counts) {
            match axes.last_mut() {
                // A block covers this axis whole, or the one before holds one element per block.
                Some(last) if count == 1 || last.0 == last.1 => {
                    *last = (last.0 * size, last.1 * count);
                }
                _ => axes.push((size, count)),
            }
        }
        Ok(Self { axes })
    }

    /// The grid of a tensor in which each index of `axis` has a block of its own.
    pub(super) fn along(sizes: &[usize], axis: usize) -> Result<Self, EvalError> {
        let mut counts = vec![1; sizes.len()];
        if let (Some(count), Some(size)) = (counts.get_mut(axis), sizes.get(axis)) {
            *count = (*size).max(1);
        }
        Self::new(sizes, &counts)
    }

    /// Calls `with_run` for each run of elements of one block, among `count` elements from `start` on:
    /// the first element of the run counted from `start`, the number of elements, and the block.
    pub(super) fn each_run(
        &self,
        start: usize,
        count: usize,
        mut with_run: impl FnMut(usize, usize, usize),
    ) {
        let Some(((size, blocks), outer)) = self.axes.split_last() else {
            return;
        };
        let block = (size / blocks).max(1);
        let mut place = 0;
        while place < count {
            let (row, column) = (
                (start + place) / size.max(&1),
                (start + place) % size.max(&1),
            );
            let first = Self::row(outer, row) * blocks;
            // The rest of this row.
            let end = count.min(place + size - column);
            let mut column = column;
            while place < end {
                let run = (block - column % block).min(end - place);
                with_run(place, run, first + column / block);
                place += run;
                column += run;
            }
        }
    }

    /// The number of the block of a row, among the outer axes.
    fn row(outer: &[(usize, usize)], mut row: usize) -> usize {
        let (mut number, mut stride) = (0, 1);
        for (size, blocks) in outer.iter().rev() {
            number += row % size / (size / blocks).max(1) * stride;
            stride *= blocks;
            row /= size;
        }
        number
    }
}
