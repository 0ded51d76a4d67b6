//! remove-noops: operations whose result is one of their operands.

mod noop;

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
                 GPU; \
                 the option `aggressive` removes them",
            );
        }
        if let Err(refusal) = block.graph.can_replace(result, source) {
            return Attempt::missed(node, refusal.to_string());
        }
        let what = format!("{why}; replaced by `{}`", block.graph.name(source));
        Attempt::matched(what, move |edit| edit.replace(result, source))
    }
}

/// Whether the value goes into a softmax or a fused attention, directly or through casts, sums,
/// products, further splits and concats and what else may stand between a mask and its softmax.
fn feeds_attention(block: &Block<'_>, value: ValueId) -> bool {
    let mut stack = vec![value];
    let mut seen = vec![value.node];
    while let Some(value) = stack.pop() {
        for site in block.graph.uses(value) {
            let Some(user) = block.op(site.user) else {
                continue;
            };
            match user.op_type() {
                "softmax" | "scaled_dot_product_attention" => return true,
                "cast" | "identity" | "split" | "concat" | "reshape" | "transpose" | "mul"
                | "add"
                    if !seen.contains(&site.user) =>
                {
                    seen.push(site.user);
                    stack.extend((0..user.results().len() as u32).map(|result| ValueId {
                        node: site.user,
                        result,
                    }));
                }
                _ => {}
            }
        }
    }
    false
}
