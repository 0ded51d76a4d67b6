//! blocked-softmax: attention over very many keys becomes several over a part of them, joined exactly.

use serde::{Deserialize, Serialize};

use crate::analysis::attention;
use crate::ir::{NodeId, ValueId};
use crate::ops::Opset;
use crate::pass::options::{self, OptionError, OptionMap};
use crate::pass::{Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Target};

mod plan;

use plan::Plan;

/// The pass.
pub(super) struct BlockedSoftmax;

static META: Meta = Meta {
    id: "blocked-softmax",
    family: Family::Attention,
    summary: "attention over more than 2048 keys becomes blocks of keys, joined by their maxima and sums",
    exactness: Exactness::Real,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Reported,
    catalog: &[],
    default: false,
    after: &["explicit-attention"],
    page: include_str!("README.md"),
};

/// The greatest block: a product that sums so many numbers up to 1 stays below the 32 752 from which on it is
/// reported to be infinite, and a weight that so many keys share is a normal fp16 number, 2^-14.
const GREATEST: u64 = 1 << 14;

/// A program with more blocks than this is of use to nobody.
const MOST_BLOCKS: u64 = 256;

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    /// How many keys a block has.
    block: u64,
}

impl Default for Options {
    /// Source: anemll-forge, TECHNIQUES.md, where blocks of 16 K became blocks of 2 048; the page says what
    /// either keeps of small weights.
    fn default() -> Self {
        Self { block: 2048 }
    }
}

impl Pass for BlockedSoftmax {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn options(&self) -> OptionMap {
        options::defaults::<Options>()
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        let options: Options = options::read(META.id, options)?;
        if !(1..=GREATEST).contains(&options.block) {
            let why = format!(
                "option `block`: {} is not between 1 and {GREATEST}",
                options.block
            );
            return Err(OptionError { pass: META.id, why });
        }
        Ok(Box::new(move |block: &Block<'_>, node: NodeId| {
            attempt(block, node, options.block)
        }))
    }
}

fn attempt(block: &Block<'_>, node: NodeId, size: u64) -> Attempt {
    let Some(attention) = attention::at(block, node) else {
        return Attempt::NoMatch;
    };
    let Some([_, keys, _]) = attention.lengths(block) else {
        return Attempt::NoMatch;
    };
    let Some(keys) = keys.size() else {
        return Attempt::missed(node, "the number of keys is not fixed");
    };
    if keys <= size {
        return Attempt::NoMatch;
    }
    let Some(chain) = &attention.chain else {
        let why = format!(
            "{keys} keys in the fused operation, which does not show its scores: explicit-attention \
             comes first"
        );
        return Attempt::missed(node, why);
    };
    if let Some(at) = attention.escape(block) {
        let why = "its result is read elsewhere too, and has to be whole for that";
        return Attempt::missed(at, why);
    }
    let blocks = keys.div_ceil(size);
    if blocks > MOST_BLOCKS {
        return Attempt::missed(node, format!("{blocks} blocks would be too many"));
    }
    let plan = match Plan::of(block, &attention, chain, [keys, size]) {
        Ok(plan) => plan,
        Err(missed) => return Attempt::CheckFailed(missed),
    };
    let result = ValueId::first(node);
    let Some(ty) = block.graph.ty(result).cloned() else {
        return Attempt::missed(node, "the type of the result is not known");
    };
    let of = if keys.is_multiple_of(size) {
        ""
    } else {
        "at most "
    };
    let what = format!("attention over {keys} keys becomes {blocks} blocks of {of}{size}");
    Attempt::matched(what, move |edit| {
        let joined = plan.write(edit)?;
        // The declared type may leave sizes open that the parts have.
        edit.retype(joined, ty);
        edit.replace(result, joined)
    })
}
