//! Constant values: what a `const` holds, what an attribute holds, what a literal binding holds.
//!
//! A value is kept in the form in which the file stores it. Eight-bit integers may stand in the
//! `ints` field or in `bytes`; both are kept, and [`Value::tensor_bytes`] reads either.

use std::borrow::Cow;
use std::sync::Arc;

use super::types::{DType, TensorType, ValueType};

/// A constant with its type.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Free text; coremltools refuses files where it is not empty.
    pub doc: String,
    /// The declared type; `None` if the message has none.
    pub ty: Option<ValueType>,
    /// The data.
    pub content: Content,
}

/// Where the data of a constant is.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Inside the program.
    Immediate(Immediate),
    /// In a weight file of the package.
    Blob(BlobRef),
    /// Made by a pass, placed into the weight file when the package is saved.
    New(NewBlob),
    /// A `Value` message without data.
    Absent,
}

/// A place in a weight file, as the program spells it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlobRef {
    /// File name as spelled, usually `@model_path/weights/weight.bin`.
    pub file: String,
    /// Byte position of the blob's 64-byte metadata record (not of its data).
    pub offset: u64,
}

/// Packed little-endian data that a pass made and that will live in the weight file.
#[derive(Clone, Debug, PartialEq)]
pub struct NewBlob {
    /// Element type.
    pub dtype: DType,
    /// Number of elements; decides the padding of sub-byte types.
    pub elements: u64,
    /// The data, packed as in the weight file.
    pub bytes: Arc<[u8]>,
}

/// Data inside the program.
#[derive(Clone, Debug, PartialEq)]
pub enum Immediate {
    /// Elements of a tensor in row-major order.
    Tensor(TensorData),
    /// One value for each item.
    Tuple(Vec<Value>),
    /// One value for each item.
    List(Vec<Value>),
    /// Key and value pairs in the file's order; either may be absent in a broken file.
    Dictionary(Vec<(Option<Value>, Option<Value>)>),
    /// An `ImmediateValue` message with no kind set.
    Absent,
}

/// Elements of an immediate tensor, in one of the seven fields of the schema.
#[derive(Clone, Debug, PartialEq)]
pub enum TensorData {
    /// fp32.
    Floats(Vec<f32>),
    /// int32, and int16/uint16/int8 in some files.
    Ints(Vec<i32>),
    /// bool.
    Bools(Vec<bool>),
    /// string.
    Strings(Vec<String>),
    /// int64 and uint64.
    LongInts(Vec<i64>),
    /// fp64.
    Doubles(Vec<f64>),
    /// Packed little-endian data: fp16, 8-bit and sub-byte integers, uint32.
    Bytes(Vec<u8>),
    /// A `TensorValue` message with no field set.
    Absent,
}

impl Value {
    /// An immediate tensor of the given type.
    pub fn tensor(ty: TensorType, data: TensorData) -> Self {
        Self {
            doc: String::new(),
            ty: Some(ValueType::Tensor(ty)),
            content: Content::Immediate(Immediate::Tensor(data)),
        }
    }

    /// A scalar string.
    pub fn string(text: impl Into<String>) -> Self {
        Self::tensor(
            TensorType::scalar(DType::String),
            TensorData::Strings(vec![text.into()]),
        )
    }

    /// A scalar bool.
    pub fn bool(value: bool) -> Self {
        Self::tensor(
            TensorType::scalar(DType::Bool),
            TensorData::Bools(vec![value]),
        )
    }

    /// A scalar int32.
    pub fn int32(value: i32) -> Self {
        Self::tensor(
            TensorType::scalar(DType::Int32),
            TensorData::Ints(vec![value]),
        )
    }

    /// A rank-1 int32 tensor.
    pub fn int32s(values: &[i32]) -> Self {
        Self::tensor(
            TensorType::fixed(DType::Int32, &[values.len() as u64]),
            TensorData::Ints(values.to_vec()),
        )
    }

    /// A rank-1 bool tensor.
    pub fn bools(values: &[bool]) -> Self {
        Self::tensor(
            TensorType::fixed(DType::Bool, &[values.len() as u64]),
            TensorData::Bools(values.to_vec()),
        )
    }

    /// A scalar float of type fp16 or fp32, rounded to nearest even; `None` for other types.
    pub fn float(dtype: DType, value: f64) -> Option<Self> {
        let data = match dtype {
            DType::Float16 => TensorData::Bytes(half::f16::from_f64(value).to_le_bytes().to_vec()),
            DType::Float32 => TensorData::Floats(vec![value as f32]),
            _ => return None,
        };
        Some(Self::tensor(TensorType::scalar(dtype), data))
    }

    /// The declared tensor type.
    pub fn tensor_type(&self) -> Option<&TensorType> {
        self.ty.as_ref()?.as_tensor()
    }

    /// The immediate tensor data.
    pub fn tensor_data(&self) -> Option<&TensorData> {
        match &self.content {
            Content::Immediate(Immediate::Tensor(data)) => Some(data),
            _ => None,
        }
    }

    /// The text of a scalar string (or of a one-element string tensor).
    pub fn as_str(&self) -> Option<&str> {
        match self.tensor_data()? {
            TensorData::Strings(values) if values.len() == 1 => Some(&values[0]),
            _ => None,
        }
    }

    /// The place in a weight file, if the data is there.
    pub fn blob(&self) -> Option<&BlobRef> {
        match &self.content {
            Content::Blob(blob) => Some(blob),
            _ => None,
        }
    }

    /// The packed little-endian bytes of a tensor whose data is in memory (immediate, or made by a
    /// pass), whatever field holds them; `None` for blobs in a file, strings, and values that do
    /// not fit the declared type.
    pub fn tensor_bytes(&self) -> Option<Cow<'_, [u8]>> {
        let dtype = self.tensor_type()?.dtype;
        let data = match &self.content {
            Content::Immediate(Immediate::Tensor(data)) => data,
            Content::New(new) => return Some(Cow::Borrowed(&new.bytes)),
            _ => return None,
        };
        let bytes = match (data, dtype) {
            (TensorData::Bytes(bytes), _) => return Some(Cow::Borrowed(bytes)),
            (TensorData::Floats(values), DType::Float32) => {
                values.iter().flat_map(|v| v.to_le_bytes()).collect()
            }
            (TensorData::Doubles(values), DType::Float64) => {
                values.iter().flat_map(|v| v.to_le_bytes()).collect()
            }
            (TensorData::Bools(values), DType::Bool) => {
                values.iter().map(|v| u8::from(*v)).collect()
            }
            (TensorData::Ints(values), DType::Int32 | DType::UInt32) => {
                values.iter().flat_map(|v| v.to_le_bytes()).collect()
            }
            (TensorData::Ints(values), DType::Int16 | DType::UInt16) => values
                .iter()
                .flat_map(|v| (*v as u16).to_le_bytes())
                .collect(),
            (TensorData::Ints(values), DType::Int8 | DType::UInt8) => {
                values.iter().map(|v| *v as u8).collect()
            }
            (TensorData::LongInts(values), DType::Int64 | DType::UInt64) => {
                values.iter().flat_map(|v| v.to_le_bytes()).collect()
            }
            _ => return None,
        };
        Some(Cow::Owned(bytes))
    }
}
