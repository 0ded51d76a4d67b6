//! finite-masks: mask values that are infinite, or overflow in fp16, become large and finite.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::eval;
use crate::ir::{Binding, DType, Node, NodeId, Operation, Slot, TensorType, Use, Value, ValueId};
use crate::ops::Opset;
use crate::pass::options::{self, OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Edit, Evidence, Exactness, Family, Matcher, Meta, Missed, Pass, Rule, Severity,
    Target,
};
use crate::tensor::Tensor;

/// The pass.
pub(super) struct FiniteMasks;

static META: Meta = Meta {
    id: "finite-masks",
    family: Family::Numerics,
    summary: "mask values below -30000 that reach only a softmax become -10000",
    exactness: Exactness::Approx(1e-6),
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &[],
    default: true,
    after: &["fold-consts"],
    page: include_str!("README.md"),
};

/// Values below this one are replaced. coremltools itself writes −3e4 for a bool mask, which may stay:
/// two such masks add up to −6e4, which fp16 still holds.
const LOWEST: f32 = -3e4;

/// Constants with more elements than this are looked into last.
const SMALL: u64 = 1024;

/// A mask of 4096 queries and as many keys; larger constants that do not reach a softmax are not looked
/// into at all.
const LARGEST: u64 = 1 << 24;

/// Masks pass through fewer operations than this on their way to a softmax.
const MAX_DEPTH: usize = 32;

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    /// What takes the place of a mask value.
    value: f32,
}

impl Default for Options {
    fn default() -> Self {
        Self { value: -1e4 }
    }
}

const MASK_INFINITY: Rule = Rule {
    id: "mask-infinity",
    summary: "a mask value that is infinite, or so large that sums of it are",
    why: "0 * -infinity is NaN, so that (1 - mask) * -infinity is NaN for every token that is kept: a \
          released classifier answered nothing but NaN on the CPU (EnviousWispr issue 1226). A row \
          whose tokens are all masked with -infinity is NaN after the softmax. coremltools lets -3.4e38 \
          become -infinity in fp16 (pull request 2669).",
    help: "finite-masks makes it -10000, of which a softmax makes 0 as well.",
    evidence: META.evidence,
    sources: &[
        "https://github.com/saurabhav88/EnviousWispr/issues/1226",
        "https://github.com/apple/coremltools/pull/2669",
    ],
    severity: Severity::Warning.everywhere(),
    catalog: &[],
};

impl Pass for FiniteMasks {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[MASK_INFINITY]
    }

    fn options(&self) -> OptionMap {
        options::defaults::<Options>()
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        let options: Options = options::read(META.id, options)?;
        // A lower one would be a mask value that this pass replaces, again and again.
        if !(LOWEST..0.0).contains(&options.value) {
            let why = format!(
                "option `value`: {} is not between {LOWEST} and 0",
                options.value
            );
            return Err(OptionError { pass: META.id, why });
        }
        Ok(Box::new(Masks(options)))
    }
}

struct Masks(Options);

/// A parameter of an operation that reads a mask.
#[derive(Clone)]
struct Reader {
    node: NodeId,
    parameter: String,
    position: usize,
}

impl Matcher for Masks {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let Some(op) = block.op(node) else {
            return Attempt::NoMatch;
        };
        if let Some(value) = op.const_value() {
            return self.constant(block, node, value);
        }
        for argument in op.arguments() {
            for (position, binding) in argument.bindings.iter().enumerate() {
                let reader = Reader {
                    node,
                    parameter: argument.parameter.clone(),
                    position,
                };
                if may_be_mask(op, &argument.parameter)
                    && let Some(value) = here(block, binding)
                    && let Some(attempt) = self.at_reader(block, value, reader)
                {
                    return attempt;
                }
            }
        }
        Attempt::NoMatch
    }
}

impl Masks {
    /// What comes of a constant that is known only at its reader; `None` if it has no mask value.
    fn at_reader(&self, block: &Block<'_>, value: &Value, reader: Reader) -> Option<Attempt> {
        // A large one is not looked into before it is known to reach a softmax: most are weights.
        let finite = if is_small(value) {
            Some(self.finite(block, value)?)
        } else {
            None
        };
        let product = multiplies(block, std::slice::from_ref(&reader));
        let attempt = match reaches_softmax(block, &reader, &mut BTreeSet::new(), MAX_DEPTH) {
            Ok(()) => {
                let finite = finite.or_else(|| self.finite(block, value))?;
                replaced(finite, vec![reader])
            }
            Err(missed) => {
                finite?;
                Attempt::CheckFailed(missed)
            }
        };
        Some(judged(block, attempt, value, product))
    }

    fn constant(&self, block: &Block<'_>, node: NodeId, value: &Value) -> Attempt {
        if is_small(value) && self.finite(block, value).is_none() {
            return Attempt::NoMatch;
        }
        let readers: Vec<Reader> = block
            .graph
            .uses(ValueId::first(node))
            .filter_map(|one| reader(block, one))
            .collect();
        let mut reached = Vec::new();
        let mut stopped = None;
        for reader in readers {
            match reaches_softmax(block, &reader, &mut BTreeSet::new(), MAX_DEPTH) {
                Ok(()) => reached.push(reader),
                Err(missed) => stopped = stopped.or(Some(missed)),
            }
        }
        if reached.is_empty() && stopped.is_none() {
            return Attempt::NoMatch;
        }
        let product = multiplies(block, &reached);
        let attempt = if !reached.is_empty() {
            let Some(finite) = self.finite(block, value) else {
                return Attempt::NoMatch;
            };
            replaced(finite, reached)
        } else if let Some(missed) = stopped.filter(|missed| {
            block.op(missed.at).is_some_and(is_near_mask)
                && is_mask_sized(value)
                && self.finite(block, value).is_some()
        }) {
            Attempt::CheckFailed(missed)
        } else {
            return Attempt::NoMatch;
        };
        judged(block, attempt, value, product)
    }

    /// The constant with finite mask values, if it has others. One with NaN or +∞ is no mask.
    fn finite(&self, block: &Block<'_>, value: &Value) -> Option<Value> {
        let tensor = value.tensor_type()?;
        if !tensor.dtype.is_float() {
            return None;
        }
        let tensor = block.elements(value)?;
        let elements = tensor.as_floats().ok()?;
        let has_other = elements.iter().any(|e| e.is_nan() || *e == f32::INFINITY);
        if has_other || !elements.iter().any(|element| *element < LOWEST) {
            return None;
        }
        let finite = elements
            .iter()
            .map(|element| {
                if *element < LOWEST {
                    self.0.value
                } else {
                    *element
                }
            })
            .collect();
        let finite = Tensor::floats(tensor.dtype(), tensor.shape().to_vec(), finite);
        eval::value(&finite).ok()
    }
}

/// The reader that multiplies the mask value with 1 − mask, if one does.
fn multiplies(block: &Block<'_>, readers: &[Reader]) -> Option<NodeId> {
    let multiplies = |reader: &&Reader| {
        block
            .op_of_type(reader.node, "mul")
            .is_some_and(|op| keeps_kept_tokens(block, op, &reader.parameter))
    };
    readers.iter().find(multiplies).map(|reader| reader.node)
}

/// The attempt with what the linter says of it: a product of 0 and infinity is wrong for certain, an
/// infinity that is added or selected is if all tokens of a row are masked, and a finite value may
/// become infinite in a sum, or in fp16. Of what cannot be rewritten it says nothing.
fn judged(block: &Block<'_>, attempt: Attempt, value: &Value, product: Option<NodeId>) -> Attempt {
    attempt.on_match(|| {
        let elements = block.elements(value);
        let elements = elements.as_ref().and_then(|tensor| tensor.as_floats().ok());
        let lowest = elements
            .iter()
            .flat_map(|elements| elements.iter().copied())
            .fold(0.0, f32::min);
        if lowest.is_finite() {
            let found = MASK_INFINITY.found(format!("the mask value is {lowest:e}"));
            return found.severity(Severity::Info);
        }
        if let Some(product) = product {
            let what = "(1 - mask) * -infinity is NaN for every token that is kept";
            let found = MASK_INFINITY.found(what).severity(Severity::Error);
            return found.at(product);
        }
        MASK_INFINITY.found("the mask value is -infinity")
    })
}

/// Whether a constant may be a mask by its size; a table of embeddings, which is added to something as
/// well, is not read for a remark.
fn is_mask_sized(value: &Value) -> bool {
    let elements = value.tensor_type().and_then(TensorType::elements);
    elements.is_some_and(|count| count <= LARGEST)
}

fn is_small(value: &Value) -> bool {
    let elements = value.tensor_type().and_then(TensorType::elements);
    elements.is_some_and(|count| count <= SMALL)
}

/// A constant that is no operation of this block: a literal, or one of a block around.
fn here<'a>(block: &Block<'a>, binding: &'a Binding) -> Option<&'a Value> {
    match binding {
        Binding::Immediate(value) => Some(value),
        Binding::Value(value) => match block.graph.node(value.node)? {
            Node::Capture { .. } => block.constant(*value),
            _ => None,
        },
        Binding::Absent => None,
    }
}

fn replaced(finite: Value, readers: Vec<Reader>) -> Attempt {
    let what = match readers.len() {
        1 => "a mask value becomes finite".to_owned(),
        count => format!("a mask value becomes finite for {count} readers"),
    };
    Attempt::matched(what, move |edit| {
        let constant = edit.constant(finite);
        for reader in &readers {
            rebind(edit, reader, &constant);
        }
        Ok(())
    })
}

fn rebind(edit: &mut Edit<'_>, reader: &Reader, constant: &Binding) {
    let op = edit.graph().op(reader.node);
    let argument = op.and_then(|op| op.argument(&reader.parameter));
    let mut bindings = argument.map_or_else(Vec::new, |argument| argument.bindings.clone());
    if let Some(binding) = bindings.get_mut(reader.position) {
        *binding = constant.clone();
    }
    edit.bind(reader.node, &reader.parameter, Some(bindings));
}

/// The reader, if it is an operation that a mask may go through.
fn reader(block: &Block<'_>, one: Use) -> Option<Reader> {
    let Slot::Argument { argument, position } = one.slot else {
        return None;
    };
    let op = block.op(one.user)?;
    let parameter = &op.arguments().get(argument as usize)?.parameter;
    may_be_mask(op, parameter).then(|| Reader {
        node: one.user,
        parameter: parameter.clone(),
        position: position as usize,
    })
}

/// Whether a mask may be this argument of an operation, on its way to a softmax or at its end.
fn may_be_mask(op: &Operation, parameter: &str) -> bool {
    match op.op_type() {
        "add" | "mul" => matches!(parameter, "x" | "y"),
        "select" => matches!(parameter, "a" | "b"),
        "concat" | "stack" => parameter == "values",
        "scaled_dot_product_attention" => parameter == "attn_mask",
        "softmax" | "cast" | "identity" | "reshape" | "transpose" | "expand_dims" | "squeeze"
        | "slice_by_index" | "slice_by_size" | "tile" | "split" | "gather" => parameter == "x",
        _ => false,
    }
}

/// Operations at which a mask is worth a remark if it goes no further.
fn is_near_mask(op: &Operation) -> bool {
    matches!(
        op.op_type(),
        "add" | "mul" | "select" | "softmax" | "scaled_dot_product_attention"
    )
}

/// Whether all that comes of a mask at this reader ends in a softmax or in an attention mask; else
/// where it does not, and why.
fn reaches_softmax(
    block: &Block<'_>,
    reader: &Reader,
    seen: &mut BTreeSet<NodeId>,
    depth: usize,
) -> Result<(), Missed> {
    let stop = |why: &str| {
        Err(Missed {
            why: why.to_owned(),
            at: reader.node,
        })
    };
    let Some(op) = block.op(reader.node) else {
        return stop("it is gone");
    };
    match op.op_type() {
        "softmax" | "scaled_dot_product_attention" => return Ok(()),
        "mul" if !keeps_kept_tokens(block, op, &reader.parameter) => {
            return stop("the other factor of the mask value is not 1 − mask");
        }
        _ => {}
    }
    if !seen.insert(reader.node) {
        return Ok(());
    }
    let Some(depth) = depth.checked_sub(1) else {
        return stop("the way to a softmax is too long");
    };
    for result in 0..op.results().len() as u32 {
        let value = ValueId {
            node: reader.node,
            result,
        };
        let mut is_used = false;
        for one in block.graph.uses(value) {
            is_used = true;
            match one.slot {
                Slot::Argument { .. } => {}
                Slot::Output(_) => return stop("a value that depends on it leaves the block"),
                Slot::Capture { .. } => {
                    reaches_inside(block, one, depth).map_err(|why| Missed {
                        why,
                        at: reader.node,
                    })?;
                    continue;
                }
            }
            let Some(next) = self::reader(block, one) else {
                let user = block.op(one.user).map_or("operation", |op| op.op_type());
                return Err(Missed {
                    why: format!("`{user}` reads a value that depends on it, and is no softmax"),
                    at: reader.node,
                });
            };
            reaches_softmax(block, &next, seen, depth)?;
        }
        if !is_used && op.results().len() == 1 {
            return stop("nothing reads what comes of it");
        }
    }
    Ok(())
}

/// Whether all that comes of a value inside of a nested block that it is used in ends in a softmax or in
/// an attention mask there; else why not.
fn reaches_inside(block: &Block<'_>, one: Use, depth: usize) -> Result<(), String> {
    let Slot::Capture { block: index, node } = one.slot else {
        return Err("it is not used in a block".to_owned());
    };
    let owner = block.op(one.user);
    let Some(graph) = owner.and_then(|op| op.blocks().get(index as usize)) else {
        return Err("a nested block that reads it is gone".to_owned());
    };
    let inner = Block {
        graph,
        outer: Some(block),
        ..*block
    };
    for one in graph.uses(ValueId::first(node)) {
        let next = match one.slot {
            Slot::Argument { .. } => reader(&inner, one).ok_or_else(|| {
                let user = inner.op(one.user).map_or("operation", |op| op.op_type());
                format!(
                    "`{user}` in a nested block reads a value that depends on it, and is no softmax"
                )
            })?,
            Slot::Output(_) => {
                return Err("a value that depends on it leaves a nested block".to_owned());
            }
            Slot::Capture { .. } => {
                reaches_inside(&inner, one, depth)?;
                continue;
            }
        };
        reaches_softmax(&inner, &next, &mut BTreeSet::new(), depth)
            .map_err(|missed| format!("in a nested block: {}", missed.why))?;
    }
    Ok(())
}

/// Whether the other factor of a mask value is 0 for tokens that are kept: 1 − mask, or a cast bool.
fn keeps_kept_tokens(block: &Block<'_>, op: &Operation, parameter: &str) -> bool {
    let other = if parameter == "x" { "y" } else { "x" };
    let Some(mut value) = op.value(other) else {
        return false;
    };
    for _ in 0..MAX_DEPTH {
        let Some(producer) = block.op(value.node) else {
            return false;
        };
        let next = match producer.op_type() {
            "sub" => {
                return block
                    .uniform_of(producer, "x")
                    .is_some_and(|one| one.value == 1.0);
            }
            "cast" => {
                let from = producer.value("x");
                if from.and_then(|x| block.dtype(x)) == Some(DType::Bool) {
                    return true;
                }
                from
            }
            "identity" | "reshape" | "transpose" | "expand_dims" | "squeeze" | "tile"
            | "slice_by_index" => producer.value("x"),
            _ => return false,
        };
        match next {
            Some(next) => value = next,
            None => return false,
        }
    }
    false
}
