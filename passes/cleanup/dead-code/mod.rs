//! dead-code: erases operations that reach no block output and no state write.

use crate::ir::NodeId;
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Direction, Evidence, Exactness, Family, Matcher, Meta, Pass, Target,
    is_erasable,
};

/// The pass.
pub(super) struct DeadCode;

static META: Meta = Meta {
    id: "dead-code",
    family: Family::Cleanup,
    summary: "operations that reach no output and no state write are erased",
    exactness: Exactness::Exact,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Documented,
    catalog: &[],
    default: true,
    after: &[],
    page: include_str!("README.md"),
};

impl Pass for DeadCode {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(Unused))
    }
}

struct Unused;

impl Matcher for Unused {
    /// The last first, so that one sweep finds whole chains: the rewriter erases what only an
    /// erased operation used.
    fn direction(&self) -> Direction {
        Direction::Backward
    }

    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let Some(op) = block.op(node) else {
            return Attempt::NoMatch;
        };
        if block.graph.is_used(node) || block.graph.writes_state(node) {
            return Attempt::NoMatch;
        }
        if !is_erasable(op) {
            let why = if op.blocks().is_empty() {
                "nothing uses it, but milwright does not know this operation and keeps it"
            } else {
                "nothing uses it, but its blocks hold an operation that milwright does not know"
            };
            return Attempt::missed(node, why);
        }
        // The rewriter erases an anchor that nothing uses when the rewrite ends.
        Attempt::matched("nothing uses it; erased", |_| Ok(()))
    }
}
