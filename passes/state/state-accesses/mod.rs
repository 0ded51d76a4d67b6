//! state-accesses: states that are read and written in other ways than once each, or not at all.

mod program;

use std::collections::HashMap;

use crate::analysis::state::{Kind, StateChain, states};
use crate::analysis::update::read_from;
use crate::ir::{Access, DType, NodeId, Slot, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Found, Matcher, Meta, Pass, Rule, Severity,
    Target, WholeMatcher,
};

/// The check.
pub(super) struct StateAccesses;

static META: Meta = Meta {
    id: "state-accesses",
    family: Family::State,
    summary: "states that are read and written in other ways than once each, or not at all",
    exactness: Exactness::None,
    since: Opset::CoreML8,
    targets: &[Target::CoreMl],
    evidence: Evidence::Reported,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const WARNING: crate::pass::Severities = &[(Target::CoreMl, Severity::Warning)];
const INFO: crate::pass::Severities = &[(Target::CoreMl, Severity::Info)];

const TWO_WRITES: Rule = Rule {
    id: "state-two-writes",
    summary: "a state that is written more than once in a call",
    why: "One source says that the compiler for the Neural Engine wants exactly one write of a state and \
          fails with `bad_cast` otherwise. Another runs language models there with two states for the \
          caches of all layers; that each layer writes them is likely, but not said. So several writes \
          are only worth to know. A write that replaces what was written before, and that nothing has \
          read, loses it.",
    help: "Make all updates first, each from the result of the one before, and write the last: so does \
           merge-states with writes=chained.",
    evidence: Evidence::Disputed,
    sources: &[
        "https://github.com/Anemll/anemll-forge",
        "https://blog.squeezebits.com/disaggregated-inference-on-apple-silicon-npu-prefill-and-gpu-decode-67176",
    ],
    severity: WARNING,
    catalog: &[],
};

const STALE_READ: Rule = Rule {
    id: "state-stale-read",
    summary: "what a state held before a write is used after it",
    why: "By MIL's rules that is the old value, which a model rarely means; an update that starts from it \
          undoes the write in between. One source says that the compiler for the Neural Engine fails \
          with `bad_cast` where the raw read is used.",
    help: "Use the value that is written, or read the state again.",
    evidence: META.evidence,
    sources: TWO_WRITES.sources,
    severity: WARNING,
    catalog: &[],
};

const STATE_AND_OUTPUT: Rule = Rule {
    id: "state-and-output",
    summary: "a part of a state that is an output and is used as well",
    why: "On an iPhone (ANE 18) a slice of a state that is computed with and returned as well is reported \
          to fail with `std::bad_cast` in the translation of the program. A copy of the slice did not \
          always help.",
    help: "Return what is computed of it, or let the application read the state.",
    evidence: Evidence::Measured,
    sources: &["https://github.com/john-rocky/CoreML-LLM"],
    severity: WARNING,
    catalog: &[],
};

const UNTOUCHED: Rule = Rule {
    id: "untouched-state",
    summary: "a state that nothing computes with",
    why: "A model with a state that no operation uses is reported not to load (coremltools issue 2548).",
    help: "Remove the state, or use it: tracing drops what has no effect, such as adding 0.",
    evidence: META.evidence,
    sources: &["https://github.com/apple/coremltools/issues/2548"],
    severity: &[(Target::CoreMl, Severity::Error)],
    catalog: &[],
};

const FP32_STATE: Rule = Rule {
    id: "fp32-state",
    summary: "a state of another type than fp16",
    why: "By coremltools' sources Core ML supports states of fp16 only, and its converter refuses others \
          (\"State only support fp16 dtype\"). It leaves states as they are when it makes a model fp16. \
          What Core ML does with such a state from elsewhere is not known.",
    help: "Declare the state as fp16 where the model is made.",
    evidence: Evidence::Documented,
    sources: &[
        "https://github.com/apple/coremltools/blob/9.0/coremltools/converters/mil/backend/mil/load.py",
        "https://apple.github.io/coremltools/docs-guides/source/stateful-models.html",
    ],
    severity: WARNING,
    catalog: &[],
};

const MULTIFUNCTION: Rule = Rule {
    id: "stateful-multifunction",
    summary: "several states and long updates in a model of several functions",
    why: "Such a function, with two states and more than one position at once, did not compile for the \
          Neural Engine of an iPhone (`ANECCompile FAILED 11`) though it did on a Mac, and did as a model \
          of its own. With one state it ships.",
    help: "If it fails there, make a package of each function.",
    evidence: Evidence::Measured,
    sources: &["https://github.com/john-rocky/CoreML-LLM"],
    severity: INFO,
    catalog: &[],
};

impl Pass for StateAccesses {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[
            TWO_WRITES,
            STALE_READ,
            STATE_AND_OUTPUT,
            UNTOUCHED,
            FP32_STATE,
            MULTIFUNCTION,
        ]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(Finder(false)))
    }

    fn whole_matcher(
        &self,
        options: &OptionMap,
    ) -> Result<Option<Box<dyn WholeMatcher>>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Some(Box::new(program::States)))
    }
}

/// Whether the block has been looked at: all states of a function are found at its first operation.
struct Finder(bool);

impl Matcher for Finder {
    fn attempt(&mut self, block: &Block<'_>, _node: NodeId) -> Attempt {
        // States are inputs of functions.
        if self.0 || block.outer.is_some() {
            return Attempt::NoMatch;
        }
        self.0 = true;
        let chains = states(block.graph);
        if chains.is_empty() {
            return Attempt::NoMatch;
        }
        let order = block.graph.schedule().unwrap_or_default();
        let order = order.iter().copied().enumerate();
        let places: HashMap<NodeId, usize> = order.map(|(place, node)| (node, place)).collect();
        let mut found = Vec::new();
        for chain in &chains {
            found.extend(other_type(chain));
            found.extend(several_writes(block, chain));
            found.extend(stale_read(block, chain, &places));
        }
        found.extend(outputs(block));
        Attempt::found(found)
    }
}

fn other_type(chain: &StateChain) -> Option<Found> {
    let dtype = chain.ty.dtype;
    let message = format!("`{}` is a state of {dtype}", chain.name);
    (dtype != DType::Float16).then(|| FP32_STATE.found(message).at(chain.state.node))
}

/// More than one write: an earlier one that is lost, or else how many there are.
fn several_writes(block: &Block<'_>, chain: &StateChain) -> Option<Found> {
    let mut count = 0;
    let mut second = None;
    let mut lost = None;
    // The last write, and what it wrote, as long as nothing has read the state since.
    let mut unread: Option<(NodeId, ValueId)> = None;
    for access in &chain.accesses {
        match access.kind {
            Kind::Read { .. } | Kind::Other(Access::Read) => unread = None,
            Kind::Other(Access::Write) => {
                count += 1;
                unread = None;
                second = second.or((count == 2).then_some(access.node));
            }
            Kind::Write { data, .. } => {
                count += 1;
                second = second.or((count == 2).then_some(access.node));
                if let Some((before, written)) = unread
                    && block.graph.used_once(written)
                {
                    lost = lost.or(Some((before, access.node)));
                }
                unread = data.map(|data| (access.node, data));
            }
        }
    }
    let name = &chain.name;
    if let Some((before, after)) = lost {
        let message = format!(
            "what `{}` writes to `{name}` is replaced before anything reads it",
            block.label(before)
        );
        return Some(TWO_WRITES.found(message).at(after));
    }
    let message = format!("`{name}` is written {count} times in a call");
    second.map(|second| TWO_WRITES.found(message).at(second).severities(INFO))
}

/// The first use of what a state held before a write, after that write.
fn stale_read(
    block: &Block<'_>,
    chain: &StateChain,
    places: &HashMap<NodeId, usize>,
) -> Option<Found> {
    let is_write = |kind: Kind| matches!(kind, Kind::Write { .. } | Kind::Other(Access::Write));
    let mut writes = chain
        .accesses
        .iter()
        .filter(|access| is_write(access.kind))
        .peekable();
    for access in &chain.accesses {
        let Kind::Read { result, .. } = access.kind else {
            continue;
        };
        while writes
            .next_if(|write| write.place <= access.place)
            .is_some()
        {}
        let write = writes.peek()?;
        let users = block.graph.uses(result).filter_map(|site| {
            let place = *places.get(&site.user)?;
            let is_argument = matches!(site.slot, Slot::Argument { .. });
            (is_argument && place > write.place).then_some((place, site.user))
        });
        let Some((_, user)) = users.min() else {
            continue;
        };
        let is_written = chain.accesses.iter().any(|access| {
            matches!(access.kind, Kind::Write { data: Some(data), .. } if data.node == user)
        });
        let end = if is_written {
            ", and is written back: that write is undone"
        } else {
            ""
        };
        let message = format!(
            "`{}` is what `{}` held before `{}` wrote it{end}",
            block.graph.name(result),
            chain.name,
            block.label(write.node)
        );
        return Some(STALE_READ.found(message).at(user));
    }
    None
}

/// Outputs that are parts of a state, if something else uses the same part.
fn outputs(block: &Block<'_>) -> Vec<Found> {
    let graph = block.graph;
    let mut found = Vec::new();
    for output in graph.outputs() {
        let Some((state, steps @ 1..)) = read_from(graph, *output) else {
            continue;
        };
        let mut value = *output;
        // The operation that makes the output of the value.
        let mut left = None;
        for _ in 0..steps {
            let mut uses = graph.uses(value);
            let other = uses
                .find(|site| matches!(site.slot, Slot::Argument { .. }) && Some(site.user) != left);
            if let Some(other) = other {
                let way = if value == *output {
                    "is an output".to_owned()
                } else {
                    format!("goes to the output `{}`", graph.name(*output))
                };
                let message = format!(
                    "`{}`, a part of `{}`, {way}, and `{}` uses it too",
                    graph.name(value),
                    graph.name(state),
                    block.label(other.user)
                );
                found.push(STATE_AND_OUTPUT.found(message).at(value.node));
                break;
            }
            left = Some(value.node);
            let Some(next) = graph.producer(value).and_then(|op| op.value("x")) else {
                break;
            };
            value = next;
        }
    }
    found
}
