//! round-large: `round` of fp16 numbers that may be 1024 or more.

use crate::analysis::range;
use crate::ir::{DType, NodeId, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Rule, Severity, Target,
};

/// The check.
pub(super) struct RoundLarge;

static META: Meta = Meta {
    id: "round-large",
    family: Family::Numerics,
    summary: "round of fp16 numbers that may be 1024 or more",
    exactness: Exactness::None,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const ROUND_LARGE: Rule = Rule {
    id: "round-large",
    summary: META.summary,
    why: "ANEForge measured that the Neural Engine corrupts what `round` makes of numbers from 1024 on \
          (pull request 116). In fp16 they have a step of 1 or more there and need no rounding.",
    help: "Bound the operand with clip, or take select(abs(x) < 1024, round(x), x).",
    evidence: META.evidence,
    sources: &["https://github.com/sbryngelson/ANEForge/pull/116"],
    severity: &[
        (Target::CoreMl, Severity::Info),
        (Target::AneDirect, Severity::Warning),
    ],
    catalog: &[],
};

/// From here on `round` was seen to fail: ANEForge pull request 116 (measured).
const FIRST: f64 = 1024.0;

impl Pass for RoundLarge {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[ROUND_LARGE]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(find))
    }
}

fn find(block: &Block<'_>, node: NodeId) -> Attempt {
    let Some(op) = block.op_of_type(node, "round") else {
        return Attempt::NoMatch;
    };
    if block.dtype(ValueId::first(node)) != Some(DType::Float16) {
        return Attempt::NoMatch;
    }
    let Some(x) = op.value("x") else {
        return Attempt::NoMatch;
    };
    let range = range::of(block, x);
    if range.magnitude() < FIRST {
        return Attempt::NoMatch;
    }
    if range.is_bounded() {
        let what = format!(
            "`round` of fp16 numbers from {} to {}",
            range.low, range.high
        );
        return ROUND_LARGE.found(what).severity(Severity::Warning).into();
    }
    if let Some(peak) = range::measured(block, x) {
        let severity = if peak < FIRST {
            Severity::Info
        } else {
            Severity::Warning
        };
        let what = format!("`round` of fp16 numbers that were measured up to {peak:.1}");
        return ROUND_LARGE.found(what).severity(severity).into();
    }
    ROUND_LARGE
        .found("`round` of fp16 numbers of which it is not known that they are below 1024")
        .into()
}
