//! slice-updates: updates of a part of a tensor that the Neural Engine is reported not to take.

use crate::analysis::update::{Extent, Goal, extents, goal};
use crate::ir::{Binding, NodeId, Operation, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Found, Matcher, Meta, Pass, Rule, Severity, Target,
};

/// The check.
pub(super) struct SliceUpdates;

static META: Meta = Meta {
    id: "slice-updates",
    family: Family::State,
    summary: "updates of a part of a tensor that the Neural Engine is reported not to take",
    exactness: Exactness::None,
    since: Opset::CoreML8,
    targets: &[Target::CoreMl],
    evidence: Evidence::Reported,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const STANDALONE: Rule = Rule {
    id: "standalone-slice-update",
    summary: "a `slice_update` whose result reaches no state",
    why: "The compiler for the Neural Engine says `Cannot support standalone slice_update` of one whose \
          result is not written to a state (log of anemll-profile); it then runs elsewhere, and the data \
          leaves the Neural Engine and comes back.",
    help: "Keep the tensor in a state, or blend with a mask: old * (1 - m) + new * m.",
    evidence: Evidence::Measured,
    sources: &["https://github.com/Anemll/anemll-profile"],
    severity: &[(Target::CoreMl, Severity::Warning)],
    catalog: &[],
};

const LONG: Rule = Rule {
    id: "long-state-update",
    summary: "an update of a state with many positions at once",
    why: "A cache [16, 1024, 128] with updates of 128 positions is reported to fail on the Neural Engine; \
          others run 16 and 32 positions. Whether the size is the cause, nobody has shown.",
    help: "If it fails on the Neural Engine, try shorter pieces of the prompt, of 32 positions or fewer.",
    evidence: META.evidence,
    sources: &[
        "https://github.com/apple/coremltools/issues/2553",
        "https://github.com/Anemll/Anemll/issues/27",
    ],
    severity: &[(Target::CoreMl, Severity::Info)],
    catalog: &[],
};

const RUNTIME_INDEX: Rule = Rule {
    id: "runtime-state-index",
    summary: "an update of a state at a position that is computed at run time",
    why: "It is what converters make of a cache that is written at the current position. There are \
          reports of a compiler that crashes or refuses it for the Neural Engine, of which one says that \
          constant positions work.",
    help: "If it fails on the Neural Engine, blend with a mask that is an input: old * (1 - m) + new * m.",
    evidence: META.evidence,
    sources: &[
        "https://github.com/apple/coreai-torch/issues/6",
        "https://github.com/finnvoor/CoreMLPipelines/pull/4",
    ],
    severity: &[(Target::CoreMl, Severity::Info)],
    catalog: &[],
};

/// Updates of up to so many positions are reported to work, of 128 not to (Anemll issue 27; reported).
const LONGEST: u64 = 32;

/// How deep constants are looked for in the bounds.
const MAX_DEPTH: usize = 4;

impl Pass for SliceUpdates {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[STANDALONE, LONG, RUNTIME_INDEX]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(Finder(false)))
    }
}

/// Whether the block has been looked at.
struct Finder(bool);

impl Matcher for Finder {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        if self.0 || block.op_of_type(node, "slice_update").is_none() {
            return Attempt::NoMatch;
        }
        self.0 = true;
        Attempt::found(findings(block))
    }
}

/// What is to be said of the updates of a block. A model has one of a kind in each layer, so what is
/// only worth to know is said once.
fn findings(block: &Block<'_>) -> Vec<Found> {
    let mut standalone = Vec::new();
    let mut long: Vec<(NodeId, Extent, u64)> = Vec::new();
    let mut runtime = Vec::new();
    for node in block.graph.schedule().unwrap_or_default().iter().copied() {
        let Some(op) = block.op_of_type(node, "slice_update") else {
            continue;
        };
        match goal(block, ValueId::first(node)) {
            Goal::NoState => standalone.push(node),
            Goal::Unknown => {}
            Goal::State(_) => {
                let extents = extents(block, op).into_iter();
                let longest = extents
                    .filter_map(|extent| Some((node, extent, extent.size?)))
                    .max_by_key(|(_, _, size)| *size);
                long.extend(longest.filter(|(_, _, size)| *size > LONGEST));
                let moving = ["begin", "end"].into_iter().find(|parameter| {
                    let binding = op.binding(parameter);
                    binding.is_some_and(|binding| !is_constant(block, binding, MAX_DEPTH))
                });
                runtime.extend(moving.map(|parameter| (node, parameter)));
            }
        }
    }
    let mut found = Vec::new();
    let mut none = standalone.into_iter();
    if let Some(first) = none.next() {
        let what = format!("its result reaches no state{}", more(none.count()));
        found.push(STANDALONE.found(what).at(first));
    }
    if let Some((node, extent, size)) = long.first() {
        let what = format!(
            "it updates {size} of {} positions of axis {}{}",
            extent.whole,
            extent.axis,
            more(long.len() - 1)
        );
        found.push(LONG.found(what).at(*node).parameter("update"));
    }
    if let Some((node, parameter)) = runtime.first() {
        let what = format!(
            "`{parameter}` is computed at run time{}",
            more(runtime.len() - 1)
        );
        found.push(RUNTIME_INDEX.found(what).at(*node).parameter(*parameter));
    }
    found
}

fn more(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => "; 1 more is like it".to_owned(),
        count => format!("; {count} more are like it"),
    }
}

/// Whether it is a constant, or a `concat` of constants.
fn is_constant(block: &Block<'_>, binding: &Binding, depth: usize) -> bool {
    let value = match binding {
        Binding::Value(value) => *value,
        Binding::Immediate(_) | Binding::Absent => return true,
    };
    if block.constant(value).is_some() {
        return true;
    }
    let parts = |op: &Operation| {
        let mut parts = op.argument("values").into_iter().flat_map(|a| &a.bindings);
        depth > 0 && parts.all(|part| is_constant(block, part, depth - 1))
    };
    block.producer_of_type(value, "concat").is_some_and(parts)
}
