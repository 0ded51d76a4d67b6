//! Where the operations of a function are expected to run: an estimate, or what a Mac measured.
//!
//! Nothing but Core ML on the device knows where an operation runs. What [`estimate`] says follows from
//! published observations of compute plans ([`facts`]), each of which holds for the devices and the
//! system that somebody looked at. A plan that a Mac made ([`Plan`]) goes before it.

pub mod facts;
mod plan;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use crate::ir::{
    Binding, DType, Graph, Node, NodeId, Operation, Program, TensorType, Value, ValueId,
};
use crate::ops::Opset;
use crate::pass::{Block, NoBlobs};
pub use plan::{Plan, PlanError};

/// What an operation runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Device {
    /// The Neural Engine.
    Ane,
    /// The GPU.
    Gpu,
    /// The CPU.
    Cpu,
}

impl Device {
    /// All devices.
    pub const ALL: [Self; 3] = [Self::Ane, Self::Gpu, Self::Cpu];

    /// The word in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ane => "ANE",
            Self::Gpu => "GPU",
            Self::Cpu => "CPU",
        }
    }
}

/// Operations that leave the Neural Engine for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// Where they run.
    pub device: Device,
    /// Why.
    pub why: &'static str,
    /// How many there are.
    pub ops: usize,
    /// The first of them.
    pub first: String,
}

/// Where the operations of one function run.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// The stage of a pipeline; empty if the model is one program.
    pub stage: String,
    /// The function.
    pub function: String,
    /// The number of operations on each device, in the order of [`Device::ALL`]. Constants are none.
    pub ops: [usize; 3],
    /// The bytes of the weights that they read, as stored, each weight once: where it is read first.
    pub bytes: [u64; 3],
    /// How many stretches of operations on one device there are, in the order of the program.
    pub runs: usize,
    /// Why operations leave the Neural Engine, the most frequent reason first.
    pub reasons: Vec<Reason>,
    /// The number of operations whose device is from a plan.
    pub measured: usize,
}

impl Placement {
    /// The number of operations.
    pub fn count(&self) -> usize {
        self.ops.iter().sum()
    }

    /// The share of operations on the Neural Engine; all of none.
    pub fn ane_fraction(&self) -> f64 {
        match self.count() {
            0 => 1.0,
            count => self.ops[0] as f64 / count as f64,
        }
    }

    /// How often the data goes from one device to another.
    pub fn changes(&self) -> usize {
        self.runs.saturating_sub(1)
    }
}

/// The placement of each function of a program, from its types and small constants alone.
pub fn estimate(program: &Program, stage: &str, plan: Option<&Plan>) -> Vec<Placement> {
    let functions = program.functions.iter();
    functions
        .filter_map(|(name, function)| {
            let mut walk = Walk {
                plan,
                placement: Placement {
                    stage: stage.to_owned(),
                    function: name.clone(),
                    ..Placement::default()
                },
                reasons: BTreeMap::new(),
                last: None,
                seen: BTreeSet::new(),
            };
            let block = Block {
                graph: &function.active()?.graph,
                outer: None,
                opset: Opset::parse(&function.opset),
                blobs: &NoBlobs,
                ranges: None,
            };
            walk.block(&block);
            Some(walk.finish())
        })
        .collect()
}

struct Walk<'p> {
    plan: Option<&'p Plan>,
    placement: Placement,
    reasons: BTreeMap<(Device, &'static str), (usize, String)>,
    /// Where the operation before runs.
    last: Option<Device>,
    /// The weights that were counted: their nodes, in the outermost block.
    seen: BTreeSet<NodeId>,
}

impl Walk<'_> {
    fn block(&mut self, block: &Block<'_>) {
        for node in block.graph.schedule().unwrap_or_default().iter() {
            let Some(op) = block.op(*node) else { continue };
            if is_computed(op) {
                self.op(block, *node, op);
            }
            for graph in op.blocks() {
                self.block(&Block {
                    graph,
                    outer: Some(block),
                    ..*block
                });
            }
        }
    }

    fn op(&mut self, block: &Block<'_>, node: NodeId, op: &Operation) {
        let guess = if block.outer.is_some() {
            (Device::Cpu, facts::IN_A_BLOCK)
        } else {
            facts::place(block, op)
        };
        let measured = self.plan.and_then(|plan| {
            let mut results = op.results().iter();
            results.find_map(|result| plan.device(&self.placement.function, &result.name))
        });
        let (device, why) = match measured {
            // A reason that explains what was measured is worth to be said.
            Some(device) if device == guess.0 => guess,
            Some(device) => (device, facts::MEASURED),
            None => guess,
        };
        self.placement.measured += usize::from(measured.is_some());
        self.placement.ops[device as usize] += 1;
        if self.last != Some(device) {
            self.placement.runs += 1;
            self.last = Some(device);
        }
        if device != Device::Ane {
            let reason = self.reasons.entry((device, why));
            let reason = reason.or_insert_with(|| (0, block.label(node)));
            reason.0 += 1;
        }
        let bytes = self.weights(block.graph, op, block.outer.is_none());
        self.placement.bytes[device as usize] += bytes;
    }

    /// The bytes of the constants that an operation reads and that were not counted before.
    fn weights(&mut self, graph: &Graph, op: &Operation, is_outermost: bool) -> u64 {
        let mut bytes = 0;
        let bindings = op
            .arguments()
            .iter()
            .flat_map(|argument| &argument.bindings);
        for binding in bindings {
            match binding {
                Binding::Immediate(value) => bytes += stored(value),
                Binding::Value(value) => {
                    bytes += self.constant(graph, *value, is_outermost);
                }
                Binding::Absent => {}
            }
        }
        bytes
    }

    fn constant(&mut self, graph: &Graph, value: ValueId, is_outermost: bool) -> u64 {
        let Some(Node::Op(op)) = graph.node(value.node) else {
            return 0;
        };
        let is_new = !is_outermost || self.seen.insert(value.node);
        if is_computed(op) || !is_new {
            return 0;
        }
        let own: u64 = op.attributes().iter().map(|(_, value)| stored(value)).sum();
        own + self.weights(graph, op, is_outermost)
    }

    fn finish(mut self) -> Placement {
        let reasons = self.reasons.into_iter();
        self.placement.reasons = reasons
            .map(|((device, why), (ops, first))| Reason {
                device,
                why,
                ops,
                first,
            })
            .collect();
        let most = |reason: &Reason| std::cmp::Reverse(reason.ops);
        self.placement.reasons.sort_by_key(most);
        self.placement
    }
}

/// Whether an operation runs each time that the model does.
fn is_computed(op: &Operation) -> bool {
    op.op_type() != "const" && !op.op_type().starts_with("constexpr_")
}

/// The bytes of a constant tensor by its type. Sizes, axes and flags are no weights.
fn stored(value: &Value) -> u64 {
    let weight = value.tensor_type().filter(|ty| {
        let is_number = !matches!(ty.dtype, DType::Int32 | DType::Bool | DType::String);
        is_number && !ty.dims.is_empty()
    });
    weight
        .and_then(TensorType::packed_bytes)
        .unwrap_or_default()
}
