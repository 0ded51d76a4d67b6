//! Folding the elements along some axes into one.

use rayon::prelude::*;

use crate::tensor::{Tensor, TensorError};

/// Reductions of fewer elements than this are not worth a second thread.
const PARALLEL_ELEMENTS: usize = 1 << 16;

/// Neighbouring sums that run together; their states stay in the nearest cache.
const COLUMNS: usize = 512;

/// A tensor seen as \[outer, count, behind\], of which the middle axis is reduced.
#[derive(Debug)]
pub(super) struct Reduced {
    pub(super) outer: usize,
    pub(super) count: usize,
    pub(super) behind: usize,
    /// Shape of the result.
    pub(super) shape: Vec<usize>,
}

impl Reduced {
    /// The layout for these axes, and the tensor in it: the axes go last if they do not lie side by
    /// side. The result keeps them with size 1 if `keep`.
    pub(super) fn new(
        x: &Tensor,
        axes: &[usize],
        keep: bool,
    ) -> Result<(Tensor, Self), TensorError> {
        let sizes = x.shape();
        let is_reduced = |axis: &usize| axes.contains(axis);
        let shape = (0..sizes.len())
            .filter_map(|axis| {
                if is_reduced(&axis) {
                    keep.then_some(1)
                } else {
                    Some(sizes[axis])
                }
            })
            .collect();
        let product =
            |axes: &mut dyn Iterator<Item = usize>| axes.map(|axis| sizes[axis]).product();
        // Axes of size 1 may stand anywhere.
        let mut wide = axes.iter().copied().filter(|axis| sizes[*axis] != 1);
        let (first, last) = wide.clone().fold((sizes.len(), 0), |(first, last), axis| {
            (first.min(axis), last.max(axis + 1))
        });
        if wide.next().is_none() {
            let layout = Self {
                outer: product(&mut (0..sizes.len())),
                count: 1,
                behind: 1,
                shape,
            };
            return Ok((x.clone(), layout));
        }
        if (first..last).all(|axis| sizes[axis] == 1 || is_reduced(&axis)) {
            let layout = Self {
                outer: product(&mut (0..first)),
                count: product(&mut (first..last)),
                behind: product(&mut (last..sizes.len())),
                shape,
            };
            return Ok((x.clone(), layout));
        }
        let (behind, kept): (Vec<_>, Vec<_>) = (0..sizes.len()).partition(is_reduced);
        let layout = Self {
            outer: product(&mut kept.iter().copied()),
            count: product(&mut behind.iter().copied()),
            behind: 1,
            shape,
        };
        let order: Vec<usize> = kept.into_iter().chain(behind).collect();
        Ok((x.transposed(&order)?, layout))
    }

    /// Number of results.
    pub(super) fn results(&self) -> usize {
        self.outer * self.behind
    }
}

/// A state that takes in one element after the other.
pub(super) struct Fold<A, Step, Merge, Finish> {
    pub(super) start: A,
    pub(super) step: Step,
    /// Of two states that took in different elements.
    pub(super) merge: Merge,
    pub(super) finish: Finish,
}

impl<A, Step, Merge, Finish> Fold<A, Step, Merge, Finish>
where
    A: Copy + Send + Sync,
    Merge: Fn(A, A) -> A + Sync,
{
    /// The results in order. `LANES` states take in the elements of a row in turn; with one, all
    /// elements go into one state in order.
    pub(super) fn over<const LANES: usize, T, U>(&self, x: &[T], layout: &Reduced) -> Vec<U>
    where
        T: Copy + Sync,
        U: Clone + Default + Send,
        Step: Fn(A, T) -> A + Sync,
        Finish: Fn(A) -> U + Sync,
    {
        let (count, behind) = (layout.count, layout.behind);
        let row = |index: usize| {
            let mut states = [self.start; LANES];
            for chunk in x[index * count..(index + 1) * count].chunks(LANES) {
                for (state, x) in states.iter_mut().zip(chunk) {
                    *state = (self.step)(*state, *x);
                }
            }
            let merged = states.into_iter().reduce(&self.merge);
            (self.finish)(merged.unwrap_or(self.start))
        };
        let columns = |outer: usize, first: usize, out: &mut [U]| {
            let mut states = vec![self.start; out.len()];
            for index in 0..count {
                let at = (outer * count + index) * behind + first;
                for (state, x) in states.iter_mut().zip(&x[at..at + out.len()]) {
                    *state = (self.step)(*state, *x);
                }
            }
            for (out, state) in out.iter_mut().zip(states) {
                *out = (self.finish)(state);
            }
        };
        each_result(layout, x.len() >= PARALLEL_ELEMENTS, &row, &columns)
    }
}

/// The results of `row` if nothing is behind the reduced axis, else those that `columns` writes: from
/// an index of the outer axes and one behind on. The two are not type parameters because each would be
/// compiled with its own copy of rayon's machinery.
fn each_result<U: Clone + Default + Send>(
    layout: &Reduced,
    in_parallel: bool,
    row: &(dyn Fn(usize) -> U + Sync),
    columns: &(dyn Fn(usize, usize, &mut [U]) + Sync),
) -> Vec<U> {
    let behind = layout.behind;
    let mut out = vec![U::default(); layout.results()];
    if out.is_empty() {
        return out;
    }
    match (behind, in_parallel) {
        (1, false) => out
            .iter_mut()
            .enumerate()
            .for_each(|(index, out)| *out = row(index)),
        (1, true) => out
            .par_iter_mut()
            .enumerate()
            .for_each(|(index, out)| *out = row(index)),
        (_, false) => out
            .chunks_mut(behind)
            .enumerate()
            .for_each(|(outer, out)| columns(outer, 0, out)),
        (_, true) => out
            .par_chunks_mut(behind)
            .enumerate()
            .for_each(|(outer, out)| {
                out.par_chunks_mut(COLUMNS)
                    .enumerate()
                    .for_each(|(block, out)| columns(outer, block * COLUMNS, out));
            }),
    }
    out
}
