//! Elements as a weight file holds them: little-endian, sub-byte types packed from the low bit up.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use half::slice::{HalfBitsSliceExt as _, HalfFloatSliceExt as _};
use half::{bf16, f16};

use super::TensorError;
use crate::ir::types::DType;

/// Something that holds bytes: a mapped weight file, or memory.
pub trait Bytes: Send + Sync {
    /// The bytes, or why they cannot be read.
    fn bytes(&self) -> Result<&[u8], String>;
}

impl Bytes for Vec<u8> {
    fn bytes(&self) -> Result<&[u8], String> {
        Ok(self)
    }
}

impl Bytes for Arc<[u8]> {
    fn bytes(&self) -> Result<&[u8], String> {
        Ok(self)
    }
}

/// Packed elements of some type, shared.
#[derive(Clone)]
pub struct Packed(Arc<dyn Bytes>);

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Packed")
    }
}

impl Packed {
    /// The elements that `bytes` holds.
    pub fn new(bytes: impl Bytes + 'static) -> Self {
        Self(Arc::new(bytes))
    }

    /// The bytes.
    pub fn bytes(&self) -> Result<&[u8], TensorError> {
        self.0.bytes().map_err(TensorError::Data)
    }

    /// The bytes of exactly so many elements.
    pub(super) fn exactly(&self, dtype: DType, count: usize) -> Result<&[u8], TensorError> {
        let bytes = self.bytes()?;
        let wanted = dtype
            .bits()
            .and_then(|bits| count.checked_mul(bits as usize))
            .map(|bits| bits.div_ceil(8));
        if wanted == Some(bytes.len()) {
            Ok(bytes)
        } else {
            Err(TensorError::Data(format!(
                "{} bytes are not {count} elements of {dtype}",
                bytes.len()
            )))
        }
    }

    /// All `count` elements of a floating-point type, widened.
    pub(super) fn floats(&self, dtype: DType, count: usize) -> Result<Cow<'_, [f32]>, TensorError> {
        self.float_range(dtype, count, 0..count)
    }

    /// A range of the `count` elements of a floating-point type, widened.
    pub(super) fn float_range(
        &self,
        dtype: DType,
        count: usize,
        range: Range<usize>,
    ) -> Result<Cow<'_, [f32]>, TensorError> {
        let width = dtype.bits().unwrap_or(0) as usize / 8;
        let bytes = self.exactly(dtype, count)?;
        let bytes = bytes
            .get(range.start * width..range.end * width)
            .ok_or_else(|| TensorError::Data(format!("elements {range:?} are read of {count}")))?;
        let count = range.len();
        if dtype == DType::Float32
            && cfg!(target_endian = "little")
            && let Ok(values) = bytemuck::try_cast_slice::<u8, f32>(bytes)
        {
            return Ok(Cow::Borrowed(values));
        }
        let mut values = vec![0.0; count];
        widen(dtype, bytes, &mut values)?;
        Ok(Cow::Owned(values))
    }

    /// Runs of `run` elements each out of `count` of a floating-point type, widened. All of them are
    /// inside.
    pub(super) fn float_runs(
        &self,
        dtype: DType,
        count: usize,
        run: usize,
        starts: &[usize],
    ) -> Result<Vec<f32>, TensorError> {
        let bytes = self.exactly(dtype, count)?;
        let width = bytes.len().checked_div(count).unwrap_or(0);
        let mut values = vec![0.0; starts.len() * run];
        for (start, values) in starts.iter().zip(values.chunks_exact_mut(run.max(1))) {
            let range = start * width..(start + run) * width;
            let bytes = bytes
                .get(range)
                .ok_or_else(|| TensorError::Data(format!("nothing is stored at {start}")))?;
            widen(dtype, bytes, values)?;
        }
        Ok(values)
    }

    /// So many elements of an integer type, widened.
    pub(super) fn integers(&self, dtype: DType, count: usize) -> Result<Vec<i64>, TensorError> {
        let bytes = self.exactly(dtype, count)?;
        let mut values = vec![0i64; count];
        unpack_integers(dtype, bytes, &mut values)?;
        Ok(values)
    }
}

/// Widens packed floats into `values`, which holds as many elements.
pub(super) fn widen(dtype: DType, bytes: &[u8], values: &mut [f32]) -> Result<(), TensorError> {
    match dtype {
        DType::Float16 => {
            if cfg!(target_endian = "little")
                && let Ok(bits) = bytemuck::try_cast_slice::<u8, u16>(bytes)
            {
                bits.reinterpret_cast::<f16>().convert_to_f32_slice(values);
            } else {
                for (value, bytes) in values.iter_mut().zip(bytes.chunks_exact(2)) {
                    *value = f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
                }
            }
        }
        DType::Float32 => {
            for (value, bytes) in values.iter_mut().zip(bytes.chunks_exact(4)) {
                *value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
        }
        DType::BFloat16 => {
            for (value, bytes) in values.iter_mut().zip(bytes.chunks_exact(2)) {
                *value = bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
            }
        }
        DType::Float64 => {
            for (value, bytes) in values.iter_mut().zip(bytes.chunks_exact(8)) {
                let bytes = bytes.try_into().unwrap_or_default();
                *value = f64::from_le_bytes(bytes) as f32;
            }
        }
        DType::Float8E4M3FN => {
            for (value, byte) in values.iter_mut().zip(bytes) {
                *value = small_float(*byte, 4, false);
            }
        }
        DType::Float8E5M2 => {
            for (value, byte) in values.iter_mut().zip(bytes) {
                *value = small_float(*byte, 5, true);
            }
        }
        _ => {
            return Err(TensorError::Kind {
                expected: "floats",
                found: dtype,
            });
        }
    }
    Ok(())
}

/// An 8-bit float with so many exponent bits, the rest mantissa. With `infinities` the highest
/// exponent holds infinities and NaN as in IEEE 754; without, only all ones is NaN (the "FN" form).
/// Both forms are those of the OCP 8-bit floating point specification, revision 1.0.
fn small_float(byte: u8, exponent_bits: u32, infinities: bool) -> f32 {
    let mantissa_bits = 7 - exponent_bits;
    let sign = if byte & 0x80 == 0 { 1.0 } else { -1.0 };
    let exponent = u32::from(byte & 0x7f) >> mantissa_bits;
    let mantissa = u32::from(byte) & ((1 << mantissa_bits) - 1);
    let bias = (1 << (exponent_bits - 1)) - 1;
    let highest = (1 << exponent_bits) - 1;
    let scale = (mantissa_bits as f32).exp2();
    if exponent == highest && infinities {
        return if mantissa == 0 {
            sign * f32::INFINITY
        } else {
            f32::NAN
        };
    }
    if byte & 0x7f == 0x7f && !infinities {
        return f32::NAN;
    }
    if exponent == 0 {
        return sign * (mantissa as f32 / scale) * ((1 - bias) as f32).exp2();
    }
    sign * (1.0 + mantissa as f32 / scale) * ((exponent as i32 - bias) as f32).exp2()
}

fn unpack_integers(dtype: DType, bytes: &[u8], values: &mut [i64]) -> Result<(), TensorError> {
    match dtype {
        DType::Int8 => fill(values, bytes, |[a]: [u8; 1]| i64::from(a as i8)),
        DType::UInt8 => fill(values, bytes, |[a]: [u8; 1]| i64::from(a)),
        DType::Int16 => fill(values, bytes, |b| i64::from(i16::from_le_bytes(b))),
        DType::UInt16 => fill(values, bytes, |b| i64::from(u16::from_le_bytes(b))),
        DType::Int32 => fill(values, bytes, |b| i64::from(i32::from_le_bytes(b))),
        DType::UInt32 => fill(values, bytes, |b| i64::from(u32::from_le_bytes(b))),
        DType::Int64 => fill(values, bytes, i64::from_le_bytes),
        DType::UInt64 => fill(values, bytes, |b| u64::from_le_bytes(b) as i64),
        DType::Int4 | DType::UInt1 | DType::UInt2 | DType::UInt3 | DType::UInt4 | DType::UInt6 => {
            let width = dtype.bits().unwrap_or(8) as usize;
            let mask = (1u16 << width) - 1;
            for (index, value) in values.iter_mut().enumerate() {
                let bit = index * width;
                let low = u16::from(bytes[bit / 8]);
                let high = u16::from(bytes.get(bit / 8 + 1).copied().unwrap_or(0));
                let raw = ((low | high << 8) >> (bit % 8)) & mask;
                *value = i64::from(raw);
                if dtype == DType::Int4 && raw >= 8 {
                    *value -= 16;
                }
            }
        }
        _ => {
            return Err(TensorError::Kind {
                expected: "integers",
                found: dtype,
            });
        }
    }
    Ok(())
}

fn fill<const N: usize>(values: &mut [i64], bytes: &[u8], read: impl Fn([u8; N]) -> i64) {
    let (chunks, _) = bytes.as_chunks::<N>();
    for (value, chunk) in values.iter_mut().zip(chunks) {
        *value = read(*chunk);
    }
}
