//! safe-rmsnorm: a norm by root mean square no longer squares fp16 numbers as they are.

use serde::{Deserialize, Serialize};

use crate::analysis::norm::{self, Form, Found, Kind, Norm};
use crate::analysis::range;
use crate::ir::{Binding, DType, NodeId, ValueId};
use crate::ops::Opset;
use crate::pass::options::{self, OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Found as Finding, Matcher, Meta, Pass, Rule,
    Severity, Target,
};

mod step;

/// The pass.
pub(super) struct SafeRmsNorm;

static META: Meta = Meta {
    id: "safe-rmsnorm",
    family: Family::Numerics,
    summary: "x·rsqrt(mean(x²) + e) in fp16 becomes layer_norm of x beside -x, or is scaled first",
    exactness: Exactness::Real,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &[],
    default: false,
    after: &["pow-to-mul", "fold-rsqrt-epsilon"],
    page: include_str!("README.md"),
};

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    /// What the norm becomes.
    form: Choice,
    /// The k of the form `prescale`: x is divided by 2^k.
    prescale_bits: u32,
}

/// What a norm becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Choice {
    LayerNorm,
    MaxScale,
    Prescale,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            form: Choice::LayerNorm,
            prescale_bits: 6,
        }
    }
}

/// The largest k of the form `prescale`: 2^-14 is the smallest normal fp16 number.
const MAX_BITS: u32 = 14;

const RMSNORM_OVERFLOW: Rule = Rule {
    id: "rmsnorm-overflow",
    summary: "an RMS norm that squares fp16 numbers as they are",
    why: "The square of 256 is infinite in fp16; the mean of the row is then infinite, its reciprocal \
          root 0, and the whole row becomes 0, without a NaN to see. ANEMLL reports it of the Neural \
          Engine (coremltools issue 2585), executorch of Llama 1B, whose text degenerates.",
    help: "safe-rmsnorm writes it with layer_norm of x beside -x, or scales x first.",
    evidence: META.evidence,
    sources: &[
        "https://github.com/apple/coremltools/issues/2585",
        "https://github.com/pytorch/executorch/pull/19523",
    ],
    severity: Severity::Warning.everywhere(),
    catalog: &[],
};

const VARIANCE_OVERFLOW: Rule = Rule {
    id: "variance-overflow",
    summary: "a layer norm or group norm by hand that squares fp16 numbers as they are",
    why: "The square of 256 is infinite in fp16; the variance is then infinite and the row becomes 0. \
          MLX measured it of ±512 in half precision; nobody has published it of Core ML, where the \
          pattern is the same.",
    help: "safe-rmsnorm makes it one layer_norm.",
    evidence: Evidence::Measured,
    sources: &[
        "https://github.com/ml-explore/mlx/issues/4228",
        "https://github.com/neuroneural/brainchop-cli/pull/56",
    ],
    severity: Severity::Warning.everywhere(),
    catalog: &[],
};

const RMSNORM_RESCALE: Rule = Rule {
    id: "rmsnorm-rescale",
    summary: "an RMS norm of x/max|x| whose epsilon is not divided by the square of it",
    why: "The epsilon in effect is e·max|x|², and a row of zeros is 0/0, NaN. coremltools writes \
          torch.rms_norm so: 4 to 6 % in the L2 norm of the output of a model of 380 million \
          parameters, even in fp32 on the CPU (coremltools issue 2821).",
    help: "safe-rmsnorm makes it a norm with the epsilon that was asked for.",
    evidence: Evidence::Measured,
    sources: &[
        "https://github.com/apple/coremltools/issues/2821",
        "https://github.com/apple/coremltools/pull/2822",
    ],
    severity: Severity::Warning.everywhere(),
    catalog: &[],
};

/// The smallest number whose square is infinite in fp16, as 65 520 and more are.
const SQUARE_OVERFLOWS: f64 = 255.97;

/// How many operations are looked at to find out how large x can be.
const NEAR: usize = 16;

impl Pass for SafeRmsNorm {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[RMSNORM_OVERFLOW, RMSNORM_RESCALE, VARIANCE_OVERFLOW]
    }

    fn options(&self) -> OptionMap {
        options::defaults::<Options>()
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        let options: Options = options::read(META.id, options)?;
        if !(1..=MAX_BITS).contains(&options.prescale_bits) {
            let why = format!(
                "option `prescale_bits`: {} is not between 1 and {MAX_BITS}",
                options.prescale_bits
            );
            return Err(OptionError { pass: META.id, why });
        }
        Ok(Box::new(Norms(options)))
    }
}

struct Norms(Options);

impl Matcher for Norms {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let found = match norm::at(block, node) {
            Found::Nothing => return Attempt::NoMatch,
            Found::Nearly(at, why) => return Attempt::missed(at, why),
            Found::Norm(norm) => norm,
        };
        match found.form {
            Form::Whole => Attempt::NoMatch,
            Form::Mirrored | Form::MaxScaled => Attempt::NoEffect,
            Form::MaxScaledWrongly => {
                let finding = RMSNORM_RESCALE.found(format!(
                    "{} is added to the mean of (x / max|x|)², as if x had not been divided",
                    found
                        .epsilon
                        .map_or_else(|| "an epsilon".to_owned(), |e| format!("{e:.3e}")),
                ));
                self.rewrite(block, &found).with(finding)
            }
            Form::Plain => match found.square {
                Some((_, DType::Float16)) => match self.rewrite(block, &found) {
                    Attempt::NoEffect => Attempt::NoEffect,
                    attempt => match overflow(block, &found) {
                        Some(finding) => attempt.with(finding),
                        None => attempt,
                    },
                },
                Some((square, _)) => {
                    Attempt::missed(square, "the squares are fp32, where they do not overflow")
                }
                None => Attempt::NoMatch,
            },
        }
    }
}

/// What the linter says of a norm that squares in fp16; `None` if what it squares is known to be small.
fn overflow(block: &Block<'_>, norm: &Norm) -> Option<Finding> {
    if range::near(block, norm.centred, NEAR).magnitude() < SQUARE_OVERFLOWS
        || is_logarithm(block, norm.centred)
    {
        return None;
    }
    let dims = &block.tensor(norm.centred)?.dims;
    let mut sizes = norm.axes.iter().map(|axis| dims.get(*axis)?.size());
    let size = sizes.try_fold(1u64, |product, size| product.checked_mul(size?));
    let row = size.map_or_else(String::new, |size| format!(" {size}"));
    let (rule, message, of) = match norm.kind {
        Kind::Rms => {
            let message = format!("averages{row} squares of fp16 in one row");
            (RMSNORM_OVERFLOW, message, "x")
        }
        Kind::Layer => {
            let message = format!("averages{row} squared differences of fp16 in one row");
            (VARIANCE_OVERFLOW, message, "the difference")
        }
    };
    let Some(peak) = range::measured(block, norm.centred) else {
        return Some(rule.found(message));
    };
    let (severity, what) = if peak >= SQUARE_OVERFLOWS {
        (Severity::Error, "and the square of 256 is infinite")
    } else {
        (Severity::Info, "whose square is finite")
    };
    let message = format!("{message}; {of} was measured up to {peak:.1}, {what}");
    Some(rule.found(message).severity(severity))
}

/// Whether a value is a logarithm, or one less its mean. That of an fp16 number is between -17.4 and
/// 11.1; that of 0, -infinity, is not made by a square, and `lost-guard` is about it.
fn is_logarithm(block: &Block<'_>, value: ValueId) -> bool {
    let minuend = block
        .producer_of_type(value, "sub")
        .and_then(|sub| sub.value("x"));
    block
        .producer_of_type(minuend.unwrap_or(value), "log")
        .is_some()
}

impl Norms {
    fn rewrite(&self, block: &Block<'_>, norm: &Norm) -> Attempt {
        let (node, result) = (norm.root, ValueId::first(norm.root));
        let (Some(epsilon), Some(ty), Some(opset)) =
            (norm.epsilon, block.tensor(result), block.opset)
        else {
            return Attempt::missed(node, "the opset or the type of the result is not known");
        };
        if block.tensor(norm.centred) != Some(ty) {
            let why = "the result has another type than what is normalized";
            return Attempt::missed(node, why);
        }
        if self.0.form == Choice::Prescale && is_prescaled(block, norm.centred) {
            return Attempt::NoEffect;
        }
        let step = match step::plan(block, norm, epsilon, ty, opset, self.0) {
            Ok(step) => step,
            Err(why) => return Attempt::missed(node, why),
        };
        let found = match (norm.form, norm.kind) {
            (Form::MaxScaledWrongly, _) => {
                "a norm scaled by max|x|, whose epsilon is not divided by its square,"
            }
            (_, Kind::Layer) => "a layer norm that squares in fp16",
            _ => "an RMS norm that squares in fp16",
        };
        let what = format!("{found} becomes {}", step.text());
        let (gain, rank, dtype) = (norm.gain.clone(), ty.dims.len(), ty.dtype);
        let axes = norm.axes.clone();
        Attempt::matched(what, move |edit| {
            let mut new = step.write(edit, &axes, rank, dtype)?;
            if let Some(gain) = gain {
                new = edit.op("mul", &[("x", Binding::Value(new)), ("y", gain)])?;
            }
            edit.replace(result, new)
        })
    }
}

/// Whether the value is another one times a power of two below 1, as the form `prescale` makes it.
fn is_prescaled(block: &Block<'_>, value: ValueId) -> bool {
    let Some(product) = block.producer_of_type(value, "mul") else {
        return false;
    };
    let factors = ["x", "y"].map(|side| block.uniform_of(product, side));
    factors.into_iter().flatten().any(|factor| {
        let bits = -factor.value.log2();
        bits.fract() == 0.0 && (1.0..=f64::from(MAX_BITS)).contains(&bits)
    })
}
