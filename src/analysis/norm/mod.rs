//! Normalizations by root mean square or by variance, in the spellings of converters and by hand.
//!
//! ```text
//! squares  pow(x, 2)   mul(x, x)   square(x)
//! mean     reduce_mean(squares)    mul(reduce_sum(squares), 1/n)    real_div(reduce_sum(squares), n)
//!          mul or real_div of reduce_sum_square(x), of the squares of reduce_l2_norm(x)
//! guarded  add(mean, epsilon)      also the epsilon of rsqrt, also both
//! scale    rsqrt(guarded)   pow(guarded, −0.5)   real_div(1, sqrt(guarded))   inverse(sqrt(guarded))
//!          sqrt and pow(guarded, 0.5) are the same
//! result   mul(x, scale)    real_div(x, sqrt(guarded))    mul(x, mul(scale, gain))
//! gain     mul(result, gain)
//! ```
//!
//! Operands of `add` and `mul` may be in either order. Between any two may be `cast` between fp16 and
//! fp32 and `identity`, and after the mean `expand_dims`, `reshape` and `squeeze`, as long as the scale
//! meets the rows that it was computed of. The gain may be the sum 1 + w, folded or not.
//!
//! Where x is `sub(y, reduce_mean(y))` over the same axes, this is the layer norm of y. The other forms:
//!
//! ```text
//! layer_norm(x)                                       instance_norm(x): the axes from the third on
//! slice or split(layer_norm(concat(x, mul(x, −1))))   the first half: root mean square without overflow
//! m = reduce_max(abs(x)); s = real_div(x, m)          scaled by the largest magnitude: of the rows of s
//!   real_div(x, mul(sqrt(mean(s²) + epsilon), m))     what coremltools makes of `torch.rms_norm`: its
//!   mul(s, rsqrt(mean(s²) + epsilon))                 epsilon is too large by m², and 0/0 is NaN
//!   mul(s, rsqrt(mean(s²) + epsilon/m²)), m floored   the right one
//! ```

use crate::ir::{Binding, DType, NodeId, Operation, ValueId};
use crate::pass::Block;

mod scale;
#[cfg(test)]
mod tests;
mod whole;

/// A normalization.
#[derive(Clone, Debug, PartialEq)]
pub struct Norm {
    /// What it computes.
    pub kind: Kind,
    /// How it is spelled.
    pub form: Form,
    /// What is normalized: of a layer norm, the value before its mean is subtracted.
    pub x: ValueId,
    /// What the root divides by its root mean square: x, or x minus its mean.
    pub centred: ValueId,
    /// The axes over which the mean is taken, rising.
    pub axes: Vec<usize>,
    /// What is added to the mean of the squares, all places together; `None` if it is no constant.
    pub epsilon: Option<f64>,
    /// Where the epsilon stands.
    pub place: Place,
    /// The type in which the epsilon is stored; that of the added one, if there are two.
    pub epsilon_type: DType,
    /// The operation that squares, and the type in which it does; `None` inside of an operation.
    pub square: Option<(NodeId, DType)>,
    /// The operation whose first result is the normalized value, before a gain that follows.
    pub root: NodeId,
    /// A gain that multiplies the scale before it meets x.
    pub gain: Option<Binding>,
}

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// x / √(mean(x²) + epsilon).
    Rms,
    /// (x − mean(x)) / √(mean((x − mean(x))²) + epsilon).
    Layer,
}

/// How a normalization is spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// With a square of x itself.
    Plain,
    /// Of x divided by the largest magnitude, which has a floor or an epsilon that fits.
    MaxScaled,
    /// Of x divided by the largest magnitude, with the epsilon as if it were not: coremltools' own.
    MaxScaledWrongly,
    /// `layer_norm` of x beside −x.
    Mirrored,
    /// One operation: `layer_norm`, `instance_norm`.
    Whole,
}

/// Where the epsilon of a normalization stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It is added to the mean.
    Added,
    /// It is a parameter of the root operation or of the whole.
    Parameter,
    /// Both.
    Both,
    /// There is none.
    Nowhere,
}

/// What an operation is the root of.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// No normalization.
    Nothing,
    /// A normalization.
    Norm(Box<Norm>),
    /// Nearly one: what stopped it, and where.
    Nearly(NodeId, String),
}

/// Why a walk ended.
enum Stop {
    Nothing,
    Nearly(NodeId, String),
}

impl Stop {
    fn nearly(at: NodeId, why: impl Into<String>) -> Self {
        Self::Nearly(at, why.into())
    }
}

/// The normalization whose root is this operation; see the module for the spellings.
pub fn at(block: &Block<'_>, node: NodeId) -> Found {
    match seek(block, node) {
        Ok(norm) => Found::Norm(Box::new(norm)),
        Err(Stop::Nothing) => Found::Nothing,
        Err(Stop::Nearly(at, why)) => Found::Nearly(at, why),
    }
}

fn seek(block: &Block<'_>, node: NodeId) -> Result<Norm, Stop> {
    let op = block.op(node).ok_or(Stop::Nothing)?;
    match op.op_type() {
        "mul" => product(block, op, node),
        "real_div" => quotient(block, op, node),
        "layer_norm" => whole::layer_norm(block, op, node),
        "instance_norm" => whole::instance_norm(block, op, node),
        "slice_by_index" | "slice_by_size" | "split" => whole::mirrored(block, op, node),
        _ => Err(Stop::Nothing),
    }
}

/// `mul(x, scale)`.
fn product(block: &Block<'_>, op: &Operation, node: NodeId) -> Result<Norm, Stop> {
    let (Some(a), Some(b)) = (op.value("x"), op.value("y")) else {
        return Err(Stop::Nothing);
    };
    let mut nearly = Stop::Nothing;
    for (x, other) in [(a, b), (b, a)] {
        match scale::reciprocal(block, other).and_then(|scale| plain(block, node, x, scale)) {
            Ok(norm) => return Ok(norm),
            Err(Stop::Nothing) => {}
            Err(stop) => nearly = stop,
        }
    }
    Err(nearly)
}

/// `real_div(x, root)`, also with the root times the largest magnitude.
fn quotient(block: &Block<'_>, op: &Operation, node: NodeId) -> Result<Norm, Stop> {
    let (Some(x), Some(y)) = (op.value("x"), op.value("y")) else {
        return Err(Stop::Nothing);
    };
    match block.producer_of_type(same(block, y), "mul") {
        None => plain(block, node, x, scale::root(block, y)?),
        Some(product) => {
            let (Some(a), Some(b)) = (product.value("x"), product.value("y")) else {
                return Err(Stop::Nothing);
            };
            let mut nearly = Stop::Nothing;
            for (root, largest) in [(a, b), (b, a)] {
                let scale = scale::root(block, root);
                match scale.and_then(|scale| rescaled(block, node, x, scale, largest)) {
                    Ok(norm) => return Ok(norm),
                    Err(Stop::Nothing) => {}
                    Err(stop) => nearly = stop,
                }
            }
            Err(nearly)
        }
    }
}

/// x times the scale that was computed of its squares.
fn plain(block: &Block<'_>, node: NodeId, x: ValueId, scale: scale::Scale) -> Result<Norm, Stop> {
    if same(block, x) != same(block, scale.squared) {
        let why = "what is multiplied by the scale is not what was squared";
        return Err(Stop::nearly(node, why));
    }
    scale::meets(block, node, x, &scale)?;
    let mut norm = Norm {
        kind: Kind::Rms,
        form: Form::Plain,
        x,
        centred: x,
        axes: scale.axes,
        epsilon: scale.epsilon,
        place: scale.place,
        epsilon_type: scale.epsilon_type,
        square: Some(scale.square),
        root: node,
        gain: scale.gain,
    };
    if let Some(scaled) = scale::by_largest(block, same(block, x), &norm.axes) {
        norm.form = match norm.epsilon {
            Some(epsilon) if epsilon != 0.0 && !scaled.floored => Form::MaxScaledWrongly,
            _ => Form::MaxScaled,
        };
        norm.x = scaled.of;
        norm.centred = scaled.of;
    }
    if norm.epsilon.is_none() && norm.form == Form::Plain {
        return Err(Stop::nearly(scale.added, "epsilon is no constant number"));
    }
    if let Some(source) = scale::less_mean(block, same(block, norm.centred), &norm.axes) {
        norm.kind = Kind::Layer;
        norm.x = source;
    }
    Ok(norm)
}

/// x over the root times the largest magnitude, where the root is that of x over this magnitude.
fn rescaled(
    block: &Block<'_>,
    node: NodeId,
    x: ValueId,
    scale: scale::Scale,
    largest: ValueId,
) -> Result<Norm, Stop> {
    let scaled = scale::by_largest(block, same(block, scale.squared), &scale.axes)
        .filter(|scaled| scaled.largest == same(block, largest))
        .filter(|scaled| same(block, scaled.of) == same(block, x))
        .ok_or(Stop::Nothing)?;
    scale::meets(block, node, x, &scale)?;
    let form = match scale.epsilon {
        Some(epsilon) if epsilon != 0.0 && !scaled.floored => Form::MaxScaledWrongly,
        _ => Form::MaxScaled,
    };
    let source = scale::less_mean(block, same(block, x), &scale.axes);
    Ok(Norm {
        kind: source.map_or(Kind::Rms, |_| Kind::Layer),
        form,
        x: source.unwrap_or(x),
        centred: x,
        axes: scale.axes,
        epsilon: scale.epsilon,
        place: scale.place,
        epsilon_type: scale.epsilon_type,
        square: Some(scale.square),
        root: node,
        gain: scale.gain,
    })
}

/// The gain that follows a normalization: the only reader of its result, behind casts, multiplies it
/// by a constant. Gives the operation and the parameter that the constant is bound to.
pub fn gain_after(block: &Block<'_>, norm: &Norm) -> Option<(NodeId, &'static str)> {
    let mut value = ValueId::first(norm.root);
    for _ in 0..MAX_DEPTH {
        let reader = block.graph.only_user(value)?;
        let op = block.op(reader)?;
        match op.op_type() {
            "cast" | "identity" => value = ValueId::first(reader),
            "mul" => {
                return [("x", "y"), ("y", "x")]
                    .into_iter()
                    .find(|(side, other)| {
                        op.value(side) == Some(value) && is_weight(block, op, other)
                    })
                    .map(|(_, other)| (reader, other));
            }
            _ => return None,
        }
    }
    None
}

/// The operations between what is normalized and the root, without those that make constants. What they
/// compute grows with x or with its square.
pub fn inside(block: &Block<'_>, norm: &Norm) -> Vec<NodeId> {
    let x = same(block, norm.x);
    let mut inside: Vec<NodeId> = Vec::new();
    let mut pending = vec![norm.root];
    while let Some(node) = pending.pop() {
        let Some(op) = block.op(node) else { continue };
        let bindings = op
            .arguments()
            .iter()
            .flat_map(|argument| &argument.bindings);
        for binding in bindings {
            let Binding::Value(value) = binding else {
                continue;
            };
            let is_data = block
                .op(value.node)
                .is_none_or(|op| op.op_type() == "const" || op.op_type().starts_with("constexpr_"));
            if is_data
                || norm.gain.as_ref() == Some(binding)
                || same(block, *value) == x
                || inside.contains(&value.node)
                || inside.len() == MAX_INSIDE
            {
                continue;
            }
            inside.push(value.node);
            pending.push(value.node);
        }
    }
    inside
}

/// More operations than any normalization has.
const MAX_INSIDE: usize = 48;

/// Whether a parameter is bound to data of the model: a constant, one that is decompressed, or a sum
/// with a constant, such as 1 + w.
fn is_weight(block: &Block<'_>, op: &Operation, parameter: &str) -> bool {
    let Some(binding) = op.binding(parameter) else {
        return false;
    };
    let Binding::Value(value) = binding else {
        return matches!(binding, Binding::Immediate(_));
    };
    let value = through(block, *value);
    if block.constant(value).is_some() {
        return true;
    }
    match block.op(value.node) {
        Some(op) if op.op_type().starts_with("constexpr_") => true,
        Some(op) if op.op_type() == "add" => ["x", "y"]
            .into_iter()
            .all(|side| block.constant_of(op, side).is_some()),
        _ => false,
    }
}

/// How many casts and changes of shape a walk passes.
const MAX_DEPTH: usize = 8;

/// The value behind `identity` and casts between fp16 and fp32.
fn same(block: &Block<'_>, value: ValueId) -> ValueId {
    behind(block, value, &["cast", "identity"])
}

/// The value behind casts and what only changes the shape.
fn through(block: &Block<'_>, value: ValueId) -> ValueId {
    let types = ["cast", "identity", "expand_dims", "reshape", "squeeze"];
    behind(block, value, &types)
}

pub(super) fn behind(block: &Block<'_>, mut value: ValueId, types: &[&str]) -> ValueId {
    for _ in 0..MAX_DEPTH {
        let inner = block
            .op(value.node)
            .filter(|op| types.contains(&op.op_type()))
            .and_then(|op| op.value("x"));
        match inner {
            Some(inner) if is_wide(block, inner) && is_wide(block, value) => value = inner,
            _ => break,
        }
    }
    value
}

/// Whether a value is fp16 or fp32.
pub(super) fn is_wide(block: &Block<'_>, value: ValueId) -> bool {
    matches!(block.dtype(value), Some(DType::Float16 | DType::Float32))
}

/// Axes as indices, rising; `None` if one is out of range or given twice.
fn indices(axes: &[i64], rank: usize) -> Option<Vec<usize>> {
    let rank = i64::try_from(rank).ok()?;
    let mut indices = axes
        .iter()
        .map(|axis| {
            let index = if *axis < 0 { axis + rank } else { *axis };
            usize::try_from(index).ok().filter(|_| index < rank)
        })
        .collect::<Option<Vec<_>>>()?;
    indices.sort_unstable();
    let count = indices.len();
    indices.dedup();
    (indices.len() == count).then_some(indices)
}
