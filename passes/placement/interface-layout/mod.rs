//! interface-layout: tensors whose last axis does not fit the 64 bytes that a row takes.

use crate::analysis::survey::Survey;
use crate::ir::{DType, NodeId, TensorType, ValueId, ValueType};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Block, Evidence, Exactness, Family, Found, Matcher, Meta, Pass, Rule, Severities, Severity,
    Target, Whole, WholeAttempt, WholeMatcher,
};

/// The check.
pub(super) struct InterfaceLayout;

static META: Meta = Meta {
    id: "interface-layout",
    family: Family::Placement,
    summary: "tensors whose last axis does not fit the 64 bytes of which rows are made",
    exactness: Exactness::None,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &["orion-4"],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const RAGGED_OUTPUT: Rule = Rule {
    id: "ragged-output",
    summary: "an output whose rows are no multiple of 64 bytes: its array has gaps",
    why: "Rows of the Neural Engine are padded to 64 bytes, and an application that reads the output's \
          memory without its strides reads the padding too: an fp16 output of 5 x 13 looked random \
          (coremltools issue 1893), and outputs of basic-pitch with 88 numbers a row came in rows of 96.",
    help: "Read it by the strides of the MLMultiArray, or give it a last axis that fits.",
    evidence: Evidence::Measured,
    sources: &[
        "https://github.com/apple/coremltools/issues/1893",
        "https://github.com/john-rocky/CoreML-Models",
    ],
    severity: Severity::Info.everywhere(),
    catalog: &[],
};

const SMALL_INTERFACE: Rule = Rule {
    id: "small-interface",
    summary: "an input or output that is too small for the private interface",
    why: "Orion finds status 0x1d with surfaces below 49152 bytes (row 4). The field guide runs surfaces \
          of 512 bytes, and gets wrong numbers or a status where the last axis has fewer than 32 \
          elements; Orion itself runs 16. Core ML allocates for itself.",
    help: "Pad the last axis to 32 or more, and slice inside.",
    evidence: Evidence::Disputed,
    sources: &[
        "https://github.com/mechramc/Orion",
        "https://github.com/skyfallsin/apple-neural-engine-field-guide",
    ],
    severity: &[(Target::AneDirect, Severity::Warning)],
    catalog: META.catalog,
};

const SINGLETON_AXIS: Rule = Rule {
    id: "singleton-last-axis",
    summary: "a large tensor whose last axis is so short that rows are mostly padding",
    why: "The last axis is packed into rows of 64 bytes: one of a single fp16 number takes 32 times the \
          memory and the bandwidth (Apple's article on transformers for the Neural Engine).",
    help: "Let a long axis be the last one, with a transpose near the input.",
    evidence: Evidence::Documented,
    sources: &[
        "https://machinelearning.apple.com/research/neural-engine-transformers",
        "https://github.com/apple/ml-ane-transformers",
    ],
    severity: Severity::Info.everywhere(),
    catalog: &[],
};

/// Bytes that a row is padded to. Documented: Apple's article.
const ROW: u64 = 64;

/// The shortest last axis that the private interface takes. Measured: the field guide, on an M3 Max.
const SHORTEST: u64 = 32;

/// The smallest surface that the private interface takes. Disputed: Orion.
const SMALLEST: u64 = 49_152;

/// So many times its size a tensor takes before it is worth a word, and its size. Our choice.
const RATIO: u64 = 4;
const LARGE: u64 = 64 << 10;

impl Pass for InterfaceLayout {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[RAGGED_OUTPUT, SMALL_INTERFACE, SINGLETON_AXIS]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(Survey::new(singletons)))
    }

    fn whole_matcher(
        &self,
        options: &OptionMap,
    ) -> Result<Option<Box<dyn WholeMatcher>>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Some(Box::new(Interface)))
    }
}

/// The large tensors of a block that are mostly padding, at the worst of them.
fn singletons(block: &Block<'_>) -> Vec<(NodeId, Found)> {
    let mut worst: Option<(u64, NodeId, &TensorType)> = None;
    let mut count = 0;
    for (node, op) in block.graph.ops() {
        if op.op_type() == "const" || op.op_type().starts_with("constexpr_") {
            continue;
        }
        let Some(ty) = block
            .tensor(ValueId::first(node))
            .filter(|ty| ty.dtype.is_float())
        else {
            continue;
        };
        let (Some(bytes), Some(row)) = (ty.packed_bytes(), row(ty)) else {
            continue;
        };
        let ratio = row.div_ceil(ROW) * ROW / row.max(1);
        if bytes <= LARGE || ratio < RATIO {
            continue;
        }
        count += 1;
        let waste = bytes.saturating_mul(ratio);
        if worst.is_none_or(|(most, ..)| waste > most) {
            worst = Some((waste, node, ty));
        }
    }
    let Some((_, node, ty)) = worst else {
        return Vec::new();
    };
    let ratio = row(ty).map_or(1, |row| row.div_ceil(ROW) * ROW / row.max(1));
    let more = match count {
        1 => String::new(),
        _ => format!(", and {} more like it", count - 1),
    };
    let message = format!(
        "`{}` {} takes {ratio} times its size{more}",
        block.graph.name(ValueId::first(node)),
        shape(ty)
    );
    vec![(node, SINGLETON_AXIS.found(message))]
}

/// The bytes of the last axis.
fn row(ty: &TensorType) -> Option<u64> {
    let bits = u64::from(ty.dtype.bits()?);
    Some(ty.dims.last()?.size()?.checked_mul(bits)?.div_ceil(8)).filter(|row| *row > 0)
}

fn shape(ty: &TensorType) -> String {
    let sizes: Vec<String> = ty
        .dims
        .iter()
        .map(|dim| dim.size().map_or("?".to_owned(), |size| size.to_string()))
        .collect();
    format!("{} [{}]", ty.dtype, sizes.join(", "))
}

struct Interface;

impl WholeMatcher for Interface {
    fn attempts(&mut self, whole: &Whole<'_>) -> Vec<WholeAttempt> {
        let mut attempts = Vec::new();
        for (name, function) in &whole.program.functions {
            let inputs: Vec<(&str, &TensorType)> = function
                .inputs
                .iter()
                .filter_map(|input| Some((input.name.as_str(), tensor(input.ty.as_ref()?)?)))
                .collect();
            let outputs: Vec<(&str, &TensorType)> = match function.specializations.values().next() {
                Some(body) => body
                    .graph
                    .outputs()
                    .iter()
                    .filter_map(|value| {
                        let named = body.graph.named(*value)?;
                        Some((named.name.as_str(), tensor(named.ty.as_ref()?)?))
                    })
                    .collect(),
                None => Vec::new(),
            };
            attempts.extend(ragged(name, &outputs));
            attempts.extend(small(name, "input", &inputs));
            attempts.extend(small(name, "output", &outputs));
        }
        attempts
    }
}

fn tensor(ty: &ValueType) -> Option<&TensorType> {
    if ty.is_state() {
        return None;
    }
    ty.as_tensor()
}

/// `, and 3 more outputs`.
fn and_more(count: usize, what: &str) -> String {
    match count {
        0 | 1 => String::new(),
        2 => format!(", and one more {what} is like it"),
        _ => format!(", and {} more {what}s are like it", count - 1),
    }
}

/// The outputs of several rows that are no multiple of 64 bytes.
fn ragged(function: &str, outputs: &[(&str, &TensorType)]) -> Option<WholeAttempt> {
    let mut ragged = outputs.iter().filter(|(_, ty)| {
        let is_float = matches!(ty.dtype, DType::Float16 | DType::Float32);
        let has_rows = ty
            .dims
            .iter()
            .rev()
            .skip(1)
            .any(|dim| dim.size() != Some(1));
        is_float && has_rows && row(ty).is_some_and(|row| row % ROW != 0)
    });
    let (name, ty) = ragged.next()?;
    let found = RAGGED_OUTPUT.found(format!(
        "output `{name}` {} has rows of {} bytes{}",
        shape(ty),
        row(ty)?,
        and_more(1 + ragged.count(), "output")
    ));
    Some(WholeAttempt::found([function, name, "output"], found))
}

/// The inputs or outputs whose last axis is short, or else that are small.
fn small(function: &str, what: &str, features: &[(&str, &TensorType)]) -> Option<WholeAttempt> {
    let is_short = |ty: &TensorType| {
        let last = ty.dims.last().and_then(|dim| dim.size());
        last.is_none_or(|size| size < SHORTEST)
    };
    let is_small = |ty: &TensorType| ty.packed_bytes().is_some_and(|bytes| bytes < SMALLEST);
    let short: Vec<_> = features.iter().filter(|(_, ty)| is_short(ty)).collect();
    let small: Vec<_> = features.iter().filter(|(_, ty)| is_small(ty)).collect();
    let (severities, few): (Severities, _) = match short.is_empty() {
        false => (&[(Target::AneDirect, Severity::Warning)], short),
        true => (&[(Target::AneDirect, Severity::Info)], small),
    };
    let (name, ty) = few.first()?;
    let bytes = match ty.packed_bytes() {
        Some(bytes) => format!("has {bytes} bytes"),
        None => "has an unknown size".to_owned(),
    };
    let last = match ty.dims.last() {
        Some(dim) => dim
            .size()
            .map_or("unknown".to_owned(), |size| size.to_string()),
        None => "none".to_owned(),
    };
    let found = SMALL_INTERFACE.found(format!(
        "{what} `{name}` {bytes}, and its last axis is {last}{}",
        and_more(few.len(), what)
    ));
    let place = [function, *name, what];
    Some(WholeAttempt::found(place, found.severities(severities)))
}
