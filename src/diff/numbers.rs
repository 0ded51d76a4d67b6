//! The elements of packed tensors as numbers, and how far two tensors are apart.

use std::cmp::Ordering;

use serde::Serialize;

use crate::ir::{DType, TensorType};

/// How the elements of two tensors of one size differ. Elements are compared by value, and by bits
/// where their types are the same.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ElementDifference {
    /// How many elements there are.
    pub elements: u64,
    /// How many of them differ.
    pub different: u64,
    /// How many of those are a NaN on at least one side; they are in no distance.
    pub nan: u64,
    /// The largest distance between two elements, exact as far as an `f64` holds it; 0 if only
    /// signs of zeros or NaNs differ.
    pub max_abs: f64,
    /// Where the distance is largest (the first such place), one index for each dimension; one
    /// index in all if the shape is not known. The first place that differs, if the largest
    /// distance is 0.
    pub at: Vec<u64>,
    /// The element there, before.
    pub before: f64,
    /// The element there, after.
    pub after: f64,
}

/// Two tensors as packed little-endian bytes with their types, before and after.
pub(super) struct Pair<'a> {
    pub(super) before: (&'a [u8], &'a TensorType),
    pub(super) after: (&'a [u8], &'a TensorType),
}

impl Pair<'_> {
    /// How they differ; `None` if their elements do not correspond or are no numbers.
    pub(super) fn difference(&self) -> Option<ElementDifference> {
        let (bytes_a, type_a) = self.before;
        let (bytes_b, type_b) = self.after;
        let count = count(bytes_a, type_a)?;
        if count != self::count(bytes_b, type_b)? {
            return None;
        }
        let (dtype_a, dtype_b) = (type_a.dtype, type_b.dtype);
        let same_type = dtype_a == dtype_b;
        let mut found = ElementDifference {
            elements: count as u64,
            different: 0,
            nan: 0,
            max_abs: 0.0,
            at: Vec::new(),
            before: 0.0,
            after: 0.0,
        };
        let mut place = None;
        for index in 0..count {
            let a = element(bytes_a, dtype_a, index)?;
            let b = element(bytes_b, dtype_b, index)?;
            let differ = if same_type {
                a.bits != b.bits
            } else {
                a.value.total_cmp(&b.value) != Ordering::Equal && a.value != b.value
            };
            if !differ {
                continue;
            }
            found.different += 1;
            let distance = a.distance(&b);
            if distance.is_nan() {
                found.nan += 1;
            }
            if place.is_none() || distance > found.max_abs {
                place = Some(index as u64);
                found.max_abs = if distance.is_nan() { 0.0 } else { distance };
                (found.before, found.after) = (a.value, b.value);
            }
        }
        if let Some(place) = place {
            found.at = indices(place, type_a, count as u64);
        }
        Some(found)
    }
}

/// The index in each dimension of the element at this place of the row-major order.
fn indices(place: u64, ty: &TensorType, count: u64) -> Vec<u64> {
    let Some(shape) = ty.shape().filter(|_| ty.elements() == Some(count)) else {
        return vec![place];
    };
    let mut rest = place;
    let mut at: Vec<u64> = shape
        .iter()
        .rev()
        .map(|size| {
            let index = rest % size.max(&1);
            rest /= size.max(&1);
            index
        })
        .collect();
    at.reverse();
    at
}

/// How many elements packed bytes hold; for elements below a byte, as many as the shape says.
fn count(bytes: &[u8], ty: &TensorType) -> Option<usize> {
    let width = ty.dtype.bits()? as usize;
    if width >= 8 {
        return bytes
            .len()
            .is_multiple_of(width / 8)
            .then_some(bytes.len() / (width / 8));
    }
    let count = ty.elements()?;
    let bits = count.checked_mul(width as u64)?;
    (bits.div_ceil(8) == bytes.len() as u64).then_some(count as usize)
}

/// One element: its bits and its number.
struct Element {
    bits: u64,
    value: f64,
    /// The number of an integer type, exactly.
    integer: Option<i128>,
}

impl Element {
    fn float(bits: u64, value: f64) -> Self {
        Self {
            bits,
            value,
            integer: None,
        }
    }

    fn integer(bits: u64, value: i128) -> Self {
        Self {
            bits,
            value: value as f64,
            integer: Some(value),
        }
    }

    /// NaN if either is.
    fn distance(&self, other: &Self) -> f64 {
        match (self.integer, other.integer) {
            (Some(a), Some(b)) => (a - b).unsigned_abs() as f64,
            _ if self.value == other.value => 0.0,
            _ => (self.value - other.value).abs(),
        }
    }
}

/// The element at an index; `None` beyond the end and for types that are no numbers.
fn element(bytes: &[u8], dtype: DType, index: usize) -> Option<Element> {
    Some(match dtype {
        DType::Float16 => {
            let bits = u16::from_le_bytes(word(bytes, index)?);
            Element::float(bits.into(), half::f16::from_bits(bits).into())
        }
        DType::BFloat16 => {
            let bits = u16::from_le_bytes(word(bytes, index)?);
            Element::float(bits.into(), half::bf16::from_bits(bits).into())
        }
        DType::Float32 => {
            let bits = u32::from_le_bytes(word(bytes, index)?);
            Element::float(bits.into(), f32::from_bits(bits).into())
        }
        DType::Float64 => {
            let bits = u64::from_le_bytes(word(bytes, index)?);
            Element::float(bits, f64::from_bits(bits))
        }
        DType::Float8E4M3FN => {
            let [bits] = word(bytes, index)?;
            Element::float(bits.into(), fp8_e4m3fn(bits))
        }
        DType::Float8E5M2 => {
            let [bits] = word(bytes, index)?;
            // Its bits are the upper half of those of an fp16.
            let wide = half::f16::from_bits(u16::from(bits) << 8);
            Element::float(bits.into(), wide.into())
        }
        DType::Int8 => {
            let [bits] = word(bytes, index)?;
            Element::integer(bits.into(), (bits as i8).into())
        }
        DType::Bool | DType::UInt8 => {
            let [bits] = word(bytes, index)?;
            Element::integer(bits.into(), bits.into())
        }
        DType::Int16 => {
            let bits = u16::from_le_bytes(word(bytes, index)?);
            Element::integer(bits.into(), (bits as i16).into())
        }
        DType::UInt16 => {
            let bits = u16::from_le_bytes(word(bytes, index)?);
            Element::integer(bits.into(), bits.into())
        }
        DType::Int32 => {
            let bits = u32::from_le_bytes(word(bytes, index)?);
            Element::integer(bits.into(), (bits as i32).into())
        }
        DType::UInt32 => {
            let bits = u32::from_le_bytes(word(bytes, index)?);
            Element::integer(bits.into(), bits.into())
        }
        DType::Int64 => {
            let bits = u64::from_le_bytes(word(bytes, index)?);
            Element::integer(bits, (bits as i64).into())
        }
        DType::UInt64 => {
            let bits = u64::from_le_bytes(word(bytes, index)?);
            Element::integer(bits, bits.into())
        }
        DType::Int4 => {
            let bits = group(bytes, 4, index)?;
            Element::integer(bits.into(), (((bits << 4) as i8) >> 4).into())
        }
        DType::UInt1 | DType::UInt2 | DType::UInt3 | DType::UInt4 | DType::UInt6 => {
            let bits = group(bytes, dtype.bits()?, index)?;
            Element::integer(bits.into(), bits.into())
        }
        DType::Unused | DType::String | DType::Other(_) => return None,
    })
}

/// The `index`-th group of `N` bytes.
fn word<const N: usize>(bytes: &[u8], index: usize) -> Option<[u8; N]> {
    let start = index.checked_mul(N)?;
    bytes.get(start..)?.first_chunk().copied()
}

/// The `index`-th element of `width` bits, lowest bits first; it may straddle two bytes.
fn group(bytes: &[u8], width: u32, index: usize) -> Option<u8> {
    let start = index.checked_mul(width as usize)?;
    let low = *bytes.get(start / 8)?;
    let high = bytes.get(start / 8 + 1).copied().unwrap_or(0);
    let pair = u16::from_le_bytes([low, high]) >> (start % 8);
    Some((pair & ((1 << width) - 1)) as u8)
}

/// Sign, four bits of exponent with bias 7, three of mantissa; no infinities, one NaN for each sign
/// (<https://arxiv.org/abs/2209.05433>, table 1).
fn fp8_e4m3fn(bits: u8) -> f64 {
    let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
    let (exponent, mantissa) = (i32::from(bits >> 3 & 0xf), f64::from(bits & 7));
    match (exponent, bits & 7) {
        (0xf, 7) => f64::NAN,
        (0, _) => sign * mantissa * 2f64.powi(-9),
        _ => sign * (8.0 + mantissa) * 2f64.powi(exponent - 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(dtype: DType, shape: &[u64], a: &[u8], b: &[u8]) -> Option<ElementDifference> {
        let ty = TensorType::fixed(dtype, shape);
        Pair {
            before: (a, &ty),
            after: (b, &ty),
        }
        .difference()
    }

    /// An element type, the data before and after, the largest distance and its place.
    type Row = (DType, &'static [u8], &'static [u8], f64, u64);

    #[test]
    fn the_largest_distance_is_found_with_its_place_in_every_type() {
        // fp16: 1, 2, 3, 4 against 1, 2.5, 3, 1.
        let found = difference(
            DType::Float16,
            &[2, 2],
            &[0, 0x3c, 0, 0x40, 0, 0x42, 0, 0x44],
            &[0, 0x3c, 0, 0x41, 0, 0x42, 0, 0x3c],
        );
        let found = found.expect("both have four elements");
        assert_eq!((found.different, found.max_abs), (2, 3.0));
        assert_eq!(
            (found.at, found.before, found.after),
            (vec![1, 1], 4.0, 1.0)
        );

        let rows: [Row; 8] = [
            (DType::Int8, &[0x80, 0], &[0x7f, 0], 255.0, 0),
            (DType::UInt8, &[0, 0xff], &[0, 1], 254.0, 1),
            (DType::Int4, &[0x78], &[0x88], 15.0, 1),
            (DType::UInt1, &[0b01], &[0b11], 1.0, 1),
            (DType::Float8E5M2, &[0x3c, 0x40], &[0x3c, 0x44], 2.0, 1),
            (DType::Float8E4M3FN, &[0x38, 0x7e], &[0x38, 0x40], 446.0, 1),
            (
                DType::BFloat16,
                &[0, 0, 0x80, 0x3f],
                &[0, 0, 0, 0x40],
                1.0,
                1,
            ),
            (
                DType::Int32,
                &[0, 0, 0, 0x80, 0, 0, 0, 0],
                &[0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0],
                4_294_967_295.0,
                0,
            ),
        ];
        for (dtype, a, b, max_abs, at) in rows {
            let found = difference(dtype, &[2], a, b).expect("two elements");
            assert_eq!((found.different, found.max_abs), (1, max_abs), "{dtype}");
            assert_eq!(found.at, [at], "{dtype}");
        }
    }

    #[test]
    fn six_bits_straddle_bytes() {
        // 1, 63, 2, 5, 9 as coremltools' blob writer packs them; then the 63 as 60.
        let found = difference(
            DType::UInt6,
            &[5],
            &[0xc1, 0x2f, 0x14, 0x09],
            &[0x01, 0x2f, 0x14, 0x09],
        );
        let found = found.expect("five elements");
        assert_eq!((found.at, found.before, found.after), (vec![1], 63.0, 60.0));
    }

    #[test]
    fn zeros_of_other_sign_differ_without_distance_and_nans_are_counted() {
        let one = |a: f32, b: f32| {
            difference(DType::Float32, &[1], &a.to_le_bytes(), &b.to_le_bytes())
                .expect("one element")
        };
        let zeros = one(0.0, -0.0);
        assert_eq!((zeros.different, zeros.max_abs, zeros.nan), (1, 0.0, 0));
        let nan = one(1.0, f32::NAN);
        assert_eq!((nan.different, nan.max_abs, nan.nan), (1, 0.0, 1));
        let infinite = one(1.0, f32::INFINITY);
        assert_eq!((infinite.different, infinite.max_abs), (1, f64::INFINITY));
        assert_eq!(one(2.0, 2.0).different, 0);
    }

    #[test]
    fn elements_that_do_not_correspond_are_not_compared() {
        assert_eq!(difference(DType::Float16, &[1], &[0, 0], &[0]), None);
        assert_eq!(difference(DType::Float16, &[1], &[0, 0], &[0; 4]), None);
        assert_eq!(difference(DType::UInt3, &[9], &[0, 0], &[0, 0]), None);
        assert_eq!(difference(DType::String, &[1], &[0], &[1]), None);
    }
}
