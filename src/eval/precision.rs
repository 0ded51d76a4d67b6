//! The precision modes of the interpreter.

use crate::ops::Numerics;

/// How the interpreter computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Everything in fp32, whatever the declared type; integers and bools exact.
    #[default]
    Fp32,
    /// Results typed fp16 are rounded to nearest even after each op; products and sums inside an op
    /// accumulate in fp32.
    Fp16,
    /// fp16 with the behaviours that are reported of the Apple Neural Engine: a model of reports,
    /// not of the hardware.
    Ane,
}

impl Precision {
    /// The switches of this mode.
    pub fn numerics(self) -> Numerics {
        match self {
            Self::Fp32 => Numerics::FP32,
            Self::Fp16 => Numerics::FP16,
            Self::Ane => Numerics::ANE,
        }
    }

    /// The mode's name.
    pub fn word(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Fp16 => "fp16",
            Self::Ane => "ane",
        }
    }
}
