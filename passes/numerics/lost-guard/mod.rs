//! lost-guard: an epsilon that is to keep a logarithm or a division away from 0, and is too small to.

use crate::analysis::range;
use crate::ir::{DType, NodeId, Operation};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Found, Matcher, Meta, Pass, Rule, Severity, Target,
};

mod guard;

use guard::{Guard, is_of_squares, is_sum_of_exponentials};

/// The check.
pub(super) struct LostGuard;

static META: Meta = Meta {
    id: "lost-guard",
    family: Family::Numerics,
    summary: "an epsilon that is to keep a logarithm or a division away from 0, and is too small to",
    exactness: Exactness::None,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const LOST_GUARD: Rule = Rule {
    id: "lost-guard",
    summary: META.summary,
    why: "In fp16 a number below 2^-25 is 0, and the Neural Engine takes those below 2^-14 for 0 as \
          well: nothing is left between the operand and 0. coremlit measured ten released models with \
          such guards: every zero probability became -45440, word timings moved by up to 881 ms; an \
          embedding had a cosine of 0.035 to the right one, in a program of fp32.",
    help: "Add at least 6.2e-5 (2^-14), or scale the operand up before; for norms keep the epsilon in a \
           parameter of fp32, which opsets from iOS 17 on allow.",
    evidence: META.evidence,
    sources: &[
        "https://github.com/findit-studio/coremlit",
        "https://github.com/sbryngelson/ANEForge/pull/263",
    ],
    severity: Severity::Warning.everywhere(),
    catalog: &[],
};

/// The smallest positive number of fp16, 2^-24. Smaller ones round to it or to 0. Documented by IEEE
/// 754; coremlit takes it as the limit for all guards.
const SMALLEST: f64 = 5.960_464_477_539_063e-8;

/// The smallest normal number of fp16, 2^-14. Smaller ones are 0 for the Neural Engine: measured by
/// ANEForge (pull request 263), and by CoreML-LLM.
const SMALLEST_NORMAL: f64 = 6.103_515_625e-5;

impl Pass for LostGuard {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[LOST_GUARD]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(find))
    }
}

/// An operation that has to be kept away from 0.
struct Site {
    /// The parameter that must not be 0.
    operand: &'static str,
    /// The epsilon that the operation has if it is not given; `None` if it has no such parameter.
    default: Option<f64>,
    /// What it is.
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// A logarithm, which is guarded or wrong.
    Log,
    /// A reciprocal or a quotient, which may need no guard.
    Reciprocal,
    /// A whole norm.
    Norm,
}

fn site(block: &Block<'_>, op: &Operation) -> Option<Site> {
    let (operand, default, kind) = match op.op_type() {
        "log" => ("x", Some(1e-45), Kind::Log),
        "rsqrt" => ("x", Some(1e-12), Kind::Reciprocal),
        "inverse" => ("x", Some(1e-4), Kind::Reciprocal),
        "real_div" => ("y", None, Kind::Reciprocal),
        "pow" if block.uniform_of(op, "y")?.value < 0.0 => ("x", None, Kind::Reciprocal),
        "layer_norm" | "instance_norm" => ("x", Some(1e-5), Kind::Norm),
        "batch_norm" => ("variance", Some(1e-5), Kind::Norm),
        "l2_norm" => ("x", Some(1e-6), Kind::Norm),
        _ => return None,
    };
    Some(Site {
        operand,
        default,
        kind,
    })
}

fn find(block: &Block<'_>, node: NodeId) -> Attempt {
    let found = block
        .op(node)
        .and_then(|op| Some((op, site(block, op)?)))
        .and_then(|(op, site)| judge(block, op, &site));
    found.map_or(Attempt::NoMatch, Attempt::from)
}

fn judge(block: &Block<'_>, op: &Operation, site: &Site) -> Option<Found> {
    let result = op.results().first()?;
    let dtype = result.ty.as_ref()?.as_tensor()?.dtype;
    if !matches!(dtype, DType::Float16 | DType::Float32) {
        return None;
    }
    let operand = op.value(site.operand)?;
    // What a norm divides by is inside of it.
    let is_inside = site.kind == Kind::Norm && op.op_type() != "batch_norm";
    let added = if is_inside {
        None
    } else {
        Guard::of(block, operand)
    };
    let own = match op.argument("epsilon") {
        Some(_) => match block.uniform_of(op, "epsilon") {
            Some(epsilon) => Some(epsilon.value),
            None => return Some(unreadable()),
        },
        None => site.default,
    };
    if own.is_none() && added.is_none() {
        return None;
    }
    let floor = added.as_ref().map_or(0.0, |guard| guard.constant);
    let effective = own.unwrap_or(0.0).max(floor);
    if effective >= SMALLEST_NORMAL {
        return None;
    }
    let is_norm = site.kind == Kind::Norm || is_of_squares(block, operand);
    let range = match &added {
        // Nothing bounds the squares of a norm from below but its epsilon.
        _ if is_norm && op.op_type() != "batch_norm" => range::Range::ANY,
        // A root of it is larger, but 0 if what is subnormal is.
        Some(guard) => range::of(block, guard.value),
        None => range::of(block, operand),
    };
    let is_away_from_zero = range.low >= SMALLEST_NORMAL || range.high <= -SMALLEST_NORMAL;
    if is_away_from_zero || is_told_elsewhere(block, op, site.kind) {
        return None;
    }
    // What a whole norm does inside is not known, and nobody has seen it fail with such an epsilon.
    if site.kind == Kind::Norm && effective >= SMALLEST {
        return None;
    }
    // A logarithm of something that nobody guards, and that may never come near 0.
    let is_open = added.is_none() && range.low < 0.0 && !is_norm;
    if is_open && site.kind == Kind::Reciprocal {
        return None;
    }
    let is_half = dtype == DType::Float16 || added.as_ref().is_some_and(|guard| guard.is_half);
    let severity = severity(effective, is_half, is_norm, is_open)?;
    let what = message(op, dtype, effective, severity, is_open);
    let found = LOST_GUARD.found(what).severity(severity);
    Some(if op.argument("epsilon").is_some() && floor < effective {
        found.parameter("epsilon")
    } else {
        found
    })
}

/// How bad a guard of this size is; `None` if it is nothing to speak of.
fn severity(effective: f64, is_half: bool, is_norm: bool, is_open: bool) -> Option<Severity> {
    let is_lost = effective < SMALLEST;
    if is_open {
        return (is_half && is_lost).then_some(Severity::Info);
    }
    // A norm divides by 0 for rows of equal numbers only.
    match (is_half, is_lost, is_norm) {
        (true, true, false) => Some(Severity::Error),
        (true, true, true) | (true, false, false) | (false, true, false) => Some(Severity::Warning),
        (true, false, true) | (false, false, false) => Some(Severity::Info),
        (false, _, true) => None,
    }
}

fn message(
    op: &Operation,
    dtype: DType,
    effective: f64,
    severity: Severity,
    is_open: bool,
) -> String {
    let op_type = op.op_type();
    if is_open {
        return format!(
            "nothing but {effective:.3e} keeps the {dtype} operand of `{op_type}` away from 0"
        );
    }
    let limit = if effective < SMALLEST {
        "below the smallest number of fp16, 5.96e-8"
    } else {
        "below the smallest normal number of fp16, 6.10e-5"
    };
    let program = match (dtype, severity) {
        (DType::Float32, Severity::Warning | Severity::Info) => {
            "; the program is fp32, as long as nothing runs it in fp16"
        }
        _ => "",
    };
    format!("the guard of `{op_type}` is {effective:.3e}, {limit}{program}")
}

fn unreadable() -> Found {
    LOST_GUARD
        .found("its epsilon cannot be read")
        .parameter("epsilon")
        .severity(Severity::Info)
}

/// Whether another rule says the same: `log-softmax` and `logsumexp`.
fn is_told_elsewhere(block: &Block<'_>, op: &Operation, kind: Kind) -> bool {
    kind == Kind::Log
        && op.value("x").is_some_and(|x| {
            let x = guard::behind(block, x);
            block.producer_of_type(x, "softmax").is_some() || is_sum_of_exponentials(block, x)
        })
}
