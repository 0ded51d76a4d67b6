//! bad-scale: scales of quantized weights that are zero, subnormal, infinite or NaN.

use std::borrow::Cow;
use std::num::FpCategory;

use half::f16;

use crate::ir::{DType, NodeId, Value};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Rule, Severity, Target,
};

/// The check.
pub(super) struct BadScale;

static META: Meta = Meta {
    id: "bad-scale",
    family: Family::Quantization,
    summary: "a scale of quantized weights that is zero, subnormal, infinite or NaN",
    exactness: Exactness::None,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Documented,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const BAD_SCALE: Rule = Rule {
    id: "bad-scale",
    summary: META.summary,
    why: "A weight is (number - zero point) * scale: with a scale of NaN or infinity it is no number, \
          with 0 the whole channel is gone, and a subnormal scale is 0 where hardware flushes. A \
          quantizer that divides by the largest weight makes such scales of a channel of zeros.",
    help: "Quantize again, with the scale of a channel of zeros set to 1.",
    evidence: META.evidence,
    sources: &["https://github.com/john-rocky/CoreML-LLM"],
    severity: Severity::Error.everywhere(),
    catalog: &[],
};

/// No more scales of one tensor are looked at: of a block-wise quantized table there are millions.
const MOST: usize = 1 << 16;

impl Pass for BadScale {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[BAD_SCALE]
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
    if !matches!(
        op.op_type(),
        "constexpr_affine_dequantize"
            | "constexpr_blockwise_shift_scale"
            | "dequantize"
            | "quantize"
    ) {
        return Attempt::NoMatch;
    }
    // The older operations hold it as an attribute.
    let scale = block
        .constant_of(op, "scale")
        .or_else(|| op.attributes().get("scale"));
    let Some((dtype, bytes)) = scale.and_then(|scale| data(block, scale)) else {
        return Attempt::NoMatch;
    };
    let Some(size) = dtype.bits().map(|bits| bits as usize / 8) else {
        return Attempt::NoMatch;
    };
    let mut bad = bytes
        .chunks_exact(size.max(1))
        .take(MOST)
        .enumerate()
        .filter_map(|(index, element)| Some((index, fault(element, dtype)?)));
    let Some((index, fault)) = bad.next() else {
        return Attempt::NoMatch;
    };
    let more = match bad.count() {
        0 => String::new(),
        count => format!(", and {count} more are bad"),
    };
    BAD_SCALE
        .found(format!("scale {index} is {fault}{more}"))
        .parameter("scale")
        .into()
}

/// The element type and the bytes of a constant, if they are there.
fn data<'v>(block: &Block<'v>, value: &'v Value) -> Option<(DType, Cow<'v, [u8]>)> {
    Some((value.tensor_type()?.dtype, block.bytes(value)?))
}

/// What is wrong with a scale.
fn fault(element: &[u8], dtype: DType) -> Option<&'static str> {
    let category = match dtype {
        DType::Float16 => f16::from_le_bytes(element.try_into().ok()?).classify(),
        DType::Float32 => f32::from_le_bytes(element.try_into().ok()?).classify(),
        _ => return None,
    };
    match category {
        FpCategory::Nan => Some("NaN"),
        FpCategory::Infinite => Some("infinite"),
        FpCategory::Zero => Some("0"),
        FpCategory::Subnormal => Some("subnormal"),
        FpCategory::Normal => None,
    }
}
