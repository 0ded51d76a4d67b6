//! How arithmetic is modelled: which values are rounded, and where hardware is reported to depart
//! from IEEE 754.
//!
//! The `ANE` model gathers what people have measured or reported of the Apple Neural Engine. It is a
//! model of those reports, not of the hardware: chips differ, the reports come from few hands, and
//! where two of them disagree the more cautious one is modelled.

use crate::ir::DType;

/// What the arithmetic of a run does. Each field is a switch of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Numerics {
    /// Results typed fp16 are rounded to nearest even after each op; sums inside an op are wider.
    pub round_half: bool,
    /// Subnormal fp16 results (below 2^-14) become zero. Reported by ANEForge (pull request 263: an
    /// epsilon of 1e-6 acts as 0); another study sees subnormals kept on the elementwise path.
    pub flush_subnormals: bool,
    /// Sums of products (matmul, linear, conv) that reach this magnitude on the way become infinite
    /// and stay so: 2^15. ANEForge issue 115 measures infinity at about 32 752 on M2 Pro and M5; the
    /// M4/M6 microarchitecture study reads it as a Q15.16 accumulator.
    pub accumulator_limit: Option<f32>,
    /// `reduce_sum` and `reduce_mean` keep their running sum in fp16 (ANEForge `numerics.md`).
    pub half_sums: bool,
    /// Native `softplus` on fp16 gives 0 for arguments above this one: measured as a cliff at about
    /// 10.4 (coremltools issue 2687), which is ln(2^15), where the exp inside of it passes 2^15.
    pub softplus_limit: Option<f32>,
    /// What is typed fp32 is treated as if it were fp16: for a program that is yet to be converted.
    pub narrow_full: bool,
    /// Constants of floats are rounded to fp16, whatever their type and whatever the other switches
    /// say: what the weights alone lose.
    pub half_constants: bool,
}

impl Numerics {
    /// Everything in fp32; integers and bools exact.
    pub const FP32: Self = Self {
        round_half: false,
        flush_subnormals: false,
        accumulator_limit: None,
        half_sums: false,
        softplus_limit: None,
        narrow_full: false,
        half_constants: false,
    };

    /// fp16 results rounded after each op.
    pub const FP16: Self = Self {
        round_half: true,
        ..Self::FP32
    };

    /// fp16 with the reported behaviours of the Neural Engine.
    pub const ANE: Self = Self {
        round_half: true,
        flush_subnormals: true,
        accumulator_limit: Some(32_768.0),
        half_sums: true,
        softplus_limit: Some(10.397_208),
        ..Self::FP32
    };

    /// The same for a program whose fp32 counts as fp16.
    pub fn narrowing_full(self) -> Self {
        Self {
            narrow_full: true,
            ..self
        }
    }

    /// Whether values of this type are fp16 here.
    pub fn is_half(&self, dtype: DType) -> bool {
        dtype == DType::Float16 || (self.narrow_full && dtype == DType::Float32)
    }
}
