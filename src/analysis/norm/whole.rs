//! Normalizations that are one operation, and `layer_norm` of a value beside its negative.

use half::f16;

use super::{Form, Kind, Norm, Place, Stop, indices, same};
use crate::ir::{Binding, DType, Dim, NodeId, Operation, ValueId};
use crate::pass::{Block, Uniform};

/// The default epsilon of both operations. Source: coremltools' op definitions.
const EPSILON: f64 = 1e-5;

/// The epsilon of a `layer_norm` or an `instance_norm`.
fn epsilon(block: &Block<'_>, op: &Operation, x: ValueId) -> Result<Uniform, Stop> {
    if op.argument("epsilon").is_some() {
        return block.uniform_of(op, "epsilon").ok_or(Stop::Nothing);
    }
    let dtype = block.dtype(x).ok_or(Stop::Nothing)?;
    let value = match dtype {
        DType::Float16 => f16::from_f64(EPSILON).to_f64(),
        _ => f64::from(EPSILON as f32),
    };
    Ok(Uniform { value, dtype })
}

fn whole(node: NodeId, x: ValueId, axes: Vec<usize>, epsilon: Uniform) -> Norm {
    Norm {
        kind: Kind::Layer,
        form: Form::Whole,
        x,
        centred: x,
        axes,
        epsilon: Some(epsilon.value),
        place: Place::Parameter,
        epsilon_type: epsilon.dtype,
        square: None,
        root: node,
        gain: None,
    }
}

/// `layer_norm`; without axes, over all of them.
pub(super) fn layer_norm(block: &Block<'_>, op: &Operation, node: NodeId) -> Result<Norm, Stop> {
    let x = op.value("x").ok_or(Stop::Nothing)?;
    let ty = block.tensor(x).filter(|ty| ty.rank >= 0);
    let rank = ty.ok_or(Stop::Nothing)?.dims.len();
    let axes = match op.argument("axes") {
        None => Some((0..rank).collect()),
        Some(_) => block
            .ints_of(op, "axes")
            .and_then(|axes| indices(&axes, rank)),
    };
    let axes = axes.ok_or_else(|| Stop::nearly(node, "the axes are not known"))?;
    let mut norm = whole(node, x, axes, epsilon(block, op, x)?);
    norm.gain = op.binding("gamma").cloned();
    Ok(norm)
}

/// `instance_norm`: over all axes but those of batch and channels.
pub(super) fn instance_norm(block: &Block<'_>, op: &Operation, node: NodeId) -> Result<Norm, Stop> {
    let x = op.value("x").ok_or(Stop::Nothing)?;
    let ty = block.tensor(x).filter(|ty| ty.rank >= 0);
    let rank = ty.ok_or(Stop::Nothing)?.dims.len();
    let mut norm = whole(node, x, (2..rank).collect(), epsilon(block, op, x)?);
    norm.gain = op.binding("gamma").cloned();
    Ok(norm)
}

/// The first half of `layer_norm(concat(x, −x))`.
pub(super) fn mirrored(block: &Block<'_>, op: &Operation, node: NodeId) -> Result<Norm, Stop> {
    let both = op.value("x").ok_or(Stop::Nothing)?;
    let norm = block
        .producer_of_type(both, "layer_norm")
        .ok_or(Stop::Nothing)?;
    let concat = norm.value("x").ok_or(Stop::Nothing)?;
    let (x, axis) = pair(block, concat).ok_or(Stop::Nothing)?;
    let inner = layer_norm(block, norm, both.node)?;
    if norm.argument("beta").is_some() || norm.argument("gamma").is_some() {
        let why = "the norm of x beside -x has a gain or a bias for both halves";
        return Err(Stop::nearly(both.node, why));
    }
    if !inner.axes.contains(&axis) {
        let why = "x and -x are joined along an axis that is not normalized";
        return Err(Stop::nearly(both.node, why));
    }
    // What starts at zero and has the shape of x is the first half; of dimensions that are not known,
    // a slice takes all if its mask says so.
    let result = ValueId::first(node);
    let dims = |value| block.tensor(value).map(|ty| &ty.dims);
    let masks = block.bools_of(op, "end_mask").unwrap_or_default();
    let is_whole = |(index, dim): (usize, &Dim)| match dim {
        Dim::Known(_) => true,
        _ => index != axis && (op.op_type() == "split" || masks.get(index) == Some(&true)),
    };
    let fits = dims(x).is_some_and(|dims| dims.iter().enumerate().all(is_whole));
    let starts = match op.op_type() {
        "split" => true,
        _ => block
            .ints_of(op, "begin")
            .is_some_and(|begin| begin.iter().all(|begin| *begin == 0)),
    };
    let steps = block.ints_of(op, "stride");
    let dense = match op.argument("stride") {
        None => true,
        Some(_) => steps.is_some_and(|steps| steps.iter().all(|step| *step == 1)),
    };
    if !starts || !dense || !fits || dims(x) != dims(result) {
        let why = "what is taken of the norm of x beside -x is not its first half";
        return Err(Stop::nearly(node, why));
    }
    Ok(Norm {
        kind: Kind::Rms,
        form: Form::Mirrored,
        x,
        centred: x,
        root: node,
        ..inner
    })
}

/// The x and the axis of `concat(x, −x)`.
fn pair(block: &Block<'_>, value: ValueId) -> Option<(ValueId, usize)> {
    let concat = block.producer_of_type(value, "concat")?;
    let bindings = &concat.argument("values")?.bindings;
    let [Binding::Value(x), Binding::Value(negative)] = bindings.as_slice() else {
        return None;
    };
    let rank = block.tensor(*x)?.dims.len();
    let axis = *indices(&[block.int_of(concat, "axis")?], rank)?.first()?;
    let plain = !block.bool_or(concat, "interleave", false)?;
    let op = block.op(negative.node)?;
    let of = match op.op_type() {
        "mul" => ["x", "y"]
            .into_iter()
            .zip(["y", "x"])
            .find_map(|(side, other)| {
                let factor = block.uniform_of(op, other)?;
                (factor.value == -1.0).then(|| op.value(side))?
            })?,
        "sub" => (block.uniform_of(op, "x")?.value == 0.0).then(|| op.value("y"))??,
        "real_div" => (block.uniform_of(op, "y")?.value == -1.0).then(|| op.value("x"))??,
        _ => return None,
    };
    (plain && same(block, of) == same(block, *x)).then_some((*x, axis))
}
