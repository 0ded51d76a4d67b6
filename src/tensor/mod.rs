//! Dense tensors, the values that the interpreter computes with.
//!
//! Elements are held in one of four forms whatever the element type: floats of any width as `f32`,
//! integers of any width as `i64`, bools, and strings. A narrower type is a promise about the values
//! that [`Precision rounding`](crate::ops::Numerics) keeps; it is not a layout. Weights are the
//! exception: they stay *packed* as the weight file holds them, and are widened when an op asks.
//!
//! Tensors are row-major and contiguous, and their buffers are shared: a clone, a reshape or a
//! change of element type copies nothing.

mod blocks;
mod gemm;
mod movement;
mod packed;
mod padding;
mod pointwise;
mod runs;
mod shape;
mod strided;

use std::borrow::Cow;
use std::sync::Arc;

use half::f16;
use half::slice::HalfFloatSliceExt as _;

use crate::ir::types::DType;

pub use gemm::{Matrix, Output, gemm};
pub(crate) use movement::for_kind;
pub use movement::{concat, pick_or_fill};
pub use packed::{Bytes, Packed};
pub use padding::Border;
pub use pointwise::{Broadcast, choose, in_blocks, map, zip};
pub use shape::{
    axis, broadcast_shapes, broadcast_strides, elements, split_at_axis, steps, strides,
};

/// A tensor: an element type, a shape and elements in row-major order. Rank 0 is a scalar.
#[derive(Clone, Debug)]
pub struct Tensor {
    dtype: DType,
    shape: Vec<usize>,
    data: Data,
}

/// The elements of a tensor.
#[derive(Clone, Debug)]
pub enum Data {
    /// Of every floating-point type.
    Float(Arc<Vec<f32>>),
    /// Of every integer type.
    Int(Arc<Vec<i64>>),
    /// Of type bool.
    Bool(Arc<Vec<bool>>),
    /// Of type string.
    Text(Arc<Vec<String>>),
    /// Floats or integers as a weight file holds them.
    Packed(Packed),
}

/// Why a tensor cannot be read or made as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// The elements are of another kind.
    #[error("a tensor of {expected} is needed, this one is of {found}")]
    Kind {
        /// The kind that is needed.
        expected: &'static str,
        /// The element type found.
        found: DType,
    },
    /// Packed data that does not fill the shape, or cannot be read.
    #[error("{0}")]
    Data(String),
    /// A shape with more elements than can be counted.
    #[error("a tensor of shape {0:?} has too many elements")]
    TooLarge(Vec<usize>),
    /// Two shapes that do not broadcast together.
    #[error("the shapes {0:?} and {1:?} do not broadcast together")]
    Broadcast(Vec<usize>, Vec<usize>),
    /// An axis that the rank does not have.
    #[error("axis {axis} does not exist at rank {rank}")]
    Axis {
        /// The axis as given.
        axis: i64,
        /// The rank.
        rank: usize,
    },
    /// Another number of elements than the shape has.
    #[error("{found} elements do not fill the shape {shape:?}")]
    Elements {
        /// Number of elements given.
        found: usize,
        /// The shape.
        shape: Vec<usize>,
    },
}

/// A kind of element: how a tensor's buffer is read and made.
pub trait Element: Clone + Default + Send + Sync + PartialEq + 'static {
    /// The elements of a tensor; widened if it is packed.
    fn read(tensor: &Tensor) -> Result<Cow<'_, [Self]>, TensorError>;
    /// A tensor of these elements, which fill the shape.
    fn make(dtype: DType, shape: Vec<usize>, elements: Vec<Self>) -> Tensor;
}

impl Element for f32 {
    fn read(tensor: &Tensor) -> Result<Cow<'_, [Self]>, TensorError> {
        match &tensor.data {
            Data::Float(values) => Ok(Cow::Borrowed(values)),
            Data::Packed(packed) if tensor.dtype.is_float() => {
                packed.floats(tensor.dtype, tensor.len())
            }
            _ => Err(tensor.not("floats")),
        }
    }

    fn make(dtype: DType, shape: Vec<usize>, elements: Vec<Self>) -> Tensor {
        Tensor::new(dtype, shape, Data::Float(Arc::new(elements)))
    }
}

impl Element for i64 {
    fn read(tensor: &Tensor) -> Result<Cow<'_, [Self]>, TensorError> {
        match &tensor.data {
            Data::Int(values) => Ok(Cow::Borrowed(values)),
            Data::Packed(packed) if tensor.dtype.is_int() => {
                packed.integers(tensor.dtype, tensor.len()).map(Cow::Owned)
            }
            _ => Err(tensor.not("integers")),
        }
    }

    fn make(dtype: DType, shape: Vec<usize>, elements: Vec<Self>) -> Tensor {
        Tensor::new(dtype, shape, Data::Int(Arc::new(elements)))
    }
}

impl Element for bool {
    fn read(tensor: &Tensor) -> Result<Cow<'_, [Self]>, TensorError> {
        match &tensor.data {
            Data::Bool(values) => Ok(Cow::Borrowed(values)),
            Data::Packed(packed) if tensor.dtype == DType::Bool => Ok(Cow::Owned(
                packed
                    .integers(DType::UInt8, tensor.len())?
                    .into_iter()
                    .map(|value| value != 0)
                    .collect(),
            )),
            _ => Err(tensor.not("bools")),
        }
    }

    fn make(dtype: DType, shape: Vec<usize>, elements: Vec<Self>) -> Tensor {
        Tensor::new(dtype, shape, Data::Bool(Arc::new(elements)))
    }
}

impl Element for String {
    fn read(tensor: &Tensor) -> Result<Cow<'_, [Self]>, TensorError> {
        match &tensor.data {
            Data::Text(values) => Ok(Cow::Borrowed(values)),
            _ => Err(tensor.not("strings")),
        }
    }

    fn make(dtype: DType, shape: Vec<usize>, elements: Vec<Self>) -> Tensor {
        Tensor::new(dtype, shape, Data::Text(Arc::new(elements)))
    }
}

impl Tensor {
    /// A tensor of these elements, which must fill the shape.
    pub fn new(dtype: DType, shape: Vec<usize>, data: Data) -> Self {
        let tensor = Self { dtype, shape, data };
        debug_assert!(
            tensor.is_full(),
            "{} elements in {:?}",
            tensor.len(),
            tensor.shape
        );
        tensor
    }

    /// A tensor of floats.
    pub fn floats(dtype: DType, shape: Vec<usize>, elements: Vec<f32>) -> Self {
        f32::make(dtype, shape, elements)
    }

    /// A tensor of integers.
    pub fn ints(dtype: DType, shape: Vec<usize>, elements: Vec<i64>) -> Self {
        i64::make(dtype, shape, elements)
    }

    /// A tensor of bools.
    pub fn bools(shape: Vec<usize>, elements: Vec<bool>) -> Self {
        bool::make(DType::Bool, shape, elements)
    }

    /// A tensor of strings.
    pub fn texts(shape: Vec<usize>, elements: Vec<String>) -> Self {
        String::make(DType::String, shape, elements)
    }

    /// A tensor of zeros (or false, or empty strings) of this type.
    pub fn zeros(dtype: DType, shape: Vec<usize>) -> Self {
        let len = shape.iter().product();
        match dtype {
            DType::Bool => Self::bools(shape, vec![false; len]),
            DType::String => Self::texts(shape, vec![String::new(); len]),
            _ if dtype.is_float() => Self::floats(dtype, shape, vec![0.0; len]),
            _ => Self::ints(dtype, shape, vec![0; len]),
        }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The sizes, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// True if there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as they are held.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// The elements as a weight file holds them, if that is how they are held.
    pub fn packed(&self) -> Option<&Packed> {
        match &self.data {
            Data::Packed(packed) => Some(packed),
            _ => None,
        }
    }

    /// True if the number of elements is that of the shape; packed data is not looked at.
    pub fn is_full(&self) -> bool {
        let len = match &self.data {
            Data::Float(values) => values.len(),
            Data::Int(values) => values.len(),
            Data::Bool(values) => values.len(),
            Data::Text(values) => values.len(),
            Data::Packed(_) => return true,
        };
        elements(&self.shape) == Some(len)
    }

    /// The elements of a tensor of floats.
    pub fn as_floats(&self) -> Result<Cow<'_, [f32]>, TensorError> {
        f32::read(self)
    }

    /// The elements of a tensor of integers.
    pub fn as_ints(&self) -> Result<Cow<'_, [i64]>, TensorError> {
        i64::read(self)
    }

    /// The elements of a tensor of bools.
    pub fn as_bools(&self) -> Result<Cow<'_, [bool]>, TensorError> {
        bool::read(self)
    }

    /// The elements of a tensor of strings.
    pub fn as_texts(&self) -> Result<Cow<'_, [String]>, TensorError> {
        String::read(self)
    }

    /// A range of the elements of a tensor of floats; of a packed one, only these are widened.
    pub fn float_range(
        &self,
        range: std::ops::Range<usize>,
    ) -> Result<Cow<'_, [f32]>, TensorError> {
        if let Data::Packed(packed) = &self.data
            && self.dtype.is_float()
        {
            return packed.float_range(self.dtype, self.len(), range);
        }
        let outside =
            || TensorError::Data(format!("elements {range:?} are read of {}", self.len()));
        match self.as_floats()? {
            Cow::Borrowed(values) => values
                .get(range.clone())
                .map(Cow::Borrowed)
                .ok_or_else(outside),
            Cow::Owned(values) => values
                .get(range.clone())
                .map(|values| Cow::Owned(values.to_vec()))
                .ok_or_else(outside),
        }
    }

    /// The elements as `f64`: floats, integers, or bools as 0 and 1; for comparing and showing.
    pub fn to_f64(&self) -> Result<Vec<f64>, TensorError> {
        if self.dtype.is_float() {
            Ok(self.as_floats()?.iter().map(|v| f64::from(*v)).collect())
        } else if self.dtype == DType::Bool {
            Ok(self
                .as_bools()?
                .iter()
                .map(|v| f64::from(u8::from(*v)))
                .collect())
        } else {
            Ok(self.as_ints()?.iter().map(|v| *v as f64).collect())
        }
    }

    /// The same elements in another shape of as many.
    pub fn reshaped(&self, shape: Vec<usize>) -> Result<Self, TensorError> {
        if elements(&shape) != Some(self.len()) {
            return Err(TensorError::Elements {
                found: self.len(),
                shape,
            });
        }
        Ok(Self {
            dtype: self.dtype,
            shape,
            data: self.data.clone(),
        })
    }

    /// The same elements under another type of the same kind; nothing is rounded.
    pub fn retyped(self, dtype: DType) -> Self {
        Self { dtype, ..self }
    }

    /// The elements unpacked, if they are packed.
    pub fn unpacked(self) -> Result<Self, TensorError> {
        if !matches!(self.data, Data::Packed(_)) {
            return Ok(self);
        }
        let (dtype, shape) = (self.dtype, self.shape.clone());
        Ok(if dtype.is_float() {
            Self::floats(dtype, shape, self.as_floats()?.into_owned())
        } else if dtype == DType::Bool {
            Self::bools(shape, self.as_bools()?.into_owned())
        } else {
            Self::ints(dtype, shape, self.as_ints()?.into_owned())
        })
    }

    /// Bytes of memory that go when this tensor goes: 0 if another one shares the buffer, or if it
    /// is packed.
    pub fn owned_bytes(&self) -> u64 {
        let bytes = match &self.data {
            Data::Float(values) if Arc::strong_count(values) == 1 => values.len() * 4,
            Data::Int(values) if Arc::strong_count(values) == 1 => values.len() * 8,
            Data::Bool(values) if Arc::strong_count(values) == 1 => values.len(),
            _ => 0,
        };
        bytes as u64
    }

    /// Rounds every element to the nearest fp16, ties to even, and makes of subnormal results a
    /// zero of the same sign if `flush` says so. Values beyond 65 504 (from 65 520) become infinite.
    pub fn rounded_to_half(mut self, flush: bool) -> Result<Self, TensorError> {
        if let Data::Packed(packed) = &self.data {
            // What is stored as fp16 is rounded already.
            if self.dtype == DType::Float16 && !flush {
                return Ok(self);
            }
            let values = packed.floats(self.dtype, self.len())?.into_owned();
            self.data = Data::Float(Arc::new(values));
        }
        if let Data::Float(values) = &mut self.data {
            // What an op only moved is rounded already, and its buffer shared: it need not be copied.
            if Arc::strong_count(values) > 1 && are_halves(values, flush) {
                return Ok(self);
            }
            round_to_half(Arc::make_mut(values).as_mut_slice(), flush);
        }
        Ok(self)
    }

    /// Brings every integer into the range of the element type, modulo its number of values.
    pub fn wrapped_to_width(mut self) -> Self {
        let wrap: Option<fn(i64) -> i64> = match self.dtype {
            DType::Int8 => Some(|v| i64::from(v as i8)),
            DType::Int16 => Some(|v| i64::from(v as i16)),
            DType::Int32 => Some(|v| i64::from(v as i32)),
            DType::UInt8 => Some(|v| i64::from(v as u8)),
            DType::UInt16 => Some(|v| i64::from(v as u16)),
            DType::UInt32 => Some(|v| i64::from(v as u32)),
            _ => None,
        };
        if let (Some(wrap), Data::Int(values)) = (wrap, &mut self.data)
            && values.iter().any(|value| wrap(*value) != *value)
        {
            for value in Arc::make_mut(values) {
                *value = wrap(*value);
            }
        }
        self
    }

    fn not(&self, expected: &'static str) -> TensorError {
        TensorError::Kind {
            expected,
            found: self.dtype,
        }
    }
}

/// Smallest normal fp16, 2^-14.
const SMALLEST_NORMAL_HALF: f32 = 6.103_515_6e-5;

/// Rounds to the nearest fp16, ties to even; with `flush`, results below 2^-14 in magnitude become
/// zeros of the same sign.
pub fn round_to_half(values: &mut [f32], flush: bool) {
    const BLOCK: usize = 1024;
    let mut halves = [f16::ZERO; BLOCK];
    for block in values.chunks_mut(BLOCK) {
        let halves = &mut halves[..block.len()];
        halves.convert_from_f32_slice(block);
        halves.convert_to_f32_slice(block);
        if flush {
            for value in block {
                if value.abs() < SMALLEST_NORMAL_HALF {
                    *value = 0f32.copysign(*value);
                }
            }
        }
    }
}

/// Whether rounding would change nothing.
fn are_halves(values: &[f32], flush: bool) -> bool {
    const BLOCK: usize = 1024;
    let mut rounded = [0f32; BLOCK];
    values.chunks(BLOCK).all(|block| {
        let rounded = &mut rounded[..block.len()];
        rounded.copy_from_slice(block);
        round_to_half(rounded, flush);
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan();
        block.iter().zip(rounded.iter()).all(same)
    })
}

#[cfg(test)]
mod tests;
