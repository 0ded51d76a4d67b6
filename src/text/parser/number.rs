//! Floating-point numbers from text: hexadecimal and decimal, rounded to nearest even.

use super::super::float::Format;

/// The bits of a number in a format, from its text: `-0x1.8p-3`, `1e-5`, `inf`, `-nan`.
/// Decimal numbers of formats smaller than fp32 are rounded to fp64 first.
///
/// # Errors
/// Why the text is no number of the format, to stand after the text.
pub(super) fn float_bits(text: &str, format: Format) -> Result<u64, &'static str> {
    let (negative, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let magnitude = match digits {
        "inf" => format
            .infinity()
            .ok_or("is not in a format without infinities")?,
        "nan" => format.quiet_nan(),
        _ if digits.starts_with("0x") => {
            let (mantissa, exponent, more) = hexadecimal(digits).ok_or("is not a number")?;
            format
                .encode(mantissa, exponent, more)
                .ok_or("is too large for the type")?
        }
        _ => {
            let number = digits
                .bytes()
                .all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'));
            if !number {
                return Err("is not a number");
            }
            // Through fp64 no number of fp32 would be rounded once.
            if format.is_fp32() {
                let value: f32 = digits.parse().map_err(|_| "is not a number")?;
                if value.is_infinite() {
                    return Err("is too large for the type");
                }
                value.to_bits().into()
            } else {
                let value: f64 = digits.parse().map_err(|_| "is not a number")?;
                format.round(value).ok_or("is too large for the type")?
            }
        }
    };
    Ok(magnitude | u64::from(negative) << format.sign_bit())
}

/// Mantissa, exponent of two, and whether digits beyond the mantissa are not zero, of `0x1.8p-3`.
fn hexadecimal(text: &str) -> Option<(u64, i64, bool)> {
    let digits = text.strip_prefix("0x")?;
    let (digits, exponent) = match digits.split_once(['p', 'P']) {
        Some((digits, exponent)) => (digits, parse_exponent(exponent)?),
        None => (digits, 0),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.len() + fraction.len() == 0 {
        return None;
    }
    let mut mantissa = 0u64;
    let mut shift = 0i64;
    let mut more = false;
    for (part, below_point) in [(whole, false), (fraction, true)] {
        for byte in part.bytes() {
            let digit = char::from(byte).to_digit(16)?;
            if mantissa >> 60 == 0 {
                mantissa = mantissa << 4 | u64::from(digit);
                shift -= if below_point { 4 } else { 0 };
            } else {
                more |= digit != 0;
                shift += if below_point { 0 } else { 4 };
            }
        }
    }
    Some((mantissa, exponent.saturating_add(shift), more))
}

/// A signed decimal exponent; one of more digits than matter counts as very large.
fn parse_exponent(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let size = digits.parse().unwrap_or(1 << 40).min(1 << 40);
    Some(if text.starts_with('-') { -size } else { size })
}

/// The numbers of `random(seed, scale)` before they are rounded; the parser's page has the formula.
pub(super) fn random(seed: u64, scale: f64, count: usize) -> impl Iterator<Item = f64> {
    let mut state = seed;
    (0..count).map(move |_| {
        // splitmix64, as published by Sebastiano Vigna.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let unit = (z >> 11) as f64 * 2f64.powi(-53);
        (2.0 * unit - 1.0) * scale
    })
}
