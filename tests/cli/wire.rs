//! Protobuf messages taken apart and put together by hand, without a schema: for files that no
//! library would write.

/// A field's value as it stands in the bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Raw {
    /// Wire type 0.
    Varint(u64),
    /// Wire type 1.
    Fixed64([u8; 8]),
    /// Wire type 2: a message, a text or bytes.
    Bytes(Vec<u8>),
    /// Wire type 5.
    Fixed32([u8; 4]),
}

/// The fields of a message in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Message(pub(crate) Vec<(u64, Raw)>);

fn read_varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (byte, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

fn write_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(count);
    *bytes = rest;
    taken
}

impl Message {
    pub(crate) fn parse(mut bytes: &[u8]) -> Self {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let key = read_varint(&mut bytes);
            let raw = match key & 7 {
                0 => Raw::Varint(read_varint(&mut bytes)),
                1 => Raw::Fixed64(take(&mut bytes, 8).try_into().unwrap()),
                2 => {
                    let length = read_varint(&mut bytes) as usize;
                    Raw::Bytes(take(&mut bytes, length).to_vec())
                }
                5 => Raw::Fixed32(take(&mut bytes, 4).try_into().unwrap()),
                other => panic!("wire type {other}"),
            };
            fields.push((key >> 3, raw));
        }
        Self(fields)
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (number, raw) in &self.0 {
            let wire_type = match raw {
                Raw::Varint(_) => 0,
                Raw::Fixed64(_) => 1,
                Raw::Bytes(_) => 2,
                Raw::Fixed32(_) => 5,
            };
            write_varint(&mut bytes, number << 3 | wire_type);
            match raw {
                Raw::Varint(value) => write_varint(&mut bytes, *value),
                Raw::Fixed64(value) => bytes.extend(value),
                Raw::Fixed32(value) => bytes.extend(value),
                Raw::Bytes(value) => {
                    write_varint(&mut bytes, value.len() as u64);
                    bytes.extend(value);
                }
            }
        }
        bytes
    }

    pub(crate) fn with(mut self, number: u64, raw: Raw) -> Self {
        self.0.push((number, raw));
        self
    }

    pub(crate) fn with_text(self, number: u64, text: &str) -> Self {
        self.with(number, Raw::Bytes(text.as_bytes().to_vec()))
    }

    pub(crate) fn with_message(self, number: u64, message: &Self) -> Self {
        self.with(number, Raw::Bytes(message.bytes()))
    }

    /// Positions of all occurrences of a field.
    pub(crate) fn all(&self, number: u64) -> Vec<usize> {
        (0..self.0.len())
            .filter(|index| self.0[*index].0 == number)
            .collect()
    }

    /// The message, text or bytes of the first occurrence of a field.
    pub(crate) fn payload(&self, number: u64) -> &[u8] {
        match self.0.iter().find(|field| field.0 == number) {
            Some((_, Raw::Bytes(bytes))) => bytes,
            other => panic!("field {number}: {other:?}"),
        }
    }

    /// Changes the message at a path: at each step the given occurrence of a field.
    pub(crate) fn change(&mut self, path: &[(u64, usize)], change: &mut dyn FnMut(&mut Self)) {
        let Some(((number, occurrence), rest)) = path.split_first() else {
            change(self);
            return;
        };
        let index = self.all(*number)[*occurrence];
        let Raw::Bytes(bytes) = &mut self.0[index].1 else {
            panic!("field {number} is no message");
        };
        let mut inner = Self::parse(bytes);
        inner.change(rest, change);
        *bytes = inner.bytes();
    }
}

/// The `mlProgram` of a model, its first function, and that function's first body. Numbers are those
/// of the format: a map is a repeated message with the key as field 1 and the value as field 2.
pub(crate) const PROGRAM: (u64, usize) = (502, 0);
pub(crate) const FUNCTION: [(u64, usize); 3] = [PROGRAM, (2, 0), (2, 0)];
pub(crate) const BLOCK: [(u64, usize); 5] = [PROGRAM, (2, 0), (2, 0), (3, 0), (2, 0)];

/// Field of a block's operations.
pub(crate) const OPERATIONS: u64 = 3;

/// Path to an operation of the block at [`BLOCK`].
pub(crate) fn operation(index: usize) -> Vec<(u64, usize)> {
    [&BLOCK[..], &[(OPERATIONS, index)]].concat()
}
