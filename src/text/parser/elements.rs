//! The elements of tensors: alone, in brackets, or by `fill` and `random`.

use super::super::float::{BF16, FP8_E4M3FN, FP8_E5M2, FP16, FP32, FP64, Format};
use super::super::lexer::Kind;
use super::super::values::usual_field;
use super::number::{self, float_bits};
use super::{Fail, Parse, Parser};
use crate::ir::{DType, TensorData, TensorType};

/// `fill` and `random` make at most this many elements: they are for short cases, and a text of a
/// few bytes must not take all memory.
const MAX_MADE: u64 = 1 << 24;

/// Brackets may be nested this deep; no tensor of Core ML has more dimensions than 5.
const MAX_BRACKETS: usize = 64;

/// Room is made for at most this many elements before they are read.
const MAX_RESERVED: u64 = 1 << 16;

/// Where elements go: one field of the schema.
pub(super) enum Sink {
    Floats(Vec<f32>),
    Doubles(Vec<f64>),
    Ints(Vec<i32>),
    LongInts(Vec<i64>),
    UnsignedLongInts(Vec<i64>),
    Bools(Vec<bool>),
    Strings(Vec<String>),
    Packed(Packed),
}

/// Elements packed lowest bits first.
pub(super) struct Packed {
    dtype: DType,
    width: u32,
    bytes: Vec<u8>,
    /// Bits not yet in `bytes`, and how many.
    pending: u64,
    count: u32,
}

impl Packed {
    pub(super) fn push(&mut self, bits: u64) {
        if self.width >= 8 {
            let size = (self.width / 8) as usize;
            self.bytes
                .extend_from_slice(&bits.to_le_bytes()[..size.min(8)]);
            return;
        }
        self.pending |= (bits & ((1 << self.width) - 1)) << self.count;
        self.count += self.width;
        while self.count >= 8 {
            self.bytes.push(self.pending as u8);
            self.pending >>= 8;
            self.count -= 8;
        }
    }

    /// The smallest and the largest element, where they are whole numbers.
    pub(super) fn range(&self) -> (i128, i128) {
        let signed = matches!(
            self.dtype,
            DType::Int4 | DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64
        );
        whole_range(signed, self.width)
    }

    fn finish(mut self) -> Vec<u8> {
        if self.count > 0 {
            self.bytes.push(self.pending as u8);
        }
        self.bytes
    }
}

/// The smallest and the largest whole number of so many bits.
fn whole_range(signed: bool, width: u32) -> (i128, i128) {
    if signed {
        (-(1 << (width - 1)), (1 << (width - 1)) - 1)
    } else {
        (0, (1 << width) - 1)
    }
}

impl Sink {
    /// `elements` are expected.
    fn new(field: &str, dtype: Option<DType>, elements: u64) -> Option<Self> {
        // A type may promise more than there is.
        let size = elements.min(MAX_RESERVED) as usize;
        Some(match field {
            "floats" => Self::Floats(Vec::with_capacity(size)),
            "doubles" => Self::Doubles(Vec::with_capacity(size)),
            "ints" => Self::Ints(Vec::with_capacity(size)),
            "longInts" if dtype == Some(DType::UInt64) => {
                Self::UnsignedLongInts(Vec::with_capacity(size))
            }
            "longInts" => Self::LongInts(Vec::with_capacity(size)),
            "bools" => Self::Bools(Vec::with_capacity(size)),
            "strings" => Self::Strings(Vec::with_capacity(size)),
            _ => {
                let (dtype, width) = (dtype?, dtype?.bits()?);
                let size = (size * width as usize).div_ceil(8);
                Self::Packed(Packed {
                    dtype,
                    width,
                    bytes: Vec::with_capacity(size),
                    pending: 0,
                    count: 0,
                })
            }
        })
    }

    fn finish(self) -> TensorData {
        fn exact<T>(mut values: Vec<T>) -> Vec<T> {
            values.shrink_to_fit();
            values
        }
        match self {
            Self::Floats(values) => TensorData::Floats(exact(values)),
            Self::Doubles(values) => TensorData::Doubles(exact(values)),
            Self::Ints(values) => TensorData::Ints(exact(values)),
            Self::LongInts(values) | Self::UnsignedLongInts(values) => {
                TensorData::LongInts(exact(values))
            }
            Self::Bools(values) => TensorData::Bools(exact(values)),
            Self::Strings(values) => TensorData::Strings(exact(values)),
            Self::Packed(packed) => TensorData::Bytes(exact(packed.finish())),
        }
    }

    /// The floating-point format of the elements, if they are such numbers.
    pub(super) fn format(&self) -> Option<Format> {
        match self {
            Self::Floats(_) => Some(FP32),
            Self::Doubles(_) => Some(FP64),
            Self::Packed(packed) => match packed.dtype {
                DType::Float16 => Some(FP16),
                DType::BFloat16 => Some(BF16),
                DType::Float32 => Some(FP32),
                DType::Float64 => Some(FP64),
                DType::Float8E4M3FN => Some(FP8_E4M3FN),
                DType::Float8E5M2 => Some(FP8_E5M2),
                _ => None,
            },
            _ => None,
        }
    }

    /// The smallest and the largest element, if they are whole numbers.
    fn range(&self) -> Option<(i128, i128)> {
        match self {
            Self::Ints(_) => Some(whole_range(true, 32)),
            Self::LongInts(_) => Some(whole_range(true, 64)),
            Self::UnsignedLongInts(_) => Some(whole_range(false, 64)),
            Self::Packed(packed) if self.format().is_none() => Some(packed.range()),
            _ => None,
        }
    }

    fn push_float(&mut self, bits: u64) {
        match self {
            Self::Floats(values) => values.push(f32::from_bits(bits as u32)),
            Self::Doubles(values) => values.push(f64::from_bits(bits)),
            Self::Packed(packed) => packed.push(bits),
            _ => {}
        }
    }

    /// The number is in the range.
    fn push_int(&mut self, number: i128) {
        match self {
            Self::Ints(values) => values.push(number as i32),
            Self::LongInts(values) | Self::UnsignedLongInts(values) => values.push(number as i64),
            Self::Packed(packed) => packed.push(number as u64),
            _ => {}
        }
    }

    /// Appends `count` elements equal to the one that there is.
    fn repeat(&mut self, count: usize) {
        fn grow<T: Clone>(values: &mut Vec<T>, count: usize) {
            if let Some(first) = values.first().cloned() {
                values.resize(count, first);
            }
        }
        match self {
            Self::Floats(values) => grow(values, count),
            Self::Doubles(values) => grow(values, count),
            Self::Ints(values) => grow(values, count),
            Self::LongInts(values) | Self::UnsignedLongInts(values) => grow(values, count),
            Self::Bools(values) => grow(values, count),
            Self::Strings(values) => grow(values, count),
            Self::Packed(packed) if packed.width < 8 => {
                let bits = packed.pending;
                for _ in 1..count {
                    packed.push(bits);
                }
            }
            Self::Packed(packed) => packed.bytes = packed.bytes.repeat(count),
        }
        if count == 0 {
            match self {
                Self::Floats(values) => values.clear(),
                Self::Doubles(values) => values.clear(),
                Self::Ints(values) => values.clear(),
                Self::LongInts(values) | Self::UnsignedLongInts(values) => values.clear(),
                Self::Bools(values) => values.clear(),
                Self::Strings(values) => values.clear(),
                Self::Packed(packed) => {
                    packed.bytes.clear();
                    (packed.pending, packed.count) = (0, 0);
                }
            }
        }
    }
}

impl Parser<'_> {
    /// The elements of a tensor of this type, for the given field or the usual one.
    pub(super) fn elements(
        &mut self,
        ty: Option<&TensorType>,
        field: Option<&str>,
    ) -> Parse<TensorData> {
        let dtype = ty.map(|ty| ty.dtype);
        let field = field.or_else(|| dtype.and_then(usual_field));
        let expected = ty.and_then(TensorType::elements).unwrap_or(1);
        let Some(mut sink) = field.and_then(|field| Sink::new(field, dtype, expected)) else {
            return Err(self.expected("`@raw \"…\"`, the only literal of this type"));
        };
        if self.token.kind == Kind::Word && self.next_kind() == Kind::Symbol(b'(') {
            match self.token_text() {
                "fill" => return self.fill(sink, ty),
                "random" => return self.random(sink, ty),
                _ => {}
            }
        }
        if self.at_symbol(b'[') {
            self.bracketed(&mut sink, ty)?;
            return Ok(sink.finish());
        }
        let single = ty.is_none_or(|ty| ty.elements() == Some(1));
        if !single {
            return Err(self.expected("the elements in brackets"));
        }
        self.element(&mut sink)?;
        Ok(sink.finish())
    }

    /// Elements in brackets: in one pair, or nested as the shape says.
    fn bracketed(&mut self, sink: &mut Sink, ty: Option<&TensorType>) -> Parse<()> {
        let start = self.token.start;
        // Items in the open brackets, outermost first; and the size of each level.
        let mut open: Vec<u64> = Vec::new();
        let mut shape: Vec<u64> = Vec::new();
        let mut even = true;
        loop {
            while self.at_symbol(b'[') {
                if open.len() == MAX_BRACKETS {
                    return Err(self.expected("an element: brackets are nested too deep"));
                }
                self.advance();
                open.push(0);
            }
            let plain = self.plain_numbers(sink);
            if plain > 0 {
                even &= shape.is_empty() || shape.len() == open.len();
                if let Some(count) = open.last_mut() {
                    *count += plain;
                }
                if shape.is_empty() {
                    shape = vec![u64::MAX; open.len()];
                }
                continue;
            }
            let empty = self.at_symbol(b']') && open.last() == Some(&0);
            if !empty {
                self.element(sink)?;
                even &= shape.is_empty() || shape.len() == open.len();
                if let Some(count) = open.last_mut() {
                    *count += 1;
                }
            }
            if shape.is_empty() {
                shape = vec![u64::MAX; open.len()];
            }
            while self.at_symbol(b']') {
                self.advance();
                let count = open.pop().unwrap_or(0);
                match shape.get_mut(open.len()) {
                    Some(size) if *size == u64::MAX => *size = count,
                    Some(size) => even &= *size == count,
                    None => even = false,
                }
                match open.last_mut() {
                    Some(outer) => *outer += 1,
                    None => return self.check_shape(start, &shape, even, ty),
                }
            }
            if !self.eat_symbol(b',') {
                return Err(self.expected("`,` or `]`"));
            }
        }
    }

    fn check_shape(
        &mut self,
        start: usize,
        shape: &[u64],
        even: bool,
        ty: Option<&TensorType>,
    ) -> Parse<()> {
        let why = if !even {
            "the brackets do not all hold the same number of elements".to_owned()
        } else if shape.len() > 1
            && let Some(declared) = ty.and_then(TensorType::shape)
            && declared != shape
        {
            format!("the brackets have the shape {shape:?}, the type says {declared:?}")
        } else {
            return Ok(());
        };
        self.report(start..start + 1, &why);
        Err(Fail)
    }

    fn element(&mut self, sink: &mut Sink) -> Parse<()> {
        if let Some(format) = sink.format() {
            let bits = self.float(format)?;
            sink.push_float(bits);
            return Ok(());
        }
        if let Some(range) = sink.range() {
            let number = self.whole_number(range)?;
            sink.push_int(number);
            return Ok(());
        }
        match sink {
            Sink::Bools(values) => {
                let value = match self.token_text() {
                    "true" => true,
                    "false" => false,
                    _ => return Err(self.expected("`true` or `false`")),
                };
                self.advance();
                values.push(value);
            }
            Sink::Strings(values) => values.push(self.string()?),
            _ => return Err(self.expected("an element")),
        }
        Ok(())
    }

    /// A floating-point number, rounded to the format.
    fn float(&mut self, format: Format) -> Parse<u64> {
        let text = self.token_text();
        let special = matches!(text, "inf" | "nan") && self.token.kind == Kind::Word;
        if !special && self.token.kind != Kind::Number {
            return Err(self.expected("a number"));
        }
        let span = self.span();
        self.advance();
        if matches!(text, "nan" | "-nan") && self.eat_symbol(b'(') {
            let digits = self.token_text();
            let payload = digits
                .strip_prefix("0x")
                .and_then(|digits| u64::from_str_radix(digits, 16).ok())
                .and_then(|payload| format.nan(text.starts_with('-'), payload));
            let Some(bits) = payload else {
                return Err(self.expected("the mantissa bits of a NaN, such as 0x1"));
            };
            self.advance();
            self.symbol(b')')?;
            return Ok(bits);
        }
        match float_bits(text, format) {
            Ok(bits) => Ok(bits),
            Err(why) => {
                self.report(span, &format!("`{text}` {why}"));
                Err(Fail)
            }
        }
    }

    fn whole_number(&mut self, (least, most): (i128, i128)) -> Parse<i128> {
        if self.token.kind != Kind::Number {
            return Err(self.expected("a whole number"));
        }
        let Ok(number) = self.token_text().parse::<i128>() else {
            return Err(self.expected("a whole number"));
        };
        if !(least..=most).contains(&number) {
            return Err(self.expected(&format!("a whole number from {least} to {most}")));
        }
        self.advance();
        Ok(number)
    }

    /// The number of elements that `fill` and `random` make.
    fn made_count(&mut self, ty: Option<&TensorType>) -> Parse<usize> {
        match ty.and_then(TensorType::elements) {
            Some(count) if count <= MAX_MADE => Ok(count as usize),
            Some(count) => {
                let why = format!("{count} elements are too many to make; the limit is {MAX_MADE}");
                self.report(self.span(), &why);
                Err(Fail)
            }
            None => Err(self.expected("elements: the type has no fixed number of them")),
        }
    }

    /// `fill(v)`.
    fn fill(&mut self, mut sink: Sink, ty: Option<&TensorType>) -> Parse<TensorData> {
        let count = self.made_count(ty)?;
        self.advance();
        self.symbol(b'(')?;
        self.element(&mut sink)?;
        self.symbol(b')')?;
        sink.repeat(count);
        Ok(sink.finish())
    }

    /// `random(seed, scale)`.
    fn random(&mut self, mut sink: Sink, ty: Option<&TensorType>) -> Parse<TensorData> {
        let count = self.made_count(ty)?;
        let (format, range) = (sink.format(), sink.range());
        if format.is_none() && range.is_none() {
            return Err(self.expected("elements: only numbers can be random"));
        }
        self.advance();
        self.symbol(b'(')?;
        let seed: u64 = self.integer("a seed, from 0 to 2^64 - 1")?;
        self.symbol(b',')?;
        let span = self.span();
        let scale = f64::from_bits(self.float(FP64)?);
        self.symbol(b')')?;
        let most = format.map_or_else(
            || range.map_or(0.0, |(least, most)| (-least).max(most).min(1 << 62) as f64),
            Format::largest,
        );
        if !(0.0..=most).contains(&scale) {
            let why = format!("the scale must be from 0 to {most}, the largest of the type");
            self.report(span, &why);
            return Err(Fail);
        }
        for value in number::random(seed, scale, count) {
            if let Some(format) = format {
                // At most the scale, which the format holds.
                sink.push_float(format.round(value).unwrap_or(0));
            } else if let Some((least, most)) = range {
                let whole = value.round_ties_even() as i128;
                sink.push_int(whole.clamp(least, most));
            }
        }
        Ok(sink.finish())
    }
}
