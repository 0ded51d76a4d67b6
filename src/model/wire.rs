//! A strict scan of protobuf bytes against the schema, before prost decodes them.
//!
//! prost drops fields that the schema lacks without a word, and its errors name neither the place
//! nor, in most cases, the message. This scan walks the same bytes, decodes nothing, and finds
//!
//! - the first field that the schema lacks, with the message it stands in: milwright reads such a
//!   package but refuses to write it;
//! - whatever prost would choke on, with its place. Bytes that pass the scan always decode.
//!
//! Comparing the encoded length of the decoded message with the length of the input would find
//! unknown fields too, but also cries wolf: writers differ in spelling where nothing is lost. One
//! writes an empty value in a map entry and another leaves it out, one packs repeated numbers and
//! another does not, and a default may be written or omitted.
//!
//! In three points the scan is stricter than the protobuf libraries: groups are errors even in
//! unknown fields, since no version of the schema has any; a known field with the wrong wire type
//! is an error rather than an unknown field; and a model kind that we keep as bytes may stand only
//! once in its message, because the libraries would merge the two pieces and we could not.
//!
//! What the schema keeps as bytes is not looked into: the models of a pipeline need a scan each.
//!
//! The scan does not recurse, allocates only its stack of open messages, and does not look at the
//! elements of packed floats and bytes. Its table is made by `build.rs`.

use std::collections::BTreeMap;
use std::fmt;

use thiserror::Error;

/// Full name of the message that a `.mlmodel` file holds.
pub const MODEL: &str = "CoreML.Specification.Model";

/// How many messages may stand inside one another below the outermost one. prost's own limit,
/// and that of the other protobuf libraries; a map entry counts as a message.
pub const MAX_DEPTH: usize = 100;

/// A path names at most this many fields, then goes on with `...`.
const MAX_PATH_FIELDS: usize = 32;

/// Keys of map entries are cut to this many characters when a path quotes them.
const MAX_KEY_CHARS: usize = 64;

/// The largest field number that the wire format allows.
const MAX_FIELD_NUMBER: u64 = (1 << 29) - 1;

/// A field that the schema lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownField {
    /// Full name of the message that holds the field.
    pub message: &'static str,
    /// The field's number.
    pub number: u32,
    /// Where the field starts, in bytes from the start of the scanned bytes.
    pub offset: usize,
    /// Way from the outermost message to the one that holds the field, for example
    /// `mlProgram.functions["main"].block_specializations["CoreML8"].operations[12]`; empty if the
    /// field stands in the outermost message.
    pub path: String,
}

impl fmt::Display for UnknownField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown field {} in {}{} at byte {}",
            self.number,
            self.message,
            Place(&self.path),
            self.offset
        )
    }
}

/// Bytes that are not a well-formed message of the schema.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{fault} in {message}{} at byte {offset}", Place(.path))]
pub struct WireError {
    /// What is wrong.
    pub fault: Fault,
    /// Full name of the message in which it is wrong.
    pub message: String,
    /// Where the broken field starts, in bytes from the start of the scanned bytes.
    pub offset: usize,
    /// Way to the message, as in [`UnknownField::path`].
    pub path: String,
}

/// What can be wrong with a field.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Fault {
    /// The scanned bytes end inside the field.
    #[error("the file ends inside a field")]
    Truncated,
    /// The field says it is longer than what is left of the message around it.
    #[error("a field reaches past the end of the message around it")]
    PastParent,
    /// A varint of more than ten bytes, or of more than 64 bits.
    #[error("a varint of more than 64 bits")]
    VarintTooLong,
    /// Field numbers go from 1 to 2^29 - 1.
    #[error("the impossible field number {0}")]
    FieldNumber(u64),
    /// Wire types 3 and 4, which proto3 does not have.
    #[error("a group (field {field})")]
    Group {
        /// The field's number.
        field: u32,
    },
    /// Wire types 6 and 7, which do not exist.
    #[error("the impossible wire type {found} (field {field})")]
    NoSuchWireType {
        /// The field's number.
        field: u32,
        /// The wire type in the bytes.
        found: u8,
    },
    /// A known field is spelled in another wire type than its own.
    #[error("field `{field}` has wire type {found}, which does not fit its type")]
    WireType {
        /// The field's name in the schema.
        field: &'static str,
        /// The wire type in the bytes.
        found: u8,
    },
    /// The bytes of packed numbers do not divide into numbers.
    #[error("the packed numbers of field `{field}` do not fill its length")]
    Packed {
        /// The field's name in the schema.
        field: &'static str,
    },
    /// Text that is not UTF-8.
    #[error("field `{field}` is not UTF-8")]
    NotUtf8 {
        /// The field's name in the schema.
        field: &'static str,
    },
    /// More than [`MAX_DEPTH`] messages inside one another.
    #[error("messages nested more than {MAX_DEPTH} deep")]
    TooDeep,
    /// Two model kinds kept as bytes in one model; only one of them could be kept.
    #[error("field `{field}`, a second model kind,")]
    SecondOpaque {
        /// The name of the second one in the schema.
        field: &'static str,
    },
    /// The caller asks for a message that the schema lacks.
    #[error("the scan was asked for a type that is not")]
    NoSuchMessage,
}

/// A path in parentheses; nothing for the outermost message.
struct Place<'a>(&'a str);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            Ok(())
        } else {
            write!(f, " ({})", self.0)
        }
    }
}

/// Scans `bytes` as a message of the type with this full name, say [`MODEL`].
///
/// Gives the first unknown field, if any; but an error anywhere in the bytes wins, so that `Ok`
/// always means that prost decodes them.
pub fn scan(message: &str, bytes: &[u8]) -> Result<Option<UnknownField>, WireError> {
    let Some(root) = MESSAGES.iter().find(|row| row.name == message) else {
        return Err(WireError {
            fault: Fault::NoSuchMessage,
            message: message.to_owned(),
            offset: 0,
            path: String::new(),
        });
    };
    match walk(root, bytes) {
        Ok(None) => Ok(None),
        Ok(Some(field)) => Ok(Some(UnknownField {
            message: field.message.name,
            number: field.number,
            offset: field.offset,
            path: path(root, bytes, field.offset),
        })),
        Err((fault, message, offset)) => Err(WireError {
            fault,
            message: message.name.to_owned(),
            offset,
            path: path(root, bytes, offset),
        }),
    }
}

/// A message of the schema.
struct Message {
    name: &'static str,
    is_map_entry: bool,
    /// By ascending number.
    fields: &'static [Field],
}

impl Message {
    fn field(&self, number: u32) -> Option<&'static Field> {
        // Most messages number their fields 1, 2, 3, ...
        let guess = self.fields.get((number as usize).wrapping_sub(1));
        if let Some(field) = guess.filter(|field| field.number == number) {
            return Some(field);
        }
        let index = self
            .fields
            .binary_search_by_key(&number, |field| field.number)
            .ok()?;
        self.fields.get(index)
    }
}

struct Field {
    number: u32,
    name: &'static str,
    kind: Kind,
    repeated: bool,
}

#[derive(Clone, Copy)]
enum Kind {
    Varint,
    Fixed32,
    Fixed64,
    Bytes,
    Text,
    /// A message that is kept as bytes.
    Opaque,
    /// Index in `MESSAGES`.
    Message(usize),
}

include!(concat!(env!("OUT_DIR"), "/wire_table.rs"));

/// Wire types that proto3 uses.
const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const LENGTH_DELIMITED: u8 = 2;
const START_GROUP: u8 = 3;
const END_GROUP: u8 = 4;
const FIXED32: u8 = 5;

/// The first unknown field of a walk.
struct Unknown {
    message: &'static Message,
    number: u32,
    offset: usize,
}

/// Walks all fields, depth first. A fault comes with its message and the offset of its field.
fn walk(
    root: &'static Message,
    bytes: &[u8],
) -> Result<Option<Unknown>, (Fault, &'static Message, usize)> {
    let mut unknown = None;
    let mut message = root;
    let mut cursor = Cursor {
        window: bytes,
        position: 0,
        total: bytes.len(),
    };
    // The messages around `message`, outermost first, each with its end.
    let mut around: Vec<(&'static Message, &[u8])> = Vec::with_capacity(MAX_DEPTH);
    let mut holds_opaque = false;
    loop {
        let offset = cursor.position;
        if offset == cursor.window.len() {
            match around.pop() {
                Some(outer) => (message, cursor.window) = outer,
                None => return Ok(unknown),
            }
            continue;
        }
        match field(message, &mut cursor, around.len()) {
            Ok(Step::Over) => {}
            Ok(Step::Into(inner, end)) => {
                // Within the window: the cursor has just stepped over these bytes.
                let window = cursor.window.get(..end).unwrap_or_default();
                around.push((message, cursor.window));
                (message, cursor.window) = (inner, window);
            }
            Ok(Step::OverOpaque(field)) => {
                if holds_opaque {
                    return Err((Fault::SecondOpaque { field }, message, offset));
                }
                // Only `Model` has such fields, and a model within a model is bytes to us.
                holds_opaque = true;
            }
            Ok(Step::OverUnknown(number)) => {
                unknown.get_or_insert(Unknown {
                    message,
                    number,
                    offset,
                });
            }
            Err(fault) => return Err((fault, message, offset)),
        }
    }
}

/// How the walk goes on after a field.
enum Step {
    /// The field is done.
    Over,
    /// So is this one, of a model kind kept as bytes.
    OverOpaque(&'static str),
    /// So is this one, of a number that the schema lacks.
    OverUnknown(u32),
    /// The field is a message; the cursor stands at its start, and this is its end.
    Into(&'static Message, usize),
}

/// Reads one field of `message`, which stands `depth` messages below the outermost one.
#[inline]
fn field(message: &Message, cursor: &mut Cursor, depth: usize) -> Result<Step, Fault> {
    let key = cursor.varint()?;
    let number = key >> 3;
    if number == 0 || number > MAX_FIELD_NUMBER {
        return Err(Fault::FieldNumber(number));
    }
    let number = number as u32;
    let wire_type = (key & 7) as u8;

    let Some(field) = message.field(number) else {
        check_wire_type(number, wire_type)?;
        // prost counts the skipping of a field as one more level.
        if depth >= MAX_DEPTH {
            return Err(Fault::TooDeep);
        }
        cursor.skip(wire_type)?;
        return Ok(Step::OverUnknown(number));
    };
    match (field.kind, wire_type) {
        (Kind::Varint, VARINT) => {
            cursor.varint()?;
        }
        (Kind::Text, LENGTH_DELIMITED) => {
            if std::str::from_utf8(cursor.block()?).is_err() {
                return Err(Fault::NotUtf8 { field: field.name });
            }
        }
        (Kind::Message(index), LENGTH_DELIMITED) => {
            let length = cursor.block()?.len();
            if depth >= MAX_DEPTH {
                return Err(Fault::TooDeep);
            }
            if length > 0 {
                let end = cursor.position;
                cursor.position = end - length;
                let inner = MESSAGES.get(index).ok_or(Fault::NoSuchMessage)?;
                return Ok(Step::Into(inner, end));
            }
        }
        (Kind::Bytes, LENGTH_DELIMITED) => {
            cursor.block()?;
        }
        (Kind::Fixed32, FIXED32) => {
            cursor.take(4)?;
        }
        (Kind::Fixed64, FIXED64) => {
            cursor.take(8)?;
        }
        (Kind::Varint | Kind::Fixed32 | Kind::Fixed64, LENGTH_DELIMITED) if field.repeated => {
            let numbers = cursor.block()?;
            let whole = match field.kind {
                Kind::Fixed32 => numbers.len().is_multiple_of(4),
                Kind::Fixed64 => numbers.len().is_multiple_of(8),
                _ => packed_varints(numbers),
            };
            if !whole {
                return Err(Fault::Packed { field: field.name });
            }
        }
        (Kind::Opaque, LENGTH_DELIMITED) => {
            cursor.block()?;
            return Ok(Step::OverOpaque(field.name));
        }
        (_, found) => {
            check_wire_type(number, found)?;
            return Err(Fault::WireType {
                field: field.name,
                found,
            });
        }
    }
    Ok(Step::Over)
}

fn check_wire_type(field: u32, found: u8) -> Result<(), Fault> {
    match found {
        START_GROUP | END_GROUP => Err(Fault::Group { field }),
        6.. => Err(Fault::NoSuchWireType { field, found }),
        _ => Ok(()),
    }
}

/// A place in the bytes, at most at the end of the window.
struct Cursor<'a> {
    /// All bytes up to the end of the innermost message.
    window: &'a [u8],
    position: usize,
    /// How many bytes there are behind and ahead of the window's end.
    total: usize,
}

impl<'a> Cursor<'a> {
    #[inline]
    fn varint(&mut self) -> Result<u64, Fault> {
        match self.window.get(self.position) {
            Some(byte) if *byte < 0x80 => {
                self.position += 1;
                Ok(u64::from(*byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, Fault> {
        let mut value = 0;
        for index in 0..10 {
            let Some(byte) = self.window.get(self.position) else {
                return Err(self.too_short(1));
            };
            self.position += 1;
            value |= u64::from(byte & 0x7f) << (7 * index);
            if *byte < 0x80 {
                // The tenth byte has room for one bit.
                return if index == 9 && *byte > 1 {
                    Err(Fault::VarintTooLong)
                } else {
                    Ok(value)
                };
            }
        }
        Err(Fault::VarintTooLong)
    }

    #[inline]
    fn take(&mut self, length: u64) -> Result<&'a [u8], Fault> {
        let taken = usize::try_from(length)
            .ok()
            .and_then(|length| self.position.checked_add(length))
            .and_then(|end| self.window.get(self.position..end));
        match taken {
            Some(taken) => {
                self.position += taken.len();
                Ok(taken)
            }
            None => Err(self.too_short(length)),
        }
    }

    /// A length and that many bytes.
    #[inline]
    fn block(&mut self) -> Result<&'a [u8], Fault> {
        let length = self.varint()?;
        self.take(length)
    }

    fn skip(&mut self, wire_type: u8) -> Result<(), Fault> {
        match wire_type {
            VARINT => self.varint().map(drop),
            FIXED64 => self.take(8).map(drop),
            FIXED32 => self.take(4).map(drop),
            _ => self.block().map(drop),
        }
    }

    /// Why the window does not hold so many bytes more.
    #[cold]
    fn too_short(&self, wanted: u64) -> Fault {
        let left = self.total.saturating_sub(self.position);
        if wanted > left as u64 {
            Fault::Truncated
        } else {
            Fault::PastParent
        }
    }
}

/// True if the bytes are a row of whole varints, none of more than 64 bits.
fn packed_varints(mut bytes: &[u8]) -> bool {
    const CONTINUATION_BITS: u64 = 0x8080_8080_8080_8080;
    let mut before = 0;
    while let Some((byte, rest)) = bytes.split_first() {
        if before == 0
            && let Some((eight, rest)) = bytes.split_first_chunk()
            && u64::from_ne_bytes(*eight) & CONTINUATION_BITS == 0
        {
            bytes = rest;
            continue;
        }
        if before == 9 && *byte > 1 {
            return false;
        }
        before = if *byte < 0x80 { 0 } else { before + 1 };
        bytes = rest;
    }
    before == 0
}

/// The way from the outermost message to the one whose field starts at `offset`: field names, with
/// indices of repeated fields and keys of maps.
///
/// Goes over the same bytes once more. They are well formed up to `offset`, as a scan has found;
/// should that fail, the path ends early.
#[cold]
fn path(root: &'static Message, bytes: &[u8], offset: usize) -> String {
    let mut fields = Vec::new();
    let mut message = root;
    let mut cursor = Cursor {
        window: bytes,
        position: 0,
        total: bytes.len(),
    };
    for _ in 0..=MAX_DEPTH {
        let Some((field, index, start)) = field_around(message, &mut cursor, offset) else {
            break;
        };
        let Kind::Message(row) = field.kind else {
            break;
        };
        let Some(inner) = MESSAGES.get(row) else {
            break;
        };
        // The value of a map entry needs no name, as the entry's key is its name.
        if !message.is_map_entry {
            if fields.len() == MAX_PATH_FIELDS {
                fields.push("...".to_owned());
                break;
            }
            fields.push(if inner.is_map_entry {
                let entry = cursor.window.get(start..).unwrap_or_default();
                format!("{}[{:?}]", field.name, entry_key(entry))
            } else if field.repeated {
                format!("{}[{index}]", field.name)
            } else {
                field.name.to_owned()
            });
        }
        message = inner;
        cursor.position = start;
    }
    fields.join(".")
}

/// Finds the field of `message`, from the cursor on, that holds `offset` in its content, and narrows
/// the cursor's window to its end. Gives the field, how many of the same number stand before it,
/// and where its content starts; `None` if a field starts at `offset` itself.
fn field_around(
    message: &Message,
    cursor: &mut Cursor,
    offset: usize,
) -> Option<(&'static Field, usize, usize)> {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    while cursor.position < offset {
        let key = cursor.varint().ok()?;
        let before = cursor.position;
        cursor.skip((key & 7) as u8).ok()?;
        let count = counts.entry(key >> 3).or_default();
        if cursor.position > offset {
            let end = cursor.position;
            cursor.position = before;
            let length = cursor.block().ok()?.len();
            cursor.window = cursor.window.get(..end)?;
            let number = u32::try_from(key >> 3).ok()?;
            return Some((message.field(number)?, *count, end - length));
        }
        *count += 1;
    }
    None
}

/// The key of a map entry, cut to a length fit for an error; empty where the entry leaves it out.
fn entry_key(entry: &[u8]) -> String {
    let mut cursor = Cursor {
        window: entry,
        position: 0,
        total: entry.len(),
    };
    while let Ok(key) = cursor.varint() {
        let content = cursor.position;
        if cursor.skip((key & 7) as u8).is_err() {
            break;
        }
        if key == u64::from(1 << 3 | LENGTH_DELIMITED) {
            cursor.position = content;
            let text = String::from_utf8_lossy(cursor.block().unwrap_or_default());
            return text.chars().take(MAX_KEY_CHARS).collect();
        }
    }
    String::new()
}

#[cfg(test)]
mod tests;
