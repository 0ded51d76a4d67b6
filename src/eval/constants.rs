//! Values of a program as data to compute with.

use std::sync::Arc;

use crate::ir::types::{DType, TensorType};
use crate::ir::value::{BlobRef, Content, Immediate, TensorData, Value};
use crate::ops::Datum;
use crate::package::Weights;
use crate::package::weights::BlobDType;
use crate::source::blob_dtype;
use crate::tensor::{Bytes, Data, Packed, Tensor};

/// Why a value of a program cannot be computed with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstantError {
    /// It has no type, or one of unknown size.
    #[error("a constant has no type of fixed size")]
    Type,
    /// It has no data, or data of another type.
    #[error("a constant of type {0} has no data of that type")]
    Data(DType),
    /// It has another number of elements than its type says.
    #[error("a constant of shape {shape:?} has {found} elements")]
    Elements {
        /// The declared shape.
        shape: Vec<usize>,
        /// Elements found.
        found: usize,
    },
    /// Its data is in a weight file and cannot be read from there.
    #[error("{0}")]
    Blob(String),
}

/// A blob of a weight file, looked up when its bytes are asked for.
struct InFile {
    weights: Arc<Weights>,
    blob: BlobRef,
    dtype: BlobDType,
    elements: u64,
}

impl Bytes for InFile {
    fn bytes(&self) -> Result<&[u8], String> {
        self.weights
            .check(&self.blob.file, self.blob.offset, self.dtype, self.elements)
            .map(|blob| blob.data)
            .map_err(|error| error.to_string())
    }
}

/// The data of a value. What is in a weight file stays there until it is used, but that it can be
/// read is checked now.
pub fn datum(value: &Value, weights: &Arc<Weights>) -> Result<Datum, ConstantError> {
    match &value.content {
        Content::Immediate(Immediate::List(items)) => {
            let items = items
                .iter()
                .map(|item| match datum(item, weights)? {
                    Datum::Tensor(tensor) => Ok(Some(tensor)),
                    _ => Err(ConstantError::Type),
                })
                .collect::<Result<Vec<_>, _>>()?;
            Ok(Datum::List(Arc::new(items)))
        }
        Content::Immediate(Immediate::Tuple(items)) => {
            let items = items
                .iter()
                .map(|item| datum(item, weights))
                .collect::<Result<Vec<_>, _>>()?;
            Ok(Datum::Tuple(Arc::new(items)))
        }
        Content::Immediate(Immediate::Dictionary(pairs)) => {
            let side = |side: &Option<Value>| {
                let side = side.as_ref().ok_or(ConstantError::Type)?;
                match datum(side, weights)? {
                    Datum::Tensor(tensor) => Ok(tensor),
                    _ => Err(ConstantError::Type),
                }
            };
            let pairs = pairs
                .iter()
                .map(|(key, value)| Ok((side(key)?, side(value)?)))
                .collect::<Result<Vec<_>, ConstantError>>()?;
            Ok(Datum::Dictionary(Arc::new(pairs)))
        }
        _ => tensor(value, weights).map(Datum::Tensor),
    }
}

fn tensor(value: &Value, weights: &Arc<Weights>) -> Result<Tensor, ConstantError> {
    let ty = value.tensor_type().ok_or(ConstantError::Type)?;
    let shape = fixed_shape(ty)?;
    let dtype = ty.dtype;
    let elements = ty.elements().ok_or(ConstantError::Type)?;
    let packed = |packed| Ok(Tensor::new(dtype, shape.clone(), Data::Packed(packed)));
    match &value.content {
        Content::Blob(blob) => {
            let stored = blob_dtype(dtype).ok_or(ConstantError::Data(dtype))?;
            let source = InFile {
                weights: Arc::clone(weights),
                blob: blob.clone(),
                dtype: stored,
                elements,
            };
            source.bytes().map_err(ConstantError::Blob)?;
            packed(Packed::new(source))
        }
        Content::New(new) if new.dtype == dtype && new.elements == elements => {
            packed(Packed::new(Arc::clone(&new.bytes)))
        }
        Content::Immediate(Immediate::Tensor(data)) => immediate(dtype, shape, data),
        _ => Err(ConstantError::Data(dtype)),
    }
}

fn immediate(dtype: DType, shape: Vec<usize>, data: &TensorData) -> Result<Tensor, ConstantError> {
    let data = match data {
        TensorData::Floats(values) if dtype.is_float() => Data::Float(Arc::new(values.clone())),
        TensorData::Doubles(values) if dtype.is_float() => {
            Data::Float(Arc::new(values.iter().map(|v| *v as f32).collect()))
        }
        TensorData::Ints(values) if dtype.is_int() => {
            Data::Int(Arc::new(values.iter().map(|v| i64::from(*v)).collect()))
        }
        TensorData::LongInts(values) if dtype.is_int() => Data::Int(Arc::new(values.clone())),
        TensorData::Bools(values) if dtype == DType::Bool => Data::Bool(Arc::new(values.clone())),
        TensorData::Strings(values) if dtype == DType::String => {
            Data::Text(Arc::new(values.clone()))
        }
        TensorData::Bytes(bytes) if dtype.bits().is_some() => {
            return Tensor::new(dtype, shape, Data::Packed(Packed::new(bytes.clone())))
                .unpacked()
                .map_err(|_| ConstantError::Data(dtype));
        }
        // An empty tensor may stand in any field, or in none.
        _ if shape.contains(&0) => return Ok(Tensor::zeros(dtype, shape)),
        _ => return Err(ConstantError::Data(dtype)),
    };
    let found = match &data {
        Data::Float(values) => values.len(),
        Data::Int(values) => values.len(),
        Data::Bool(values) => values.len(),
        Data::Text(values) => values.len(),
        Data::Packed(_) => 0,
    };
    if crate::tensor::elements(&shape) == Some(found) {
        Ok(Tensor::new(dtype, shape, data))
    } else {
        Err(ConstantError::Elements { shape, found })
    }
}

/// The sizes of a type that has all of them.
pub(super) fn fixed_shape(ty: &TensorType) -> Result<Vec<usize>, ConstantError> {
    ty.shape()
        .and_then(|sizes| {
            sizes
                .into_iter()
                .map(|size| usize::try_from(size).ok())
                .collect()
        })
        .ok_or(ConstantError::Type)
}
