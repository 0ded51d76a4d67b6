//! safe-rmsnorm: a norm by root mean square no longer squares fp16 numbers as they are.

use serde::{Deserialize, Serialize};

use crate::analysis::norm::{self, Form, Found, Kind, Norm};
use crate::ir::{Binding, DType, NodeId, ValueId};
use crate::ops::Opset;
use crate::pass::options::{self, OptionError, OptionMap};
use crate::pass::{Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Target};

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

impl Pass for SafeRmsNorm {
    fn meta(&self) -> &'static Meta {
        &META
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
            Form::MaxScaledWrongly => self.rewrite(block, &found),
            Form::Plain => match found.square {
                Some((_, DType::Float16)) => self.rewrite(block, &found),
                Some((square, _)) => {
                    Attempt::missed(square, "the squares are fp32, where they do not overflow")
                }
                None => Attempt::NoMatch,
            },
        }
    }
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
