//! The blob storage format, version 2: its records, its element types and their numbers.
//!
//! All numbers are little-endian. A file is a header of 64 bytes and then blobs. A blob is a record
//! of 64 bytes at a position that is a multiple of 64, and its data, which the record points to; in
//! every file seen the data follows the record at once. Zeros fill up to the next record; behind
//! the last blob there is no fill. A program refers to a blob by the position of its record.

/// Every record and every blob's data starts at a multiple of this many bytes.
pub const ALIGNMENT: u64 = 64;

/// Bytes of the file's header, and of each blob's record.
pub const RECORD_BYTES: u64 = 64;

/// The version written into the header, and the only one that is read.
pub(super) const VERSION: u32 = 2;

/// The first four bytes of a blob's record.
const SENTINEL: u32 = 0xDEAD_BEEF;

/// Element type of a blob. The numbers are those of the blob storage, which differ from those of
/// the MIL schema. There is no type for bools, strings or 64-bit numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the variants are the format's own names")]
pub enum BlobDType {
    Float16,
    Float32,
    UInt8,
    Int8,
    BFloat16,
    Int16,
    UInt16,
    Int4,
    UInt1,
    UInt2,
    UInt4,
    UInt3,
    UInt6,
    Int32,
    UInt32,
    Float8E4M3FN,
    Float8E5M2,
}

impl BlobDType {
    /// All types in the order of their numbers, which start at 1.
    pub const ALL: [Self; 17] = [
        Self::Float16,
        Self::Float32,
        Self::UInt8,
        Self::Int8,
        Self::BFloat16,
        Self::Int16,
        Self::UInt16,
        Self::Int4,
        Self::UInt1,
        Self::UInt2,
        Self::UInt4,
        Self::UInt3,
        Self::UInt6,
        Self::Int32,
        Self::UInt32,
        Self::Float8E4M3FN,
        Self::Float8E5M2,
    ];

    /// The type with this number in a blob's record.
    pub fn from_number(number: u32) -> Option<Self> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        Self::ALL.get(index).copied()
    }

    /// The number of this type in a blob's record.
    pub fn number(self) -> u32 {
        self as u32 + 1
    }

    /// Bits per element.
    pub fn bits(self) -> u32 {
        match self {
            Self::UInt1 => 1,
            Self::UInt2 => 2,
            Self::UInt3 => 3,
            Self::Int4 | Self::UInt4 => 4,
            Self::UInt6 => 6,
            Self::UInt8 | Self::Int8 | Self::Float8E4M3FN | Self::Float8E5M2 => 8,
            Self::Float16 | Self::BFloat16 | Self::Int16 | Self::UInt16 => 16,
            Self::Float32 | Self::Int32 | Self::UInt32 => 32,
        }
    }

    /// True for the types whose elements share bytes.
    pub fn is_sub_byte(self) -> bool {
        self.bits() < 8
    }

    /// The word for this type, as MIL text spells the type of a tensor.
    pub fn word(self) -> &'static str {
        match self {
            Self::Float16 => "fp16",
            Self::Float32 => "fp32",
            Self::UInt8 => "uint8",
            Self::Int8 => "int8",
            Self::BFloat16 => "bf16",
            Self::Int16 => "int16",
            Self::UInt16 => "uint16",
            Self::Int4 => "int4",
            Self::UInt1 => "uint1",
            Self::UInt2 => "uint2",
            Self::UInt4 => "uint4",
            Self::UInt3 => "uint3",
            Self::UInt6 => "uint6",
            Self::Int32 => "int32",
            Self::UInt32 => "uint32",
            Self::Float8E4M3FN => "fp8e4m3fn",
            Self::Float8E5M2 => "fp8e5m2",
        }
    }

    /// Bytes that so many elements take, the last byte filled up; `None` if that overflows.
    pub fn packed_bytes(self, elements: u64) -> Option<u64> {
        let bits = elements.checked_mul(u64::from(self.bits()))?;
        Some(bits.div_ceil(8))
    }

    /// Bits that fill up the last byte behind so many elements, 0 to 7.
    pub fn padding_bits(self, elements: u64) -> u8 {
        let used = (elements % 8) * u64::from(self.bits()) % 8;
        ((8 - used) % 8) as u8
    }
}

impl std::fmt::Display for BlobDType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}

/// The header of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    bytes: [u8; RECORD_BYTES as usize],
}

impl Header {
    /// The header of a new file.
    pub(super) fn new() -> Self {
        let mut bytes = [0; RECORD_BYTES as usize];
        put(&mut bytes, 4, &VERSION.to_le_bytes());
        Self { bytes }
    }

    /// The header of a file with this content; `None` if it is too short for one.
    pub(super) fn read(file: &[u8]) -> Option<Self> {
        let bytes = *file.first_chunk()?;
        Some(Self { bytes })
    }

    pub(super) fn version(&self) -> u32 {
        u32_at(&self.bytes, 4)
    }

    /// Number of blobs, as the file says.
    pub(super) fn count(&self) -> u32 {
        u32_at(&self.bytes, 0)
    }

    /// The same header with another number of blobs, reserved bytes kept.
    pub(super) fn with_count(mut self, count: u32) -> [u8; RECORD_BYTES as usize] {
        put(&mut self.bytes, 0, &count.to_le_bytes());
        self.bytes
    }
}

/// The record in front of a blob's data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    bytes: [u8; RECORD_BYTES as usize],
}

impl Record {
    /// The record of a new blob; `size` in bytes, `data` the position of the data in the file.
    pub(super) fn new(dtype: BlobDType, size: u64, data: u64, padding_bits: u8) -> Self {
        let mut bytes = [0; RECORD_BYTES as usize];
        put(&mut bytes, 0, &SENTINEL.to_le_bytes());
        put(&mut bytes, 4, &dtype.number().to_le_bytes());
        put(&mut bytes, 8, &size.to_le_bytes());
        put(&mut bytes, 16, &data.to_le_bytes());
        put(&mut bytes, 24, &u64::from(padding_bits).to_le_bytes());
        Self { bytes }
    }

    /// The record at this position; `None` if the file ends before the record does.
    pub(super) fn read(file: &[u8], offset: u64) -> Option<Self> {
        let rest = file.get(usize::try_from(offset).ok()?..)?;
        let bytes = *rest.first_chunk()?;
        Some(Self { bytes })
    }

    pub(super) fn has_sentinel(&self) -> bool {
        self.sentinel() == SENTINEL
    }

    pub(super) fn sentinel(&self) -> u32 {
        u32_at(&self.bytes, 0)
    }

    pub(super) fn dtype_number(&self) -> u32 {
        u32_at(&self.bytes, 4)
    }

    /// Bytes of the data, those that hold padding bits included.
    pub(super) fn size(&self) -> u64 {
        u64_at(&self.bytes, 8)
    }

    /// Position of the data in the file.
    pub(super) fn data(&self) -> u64 {
        u64_at(&self.bytes, 16)
    }

    /// Padding bits of a sub-byte blob. For the other types the field may hold garbage: tools from
    /// before iOS18 left it and the reserved bytes uninitialised.
    pub(super) fn padding_bits(&self) -> u64 {
        u64_at(&self.bytes, 24)
    }

    /// The same record with its data elsewhere, reserved bytes kept.
    pub(super) fn with_data(mut self, data: u64) -> [u8; RECORD_BYTES as usize] {
        put(&mut self.bytes, 16, &data.to_le_bytes());
        self.bytes
    }

    pub(super) fn into_bytes(self) -> [u8; RECORD_BYTES as usize] {
        self.bytes
    }
}

/// The next position at or behind this one where a record or data may start.
pub(super) fn align(position: u64) -> Option<u64> {
    position.checked_next_multiple_of(ALIGNMENT)
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(slot) = bytes.get_mut(at..at + value.len()) {
        slot.copy_from_slice(value);
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let slot = bytes.get(at..).and_then(<[u8]>::first_chunk);
    u32::from_le_bytes(slot.copied().unwrap_or_default())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let slot = bytes.get(at..).and_then(<[u8]>::first_chunk);
    u64::from_le_bytes(slot.copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_types_are_those_of_the_format() {
        let table = [
            (BlobDType::Float16, 1),
            (BlobDType::Float32, 2),
            (BlobDType::UInt8, 3),
            (BlobDType::Int8, 4),
            (BlobDType::BFloat16, 5),
            (BlobDType::Int16, 6),
            (BlobDType::UInt16, 7),
            (BlobDType::Int4, 8),
            (BlobDType::UInt1, 9),
            (BlobDType::UInt2, 10),
            (BlobDType::UInt4, 11),
            (BlobDType::UInt3, 12),
            (BlobDType::UInt6, 13),
            (BlobDType::Int32, 14),
            (BlobDType::UInt32, 15),
            (BlobDType::Float8E4M3FN, 16),
            (BlobDType::Float8E5M2, 17),
        ];
        for (dtype, number) in table {
            assert_eq!(dtype.number(), number, "{dtype}");
            assert_eq!(BlobDType::from_number(number), Some(dtype));
        }
        assert_eq!(BlobDType::from_number(0), None);
        assert_eq!(BlobDType::from_number(18), None);
        assert_eq!(BlobDType::from_number(u32::MAX), None);
    }

    #[test]
    fn padding_fills_the_last_byte_for_any_count() {
        for dtype in BlobDType::ALL {
            for elements in (0..40).chain(u64::MAX - 9..=u64::MAX) {
                let bits = u128::from(elements) * u128::from(dtype.bits());
                let padding = u128::from(dtype.padding_bits(elements));
                assert!(padding < 8);
                assert_eq!((bits + padding) % 8, 0, "{dtype} {elements}");
            }
        }
    }
}
