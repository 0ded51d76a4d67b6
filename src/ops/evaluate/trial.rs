//! Calls of single ops, as the unit tests of the evaluations make them.

use std::collections::BTreeMap;

use super::{Call, Datum, EvalError, Results, evaluate};
use crate::ir::types::DType;
use crate::ops::{Numerics, Opset};
use crate::tensor::Tensor;

/// An op with its arguments, computed in fp32 under the newest opset unless told otherwise.
#[derive(Clone, Debug)]
pub(in crate::ops) struct Trial {
    op_type: &'static str,
    opset: Opset,
    numerics: Numerics,
    memory: u64,
    arguments: BTreeMap<&'static str, Vec<Datum>>,
}

impl Trial {
    /// An op without arguments.
    pub(in crate::ops) fn of(op_type: &'static str) -> Self {
        Self {
            op_type,
            opset: Opset::CoreML9,
            numerics: Numerics::FP32,
            memory: 1 << 30,
            arguments: BTreeMap::new(),
        }
    }

    /// With one more argument.
    pub(in crate::ops) fn with(mut self, parameter: &'static str, tensor: Tensor) -> Self {
        self.arguments
            .entry(parameter)
            .or_default()
            .push(Datum::Tensor(tensor));
        self
    }

    /// With an argument that is one float.
    pub(in crate::ops) fn float(self, parameter: &'static str, value: f32) -> Self {
        self.with(parameter, floats(&[], &[value]))
    }

    /// With an argument that is a list of integers.
    pub(in crate::ops) fn ints(self, parameter: &'static str, values: &[i64]) -> Self {
        self.with(parameter, ints(&[values.len()], values))
    }

    /// With an argument that is one integer.
    pub(in crate::ops) fn int(self, parameter: &'static str, value: i64) -> Self {
        self.with(parameter, ints(&[], &[value]))
    }

    /// With an argument that is a string.
    pub(in crate::ops) fn text(self, parameter: &'static str, value: &str) -> Self {
        self.with(parameter, Tensor::texts(vec![], vec![value.to_owned()]))
    }

    /// With an argument that is a list of bools.
    pub(in crate::ops) fn bools(self, parameter: &'static str, values: &[bool]) -> Self {
        self.with(
            parameter,
            Tensor::bools(vec![values.len()], values.to_vec()),
        )
    }

    /// With an argument that is one bool.
    pub(in crate::ops) fn bool(self, parameter: &'static str, value: bool) -> Self {
        self.with(parameter, Tensor::bools(vec![], vec![value]))
    }

    /// With one more argument, which need not be a tensor.
    pub(in crate::ops) fn datum(mut self, parameter: &'static str, datum: Datum) -> Self {
        self.arguments.entry(parameter).or_default().push(datum);
        self
    }

    /// In a function of this opset.
    pub(in crate::ops) fn opset(mut self, opset: Opset) -> Self {
        self.opset = opset;
        self
    }

    /// Under other numerics.
    pub(in crate::ops) fn under(mut self, numerics: Numerics) -> Self {
        self.numerics = numerics;
        self
    }

    /// The results.
    pub(in crate::ops) fn run(&self) -> Results {
        evaluate(&Call {
            op_type: self.op_type,
            opset: self.opset,
            arguments: self.arguments.clone(),
            results: &[],
            numerics: &self.numerics,
            seed: 0,
            memory: self.memory,
        })
    }

    /// The one result, a tensor.
    pub(in crate::ops) fn tensor(&self) -> Tensor {
        let results = self.run().expect("the op can be computed");
        assert_eq!(results.len(), 1, "number of results");
        results[0].as_tensor().expect("a tensor").clone()
    }

    /// The elements of the one result, as fp64.
    pub(in crate::ops) fn numbers(&self) -> Vec<f64> {
        self.tensor().to_f64().expect("numbers")
    }

    /// Why it cannot be computed.
    pub(in crate::ops) fn error(&self) -> EvalError {
        self.run().expect_err("the op cannot be computed")
    }
}

/// A tensor of fp32.
pub(in crate::ops) fn floats(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::floats(DType::Float32, shape.to_vec(), values.to_vec())
}

/// A tensor of fp16.
pub(in crate::ops) fn halves(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::floats(DType::Float16, shape.to_vec(), values.to_vec())
}

/// A tensor of int32.
pub(in crate::ops) fn ints(shape: &[usize], values: &[i64]) -> Tensor {
    Tensor::ints(DType::Int32, shape.to_vec(), values.to_vec())
}

/// Asserts that numbers are equal up to a relative error; NaN equals NaN.
#[track_caller]
pub(in crate::ops) fn assert_close(actual: &[f64], expected: &[f64], relative: f64) {
    assert_eq!(actual.len(), expected.len(), "number of elements");
    for (index, (a, e)) in actual.iter().zip(expected).enumerate() {
        let close = a == e || (a.is_nan() && e.is_nan()) || (a - e).abs() <= relative * e.abs();
        assert!(close, "element {index} is {a}, not {e}");
    }
}
