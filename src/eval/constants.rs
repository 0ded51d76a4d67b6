//! Values of a program as data to compute with.

use std::sync::Arc;

use crate::ir::types::{DType, TensorType};
use crate::ir::value::{BlobRef, Content, Immediate, NewBlob, TensorData, Value};
use crate::ops::Datum;
use crate::package::Weights;
use crate::package::weights::BlobDType;
use crate::source::blob_dtype;
use crate::tensor::{Bytes, Data, Packed, Tensor, TensorError};

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

/// Where the data of blobs is.
pub trait Blobs {
    /// The packed elements of a blob, if it holds so many of this type.
    fn packed(&self, blob: &BlobRef, dtype: DType, elements: u64) -> Result<Packed, ConstantError>;
}

impl Blobs for Arc<Weights> {
    fn packed(&self, blob: &BlobRef, dtype: DType, elements: u64) -> Result<Packed, ConstantError> {
        let source = InFile {
            weights: Self::clone(self),
            blob: blob.clone(),
            dtype: blob_dtype(dtype).ok_or(ConstantError::Data(dtype))?,
            elements,
        };
        source.bytes().map_err(ConstantError::Blob)?;
        Ok(Packed::new(source))
    }
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
pub fn datum(value: &Value, blobs: &dyn Blobs) -> Result<Datum, ConstantError> {
    match &value.content {
        Content::Immediate(Immediate::List(items)) => {
            let items = items
                .iter()
                .map(|item| match datum(item, blobs)? {
                    Datum::Tensor(tensor) => Ok(Some(tensor)),
                    _ => Err(ConstantError::Type),
                })
                .collect::<Result<Vec<_>, _>>()?;
            Ok(Datum::List(Arc::new(items)))
        }
        Content::Immediate(Immediate::Tuple(items)) => {
            let items = items
                .iter()
                .map(|item| datum(item, blobs))
                .collect::<Result<Vec<_>, _>>()?;
            Ok(Datum::Tuple(Arc::new(items)))
        }
        Content::Immediate(Immediate::Dictionary(pairs)) => {
            let side = |side: &Option<Value>| {
                let side = side.as_ref().ok_or(ConstantError::Type)?;
                match datum(side, blobs)? {
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
        _ => tensor(value, blobs).map(Datum::Tensor),
    }
}

fn tensor(value: &Value, blobs: &dyn Blobs) -> Result<Tensor, ConstantError> {
    let ty = value.tensor_type().ok_or(ConstantError::Type)?;
    let shape = fixed_shape(ty)?;
    let dtype = ty.dtype;
    let elements = ty.elements().ok_or(ConstantError::Type)?;
    let packed = |packed| Ok(Tensor::new(dtype, shape.clone(), Data::Packed(packed)));
    match &value.content {
        Content::Blob(blob) => packed(blobs.packed(blob, dtype, elements)?),
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

/// From so many elements on, a tensor's data goes into a weight file rather than into the program:
/// where coremltools draws the line.
const BLOB_ELEMENTS: usize = 10;

/// A constant that holds a tensor: in the program if it is small or of a type that weight files
/// lack, else as new data for a weight file. Floats are rounded to their type.
pub fn value(tensor: &Tensor) -> Result<Value, TensorError> {
    let dtype = tensor.dtype();
    let shape: Vec<u64> = tensor.shape().iter().map(|size| *size as u64).collect();
    let ty = TensorType::fixed(dtype, &shape);
    if tensor.len() >= BLOB_ELEMENTS && blob_dtype(dtype).is_some() {
        let bytes = packed_bytes(tensor)?;
        return Ok(Value {
            doc: String::new(),
            ty: Some(ty.into()),
            content: Content::New(NewBlob {
                dtype,
                elements: tensor.len() as u64,
                bytes: bytes.into(),
            }),
        });
    }
    let ints = || -> Result<Vec<i32>, TensorError> {
        Ok(tensor.as_ints()?.iter().map(|v| *v as i32).collect())
    };
    let data = match dtype {
        DType::Float32 => TensorData::Floats(tensor.as_floats()?.into_owned()),
        DType::Float64 => {
            TensorData::Doubles(tensor.as_floats()?.iter().map(|v| f64::from(*v)).collect())
        }
        DType::Bool => TensorData::Bools(tensor.as_bools()?.into_owned()),
        DType::String => TensorData::Strings(tensor.as_texts()?.into_owned()),
        DType::Int32 | DType::Int16 | DType::UInt16 => TensorData::Ints(ints()?),
        DType::Int64 | DType::UInt64 => TensorData::LongInts(tensor.as_ints()?.into_owned()),
        _ => TensorData::Bytes(packed_bytes(tensor)?),
    };
    Ok(Value::tensor(ty, data))
}

/// The elements packed as in a weight file, floats rounded to their type.
fn packed_bytes(tensor: &Tensor) -> Result<Vec<u8>, TensorError> {
    let kind = || TensorError::Kind {
        expected: "a type that a weight file holds",
        found: tensor.dtype(),
    };
    Ok(match tensor.dtype() {
        DType::Float32 => tensor
            .as_floats()?
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect(),
        DType::Float16 => tensor
            .as_floats()?
            .iter()
            .flat_map(|v| half::f16::from_f32(*v).to_le_bytes())
            .collect(),
        DType::BFloat16 => tensor
            .as_floats()?
            .iter()
            .flat_map(|v| half::bf16::from_f32(*v).to_le_bytes())
            .collect(),
        dtype if dtype.is_int() => {
            let width = dtype.bits().ok_or_else(kind)? as usize;
            let values = tensor.as_ints()?;
            if width >= 8 {
                let bytes = |v: &i64| v.to_le_bytes().into_iter().take(width / 8);
                return Ok(values.iter().flat_map(bytes).collect());
            }
            let mut packed = vec![0u8; (values.len() * width).div_ceil(8)];
            for (index, value) in values.iter().enumerate() {
                for bit in (0..width).filter(|bit| value >> bit & 1 == 1) {
                    let at = index * width + bit;
                    packed[at / 8] |= 1 << (at % 8);
                }
            }
            packed
        }
        _ => return Err(kind()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_comes_back_from_its_constant() {
        struct None;
        impl Blobs for None {
            fn packed(&self, _: &BlobRef, d: DType, _: u64) -> Result<Packed, ConstantError> {
                Err(ConstantError::Data(d))
            }
        }
        let tensors = [
            Tensor::ints(DType::Int4, vec![11], (-5..6).collect()),
            Tensor::ints(DType::UInt3, vec![3], vec![7, 0, 5]),
            Tensor::ints(DType::Int16, vec![2], vec![-2, 300]),
            Tensor::ints(DType::UInt32, vec![12], vec![u32::MAX.into(); 12]),
        ];
        for tensor in tensors {
            let constant = value(&tensor).unwrap();
            let back = datum(&constant, &None).unwrap();
            let back = back.as_tensor().unwrap();
            assert_eq!(back.as_ints().unwrap(), tensor.as_ints().unwrap());
            assert_eq!(
                (back.dtype(), back.shape()),
                (tensor.dtype(), tensor.shape())
            );
        }
        let floats = Tensor::floats(
            DType::Float16,
            vec![2, 5],
            vec![-0.0, 0.5, f32::INFINITY, 1e-7, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
        );
        let back = datum(&value(&floats).unwrap(), &None).unwrap();
        let back = back.as_tensor().unwrap().as_floats().unwrap().into_owned();
        // 1e-7 is 2^-23 rounded to the nearest multiple of 2^-24.
        assert_eq!(back[..4], [0.0, 0.5, f32::INFINITY, 2f32.powi(-23)]);
        assert!(back[0].is_sign_negative());
    }
}
