//! Values: attributes, literals, references to weight files, lists, tuples and dictionaries.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::super::lexer::Kind;
use super::{Fail, Parse, Parser};
use crate::ir::{
    BlobRef, Content, DType, Immediate, NewBlob, TensorData, TensorType, Value, ValueType,
};

impl Parser<'_> {
    /// `[name = value, …]`.
    pub(super) fn attributes(&mut self) -> Parse<BTreeMap<String, Value>> {
        self.symbol(b'[')?;
        let mut attributes = BTreeMap::new();
        self.list(b']', |parser| {
            let span = parser.span();
            let name = parser.name("an attribute's name")?;
            parser.symbol(b'=')?;
            let value = parser.value()?;
            match attributes.entry(name.into_owned()) {
                Entry::Vacant(entry) => {
                    entry.insert(value);
                    Ok(())
                }
                Entry::Occupied(entry) => {
                    let why = format!("attribute `{}` is given twice", entry.key());
                    parser.report(span, &why);
                    Err(Fail)
                }
            }
        })?;
        Ok(attributes)
    }

    /// A value with its type.
    pub(super) fn value(&mut self) -> Parse<Value> {
        self.item(None)
    }

    /// A value inside a container whose type gives it this type; it may show another one.
    fn item(&mut self, expected: Option<&ValueType>) -> Parse<Value> {
        self.nested(|parser| {
            let doc = if parser.eat_mark("@doc") {
                parser.string()?
            } else {
                String::new()
            };
            if let Some(ty) = expected.filter(|_| !parser.at_type()) {
                let content = parser.content(Some(ty))?;
                return Ok(Value {
                    doc,
                    ty: Some(ty.clone()),
                    content,
                });
            }
            let ty = parser.optional_type()?;
            parser.symbol(b'(')?;
            let content = parser.content(ty.as_ref())?;
            parser.symbol(b')')?;
            Ok(Value { doc, ty, content })
        })
    }

    fn content(&mut self, ty: Option<&ValueType>) -> Parse<Content> {
        if self.token.kind == Kind::Mark {
            return self.marked(ty);
        }
        if self.at_word("BLOBFILE") {
            return self.blob().map(Content::Blob);
        }
        let immediate = match ty {
            Some(ValueType::Tensor(tensor)) => {
                Immediate::Tensor(self.elements(Some(tensor), None)?)
            }
            Some(ValueType::Tuple(types)) => Immediate::Tuple(self.tuple(types)?),
            Some(ValueType::List { item, .. }) => Immediate::List(self.items(item.as_deref())?),
            Some(ValueType::Dictionary { key, value }) => {
                Immediate::Dictionary(self.pairs(key.as_deref(), value.as_deref())?)
            }
            Some(ValueType::State(_) | ValueType::Unspecified) | None => {
                return Err(self.expected("a marked value, such as `@floats […]` or `@no_value`"));
            }
        };
        Ok(Content::Immediate(immediate))
    }

    /// A literal that begins with a mark.
    fn marked(&mut self, ty: Option<&ValueType>) -> Parse<Content> {
        let mark = self.token_text();
        let field = match mark {
            "@floats" | "@ints" | "@bools" | "@strings" | "@longInts" | "@doubles" | "@bytes" => {
                &mark[1..]
            }
            "@no_value" | "@no_immediate" | "@no_data" | "@raw" | "@tuple" | "@list" | "@dict"
            | "@new" => "",
            _ => return Err(self.expected("a value")),
        };
        self.advance();
        let immediate = match mark {
            "@no_value" => return Ok(Content::Absent),
            "@new" => return self.new_blob(ty).map(Content::New),
            "@no_immediate" => Immediate::Absent,
            "@no_data" => Immediate::Tensor(TensorData::Absent),
            "@raw" => Immediate::Tensor(TensorData::Bytes(self.raw()?)),
            "@tuple" => Immediate::Tuple(self.tuple(&[])?),
            "@list" => Immediate::List(self.items(None)?),
            "@dict" => Immediate::Dictionary(self.pairs(None, None)?),
            _ => {
                let tensor = ty.and_then(ValueType::as_tensor);
                Immediate::Tensor(self.elements(tensor, Some(field))?)
            }
        };
        Ok(Content::Immediate(immediate))
    }

    fn tuple(&mut self, types: &[ValueType]) -> Parse<Vec<Value>> {
        self.symbol(b'(')?;
        let mut values = Vec::new();
        self.list(b')', |parser| {
            values.push(parser.item(types.get(values.len()))?);
            Ok(())
        })?;
        Ok(values)
    }

    fn items(&mut self, item: Option<&ValueType>) -> Parse<Vec<Value>> {
        self.symbol(b'[')?;
        let mut values = Vec::new();
        self.list(b']', |parser| {
            values.push(parser.item(item)?);
            Ok(())
        })?;
        Ok(values)
    }

    fn pairs(
        &mut self,
        key_type: Option<&ValueType>,
        value_type: Option<&ValueType>,
    ) -> Parse<Vec<(Option<Value>, Option<Value>)>> {
        self.symbol(b'{')?;
        let mut pairs = Vec::new();
        self.list(b'}', |parser| {
            parser.symbol(b'{')?;
            let key = parser.optional_item(key_type)?;
            parser.symbol(b',')?;
            let value = parser.optional_item(value_type)?;
            parser.symbol(b'}')?;
            pairs.push((key, value));
            Ok(())
        })?;
        Ok(pairs)
    }

    fn optional_item(&mut self, expected: Option<&ValueType>) -> Parse<Option<Value>> {
        if self.eat_mark("@missing") {
            return Ok(None);
        }
        self.item(expected).map(Some)
    }

    /// `BLOBFILE(path = string("…"), offset = uint64(N))`.
    fn blob(&mut self) -> Parse<BlobRef> {
        self.advance();
        self.symbol(b'(')?;
        self.blob_part("path")?;
        let file = self.string()?;
        self.symbol(b')')?;
        self.symbol(b',')?;
        self.blob_part("offset")?;
        let offset = self.integer("a byte offset")?;
        self.symbol(b')')?;
        self.symbol(b')')?;
        Ok(BlobRef { file, offset })
    }

    fn blob_part(&mut self, name: &str) -> Parse<()> {
        self.word(name)?;
        self.symbol(b'=')?;
        self.value_type()?;
        self.symbol(b'(')
    }

    /// `(DTYPE, COUNT) elements`.
    fn new_blob(&mut self, ty: Option<&ValueType>) -> Parse<NewBlob> {
        self.symbol(b'(')?;
        let dtype = self.dtype("an element type")?;
        self.symbol(b',')?;
        let elements: u64 = self.integer("the number of elements")?;
        if self.at_symbol(b',') {
            let why = "the text has only a digest of these elements, so they cannot be read back; \
                       print them all";
            self.report(self.span(), why);
            return Err(Fail);
        }
        self.symbol(b')')?;
        let span = self.span();
        let bytes = if self.eat_mark("@raw") {
            self.raw()?
        } else {
            let declared = ty
                .and_then(ValueType::as_tensor)
                .filter(|ty| ty.dtype == dtype && ty.elements() == Some(elements));
            let flat = TensorType::fixed(dtype, &[elements]);
            match self.elements(Some(declared.unwrap_or(&flat)), Some("bytes"))? {
                TensorData::Bytes(bytes) => bytes,
                _ => Vec::new(),
            }
        };
        let whole = TensorType::fixed(dtype, &[elements]).packed_bytes();
        if dtype != DType::String && whole.is_some_and(|size| size != bytes.len() as u64) {
            self.report(
                span,
                &format!("these are not {elements} elements of {dtype}"),
            );
            return Err(Fail);
        }
        Ok(NewBlob {
            dtype,
            elements,
            bytes: bytes.into(),
        })
    }

    /// Bytes as a string of hexadecimal digits.
    fn raw(&mut self) -> Parse<Vec<u8>> {
        let span = self.span();
        let digits = self.string()?;
        let nibbles: Option<Vec<u8>> = digits
            .chars()
            .map(|c| c.to_digit(16).map(|digit| digit as u8))
            .collect();
        match nibbles {
            Some(nibbles) if nibbles.len() % 2 == 0 => Ok(nibbles
                .chunks_exact(2)
                .map(|pair| pair[0] << 4 | pair[1])
                .collect()),
            _ => {
                self.report(span, "expected pairs of hexadecimal digits");
                Err(Fail)
            }
        }
    }
}
