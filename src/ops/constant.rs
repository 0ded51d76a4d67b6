//! Reads the elements of constants, whatever field of the schema holds them.
//!
//! The schema has seven fields for elements and writers differ in which they use for the narrow
//! types, so each reader accepts every field that can hold its kind. All give `None` if the data
//! is not in memory (a blob in a weight file), is of another kind, or does not match the declared
//! shape in number.

use half::f16;

use crate::ir::types::DType;
use crate::ir::value::{Content, TensorData, Value};

/// The elements of a tensor of integers or bools, in row-major order.
pub fn integers(value: &Value) -> Option<Vec<i64>> {
    let dtype = value.tensor_type()?.dtype;
    if !dtype.is_int() && dtype != DType::Bool {
        return None;
    }
    let elements = match (&value.content, value.tensor_data()) {
        (_, Some(TensorData::Ints(values))) => values.iter().map(|v| i64::from(*v)).collect(),
        (_, Some(TensorData::LongInts(values))) => values.clone(),
        (_, Some(TensorData::Bools(values))) => values.iter().map(|v| i64::from(*v)).collect(),
        (_, Some(TensorData::Bytes(bytes))) => integers_from_bytes(dtype, bytes, count(value)?)?,
        (Content::New(new), _) if new.dtype == dtype => {
            integers_from_bytes(dtype, &new.bytes, count(value)?)?
        }
        _ => return None,
    };
    (elements.len() == count(value)?).then_some(elements)
}

/// The elements of a tensor of fp16, fp32 or fp64, in row-major order.
pub fn floats(value: &Value) -> Option<Vec<f64>> {
    let dtype = value.tensor_type()?.dtype;
    let elements: Vec<f64> = match (&value.content, value.tensor_data()) {
        (_, Some(TensorData::Floats(values))) => values.iter().map(|v| f64::from(*v)).collect(),
        (_, Some(TensorData::Doubles(values))) => values.clone(),
        (_, Some(TensorData::Bytes(bytes))) => floats_from_bytes(dtype, bytes)?,
        (Content::New(new), _) if new.dtype == dtype => floats_from_bytes(dtype, &new.bytes)?,
        _ => return None,
    };
    (elements.len() == count(value)?).then_some(elements)
}

/// The elements of a tensor of bools.
pub fn bools(value: &Value) -> Option<Vec<bool>> {
    if value.tensor_type()?.dtype != DType::Bool {
        return None;
    }
    Some(integers(value)?.into_iter().map(|v| v != 0).collect())
}

/// Number of elements by the declared shape.
fn count(value: &Value) -> Option<usize> {
    usize::try_from(value.tensor_type()?.elements()?).ok()
}

fn integers_from_bytes(dtype: DType, bytes: &[u8], count: usize) -> Option<Vec<i64>> {
    let chunks = |width: usize| bytes.chunks_exact(width);
    Some(match dtype {
        DType::Bool | DType::UInt8 => bytes.iter().map(|b| i64::from(*b)).collect(),
        DType::Int8 => bytes.iter().map(|b| i64::from(*b as i8)).collect(),
        DType::Int16 => chunks(2)
            .map(|c| i64::from(i16::from_le_bytes([c[0], c[1]])))
            .collect(),
        DType::UInt16 => chunks(2)
            .map(|c| i64::from(u16::from_le_bytes([c[0], c[1]])))
            .collect(),
        DType::Int32 => chunks(4)
            .map(|c| i64::from(i32::from_le_bytes([c[0], c[1], c[2], c[3]])))
            .collect(),
        DType::UInt32 => chunks(4)
            .map(|c| i64::from(u32::from_le_bytes([c[0], c[1], c[2], c[3]])))
            .collect(),
        DType::Int64 | DType::UInt64 => chunks(8)
            .map(|c| i64::from_le_bytes([c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]]))
            .collect(),
        DType::Int4 | DType::UInt1 | DType::UInt2 | DType::UInt3 | DType::UInt4 | DType::UInt6 => {
            sub_byte_integers(dtype, bytes, count)?
        }
        _ => return None,
    })
}

/// Element i stands in bits [i·n, (i+1)·n) of the bytes, least significant bit first.
fn sub_byte_integers(dtype: DType, bytes: &[u8], count: usize) -> Option<Vec<i64>> {
    let width = dtype.bits()? as usize;
    if count.checked_mul(width)?.div_ceil(8) != bytes.len() {
        return None;
    }
    let bit = |index: usize| i64::from((bytes[index / 8] >> (index % 8)) & 1);
    let element = |index: usize| -> i64 {
        let raw: i64 = (0..width)
            .map(|offset| bit(index * width + offset) << offset)
            .sum();
        if dtype == DType::Int4 && raw >= 8 {
            raw - 16
        } else {
            raw
        }
    };
    Some((0..count).map(element).collect())
}

fn floats_from_bytes(dtype: DType, bytes: &[u8]) -> Option<Vec<f64>> {
    Some(match dtype {
        DType::Float16 => bytes
            .chunks_exact(2)
            .map(|c| f16::from_le_bytes([c[0], c[1]]).to_f64())
            .collect(),
        DType::Float32 => bytes
            .chunks_exact(4)
            .map(|c| f64::from(f32::from_le_bytes([c[0], c[1], c[2], c[3]])))
            .collect(),
        DType::Float64 => bytes
            .chunks_exact(8)
            .map(|c| f64::from_le_bytes([c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]]))
            .collect(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::types::TensorType;

    fn value(dtype: DType, count: u64, data: TensorData) -> Value {
        Value::tensor(TensorType::fixed(dtype, &[count]), data)
    }

    #[test]
    fn narrow_integers_are_read_from_either_field() {
        // coremltools writes int16 into `ints` and int8 into `bytes`.
        let in_ints = value(DType::Int16, 2, TensorData::Ints(vec![-3, 7]));
        assert_eq!(integers(&in_ints), Some(vec![-3, 7]));
        let in_bytes = value(DType::Int16, 2, TensorData::Bytes(vec![0xfd, 0xff, 7, 0]));
        assert_eq!(integers(&in_bytes), Some(vec![-3, 7]));
        let eight = value(DType::Int8, 2, TensorData::Bytes(vec![0xff, 2]));
        assert_eq!(integers(&eight), Some(vec![-1, 2]));
        let unsigned = value(DType::UInt32, 1, TensorData::Bytes(vec![0, 0, 0, 0x80]));
        assert_eq!(integers(&unsigned), Some(vec![1 << 31]));
    }

    #[test]
    fn sub_byte_integers_straddle_bytes_from_the_low_bit_up() {
        // Packed by coremltools' blob writer: uint3, uint6 and int4.
        let three = value(DType::UInt3, 5, TensorData::Bytes(vec![0xd1, 0x58]));
        assert_eq!(integers(&three), Some(vec![1, 2, 3, 4, 5]));
        let six = value(
            DType::UInt6,
            5,
            TensorData::Bytes(vec![0xc1, 0x2f, 0x14, 0x09]),
        );
        assert_eq!(integers(&six), Some(vec![1, 63, 2, 5, 9]));
        let four = value(DType::Int4, 3, TensorData::Bytes(vec![0x78, 0x0f]));
        assert_eq!(integers(&four), Some(vec![-8, 7, -1]));
    }

    #[test]
    fn floats_keep_their_value() {
        let half = value(DType::Float16, 1, TensorData::Bytes(vec![0x00, 0xb8]));
        assert_eq!(floats(&half), Some(vec![-0.5]));
        let single = value(DType::Float32, 1, TensorData::Floats(vec![0.1]));
        assert_eq!(floats(&single), Some(vec![f64::from(0.1f32)]));
    }

    #[test]
    fn data_of_another_length_or_kind_is_unknown() {
        let short = value(DType::Int32, 3, TensorData::Ints(vec![1]));
        assert_eq!(integers(&short), None);
        let packed = value(DType::UInt3, 9, TensorData::Bytes(vec![0xd1, 0x58]));
        assert_eq!(integers(&packed), None);
        let float = value(DType::Float32, 1, TensorData::Floats(vec![1.0]));
        assert_eq!(integers(&float), None);
        assert_eq!(bools(&short), None);
    }
}
