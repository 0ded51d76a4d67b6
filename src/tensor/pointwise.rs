//! Functions of single elements: of one tensor, and of two or three read side by side with
//! broadcasting. The work is cut into blocks of a fixed size, so that the number of threads never
//! changes a result.

use std::ops::Range;

use rayon::prelude::*;

use super::shape::{broadcast_shapes, broadcast_strides};
use super::{TensorError, elements};

/// Results with fewer elements than this are not worth a second thread.
const PARALLEL_ELEMENTS: usize = 1 << 15;

/// Elements that one task makes.
const BLOCK: usize = 1 << 13;

/// The `len` elements that `fill` writes: it is given ranges of indices with the places of those
/// elements, from several threads if there are many. It is called once for thousands of elements,
/// and is not a type parameter because each would be compiled with its own copy of rayon's machinery.
pub fn in_blocks<C>(len: usize, fill: &(dyn Fn(Range<usize>, &mut [C]) + Sync)) -> Vec<C>
where
    C: Clone + Default + Send,
{
    let mut out = vec![C::default(); len];
    if len < PARALLEL_ELEMENTS {
        fill(0..len, &mut out);
    } else {
        out.par_chunks_mut(BLOCK)
            .enumerate()
            .for_each(|(index, block)| {
                let start = index * BLOCK;
                fill(start..start + block.len(), block);
            });
    }
    out
}

/// The function of every element.
pub fn map<A, C>(x: &[A], function: impl Fn(A) -> C + Sync) -> Vec<C>
where
    A: Copy + Sync,
    C: Clone + Default + Send,
{
    in_blocks(x.len(), &|range, out: &mut [C]| {
        for (out, x) in out.iter_mut().zip(&x[range]) {
            *out = function(*x);
        }
    })
}

/// How `N` tensors are read side by side, the smaller ones repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broadcast<const N: usize> {
    shape: Vec<usize>,
    len: usize,
    /// Size of the innermost run, and the distance between its elements in each tensor: 0 or 1.
    inner: usize,
    inner_strides: [usize; N],
    /// Sizes and strides of the axes around it, innermost first.
    outer: Vec<(usize, [usize; N])>,
}

/// A run of elements of one tensor, or one element repeated.
#[derive(Clone, Copy, Debug)]
enum Lane<'a, T> {
    /// As many elements as the run is long.
    Run(&'a [T]),
    /// The same element all along.
    Same(T),
}

impl<const N: usize> Broadcast<N> {
    /// The plan for tensors of these shapes.
    ///
    /// # Errors
    ///
    /// If the shapes do not broadcast together, or to more elements than can be counted.
    pub fn new(shapes: [&[usize]; N]) -> Result<Self, TensorError> {
        let mut shape = Vec::new();
        for other in shapes {
            shape = broadcast_shapes(&shape, other)?;
        }
        let len = elements(&shape).ok_or_else(|| TensorError::TooLarge(shape.clone()))?;
        let mut strides = Vec::with_capacity(N);
        for other in shapes {
            strides.push(broadcast_strides(other, &shape)?);
        }
        let mut axes: Vec<(usize, [usize; N])> = Vec::new();
        for (axis, size) in shape.iter().copied().enumerate().rev() {
            if size == 1 {
                continue;
            }
            let own = std::array::from_fn(|tensor| strides[tensor][axis] as usize);
            match axes.last_mut() {
                // An axis whose neighbours lie as far apart as the last one is long joins it.
                Some((inner, inner_strides))
                    if (0..N).all(|tensor| own[tensor] == inner_strides[tensor] * *inner) =>
                {
                    *inner *= size;
                }
                _ => axes.push((size, own)),
            }
        }
        let (inner, inner_strides) = axes.first().copied().unwrap_or((1, [0; N]));
        Ok(Self {
            shape,
            len,
            inner,
            inner_strides,
            outer: axes.into_iter().skip(1).collect(),
        })
    }

    /// The shape that all tensors fill.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Calls `visit` for the pieces of a range of result indices that lie in one run: with the
    /// piece relative to the range's start, and the index of its first element in each tensor.
    fn pieces(&self, range: Range<usize>, mut visit: impl FnMut(Range<usize>, [usize; N])) {
        let mut at = range.start;
        while at < range.end {
            let within = at % self.inner;
            let mut row = at / self.inner;
            let mut starts = self.inner_strides.map(|stride| stride * within);
            for (size, strides) in &self.outer {
                let index = row % size;
                row /= size;
                for (start, stride) in starts.iter_mut().zip(strides) {
                    *start += index * stride;
                }
            }
            let end = (at + self.inner - within).min(range.end);
            visit(at - range.start..end - range.start, starts);
            at = end;
        }
    }

    fn lane<'a, T: Copy>(
        &self,
        tensor: usize,
        elements: &'a [T],
        start: usize,
        len: usize,
    ) -> Lane<'a, T> {
        if self.inner_strides[tensor] == 0 {
            Lane::Same(elements[start])
        } else {
            Lane::Run(&elements[start..start + len])
        }
    }
}

/// The function of every pair of elements of two tensors with the plan's shapes.
pub fn zip<A, B, C>(
    plan: &Broadcast<2>,
    a: &[A],
    b: &[B],
    function: impl Fn(A, B) -> C + Sync,
) -> Vec<C>
where
    A: Copy + Sync,
    B: Copy + Sync,
    C: Clone + Default + Send,
{
    in_blocks(plan.len, &|range, out: &mut [C]| {
        plan.pieces(range, |piece, [at_a, at_b]| {
            let out = &mut out[piece];
            let (a, b) = (
                plan.lane(0, a, at_a, out.len()),
                plan.lane(1, b, at_b, out.len()),
            );
            match (a, b) {
                (Lane::Run(a), Lane::Run(b)) => {
                    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                        *out = function(*a, *b);
                    }
                }
                (Lane::Run(a), Lane::Same(b)) => {
                    for (out, a) in out.iter_mut().zip(a) {
                        *out = function(*a, b);
                    }
                }
                (Lane::Same(a), Lane::Run(b)) => {
                    for (out, b) in out.iter_mut().zip(b) {
                        *out = function(a, *b);
                    }
                }
                (Lane::Same(a), Lane::Same(b)) => out.fill(function(a, b)),
            }
        });
    })
}

/// From two tensors, the elements of `a` where the condition holds and those of `b` elsewhere.
pub fn choose<T>(plan: &Broadcast<3>, condition: &[bool], a: &[T], b: &[T]) -> Vec<T>
where
    T: Copy + Default + Send + Sync,
{
    in_blocks(plan.len, &|range, out: &mut [T]| {
        plan.pieces(range, |piece, [at_condition, at_a, at_b]| {
            let out = &mut out[piece];
            let len = out.len();
            let (a, b) = (plan.lane(1, a, at_a, len), plan.lane(2, b, at_b, len));
            match (plan.lane(0, condition, at_condition, len), a, b) {
                (Lane::Same(true), chosen, _) | (Lane::Same(false), _, chosen) => match chosen {
                    Lane::Run(chosen) => out.copy_from_slice(chosen),
                    Lane::Same(chosen) => out.fill(chosen),
                },
                (Lane::Run(condition), Lane::Run(a), Lane::Run(b)) => {
                    for (((out, condition), a), b) in out.iter_mut().zip(condition).zip(a).zip(b) {
                        *out = if *condition { *a } else { *b };
                    }
                }
                (Lane::Run(condition), Lane::Run(a), Lane::Same(b)) => {
                    for ((out, condition), a) in out.iter_mut().zip(condition).zip(a) {
                        *out = if *condition { *a } else { b };
                    }
                }
                (Lane::Run(condition), Lane::Same(a), Lane::Run(b)) => {
                    for ((out, condition), b) in out.iter_mut().zip(condition).zip(b) {
                        *out = if *condition { a } else { *b };
                    }
                }
                (Lane::Run(condition), Lane::Same(a), Lane::Same(b)) => {
                    for (out, condition) in out.iter_mut().zip(condition) {
                        *out = if *condition { a } else { b };
                    }
                }
            }
        });
    })
}
