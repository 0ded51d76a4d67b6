//! What ops compute: the entry point, an op's call as an evaluation sees it, and its errors.
//!
//! The evaluations stand with their op family, beside the rules for types. They follow the
//! documentation of the ops in coremltools, and are compared with the expected results of its own
//! tests. Where that documentation is silent, or contradicts those results, the evaluation's comment
//! says what is done.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::ir::NamedType;
use crate::ir::Opset;
use crate::ir::types::{DType, ValueType};
use crate::ops::Numerics;
use crate::ops::{
    activation, attention, convolution, creation, elementwise, image, indexing, joining, layout,
    linear, list, normalization, quantization, recurrent, reduction, slicing, sorting, state,
};
use crate::tensor::{Tensor, TensorError};

#[cfg(test)]
pub(super) mod trial;

/// A value while a program runs.
#[derive(Clone, Debug)]
pub enum Datum {
    /// A tensor.
    Tensor(Tensor),
    /// A list of tensors; an item that was never written is `None`.
    List(Arc<Vec<Option<Tensor>>>),
    /// Values in the order of the type.
    Tuple(Arc<Vec<Datum>>),
    /// Keys and values.
    Dictionary(Arc<Vec<(Tensor, Tensor)>>),
    /// A state.
    State(StateCell),
}

/// The memory behind a state.
#[derive(Clone, Debug)]
pub struct StateCell(Arc<Mutex<Tensor>>);

impl StateCell {
    /// A state that holds this tensor.
    pub fn new(tensor: Tensor) -> Self {
        Self(Arc::new(Mutex::new(tensor)))
    }

    /// What it holds.
    pub fn read(&self) -> Tensor {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Replaces what it holds.
    pub fn write(&self, tensor: Tensor) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = tensor;
    }
}

impl From<Tensor> for Datum {
    fn from(tensor: Tensor) -> Self {
        Self::Tensor(tensor)
    }
}

impl Datum {
    /// The tensor, if this is one.
    pub fn as_tensor(&self) -> Option<&Tensor> {
        match self {
            Self::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// The kind in a few words.
    pub fn words(&self) -> &'static str {
        match self {
            Self::Tensor(_) => "a tensor",
            Self::List(_) => "a list",
            Self::Tuple(_) => "a tuple",
            Self::Dictionary(_) => "a dictionary",
            Self::State(_) => "a state",
        }
    }
}

/// Why an op cannot be computed: one line, without the op's own name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// There is no evaluation for the op type.
    #[error("there is no evaluation for this op type")]
    NoEvaluation,
    /// A parameter has no argument.
    #[error("parameter `{0}` is missing")]
    Missing(&'static str),
    /// An argument is of the wrong kind or type.
    #[error("`{parameter}`: {source}")]
    Argument {
        /// The parameter.
        parameter: &'static str,
        /// What is wrong with its value.
        source: TensorError,
    },
    /// Shapes or elements that do not fit together.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// An index that points outside.
    #[error("`{parameter}` holds the index {index}, which is not in {lowest} to {highest}")]
    OutOfRange {
        /// The parameter.
        parameter: &'static str,
        /// The index.
        index: i64,
        /// The lowest allowed.
        lowest: i64,
        /// The highest allowed.
        highest: i64,
    },
    /// An integer division by zero.
    #[error("an integer is divided by zero")]
    DivisionByZero,
    /// A result that would take too much memory.
    #[error("a result of shape {shape:?} needs more memory than the {limit} bytes allowed")]
    TooLarge {
        /// The result's shape.
        shape: Vec<usize>,
        /// Bytes that may be used.
        limit: u64,
    },
    /// Anything else that is wrong with the arguments.
    #[error("{0}")]
    Invalid(String),
}

impl EvalError {
    /// An error with a reason of its own.
    pub fn invalid(reason: impl Into<String>) -> Self {
        Self::Invalid(reason.into())
    }
}

/// What an evaluation gives: the results in order.
pub type Results = Result<Vec<Datum>, EvalError>;

/// An evaluation.
pub(super) type Kernel = fn(&Call) -> Results;

/// One op with its arguments, as an evaluation sees it.
#[derive(Debug)]
pub struct Call<'a> {
    /// The op's type.
    pub op_type: &'a str,
    /// The opset of the function that the op stands in.
    pub opset: Opset,
    /// The arguments of each parameter, in order, those from attributes included.
    pub arguments: BTreeMap<&'a str, Vec<Datum>>,
    /// The declared results.
    pub results: &'a [NamedType],
    /// How to compute.
    pub numerics: &'a Numerics,
    /// Seed of random ops whose own seed asks for any: different for each op and run.
    pub seed: u64,
    /// Bytes that the results may take.
    pub memory: u64,
}

/// The families, each of which knows the evaluations of its op types.
const FAMILIES: [fn(&str) -> Option<Kernel>; 18] = [
    elementwise::kernel,
    activation::kernel,
    reduction::kernel,
    normalization::kernel,
    linear::kernel,
    attention::kernel,
    layout::kernel,
    slicing::kernel,
    joining::kernel,
    indexing::kernel,
    sorting::kernel,
    creation::kernel,
    state::kernel,
    quantization::kernel,
    convolution::kernel,
    image::kernel,
    recurrent::kernel,
    list::kernel,
];

/// The results of an op. They are not yet rounded to their types: that is the interpreter's part.
///
/// # Errors
///
/// If there is no evaluation, or the arguments do not fit the op. Ops with nested blocks and `const`
/// are not evaluated here.
pub fn evaluate(call: &Call) -> Results {
    FAMILIES
        .iter()
        .find_map(|family| family(call.op_type))
        .ok_or(EvalError::NoEvaluation)?(call)
}

/// Whether ops of this type can be evaluated.
pub fn has_evaluation(op_type: &str) -> bool {
    FAMILIES.iter().any(|family| family(op_type).is_some())
}

impl Call<'_> {
    /// The magnitude from which on sums of products become infinite: a limit of fp16 results.
    pub fn accumulator_limit(&self) -> Option<f32> {
        let ty = self.results.first().and_then(|result| result.ty.as_ref());
        let dtype = ty.and_then(|ty| ty.as_tensor()).map(|ty| ty.dtype);
        let is_half = dtype.is_none_or(|dtype| self.numerics.is_half(dtype));
        self.numerics.accumulator_limit.filter(|_| is_half)
    }

    /// The argument of a parameter, if it is given.
    pub fn argument(&self, parameter: &str) -> Option<&Datum> {
        self.arguments.get(parameter)?.first()
    }

    /// True if the parameter has an argument.
    pub fn has(&self, parameter: &str) -> bool {
        self.argument(parameter).is_some()
    }

    /// The tensor bound to a parameter that must be given.
    pub fn tensor(&self, parameter: &'static str) -> Result<&Tensor, EvalError> {
        self.tensor_if_any(parameter)?
            .ok_or(EvalError::Missing(parameter))
    }

    /// The tensor bound to a parameter that may be missing.
    pub fn tensor_if_any(&self, parameter: &'static str) -> Result<Option<&Tensor>, EvalError> {
        match self.argument(parameter) {
            None => Ok(None),
            Some(Datum::Tensor(tensor)) => Ok(Some(tensor)),
            Some(other) => Err(EvalError::invalid(format!(
                "`{parameter}` is {}, not a tensor",
                other.words()
            ))),
        }
    }

    /// The tensors bound to a variadic parameter, at least one.
    pub fn tensors(&self, parameter: &'static str) -> Result<Vec<&Tensor>, EvalError> {
        let arguments = self
            .arguments
            .get(parameter)
            .ok_or(EvalError::Missing(parameter))?;
        arguments
            .iter()
            .map(|argument| {
                argument.as_tensor().ok_or_else(|| {
                    EvalError::invalid(format!("`{parameter}` holds {}", argument.words()))
                })
            })
            .collect()
    }

    /// The elements of a floating-point argument.
    pub fn floats(&self, parameter: &'static str) -> Result<Cow<'_, [f32]>, EvalError> {
        self.tensor(parameter)?
            .as_floats()
            .map_err(in_parameter(parameter))
    }

    /// The one element of a floating-point argument, or a default if it is missing.
    pub fn float_or(&self, parameter: &'static str, default: f32) -> Result<f32, EvalError> {
        match self.tensor_if_any(parameter)? {
            None => Ok(default),
            Some(tensor) => only(
                parameter,
                &tensor.as_floats().map_err(in_parameter(parameter))?,
            ),
        }
    }

    /// The one element of a floating-point argument.
    pub fn float(&self, parameter: &'static str) -> Result<f32, EvalError> {
        only(parameter, &self.floats(parameter)?)
    }

    /// The elements of an integer argument.
    pub fn ints(&self, parameter: &'static str) -> Result<Cow<'_, [i64]>, EvalError> {
        self.tensor(parameter)?
            .as_ints()
            .map_err(in_parameter(parameter))
    }

    /// The elements of an integer argument that may be missing.
    pub fn ints_if_any(
        &self,
        parameter: &'static str,
    ) -> Result<Option<Cow<'_, [i64]>>, EvalError> {
        self.tensor_if_any(parameter)?
            .map(|tensor| tensor.as_ints().map_err(in_parameter(parameter)))
            .transpose()
    }

    /// The one element of an integer argument.
    pub fn int(&self, parameter: &'static str) -> Result<i64, EvalError> {
        only(parameter, &self.ints(parameter)?)
    }

    /// The one element of an integer argument, or a default if it is missing.
    pub fn int_or(&self, parameter: &'static str, default: i64) -> Result<i64, EvalError> {
        self.ints_if_any(parameter)?
            .map_or(Ok(default), |values| only(parameter, &values))
    }

    /// The elements of a bool argument that may be missing.
    pub fn bools_if_any(
        &self,
        parameter: &'static str,
    ) -> Result<Option<Cow<'_, [bool]>>, EvalError> {
        self.tensor_if_any(parameter)?
            .map(|tensor| tensor.as_bools().map_err(in_parameter(parameter)))
            .transpose()
    }

    /// The one element of a bool argument, or a default if it is missing.
    pub fn bool_or(&self, parameter: &'static str, default: bool) -> Result<bool, EvalError> {
        self.bools_if_any(parameter)?
            .map_or(Ok(default), |values| only(parameter, &values))
    }

    /// The text of a string argument, or a default if it is missing.
    pub fn string_or<'s>(
        &'s self,
        parameter: &'static str,
        default: &'s str,
    ) -> Result<&'s str, EvalError> {
        let Some(tensor) = self.tensor_if_any(parameter)? else {
            return Ok(default);
        };
        match tensor.data() {
            crate::tensor::Data::Text(texts) if texts.len() == 1 => Ok(&texts[0]),
            _ => Err(EvalError::invalid(format!("`{parameter}` is not a string"))),
        }
    }

    /// The index of the axis that an argument names, from the end if negative, or of a default.
    pub fn axis(
        &self,
        parameter: &'static str,
        default: i64,
        rank: usize,
    ) -> Result<usize, EvalError> {
        crate::tensor::axis(self.int_or(parameter, default)?, rank).map_err(in_parameter(parameter))
    }

    /// The declared element type of a result.
    pub fn result_dtype(&self, result: usize) -> Option<DType> {
        let ty = self.results.get(result)?.ty.as_ref()?;
        ty.as_tensor().map(|tensor| tensor.dtype)
    }

    /// The declared type of a result.
    pub fn result_type(&self, result: usize) -> Option<&ValueType> {
        self.results.get(result)?.ty.as_ref()
    }

    /// The number of elements of a result of this shape, if there is memory for it. Ask before
    /// allocating what the size of the arguments does not bound.
    pub fn room_for(&self, shape: &[usize]) -> Result<usize, EvalError> {
        /// Of the widest element, `i64`.
        const BYTES: u64 = 8;
        crate::tensor::elements(shape)
            .filter(|count| {
                (*count as u64)
                    .checked_mul(BYTES)
                    .is_some_and(|b| b <= self.memory)
            })
            .ok_or_else(|| EvalError::TooLarge {
                shape: shape.to_vec(),
                limit: self.memory,
            })
    }
}

/// One result, a tensor.
#[expect(
    clippy::unnecessary_wraps,
    reason = "the last expression of most evaluations"
)]
pub(super) fn one(tensor: Tensor) -> Results {
    Ok(vec![Datum::Tensor(tensor)])
}

/// Says in which parameter a tensor is wrong.
pub(super) fn in_parameter(parameter: &'static str) -> impl Fn(TensorError) -> EvalError {
    move |source| EvalError::Argument { parameter, source }
}

fn only<T: Copy>(parameter: &'static str, elements: &[T]) -> Result<T, EvalError> {
    match elements {
        [element] => Ok(*element),
        _ => Err(EvalError::invalid(format!(
            "`{parameter}` has {} elements, not one",
            elements.len()
        ))),
    }
}
