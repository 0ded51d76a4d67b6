//! Values as text: literals, references to weight files, lists, tuples, dictionaries.
//!
//! The value `TYPE(CONTENT)` shows its type once; a value inside a list, tuple or dictionary shows
//! only its content where its type is the one that the container's type gives it.

use super::elements::{Element, Elements};
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
    pub(super) fn attributes<'a>(
        &mut self,
        attributes: impl IntoIterator<Item = (&'a String, &'a Value)>,
    ) {
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
                let types = if let Some(ValueType::Tuple(types)) = ty {
                    types.as_slice()
                } else {
                    self.push("@tuple ");
                    &[]
                };
                self.push("(");
                self.separated(values.iter().enumerate(), |w, (index, value)| {
                    w.item(value, types.get(index));
                });
                self.push(")");
            }
            Immediate::List(values) => {
                let item = if let Some(ValueType::List { item, .. }) = ty {
                    item.as_deref()
                } else {
                    self.push("@list ");
                    None
                };
                self.push("[");
                self.separated(values, |w, value| w.item(value, item));
                self.push("]");
            }
            Immediate::Dictionary(pairs) => {
                let (key_type, value_type) = if let Some(ValueType::Dictionary { key, value }) = ty
                {
                    (key.as_deref(), value.as_deref())
                } else {
                    self.push("@dict ");
                    (None, None)
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
        let ty = declared.unwrap_or(&flat);
        match Elements::packed(&new.bytes, ty) {
            Some(elements) => self.elements(elements, Some(ty)),
            None => self.raw(&new.bytes),
        }
    }

    fn tensor(&mut self, data: &TensorData, ty: Option<&TensorType>) {
        if matches!(data, TensorData::Absent) {
            self.push("@no_data");
            return;
        }
        match (Elements::of(data, ty), data) {
            (Some(elements), _) => {
                if ty.and_then(|ty| usual_field(ty.dtype)) != Some(field(data)) {
                    self.put(format_args!("@{} ", field(data)));
                }
                self.elements(elements, ty);
            }
            (None, TensorData::Bytes(bytes)) => self.raw(bytes),
            (None, _) => {}
        }
    }

    fn raw(&mut self, bytes: &[u8]) {
        self.push("@raw \"");
        for byte in bytes {
            self.put(format_args!("{byte:02x}"));
        }
        self.push("\"");
    }

    fn element(&mut self, element: Element) {
        match element {
            Element::Float16(bits) => self.fp16(bits),
            Element::BFloat16(bits) => self.bf16(bits),
            Element::Float32(value) => self.fp32(value),
            Element::Float64(value) => self.fp64(value),
            Element::Float8E4M3FN(bits) => self.fp8_e4m3fn(bits),
            Element::Float8E5M2(bits) => self.fp8_e5m2(bits),
            Element::Signed(value) => self.put(format_args!("{value}")),
            Element::Unsigned(value) => self.put(format_args!("{value}")),
            Element::Bool(value) => self.push(if value { "true" } else { "false" }),
            Element::Text(text) => self.string(text),
        }
    }

    /// The elements of a tensor: one of a scalar stands alone; those of a tensor stand in brackets,
    /// nested by the shape if their number is the one that the shape asks for.
    fn elements(&mut self, elements: Elements, ty: Option<&TensorType>) {
        let count = elements.len();
        if count == 1 && ty.is_some_and(|ty| ty.rank == 0 && ty.dims.is_empty()) {
            self.element(elements.get(0));
            return;
        }
        if count == 0 {
            self.push("[]");
            return;
        }
        if let Some(shown) = self.style.cut.filter(|cut| *cut < count) {
            self.push("[");
            self.separated(0..shown, |w, index| w.element(elements.get(index)));
            self.put(format_args!(", … {} more]", count - shown));
            return;
        }
        let shape = ty
            .and_then(TensorType::shape)
            .filter(|shape| shape.len() > 1 && product(shape) == Some(count as u64))
            .unwrap_or_else(|| vec![count as u64]);
        // blocks[d] is the number of elements inside one bracket of depth d.
        let mut blocks: Vec<usize> = Vec::with_capacity(shape.len());
        let mut block = 1usize;
        for size in shape.iter().rev() {
            block = block.saturating_mul(*size as usize);
            blocks.push(block);
        }
        blocks.reverse();
        for index in 0..count {
            let opening = blocks.iter().rev().take_while(|b| index % **b == 0).count();
            if index > 0 {
                self.push(", ");
            }
            for _ in 0..opening {
                self.push("[");
            }
            self.element(elements.get(index));
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

/// FNV-1a of 64 bits: tells whether two new blobs are the same in two prints.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
