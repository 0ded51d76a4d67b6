//! What has to change in one body so that its stream is multiplied, all of it known before anything is.

use std::collections::{BTreeMap, BTreeSet};

use crate::analysis::norm::{self, Found};
use crate::analysis::residual::Stream;
use crate::analysis::weight;
use crate::ir::{Binding, BlobRef, DType, Node, NodeId, Operation, ValueId};
use crate::pass::Block;

use super::absorb::{Absorbed, BlobUses, Carrier};
use super::epsilon::Epsilons;

/// One operand of an operation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot {
    pub(super) node: NodeId,
    pub(super) parameter: String,
    /// Which of several bindings.
    pub(super) index: usize,
}

impl Slot {
    pub(super) fn new(node: NodeId, parameter: &str) -> Self {
        Self {
            node,
            parameter: parameter.to_owned(),
            index: 0,
        }
    }

    pub(super) fn binding<'a>(&self, block: &Block<'a>) -> Option<&'a Binding> {
        let argument = block.op(self.node)?.argument(&self.parameter)?;
        argument.bindings.get(self.index)
    }
}

/// A change of a body.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// The constant that these operands read is multiplied.
    Constant { slots: Vec<Slot>, factor: f64 },
    /// An operand becomes a number.
    Number {
        slot: Slot,
        dtype: DType,
        number: f64,
    },
    /// An operand becomes another value.
    Value { slot: Slot, value: ValueId },
    /// These operands read the value times α.
    Product { value: ValueId, slots: Vec<Slot> },
}

/// What is asked for.
pub(super) struct Request {
    pub(super) alpha: f64,
    /// The first value of the stream that is scaled.
    pub(super) first: usize,
    /// Whether inputs and outputs may be scaled.
    pub(super) chunk: bool,
}

/// All changes of a body.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) changes: Vec<Change>,
    /// Additions to what is scaled.
    pub(super) writes: usize,
    /// Inputs that have to come scaled.
    pub(super) inputs: Vec<String>,
    /// Outputs that are scaled.
    pub(super) outputs: Vec<String>,
    /// Epsilons that fp16 holds only as a subnormal number or as zero.
    pub(super) subnormal: usize,
}

impl Plan {
    /// How many constants are multiplied.
    pub(super) fn constants(&self) -> usize {
        let is_constant = |change: &&Change| matches!(change, Change::Constant { .. });
        self.changes.iter().filter(is_constant).count()
    }

    /// How many products are inserted.
    pub(super) fn products(&self) -> usize {
        let is_product = |change: &&Change| matches!(change, Change::Product { .. });
        self.changes.iter().filter(is_product).count()
    }

    /// How many epsilons and floors change.
    pub(super) fn epsilons(&self) -> usize {
        let is_number = |change: &&Change| matches!(change, Change::Number { .. });
        self.changes.iter().filter(is_number).count()
    }

    fn absorb(&mut self, absorbed: Vec<Absorbed>) {
        let constants = absorbed.into_iter().map(|absorbed| Change::Constant {
            slots: vec![absorbed.slot],
            factor: absorbed.factor,
        });
        self.changes.extend(constants);
    }
}

/// Why a stream cannot be multiplied.
pub(super) struct Stop {
    pub(super) at: NodeId,
    pub(super) why: String,
}

impl Stop {
    pub(super) fn new(at: NodeId, why: impl Into<String>) -> Self {
        Self {
            at,
            why: why.into(),
        }
    }
}

/// A stream with all copies of its values.
struct Planner<'b, 'a> {
    block: &'b Block<'a>,
    stream: &'b Stream,
    request: &'b Request,
    copies: BTreeMap<ValueId, usize>,
    plan: Plan,
}

/// All that has to change in a body, or why it cannot.
pub(super) fn plan(block: &Block<'_>, stream: &Stream, request: &Request) -> Result<Plan, Stop> {
    let mut planner = Planner {
        block,
        stream,
        request,
        copies: stream.copies(block),
        plan: Plan::default(),
    };
    planner.ends()?;
    planner.readers()?;
    planner.clips()?;
    planner.source()?;
    planner.writes();
    Ok(planner.plan)
}

impl Planner<'_, '_> {
    /// Whether the value of the stream itself becomes another, not only what reads it.
    fn is_scaled(&self, at: usize) -> bool {
        self.request.first == 0 || at > self.request.first
    }

    /// Inputs and outputs.
    fn ends(&mut self) -> Result<(), Stop> {
        const CHUNK: &str = "all chunks of a model must be scaled by the same number; give chunk=true \
                             and --interface-changes";
        let start = self.stream.start;
        if self.request.first == 0
            && let Some(Node::Input(..)) = self.block.graph.node(start.node)
        {
            let name = self.block.graph.name(start);
            if !self.request.chunk {
                let why = format!("the stream enters by the input `{name}`: {CHUNK}");
                return Err(Stop::new(start.node, why));
            }
            self.plan.inputs.push(name.to_owned());
        }
        for (at, value) in &self.stream.outputs {
            if self.is_scaled(*at) {
                let name = self.block.graph.name(*value);
                if !self.request.chunk {
                    let why = format!("the stream leaves by the output `{name}`: {CHUNK}");
                    return Err(Stop::new(value.node, why));
                }
                self.plan.outputs.push(name.to_owned());
            }
        }
        Ok(())
    }

    /// Norms get an epsilon that fits; any other reader stops it.
    fn readers(&mut self) -> Result<(), Stop> {
        let mut epsilons = Epsilons::new(self.block, self.request.alpha);
        for reader in &self.stream.readers {
            if reader.at < self.request.first {
                continue;
            }
            if !reader.is_norm {
                // What reads the value in front of the first layer goes on to read it as it was.
                if self.is_scaled(reader.at) {
                    return Err(self.not_invariant(reader.node));
                }
                continue;
            }
            if let Found::Norm(found) = norm::at(self.block, reader.node) {
                epsilons.follow(&found)?;
            }
        }
        self.plan.subnormal = epsilons.subnormal;
        self.plan.changes.extend(epsilons.changes);
        Ok(())
    }

    /// What to say of a reader that is no norm: what kept a norm behind it from being one, if there is.
    fn not_invariant(&self, node: NodeId) -> Stop {
        let label = self.block.label(node);
        let op_type = self.block.op(node).map_or("input", Operation::op_type);
        // The operations behind it, the nearest first.
        let mut behind = vec![node];
        let mut next = 0;
        while let Some(node) = behind.get(next).copied() {
            next += 1;
            if let Found::Nearly(at, why) = norm::at(self.block, node) {
                let why = format!(
                    "`{label}` ({op_type}) reads the stream for what is no known norm: {why}"
                );
                return Stop::new(at, why);
            }
            for site in self.block.graph.uses(ValueId::first(node)) {
                if behind.len() < NEAR && !behind.contains(&site.user) {
                    behind.push(site.user);
                }
            }
        }
        let why = format!("`{label}` ({op_type}) reads the stream and is not scale-invariant");
        Stop::new(node, why)
    }

    /// The bounds of clips grow with what they clip.
    fn clips(&mut self) -> Result<(), Stop> {
        for clip in &self.stream.clips {
            let at = self.copies.get(&ValueId::first(*clip)).copied();
            if !at.is_some_and(|at| self.is_scaled(at)) {
                continue;
            }
            for bound in ["alpha", "beta"] {
                let slot = Slot::new(*clip, bound);
                match slot.binding(self.block) {
                    Some(binding) if weight::can_scale(self.block, binding) => {
                        self.plan.changes.push(Change::Constant {
                            slots: vec![slot],
                            factor: self.request.alpha,
                        });
                    }
                    _ => return Err(Stop::new(*clip, "a bound of the clip is no constant")),
                }
            }
        }
        Ok(())
    }

    /// All operands that read a value.
    fn slots(&self, value: ValueId) -> Vec<Slot> {
        let users: BTreeSet<NodeId> = self.block.graph.uses(value).map(|site| site.user).collect();
        let mut slots = Vec::new();
        for node in users {
            let arguments = self.block.op(node).map(Operation::arguments);
            for argument in arguments.unwrap_or_default() {
                for (index, binding) in argument.bindings.iter().enumerate() {
                    if *binding == Binding::Value(value) {
                        slots.push(Slot {
                            node,
                            parameter: argument.parameter.clone(),
                            index,
                        });
                    }
                }
            }
        }
        slots
    }

    fn carried(
        &self,
        carry: impl FnOnce(&Carrier<'_, '_>) -> Option<Vec<Absorbed>>,
        blobs: &BlobUses,
    ) -> Option<Vec<Absorbed>> {
        let is_stream = |value: ValueId| self.copies.contains_key(&value);
        carry(&Carrier::new(self.block, &is_stream, blobs))
    }

    /// Where the stream begins, or where the first layer reads it.
    fn source(&mut self) -> Result<(), Stop> {
        let alpha = self.request.alpha;
        if self.request.first > 0 {
            self.enter();
            return Ok(());
        }
        let start = self.stream.start;
        let slots = self.slots(start);
        let op = match self.block.graph.node(start.node) {
            Some(Node::Op(op)) => op,
            Some(Node::Input(..)) => return Ok(()),
            _ => return Err(Stop::new(start.node, "the stream comes from another block")),
        };
        if op.op_type() == "const" || op.op_type().starts_with("constexpr_") {
            if !weight::can_scale(self.block, &Binding::Value(start)) {
                return Err(Stop::new(start.node, "the constant cannot be multiplied"));
            }
            let factor = alpha;
            self.plan.changes.push(Change::Constant { slots, factor });
            return Ok(());
        }
        let blobs = blob_uses(self.block);
        let absorbed = if start.result == 0 {
            self.carried(|carrier| carrier.result(start.node, alpha), &blobs)
        } else {
            None
        };
        match absorbed {
            Some(absorbed) => self.plan.absorb(absorbed),
            None if self.block.graph.is_output(start) => {
                let why = "the start of the stream is an output, and no constant takes the factor";
                return Err(Stop::new(start.node, why));
            }
            None => self.plan.changes.push(Change::Product {
                value: start,
                slots,
            }),
        }
        Ok(())
    }

    /// A product in front of what the first layer and all behind it read of the value that enters it.
    fn enter(&mut self) {
        let others: BTreeSet<NodeId> = self
            .stream
            .readers
            .iter()
            .filter(|reader| reader.at == self.request.first && !reader.is_norm)
            .map(|reader| reader.node)
            .collect();
        let copies: Vec<ValueId> = self
            .copies
            .iter()
            .filter(|(_, at)| **at == self.request.first)
            .map(|(value, _)| *value)
            .collect();
        for value in copies {
            let mut slots = self.slots(value);
            slots.retain(|slot| {
                !others.contains(&slot.node)
                    && self.copies.get(&ValueId::first(slot.node)) != Some(&self.request.first)
            });
            if !slots.is_empty() {
                self.plan.changes.push(Change::Product { value, slots });
            }
        }
    }

    /// What the branches add.
    fn writes(&mut self) {
        let alpha = self.request.alpha;
        let blobs = BlobUses::new();
        for write in self.stream.writes.iter().skip(self.request.first) {
            self.plan.writes += 1;
            let other = if write.stream == "x" { "y" } else { "x" };
            let slot = Slot::new(write.add, other);
            // A sum of the stream with itself, or with what it was earlier: that is scaled already.
            let earlier = self.copies.get(&write.branch);
            if earlier.is_some_and(|at| *at >= self.request.first) {
                continue;
            }
            match self.carried(|carrier| carrier.operand(&slot, alpha), &blobs) {
                Some(absorbed) => self.plan.absorb(absorbed),
                None => self.plan.changes.push(Change::Product {
                    value: write.branch,
                    slots: vec![slot],
                }),
            }
        }
    }
}

/// How many operations behind a reader are looked at for a norm.
const NEAR: usize = 16;

/// How many constants of a block have the data of each place in a weight file.
fn blob_uses(block: &Block<'_>) -> BlobUses {
    let mut uses: BTreeMap<BlobRef, usize> = BTreeMap::new();
    for (_, op) in block.graph.ops() {
        if let Some(blob) = op.const_value().and_then(|value| value.blob()) {
            *uses.entry(blob.clone()).or_default() += 1;
        }
    }
    uses
}
