//! One op as inference sees it: its arguments with their types and known values.
//!
//! A view stands apart from the graph, so that a pass can ask for the type of an op that does not
//! exist yet.

use std::collections::BTreeMap;

use crate::ir::types::{Dim, TensorType, ValueType};
use crate::ir::value::Value;
use crate::ir::{Attributes, Opset};
use crate::ops::{constant, infer::InferError};

/// One operand: its type and, if it is known at compile time, its value.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    /// The type.
    pub ty: &'a ValueType,
    /// The value, if a constant holds it. Data in a weight file that is not loaded counts as a
    /// value of unknown content.
    pub constant: Option<&'a Value>,
}

/// What inference looks at.
#[derive(Clone, Debug)]
pub struct OpView<'a> {
    /// The op's type.
    pub op_type: &'a str,
    /// The opset of the function that the op stands in.
    pub opset: Opset,
    /// The operands of each parameter, in order; a parameter without operands is left out.
    pub arguments: BTreeMap<&'a str, Vec<Operand<'a>>>,
    /// The op's attributes, which hold the parameters of `const` and of older `constexpr_*` ops.
    pub attributes: &'a Attributes,
}

/// What is known about an argument's value.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument<T> {
    /// The op has no such argument.
    Missing,
    /// The argument is computed when the model runs, or its data is not loaded.
    Unknown,
    /// The value.
    Known(T),
}

impl<T> Argument<T> {
    /// The value, with a default for a missing argument; `None` if it is unknown.
    pub fn or(self, default: T) -> Option<T> {
        match self {
            Self::Missing => Some(default),
            Self::Unknown => None,
            Self::Known(value) => Some(value),
        }
    }

    /// The value if it is there and known.
    pub fn known(self) -> Option<T> {
        match self {
            Self::Known(value) => Some(value),
            _ => None,
        }
    }

    /// The value; a missing argument is an error, an unknown one leaves the op without a rule.
    pub(super) fn required(self, parameter: &'static str) -> Result<T, Stop> {
        match self {
            Self::Missing => Err(Stop::Wrong(InferError::Missing { parameter })),
            Self::Unknown => Err(Stop::NoRule),
            Self::Known(value) => Ok(value),
        }
    }

    /// The value or a default; an unknown value leaves the op without a rule.
    pub(super) fn required_or(self, default: T) -> Result<T, Stop> {
        self.or(default).ok_or(Stop::NoRule)
    }
}

/// Why a rule gives no type.
#[derive(Debug)]
pub(super) enum Stop {
    /// Too little is known.
    NoRule,
    /// The op is wrong.
    Wrong(InferError),
}

impl From<InferError> for Stop {
    fn from(error: InferError) -> Self {
        Self::Wrong(error)
    }
}

impl<'a> OpView<'a> {
    /// The operands of a variadic parameter; empty if it is missing.
    pub fn operands(&self, parameter: &str) -> &[Operand<'a>] {
        self.arguments.get(parameter).map_or(&[], Vec::as_slice)
    }

    /// The operand of a parameter, from the inputs or else from the attributes.
    pub fn operand(&self, parameter: &str) -> Option<Operand<'a>> {
        if let Some(operands) = self.arguments.get(parameter) {
            return operands.first().copied();
        }
        let value = self.attributes.get(parameter)?;
        Some(Operand {
            ty: value.ty.as_ref()?,
            constant: Some(value),
        })
    }

    /// The tensor type of a parameter's operand, if it has one.
    pub fn tensor(&self, parameter: &str) -> Option<&'a TensorType> {
        self.operand(parameter)?.ty.as_tensor()
    }

    /// The elements of an integer (or bool) argument, of any width and in any field.
    pub fn ints(&self, parameter: &str) -> Argument<Vec<i64>> {
        self.read(parameter, constant::integers)
    }

    /// The one element of an integer argument.
    pub fn int(&self, parameter: &str) -> Argument<i64> {
        self.read(parameter, |value| single(&constant::integers(value)?))
    }

    /// The elements of a bool argument.
    pub fn bools(&self, parameter: &str) -> Argument<Vec<bool>> {
        self.read(parameter, constant::bools)
    }

    /// The one element of a bool argument, or a default if it is missing; `None` if it is unknown.
    pub fn bool_or(&self, parameter: &str, default: bool) -> Option<bool> {
        self.read(parameter, |value| single(&constant::bools(value)?))
            .or(default)
    }

    /// The elements of a floating-point argument.
    pub fn floats(&self, parameter: &str) -> Argument<Vec<f64>> {
        self.read(parameter, constant::floats)
    }

    /// The one element of a floating-point argument.
    pub fn float(&self, parameter: &str) -> Argument<f64> {
        self.read(parameter, |value| single(&constant::floats(value)?))
    }

    /// The text of a string argument.
    pub fn string(&self, parameter: &str) -> Argument<&'a str> {
        self.read(parameter, Value::as_str)
    }

    /// The tensor type of a parameter that must be a tensor of known rank.
    pub(super) fn ranked(&self, parameter: &'static str) -> Result<&'a TensorType, Stop> {
        let operand = self
            .operand(parameter)
            .ok_or(InferError::Missing { parameter })?;
        ranked(parameter, operand.ty)
    }

    /// The same for a parameter that may be missing.
    pub(super) fn ranked_if_any(
        &self,
        parameter: &'static str,
    ) -> Result<Option<&'a TensorType>, Stop> {
        self.operand(parameter)
            .map(|operand| ranked(parameter, operand.ty))
            .transpose()
    }

    /// The tensor types of a variadic parameter, all of known rank, at least one.
    pub(super) fn all_ranked(&self, parameter: &'static str) -> Result<Vec<&'a TensorType>, Stop> {
        let operands = self.operands(parameter);
        if operands.is_empty() {
            return Err(InferError::Missing { parameter }.into());
        }
        operands
            .iter()
            .map(|operand| ranked(parameter, operand.ty))
            .collect()
    }

    /// Number of elements of a rank-1 argument by its type, known or not; `NoRule` if that is
    /// unknown too.
    pub(super) fn length(&self, parameter: &'static str) -> Result<usize, Stop> {
        /// Such lengths are ranks of results; a broken file could ask for any amount of memory.
        const LONGEST: u64 = 1 << 16;
        let ty = self.ranked(parameter)?;
        match ty.dims.as_slice() {
            [length] => length
                .size()
                .filter(|size| *size <= LONGEST)
                .map(|size| size as usize)
                .ok_or(Stop::NoRule),
            dims => Err(InferError::Rank {
                parameter,
                rank: dims.len(),
                expected: "1",
            }
            .into()),
        }
    }

    fn read<T>(&self, parameter: &str, read: impl Fn(&'a Value) -> Option<T>) -> Argument<T> {
        match self.operand(parameter) {
            None => Argument::Missing,
            Some(operand) => operand
                .constant
                .and_then(read)
                .map_or(Argument::Unknown, Argument::Known),
        }
    }
}

/// The tensor type, if its rank is known and its dimensions are as many.
fn ranked<'a>(parameter: &'static str, ty: &'a ValueType) -> Result<&'a TensorType, Stop> {
    let tensor = ty.as_tensor().ok_or(InferError::Kind {
        parameter,
        expected: "a tensor",
    })?;
    let countable = tensor.rank == tensor.dims.len() as i64
        && tensor
            .dims
            .iter()
            .all(|dim| !matches!(dim, Dim::Unknown { variadic: true }));
    if countable {
        Ok(tensor)
    } else {
        Err(Stop::NoRule)
    }
}

fn single<T: Copy>(elements: &[T]) -> Option<T> {
    match elements {
        [element] => Some(*element),
        _ => None,
    }
}
