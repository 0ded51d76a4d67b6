//! several-global-sdpa: more than one fused attention with large heads and many keys.

use crate::ir::{Function, NodeId, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Block, Evidence, Exactness, Family, Meta, Pass, Rule, Severity, Target, Whole, WholeAttempt,
    WholeMatcher,
};

/// The check.
pub(super) struct SeveralGlobalSdpa;

static META: Meta = Meta {
    id: "several-global-sdpa",
    family: Family::Attention,
    summary: "more than one fused attention with large heads and many keys in a function",
    exactness: Exactness::None,
    since: Opset::CoreML8,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Reported,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const SEVERAL_GLOBAL_SDPA: Rule = Rule {
    id: "several-global-sdpa",
    summary: META.summary,
    why: "With two or more of them the compiler for the Neural Engine ends with `live input tensor not \
          used in network`, and the whole model runs on the CPU without an error; in fp16, with two \
          queries or more, the CPU may crash (stablehlo-coreml pull request 89).",
    help: "If the model runs on the CPU as a whole, try explicit-attention.",
    evidence: META.evidence,
    sources: &["https://github.com/kasper0406/stablehlo-coreml/pull/89"],
    severity: Severity::Info.everywhere(),
    catalog: &[],
};

/// From which size on a head is large. The report says "large head dim"; the sketch that reproduces its
/// graph has 256.
const LARGE_HEAD: u64 = 256;

/// From how many keys on they are many. The report says "long K"; inferred, as heads of this size with
/// fewer keys are common in sliding windows.
const MANY_KEYS: u64 = 1024;

impl Pass for SeveralGlobalSdpa {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[SEVERAL_GLOBAL_SDPA]
    }

    fn whole_matcher(
        &self,
        options: &OptionMap,
    ) -> Result<Option<Box<dyn WholeMatcher>>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Some(Box::new(Functions)))
    }
}

struct Functions;

impl WholeMatcher for Functions {
    fn attempts(&mut self, whole: &Whole<'_>) -> Vec<WholeAttempt> {
        let functions = whole.program.functions.iter();
        functions
            .filter_map(|(name, function)| in_function(whole, name, function))
            .collect()
    }
}

fn in_function(whole: &Whole<'_>, name: &str, function: &Function) -> Option<WholeAttempt> {
    let block = whole.block(name, &function.opset)?;
    let order = block.graph.schedule().ok()?;
    let mut found = order
        .iter()
        .filter_map(|node| Some((*node, size(&block, *node)?)));
    let (first, (head, keys)) = found.next()?;
    let more = found.count();
    if more == 0 {
        return None;
    }
    let label = block.label(first);
    let count = more + 1;
    let what = format!("{count} attentions, this one with heads of {head} and {keys} keys");
    let place = [name, label.as_str(), "scaled_dot_product_attention"];
    Some(WholeAttempt::found(place, SEVERAL_GLOBAL_SDPA.found(what)))
}

/// The size of the heads and the number of keys, if both are large.
fn size(block: &Block<'_>, node: NodeId) -> Option<(u64, u64)> {
    let op = block.op_of_type(node, "scaled_dot_product_attention")?;
    let key: ValueId = op.value("key")?;
    let dims = &block.tensor(key)?.dims;
    let [.., keys, head] = dims.as_slice() else {
        return None;
    };
    let (keys, head) = (keys.size()?, head.size()?);
    (head >= LARGE_HEAD && keys >= MANY_KEYS).then_some((head, keys))
}
