//! final-norm-in-chunk: a part of a language model that normalizes the stream before it gives it out.

use crate::analysis::norm::{self, Norm};
use crate::analysis::residual::{self, Stream};
use crate::ir::{Node, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Block, Evidence, Exactness, Family, Meta, Pass, Rule, Severity, Target, Whole, WholeAttempt,
    WholeMatcher,
};

mod place;

use place::Part;

/// The check.
pub(super) struct FinalNormInChunk;

static META: Meta = Meta {
    id: "final-norm-in-chunk",
    family: Family::Numerics,
    summary: "a part of a language model that normalizes the residual stream before it gives it out",
    exactness: Exactness::None,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Reported,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const FINAL_NORM_IN_CHUNK: Rule = Rule {
    id: "final-norm-in-chunk",
    summary: META.summary,
    why: "The next part adds to what it reads. If that is normalized, all that the layers before have added \
          up counts as little as one branch, and the text is plausible and wrong. ANEMLL repaired its \
          converter (0.3.5), which had put the final norm into parts that are not the last.",
    help: "Give out the stream itself, and normalize in the last part only. Nothing is to be done if this is \
           the last part.",
    evidence: META.evidence,
    sources: &["https://github.com/Anemll/Anemll"],
    severity: Severity::Info.everywhere(),
    catalog: &[],
};

/// A stream that peaks so many times above its norm is another value to the next part; this project's
/// choice.
const MUCH: f64 = 2.0;

impl Pass for FinalNormInChunk {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[FINAL_NORM_IN_CHUNK]
    }

    fn whole_matcher(
        &self,
        options: &OptionMap,
    ) -> Result<Option<Box<dyn WholeMatcher>>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Some(Box::new(Outputs)))
    }
}

struct Outputs;

impl WholeMatcher for Outputs {
    fn attempts(&mut self, whole: &Whole<'_>) -> Vec<WholeAttempt> {
        let mut attempts = Vec::new();
        for (name, function) in &whole.program.functions {
            // All bodies of a function compute the same.
            let opset = function.specializations.keys().next();
            let block = opset.and_then(|opset| whole.block(name, opset));
            let part = place::named(name)
                .or_else(|| place::named(whole.stage))
                .or_else(|| place::described(whole.metadata));
            if let Some(block) = block {
                attempts.extend(look(&block, name, part));
            }
        }
        attempts
    }
}

fn look(block: &Block<'_>, function: &str, part: Option<Part>) -> Option<WholeAttempt> {
    if part.is_some_and(Part::is_last) {
        return None;
    }
    let outputs = block.graph.outputs().iter();
    let normalized: Vec<(ValueId, Norm)> = outputs
        .filter_map(|output| Some((*output, norm_of(block, *output)?)))
        .collect();
    if normalized.is_empty() {
        return None;
    }
    let stream = residual::longest(block)?;
    let end = stream.values().last()?;
    let (output, norm) = normalized
        .into_iter()
        .find(|(output, norm)| behind(block, norm.x) == end && is_alike(block, *output, end))?;
    if has_head(block, &norm) {
        return None;
    }
    let is_chunk = starts_at_an_input(block, &stream);
    // What begins with its own embedding and ends in a norm is a whole encoder, unless someone says that it
    // is a part.
    if !is_chunk && part.is_none() {
        return None;
    }
    let layers = stream.writes.len();
    let name = block.graph.name(output);
    let mut message = format!(
        "`{name}` is the norm of the stream after {layers} additions, not the stream, which a part that \
         follows would have to go on with"
    );
    let mut severity = Severity::Info;
    if let Some(Part { number, of }) = part {
        message = format!("{message}; this is part {number} of {of}");
        severity = Severity::Warning;
    } else {
        message += "; right only in the last part, and which one this is cannot be seen";
    }
    if let (Some(before), Some(after)) = (block.range(end), block.range(output))
        && after.peak > 0.0
        && before.peak >= MUCH * after.peak
    {
        message = format!(
            "{message}; measured, the stream peaks at {:.1} and `{name}` at {:.1}, so that a part that goes on loses \
             a factor of {:.1}",
            before.peak,
            after.peak,
            before.peak / after.peak
        );
        severity = Severity::Warning;
    }
    let op = block.op(norm.root)?;
    let label = block.label(norm.root);
    let found = FINAL_NORM_IN_CHUNK.found(message).severity(severity);
    Some(WholeAttempt::found([function, &label, op.op_type()], found))
}

/// What keeps the elements of a value.
const COPIES: [&str; 7] = [
    "cast",
    "clip",
    "identity",
    "reshape",
    "transpose",
    "expand_dims",
    "squeeze",
];

/// How many of these a walk passes.
const MAX_DEPTH: usize = 8;

/// The value that this one is a copy of.
fn behind(block: &Block<'_>, mut value: ValueId) -> ValueId {
    for _ in 0..MAX_DEPTH {
        let op = block
            .op(value.node)
            .filter(|op| COPIES.contains(&op.op_type()));
        match op.and_then(|op| op.value("x")) {
            Some(inner) => value = inner,
            None => break,
        }
    }
    value
}

/// The norm that a value is, also times a gain.
fn norm_of(block: &Block<'_>, value: ValueId) -> Option<Norm> {
    let at = |value: ValueId| match norm::at(block, value.node) {
        norm::Found::Norm(norm) if ValueId::first(norm.root) == value => Some(*norm),
        _ => None,
    };
    let value = behind(block, value);
    if let Some(norm) = at(value) {
        return Some(norm);
    }
    let op = block.op_of_type(value.node, "mul")?;
    [("x", "y"), ("y", "x")]
        .into_iter()
        .find_map(|(side, other)| {
            let is_gain = block.constant_of(op, other).is_some()
                || op
                    .value(other)
                    .and_then(|gain| block.op(gain.node))
                    .is_some_and(|op| op.op_type().starts_with("constexpr_"));
            is_gain
                .then(|| at(behind(block, op.value(side)?)))
                .flatten()
        })
}

/// Whether one value has the shape of another, but for the order of its dimensions and those of size 1.
fn is_alike(block: &Block<'_>, a: ValueId, b: ValueId) -> bool {
    let sizes = |value: ValueId| {
        let dims = &block.tensor(value)?.dims;
        let mut sizes: Vec<Option<u64>> = dims.iter().map(|dim| dim.size()).collect();
        sizes.retain(|size| *size != Some(1));
        sizes.sort_unstable();
        Some(sizes)
    };
    sizes(a).is_some() && sizes(a) == sizes(b)
}

/// Whether something but an output reads the result of a norm, behind copies and its gain.
fn has_head(block: &Block<'_>, norm: &Norm) -> bool {
    let mut pending = vec![(ValueId::first(norm.root), MAX_DEPTH)];
    while let Some((value, depth)) = pending.pop() {
        for reader in block.graph.uses(value) {
            let Some(op) = block.op(reader.user) else {
                continue;
            };
            let is_gain = op.op_type() == "mul"
                && ["x", "y"].into_iter().any(|side| {
                    op.value(side) != Some(value)
                        && op.value(side).is_none_or(|other| {
                            block.op(other.node).is_some_and(|op| {
                                op.op_type() == "const" || op.op_type().starts_with("constexpr_")
                            })
                        })
                });
            if depth == 0 || !(is_gain || COPIES.contains(&op.op_type())) {
                return true;
            }
            pending.push((ValueId::first(reader.user), depth - 1));
        }
    }
    false
}

fn starts_at_an_input(block: &Block<'_>, stream: &Stream) -> bool {
    let start = behind(block, stream.start);
    matches!(block.graph.node(start.node), Some(Node::Input(..)))
}
