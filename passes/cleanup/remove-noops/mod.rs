//! remove-noops: operations whose result is one of their operands.

mod noop;

use std::collections::{BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use crate::ir::{NodeId, ValueId};
use crate::ops::Opset;
use crate::pass::options::{self, OptionError, OptionMap};
use crate::pass::{Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Target};

/// The pass.
pub(super) struct RemoveNoops;

static META: Meta = Meta {
    id: "remove-noops",
    family: Family::Cleanup,
    summary: "identity, same-shape reshape, cancelling transposes, full slices and the like go",
    exactness: Exactness::Exact,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Documented,
    catalog: &[],
    default: true,
    after: &[],
    page: include_str!("README.md"),
};

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    /// Also remove a split and concat that stand before a softmax or attention.
    aggressive: bool,
}

impl Pass for RemoveNoops {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn options(&self) -> OptionMap {
        options::defaults::<Options>()
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        Ok(Box::new(Noops(options::read(META.id, options)?)))
    }
}

struct Noops(Options);

impl Matcher for Noops {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let Some(op) = block.op(node) else {
            return Attempt::NoMatch;
        };
        let Some((source, why)) = noop::find(block, op, node) else {
            return Attempt::NoMatch;
        };
        let result = ValueId::first(node);
        let splits = matches!(op.op_type(), "split" | "concat");
        if splits && !self.0.aggressive && feeds_attention(block, result) {
            return Attempt::missed(
                node,
                "a split and concat before a softmax or attention work around a Core ML bug on the \
                 GPU; the option `aggressive` removes them",
            );
        }
        if let Err(refusal) = block.graph.can_replace(result, source) {
            return Attempt::missed(node, refusal.to_string());
        }
        let what = format!("{why}; replaced by `{}`", block.graph.name(source));
        Attempt::matched(what, move |edit| edit.replace(result, source))
    }
}

/// Operations that may stand between the workaround and its softmax: a mask, a scale, a cast and a
/// reshape at most. Further on, every value of a transformer meets some softmax.
const MAX_STEPS: usize = 4;

/// Whether the value goes into a softmax or a fused attention, directly or through a few casts,
/// sums, products, further splits and concats and what else may stand between a mask and its
/// softmax.
fn feeds_attention(block: &Block<'_>, value: ValueId) -> bool {
    let mut queue = VecDeque::from([(value, 0)]);
    let mut seen = BTreeSet::from([value.node]);
    while let Some((value, steps)) = queue.pop_front() {
        for site in block.graph.uses(value) {
            let Some(user) = block.op(site.user) else {
                continue;
            };
            match user.op_type() {
                "softmax" | "scaled_dot_product_attention" => return true,
                "cast" | "identity" | "split" | "concat" | "reshape" | "transpose" | "mul"
                | "add"
                    if steps < MAX_STEPS && seen.insert(site.user) =>
                {
                    queue.extend((0..user.results().len() as u32).map(|result| {
                        let node = site.user;
                        (ValueId { node, result }, steps + 1)
                    }));
                }
                _ => {}
            }
        }
    }
    false
}
