//! Constants that passes made, as literals of a text.

use super::{FileError, ModelFile};
use crate::ir::{Content, DType, Immediate, NewBlob, TensorData};

/// Constants of more bytes than this belong into a weight file: as text they take about four times
/// as much room.
const LARGEST_BYTES: usize = 64 << 10;

impl ModelFile {
    /// Turns the constants that passes made, and that are in no weight file, into literals, so that
    /// the program's text is plain MIL. Nothing is changed if one is too large for that;
    /// [`ModelFile::split_weights`] has a place for those.
    pub fn inline_new(&mut self) -> Result<(), FileError> {
        let mut largest: Option<(String, usize)> = None;
        for part in self.model.programs() {
            part.program.for_each_value_at(&mut |place, value| {
                let Content::New(new) = &value.content else {
                    return;
                };
                let size = new.bytes.len();
                if size > LARGEST_BYTES && largest.as_ref().is_none_or(|(_, most)| size > *most) {
                    largest = Some((place.to_string(), size));
                }
            });
        }
        if let Some((place, bytes)) = largest {
            return Err(FileError::TooLargeForText { place, bytes });
        }
        for program in self.model.programs_mut() {
            program.for_each_value_mut(&mut |_, _, value| {
                if let Content::New(new) = &value.content {
                    value.content = Content::Immediate(Immediate::Tensor(literal(new)));
                }
            });
        }
        Ok(())
    }
}

/// The elements in the field of the schema in which coremltools stores literals of the type (see
/// [`crate::text::usual_field`]).
fn literal(new: &NewBlob) -> TensorData {
    let bytes = &new.bytes;
    match new.dtype {
        DType::Float32 => TensorData::Floats(each(bytes, f32::from_le_bytes)),
        DType::Int32 => TensorData::Ints(each(bytes, i32::from_le_bytes)),
        DType::Int16 => TensorData::Ints(each(bytes, |half| i16::from_le_bytes(half).into())),
        DType::UInt16 => TensorData::Ints(each(bytes, |half| u16::from_le_bytes(half).into())),
        _ => TensorData::Bytes(bytes.to_vec()),
    }
}

/// Numbers of a fixed width, one after the other.
fn each<const WIDTH: usize, T>(bytes: &[u8], read: impl Fn([u8; WIDTH]) -> T) -> Vec<T> {
    bytes.as_chunks().0.iter().map(|word| read(*word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{TensorType, Value};
    use crate::text::{Dialect, usual_field, value_text};

    /// Types that a weight file holds, with the bytes of two elements and how these are written.
    const TYPES: [(DType, &[u8], &str); 7] = [
        (DType::Float16, &[0, 0x3c, 0, 0xc0], "0x1p+0, -0x1p+1"),
        (
            DType::Float32,
            &[0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0],
            "0x1p+0, -0x1p+1",
        ),
        (DType::Int32, &[1, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff], "1, -2"),
        (DType::Int16, &[1, 0, 0xfe, 0xff], "1, -2"),
        (DType::UInt16, &[1, 0, 0xfe, 0xff], "1, 65534"),
        (DType::Int8, &[1, 0xfe], "1, -2"),
        (DType::Int4, &[0xe1], "1, -2"),
    ];

    #[test]
    fn a_literal_is_written_without_a_mark_and_has_the_same_bytes() {
        for (dtype, bytes, text) in TYPES {
            let new = NewBlob {
                dtype,
                elements: 2,
                bytes: bytes.into(),
            };
            let value = Value::tensor(TensorType::fixed(dtype, &[2]), literal(&new));
            let expected = format!("tensor<{}, [2]>([{text}])", dtype.word());
            assert_eq!(value_text(&value, Dialect::Program13), expected);
            assert_eq!(value.tensor_bytes().as_deref(), Some(bytes), "{dtype:?}");
            assert!(usual_field(dtype).is_some());
        }
    }
}
