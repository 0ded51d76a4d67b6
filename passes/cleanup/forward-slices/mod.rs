//! forward-slices: a slice or split that picks exactly one operand of a concat reads that operand.

use crate::analysis::joined::{Joined, parts};
use crate::ir::NodeId;
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Target};

/// The pass.
pub(super) struct ForwardSlices;

static META: Meta = Meta {
    id: "forward-slices",
    family: Family::Cleanup,
    summary: "a slice or split that picks exactly one operand of a concat reads that operand",
    exactness: Exactness::Exact,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Documented,
    catalog: &[],
    default: true,
    after: &[],
    page: include_str!("README.md"),
};

impl Pass for ForwardSlices {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(Forward))
    }
}

struct Forward;

impl Matcher for Forward {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let Some(op) = block.op(node) else {
            return Attempt::NoMatch;
        };
        if !matches!(op.op_type(), "slice_by_index" | "split") {
            return Attempt::NoMatch;
        }
        let Some(concat) = op
            .value("x")
            .and_then(|x| block.producer_of_type(x, "concat"))
        else {
            return Attempt::NoMatch;
        };
        if block.bool_or(concat, "interleave", false) != Some(false) {
            return Attempt::missed(node, "the concat interleaves its operands");
        }
        let Some(joined) = Joined::of(block, concat) else {
            return Attempt::missed(node, "the size of an operand of the concat is not known");
        };
        let parts = match parts(block, op, node, &joined) {
            Ok(parts) => parts,
            Err(why) => return Attempt::missed(node, why),
        };
        let mut replacements = Vec::new();
        let mut refused = None;
        // An operand can take the name of one output only.
        let mut outputs = Vec::new();
        for (result, begin, end) in parts {
            let Some(operand) = joined.operand(begin, end) else {
                continue;
            };
            if block.graph.uses(result).next().is_none() {
                continue;
            }
            let is_output = block.graph.is_output(result);
            if is_output && outputs.contains(&operand) {
                continue;
            }
            match block.graph.can_replace(result, operand) {
                Ok(()) => {
                    outputs.extend(is_output.then_some(operand));
                    replacements.push((result, operand));
                }
                Err(refusal) => refused = Some(refusal),
            }
        }
        if replacements.is_empty() {
            let why = refused.map_or_else(
                || "what it picks is not exactly one operand of the concat".to_owned(),
                |refusal| refusal.to_string(),
            );
            return Attempt::missed(node, why);
        }
        let names: Vec<String> = replacements
            .iter()
            .map(|(_, operand)| format!("`{}`", block.graph.name(*operand)))
            .collect();
        let what = format!("reads {} instead of the concat", names.join(", "));
        Attempt::matched(what, move |edit| {
            replacements
                .iter()
                .try_for_each(|(old, new)| edit.replace(*old, *new))
        })
    }
}
