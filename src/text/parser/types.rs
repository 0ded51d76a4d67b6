//! Types.

use super::super::lexer::Kind;
use super::{Fail, Parse, Parser};
use crate::ir::{DType, Dim, TensorType, ValueType};

/// Words that begin a type and take arguments.
const GENERIC: [&str; 5] = ["tensor", "list", "tuple", "dict", "state"];

impl Parser<'_> {
    /// True if the present token begins a type, or the mark of a missing one.
    pub(super) fn at_type(&self) -> bool {
        match self.token.kind {
            Kind::Word => {
                let word = self.token_text();
                GENERIC.contains(&word) || word.starts_with("dtype") || is_dtype(word)
            }
            Kind::Mark => matches!(self.token_text(), "@untyped" | "@type"),
            _ => false,
        }
    }

    /// A type, or `@untyped`.
    pub(super) fn optional_type(&mut self) -> Parse<Option<ValueType>> {
        if self.eat_mark("@untyped") {
            return Ok(None);
        }
        Ok(Some(self.value_type()?))
    }

    pub(super) fn value_type(&mut self) -> Parse<ValueType> {
        self.nested(Self::any_type)
    }

    fn any_type(&mut self) -> Parse<ValueType> {
        if self.eat_mark("@type") {
            return Ok(ValueType::Unspecified);
        }
        if self.token.kind != Kind::Word {
            return Err(self.expected("a type"));
        }
        let word = self.token_text();
        if !GENERIC.contains(&word) {
            let dtype = self.dtype("a type")?;
            return Ok(TensorType::scalar(dtype).into());
        }
        self.advance();
        self.symbol(b'<')?;
        let ty = match word {
            "tensor" => ValueType::Tensor(self.tensor()?),
            "list" => {
                let item = self.optional_type()?.map(Box::new);
                let length = if self.eat_symbol(b',') {
                    Some(self.dimension()?)
                } else {
                    None
                };
                ValueType::List { item, length }
            }
            "tuple" => {
                let mut types = Vec::new();
                self.list(b'>', |parser| {
                    types.push(parser.value_type()?);
                    Ok(())
                })?;
                return Ok(ValueType::Tuple(types));
            }
            "dict" => {
                let key = self.optional_type()?.map(Box::new);
                self.symbol(b',')?;
                let value = self.optional_type()?.map(Box::new);
                ValueType::Dictionary { key, value }
            }
            _ => ValueType::State(self.optional_type()?.map(Box::new)),
        };
        self.symbol(b'>')?;
        Ok(ty)
    }

    /// What stands between the angle brackets of a tensor's type.
    fn tensor(&mut self) -> Parse<TensorType> {
        let dtype = self.dtype("an element type, such as `fp16`")?;
        self.symbol(b',')?;
        self.symbol(b'[')?;
        let mut dims = Vec::new();
        self.list(b']', |parser| {
            dims.push(parser.dimension()?);
            Ok(())
        })?;
        let mut ty = TensorType::new(dtype, dims);
        if ty.dims.contains(&(Dim::Unknown { variadic: true })) {
            ty.rank = -1;
        }
        if self.eat_mark("@rank") {
            self.symbol(b'(')?;
            ty.rank = self.integer("a rank")?;
            self.symbol(b')')?;
        }
        if self.eat_mark("@attributes") {
            ty.attributes = self.attributes()?;
        }
        Ok(ty)
    }

    fn dimension(&mut self) -> Parse<Dim> {
        let dim = match self.token.kind {
            Kind::Symbol(b'?') => Dim::UNKNOWN,
            Kind::Ellipsis => Dim::Unknown { variadic: true },
            Kind::Mark if self.token_text() == "@dim" => Dim::Unspecified,
            _ => return Ok(Dim::Known(self.integer("a dimension")?)),
        };
        self.advance();
        Ok(dim)
    }

    /// An element type's word; `dtype` and a number stand for one that has no word.
    pub(super) fn dtype(&mut self, what: &str) -> Parse<DType> {
        if self.token.kind != Kind::Word {
            return Err(self.expected(what));
        }
        let word = self.token_text();
        if let Some(dtype) = DType::from_word(word) {
            self.advance();
            return Ok(dtype);
        }
        let Some(digits) = word.strip_prefix("dtype") else {
            return Err(self.expected(what));
        };
        if !digits.is_empty() {
            let Ok(number) = digits.parse() else {
                return Err(self.expected(what));
            };
            self.advance();
            return Ok(DType::from_number(number));
        }
        // The sign of a negative number ends the word.
        let (end, fail) = (self.token.end, self.span());
        self.advance();
        if self.token.start != end {
            self.report(fail, "expected the number of an element type after `dtype`");
            return Err(Fail);
        }
        Ok(DType::from_number(self.integer("a number")?))
    }
}

fn is_dtype(word: &str) -> bool {
    // Most names are told apart by their first letter.
    matches!(word.as_bytes(), [b'b' | b'f' | b'i' | b's' | b'u', ..])
        && DType::from_word(word).is_some()
}
