//! Floating-point literals: hexadecimal, so that the text holds the exact bits.
//!
//! The spelling is that of C's `%a` as Core ML's compiler uses it: `0x1p-1`, `-0x1.48p-1`,
//! `0x0p+0`, `-0x0p+0`, `inf`, `-inf`; subnormal numbers are normalized (`0x1p-24` for the
//! smallest fp16). A quiet NaN without payload is `nan`; every other NaN shows its mantissa bits,
//! `nan(0x1)`. A set sign bit is a leading `-` for all of them.

use super::writer::Writer;

/// Digits of a binary floating-point format: bits of the mantissa field and of the exponent field.
#[derive(Clone, Copy)]
pub(super) struct Format {
    mantissa: u32,
    exponent: u32,
    /// The largest exponent field holds ordinary numbers too, and only an all-ones mantissa is NaN
    /// (fp8 E4M3FN).
    finite: bool,
}

pub(super) const FP16: Format = ieee(10, 5);
pub(super) const FP32: Format = ieee(23, 8);
pub(super) const FP64: Format = ieee(52, 11);
pub(super) const BF16: Format = ieee(7, 8);
pub(super) const FP8_E5M2: Format = ieee(2, 5);
pub(super) const FP8_E4M3FN: Format = Format {
    mantissa: 3,
    exponent: 4,
    finite: true,
};

const fn ieee(mantissa: u32, exponent: u32) -> Format {
    Format {
        mantissa,
        exponent,
        finite: false,
    }
}

/// The other direction, for the parser: numbers to bits.
impl Format {
    /// The position of the sign.
    pub(super) fn sign_bit(self) -> u32 {
        self.mantissa + self.exponent
    }

    pub(super) fn is_fp32(self) -> bool {
        self.mantissa == FP32.mantissa
    }

    fn largest_field(self) -> u64 {
        (1 << self.exponent) - 1
    }

    /// The bits of positive infinity, if the format has it.
    pub(super) fn infinity(self) -> Option<u64> {
        (!self.finite).then(|| self.largest_field() << self.mantissa)
    }

    /// The bits of the NaN without payload.
    pub(super) fn quiet_nan(self) -> u64 {
        let mantissa = if self.finite {
            (1 << self.mantissa) - 1
        } else {
            1 << (self.mantissa - 1)
        };
        self.largest_field() << self.mantissa | mantissa
    }

    /// The bits of a NaN with these mantissa bits, if they are those of a NaN.
    pub(super) fn nan(self, negative: bool, mantissa: u64) -> Option<u64> {
        let mask = (1u64 << self.mantissa) - 1;
        let valid = if self.finite {
            mantissa == mask
        } else {
            mantissa != 0 && mantissa <= mask
        };
        let sign = u64::from(negative) << self.sign_bit();
        valid.then_some(sign | self.largest_field() << self.mantissa | mantissa)
    }

    /// The bits of the first number that is too large: infinity or, without one, NaN.
    fn overflow(self) -> u64 {
        self.infinity().unwrap_or_else(|| self.quiet_nan())
    }

    /// The largest number.
    pub(super) fn largest(self) -> f64 {
        let bits = self.overflow() - 1;
        let mantissa = bits & ((1 << self.mantissa) - 1) | 1 << self.mantissa;
        let exponent = (bits >> self.mantissa) as i32 - self.bias() as i32;
        mantissa as f64 * 2f64.powi(exponent - self.mantissa as i32)
    }

    fn bias(self) -> i64 {
        (self.largest_field() >> 1) as i64
    }

    /// The bits of a finite number, rounded to nearest even; `None` if it is too large.
    pub(super) fn round(self, value: f64) -> Option<u64> {
        let bits = value.to_bits();
        let sign = (bits >> 63) << self.sign_bit();
        let field = (bits >> 52 & 0x7ff) as i64;
        let mantissa = bits & ((1 << 52) - 1);
        let magnitude = match field {
            0 => self.encode(mantissa, -1074, false)?,
            0x7ff => return None,
            _ => self.encode(mantissa | 1 << 52, field - 1075, false)?,
        };
        Some(sign | magnitude)
    }

    /// The bits of `mantissa · 2^exponent`, and a bit more if `more`, rounded to nearest even;
    /// `None` if that is too large. `more` needs a mantissa of more bits than the format has.
    pub(super) fn encode(self, mantissa: u64, exponent: i64, more: bool) -> Option<u64> {
        if mantissa == 0 {
            return Some(0);
        }
        let width = i64::from(self.mantissa);
        let least = 1 - self.bias();
        let leading = exponent.saturating_add(i64::from(mantissa.ilog2()));
        if leading > self.bias() + 1 {
            return None;
        }
        // The weight of the last place, and how many bits of the mantissa are below it.
        let place = leading.max(least).saturating_sub(width);
        let shift = place.saturating_sub(exponent);
        let kept = if shift <= 0 {
            mantissa << -shift
        } else if shift > 65 {
            0
        } else {
            let (wide, half) = (u128::from(mantissa), 1u128 << (shift - 1));
            let (kept, rest) = (wide >> shift, wide & ((1 << shift) - 1));
            let up = rest > half || rest == half && (more || kept & 1 == 1);
            kept as u64 + u64::from(up)
        };
        // A carry out of the mantissa steps to the next exponent by itself.
        let bits = if leading < least {
            kept
        } else {
            (((leading - least + 1) as u64) << width) + kept - (1 << width)
        };
        (bits < self.overflow()).then_some(bits)
    }
}

impl Writer<'_> {
    /// An fp16 number from its bits.
    pub(super) fn fp16(&mut self, bits: u16) {
        self.hex_float(bits.into(), FP16);
    }

    /// A bf16 number from its bits.
    pub(super) fn bf16(&mut self, bits: u16) {
        self.hex_float(bits.into(), BF16);
    }

    /// An fp32 number.
    pub(super) fn fp32(&mut self, value: f32) {
        self.hex_float(value.to_bits().into(), FP32);
    }

    /// An fp64 number.
    pub(super) fn fp64(&mut self, value: f64) {
        self.hex_float(value.to_bits(), FP64);
    }

    /// An fp8 E4M3FN number from its bits.
    pub(super) fn fp8_e4m3fn(&mut self, bits: u8) {
        self.hex_float(bits.into(), FP8_E4M3FN);
    }

    /// An fp8 E5M2 number from its bits.
    pub(super) fn fp8_e5m2(&mut self, bits: u8) {
        self.hex_float(bits.into(), FP8_E5M2);
    }

    fn hex_float(&mut self, bits: u64, format: Format) {
        let Format {
            mantissa: width,
            exponent: exponent_width,
            finite,
        } = format;
        let mask = (1u64 << width) - 1;
        let largest = (1u64 << exponent_width) - 1;
        let bias = (largest >> 1) as i64;
        let field = (bits >> width) & largest;
        let mut mantissa = bits & mask;
        if bits >> (width + exponent_width) & 1 == 1 {
            self.push("-");
        }
        if field == largest && (!finite || mantissa == mask) {
            let quiet = if finite { mask } else { 1 << (width - 1) };
            match mantissa {
                0 => self.push("inf"),
                _ if mantissa == quiet => self.push("nan"),
                _ => self.put(format_args!("nan(0x{mantissa:x})")),
            }
            return;
        }
        let mut exponent = field as i64 - bias;
        if field == 0 {
            if mantissa == 0 {
                self.push("0x0p+0");
                return;
            }
            // Subnormal: shift until the leading one stands before the point.
            let shift = mantissa.leading_zeros() - (63 - width);
            mantissa = (mantissa << shift) & mask;
            exponent = 1 - bias - i64::from(shift);
        }
        self.push("0x1");
        if mantissa != 0 {
            // Whole hex digits, then no trailing zeros.
            let digits = width.div_ceil(4);
            let aligned = mantissa << (digits * 4 - width);
            let zeros = aligned.trailing_zeros() / 4;
            let (kept, count) = (aligned >> (zeros * 4), (digits - zeros) as usize);
            self.put(format_args!(".{kept:0count$x}"));
        }
        self.put(format_args!("p{exponent:+}"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::Dialect;
    use super::super::writer::Style;
    use super::*;

    fn text(write: impl FnOnce(&mut Writer<'_>)) -> String {
        Writer::text(Style::whole(Dialect::Program13), write)
    }

    #[test]
    fn fp16_is_spelled_as_in_compiled_models() {
        // unified_palette_2bit.mlmodelc: the lut, pow's exponent, sqrt's epsilon, clip's bounds.
        assert_eq!(text(|w| w.fp16(0xb920)), "-0x1.48p-1");
        assert_eq!(text(|w| w.fp16(0x4000)), "0x1p+1");
        assert_eq!(text(|w| w.fp16(0x0001)), "0x1p-24");
        assert_eq!(text(|w| w.fp16(0xfc00)), "-inf");
        assert_eq!(text(|w| w.fp16(0x70e2)), "0x1.388p+13");
        assert_eq!(text(|w| w.fp16(0x0000)), "0x0p+0");
        // streaming_encoder.mlmodelc, line 114.
        assert_eq!(text(|w| w.fp16(0x7c00)), "inf");
        assert_eq!(text(|w| w.fp16(0x8000)), "-0x0p+0");
    }

    /// `%a` of C99 for normal numbers and zeros, by `f64` arithmetic instead of bit fields.
    fn by_arithmetic(value: f64) -> String {
        let sign = if value.is_sign_negative() { "-" } else { "" };
        let mut rest = value.abs();
        if rest == 0.0 {
            return format!("{sign}0x0p+0");
        }
        let mut exponent = 0;
        while rest >= 2.0 {
            rest /= 2.0;
            exponent += 1;
        }
        while rest < 1.0 {
            rest *= 2.0;
            exponent -= 1;
        }
        rest -= 1.0;
        let mut digits = String::new();
        while rest > 0.0 {
            rest *= 16.0;
            digits.push(char::from(b"0123456789abcdef"[rest as usize]));
            rest -= rest.floor();
        }
        let point = if digits.is_empty() { "" } else { "." };
        format!("{sign}0x1{point}{digits}p{exponent:+}")
    }

    #[test]
    fn every_finite_fp16_and_bf16_agrees_with_arithmetic() {
        for bits in 0..=u16::MAX {
            let value = half::f16::from_bits(bits);
            if value.is_finite() {
                assert_eq!(text(|w| w.fp16(bits)), by_arithmetic(value.to_f64()));
            }
            let value = half::bf16::from_bits(bits);
            if value.is_finite() {
                assert_eq!(text(|w| w.bf16(bits)), by_arithmetic(value.to_f64()));
            }
        }
    }

    #[test]
    fn fp32_and_fp64_are_exact() {
        // silero-vad-unified…mlmodelc and parakeet_eou_preprocessor.mlmodelc hold both of these.
        assert_eq!(text(|w| w.fp32(f32::from_bits(1))), "0x1p-149");
        assert_eq!(
            text(|w| w.fp32(0.089_521_75)),
            by_arithmetic(f64::from(0.089_521_75_f32))
        );
        for value in [1.0, -0.1, 1e-40, f32::MAX, f32::MIN_POSITIVE, 16_777_217.0] {
            assert_eq!(text(|w| w.fp32(value)), by_arithmetic(value.into()));
        }
        for value in [0.1, -1e300, f64::MIN_POSITIVE, f64::MAX, 5e-324] {
            assert_eq!(text(|w| w.fp64(value)), by_arithmetic(value));
        }
    }

    #[test]
    fn fp8_has_the_values_of_the_formats() {
        // The OCP 8-bit floating point tables: largest, smallest normal, smallest subnormal, NaN.
        assert_eq!(text(|w| w.fp8_e4m3fn(0x7e)), by_arithmetic(448.0));
        assert_eq!(text(|w| w.fp8_e4m3fn(0x08)), by_arithmetic(0.015_625));
        assert_eq!(text(|w| w.fp8_e4m3fn(0x01)), by_arithmetic(0.001_953_125));
        assert_eq!(text(|w| w.fp8_e4m3fn(0xff)), "-nan");
        assert_eq!(text(|w| w.fp8_e5m2(0x7b)), by_arithmetic(57344.0));
        assert_eq!(text(|w| w.fp8_e5m2(0x7c)), "inf");
        assert_eq!(text(|w| w.fp8_e5m2(0x7e)), "nan");
        assert_eq!(text(|w| w.fp8_e5m2(0x7d)), "nan(0x1)");
    }

    #[test]
    fn a_nan_keeps_its_sign_and_payload() {
        assert_eq!(text(|w| w.fp16(0x7e00)), "nan");
        assert_eq!(text(|w| w.fp16(0xfe00)), "-nan");
        assert_eq!(text(|w| w.fp16(0x7c01)), "nan(0x1)");
        assert_eq!(
            text(|w| w.fp32(f32::from_bits(0xffc0_0001))),
            "-nan(0x400001)"
        );
        assert_eq!(
            text(|w| w.fp64(f64::from_bits(0x7ff0_0000_0000_0001))),
            "nan(0x1)"
        );
    }
}
