//! Numbers that are not finite: how many a constant has, and the constant without them.

use std::fmt;

use half::f16;

use crate::eval::ranges::HALF_MAX;
use crate::ir::{Content, DType, Immediate, NewBlob, TensorData, Value};
use crate::pass::{Edit, EditError};

/// What a number of a constant is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A weight itself.
    Number,
    /// A number in a row of a table: a weight, unless the table is one of masks.
    Row,
    /// What integers of up to eight bits are multiplied with.
    Scale,
}

impl Kind {
    /// What takes the place of infinity.
    fn greatest(self) -> f64 {
        match self {
            Self::Number | Self::Row => HALF_MAX,
            // 255 times it is the greatest product with a difference of eight-bit numbers: 65 280.
            Self::Scale => 256.0,
        }
    }
}

/// How many elements of a constant are not finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bad {
    nan: u64,
    inf: u64,
    /// Of the infinite ones.
    negative: u64,
}

/// The element type, if it is one that this pass knows: fp16 or fp32.
pub(super) fn element(value: &Value) -> Option<DType> {
    let dtype = value.tensor_type()?.dtype;
    matches!(dtype, DType::Float16 | DType::Float32).then_some(dtype)
}

impl Bad {
    /// Of a constant with these bytes.
    pub(super) fn of(value: &Value, bytes: &[u8]) -> Self {
        let mut bad = Self::default();
        match element(value) {
            // All bits of the exponent are set; few are, and only these are looked at again.
            Some(DType::Float16) => {
                for bytes in bytes.as_chunks::<2>().0 {
                    if bytes[1] & 0x7c == 0x7c {
                        bad.count(f16::from_le_bytes(*bytes).to_f64());
                    }
                }
            }
            Some(DType::Float32) => {
                for bytes in bytes.as_chunks::<4>().0 {
                    if bytes[3] & 0x7f == 0x7f && bytes[2] & 0x80 == 0x80 {
                        bad.count(f32::from_le_bytes(*bytes).into());
                    }
                }
            }
            _ => {}
        }
        bad
    }

    fn count(&mut self, number: f64) {
        if number.is_nan() {
            self.nan += 1;
        } else {
            self.inf += 1;
            self.negative += u64::from(number < 0.0);
        }
    }

    /// Whether they are what a table of masks has: nothing but negative infinities.
    pub(super) fn may_be_masks(&self) -> bool {
        self.nan == 0 && self.inf == self.negative
    }

    /// Adds those of another constant.
    pub(super) fn add(&mut self, other: &Self) {
        self.nan += other.nan;
        self.inf += other.inf;
        self.negative += other.negative;
    }

    /// Whether there are any.
    pub(super) fn any(&self) -> bool {
        self.nan + self.inf > 0
    }

    /// What becomes of them.
    pub(super) fn what(&self, kind: Kind) -> String {
        let mut parts = Vec::new();
        match self.nan {
            0 => {}
            1 => parts.push("1 NaN becomes 0".to_owned()),
            nan => parts.push(format!("{nan} NaN become 0")),
        }
        let greatest = kind.greatest();
        match self.inf {
            0 => {}
            1 => parts.push(format!("1 infinity becomes ±{greatest}")),
            inf => parts.push(format!("{inf} infinities become ±{greatest}")),
        }
        parts.join(", ")
    }
}

impl fmt::Display for Bad {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.nan, self.inf) {
            (0, 1) => write!(out, "it has 1 infinite number"),
            (0, inf) => write!(out, "it has {inf} infinite numbers"),
            (nan, 0) => write!(out, "it has {nan} NaN"),
            (nan, inf) => write!(out, "it has {nan} NaN and {inf} infinite numbers"),
        }
    }
}

/// The constant with finite numbers, in a weight file if the old one is there.
pub(super) fn clean(edit: &Edit<'_>, value: &Value, kind: Kind) -> Result<Value, EditError> {
    let bytes = edit.bytes(value)?;
    let dtype = element(value).ok_or(EditError::Unreadable)?;
    let greatest = kind.greatest();
    let finite = |number: f64| match number {
        number if number.is_nan() => 0.0,
        number if number.is_infinite() => greatest.copysign(number),
        number => number,
    };
    let mut clean = bytes.into_owned();
    if dtype == DType::Float16 {
        for bytes in clean.as_chunks_mut::<2>().0 {
            let number = f16::from_le_bytes(*bytes);
            if !number.is_finite() {
                *bytes = f16::from_f64(finite(number.to_f64())).to_le_bytes();
            }
        }
    } else {
        for bytes in clean.as_chunks_mut::<4>().0 {
            let number = f32::from_le_bytes(*bytes);
            if !number.is_finite() {
                *bytes = (finite(number.into()) as f32).to_le_bytes();
            }
        }
    }
    let content = match (&value.content, dtype) {
        (Content::Blob(_) | Content::New(_), _) => Content::New(NewBlob {
            dtype,
            elements: (clean.len() / if dtype == DType::Float16 { 2 } else { 4 }) as u64,
            bytes: clean.into(),
        }),
        (_, DType::Float16) => Content::Immediate(Immediate::Tensor(TensorData::Bytes(clean))),
        _ => {
            let numbers = clean.as_chunks::<4>().0.iter();
            let numbers = numbers.map(|bytes| f32::from_le_bytes(*bytes)).collect();
            Content::Immediate(Immediate::Tensor(TensorData::Floats(numbers)))
        }
    };
    Ok(Value {
        content,
        ..value.clone()
    })
}
