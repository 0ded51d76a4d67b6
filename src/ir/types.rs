//! Types of values: element types, dimensions, and the five kinds of value type.
//!
//! The names and numbers are those of the MIL schema (`proto/MIL.proto`). A type is kept as the
//! file spells it: an unknown dimension, an unspecified one and a variadic one are three different
//! things, and a rank may disagree with the number of dimensions (the verifier says so).

use std::collections::BTreeMap;
use std::fmt;

use super::value::Value;

/// Element type of a tensor, `MILSpec.DataType` in the schema.
///
/// `Other` carries a number that the schema does not name, so that a newer file passes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the variants are the schema's own names")]
pub enum DType {
    Unused,
    Bool,
    String,
    Float16,
    Float32,
    Float64,
    BFloat16,
    Int8,
    Int16,
    Int32,
    Int64,
    Int4,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    UInt4,
    UInt2,
    UInt1,
    UInt6,
    UInt3,
    Float8E4M3FN,
    Float8E5M2,
    Other(i32),
}

/// Every named element type: (type, number in the schema, word in MIL text, bits per element).
/// Strings have no fixed width and say 0. Bools take one byte in an immediate's `bytes` field.
const DTYPES: [(DType, i32, &str, u32); 23] = [
    (DType::Unused, 0, "unused", 0),
    (DType::Bool, 1, "bool", 8),
    (DType::String, 2, "string", 0),
    (DType::Float16, 10, "fp16", 16),
    (DType::Float32, 11, "fp32", 32),
    (DType::Float64, 12, "fp64", 64),
    (DType::BFloat16, 13, "bf16", 16),
    (DType::Int8, 21, "int8", 8),
    (DType::Int16, 22, "int16", 16),
    (DType::Int32, 23, "int32", 32),
    (DType::Int64, 24, "int64", 64),
    (DType::Int4, 25, "int4", 4),
    (DType::UInt8, 31, "uint8", 8),
    (DType::UInt16, 32, "uint16", 16),
    (DType::UInt32, 33, "uint32", 32),
    (DType::UInt64, 34, "uint64", 64),
    (DType::UInt4, 35, "uint4", 4),
    (DType::UInt2, 36, "uint2", 2),
    (DType::UInt1, 37, "uint1", 1),
    (DType::UInt6, 38, "uint6", 6),
    (DType::UInt3, 39, "uint3", 3),
    (DType::Float8E4M3FN, 40, "fp8e4m3fn", 8),
    (DType::Float8E5M2, 41, "fp8e5m2", 8),
];

impl DType {
    /// The type with this number in the schema.
    pub fn from_number(number: i32) -> Self {
        DTYPES
            .iter()
            .find(|row| row.1 == number)
            .map_or(Self::Other(number), |row| row.0)
    }

    /// The number of this type in the schema.
    pub fn number(self) -> i32 {
        match self {
            Self::Other(number) => number,
            _ => self.row().1,
        }
    }

    /// The type that MIL text (and a `cast`'s `dtype` parameter) spells this way.
    pub fn from_word(word: &str) -> Option<Self> {
        DTYPES.iter().find(|row| row.2 == word).map(|row| row.0)
    }

    /// The word for this type in MIL text; for a number that the schema does not name, `dtype<N>`.
    pub fn word(self) -> String {
        match self {
            Self::Other(number) => format!("dtype{number}"),
            _ => self.row().2.to_owned(),
        }
    }

    /// Bits per element; `None` for strings and for types that the schema does not name.
    pub fn bits(self) -> Option<u32> {
        match self {
            Self::Other(_) => None,
            _ => Some(self.row().3).filter(|bits| *bits > 0),
        }
    }

    /// True for fp16, fp32, fp64, bf16 and the fp8 types.
    pub fn is_float(self) -> bool {
        matches!(
            self,
            Self::Float16
                | Self::Float32
                | Self::Float64
                | Self::BFloat16
                | Self::Float8E4M3FN
                | Self::Float8E5M2
        )
    }

    /// True for the signed and unsigned integers of any width.
    pub fn is_int(self) -> bool {
        !self.is_float()
            && !matches!(
                self,
                Self::Unused | Self::Bool | Self::String | Self::Other(_)
            )
    }

    fn row(self) -> &'static (DType, i32, &'static str, u32) {
        DTYPES
            .iter()
            .find(|row| row.0 == self)
            .expect("every variant but Other stands in DTYPES")
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.word())
    }
}

/// One dimension of a tensor, or the length of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// A size known at conversion time.
    Known(u64),
    /// A size known only when the model runs; a `variadic` one stands for any number of dimensions.
    Unknown {
        /// Stands for zero or more dimensions.
        variadic: bool,
    },
    /// A `Dimension` message with neither field set.
    Unspecified,
}

impl Dim {
    /// The plain unknown dimension, `?` in MIL text.
    pub const UNKNOWN: Self = Self::Unknown { variadic: false };

    /// The size, if it is known.
    pub fn size(self) -> Option<u64> {
        match self {
            Self::Known(size) => Some(size),
            _ => None,
        }
    }
}

/// The type of a tensor or, with rank 0, of a scalar.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Number of dimensions; −1 if it is known only when the model runs.
    pub rank: i64,
    /// The dimensions, outermost first.
    pub dims: Vec<Dim>,
    /// Attributes of the type; none have been seen in the wild.
    pub attributes: BTreeMap<String, Value>,
}

impl TensorType {
    /// A tensor of fixed size.
    pub fn fixed(dtype: DType, shape: &[u64]) -> Self {
        Self::new(dtype, shape.iter().map(|size| Dim::Known(*size)).collect())
    }

    /// A scalar: rank 0.
    pub fn scalar(dtype: DType) -> Self {
        Self::new(dtype, Vec::new())
    }

    /// A tensor with the given dimensions.
    pub fn new(dtype: DType, dims: Vec<Dim>) -> Self {
        Self {
            dtype,
            rank: dims.len() as i64,
            dims,
            attributes: BTreeMap::new(),
        }
    }

    /// The same shape with another element type.
    pub fn with_dtype(&self, dtype: DType) -> Self {
        Self {
            dtype,
            ..self.clone()
        }
    }

    /// The sizes, if the rank and every dimension are known.
    pub fn shape(&self) -> Option<Vec<u64>> {
        if self.rank != self.dims.len() as i64 {
            return None;
        }
        self.dims.iter().map(|dim| dim.size()).collect()
    }

    /// Number of elements, if every dimension is known and the product fits.
    pub fn elements(&self) -> Option<u64> {
        if self.rank != self.dims.len() as i64 {
            return None;
        }
        self.dims
            .iter()
            .try_fold(1u64, |product, dim| product.checked_mul(dim.size()?))
    }

    /// Bytes of the packed data (sub-byte elements share bytes, the last byte may be padded).
    pub fn packed_bytes(&self) -> Option<u64> {
        let bits = self.elements()?.checked_mul(self.dtype.bits()? as u64)?;
        Some(bits.div_ceil(8))
    }

    /// True if both have the same rank and the same dimensions, whatever their element types.
    pub fn same_shape(&self, other: &Self) -> bool {
        self.rank == other.rank && self.dims == other.dims
    }
}

/// The type of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum ValueType {
    /// A tensor or scalar.
    Tensor(TensorType),
    /// A list of values of one type.
    List {
        /// Type of each item; absent in an empty message.
        item: Option<Box<ValueType>>,
        /// Length; `None` if the message has no length at all.
        length: Option<Dim>,
    },
    /// A fixed sequence of values, each with its type.
    Tuple(Vec<ValueType>),
    /// A map from keys to values.
    Dictionary {
        /// Type of the keys; absent in an empty message.
        key: Option<Box<ValueType>>,
        /// Type of the values; absent in an empty message.
        value: Option<Box<ValueType>>,
    },
    /// A persistent state that wraps a tensor; absent in an empty message.
    State(Option<Box<ValueType>>),
    /// A `ValueType` message with no kind set.
    Unspecified,
}

impl ValueType {
    /// The tensor type, if this is one.
    pub fn as_tensor(&self) -> Option<&TensorType> {
        match self {
            Self::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// The tensor type behind a state, if this is one.
    pub fn as_state(&self) -> Option<&TensorType> {
        match self {
            Self::State(Some(inner)) => inner.as_tensor(),
            _ => None,
        }
    }

    /// True for a state type of any content.
    pub fn is_state(&self) -> bool {
        matches!(self, Self::State(_))
    }
}

impl From<TensorType> for ValueType {
    fn from(tensor: TensorType) -> Self {
        Self::Tensor(tensor)
    }
}
