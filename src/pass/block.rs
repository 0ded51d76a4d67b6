//! What a matcher sees: one block, the blocks around it, the opset, and the data of constants.
//!
//! The questions see through what hides a constant: captures, `identity`, `cast`, and the layout
//! operations that keep a uniform tensor uniform.

use std::borrow::Cow;

use half::f16;

use crate::eval::ranges::{FunctionRanges, Range};
use crate::eval::{self, ConstantError};
use crate::ir::{
    Binding, BlobRef, Content, DType, Graph, Node, NodeId, Operation, TensorData, TensorType,
    Value, ValueId,
};
use crate::ops::{Datum, Opset};
pub use crate::source::{Blobs, NoBlobs};
use crate::tensor::{Packed, Tensor};

/// The weight files as the interpreter reads them.
#[derive(Clone, Copy)]
pub struct Readable<'a>(pub &'a dyn Blobs);

impl eval::Blobs for Readable<'_> {
    fn packed(&self, blob: &BlobRef, dtype: DType, elements: u64) -> Result<Packed, ConstantError> {
        let bytes = self
            .0
            .bytes(blob)
            .ok_or_else(|| ConstantError::Blob(format!("{} cannot be read", blob.file)))?;
        let bits = dtype
            .bits()
            .and_then(|bits| elements.checked_mul(bits.into()));
        if bits.map(|bits| bits.div_ceil(8)) == Some(bytes.len() as u64) {
            Ok(Packed::new(bytes.to_vec()))
        } else {
            Err(ConstantError::Data(dtype))
        }
    }
}

/// One block in its surroundings.
#[derive(Clone, Copy)]
pub struct Block<'a> {
    /// The block's graph.
    pub graph: &'a Graph,
    /// The block around it, if it is nested.
    pub outer: Option<&'a Block<'a>>,
    /// The opset; `None` if it is newer than those we know.
    pub opset: Option<Opset>,
    /// The weight files.
    pub blobs: &'a dyn Blobs,
    /// What was measured of the function's values, if anything was.
    pub ranges: Option<&'a FunctionRanges>,
}

/// A constant all of whose elements are equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Uniform {
    /// The element, exactly (fp16, fp32 and int32 all fit).
    pub value: f64,
    /// Its element type where it is used.
    pub dtype: DType,
}

/// How many operations a constant may hide behind; deeper chains are not constants in practice.
const MAX_DEPTH: usize = 16;

impl<'a> Block<'a> {
    /// The operation, if the node is one.
    pub fn op(&self, node: NodeId) -> Option<&'a Operation> {
        self.graph.op(node)
    }

    /// The operation, if the node is one of this type.
    pub fn op_of_type(&self, node: NodeId, op_type: &str) -> Option<&'a Operation> {
        self.op(node).filter(|op| op.op_type() == op_type)
    }

    /// The operation of this type that makes a value in this block.
    pub fn producer_of_type(&self, value: ValueId, op_type: &str) -> Option<&'a Operation> {
        self.op_of_type(value.node, op_type)
    }

    /// The declared tensor type of a value.
    pub fn tensor(&self, value: ValueId) -> Option<&'a TensorType> {
        self.graph.ty(value)?.as_tensor()
    }

    /// What was measured of a value, if it was.
    pub fn range(&self, value: ValueId) -> Option<&'a Range> {
        self.ranges?.get(self.graph.name(value))
    }

    /// The element type of a value.
    pub fn dtype(&self, value: ValueId) -> Option<DType> {
        Some(self.tensor(value)?.dtype)
    }

    /// How an operation is called in messages: its first result's name, else its own.
    pub fn label(&self, node: NodeId) -> String {
        match self.op(node) {
            Some(op) => op
                .results()
                .first()
                .map(|result| result.name.as_str())
                .or(op.name())
                .unwrap_or(op.op_type())
                .to_owned(),
            None => self.graph.name(ValueId::first(node)).to_owned(),
        }
    }

    /// The value of a constant: of a const operation here or, through captures, in a block around.
    pub fn constant(&self, value: ValueId) -> Option<&'a Value> {
        match self.graph.node(value.node)? {
            Node::Op(op) if op.op_type() == "const" => op.const_value(),
            Node::Op(op) if op.op_type() == "identity" => self.constant(op.value("x")?),
            Node::Capture { source, .. } => self.outer?.constant(*source),
            _ => None,
        }
    }

    /// The constant bound to a parameter, literal or not.
    pub fn constant_of(&self, op: &'a Operation, parameter: &str) -> Option<&'a Value> {
        match op.binding(parameter)? {
            Binding::Immediate(value) => Some(value),
            Binding::Value(value) => self.constant(*value),
            Binding::Absent => None,
        }
    }

    /// The integers of a constant parameter.
    pub fn ints_of(&self, op: &'a Operation, parameter: &str) -> Option<Vec<i64>> {
        crate::ops::constant::integers(self.constant_of(op, parameter)?)
    }

    /// The bools of a constant parameter.
    pub fn bools_of(&self, op: &'a Operation, parameter: &str) -> Option<Vec<bool>> {
        crate::ops::constant::bools(self.constant_of(op, parameter)?)
    }

    /// A single integer of a constant parameter.
    pub fn int_of(&self, op: &'a Operation, parameter: &str) -> Option<i64> {
        match self.ints_of(op, parameter)?.as_slice() {
            [value] => Some(*value),
            _ => None,
        }
    }

    /// A single bool of a constant parameter, or the default if it is not given; `None` if it is
    /// given but not known.
    pub fn bool_or(&self, op: &'a Operation, parameter: &str, default: bool) -> Option<bool> {
        if op.argument(parameter).is_none() {
            return Some(default);
        }
        match self.bools_of(op, parameter)?.as_slice() {
            [value] => Some(*value),
            _ => None,
        }
    }

    /// The packed bytes of a constant tensor, in memory or in a weight file.
    pub fn bytes(&self, value: &'a Value) -> Option<Cow<'a, [u8]>> {
        match &value.content {
            Content::Blob(blob) => self.blobs.bytes(blob).map(Cow::Borrowed),
            _ => value.tensor_bytes(),
        }
    }

    /// The elements of a constant tensor, in memory or in a weight file.
    pub fn elements(&self, value: &Value) -> Option<Tensor> {
        match eval::datum(value, &Readable(self.blobs)) {
            Ok(Datum::Tensor(tensor)) => Some(tensor),
            _ => None,
        }
    }

    /// The one number that all elements of a parameter's argument have, seen through `cast`,
    /// `identity`, `reshape`, `expand_dims`, `squeeze`, `transpose`, `tile` and `fill`.
    pub fn uniform_of(&self, op: &'a Operation, parameter: &str) -> Option<Uniform> {
        self.uniform_binding(op.binding(parameter)?, MAX_DEPTH)
    }

    /// The one number that all elements of a value have; see [`Block::uniform_of`].
    pub fn uniform(&self, value: ValueId) -> Option<Uniform> {
        self.uniform_value(value, MAX_DEPTH)
    }

    fn uniform_binding(&self, binding: &'a Binding, depth: usize) -> Option<Uniform> {
        match binding {
            Binding::Immediate(value) => self.uniform_constant(value),
            Binding::Value(value) => self.uniform_value(*value, depth),
            Binding::Absent => None,
        }
    }

    fn uniform_value(&self, value: ValueId, depth: usize) -> Option<Uniform> {
        let depth = depth.checked_sub(1)?;
        match self.graph.node(value.node)? {
            Node::Capture { source, .. } => self.outer?.uniform_value(*source, depth),
            Node::Op(op) => match op.op_type() {
                "const" => self.uniform_constant(op.const_value()?),
                "identity" | "reshape" | "expand_dims" | "squeeze" | "transpose" | "tile" => {
                    self.uniform_binding(op.binding("x")?, depth)
                }
                "cast" => {
                    let inner = self.uniform_binding(op.binding("x")?, depth)?;
                    convert(inner, self.dtype(value)?)
                }
                "fill" => self.uniform_binding(op.binding("value")?, depth),
                _ => None,
            },
            Node::Input(..) | Node::Return(_) | Node::Erased => None,
        }
    }

    /// The one number that all elements of a constant have.
    fn uniform_constant(&self, value: &'a Value) -> Option<Uniform> {
        let dtype = value.tensor_type()?.dtype;
        let size = dtype.bits()? as usize / 8;
        if size == 0 {
            return None;
        }
        // A scalar or a short list in the program needs no copy.
        let number = match value.tensor_data() {
            Some(TensorData::Floats(values)) => f64::from(uniform_slice(values, f32::to_bits)?),
            Some(TensorData::Ints(values)) => f64::from(uniform_slice(values, |v| v)?),
            _ => {
                let bytes = self.bytes(value)?;
                let first = bytes.get(..size)?;
                if bytes.len() % size != 0 || !bytes.chunks_exact(size).all(|e| e == first) {
                    return None;
                }
                number(first, dtype)?
            }
        };
        Some(Uniform {
            value: number,
            dtype,
        })
    }
}

/// The element that all elements of a slice equal in all bits.
fn uniform_slice<T: Copy, B: PartialEq>(values: &[T], bits: impl Fn(T) -> B) -> Option<T> {
    let first = *values.first()?;
    let same = |value: &T| bits(*value) == bits(first);
    values.iter().all(same).then_some(first)
}

/// The number in the little-endian bytes of one element; `None` for types without a plain number.
fn number(bytes: &[u8], dtype: DType) -> Option<f64> {
    Some(match dtype {
        DType::Float16 => f16::from_le_bytes(bytes.try_into().ok()?).to_f64(),
        DType::Float32 => f64::from(f32::from_le_bytes(bytes.try_into().ok()?)),
        DType::Float64 => f64::from_le_bytes(bytes.try_into().ok()?),
        DType::Int8 => f64::from(i8::from_le_bytes(bytes.try_into().ok()?)),
        DType::UInt8 => f64::from(*bytes.first()?),
        DType::Int16 => f64::from(i16::from_le_bytes(bytes.try_into().ok()?)),
        DType::UInt16 => f64::from(u16::from_le_bytes(bytes.try_into().ok()?)),
        DType::Int32 => f64::from(i32::from_le_bytes(bytes.try_into().ok()?)),
        DType::UInt32 => f64::from(u32::from_le_bytes(bytes.try_into().ok()?)),
        _ => return None,
    })
}

/// What a `cast` makes of a number: floats round to nearest even, integers only if they fit.
fn convert(uniform: Uniform, to: DType) -> Option<Uniform> {
    let value = uniform.value;
    let converted = match to {
        DType::Float16 => f16::from_f64(value).to_f64(),
        DType::Float32 => f64::from(value as f32),
        DType::Int32 if value.abs() < 2f64.powi(31) => value.trunc(),
        _ => return None,
    };
    Some(Uniform {
        value: converted,
        dtype: to,
    })
}
