//! The weight of a product, plain, compressed or known only at run time, cut along an axis.
//!
//! A constant weight is a `const` or a literal, or one of these, in the form of iOS 16 (parameters are
//! attributes) or of iOS 18 (parameters are arguments):
//!
//! ```text
//! constexpr_affine_dequantize   quantized_data, zero_point, scale, axis
//! constexpr_cast                source_val
//! constexpr_lut_to_dense        indices, lut             (one number an index)
//! constexpr_blockwise_shift_scale   data, scale, offset
//! ```
//!
//! A piece of a compressed weight is compressed the same way: its numbers are those of the whole,
//! bit for bit. Where a cut would go through a block that shares a scale, there is no piece.

use std::collections::BTreeMap;

use crate::eval;
use crate::ir::{Binding, DType, Dim, Node, Operation, TensorType, Value, ValueId};
use crate::pass::{Block, Edit, EditError};
use crate::tensor::Tensor;

/// A weight.
pub enum Weight<'a> {
    /// A const or a literal.
    Plain(&'a Value),
    /// A `constexpr_*` operation with its constant parameters.
    Compressed {
        /// The operation.
        op: &'a Operation,
        /// The parameters by name.
        parameters: BTreeMap<&'a str, &'a Value>,
        /// Shape of the dense weight.
        shape: Vec<u64>,
    },
    /// A value that is known only at run time.
    Computed(ValueId, Vec<u64>),
}

/// A weight to be made.
#[derive(Clone)]
pub enum Piece {
    /// A const.
    Plain(Value),
    /// A compressed weight.
    Compressed {
        /// The type of the `constexpr_*` operation.
        op_type: String,
        /// Its parameters.
        parameters: BTreeMap<String, Value>,
        /// Whether they are attributes, as in iOS 16, or arguments.
        in_attributes: bool,
    },
    /// A slice of a value.
    Slice {
        /// The value.
        of: ValueId,
        /// Where it begins, for each dimension.
        begin: Vec<i32>,
        /// How long it is.
        size: Vec<i32>,
    },
}

impl Piece {
    /// Makes it.
    pub fn make(self, edit: &mut Edit<'_>) -> Result<Binding, EditError> {
        match self {
            Self::Plain(value) => Ok(edit.constant(value)),
            Self::Slice { of, begin, size } => {
                let begin = edit.constant(Value::int32s(&begin));
                let size = edit.constant(Value::int32s(&size));
                let arguments = [("x", Binding::Value(of)), ("begin", begin), ("size", size)];
                Ok(Binding::Value(edit.op("slice_by_size", &arguments)?))
            }
            Self::Compressed {
                op_type,
                parameters,
                in_attributes: true,
            } => {
                let node = edit.op_with_attributes(&op_type, BTreeMap::new(), parameters)?;
                Ok(Binding::Value(ValueId::first(node)))
            }
            Self::Compressed {
                op_type,
                parameters,
                in_attributes: false,
            } => {
                let arguments = parameters
                    .into_iter()
                    .map(|(name, value)| (name, vec![Binding::Immediate(value)]))
                    .collect();
                let node = edit.variadic_op(&op_type, arguments)?;
                Ok(Binding::Value(ValueId::first(node)))
            }
        }
    }
}

const UNREADABLE: &str = "the data of the weight cannot be read";
const SHAPE: &str = "the shape of the weight is not known";

impl<'a> Weight<'a> {
    /// The weight bound to a parameter, constants also of a block around; or why there is none.
    pub fn of(block: &Block<'a>, op: &'a Operation, parameter: &str) -> Result<Self, String> {
        match op.binding(parameter) {
            Some(Binding::Immediate(value)) => Ok(Self::Plain(value)),
            Some(Binding::Value(value)) => {
                if let Some(constant) = block.constant(*value) {
                    return Ok(Self::Plain(constant));
                }
                if let Some(weight) = Self::compressed(block, *value)? {
                    return Ok(weight);
                }
                let shape = block.tensor(*value).and_then(TensorType::shape);
                Ok(Self::Computed(*value, shape.ok_or(SHAPE)?))
            }
            _ => Err("there is no weight".to_owned()),
        }
    }

    /// Whether its numbers are known.
    pub fn is_constant(&self) -> bool {
        !matches!(self, Self::Computed(..))
    }

    /// The compressed weight that a value is, if it is one.
    fn compressed(block: &Block<'a>, value: ValueId) -> Result<Option<Self>, String> {
        let op = match block.graph.node(value.node) {
            Some(Node::Op(op)) if op.op_type().starts_with("constexpr_") => op,
            Some(Node::Capture { source, .. }) => {
                return block
                    .outer
                    .map_or(Ok(None), |outer| Self::compressed(outer, *source));
            }
            _ => return Ok(None),
        };
        let mut parameters: BTreeMap<&str, &Value> = op
            .attributes()
            .iter()
            .filter(|(name, _)| *name != "name")
            .map(|(name, value)| (name.as_str(), value))
            .collect();
        for argument in op.arguments() {
            let value = block.constant_of(op, &argument.parameter);
            let why = format!("the weight is a {} of a computed weight", op.op_type());
            parameters.insert(&argument.parameter, value.ok_or(why)?);
        }
        let shape = block
            .tensor(value)
            .and_then(TensorType::shape)
            .ok_or(SHAPE)?;
        Ok(Some(Self::Compressed {
            op,
            parameters,
            shape,
        }))
    }

    /// The sizes of the dense weight, if they are known.
    pub fn shape(&self) -> Option<Vec<u64>> {
        match self {
            Self::Plain(value) => value.tensor_type()?.shape(),
            Self::Compressed { shape, .. } | Self::Computed(_, shape) => Some(shape.clone()),
        }
    }

    /// The piece from `begin` to `end` along an axis, or why there is none.
    pub fn cut(
        &self,
        block: &Block<'_>,
        axis: usize,
        begin: u64,
        end: u64,
    ) -> Result<Piece, String> {
        let range = (axis, begin, end);
        match self {
            Self::Plain(value) => Ok(Piece::Plain(cut(block, value, range)?)),
            Self::Computed(value, shape) => {
                let int = |size: u64| i32::try_from(size).map_err(|_| SHAPE);
                let mut starts = vec![0; shape.len()];
                let mut sizes = vec![-1; shape.len()];
                *starts.get_mut(axis).ok_or(SHAPE)? = int(begin)?;
                *sizes.get_mut(axis).ok_or(SHAPE)? = int(end - begin)?;
                Ok(Piece::Slice {
                    of: *value,
                    begin: starts,
                    size: sizes,
                })
            }
            Self::Compressed {
                op,
                parameters,
                shape,
            } => {
                let parameter = |name: &str| {
                    let missing = || format!("the {} has no `{name}`", op.op_type());
                    parameters.get(name).copied().ok_or_else(missing)
                };
                let mut pieces: BTreeMap<String, Value> = parameters
                    .iter()
                    .map(|(name, value)| ((*name).to_owned(), (*value).clone()))
                    .collect();
                let mut put = |name: &str, value: Value| pieces.insert(name.to_owned(), value);
                match op.op_type() {
                    "constexpr_cast" => {
                        put("source_val", cut(block, parameter("source_val")?, range)?);
                    }
                    "constexpr_affine_dequantize" => {
                        let data = parameter("quantized_data")?;
                        put("quantized_data", cut(block, data, range)?);
                        let channel = integer(parameter("axis")?).ok_or(SHAPE)?;
                        let channel = crate::tensor::axis(channel, shape.len())
                            .map_err(|error| error.to_string())?;
                        for name in ["scale", "zero_point"] {
                            let value = parameter(name)?;
                            let is_vector =
                                value.tensor_type().is_some_and(|ty| !ty.dims.is_empty());
                            if is_vector && channel == axis {
                                put(name, cut(block, value, (0, begin, end))?);
                            }
                        }
                    }
                    "constexpr_blockwise_shift_scale" => {
                        put("data", cut(block, parameter("data")?, range)?);
                        for name in ["scale", "offset"] {
                            if let Some(value) = parameters.get(name) {
                                put(name, cut_blocks(block, value, shape, range)?);
                            }
                        }
                    }
                    "constexpr_lut_to_dense" if !parameters.contains_key("shape") => {
                        let lut = parameter("lut")?;
                        let dims = lut.tensor_type().and_then(TensorType::shape).ok_or(SHAPE)?;
                        if dims.last() != Some(&1) {
                            return Err("one index of the weight stands for several numbers".into());
                        }
                        put("indices", cut(block, parameter("indices")?, range)?);
                        put("lut", cut_blocks(block, lut, shape, range)?);
                    }
                    "constexpr_lut_to_dense" => {
                        let entries = parameter("lut")?
                            .tensor_type()
                            .and_then(TensorType::elements)
                            .filter(|entries| entries.is_power_of_two() && *entries <= 256)
                            .ok_or(SHAPE)?;
                        let width = entries.trailing_zeros() as usize;
                        let bytes = block.bytes(parameter("indices")?).ok_or(UNREADABLE)?;
                        let (indices, shape) = cut_packed(&bytes, width, shape, range)?;
                        put("indices", constant(&indices)?);
                        put("shape", constant(&shape)?);
                    }
                    other => return Err(format!("a weight of {other} cannot be cut")),
                }
                Ok(Piece::Compressed {
                    op_type: op.op_type().to_owned(),
                    parameters: pieces,
                    in_attributes: op.arguments().is_empty(),
                })
            }
        }
    }
}

impl Weight<'_> {
    /// The weight with its last `keep` dimensions and so many of size 1 behind them. All others must
    /// be of size 1.
    pub fn with_ones(&self, keep: usize, ones: usize) -> Result<Piece, String> {
        let append = |value: &Value| -> Result<Value, String> {
            let ty = value.tensor_type().ok_or(SHAPE)?;
            let first = ty.dims.len().checked_sub(keep).ok_or(SHAPE)?;
            let mut dims = ty.dims.get(first..).ok_or(SHAPE)?.to_vec();
            dims.extend(std::iter::repeat_n(Dim::Known(1), ones));
            Ok(Value {
                ty: Some(TensorType::new(ty.dtype, dims).into()),
                ..value.clone()
            })
        };
        match self {
            Self::Plain(value) => Ok(Piece::Plain(append(value)?)),
            Self::Compressed {
                op,
                parameters,
                shape,
            } if shape.len() == keep => {
                let mut changed: BTreeMap<String, Value> = parameters
                    .iter()
                    .map(|(name, value)| ((*name).to_owned(), (*value).clone()))
                    .collect();
                let shaped: &[&str] = match op.op_type() {
                    "constexpr_cast" => &["source_val"],
                    "constexpr_affine_dequantize" => {
                        let axis = parameters.get("axis").and_then(|axis| integer(axis));
                        let axis = crate::tensor::axis(axis.ok_or(SHAPE)?, keep)
                            .map_err(|error| error.to_string())?;
                        changed.insert("axis".to_owned(), Value::int32(axis as i32));
                        &["quantized_data"]
                    }
                    "constexpr_blockwise_shift_scale" => &["data", "scale", "offset"],
                    other => return Err(format!("a weight of {other} cannot be a kernel")),
                };
                for name in shaped {
                    if let Some(value) = parameters.get(name) {
                        changed.insert((*name).to_owned(), append(value)?);
                    }
                }
                Ok(Piece::Compressed {
                    op_type: op.op_type().to_owned(),
                    parameters: changed,
                    in_attributes: op.arguments().is_empty(),
                })
            }
            _ => Err("the compressed weight has more dimensions than two".to_owned()),
        }
    }

    /// A matrix, its leading dimensions of size 1 left out, transposed, with so many dimensions of
    /// size 1 behind it.
    pub fn transposed(&self, block: &Block<'_>, ones: usize) -> Result<Piece, String> {
        let Self::Plain(value) = self else {
            return Err("the compressed weight would have to be transposed".to_owned());
        };
        let tensor = block.elements(value).ok_or(UNREADABLE)?;
        let [.., rows, columns] = *tensor.shape() else {
            return Err(SHAPE.to_owned());
        };
        if rows * columns != tensor.len() || !tensor.dtype().is_float() {
            return Err(SHAPE.to_owned());
        }
        let elements = tensor.as_floats().map_err(|_| UNREADABLE)?;
        let mut turned = Vec::with_capacity(elements.len());
        for column in 0..columns {
            turned.extend(elements.iter().skip(column).step_by(columns.max(1)));
        }
        let mut shape = vec![columns, rows];
        shape.extend(std::iter::repeat_n(1, ones));
        Ok(Piece::Plain(constant(&Tensor::floats(
            tensor.dtype(),
            shape,
            turned,
        ))?))
    }
}

fn integer(value: &Value) -> Option<i64> {
    match crate::ops::constant::integers(value)?.as_slice() {
        [one] => Some(*one),
        _ => None,
    }
}

fn constant(tensor: &Tensor) -> Result<Value, String> {
    eval::value(tensor).map_err(|error| error.to_string())
}

/// An axis with the range to take of it.
type Range = (usize, u64, u64);

/// The elements of a constant within a range of an axis.
fn cut(block: &Block<'_>, value: &Value, range: Range) -> Result<Value, String> {
    let (axis, begin, end) = range;
    let size = value.tensor_type().and_then(|ty| ty.dims.get(axis)?.size());
    if begin == 0 && size == Some(end) {
        // All of it: the data stays where it is.
        return Ok(value.clone());
    }
    let tensor = block.elements(value).ok_or(UNREADABLE)?;
    let mut shape = tensor.shape().to_vec();
    let dtype = tensor.dtype();
    let unreadable = |_| UNREADABLE.to_owned();
    let cut = if dtype.is_float() {
        let elements = tensor.as_floats().map_err(unreadable)?;
        let elements = take(&elements, &mut shape, range)?;
        Tensor::floats(dtype, shape, elements)
    } else {
        let elements = tensor.as_ints().map_err(unreadable)?;
        let elements = take(&elements, &mut shape, range)?;
        Tensor::ints(dtype, shape, elements)
    };
    constant(&cut)
}

/// The elements within a range of an axis; the shape becomes theirs.
fn take<T: Copy>(
    elements: &[T],
    shape: &mut [usize],
    (axis, begin, end): Range,
) -> Result<Vec<T>, String> {
    let outside = "a cut is outside of the weight";
    let size = |size: u64| usize::try_from(size).map_err(|_| outside);
    let (begin, end) = (size(begin)?, size(end)?);
    let length = *shape
        .get(axis)
        .filter(|length| end <= **length)
        .ok_or(outside)?;
    if begin >= end {
        return Err(outside.to_owned());
    }
    let inner: usize = shape[axis + 1..].iter().product();
    let row = length * inner;
    let mut taken = Vec::with_capacity(elements.len() / length * (end - begin));
    if row > 0 {
        for row in elements.chunks_exact(row) {
            taken.extend_from_slice(&row[begin * inner..end * inner]);
        }
    }
    shape[axis] = end - begin;
    Ok(taken)
}

/// The part of a scale, offset or table whose leading dimensions count blocks of the weight.
fn cut_blocks(
    block: &Block<'_>,
    value: &Value,
    shape: &[u64],
    (axis, begin, end): Range,
) -> Result<Value, String> {
    let dims = value
        .tensor_type()
        .and_then(TensorType::shape)
        .ok_or(SHAPE)?;
    let (size, blocks) = shape.get(axis).zip(dims.get(axis)).ok_or(SHAPE)?;
    if *blocks == 1 {
        return Ok(value.clone());
    }
    let width = size
        .checked_div(*blocks)
        .filter(|width| *width > 0)
        .ok_or(SHAPE)?;
    if begin % width != 0 || end % width != 0 {
        return Err(format!(
            "a cut would go through a block of {width} numbers that share a scale"
        ));
    }
    cut(block, value, (axis, begin / width, end / width))
}

/// The same of indices that are packed in bytes, so many bits each, with the shape of the weight.
fn cut_packed(
    bytes: &[u8],
    width: usize,
    shape: &[u64],
    range: Range,
) -> Result<(Tensor, Tensor), String> {
    let mut sizes = shape
        .iter()
        .map(|size| usize::try_from(*size).map_err(|_| SHAPE))
        .collect::<Result<Vec<_>, _>>()?;
    let count = crate::tensor::elements(&sizes).ok_or(SHAPE)?;
    let needed = count.checked_mul(width).ok_or(SHAPE)?.div_ceil(8);
    if bytes.len() != needed {
        return Err(UNREADABLE.to_owned());
    }
    let bit = |at: usize| bytes[at / 8] >> (at % 8) & 1;
    let codes: Vec<u8> = (0..count)
        .map(|index| (0..width).fold(0, |code, at| code | bit(index * width + at) << at))
        .collect();
    let codes = take(&codes, &mut sizes, range)?;
    let mut packed = vec![0i64; (codes.len() * width).div_ceil(8)];
    for (index, code) in codes.iter().enumerate() {
        for at in (0..width).filter(|at| code >> at & 1 == 1) {
            let place = index * width + at;
            packed[place / 8] |= 1 << (place % 8);
        }
    }
    let sizes: Vec<i64> = sizes.iter().map(|size| *size as i64).collect();
    Ok((
        Tensor::ints(DType::UInt8, vec![packed.len()], packed),
        Tensor::ints(DType::UInt32, vec![sizes.len()], sizes),
    ))
}

mod scaled;
#[cfg(test)]
mod tests;

pub use scaled::{can_scale, scaled};
