//! Result types of ops: the entry point, its errors, and the comparison with declared types.
//!
//! The rules stand with their op family, one file each. They follow coremltools, which typed
//! practically every program in the wild. A result's dimension is known only if it follows from
//! known sizes and known constants; everything else is [`Dim::UNKNOWN`]. An op with an operand of
//! unknown rank, or with an unknown axis, has no rule.

use thiserror::Error;

use crate::ir::types::{DType, Dim, TensorType, ValueType};
use crate::ops::dims::Types;
use crate::ops::registry::{self, DefaultValue, Kind, Variant};
use crate::ops::view::{OpView, Stop};
use crate::ops::{
    activation, attention, convolution, creation, elementwise, image, indexing, joining, layout,
    linear, list, normalization, quantization, recurrent, reduction, slicing, sorting, state,
};

/// What inference found.
#[derive(Clone, Debug, PartialEq)]
pub enum Inference {
    /// The types of the results, in order.
    Types(Vec<ValueType>),
    /// There is no rule for the op type (unknown, newer than the opset, or with nested blocks), or
    /// too little is known about its operands.
    NoRule,
}

/// Why an op cannot have any result type: one line, without the op's own name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "the message names each field")]
pub enum InferError {
    #[error("parameter `{parameter}` is missing")]
    Missing { parameter: &'static str },
    #[error("`{parameter}` must be {expected}")]
    Kind {
        parameter: &'static str,
        expected: &'static str,
    },
    #[error("`{parameter}` cannot be {dtype}")]
    DType {
        parameter: &'static str,
        dtype: DType,
    },
    #[error("`{}` is {} but `{}` is {}", left.0, left.1, right.0, right.1)]
    DTypes {
        left: (&'static str, DType),
        right: (&'static str, DType),
    },
    #[error("`{parameter}` has rank {rank}, not {expected}")]
    Rank {
        parameter: &'static str,
        rank: usize,
        expected: &'static str,
    },
    #[error("`{}` has rank {} but `{}` has rank {}", left.0, left.1, right.0, right.1)]
    Ranks {
        left: (&'static str, usize),
        right: (&'static str, usize),
    },
    #[error("dimension {dimension}: `{}` has {} but `{}` has {}", left.0, left.1, right.0, right.1)]
    Sizes {
        dimension: usize,
        left: (&'static str, u64),
        right: (&'static str, u64),
    },
    #[error("axis {axis} does not exist at rank {rank}")]
    Axis { axis: i64, rank: usize },
    #[error("`{parameter}` has {length} elements, not {expected}")]
    Length {
        parameter: &'static str,
        length: usize,
        expected: usize,
    },
    #[error("{reason}")]
    Invalid { reason: String },
}

/// A rule: from an op's view to the types of its results.
pub(super) type Rule = fn(&OpView) -> Types;

/// The families, each of which knows the rules of its op types.
const FAMILIES: [fn(&str) -> Option<Rule>; 18] = [
    elementwise::rule,
    activation::rule,
    reduction::rule,
    normalization::rule,
    linear::rule,
    attention::rule,
    layout::rule,
    slicing::rule,
    joining::rule,
    indexing::rule,
    sorting::rule,
    creation::rule,
    state::rule,
    quantization::rule,
    convolution::rule,
    image::rule,
    recurrent::rule,
    list::rule,
];

/// The types of an op's results.
///
/// # Errors
///
/// If no result type is possible: an operand has an element type that the registry forbids, shapes
/// do not fit, an axis does not exist. What is unknown is never an error.
pub fn infer(view: &OpView) -> Result<Inference, InferError> {
    let Ok(variant) = registry::signature(view.op_type, view.opset) else {
        return Ok(Inference::NoRule);
    };
    check_dtypes(view, variant)?;
    let Some(rule) = FAMILIES.iter().find_map(|family| family(view.op_type)) else {
        return Ok(Inference::NoRule);
    };
    match rule(view) {
        Ok(types) => Ok(Inference::Types(types)),
        Err(Stop::NoRule) => Ok(Inference::NoRule),
        Err(Stop::Wrong(error)) => Err(error),
    }
}

/// Element types against the registry, each alone and within its type domain.
fn check_dtypes(view: &OpView, variant: &'static Variant) -> Result<(), InferError> {
    let mut domains: Vec<(&str, &'static str, DType)> = Vec::new();
    for parameter in variant.parameters {
        if parameter.kind != Kind::Tensor {
            continue;
        }
        let Some(tensor) = view.tensor(parameter.name) else {
            continue;
        };
        if !parameter.dtypes.is_empty() && !parameter.dtypes.contains(&tensor.dtype) {
            return Err(InferError::DType {
                parameter: parameter.name,
                dtype: tensor.dtype,
            });
        }
        // coremltools writes a missing `epsilon` and the like as fp32 whatever the domain's type.
        let spelled_default = tensor.dtype == DType::Float32
            && matches!(parameter.default, Some(DefaultValue::Float(_)));
        let Some(domain) = parameter.type_domain.filter(|_| !spelled_default) else {
            continue;
        };
        match domains.iter().find(|(other, ..)| *other == domain) {
            Some((_, _, dtype)) if *dtype == tensor.dtype => {}
            Some((_, name, dtype)) => {
                return Err(InferError::DTypes {
                    left: (name, *dtype),
                    right: (parameter.name, tensor.dtype),
                });
            }
            None => domains.push((domain, parameter.name, tensor.dtype)),
        }
    }
    Ok(())
}

/// Whether a declared type may stand for an inferred one.
///
/// Element types, ranks and kinds must be equal, and so must two sizes that are both known. A size
/// that only one side knows is accepted in either direction: coremltools carries named symbols and
/// the values of shape computations, neither of which is on disk, so it may have declared a size
/// that we cannot derive; and it may have declared as unknown what we derive from a neighbour, such
/// as one input of a `concat`. A declared type of unknown rank fits any rank. Type attributes are
/// not compared.
pub fn compatible(declared: &ValueType, inferred: &ValueType) -> bool {
    let both = |a: &Option<Box<ValueType>>, b: &Option<Box<ValueType>>| match (a, b) {
        (Some(a), Some(b)) => compatible(a, b),
        (None, None) => true,
        _ => false,
    };
    match (declared, inferred) {
        (ValueType::Tensor(a), ValueType::Tensor(b)) => compatible_tensors(a, b),
        (ValueType::State(a), ValueType::State(b)) => both(a, b),
        (
            ValueType::List { item, length },
            ValueType::List {
                item: other_item,
                length: other_length,
            },
        ) => {
            both(item, other_item)
                && match (length, other_length) {
                    (Some(a), Some(b)) => compatible_dims(*a, *b),
                    _ => true,
                }
        }
        (ValueType::Tuple(a), ValueType::Tuple(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| compatible(a, b))
        }
        (
            ValueType::Dictionary { key, value },
            ValueType::Dictionary {
                key: other_key,
                value: other_value,
            },
        ) => both(key, other_key) && both(value, other_value),
        (ValueType::Unspecified, ValueType::Unspecified) => true,
        _ => false,
    }
}

fn compatible_tensors(declared: &TensorType, inferred: &TensorType) -> bool {
    let open = |ty: &TensorType| {
        ty.rank < 0
            || ty
                .dims
                .iter()
                .any(|dim| matches!(dim, Dim::Unknown { variadic: true }))
    };
    declared.dtype == inferred.dtype
        && (open(declared)
            || open(inferred)
            || (declared.rank == inferred.rank
                && declared.dims.len() == inferred.dims.len()
                && declared
                    .dims
                    .iter()
                    .zip(&inferred.dims)
                    .all(|(a, b)| compatible_dims(*a, *b))))
}

fn compatible_dims(declared: Dim, inferred: Dim) -> bool {
    match (declared.size(), inferred.size()) {
        (Some(a), Some(b)) => a == b,
        _ => true,
    }
}

#[cfg(test)]
mod any_operands;
#[cfg(test)]
mod tests;
