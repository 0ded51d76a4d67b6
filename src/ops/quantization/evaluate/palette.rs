//! Palettes: tables of values or vectors, and indices into them, dense or sparse.

use rayon::prelude::*;

use super::grid::Grid;
use super::sparse::Mask;
use super::{BLOCK, spelled_shape};
use crate::ir::Opset;
use crate::ir::types::DType;
use crate::ops::evaluate::{Call, Datum, EvalError, Results, in_parameter, one};
use crate::tensor::{Element, Tensor, split_at_axis};

/// The tables of `lut` \[groups…, entries, vector\] and how they lie over the indices.
struct Palette {
    /// Which indices look into which table.
    grid: Grid,
    /// Entries of a table.
    entries: usize,
    /// Elements of an entry.
    vector: usize,
    /// Indices before, along and behind the axis in which vectors are laid out.
    around: (usize, usize, usize),
    /// The shape of the result.
    shape: Vec<usize>,
}

impl Palette {
    fn new(call: &Call, lut: &Tensor, indices: &[usize]) -> Result<Self, EvalError> {
        let [groups @ .., entries, vector] = lut.shape() else {
            return Err(EvalError::invalid("`lut` has a rank below 2"));
        };
        if indices.is_empty() || *entries == 0 || *vector == 0 {
            return Err(EvalError::invalid(
                "`lut` is empty, or there is one index only",
            ));
        }
        let axis = if *vector == 1 && !call.has("vector_axis") {
            indices.len() - 1
        } else {
            let axis = call.int("vector_axis")?;
            crate::tensor::axis(axis, indices.len()).map_err(in_parameter("vector_axis"))?
        };
        let mut shape = indices.to_vec();
        shape[axis] = shape[axis]
            .checked_mul(*vector)
            .ok_or_else(|| EvalError::invalid("`lut` has vectors of too many elements"))?;
        Ok(Self {
            grid: Grid::new(indices, groups)?,
            entries: *entries,
            vector: *vector,
            around: split_at_axis(indices, axis),
            shape,
        })
    }

    /// The entry that an index stands for in the table of a block.
    fn entry<'t, T>(&self, tables: &'t [T], block: usize, index: u8) -> Result<&'t [T], EvalError> {
        let entry = usize::from(index);
        if entry >= self.entries {
            return Err(EvalError::OutOfRange {
                parameter: "indices",
                index: i64::from(index),
                lowest: 0,
                highest: self.entries as i64 - 1,
            });
        }
        let start = (block * self.entries + entry) * self.vector;
        tables
            .get(start..start + self.vector)
            .ok_or_else(|| EvalError::invalid(format!("`lut` has fewer tables than {}", block + 1)))
    }

    /// The values of all indices.
    fn dense<T: Element + Copy + Default>(
        &self,
        indices: &Tensor,
        lut: &Tensor,
    ) -> Result<Tensor, EvalError> {
        let tables = T::read(lut)?;
        let (_, _, inner) = self.around;
        // Rows of the indices behind the axis; each gives as many rows as a vector has elements.
        let rows = (BLOCK / inner.max(1)).max(1);
        let mut result = vec![T::default(); self.shape.iter().product()];
        result
            .par_chunks_mut((rows * inner * self.vector).max(1))
            .enumerate()
            .try_for_each(|(index, result)| -> Result<(), EvalError> {
                let start = index * rows * inner;
                let mut codes = vec![0; result.len() / self.vector];
                indices.read_codes(start, &mut codes)?;
                let mut outcome = Ok(());
                self.grid
                    .each_run(start, codes.len(), |first, count, block| {
                        if outcome.is_ok() {
                            let codes = &codes[first..first + count];
                            outcome = self.run(&tables, block, codes, first, result);
                        }
                    });
                outcome
            })?;
        Ok(T::make(lut.dtype(), self.shape.clone(), result))
    }

    /// The values of indices that look into one table. `first` is the place of the first of them.
    fn run<T: Copy>(
        &self,
        tables: &[T],
        block: usize,
        codes: &[u8],
        first: usize,
        result: &mut [T],
    ) -> Result<(), EvalError> {
        if self.vector == 1 {
            for (value, code) in result[first..].iter_mut().zip(codes) {
                *value = self.entry(tables, block, *code)?[0];
            }
            return Ok(());
        }
        let (_, _, inner) = self.around;
        for (place, code) in (first..).zip(codes) {
            let entry = self.entry(tables, block, *code)?;
            let start = place / inner * inner * self.vector + place % inner;
            let places = result[start..].iter_mut().step_by(inner);
            for (place, value) in places.zip(entry) {
                *place = *value;
            }
        }
        Ok(())
    }

    /// The mask and the values of the indices that a mask leaves, in the order of the dense result.
    fn sparse<T: Element + Copy>(
        &self,
        mask: &Tensor,
        indices: &Tensor,
        lut: &Tensor,
    ) -> Result<(Tensor, Tensor), EvalError> {
        let tables = T::read(lut)?;
        let set = Mask::read(mask, indices.len())?;
        let mut codes = vec![0; indices.len()];
        indices.read_codes(0, &mut codes)?;
        let mut next = codes.iter();
        let mut entries = Vec::with_capacity(mask.len());
        let mut outcome = Ok(());
        self.grid.each_run(0, mask.len(), |first, count, block| {
            for bit in &set.bits[first..first + count] {
                let code = if *bit { next.next() } else { None };
                entries.push(code.and_then(|code| {
                    let entry = self.entry(&tables, block, *code);
                    entry.map_err(|error| outcome = Err(error)).ok()
                }));
            }
        });
        outcome?;
        let (_, _, inner) = self.around;
        let mut values = Vec::with_capacity(indices.len() * self.vector);
        let mut expanded = Vec::with_capacity(self.shape.iter().product());
        for row in entries.chunks(inner.max(1)) {
            for element in 0..self.vector {
                expanded.extend(row.iter().map(|entry| i64::from(entry.is_some())));
                values.extend(row.iter().flatten().map(|entry| entry[element]));
            }
        }
        let count = values.len();
        Ok((
            Tensor::ints(mask.dtype(), self.shape.clone(), expanded),
            T::make(lut.dtype(), vec![count], values),
        ))
    }
}

/// The values that the indices stand for. Up to iOS 17 there is one table of values, the indices
/// are bytes that hold as many bits for each as the table needs, and `shape` gives the shape.
pub(super) fn lut_to_dense(call: &Call) -> Results {
    let (mut lut, mut indices) = (call.tensor("lut")?.clone(), call.tensor("indices")?.clone());
    if call.opset < Opset::CoreML8 {
        let shape = spelled_shape(call)?;
        call.room_for(&shape)?;
        let dtype = match lut.len() {
            2 => DType::UInt1,
            4 => DType::UInt2,
            16 => DType::UInt4,
            64 => DType::UInt6,
            256 => DType::UInt8,
            entries => {
                return Err(EvalError::invalid(format!(
                    "`lut` has {entries} entries, not 2, 4, 16, 64 or 256"
                )));
            }
        };
        let mut table = vec![1; shape.len()];
        table.extend([lut.len(), 1]);
        lut = lut.reshaped(table)?;
        indices = indices.bytes_as(dtype, shape)?;
    }
    let palette = Palette::new(call, &lut, indices.shape())?;
    call.room_for(&palette.shape)?;
    one(if lut.dtype().is_float() {
        palette.dense::<f32>(&indices, &lut)?
    } else {
        palette.dense::<i64>(&indices, &lut)?
    })
}

/// The same for the indices that a mask leaves; the mask, widened along the axis of the vectors, is
/// the first result.
pub(super) fn lut_to_sparse(call: &Call) -> Results {
    let (lut, mask) = (call.tensor("lut")?, call.tensor("indices_mask")?);
    let indices = call.tensor("indices_nonzero_data")?;
    let palette = Palette::new(call, lut, mask.shape())?;
    call.room_for(&palette.shape)?;
    let (mask, values) = if lut.dtype().is_float() {
        palette.sparse::<f32>(mask, indices, lut)?
    } else {
        palette.sparse::<i64>(mask, indices, lut)?
    };
    Ok(vec![Datum::Tensor(mask), Datum::Tensor(values)])
}
