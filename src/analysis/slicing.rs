//! A value that is cut along one axis into parts.
//!
//! ```text
//! part = slice_by_index(x, begin = [0, b, 0], end = [n, e, m])      end_mask where sizes are unknown
//! ```

use crate::ir::{Binding, DType, Dim, TensorData, TensorType, Value};
use crate::pass::{Edit, EditError};

/// What is cut, and along which axis.
pub struct Slicing {
    /// The value.
    pub binding: Binding,
    /// Its sizes.
    pub dims: Vec<Dim>,
    /// The axis, counted from 0.
    pub axis: usize,
}

impl Slicing {
    /// The part from `begin` to `end` of x, which is the value or one of its shape; an axis of unknown size
    /// is taken to its end.
    ///
    /// # Errors
    ///
    /// If the operation cannot be made.
    pub fn part(
        &self,
        edit: &mut Edit<'_>,
        x: &Binding,
        begin: u64,
        end: u64,
    ) -> Result<Binding, EditError> {
        let mut begins = vec![0; self.dims.len()];
        let sizes = self.dims.iter().map(|dim| dim.size().unwrap_or(0));
        let mut ends: Vec<u64> = sizes.collect();
        if let (Some(b), Some(e)) = (begins.get_mut(self.axis), ends.get_mut(self.axis)) {
            (*b, *e) = (begin, end);
        }
        let (begins, ends) = (ints(edit, &begins), ints(edit, &ends));
        let mut arguments = vec![("x", x.clone()), ("begin", begins), ("end", ends)];
        let open: Vec<bool> = self.dims.iter().map(|dim| dim.size().is_none()).collect();
        if open.contains(&true) {
            let ty = TensorType::fixed(DType::Bool, &[open.len() as u64]);
            let mask = edit.constant(Value::tensor(ty, TensorData::Bools(open)));
            arguments.push(("end_mask", mask));
        }
        Ok(Binding::Value(edit.op("slice_by_index", &arguments)?))
    }
}

/// A constant list of sizes.
pub fn ints(edit: &mut Edit<'_>, values: &[u64]) -> Binding {
    let values: Vec<i32> = values.iter().map(|value| *value as i32).collect();
    edit.constant(Value::int32s(&values))
}
