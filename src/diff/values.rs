//! Whether two constant values are the same, and if not, how they differ.
//!
//! Where a value's data lies is not the value: offsets in a weight file do not matter, and data that
//! a pass made is as good as data in a file. Only data inside the program that went into a weight
//! file, or came out of one, is a difference, and so is another weight file.

use std::borrow::Cow;
use std::collections::HashMap;

use super::edits::{Edit, Kind, Place};
use super::numbers::{ElementDifference, Pair};
use super::signature::sample_starts;
use super::{Blobs, Options};
use crate::ir::{BlobRef, Content, Immediate, TensorData, TensorType, Value};
use crate::text::{self, Dialect};

/// Larger blobs are compared by samples unless all elements are asked for.
const WHOLE_BYTES: usize = 1 << 16;

/// Places of a large blob that are compared, and the bytes at each.
const SAMPLES: usize = 64;
const SAMPLE_BYTES: usize = 1 << 10;

/// How two values differ.
pub(super) struct ValueChange {
    /// The data is in weight files on both sides.
    pub(super) in_files: bool,
    pub(super) before: String,
    pub(super) after: String,
    pub(super) elements: Option<ElementDifference>,
}

/// What a comparison of two blobs gave.
#[derive(Clone)]
enum Data {
    Same,
    Differs(Option<ElementDifference>),
    /// At least one of them cannot be read.
    Unreadable,
}

/// Compares values, and counts what it could not or did not wholly compare.
pub(super) struct Values<'a> {
    before: &'a dyn Blobs,
    after: &'a dyn Blobs,
    options: Options,
    known: HashMap<(BlobRef, BlobRef), Data>,
    /// Blobs that were compared by samples and found alike.
    pub(super) sampled: usize,
    /// Blobs that could not be read.
    pub(super) unreadable: usize,
}

impl<'a> Values<'a> {
    pub(super) fn new(before: &'a dyn Blobs, after: &'a dyn Blobs, options: Options) -> Self {
        Self {
            before,
            after,
            options,
            known: HashMap::new(),
            sampled: 0,
            unreadable: 0,
        }
    }

    /// How two values differ; `None` if they do not.
    pub(super) fn compare(&mut self, a: &Value, b: &Value) -> Option<ValueChange> {
        let same_type = a.ty == b.ty && a.doc == b.doc;
        if same_type && same_immediate(a, b) {
            return None;
        }
        let types = a.tensor_type().zip(b.tensor_type());
        if types.is_none() && same_type && a.content == b.content {
            // A reference of a type that no weight file holds.
            return None;
        }
        let files = in_file(a) && in_file(b);
        let mut elements = None;
        if let (true, Some(types)) = (in_file(a) || in_file(b), types) {
            match self.data(a, b, types) {
                Data::Same | Data::Unreadable if same_type && files => return other_file(a, b),
                Data::Same | Data::Unreadable => {}
                Data::Differs(found) => elements = found,
            }
        } else if let (Some(types), Some(before), Some(after)) =
            (types, a.tensor_bytes(), b.tensor_bytes())
        {
            elements = difference(&before, &after, types);
        }
        let (before, after) = match (same_type, files) {
            (true, true) => (String::new(), String::new()),
            (false, true) => (type_of(a), type_of(b)),
            (_, false) => (shown(a), shown(b)),
        };
        let (before, after) = match (before == after, field(a) == field(b)) {
            (false, _) => (before, after),
            // The text is cut short, and the difference is behind the cut.
            (true, true) => (String::new(), String::new()),
            (true, false) => (before + &field(a), after + &field(b)),
        };
        Some(ValueChange {
            in_files: files,
            before,
            after,
            elements: elements.filter(|found| found.elements > 1 || files),
        })
    }

    /// True if two values are known to be the same, data that was read included.
    pub(super) fn are_equal(&mut self, a: &Value, b: &Value) -> bool {
        let readable = !(in_file(a) || in_file(b))
            || (bytes(a, self.before).is_some() && bytes(b, self.after).is_some());
        readable && self.compare(a, b).is_none()
    }

    /// Whether the data of two tensors is the same.
    fn data(&mut self, a: &Value, b: &Value, types: (&TensorType, &TensorType)) -> Data {
        let key = a.blob().cloned().zip(b.blob().cloned());
        // Types are part of the place: a blob has one, and the reference must agree with it.
        if let Some(known) = key.as_ref().and_then(|key| self.known.get(key)) {
            return known.clone();
        }
        let (blobs_a, blobs_b) = (self.before, self.after);
        let pair = bytes(a, blobs_a).zip(bytes(b, blobs_b));
        let data = if let Some((before, after)) = pair {
            self.compare_bytes(&before, &after, types)
        } else {
            self.unreadable += 1;
            Data::Unreadable
        };
        if let Some(key) = key {
            self.known.insert(key, data.clone());
        }
        data
    }

    fn compare_bytes(
        &mut self,
        before: &[u8],
        after: &[u8],
        types: (&TensorType, &TensorType),
    ) -> Data {
        let same_type = types.0.dtype == types.1.dtype;
        if self.options.weights {
            return if same_type && before == after {
                Data::Same
            } else {
                Data::Differs(difference(before, after, types))
            };
        }
        if !same_type || before.len() != after.len() {
            return Data::Differs(None);
        }
        if before.len() <= WHOLE_BYTES {
            return if before == after {
                Data::Same
            } else {
                Data::Differs(None)
            };
        }
        let alike = std::ptr::eq(before, after)
            || sample_starts(before.len(), SAMPLES, SAMPLE_BYTES).all(|start| {
                let range = start..start + SAMPLE_BYTES;
                before.get(range.clone()) == after.get(range)
            });
        if alike {
            self.sampled += 1;
            Data::Same
        } else {
            Data::Differs(None)
        }
    }
}

/// The same data under the name of another weight file.
fn other_file(a: &Value, b: &Value) -> Option<ValueChange> {
    let (before, after) = (a.blob()?, b.blob()?);
    (before.file != after.file).then(|| ValueChange {
        in_files: true,
        before: before.file.clone(),
        after: after.file.clone(),
        elements: None,
    })
}

fn difference(
    before: &[u8],
    after: &[u8],
    types: (&TensorType, &TensorType),
) -> Option<ElementDifference> {
    let pair = Pair {
        before: (before, types.0),
        after: (after, types.1),
    };
    pair.difference()
}

/// True if the data is in a weight file, or will be.
fn in_file(value: &Value) -> bool {
    matches!(value.content, Content::Blob(_) | Content::New(_))
}

fn bytes<'v>(value: &'v Value, blobs: &'v dyn Blobs) -> Option<Cow<'v, [u8]>> {
    match &value.content {
        Content::Blob(blob) => blobs.bytes(blob).map(Cow::Borrowed),
        _ => value.tensor_bytes(),
    }
}

/// A value as text, on one line, without the place of its data.
pub(super) fn shown(value: &Value) -> String {
    match &value.content {
        Content::Blob(blob) => format!("{} in {}", type_of(value), blob.file),
        Content::New(_) => format!("{} in a weight file", type_of(value)),
        _ => text::value_text(value, Dialect::Program13),
    }
}

fn type_of(value: &Value) -> String {
    match &value.ty {
        Some(ty) => text::type_text(ty, Dialect::Program13),
        None => "no type".to_owned(),
    }
}

/// Which field of the schema holds the elements, to tell apart what prints alike.
fn field(value: &Value) -> String {
    if !value.doc.is_empty() {
        return format!(" with doc {:?}", value.doc);
    }
    match value.tensor_data() {
        Some(TensorData::Floats(_)) => " as floats",
        Some(TensorData::Ints(_)) => " as ints",
        Some(TensorData::Bools(_)) => " as bools",
        Some(TensorData::Strings(_)) => " as strings",
        Some(TensorData::LongInts(_)) => " as longInts",
        Some(TensorData::Doubles(_)) => " as doubles",
        Some(TensorData::Bytes(_)) => " as bytes",
        _ => "",
    }
    .to_owned()
}

/// True if two values are the same to the bit, blobs aside.
fn same_immediate(a: &Value, b: &Value) -> bool {
    match (&a.content, &b.content) {
        (Content::Immediate(a), Content::Immediate(b)) => same(a, b),
        (Content::Absent, Content::Absent) => true,
        _ => false,
    }
}

fn same(a: &Immediate, b: &Immediate) -> bool {
    let same_value = |a: &Value, b: &Value| {
        a.ty == b.ty
            && a.doc == b.doc
            && match (&a.content, &b.content) {
                (Content::Immediate(a), Content::Immediate(b)) => same(a, b),
                // A blob inside a list: seen in no file, and told apart by its place.
                (a, b) => a == b,
            }
    };
    let same_option = |a: &Option<Value>, b: &Option<Value>| match (a, b) {
        (Some(a), Some(b)) => same_value(a, b),
        (None, None) => true,
        _ => false,
    };
    match (a, b) {
        (Immediate::Tensor(a), Immediate::Tensor(b)) => same_data(a, b),
        (Immediate::List(a), Immediate::List(b)) | (Immediate::Tuple(a), Immediate::Tuple(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_value(a, b))
        }
        (Immediate::Dictionary(a), Immediate::Dictionary(b)) => {
            a.len() == b.len()
                && a.iter()
                    .zip(b)
                    .all(|(a, b)| same_option(&a.0, &b.0) && same_option(&a.1, &b.1))
        }
        (Immediate::Absent, Immediate::Absent) => true,
        _ => false,
    }
}

/// Floats by their bits: a NaN is itself, and zeros have signs.
fn same_data(a: &TensorData, b: &TensorData) -> bool {
    match (a, b) {
        (TensorData::Floats(a), TensorData::Floats(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
        }
        (TensorData::Doubles(a), TensorData::Doubles(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
        }
        (a, b) => a == b,
    }
}

impl ValueChange {
    /// The change as an edit.
    pub(super) fn edit(self, place: &Place, kind: Kind, subject: &str) -> Edit {
        let words = |text: String| Some(text).filter(|text| !text.is_empty());
        Edit {
            elements: self.elements,
            ..Edit::new(place, kind, subject, words(self.before), words(self.after))
        }
    }
}
