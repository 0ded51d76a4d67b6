//! What becomes of everything that reads a concat: all of it can go, or none does.

use std::collections::BTreeMap;

use crate::analysis::joined::{Joined, parts};
use crate::analysis::product::{Product, Sum, is_product};
use crate::ir::{Binding, NodeId, Operation, Slot, ValueId};
use crate::pass::Block;

/// Operations between a concat and what ends a branch of its readers.
const MAX_DEPTH: usize = 16;
/// Operations that read a concat, directly or not, so that the work for one is bounded.
const MAX_STEPS: usize = 256;

/// Operations that compute each element of the result from one element of `x`.
const POINTWISE: [&str; 39] = [
    "abs",
    "acos",
    "asin",
    "atan",
    "atanh",
    "cast",
    "ceil",
    "clamped_relu",
    "clip",
    "cos",
    "cosh",
    "elu",
    "erf",
    "exp",
    "exp2",
    "floor",
    "gelu",
    "identity",
    "inverse",
    "leaky_relu",
    "linear_activation",
    "log",
    "relu",
    "relu6",
    "round",
    "rsqrt",
    "scaled_tanh",
    "sigmoid",
    "sigmoid_hard",
    "sign",
    "silu",
    "sin",
    "sinh",
    "softplus",
    "softsign",
    "sqrt",
    "square",
    "tan",
    "tanh",
];
/// The same, with names that come after those.
const MORE_POINTWISE: [&str; 2] = ["threshold", "thresholded_relu"];

/// Operations that compute each channel of the result, axis 1, from the same channel of `x`.
const CHANNELWISE: [&str; 5] = [
    "avg_pool",
    "l2_pool",
    "max_pool",
    "upsample_bilinear",
    "upsample_nearest_neighbor",
];

/// Operations of two operands that are pointwise if one of them is one number.
const BINARY: [&str; 7] = ["add", "maximum", "minimum", "mul", "pow", "real_div", "sub"];

/// What becomes of the readers of a concat.
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    /// The outputs of the block that become several.
    pub(super) outputs: Vec<ValueId>,
    operands: usize,
}

/// What becomes of one reader, given the operands as values of their own.
pub(super) enum Step {
    /// A product becomes a sum of products.
    Sum { result: ValueId, sum: Sum },
    /// These results of a slice or split are operands.
    Slices(Vec<(ValueId, usize)>),
    /// Another concat along the same axis reads the operands where it read this value.
    Join { node: NodeId, value: ValueId },
    /// This output of the block becomes several.
    Output(ValueId),
    /// An operation is made for each operand, and then its readers have their turn.
    Each {
        op_type: String,
        parameter: String,
        arguments: BTreeMap<String, Vec<Binding>>,
        then: Vec<Step>,
    },
}

/// Where a plan fails, and why.
type Obstacle = (NodeId, String);

impl Plan {
    /// A plan for everything that reads the result of a concat. `outputs` says whether outputs of
    /// the block may become several.
    pub(super) fn of(
        block: &Block<'_>,
        result: ValueId,
        joined: &Joined,
        outputs: bool,
    ) -> Result<Self, Obstacle> {
        let mut search = Search {
            block,
            joined,
            outputs: outputs.then(Vec::new),
            left: MAX_STEPS,
            taken: Vec::new(),
        };
        let steps = search.readers(result, MAX_DEPTH)?;
        if steps.is_empty() {
            return Err((result.node, "nothing reads it".to_owned()));
        }
        Ok(Self {
            steps,
            outputs: search.outputs.unwrap_or_default(),
            operands: joined.operands.len(),
        })
    }

    /// What the plan does with operations, in one line; nothing if there are only outputs.
    pub(super) fn what(&self) -> Option<String> {
        let (mut products, mut slices, mut joins) = (0, 0, 0);
        let mut open: Vec<&Step> = self.steps.iter().collect();
        while let Some(step) = open.pop() {
            match step {
                Step::Sum { .. } => products += 1,
                Step::Slices(_) => slices += 1,
                Step::Join { .. } => joins += 1,
                Step::Output(_) => {}
                Step::Each { then, .. } => open.extend(then),
            }
        }
        if products + slices + joins == 0 {
            return None;
        }
        let mut words = Vec::new();
        let mut say = |count: usize, one: &str, many: &str| {
            if count > 0 {
                let word = if count == 1 { one } else { many };
                words.push(format!("{count} {word}"));
            }
        };
        say(products, "product", "products");
        say(slices, "slice or split", "slices or splits");
        say(joins, "concat", "concats");
        Some(format!(
            "{} {} the {} one by one",
            words.join(" and "),
            if products + slices + joins == 1 {
                "reads"
            } else {
                "read"
            },
            match self.operands {
                1 => "operand".to_owned(),
                many => format!("{many} operands"),
            }
        ))
    }
}

/// Why a concat stays that is an output of this block.
pub(super) fn is_output(block: &Block<'_>) -> String {
    let option = "; with the option `outputs` each operand becomes one";
    let option = if block.outer.is_none() { option } else { "" };
    format!("it is an output of the block{option}")
}

/// The operand of which an operation computes each element from one element.
pub(super) fn pointwise_operand(block: &Block<'_>, op: &Operation) -> Option<ValueId> {
    let op_type = op.op_type();
    let is_pointwise = [&POINTWISE[..], &MORE_POINTWISE, &CHANNELWISE]
        .iter()
        .any(|types| types.contains(&op_type));
    if is_pointwise {
        return op.value("x");
    }
    if !BINARY.contains(&op_type) {
        return None;
    }
    let is_tensor = |value: &ValueId| block.tensor(*value).is_some_and(|ty| ty.rank != 0);
    let mut operands = [op.value("x"), op.value("y")].into_iter().flatten();
    operands.find(is_tensor)
}

struct Search<'a> {
    block: &'a Block<'a>,
    joined: &'a Joined,
    /// The outputs found so far, if they may become several.
    outputs: Option<Vec<ValueId>>,
    left: usize,
    /// Operands that take the name of an output; each can take one.
    taken: Vec<(ValueId, usize)>,
}

impl Search<'_> {
    /// The steps for everything that reads a value.
    fn readers(&mut self, value: ValueId, depth: usize) -> Result<Vec<Step>, Obstacle> {
        let mut steps = Vec::new();
        if self.block.graph.is_output(value) {
            match &mut self.outputs {
                Some(outputs) => outputs.push(value),
                None => return Err((value.node, is_output(self.block))),
            }
            steps.push(Step::Output(value));
        }
        let mut users: Vec<NodeId> = Vec::new();
        for one in self.block.graph.uses(value) {
            if matches!(one.slot, Slot::Output(_)) {
                continue;
            }
            if matches!(one.slot, Slot::Capture { .. }) {
                return Err((one.user, "a nested block reads it".to_owned()));
            }
            if !users.contains(&one.user) {
                users.push(one.user);
            }
            self.left = self
                .left
                .checked_sub(1)
                .ok_or_else(|| (value.node, "too many operations read it".to_owned()))?;
        }
        users.reverse();
        for user in users {
            let step = self.reader(user, value, depth).map_err(|why| match why {
                Stop::Here(why) => (user, why),
                Stop::There(obstacle) => obstacle,
            })?;
            steps.push(step);
        }
        Ok(steps)
    }

    fn reader(&mut self, user: NodeId, value: ValueId, depth: usize) -> Result<Step, Stop> {
        let op = self.block.op(user).ok_or("it is not known what reads it")?;
        let result = ValueId::first(user);
        if is_product(op) {
            let product = Product::of(self.block, user, value)?;
            if !product.is_constant() {
                return Err("the weight is not a constant".into());
            }
            if product.axis != self.joined.axis {
                return Err("the concat is along another axis than the product contracts".into());
            }
            let ends = self.joined.operands.iter().map(|(_, _, end)| *end as u64);
            let sum = product.sum(self.block, &ends.collect::<Vec<_>>())?;
            return Ok(Step::Sum { result, sum });
        }
        match op.op_type() {
            "slice_by_index" | "split" => return self.slices(user, op, value),
            "concat" => {
                let inner = Joined::of(self.block, op);
                let is_same = inner.is_some_and(|inner| inner.axis == self.joined.axis);
                if !is_same || self.block.bool_or(op, "interleave", false) != Some(false) {
                    return Err("a concat along another axis reads it".into());
                }
                return Ok(Step::Join { node: user, value });
            }
            _ => {}
        }
        let parameter = self.pointwise(op, value)?;
        let depth = depth.checked_sub(1).ok_or("too many operations follow")?;
        let then = self.readers(result, depth).map_err(Stop::There)?;
        let arguments = op
            .arguments()
            .iter()
            .map(|argument| (argument.parameter.clone(), argument.bindings.clone()))
            .collect();
        Ok(Step::Each {
            op_type: op.op_type().to_owned(),
            parameter: parameter.to_owned(),
            arguments,
            then,
        })
    }

    /// The parameter by which an operation reads the value, if it treats every part of it alike.
    fn pointwise(&self, op: &Operation, value: ValueId) -> Result<&'static str, String> {
        let op_type = op.op_type();
        let stopped = || format!("`{op_type}` reads it");
        let is_x = op.value("x") == Some(value);
        let others = op
            .arguments()
            .iter()
            .flat_map(|argument| &argument.bindings)
            .filter(|binding| **binding == Binding::Value(value))
            .count();
        if others != 1 {
            return Err(stopped());
        }
        if POINTWISE.contains(&op_type) || MORE_POINTWISE.contains(&op_type) {
            return if is_x { Ok("x") } else { Err(stopped()) };
        }
        if CHANNELWISE.contains(&op_type) {
            let rank = self.block.tensor(value).map_or(0, |ty| ty.dims.len());
            if is_x && self.joined.axis == 1 && rank >= 3 {
                return Ok("x");
            }
        }
        if BINARY.contains(&op_type) {
            let (own, other) = if is_x { ("x", "y") } else { ("y", "x") };
            let number = match op.binding(other) {
                Some(Binding::Immediate(value)) => value.tensor_type(),
                Some(Binding::Value(value)) => self.block.tensor(*value),
                _ => None,
            };
            if number.is_some_and(|ty| ty.rank == 0) {
                return Ok(own);
            }
        }
        Err(stopped())
    }

    /// The operands that the results of a slice or split are.
    fn slices(&mut self, user: NodeId, op: &Operation, value: ValueId) -> Result<Step, Stop> {
        if op.value("x") != Some(value) {
            return Err("its bounds are not known".into());
        }
        let mut slices = Vec::new();
        for (result, begin, end) in parts(self.block, op, user, self.joined)? {
            if self.block.graph.uses(result).next().is_none() {
                continue;
            }
            let operand = self
                .joined
                .operands
                .iter()
                .position(|(_, from, to)| (*from, *to) == (begin, end))
                .ok_or("what it picks is not exactly one operand of the concat")?;
            let old = self.joined.operands.get(operand).map(|(value, ..)| *value);
            let is_direct = self.block.producer_of_type(value, "concat").is_some();
            if let (true, Some(old)) = (is_direct, old) {
                self.block
                    .graph
                    .can_replace(result, old)
                    .map_err(|refusal| refusal.to_string())?;
            }
            if self.block.graph.is_output(result) {
                let place = (
                    if is_direct {
                        old.unwrap_or(value)
                    } else {
                        value
                    },
                    operand,
                );
                if self
                    .taken
                    .iter()
                    .any(|taken| taken.0 == place.0 && (is_direct || taken.1 == operand))
                {
                    return Err("an operand would have to take the names of two outputs".into());
                }
                self.taken.push(place);
            }
            slices.push((result, operand));
        }
        Ok(Step::Slices(slices))
    }
}

/// Why a reader cannot be served.
enum Stop {
    Here(String),
    There(Obstacle),
}

impl From<&str> for Stop {
    fn from(why: &str) -> Self {
        Self::Here(why.to_owned())
    }
}

impl From<String> for Stop {
    fn from(why: String) -> Self {
        Self::Here(why)
    }
}
