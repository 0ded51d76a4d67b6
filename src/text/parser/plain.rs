//! Runs of plain numbers between commas, read straight from the text's bytes.
//!
//! Large literals are most of a long text, and a token for each number is most of the time that
//! they take. What is read here is read to the same numbers as token by token (see `number.rs`);
//! a run ends before everything else: `nan` and `inf`, comments, numbers that do not fit, errors.

use super::super::float::Format;
use super::super::lexer::Kind;
use super::elements::Sink;
use super::{Lexer, Parser};

/// A number and the position after it.
type Found<T> = Option<(T, usize)>;

impl Parser<'_> {
    /// Reads numbers while each has its comma, the last of which is read too; how many.
    pub(super) fn plain_numbers(&mut self, sink: &mut Sink) -> u64 {
        if self.token.kind != Kind::Number {
            return 0;
        }
        let (text, start) = (self.source, self.token.start);
        let format = sink.format();
        let (count, end) = match (sink, format) {
            (Sink::Floats(values), Some(format)) => run(
                text,
                start,
                |at| float(text, at, format),
                |bits| values.push(f32::from_bits(bits as u32)),
            ),
            (Sink::Doubles(values), Some(format)) => run(
                text,
                start,
                |at| float(text, at, format),
                |bits| values.push(f64::from_bits(bits)),
            ),
            (Sink::Packed(packed), Some(format)) => run(
                text,
                start,
                |at| float(text, at, format),
                |bits| packed.push(bits),
            ),
            (Sink::Ints(values), _) => run(
                text,
                start,
                |at| integer(text.as_bytes(), at),
                |number| values.push(number),
            ),
            (Sink::LongInts(values), _) => run(
                text,
                start,
                |at| integer(text.as_bytes(), at),
                |number| values.push(number),
            ),
            (Sink::UnsignedLongInts(values), _) => run(
                text,
                start,
                |at| integer::<u64>(text.as_bytes(), at),
                |number| values.push(number as i64),
            ),
            (Sink::Packed(packed), None) => {
                let (least, most) = packed.range();
                run(
                    text,
                    start,
                    |at| {
                        integer::<i64>(text.as_bytes(), at)
                            .filter(|found| (least..=most).contains(&i128::from(found.0)))
                    },
                    |number| packed.push(number as u64),
                )
            }
            _ => return 0,
        };
        if count > 0 {
            self.lexer = Lexer::at(text, end);
            self.advance();
        }
        count
    }
}

/// Reads numbers from `at` on while a comma follows; how many, and the position after the last
/// comma.
fn run<T>(
    text: &str,
    mut at: usize,
    read: impl Fn(usize) -> Found<T>,
    mut push: impl FnMut(T),
) -> (u64, usize) {
    let bytes = text.as_bytes();
    let mut count = 0;
    let mut end = at;
    while let Some((number, after)) = read(at)
        && bytes.get(after) == Some(&b',')
    {
        push(number);
        count += 1;
        end = after + 1;
        at = end + usize::from(bytes.get(end) == Some(&b' '));
    }
    (count, end)
}

/// The bits of a floating-point number, hexadecimal or decimal.
fn float(text: &str, at: usize, format: Format) -> Found<u64> {
    let bytes = text.as_bytes();
    let negative = bytes.get(at) == Some(&b'-');
    let digits = at + usize::from(negative);
    let (magnitude, end) = if bytes.get(digits..)?.starts_with(b"0x") {
        hexadecimal(bytes, digits + 2, format)?
    } else {
        decimal(text, digits, format)?
    };
    Some((magnitude | u64::from(negative) << format.sign_bit(), end))
}

/// A number such as `1.8p-3`, as it is spelled after its `0x`.
fn hexadecimal(bytes: &[u8], mut at: usize, format: Format) -> Found<u64> {
    let start = at;
    let mut mantissa = 0u64;
    let mut point = None;
    let exponent_at = loop {
        let byte = *bytes.get(at)?;
        at += 1;
        match byte {
            b'p' => break at,
            b'.' if point.is_none() => point = Some(at),
            _ => mantissa = mantissa << 4 | u64::from(char::from(byte).to_digit(16)?),
        }
    };
    // No digit has been shifted out, and there is one on each side of the point.
    let digits = exponent_at - 1 - start;
    let fraction = point.map_or(0, |point| exponent_at - 1 - point);
    if !(1..=16).contains(&digits) || point.is_some() && (fraction == 0 || digits < fraction + 2) {
        return None;
    }
    let plus = usize::from(bytes.get(at) == Some(&b'+'));
    let (exponent, end): (i32, usize) = integer(bytes, at + plus)?;
    if plus == 1 && bytes.get(at + 1) == Some(&b'-') {
        return None;
    }
    let exponent = i64::from(exponent) - 4 * fraction as i64;
    Some((format.encode(mantissa, exponent, false)?, end))
}

/// A number such as `12`, `0.5` or `1e-5`.
fn decimal(text: &str, at: usize, format: Format) -> Found<u64> {
    let rest = text.as_bytes().get(at..)?;
    if !rest.first()?.is_ascii_digit() {
        return None;
    }
    let part = |b: &u8| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-');
    let end = at + rest.iter().position(|byte| !part(byte))?;
    let digits = text.get(at..end)?;
    let bits = if format.is_fp32() {
        let value: f32 = digits.parse().ok()?;
        value.is_finite().then_some(value.to_bits().into())?
    } else {
        format.round(digits.parse().ok()?)?
    };
    Some((bits, end))
}

/// A whole number of at most eighteen digits.
fn integer<T: TryFrom<i64>>(bytes: &[u8], at: usize) -> Found<T> {
    let negative = bytes.get(at) == Some(&b'-');
    let start = at + usize::from(negative);
    let mut number = 0i64;
    let mut end = start;
    while let Some(digit @ b'0'..=b'9') = bytes.get(end).copied() {
        number = number.wrapping_mul(10).wrapping_add((digit - b'0').into());
        end += 1;
    }
    if !(1..=18).contains(&(end - start)) {
        return None;
    }
    let number = if negative { -number } else { number };
    Some((T::try_from(number).ok()?, end))
}

#[cfg(test)]
mod tests {
    use super::super::super::float::{BF16, FP8_E4M3FN, FP8_E5M2, FP16, FP32, FP64};
    use super::super::number::float_bits;
    use super::*;

    /// Spellings of many kinds: a few parts, put together in all ways.
    fn spellings() -> Vec<String> {
        let mut all = Vec::new();
        for sign in ["", "-", "+", "--"] {
            for whole in [
                "",
                "0",
                "1",
                "12",
                "007",
                "0x",
                "0x0",
                "0x1",
                "0xf",
                "0x1ffffff",
                "1_0",
            ] {
                for fraction in [
                    "",
                    ".",
                    ".0",
                    ".8",
                    ".48",
                    ".ffe",
                    ".123456789abcdef",
                    ".5.5",
                ] {
                    for exponent in [
                        "",
                        "p",
                        "p+0",
                        "p-1",
                        "p3",
                        "p+-1",
                        "p-24",
                        "p-160",
                        "p+127",
                        "p+99999",
                        "p-99999999999999999999",
                        "e5",
                        "e-7",
                        "E+2",
                        "e400",
                        "P1",
                        "p1x",
                    ] {
                        all.push(format!("{sign}{whole}{fraction}{exponent}"));
                    }
                }
            }
        }
        all
    }

    #[test]
    fn a_plain_float_is_the_number_that_its_token_stands_for() {
        let mut plain = 0;
        for format in [FP16, BF16, FP32, FP64, FP8_E4M3FN, FP8_E5M2] {
            for spelling in spellings() {
                let text = format!("{spelling},");
                let found = float(&text, 0, format).filter(|(_, end)| *end == spelling.len());
                if let Some((bits, _)) = found {
                    plain += 1;
                    assert_eq!(Ok(bits), float_bits(&spelling, format), "{spelling}");
                }
            }
        }
        assert!(plain > 1000, "{plain}");
    }

    #[test]
    fn a_plain_integer_is_the_number_that_its_token_stands_for() {
        for spelling in [
            "0",
            "-0",
            "7",
            "-12",
            "2147483647",
            "-2147483648",
            "2147483648",
            "007",
            "-",
            "",
            "--1",
            "999999999999999999",
            "9223372036854775807",
            "18446744073709551616",
        ] {
            let text = format!("{spelling},");
            let found: Found<i32> = integer(text.as_bytes(), 0);
            let found = found.map(|(number, _)| number);
            assert_eq!(found, spelling.parse().ok(), "{spelling}");
            if let Some((number, end)) = integer::<i64>(text.as_bytes(), 0) {
                assert_eq!(spelling.parse(), Ok(number));
                assert_eq!(end, spelling.len());
            }
        }
    }

    #[test]
    fn the_last_number_and_what_is_not_plain_are_left() {
        for (text, count, rest) in [
            ("1, 2,3, 4]", 3, " 4]"),
            ("1, nan, 2]", 1, " nan, 2]"),
            ("1 , 2]", 0, "1 , 2]"),
            ("1, 2 // two\n]", 1, " 2 // two\n]"),
            ("0x1p+0, 0x1.8p-3, 0x2.0, 1]", 2, " 0x2.0, 1]"),
            ("1, 2,", 2, ""),
        ] {
            let mut numbers = Vec::new();
            let (found, end) = run(
                text,
                0,
                |at| float(text, at, FP32),
                |bits| numbers.push(bits),
            );
            assert_eq!((found, &text[end..]), (count, rest));
            assert_eq!(numbers.len() as u64, count);
        }
    }
}
