//! Runs of neighbouring elements: what gathers read.

use super::movement::for_kind;
use super::strided::filled_by_rows;
use super::{Element, Tensor, TensorError};

impl Tensor {
    /// The tensor of this shape made of runs of `run` elements each, the k-th of which begins at the
    /// element `starts[k]` of this one. Of packed floats only those that are asked for are widened.
    ///
    /// # Errors
    ///
    /// If a run is not inside of this tensor, or the runs do not fill the shape.
    pub fn runs(
        &self,
        shape: Vec<usize>,
        run: usize,
        starts: &[usize],
    ) -> Result<Self, TensorError> {
        let len = starts.len().checked_mul(run);
        if len.is_none() || super::elements(&shape) != len {
            return Err(TensorError::Elements {
                found: len.unwrap_or(usize::MAX),
                shape,
            });
        }
        let last = self.len().checked_sub(run);
        if let Some(start) = starts.iter().find(|start| Some(**start) > last) {
            return Err(TensorError::Data(format!(
                "{run} elements from {start} on are read of {}",
                self.len()
            )));
        }
        let len = starts.len() * run;
        if let Some(packed) = self.packed()
            && self.dtype().is_float()
            && len < self.len()
        {
            let elements = packed.float_runs(self.dtype(), self.len(), run, starts)?;
            return Ok(Self::floats(self.dtype(), shape, elements));
        }
        for_kind!(self, Kind => {
            let source = Kind::read(self)?;
            let elements = filled_by_rows(len, run, |first, block: &mut [Kind]| {
                if run == 1 {
                    for (value, start) in block.iter_mut().zip(&starts[first..]) {
                        *value = source[*start].clone();
                    }
                } else if run > 0 {
                    for (row, start) in block.chunks_exact_mut(run).zip(&starts[first..]) {
                        row.clone_from_slice(&source[*start..*start + run]);
                    }
                }
            });
            Ok(Kind::make(self.dtype(), shape, elements))
        })
    }
}
