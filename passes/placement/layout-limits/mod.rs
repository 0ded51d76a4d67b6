//! layout-limits: padding, slices and transposes that the Neural Engine does not run, or twice.

use crate::analysis::survey::{Survey, grouped};
use crate::ir::{NodeId, Operation, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Block, Evidence, Exactness, Family, Found, Matcher, Meta, Pass, Rule, Severity, Target,
};

/// The check.
pub(super) struct LayoutLimits;

static META: Meta = Meta {
    id: "layout-limits",
    family: Family::Placement,
    summary: "padding and slices that the Neural Engine does not run, and transposes in a row",
    exactness: Exactness::None,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Reported,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const PAD_MODE: Rule = Rule {
    id: "pad-mode",
    summary: "padding with reflected or repeated elements, or by less than nothing",
    why: "The Neural Engine's compiler has messages that refuse all modes but constant, and negative \
          padding; such a pad runs on another device.",
    help: "Pad with constants where the edge does not matter; cut with a slice.",
    evidence: Evidence::Reported,
    sources: &[],
    severity: Severity::Info.everywhere(),
    catalog: &[],
};

const CHANNEL_PAD: Rule = Rule {
    id: "channel-pad",
    summary: "padding of another axis than the last two",
    why: "The Neural Engine's compiler has a message that refuses to pad channels or batches; such a pad \
          runs on another device.",
    help: "Write it as a concat with a constant.",
    evidence: Evidence::Reported,
    sources: &[],
    severity: Severity::Info.everywhere(),
    catalog: &[],
};

const NEGATIVE_STRIDE: Rule = Rule {
    id: "negative-stride-slice",
    summary: "a slice that runs backwards",
    why: "Core ML knows the reason \"invalid negative step\" for which the Neural Engine refuses a slice.",
    help: "Use reverse, and slice forwards.",
    evidence: Evidence::Reported,
    sources: &[],
    severity: Severity::Info.everywhere(),
    catalog: &[],
};

const TRANSPOSED_PAIRS: Rule = Rule {
    id: "transposed-pairs",
    summary: "a transpose of a transpose",
    why: "Each transpose moves all of the data, and one is enough, or none if they cancel. Apple's advice \
          for the Neural Engine is to move data as little as possible.",
    help: "remove-noops takes out two that cancel; make one of others where the model is written.",
    evidence: Evidence::Documented,
    sources: &["https://github.com/apple/ml-ane-transformers"],
    severity: Severity::Info.everywhere(),
    catalog: &[],
};

impl Pass for LayoutLimits {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[PAD_MODE, CHANNEL_PAD, NEGATIVE_STRIDE, TRANSPOSED_PAIRS]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(Survey::new(look)))
    }
}

fn look(block: &Block<'_>) -> Vec<(NodeId, Found)> {
    let mut all = Vec::new();
    for (node, op) in block.graph.ops() {
        let findings = match op.op_type() {
            "pad" => pad(block, node, op),
            "slice_by_index" => slice(block, op).into_iter().collect(),
            "transpose" => transpose(block, op).into_iter().collect(),
            _ => continue,
        };
        all.extend(findings.into_iter().map(|found| (node, found)));
    }
    grouped(all)
}

fn pad(block: &Block<'_>, node: NodeId, op: &Operation) -> Vec<Found> {
    let mut findings = Vec::new();
    let amounts = block.ints_of(op, "pad").unwrap_or_default();
    let mode = block.constant_of(op, "mode").and_then(|mode| mode.as_str());
    if let Some(mode) = mode.filter(|mode| *mode != "constant") {
        let found = PAD_MODE.found(format!("it pads in mode `{mode}`"));
        findings.push(found.parameter("mode"));
    } else if amounts.iter().any(|amount| *amount < 0) {
        let found = PAD_MODE.found(format!("it pads by {amounts:?}"));
        findings.push(found.parameter("pad"));
    }
    // The amounts are those of the last axes, two for each.
    let rank = block
        .tensor(ValueId::first(node))
        .map_or(0, |ty| ty.dims.len());
    let Some(first) = rank.checked_sub(amounts.len() / 2) else {
        return findings;
    };
    let pairs = amounts.chunks_exact(2).enumerate();
    let mut padded = pairs.filter(|(_, ends)| ends.iter().any(|end| *end != 0));
    if let Some((index, ends)) = padded.next()
        && first + index + 2 < rank
    {
        let found = CHANNEL_PAD.found(format!(
            "it pads axis {} of {rank} by {ends:?}",
            first + index
        ));
        findings.push(found.parameter("pad"));
    }
    findings
}

fn slice(block: &Block<'_>, op: &Operation) -> Option<Found> {
    let strides = block.ints_of(op, "stride")?;
    let is_backwards = strides.iter().any(|stride| *stride < 0);
    is_backwards.then(|| {
        let found = NEGATIVE_STRIDE.found(format!("its strides are {strides:?}"));
        found.parameter("stride")
    })
}

fn transpose(block: &Block<'_>, op: &Operation) -> Option<Found> {
    let x = op.value("x")?;
    let inner = block.producer_of_type(x, "transpose")?;
    let (first, second) = (block.ints_of(inner, "perm")?, block.ints_of(op, "perm")?);
    let rank = second.len() as i64;
    let both: Vec<i64> = second
        .iter()
        .map(|axis| {
            let axis = if *axis < 0 { axis + rank } else { *axis };
            let from = usize::try_from(axis)
                .ok()
                .and_then(|axis| first.get(axis))?;
            Some(if *from < 0 { from + rank } else { *from })
        })
        .collect::<Option<_>>()?;
    let name = block.graph.name(x);
    Some(TRANSPOSED_PAIRS.found(if both.iter().copied().eq(0..rank) {
        format!("it undoes the transpose `{name}`")
    } else {
        format!("with the transpose `{name}` it is a single one by {both:?}")
    }))
}
