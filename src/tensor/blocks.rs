//! Elements in blocks: a part of a tensor at a time, straight from packed bytes. Compressed weights
//! are expanded this way, without a widened copy of all of them.

use super::packed::widen;
use super::{Data, Packed, Tensor, TensorError};
use crate::ir::types::DType;

impl Tensor {
    /// Reads the elements from `start` on as floats, as many as `out` holds: floats, or integers
    /// rounded to the nearest fp32.
    ///
    /// # Errors
    ///
    /// If there are not that many, if they are neither, or if packed data cannot be read.
    pub fn read_floats(&self, start: usize, out: &mut [f32]) -> Result<(), TensorError> {
        let end = self.end_of_block(start, out.len())?;
        match (&self.data, self.dtype.bits()) {
            (Data::Float(values), _) => out.copy_from_slice(&values[start..end]),
            (Data::Int(values), _) => {
                for (out, value) in out.iter_mut().zip(&values[start..end]) {
                    *out = *value as f32;
                }
            }
            (Data::Packed(packed), Some(bits)) if self.dtype.is_float() => {
                let bytes = packed.exactly(self.dtype, self.len())?;
                let width = bits as usize / 8;
                widen(self.dtype, &bytes[start * width..end * width], out)?;
            }
            (Data::Packed(packed), Some(1..=8)) if self.dtype.is_int() => {
                let bytes = packed.exactly(self.dtype, self.len())?;
                match self.dtype {
                    DType::Int8 => copy(bytes, start, out, |byte| f32::from(byte as i8)),
                    // The sign bit is the fourth.
                    DType::Int4 => {
                        unpack(bytes, 4, start, out, |raw| f32::from((raw << 4) as i8 >> 4));
                    }
                    DType::UInt8 => copy(bytes, start, out, f32::from),
                    _ => unpack(bytes, self.width(), start, out, f32::from),
                }
            }
            (Data::Packed(_), _) if self.dtype.is_int() => {
                for (out, value) in out.iter_mut().zip(&self.as_ints()?[start..end]) {
                    *out = *value as f32;
                }
            }
            _ => return Err(self.not("numbers")),
        }
        Ok(())
    }

    /// Reads the elements from `start` on, as many as `out` holds, each an integer from 0 to 255:
    /// indices of palettes, masks.
    ///
    /// # Errors
    ///
    /// If there are not that many, if one is not of that kind, or if packed data cannot be read.
    pub fn read_codes(&self, start: usize, out: &mut [u8]) -> Result<(), TensorError> {
        let end = self.end_of_block(start, out.len())?;
        match (&self.data, self.dtype) {
            (Data::Packed(packed), DType::UInt8) => {
                let bytes = packed.exactly(self.dtype, self.len())?;
                out.copy_from_slice(&bytes[start..end]);
            }
            (
                Data::Packed(packed),
                DType::UInt1 | DType::UInt2 | DType::UInt3 | DType::UInt4 | DType::UInt6,
            ) => {
                let bytes = packed.exactly(self.dtype, self.len())?;
                unpack(bytes, self.width(), start, out, |raw| raw);
            }
            _ => {
                let values = self.as_ints()?;
                for (out, value) in out.iter_mut().zip(&values[start..end]) {
                    *out = u8::try_from(*value).map_err(|_| {
                        TensorError::Data(format!("{value} is not an index from 0 to 255"))
                    })?;
                }
            }
        }
        Ok(())
    }

    /// These bytes, 8-bit integers, as packed elements of another integer type and shape.
    ///
    /// # Errors
    ///
    /// If the tensor does not hold bytes.
    pub fn bytes_as(&self, dtype: DType, shape: Vec<usize>) -> Result<Self, TensorError> {
        let packed = if let (Data::Packed(packed), DType::UInt8) = (&self.data, self.dtype) {
            packed.clone()
        } else {
            let mut bytes = vec![0; self.len()];
            self.read_codes(0, &mut bytes)?;
            Packed::new(bytes)
        };
        Ok(Self::new(dtype, shape, Data::Packed(packed)))
    }

    fn width(&self) -> usize {
        self.dtype.bits().map_or(8, |bits| bits as usize)
    }

    fn end_of_block(&self, start: usize, count: usize) -> Result<usize, TensorError> {
        start
            .checked_add(count)
            .filter(|end| *end <= self.len())
            .ok_or_else(|| {
                TensorError::Data(format!(
                    "{count} elements from {start} on are read of {}",
                    self.len()
                ))
            })
    }
}

fn copy<T>(bytes: &[u8], start: usize, out: &mut [T], read: impl Fn(u8) -> T) {
    for (out, byte) in out.iter_mut().zip(&bytes[start..]) {
        *out = read(*byte);
    }
}

/// Elements of `width` bits, packed from the low bit up. `bytes` has them all.
fn unpack<T>(bytes: &[u8], width: usize, start: usize, out: &mut [T], read: impl Fn(u8) -> T) {
    let mask = ((1u16 << width) - 1) as u8;
    if 8 % width == 0 {
        // No element crosses a byte.
        let in_byte = 8 / width;
        let lead = (in_byte - start % in_byte) % in_byte;
        let (head, body) = out.split_at_mut(lead.min(out.len()));
        for (index, out) in head.iter_mut().enumerate() {
            let bit = (start + index) * width;
            *out = read(bytes[bit / 8] >> (bit % 8) & mask);
        }
        let first = (start + head.len()) / in_byte;
        for (elements, byte) in body
            .chunks_mut(in_byte)
            .zip(&bytes[first.min(bytes.len())..])
        {
            for (index, out) in elements.iter_mut().enumerate() {
                *out = read(byte >> (index * width) & mask);
            }
        }
        return;
    }
    for (index, out) in out.iter_mut().enumerate() {
        let bit = (start + index) * width;
        let low = u16::from(bytes[bit / 8]);
        let high = u16::from(bytes.get(bit / 8 + 1).copied().unwrap_or(0));
        *out = read(((low | high << 8) >> (bit % 8)) as u8 & mask);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(dtype: DType, count: usize, bytes: &[u8]) -> Tensor {
        Tensor::new(
            dtype,
            vec![count],
            Data::Packed(Packed::new(bytes.to_vec())),
        )
    }

    #[test]
    fn a_block_of_packed_elements_is_that_part_of_all_of_them() {
        let bytes: Vec<u8> = (0..24u8)
            .map(|index| index.wrapping_mul(37) ^ 0x5a)
            .collect();
        for dtype in [
            DType::UInt1,
            DType::UInt2,
            DType::UInt3,
            DType::UInt4,
            DType::UInt6,
            DType::UInt8,
            DType::Int4,
            DType::Int8,
        ] {
            let count = 24 * 8 / dtype.bits().unwrap() as usize;
            let tensor = packed(dtype, count, &bytes);
            let all = tensor.as_ints().unwrap().into_owned();
            for start in 0..count {
                for len in [0, 1, 5, count - start] {
                    let len = len.min(count - start);
                    let mut block = vec![0.0; len];
                    tensor.read_floats(start, &mut block).unwrap();
                    let expected: Vec<f32> =
                        all[start..start + len].iter().map(|v| *v as f32).collect();
                    assert_eq!(block, expected, "{dtype} from {start}");
                    if !matches!(dtype, DType::Int4 | DType::Int8) {
                        let mut codes = vec![0; len];
                        tensor.read_codes(start, &mut codes).unwrap();
                        assert!(codes.iter().zip(&block).all(|(c, v)| f32::from(*c) == *v));
                    }
                }
            }
            assert!(tensor.read_floats(count, &mut [0.0]).is_err());
        }
    }

    #[test]
    fn an_integer_outside_of_a_byte_is_no_code() {
        let tensor = Tensor::ints(DType::Int32, vec![2], vec![255, 256]);
        assert!(tensor.read_codes(0, &mut [0]).is_ok());
        assert!(tensor.read_codes(1, &mut [0]).is_err());
        assert!(tensor.read_codes(usize::MAX, &mut [0]).is_err());
    }
}
