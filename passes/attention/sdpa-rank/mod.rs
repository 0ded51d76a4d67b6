//! sdpa-rank: the fused attention with operands of rank 5.

use crate::ir::NodeId;
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Rule, Severity, Target,
};

/// The check.
pub(super) struct SdpaRank;

static META: Meta = Meta {
    id: "sdpa-rank",
    family: Family::Attention,
    summary: "scaled_dot_product_attention of operands of rank 5",
    exactness: Exactness::None,
    since: Opset::CoreML8,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const SDPA_RANK: Rule = Rule {
    id: "sdpa-rank",
    summary: META.summary,
    why: "Apple's compiler for the Neural Engine has the text `SDPA does not currently support rank 5 \
          operands`. executorch rewrites attention so that no operand has five dimensions, and notes \
          that this also cures wrong results since iOS 26.",
    help: "Join the leading dimensions with reshape before, and split them after; or explicit-attention.",
    evidence: META.evidence,
    sources: &[
        "https://github.com/pytorch/executorch/pull/16144",
        "https://github.com/pytorch/executorch/issues/15833",
    ],
    severity: Severity::Warning.everywhere(),
    catalog: &[],
};

/// The largest rank that was not said to fail. Sources: texts in Apple's compiler, executorch's notes.
const LARGEST: usize = 4;

impl Pass for SdpaRank {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[SDPA_RANK]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(find))
    }
}

fn find(block: &Block<'_>, node: NodeId) -> Attempt {
    let Some(op) = block.op_of_type(node, "scaled_dot_product_attention") else {
        return Attempt::NoMatch;
    };
    let rank = |parameter: &str| Some(block.tensor(op.value(parameter)?)?.dims.len());
    let wide = ["query", "key", "value"]
        .into_iter()
        .find_map(|parameter| Some((parameter, rank(parameter).filter(|rank| *rank > LARGEST)?)));
    match wide {
        Some((parameter, rank)) => SDPA_RANK
            .found(format!("its {parameter} has rank {rank}"))
            .parameter(parameter)
            .into(),
        None => Attempt::NoMatch,
    }
}
