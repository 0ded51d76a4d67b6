//! cpu-op: operations that the Neural Engine has no form of.

use crate::ir::{NodeId, Operation};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Found, Matcher, Meta, Pass, Rule, Severity, Target,
};

/// The check.
pub(super) struct CpuOp;

static META: Meta = Meta {
    id: "cpu-op",
    family: Family::Placement,
    summary: "an operation that runs on the CPU, between two trips of the data",
    exactness: Exactness::None,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const CPU_OP: Rule = Rule {
    id: "cpu-op",
    summary: META.summary,
    why: "Compute plans of Core ML place these operations on the CPU; what comes before and after \
          them runs elsewhere, and the data goes there and back. The private interface has no CPU \
          to fall back to.",
    help: "Write it with operations that the Neural Engine has, or move it to the start or the end \
           of the model, where it cuts nothing in two.",
    evidence: META.evidence,
    sources: &["https://github.com/apple/coremltools/issues/1780"],
    severity: &[
        (Target::CoreMl, Severity::Info),
        (Target::AneDirect, Severity::Warning),
    ],
    catalog: &[],
};

const RUNTIME_GATHER: Rule = Rule {
    id: "runtime-gather-nd",
    summary: "a gather_nd or scatter_nd whose places are computed when the model runs",
    why: "The Neural Engine returned nothing but zeros for such a gather_nd, where the CPU and the GPU \
          returned the right numbers (CoreML-LLM's probe of Gemma 4's vision tower, one model).",
    help: "Multiply by a mask, or slice at fixed places; else keep the model off the Neural Engine and \
           compare its results.",
    evidence: Evidence::Measured,
    sources: &["https://github.com/john-rocky/CoreML-LLM"],
    severity: &[
        (Target::CoreMl, Severity::Warning),
        (Target::AneDirect, Severity::Error),
    ],
    catalog: &[],
};

/// Operations that are reported to run on the CPU only, with what they are. Sources: the page.
const OPERATIONS: [(&str, &str); 12] = [
    ("lstm", "a recurrent layer"),
    ("gru", "a recurrent layer"),
    ("rnn", "a recurrent layer"),
    ("cumsum", "a running sum"),
    ("non_zero", "a search whose result has an unknown size"),
    ("one_hot", "a lookup by a computed index"),
    ("scatter", "a write to computed places"),
    ("scatter_along_axis", "a write to computed places"),
    ("scatter_nd", "a write to computed places"),
    ("crop_resize", "a resampling of computed regions"),
    ("while_loop", "a loop of unknown length"),
    ("cond", "a branch that depends on data"),
];

impl Pass for CpuOp {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[CPU_OP, RUNTIME_GATHER]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(find))
    }
}

fn find(block: &Block<'_>, node: NodeId) -> Attempt {
    let Some(op) = block.op(node) else {
        return Attempt::NoMatch;
    };
    let mut operations = OPERATIONS.iter();
    let known = operations.find(|(op_type, _)| op.op_type() == *op_type);
    let on_cpu =
        known.map(|(op_type, what)| CPU_OP.found(format!("`{op_type}`, {what}, runs on the CPU")));
    Attempt::found(on_cpu.into_iter().chain(runtime_gather(block, op)))
}

fn runtime_gather(block: &Block<'_>, op: &Operation) -> Option<Found> {
    if !["gather_nd", "scatter_nd"].contains(&op.op_type()) {
        return None;
    }
    let indices = op.value("indices")?;
    if block.constant(indices).is_some() {
        return None;
    }
    let found = RUNTIME_GATHER.found(format!(
        "`{}` at the places in `{}`, which is computed",
        op.op_type(),
        block.graph.name(indices)
    ));
    Some(found.parameter("indices"))
}
