//! power-spectrum-log: the logarithm of a power spectrum that is computed in fp16.

use crate::analysis::range;
use crate::ir::{DType, NodeId, Operation, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Rule, Severity, Target,
};

/// The check.
pub(super) struct PowerSpectrumLog;

static META: Meta = Meta {
    id: "power-spectrum-log",
    family: Family::Numerics,
    summary: "the logarithm of a power spectrum in fp16",
    exactness: Exactness::None,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const POWER_SPECTRUM_LOG: Rule = Rule {
    id: "power-spectrum-log",
    summary: META.summary,
    why: "Squares of amplitudes span more than fp16 does: from 256 on they are infinite, below 2.4e-4 \
          they are 0. FluidAudio had to leave the spectrum of SenseVoice in fp32 on the CPU (pull \
          request 648); in fp16 it was NaN on CPU and GPU.",
    help: "Compute the spectrum in fp32 or outside of the model, or scale the signal and take the \
           logarithm of the scaled amplitude.",
    evidence: META.evidence,
    sources: &["https://github.com/FluidInference/FluidAudio/pull/648"],
    severity: Severity::Info.everywhere(),
    catalog: &[],
};

/// The smallest number whose square is infinite in fp16.
const SQUARE_OVERFLOWS: f64 = 255.97;

/// How many operations a walk passes.
const MAX_DEPTH: usize = 16;

impl Pass for PowerSpectrumLog {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[POWER_SPECTRUM_LOG]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(find))
    }
}

fn find(block: &Block<'_>, node: NodeId) -> Attempt {
    block
        .op_of_type(node, "log")
        .and_then(|op| op.value("x"))
        .and_then(|x| spectrum(block, x))
        .map_or(Attempt::NoMatch, |what| {
            POWER_SPECTRUM_LOG.found(what).into()
        })
}

/// What a logarithm is taken of, if that is a power spectrum in fp16.
fn spectrum(block: &Block<'_>, mut value: ValueId) -> Option<String> {
    let mut bands = None;
    for _ in 0..MAX_DEPTH {
        let op = block.op(value.node)?;
        match op.op_type() {
            // The bands of a filter bank.
            "matmul" | "linear" | "conv" if bands.is_none() => {
                bands = Some(op.op_type());
                value = data(block, op)?;
            }
            "add" | "maximum" | "mul" | "real_div" => {
                if let Some(squared) = two_squares(block, op) {
                    return is_wide(block, value, squared).then(|| match bands {
                        Some(bands) => format!("of sums of two fp16 squares, behind `{bands}`"),
                        None => "of sums of two fp16 squares".to_owned(),
                    });
                }
                if let (Some(squared), Some(bands)) = (square(block, op), bands) {
                    return is_wide(block, value, squared)
                        .then(|| format!("of fp16 squares, behind `{bands}`"));
                }
                value = data(block, op)?;
            }
            "square" | "pow" => {
                let squared = square(block, op)?;
                let bands = bands?;
                return is_wide(block, value, squared)
                    .then(|| format!("of fp16 squares, behind `{bands}`"));
            }
            "clip" | "cast" | "identity" | "reshape" | "expand_dims" | "squeeze" | "transpose"
            | "slice_by_index" | "slice_by_size" | "sqrt" => value = op.value("x")?,
            _ => return None,
        }
    }
    None
}

/// The operand that is no constant, if there is one of each.
fn data(block: &Block<'_>, op: &Operation) -> Option<ValueId> {
    let is_weight = |value: ValueId| {
        block.constant(value).is_some()
            || block
                .op(value.node)
                .is_some_and(|op| op.op_type().starts_with("constexpr_"))
    };
    match (op.value("x"), op.value("y")) {
        (Some(x), Some(y)) if is_weight(x) != is_weight(y) => {
            Some(if is_weight(x) { y } else { x })
        }
        (Some(one), None) | (None, Some(one)) => Some(one),
        _ => None,
    }
}

/// What an operation squares.
fn square(block: &Block<'_>, op: &Operation) -> Option<ValueId> {
    let x = op.value("x")?;
    match op.op_type() {
        "square" => Some(x),
        "mul" if op.value("y") == Some(x) => Some(x),
        "pow" if block.uniform_of(op, "y")?.value == 2.0 => Some(x),
        _ => None,
    }
}

/// One of the two values whose squares an operation adds.
fn two_squares(block: &Block<'_>, op: &Operation) -> Option<ValueId> {
    if op.op_type() != "add" {
        return None;
    }
    let of = |side| {
        let value = op.value(side)?;
        square(block, block.op(value.node)?)
    };
    of("x").and(of("y"))
}

/// Whether squares are fp16, and of numbers that may be 256.
fn is_wide(block: &Block<'_>, squares: ValueId, squared: ValueId) -> bool {
    block.dtype(squares) == Some(DType::Float16)
        && range::of(block, squared).magnitude() >= SQUARE_OVERFLOWS
}
