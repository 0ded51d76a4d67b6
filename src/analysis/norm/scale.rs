//! What x is multiplied by: the reciprocal root of the mean of its squares.

use half::f16;

use super::{MAX_DEPTH, Place, Stop, indices, same, through};
use crate::ir::{Binding, DType, Dim, NodeId, Operation, TensorType, ValueId};
use crate::pass::{Block, Uniform};

/// The default epsilon of `rsqrt`, in x's type: in fp16 it rounds to zero. Source: coremltools' op
/// definition.
const RSQRT_EPSILON: f64 = 1e-12;

/// A scale of the rows of a value, or its reciprocal.
pub(super) struct Scale {
    /// What was squared.
    pub(super) squared: ValueId,
    /// The operation that squares, and its type.
    pub(super) square: (NodeId, DType),
    pub(super) axes: Vec<usize>,
    pub(super) epsilon: Option<f64>,
    pub(super) place: Place,
    pub(super) epsilon_type: DType,
    /// The operation that adds the epsilon, or the root.
    pub(super) added: NodeId,
    pub(super) gain: Option<Binding>,
    /// The value that meets x.
    value: ValueId,
    /// Whether the reduced axes are kept and no shape changes on the way.
    aligned: bool,
}

/// The scale that `value` is: `rsqrt`, `pow(…, −0.5)`, `inverse` or a quotient, also times a gain.
pub(super) fn reciprocal(block: &Block<'_>, value: ValueId) -> Result<Scale, Stop> {
    let inner = through(block, value);
    let op = block.op(inner.node).ok_or(Stop::Nothing)?;
    let node = inner.node;
    let mut scale = match op.op_type() {
        "rsqrt" => under(block, op.value("x"), node, own_epsilon(block, op, node)?)?,
        "pow" if is_uniform(block, op, "y", -0.5) => {
            under(block, op.value("x"), node, no_epsilon(block, op)?)?
        }
        "inverse" => {
            let divisor = op.value("x").ok_or(Stop::Nothing)?;
            let scale = root(block, divisor)?;
            if !is_uniform(block, op, "epsilon", 0.0) {
                let why = "`inverse` adds an epsilon to the root";
                return Err(Stop::nearly(node, why));
            }
            scale
        }
        "real_div" if is_uniform(block, op, "x", 1.0) => {
            root(block, op.value("y").ok_or(Stop::Nothing)?)?
        }
        "mul" => return gained(block, op, value),
        _ => return Err(Stop::Nothing),
    };
    scale.aligned &= same(block, value) == inner;
    scale.value = value;
    Ok(scale)
}

/// `mul(scale, gain)` with a constant gain, in either order.
fn gained(block: &Block<'_>, op: &Operation, value: ValueId) -> Result<Scale, Stop> {
    for (side, other) in [("x", "y"), ("y", "x")] {
        let (Some(inner), Some(gain)) = (op.value(side), op.binding(other)) else {
            continue;
        };
        // One gain is what there is; a chain of products is not followed.
        let deeper = block.producer_of_type(through(block, inner), "mul");
        if block.constant_of(op, other).is_none() || deeper.is_some() || inner == value {
            continue;
        }
        let mut scale = reciprocal(block, inner)?;
        if same(block, value).node != value.node {
            let why = "the gain is cast before it meets what is normalized";
            return Err(Stop::nearly(value.node, why));
        }
        scale.gain = Some(gain.clone());
        return Ok(scale);
    }
    Err(Stop::Nothing)
}

/// The root that `value` is: `sqrt` or `pow(…, 0.5)`.
pub(super) fn root(block: &Block<'_>, value: ValueId) -> Result<Scale, Stop> {
    let inner = through(block, value);
    let op = block.op(inner.node).ok_or(Stop::Nothing)?;
    let mut scale = match op.op_type() {
        "sqrt" => under(block, op.value("x"), inner.node, no_epsilon(block, op)?)?,
        "pow" if is_uniform(block, op, "y", 0.5) => {
            under(block, op.value("x"), inner.node, no_epsilon(block, op)?)?
        }
        _ => return Err(Stop::Nothing),
    };
    scale.aligned &= same(block, value) == inner;
    scale.value = value;
    Ok(scale)
}

/// The epsilon of a `rsqrt`.
fn own_epsilon(block: &Block<'_>, op: &Operation, node: NodeId) -> Result<Uniform, Stop> {
    if op.argument("epsilon").is_some() {
        return block
            .uniform_of(op, "epsilon")
            .ok_or_else(|| Stop::nearly(node, "the epsilon of `rsqrt` is not known"));
    }
    let dtype = op.value("x").and_then(|x| block.dtype(x));
    let dtype = dtype.ok_or(Stop::Nothing)?;
    Ok(Uniform {
        value: rounded(RSQRT_EPSILON, dtype),
        dtype,
    })
}

/// No epsilon, in the type of what stands under the root.
fn no_epsilon(block: &Block<'_>, op: &Operation) -> Result<Uniform, Stop> {
    let dtype = op.value("x").and_then(|x| block.dtype(x));
    let dtype = dtype.ok_or(Stop::Nothing)?;
    Ok(Uniform { value: 0.0, dtype })
}

fn is_uniform(block: &Block<'_>, op: &Operation, parameter: &str, number: f64) -> bool {
    block
        .uniform_of(op, parameter)
        .is_some_and(|uniform| uniform.value == number)
}

/// What stands under the root: the mean of squares, with or without an epsilon.
fn under(
    block: &Block<'_>,
    value: Option<ValueId>,
    root: NodeId,
    own: Uniform,
) -> Result<Scale, Stop> {
    let value = value.ok_or(Stop::Nothing)?;
    let inner = through(block, value);
    let mut aligned = same(block, value) == inner;
    let own_place = if own.value == 0.0 {
        Place::Nowhere
    } else {
        Place::Parameter
    };
    let (mean, epsilon, place, added, epsilon_type) = match block.producer_of_type(inner, "add") {
        None => (inner, Some(own.value), own_place, root, own.dtype),
        Some(add) => {
            let constant = [("x", "y"), ("y", "x")]
                .into_iter()
                .find_map(|(side, other)| Some((add.value(side)?, block.uniform_of(add, other)?)));
            let place = match own_place {
                Place::Nowhere => Place::Added,
                _ => Place::Both,
            };
            if let Some((mean, epsilon)) = constant {
                let shape = |value| block.tensor(value).map(|ty| &ty.dims);
                if shape(mean).is_none() || shape(mean) != shape(inner) {
                    return Err(Stop::Nothing);
                }
                let sum = epsilon.value + own.value;
                (mean, Some(sum), place, inner.node, epsilon.dtype)
            } else {
                let sides = [add.value("x"), add.value("y")];
                let mean = sides
                    .into_iter()
                    .flatten()
                    .find(|side| mean_of(block, *side).is_ok())
                    .ok_or(Stop::Nothing)?;
                (mean, None, place, inner.node, own.dtype)
            }
        }
    };
    let mean = mean_of(block, mean)?;
    aligned &= mean.aligned;
    if let Some(epsilon) = epsilon.filter(|epsilon| !(*epsilon >= 0.0 && epsilon.is_finite())) {
        let why = format!(
            "{:e} is no epsilon: it is negative or not finite",
            epsilon as f32
        );
        return Err(Stop::nearly(added, why));
    }
    Ok(Scale {
        squared: mean.squared,
        square: mean.square,
        axes: mean.axes,
        epsilon,
        place,
        epsilon_type,
        added,
        gain: None,
        value: ValueId::first(root),
        aligned,
    })
}

/// A mean of squares.
struct Mean {
    squared: ValueId,
    square: (NodeId, DType),
    axes: Vec<usize>,
    aligned: bool,
}

/// The mean of squares that `value` is.
fn mean_of(block: &Block<'_>, value: ValueId) -> Result<Mean, Stop> {
    let inner = through(block, value);
    let node = inner.node;
    let op = block.op(node).ok_or(Stop::Nothing)?;
    let mut mean = match op.op_type() {
        "reduce_mean" => {
            let squares = op.value("x").ok_or(Stop::Nothing)?;
            reduced(block, op, node, squares, square(block, squares))?
        }
        "mul" => {
            let (sum, factor) = [("x", "y"), ("y", "x")]
                .into_iter()
                .find_map(|(side, other)| Some((op.value(side)?, block.uniform_of(op, other)?)))
                .ok_or(Stop::Nothing)?;
            let sum = sum_of(block, sum)?;
            let share = count(block, &sum).map(|count| rounded(1.0 / count, factor.dtype));
            if share != Some(factor.value) {
                let why = format!(
                    "the sum is multiplied by {}, not by 1/n",
                    factor.value as f32
                );
                return Err(Stop::nearly(node, why));
            }
            sum
        }
        "real_div" => {
            let divisor = block.uniform_of(op, "y").ok_or(Stop::Nothing)?;
            let sum = sum_of(block, op.value("x").ok_or(Stop::Nothing)?)?;
            let count = count(block, &sum).map(|count| rounded(count, divisor.dtype));
            if count != Some(divisor.value) {
                let why = format!("the sum is divided by {}, not by n", divisor.value);
                return Err(Stop::nearly(node, why));
            }
            sum
        }
        _ => {
            if sum_of(block, inner).is_ok() {
                let why = "the squares are summed, not averaged: this is an l2 norm";
                return Err(Stop::nearly(node, why));
            }
            return Err(Stop::Nothing);
        }
    };
    mean.aligned &= same(block, value) == inner;
    Ok(mean)
}

/// The sum of squares that `value` is.
fn sum_of(block: &Block<'_>, value: ValueId) -> Result<Mean, Stop> {
    let inner = through(block, value);
    let node = inner.node;
    let op = block.op(node).ok_or(Stop::Nothing)?;
    let mut sum = match op.op_type() {
        "reduce_sum" => {
            let squares = op.value("x").ok_or(Stop::Nothing)?;
            reduced(block, op, node, squares, square(block, squares))?
        }
        "reduce_sum_square" => {
            let x = op.value("x").ok_or(Stop::Nothing)?;
            let dtype = block.dtype(inner).ok_or(Stop::Nothing)?;
            reduced(block, op, node, x, Some((x, (node, dtype))))?
        }
        _ => {
            let (length, square) = square(block, inner).ok_or(Stop::Nothing)?;
            let length = through(block, length);
            let op = block
                .producer_of_type(length, "reduce_l2_norm")
                .ok_or(Stop::Nothing)?;
            let x = op.value("x").ok_or(Stop::Nothing)?;
            reduced(block, op, length.node, x, Some((x, square)))?
        }
    };
    sum.aligned &= same(block, value) == inner;
    Ok(sum)
}

/// A reduction of squares; its axes count in `operand`.
fn reduced(
    block: &Block<'_>,
    op: &Operation,
    node: NodeId,
    operand: ValueId,
    square: Option<(ValueId, (NodeId, DType))>,
) -> Result<Mean, Stop> {
    let (squared, square) = square.ok_or(Stop::Nothing)?;
    let rank = block
        .tensor(operand)
        .filter(|ty| ty.rank >= 0)
        .map(|ty| ty.dims.len())
        .ok_or_else(|| Stop::nearly(node, "the rank of what is normalized is not known"))?;
    let axes = match op.argument("axes") {
        None => Some((0..rank).collect()),
        Some(_) => block
            .ints_of(op, "axes")
            .and_then(|axes| indices(&axes, rank)),
    };
    let axes = axes.ok_or_else(|| Stop::nearly(node, "the axes of the mean are not known"))?;
    let keep = block
        .bool_or(op, "keep_dims", false)
        .ok_or_else(|| Stop::nearly(node, "`keep_dims` of the mean is not known"))?;
    Ok(Mean {
        squared,
        square,
        axes,
        aligned: keep,
    })
}

/// What is squared, and where.
fn square(block: &Block<'_>, value: ValueId) -> Option<(ValueId, (NodeId, DType))> {
    let inner = same(block, value);
    let op = block.op(inner.node)?;
    let x = op.value("x")?;
    let is_square = match op.op_type() {
        "square" => true,
        "mul" => op.value("y") == Some(x),
        "pow" => is_uniform(block, op, "y", 2.0),
        _ => false,
    };
    (is_square && block.tensor(x)?.same_shape(block.tensor(inner)?))
        .then_some((x, (inner.node, block.dtype(inner)?)))
}

/// The number of elements of a row.
fn count(block: &Block<'_>, mean: &Mean) -> Option<f64> {
    let ty = block.tensor(mean.squared)?;
    mean.axes.iter().try_fold(1.0, |product, axis| {
        Some(product * ty.dims.get(*axis)?.size()? as f64)
    })
}

/// A number as stored in a float type.
fn rounded(value: f64, dtype: DType) -> f64 {
    match dtype {
        DType::Float16 => f16::from_f64(value).to_f64(),
        DType::Float32 => f64::from(value as f32),
        _ => value,
    }
}

/// Whether the scale meets the rows of which it was computed: it has the shape of x with the axes of
/// the mean set to 1.
pub(super) fn meets(
    block: &Block<'_>,
    node: NodeId,
    x: ValueId,
    scale: &Scale,
) -> Result<(), Stop> {
    let why = "the scale does not meet the rows of which it was computed";
    let ty = block.tensor(x).ok_or(Stop::Nothing)?;
    let squared = block.tensor(scale.squared).ok_or(Stop::Nothing)?;
    let result = block.tensor(ValueId::first(node)).ok_or(Stop::Nothing)?;
    if !ty.same_shape(squared) || !ty.same_shape(result) {
        return Err(Stop::nearly(node, why));
    }
    if scale.aligned {
        return Ok(());
    }
    let expected: Option<Vec<u64>> = ty
        .dims
        .iter()
        .enumerate()
        .map(|(index, dim)| {
            if scale.axes.contains(&index) {
                Some(1)
            } else {
                dim.size()
            }
        })
        .collect();
    let actual = block.tensor(scale.value).and_then(TensorType::shape);
    let (Some(expected), Some(mut actual)) = (expected, actual) else {
        let why = "sizes that are not known decide which rows the scale meets";
        return Err(Stop::nearly(node, why));
    };
    // Broadcasting puts dimensions of 1 in front.
    while actual.len() < expected.len() {
        actual.insert(0, 1);
    }
    if actual == expected {
        Ok(())
    } else {
        Err(Stop::nearly(node, why))
    }
}

/// A value divided by its largest magnitude.
pub(super) struct Scaled {
    pub(super) of: ValueId,
    /// The largest magnitude, with its floor.
    pub(super) largest: ValueId,
    /// Whether the largest magnitude has a floor.
    pub(super) floored: bool,
}

/// Whether `value` is `real_div(y, reduce_max(abs(y)))` over these axes, also times the inverse.
pub(super) fn by_largest(block: &Block<'_>, value: ValueId, axes: &[usize]) -> Option<Scaled> {
    let division = block.producer_of_type(value, "real_div")?;
    let of = division.value("x")?;
    let largest = same(block, division.value("y")?);
    let op = block.op(largest.node)?;
    let (inner, floored) = match op.op_type() {
        "maximum" => ["x", "y"]
            .into_iter()
            .zip(["y", "x"])
            .find_map(|(side, other)| {
                block
                    .uniform_of(op, other)
                    .filter(|floor| floor.value > 0.0)?;
                Some((op.value(side)?, true))
            })?,
        "clip" => {
            block
                .uniform_of(op, "alpha")
                .filter(|floor| floor.value > 0.0)?;
            (op.value("x")?, true)
        }
        _ => (largest, false),
    };
    let inner = same(block, inner);
    let max = block.producer_of_type(inner, "reduce_max")?;
    let magnitude = same(block, max.value("x")?);
    let abs = block.producer_of_type(magnitude, "abs")?;
    let rank = block.tensor(magnitude)?.dims.len();
    let over = indices(&block.ints_of(max, "axes")?, rank)?;
    let fits = over == axes && block.bool_or(max, "keep_dims", false)?;
    (fits && same(block, abs.value("x")?) == same(block, of)).then_some(Scaled {
        of,
        largest,
        floored,
    })
}

/// The y of `sub(y, reduce_mean(y))`, if the mean is taken over these axes.
pub(super) fn less_mean(block: &Block<'_>, value: ValueId, axes: &[usize]) -> Option<ValueId> {
    let sub = block.producer_of_type(value, "sub")?;
    let (y, mean) = (sub.value("x")?, sub.value("y")?);
    let mut mean = mean;
    for _ in 0..MAX_DEPTH {
        match block.op(mean.node)?.op_type() {
            "cast" | "identity" => mean = block.op(mean.node)?.value("x")?,
            _ => break,
        }
    }
    let op = block.producer_of_type(mean, "reduce_mean")?;
    let ty = block.tensor(y).filter(|ty| ty.rank >= 0)?;
    let over = match op.argument("axes") {
        None => (0..ty.dims.len()).collect(),
        Some(_) => indices(&block.ints_of(op, "axes")?, ty.dims.len())?,
    };
    let fits = over == axes
        && block.bool_or(op, "keep_dims", false)?
        && block.tensor(y)?.dims == block.tensor(value)?.dims
        && !ty.dims.contains(&Dim::Unspecified);
    (fits && same(block, op.value("x")?) == same(block, y)).then_some(y)
}
