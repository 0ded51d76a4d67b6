//! wide-reduction: a sum of so many fp16 numbers that fp16 cannot count them.

use crate::ir::{DType, NodeId, Operation, Slot, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Rule, Severity, Target,
};

/// The check.
pub(super) struct WideReduction;

static META: Meta = Meta {
    id: "wide-reduction",
    family: Family::Numerics,
    summary: "a sum of more fp16 numbers than fp16 can count",
    exactness: Exactness::None,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const WIDE_REDUCTION: Rule = Rule {
    id: "wide-reduction",
    summary: META.summary,
    why: "From 2048 on fp16 numbers are 2 apart: a running sum of ones stays at 2048, one of 1/120 at \
          32. ANEForge measured that sums of integers above 2048 are not exact on the Neural Engine. A \
          phase that is a running sum drifts: KittenTTS and StyleTTS2 had to compute it in pieces or in \
          fp32 to sound right.",
    help: "Sum in pieces, or in fp32; restart the sum of a phase at each frame, modulo one period.",
    evidence: META.evidence,
    sources: &[
        "https://github.com/FluidInference/mobius/pull/33",
        "https://github.com/FluidInference/mobius/pull/46",
        "https://github.com/sbryngelson/ANEForge",
    ],
    severity: Severity::Info.everywhere(),
    catalog: &[],
};

/// The largest number up to which fp16 has all integers. Documented by IEEE 754.
const MOST: u64 = 2048;

/// How many operations are looked at between a running sum and a sine.
const NEAR: usize = 24;

impl Pass for WideReduction {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[WIDE_REDUCTION]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(find))
    }
}

fn find(block: &Block<'_>, node: NodeId) -> Attempt {
    let Some(op) = block.op(node) else {
        return Attempt::NoMatch;
    };
    let op_type = op.op_type();
    if !matches!(
        op_type,
        "reduce_sum" | "reduce_mean" | "reduce_sum_square" | "reduce_l1_norm" | "cumsum"
    ) {
        return Attempt::NoMatch;
    }
    let terms = match terms(block, op) {
        Some(terms) if terms > MOST => terms,
        _ => return Attempt::NoMatch,
    };
    let found = WIDE_REDUCTION.found(format!("`{op_type}` adds {terms} fp16 numbers"));
    let sine = (op_type == "cumsum").then(|| sine(block, ValueId::first(node)));
    match sine.flatten() {
        Some(sine) => WIDE_REDUCTION
            .found(format!(
                "`cumsum` adds {terms} fp16 numbers for the phase of a `{sine}`"
            ))
            .severity(Severity::Warning)
            .into(),
        None => found.into(),
    }
}

/// How many fp16 numbers are added up to one; `None` if they are no fp16 or their number is not known.
fn terms(block: &Block<'_>, op: &Operation) -> Option<u64> {
    let ty = block.tensor(op.value("x")?)?;
    if ty.dtype != DType::Float16 {
        return None;
    }
    let rank = i64::try_from(ty.dims.len()).ok()?;
    let axes = match (op.op_type(), op.argument("axes")) {
        ("cumsum", _) => vec![if op.argument("axis").is_some() {
            block.int_of(op, "axis")?
        } else {
            0
        }],
        (_, Some(_)) => block.ints_of(op, "axes")?,
        (_, None) => (0..rank).collect(),
    };
    axes.into_iter().try_fold(1u64, |terms, axis| {
        let axis = if axis < 0 { axis + rank } else { axis };
        let size = ty.dims.get(usize::try_from(axis).ok()?)?.size()?;
        terms.checked_mul(size)
    })
}

/// The sine or cosine that reads a value, behind products, sums and what moves elements.
fn sine<'a>(block: &Block<'a>, value: ValueId) -> Option<&'a str> {
    let mut pending = vec![value];
    let mut left = NEAR;
    while let Some(value) = pending.pop() {
        for site in block.graph.uses(value) {
            left = left.checked_sub(1)?;
            let Some(op) = block.op(site.user) else {
                continue;
            };
            if !matches!(site.slot, Slot::Argument { .. }) {
                continue;
            }
            match op.op_type() {
                "sin" | "cos" => return Some(op.op_type()),
                "mul"
                | "add"
                | "sub"
                | "real_div"
                | "cast"
                | "identity"
                | "reshape"
                | "transpose"
                | "expand_dims"
                | "squeeze"
                | "slice_by_index"
                | "slice_by_size"
                | "upsample_nearest_neighbor"
                | "upsample_bilinear"
                | "resize_bilinear"
                | "resize_nearest_neighbor"
                | "tile" => pending.push(ValueId::first(site.user)),
                _ => {}
            }
        }
    }
    None
}
