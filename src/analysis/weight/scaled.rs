//! A constant weight times a number, compressed as it was.
//!
//! Of a compressed weight only the numbers change that its others are multiplied by or looked up in: the
//! scale, the table, the data that is cast. Codes and indices are shared with the weight as it was.

use std::collections::BTreeMap;

use crate::eval;
use crate::ir::{Binding, DType, Value, ValueId};
use crate::pass::{Block, Edit, EditError};
use crate::tensor::Tensor;

/// How many compressions may be around each other.
const MAX_DEPTH: usize = 4;

/// The parameter of a `constexpr_*` operation in which its result is linear.
fn linear_parameter(op_type: &str) -> Option<&'static str> {
    Some(match op_type {
        "constexpr_affine_dequantize" | "constexpr_blockwise_shift_scale" => "scale",
        "constexpr_cast" => "source_val",
        "constexpr_lut_to_dense" => "lut",
        "constexpr_sparse_to_dense" => "nonzero_data",
        _ => return None,
    })
}

fn is_float(value: &Value) -> bool {
    let dtype = value.tensor_type().map(|ty| ty.dtype);
    matches!(dtype, Some(DType::Float16 | DType::Float32))
}

/// Whether what is bound is a constant, plain or compressed, that [`scaled`] can make anew.
pub fn can_scale(block: &Block<'_>, binding: &Binding) -> bool {
    depth(block, binding, MAX_DEPTH)
}

fn depth(block: &Block<'_>, binding: &Binding, left: usize) -> bool {
    let Some(left) = left.checked_sub(1) else {
        return false;
    };
    let value = match binding {
        Binding::Immediate(value) => return is_float(value),
        Binding::Value(value) => *value,
        Binding::Absent => return false,
    };
    let Some(op) = block.op(value.node) else {
        return false;
    };
    match (op.op_type(), linear_parameter(op.op_type())) {
        ("const", _) => op.const_value().is_some_and(is_float),
        (_, Some(parameter)) => match (op.binding(parameter), op.attributes().get(parameter)) {
            (Some(binding), _) => depth(block, binding, left),
            (None, Some(value)) => is_float(value),
            (None, None) => false,
        },
        _ => false,
    }
}

/// Makes a constant times a number, in the form that the constant has; see [`can_scale`].
///
/// # Errors
///
/// If the constant cannot be read, or a number of it would become infinite.
pub fn scaled(edit: &mut Edit<'_>, binding: &Binding, factor: f64) -> Result<Binding, EditError> {
    let value = match binding {
        Binding::Immediate(value) => {
            let product = product(&edit.block(), value, factor)?;
            return Ok(edit.constant(product));
        }
        Binding::Value(value) => *value,
        Binding::Absent => return Err(EditError::Unreadable),
    };
    let block = edit.block();
    let op = block.op(value.node).ok_or(EditError::Unreadable)?;
    if let Some(value) = op.const_value() {
        let product = product(&block, value, factor)?;
        return Ok(edit.constant(product));
    }
    let op_type = op.op_type().to_owned();
    let parameter = linear_parameter(&op_type).ok_or(EditError::Unreadable)?;
    let mut arguments: BTreeMap<String, Vec<Binding>> = BTreeMap::new();
    for argument in op.arguments() {
        arguments.insert(argument.parameter.clone(), argument.bindings.clone());
    }
    let mut attributes: BTreeMap<String, Value> = BTreeMap::new();
    for (name, value) in op.attributes().iter().filter(|(name, _)| *name != "name") {
        attributes.insert(name.clone(), value.clone());
    }
    match arguments
        .get(parameter)
        .and_then(|bindings| bindings.first().cloned())
    {
        // A literal stays one: an old form of the operation takes nothing else.
        Some(Binding::Immediate(value)) => {
            let product = product(&block, &value, factor)?;
            arguments.insert(parameter.to_owned(), vec![Binding::Immediate(product)]);
        }
        Some(inner) => {
            let inner = scaled(edit, &inner, factor)?;
            arguments.insert(parameter.to_owned(), vec![inner]);
        }
        None => {
            let value = attributes.get(parameter).ok_or(EditError::Unreadable)?;
            let product = product(&block, value, factor)?;
            attributes.insert(parameter.to_owned(), product);
        }
    }
    let node = edit.op_with_attributes(&op_type, arguments, attributes)?;
    Ok(Binding::Value(ValueId::first(node)))
}

/// The elements of a constant times a number, rounded to its type once.
fn product(block: &Block<'_>, value: &Value, factor: f64) -> Result<Value, EditError> {
    let tensor = block.elements(value).ok_or(EditError::Unreadable)?;
    let dtype = tensor.dtype();
    let elements = tensor.as_floats().map_err(|_| EditError::Unreadable)?;
    let mut products = Vec::with_capacity(elements.len());
    for element in elements.iter() {
        let product = (f64::from(*element) * factor) as f32;
        let is_finite = match dtype {
            DType::Float16 => half::f16::from_f32(product).is_finite(),
            _ => product.is_finite(),
        };
        if element.is_finite() && !is_finite {
            return Err(EditError::TooLarge(dtype));
        }
        products.push(product);
    }
    let product = Tensor::floats(dtype, tensor.shape().to_vec(), products);
    eval::value(&product).map_err(|_| EditError::Unreadable)
}
