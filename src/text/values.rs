//! Values as text: literals, references to weight files, lists, tuples, dictionaries.
//!
//! The value `TYPE(CONTENT)` shows its type once; a value inside a list, tuple or dictionary shows
//! only its content where its type is the one that the container's type gives it.

use std::collections::BTreeMap;

use super::writer::Writer;
use crate::ir::{
    BlobRef, Content, DType, Immediate, NewBlob, TensorData, TensorType, Value, ValueType,
};

/// Blobs made by a pass with more elements than this are shown by their digest.
const NEW_SHOWN: u64 = 64;

/// The field of the schema in which coremltools stores elements of a type; a literal in this field
/// needs no mark. `None` for types that the schema does not name.
pub fn usual_field(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::Float32 => Some("floats"),
        DType::Int32 | DType::Int16 | DType::UInt16 => Some("ints"),
        DType::Bool => Some("bools"),
        DType::String => Some("strings"),
        DType::Int64 | DType::UInt64 => Some("longInts"),
        DType::Float64 => Some("doubles"),
        DType::Float16
        | DType::BFloat16
        | DType::Float8E4M3FN
        | DType::Float8E5M2
        | DType::Int8
        | DType::UInt8
        | DType::Int4
        | DType::UInt32
        | DType::UInt1
        | DType::UInt2
        | DType::UInt3
        | DType::UInt4
        | DType::UInt6 => Some("bytes"),
        DType::Unused | DType::Other(_) => None,
    }
}

/// The field of the schema in which the data stands.
fn field(data: &TensorData) -> &'static str {
    match data {
        TensorData::Floats(_) => "floats",
        TensorData::Ints(_) => "ints",
        TensorData::Bools(_) => "bools",
        TensorData::Strings(_) => "strings",
        TensorData::LongInts(_) => "longInts",
        TensorData::Doubles(_) => "doubles",
        TensorData::Bytes(_) => "bytes",
        TensorData::Absent => "no_data",
    }
}

impl Writer<'_> {
    /// Attributes in brackets, sorted by name.
    pub(super) fn attributes(&mut self, attributes: &BTreeMap<String, Value>) {
        self.push("[");
        self.separated(attributes, |w, (name, value)| {
            w.name(name);
            w.push(" = ");
            w.value(value);
        });
        self.push("]");
    }

    /// A value with its type.
    pub(super) fn value(&mut self, value: &Value) {
        self.value_doc(value);
        self.optional_type(value.ty.as_ref());
        self.push("(");
        self.content(&value.content, value.ty.as_ref());
        self.push(")");
    }

    /// A value where its container already says the type; if it is another one, with its type.
    fn item(&mut self, value: &Value, expected: Option<&ValueType>) {
        if expected.is_some() && expected == value.ty.as_ref() {
            self.value_doc(value);
            self.content(&value.content, expected);
        } else {
            self.value(value);
        }
    }

    fn value_doc(&mut self, value: &Value) {
        if !value.doc.is_empty() {
            self.push("@doc ");
            self.string(&value.doc);
            self.push(" ");
        }
    }

    /// The data of a value of the given type, without the type.
    pub(super) fn content(&mut self, content: &Content, ty: Option<&ValueType>) {
        match content {
            Content::Immediate(immediate) => self.immediate(immediate, ty),
            Content::Blob(blob) => self.blob(blob),
            Content::New(new) => self.new_blob(new, ty),
            Content::Absent => self.push("@no_value"),
        }
    }

    fn immediate(&mut self, immediate: &Immediate, ty: Option<&ValueType>) {
        match immediate {
            Immediate::Tensor(data) => self.tensor(data, ty.and_then(ValueType::as_tensor)),
            Immediate::Tuple(values) => {
                let types = match ty {
                    Some(ValueType::Tuple(types)) => types.as_slice(),
                    _ => {
                        self.push("@tuple ");
                        &[]
                    }
                };
                self.push("(");
                self.separated(values.iter().enumerate(), |w, (index, value)| {
                    w.item(value, types.get(index));
                });
                self.push(")");
            }
            Immediate::List(values) => {
                let item = match ty {
                    Some(ValueType::List { item, .. }) => item.as_deref(),
                    _ => {
                        self.push("@list ");
                        None
                    }
                };
                self.push("[");
                self.separated(values, |w, value| w.item(value, item));
                self.push("]");
            }
            Immediate::Dictionary(pairs) => {
                let (key_type, value_type) = match ty {
                    Some(ValueType::Dictionary { key, value }) => {
                        (key.as_deref(), value.as_deref())
                    }
                    _ => {
                        self.push("@dict ");
                        (None, None)
                    }
                };
                self.push("{");
                self.separated(pairs, |w, (key, value)| {
                    w.push("{");
                    w.optional_item(key.as_ref(), key_type);
                    w.push(", ");
                    w.optional_item(value.as_ref(), value_type);
                    w.push("}");
                });
                self.push("}");
            }
            Immediate::Absent => self.push("@no_immediate"),
        }
    }

    fn optional_item(&mut self, value: Option<&Value>, expected: Option<&ValueType>) {
        match value {
            Some(value) => self.item(value, expected),
            None => self.push("@missing"),
        }
    }

    fn blob(&mut self, blob: &BlobRef) {
        let scalar = |dtype| ValueType::Tensor(TensorType::scalar(dtype));
        self.push("BLOBFILE(path = ");
        self.value_type(&scalar(DType::String));
        self.push("(");
        self.string(&blob.file);
        self.push("), offset = ");
        self.value_type(&scalar(DType::UInt64));
        self.put(format_args!("({}))", blob.offset));
    }

    fn new_blob(&mut self, new: &NewBlob, ty: Option<&ValueType>) {
        self.put(format_args!("@new({}, {}", new.dtype, new.elements));
        if new.elements > NEW_SHOWN && !self.style.inline_new {
            self.put(format_args!(", 0x{:016x})", digest(&new.bytes)));
            return;
        }
        self.push(") ");
        let declared = ty
            .and_then(ValueType::as_tensor)
            .filter(|ty| ty.dtype == new.dtype && ty.elements() == Some(new.elements));
        let flat = TensorType::fixed(new.dtype, &[new.elements]);
        self.bytes(&new.bytes, declared.unwrap_or(&flat), false);
    }

    fn tensor(&mut self, data: &TensorData, ty: Option<&TensorType>) {
        if let (TensorData::Bytes(bytes), Some(ty)) = (data, ty) {
            self.bytes(bytes, ty, usual_field(ty.dtype) != Some("bytes"));
            return;
        }
        if let TensorData::Bytes(bytes) = data {
            self.raw(bytes);
            return;
        }
        if matches!(data, TensorData::Absent) {
            self.push("@no_data");
            return;
        }
        if ty.and_then(|ty| usual_field(ty.dtype)) != Some(field(data)) {
            self.put(format_args!("@{} ", field(data)));
        }
        match data {
            TensorData::Floats(v) => self.elements(v.len(), ty, |w, i| w.fp32(v[i])),
            TensorData::Doubles(v) => self.elements(v.len(), ty, |w, i| w.fp64(v[i])),
            TensorData::Ints(v) => {
                self.elements(v.len(), ty, |w, i| w.put(format_args!("{}", v[i])));
            }
            TensorData::LongInts(v) if ty.is_some_and(|ty| ty.dtype == DType::UInt64) => {
                self.elements(v.len(), ty, |w, i| w.put(format_args!("{}", v[i] as u64)));
            }
            TensorData::LongInts(v) => {
                self.elements(v.len(), ty, |w, i| w.put(format_args!("{}", v[i])));
            }
            TensorData::Bools(v) => {
                self.elements(v.len(), ty, |w, i| {
                    w.push(if v[i] { "true" } else { "false" })
                });
            }
            TensorData::Strings(v) => self.elements(v.len(), ty, |w, i| w.string(&v[i])),
            TensorData::Bytes(_) | TensorData::Absent => {}
        }
    }

    /// Packed elements, one by one if the bytes fit the type, else as they are.
    fn bytes(&mut self, bytes: &[u8], ty: &TensorType, mark: bool) {
        let Some(count) = packed_count(bytes, ty) else {
            self.raw(bytes);
            return;
        };
        if mark {
            self.push("@bytes ");
        }
        self.elements(count, Some(ty), |w, index| w.packed(bytes, ty.dtype, index));
    }

    fn raw(&mut self, bytes: &[u8]) {
        self.push("@raw \"");
        for byte in bytes {
            self.put(format_args!("{byte:02x}"));
        }
        self.push("\"");
    }

    /// One element of packed data; the caller has checked that it is there.
    fn packed(&mut self, bytes: &[u8], dtype: DType, index: usize) {
        match dtype {
            DType::Float16 => self.fp16(u16::from_le_bytes(word(bytes, index))),
            DType::BFloat16 => self.bf16(u16::from_le_bytes(word(bytes, index))),
            DType::Float32 => self.fp32(f32::from_le_bytes(word(bytes, index))),
            DType::Float64 => self.fp64(f64::from_le_bytes(word(bytes, index))),
            DType::Float8E4M3FN => self.fp8_e4m3fn(u8::from_le_bytes(word(bytes, index))),
            DType::Float8E5M2 => self.fp8_e5m2(u8::from_le_bytes(word(bytes, index))),
            DType::Int8 => self.put(format_args!("{}", i8::from_le_bytes(word(bytes, index)))),
            DType::Int16 => self.put(format_args!("{}", i16::from_le_bytes(word(bytes, index)))),
            DType::UInt16 => self.put(format_args!("{}", u16::from_le_bytes(word(bytes, index)))),
            DType::Int32 => self.put(format_args!("{}", i32::from_le_bytes(word(bytes, index)))),
            DType::UInt32 => self.put(format_args!("{}", u32::from_le_bytes(word(bytes, index)))),
            DType::Int64 => self.put(format_args!("{}", i64::from_le_bytes(word(bytes, index)))),
            DType::UInt64 => self.put(format_args!("{}", u64::from_le_bytes(word(bytes, index)))),
            DType::Int4 => {
                let nibble = bits(bytes, 4, index) as i8;
                self.put(format_args!("{}", nibble << 4 >> 4));
            }
            DType::UInt1 | DType::UInt2 | DType::UInt3 | DType::UInt4 | DType::UInt6 => {
                let width = dtype.bits().unwrap_or(8);
                self.put(format_args!("{}", bits(bytes, width, index)));
            }
            DType::Bool | DType::UInt8 | DType::String | DType::Unused | DType::Other(_) => {
                self.put(format_args!("{}", u8::from_le_bytes(word(bytes, index))));
            }
        }
    }

    /// The elements of a tensor: one of a scalar stands alone; those of a tensor stand in brackets,
    /// nested by the shape if their number is the one that the shape asks for.
    fn elements(
        &mut self,
        count: usize,
        ty: Option<&TensorType>,
        mut element: impl FnMut(&mut Self, usize),
    ) {
        if count == 1 && ty.is_some_and(|ty| ty.rank == 0 && ty.dims.is_empty()) {
            element(self, 0);
            return;
        }
        let shape = ty
            .and_then(TensorType::shape)
            .filter(|shape| shape.len() > 1 && product(shape) == Some(count as u64) && count > 0)
            .unwrap_or_else(|| vec![count.max(1) as u64]);
        // blocks[d] is the number of elements inside one bracket of depth d.
        let mut blocks: Vec<usize> = Vec::with_capacity(shape.len());
        let mut block = 1usize;
        for size in shape.iter().rev() {
            block = block.saturating_mul(*size as usize);
            blocks.push(block);
        }
        blocks.reverse();
        let shown = self.style.cut.filter(|cut| *cut < count);
        if let Some(shown) = shown {
            self.push("[");
            self.separated(0..shown, &mut element);
            self.put(format_args!(", … {} more]", count - shown));
            return;
        }
        if count == 0 {
            self.push("[]");
            return;
        }
        for index in 0..count {
            let opening = blocks.iter().rev().take_while(|b| index % **b == 0).count();
            if index > 0 {
                self.push(", ");
            }
            for _ in 0..opening {
                self.push("[");
            }
            element(self, index);
            let closing = blocks
                .iter()
                .rev()
                .take_while(|b| (index + 1) % **b == 0)
                .count();
            for _ in 0..closing {
                self.push("]");
            }
        }
    }
}

fn product(shape: &[u64]) -> Option<u64> {
    shape
        .iter()
        .try_fold(1u64, |product, size| product.checked_mul(*size))
}

/// Number of elements in packed bytes, if they are whole elements of a type that has a literal and,
/// for elements smaller than a byte, exactly those of the shape with zeros as padding.
fn packed_count(bytes: &[u8], ty: &TensorType) -> Option<usize> {
    let width = ty.dtype.bits()?;
    if width >= 8 {
        let size = width as usize / 8;
        return (bytes.len() % size == 0).then(|| bytes.len() / size);
    }
    let count = ty.elements()?;
    let used = count.checked_mul(width.into())?;
    if used.div_ceil(8) != bytes.len() as u64 {
        return None;
    }
    let padding_is_zero = match (used % 8, bytes.last()) {
        (0, _) | (_, None) => true,
        (used, Some(last)) => last >> used == 0,
    };
    padding_is_zero.then_some(count as usize)
}

/// The `index`-th group of `N` bytes; zeros beyond the end.
fn word<const N: usize>(bytes: &[u8], index: usize) -> [u8; N] {
    bytes
        .chunks_exact(N)
        .nth(index)
        .and_then(|chunk| chunk.try_into().ok())
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

/// FNV-1a of 64 bits: tells whether two new blobs are the same in two prints.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
