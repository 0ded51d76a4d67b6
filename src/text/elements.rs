//! The elements of an immediate tensor, one by one, whatever field of the schema holds them.

use crate::ir::{DType, TensorData, TensorType};

/// One element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Element<'a> {
    /// The bits of an fp16 number.
    Float16(u16),
    /// The bits of a bf16 number.
    BFloat16(u16),
    Float32(f32),
    Float64(f64),
    /// The bits of an fp8 E4M3FN number.
    Float8E4M3FN(u8),
    /// The bits of an fp8 E5M2 number.
    Float8E5M2(u8),
    Signed(i64),
    Unsigned(u64),
    Bool(bool),
    Text(&'a str),
}

/// The elements of tensor data.
#[derive(Clone, Copy)]
pub(super) enum Elements<'a> {
    Floats(&'a [f32]),
    Ints(&'a [i32]),
    Bools(&'a [bool]),
    Strings(&'a [String]),
    LongInts(&'a [i64]),
    /// `longInts` of a `uint64` tensor.
    UnsignedLongInts(&'a [i64]),
    Doubles(&'a [f64]),
    Packed {
        bytes: &'a [u8],
        dtype: DType,
        count: usize,
    },
}

impl<'a> Elements<'a> {
    /// The elements of data of a declared type; `None` if there is no data, or if it is packed and
    /// does not fit the type.
    pub(super) fn of(data: &'a TensorData, ty: Option<&TensorType>) -> Option<Self> {
        Some(match data {
            TensorData::Floats(values) => Self::Floats(values),
            TensorData::Ints(values) => Self::Ints(values),
            TensorData::Bools(values) => Self::Bools(values),
            TensorData::Strings(values) => Self::Strings(values),
            TensorData::LongInts(values) if ty.is_some_and(|ty| ty.dtype == DType::UInt64) => {
                Self::UnsignedLongInts(values)
            }
            TensorData::LongInts(values) => Self::LongInts(values),
            TensorData::Doubles(values) => Self::Doubles(values),
            TensorData::Bytes(bytes) => return Self::packed(bytes, ty?),
            TensorData::Absent => return None,
        })
    }

    /// The elements of packed bytes, if they are whole elements of a named type and, for elements
    /// smaller than a byte, exactly those of the shape with zeros as padding.
    pub(super) fn packed(bytes: &'a [u8], ty: &TensorType) -> Option<Self> {
        let dtype = ty.dtype;
        let width = dtype.bits()?;
        let count = if width >= 8 {
            let size = width as usize / 8;
            bytes
                .len()
                .is_multiple_of(size)
                .then(|| bytes.len() / size)?
        } else {
            let count = ty.elements()?;
            let used = count.checked_mul(width.into())?;
            if used.div_ceil(8) != bytes.len() as u64 {
                return None;
            }
            let padding = match (used % 8, bytes.last()) {
                (0, _) | (_, None) => 0,
                (used, Some(last)) => last >> used,
            };
            (padding == 0).then_some(count as usize)?
        };
        Some(Self::Packed {
            bytes,
            dtype,
            count,
        })
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Floats(values) => values.len(),
            Self::Ints(values) => values.len(),
            Self::Bools(values) => values.len(),
            Self::Strings(values) => values.len(),
            Self::LongInts(values) | Self::UnsignedLongInts(values) => values.len(),
            Self::Doubles(values) => values.len(),
            Self::Packed { count, .. } => *count,
        }
    }

    /// The element at an index below [`Elements::len`].
    pub(super) fn get(&self, index: usize) -> Element<'a> {
        match *self {
            Self::Floats(values) => Element::Float32(values[index]),
            Self::Ints(values) => Element::Signed(values[index].into()),
            Self::Bools(values) => Element::Bool(values[index]),
            Self::Strings(values) => Element::Text(&values[index]),
            Self::LongInts(values) => Element::Signed(values[index]),
            Self::UnsignedLongInts(values) => Element::Unsigned(values[index] as u64),
            Self::Doubles(values) => Element::Float64(values[index]),
            Self::Packed { bytes, dtype, .. } => unpack(bytes, dtype, index),
        }
    }
}

fn unpack(bytes: &[u8], dtype: DType, index: usize) -> Element<'static> {
    match dtype {
        DType::Float16 => Element::Float16(u16::from_le_bytes(word(bytes, index))),
        DType::BFloat16 => Element::BFloat16(u16::from_le_bytes(word(bytes, index))),
        DType::Float32 => Element::Float32(f32::from_le_bytes(word(bytes, index))),
        DType::Float64 => Element::Float64(f64::from_le_bytes(word(bytes, index))),
        DType::Float8E4M3FN => Element::Float8E4M3FN(u8::from_le_bytes(word(bytes, index))),
        DType::Float8E5M2 => Element::Float8E5M2(u8::from_le_bytes(word(bytes, index))),
        DType::Int8 => Element::Signed(i8::from_le_bytes(word(bytes, index)).into()),
        DType::Int16 => Element::Signed(i16::from_le_bytes(word(bytes, index)).into()),
        DType::Int32 => Element::Signed(i32::from_le_bytes(word(bytes, index)).into()),
        DType::Int64 => Element::Signed(i64::from_le_bytes(word(bytes, index))),
        DType::UInt16 => Element::Unsigned(u16::from_le_bytes(word(bytes, index)).into()),
        DType::UInt32 => Element::Unsigned(u32::from_le_bytes(word(bytes, index)).into()),
        DType::UInt64 => Element::Unsigned(u64::from_le_bytes(word(bytes, index))),
        DType::Int4 => Element::Signed(((bits(bytes, 4, index) << 4) as i8 >> 4).into()),
        DType::UInt1 | DType::UInt2 | DType::UInt3 | DType::UInt4 | DType::UInt6 => {
            Element::Unsigned(bits(bytes, dtype.bits().unwrap_or(8), index).into())
        }
        DType::Bool | DType::UInt8 | DType::String | DType::Unused | DType::Other(_) => {
            Element::Unsigned(u8::from_le_bytes(word(bytes, index)).into())
        }
    }
}

/// The `index`-th group of `N` bytes; zeros beyond the end.
fn word<const N: usize>(bytes: &[u8], index: usize) -> [u8; N] {
    bytes
        .get(index * N..)
        .and_then(|rest| rest.first_chunk())
        .copied()
        .unwrap_or([0; N])
}

/// The `index`-th element of `width` bits, lowest bits first; it may straddle two bytes.
fn bits(bytes: &[u8], width: u32, index: usize) -> u8 {
    let start = index * width as usize;
    let low = bytes.get(start / 8).copied().unwrap_or(0);
    let high = bytes.get(start / 8 + 1).copied().unwrap_or(0);
    let pair = u16::from_le_bytes([low, high]) >> (start % 8);
    (pair & ((1 << width) - 1)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unpacked(dtype: DType, bytes: &[u8], count: u64) -> Option<Vec<i64>> {
        let elements = Elements::packed(bytes, &TensorType::fixed(dtype, &[count]))?;
        let all = (0..elements.len()).map(|index| match elements.get(index) {
            Element::Signed(value) => value,
            Element::Unsigned(value) => value as i64,
            other => panic!("{other:?} is no integer"),
        });
        Some(all.collect())
    }

    #[test]
    fn elements_below_a_byte_are_unpacked_lowest_bits_first() {
        // Vectors measured with coremltools' own blob writer.
        let rows: [(DType, &[u8], &[i64]); 4] = [
            (DType::UInt1, &[0x0d, 0x01], &[1, 0, 1, 1, 0, 0, 0, 0, 1]),
            (DType::UInt3, &[0xd1, 0x58], &[1, 2, 3, 4, 5]),
            (DType::UInt6, &[0xc1, 0x2f, 0x14, 0x09], &[1, 63, 2, 5, 9]),
            (DType::Int4, &[0x78, 0x0f], &[-8, 7, -1]),
        ];
        for (dtype, bytes, values) in rows {
            let count = values.len() as u64;
            assert_eq!(unpacked(dtype, bytes, count).as_deref(), Some(values));
        }
    }

    #[test]
    fn packed_bytes_that_do_not_fit_have_no_elements() {
        assert_eq!(unpacked(DType::Int4, &[0x78], 3), None);
        assert_eq!(unpacked(DType::Int4, &[0x78, 0x1f], 3), None);
        assert_eq!(unpacked(DType::Int32, &[0, 0, 0], 1), None);
        assert_eq!(unpacked(DType::Unused, &[0], 1), None);
        assert_eq!(unpacked(DType::Int16, &[0xfe, 0xff], 1), Some(vec![-2]));
        assert_eq!(unpacked(DType::UInt16, &[], 0), Some(vec![]));
    }
}
