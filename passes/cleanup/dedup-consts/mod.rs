//! dedup-consts: consts of equal type and bytes become one.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::ir::{NodeId, Operation, TensorData, Value, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Target};

/// The pass.
pub(super) struct DedupConsts;

static META: Meta = Meta {
    id: "dedup-consts",
    family: Family::Cleanup,
    summary: "consts of equal type and bytes become one",
    exactness: Exactness::Exact,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Documented,
    catalog: &[],
    default: true,
    after: &[],
    page: include_str!("README.md"),
};

impl Pass for DedupConsts {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(Seen::default()))
    }
}

/// The consts seen so far in the block, by a hash of type and content.
#[derive(Default)]
struct Seen {
    by_hash: HashMap<u64, Vec<NodeId>>,
}

impl Matcher for Seen {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let Some(op) = block.op(node) else {
            return Attempt::NoMatch;
        };
        let Some(value) = op.const_value() else {
            return Attempt::NoMatch;
        };
        let candidates = self.by_hash.entry(hash(block, value)).or_default();
        let first = candidates.iter().copied().find(|candidate| {
            block
                .op(*candidate)
                .is_some_and(|earlier| are_equal(block, earlier, op))
        });
        let Some(first) = first else {
            candidates.push(node);
            return Attempt::NoMatch;
        };
        let (old, new) = (ValueId::first(node), ValueId::first(first));
        if block.graph.is_output(old) {
            return Attempt::missed(node, "it is an output of the block and keeps its own const");
        }
        let what = format!("equals `{}`", block.label(first));
        Attempt::matched(what, move |edit| edit.replace(old, new))
    }
}

/// Bytes looked at on either end of the data and in its middle before two consts are compared in
/// full: weights of different layers differ there, so gigabytes need not be read.
const SAMPLE: usize = 64;

fn hash(block: &Block<'_>, value: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    if let Some(tensor) = value.tensor_type() {
        tensor.dtype.hash(&mut hasher);
        tensor.dims.hash(&mut hasher);
    }
    match block.bytes(value) {
        Some(bytes) => {
            bytes.len().hash(&mut hasher);
            let middle = bytes.len() / 2;
            for start in [0, middle, bytes.len().saturating_sub(SAMPLE)] {
                let end = (start + SAMPLE).min(bytes.len());
                bytes[start..end].hash(&mut hasher);
            }
        }
        None => match (value.blob(), value.tensor_data()) {
            (Some(blob), _) => blob.hash(&mut hasher),
            (None, Some(TensorData::Strings(strings))) => strings.hash(&mut hasher),
            (None, _) => {}
        },
    }
    hasher.finish()
}

/// Whether two consts are interchangeable: same type, same attributes but for the name, and same
/// bytes wherever they are stored.
fn are_equal(block: &Block<'_>, a: &Operation, b: &Operation) -> bool {
    let same_results = a
        .results()
        .iter()
        .map(|r| &r.ty)
        .eq(b.results().iter().map(|r| &r.ty));
    let others = |op: &Operation| {
        op.attributes()
            .iter()
            .filter(|(name, _)| *name != "name" && *name != "val")
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect::<Vec<_>>()
    };
    let (Some(left), Some(right)) = (a.const_value(), b.const_value()) else {
        return false;
    };
    if !same_results || left.ty != right.ty || left.doc != right.doc || others(a) != others(b) {
        return false;
    }
    if left.blob().is_some() && left.blob() == right.blob() {
        return true;
    }
    match (block.bytes(left), block.bytes(right)) {
        (Some(left), Some(right)) => left == right,
        // Strings and lists have no bytes of their own; floats never come here, so that equality
        // of values is equality of bits.
        (None, None) => {
            left.blob().is_none() && right.blob().is_none() && left.content == right.content
        }
        _ => false,
    }
}
