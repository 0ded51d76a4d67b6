//! What a norm becomes: the forms, when each can be had, and how it is written.

use std::collections::BTreeMap;

use half::f16;

use super::{Choice, Options};
use crate::analysis::norm::{Kind, Norm};
use crate::ir::{Binding, DType, Dim, TensorData, TensorType, Value, ValueId};
use crate::ops::{Opset, registry};
use crate::pass::{Block, Edit, EditError};

/// The longest dimension that the Neural Engine takes.
const LONGEST: u64 = 16_384;

/// The least that rows are divided by in the form `max-scale`, 2^-10: epsilon over its square is an
/// ordinary number.
const FLOOR: f64 = 1.0 / 1024.0;

/// A constant epsilon.
#[derive(Clone, Copy)]
pub(super) struct Epsilon {
    value: f64,
    dtype: DType,
}

/// What a norm becomes.
pub(super) enum Step {
    /// `layer_norm` of a value whose mean the program subtracts itself.
    Layer { x: ValueId, epsilon: Epsilon },
    /// The first half of `layer_norm` of x beside −x.
    Mirrored {
        x: ValueId,
        /// The axis along which they are joined.
        axis: usize,
        /// Its size.
        size: u64,
        epsilon: Epsilon,
    },
    /// x is divided by the largest magnitude of its row.
    MaxScale {
        x: ValueId,
        /// Two factors of epsilon, both about its root: the first is a power of two.
        factors: (f64, f64),
        /// The type of the epsilon of `rsqrt`.
        rsqrt: DType,
        /// Whether x beside −x would be too long.
        too_long: bool,
    },
    /// x is divided by a power of two.
    Prescale {
        x: ValueId,
        bits: i32,
        epsilon: Epsilon,
    },
}

/// What the norm becomes, or why it cannot be had.
pub(super) fn plan(
    block: &Block<'_>,
    norm: &Norm,
    epsilon: f64,
    ty: &TensorType,
    opset: Opset,
    options: Options,
) -> Result<Step, String> {
    let x = norm.centred;
    let stored = |op_type: &str, value: f64| {
        let dtype = epsilon_type(op_type, opset, ty.dtype);
        check(value, dtype, norm.epsilon_type == dtype && value == epsilon)
            .map_err(|why| format!("{why}, and {} wants it in x's type", opset.name()))?;
        Ok::<_, String>(Epsilon { value, dtype })
    };
    let max_scale = |too_long| {
        let factors = factors(epsilon);
        check(factors.1, ty.dtype, false).map_err(|_| {
            format!(
                "epsilon {:e} is too small: its root is no normal {} number",
                epsilon as f32, ty.dtype
            )
        })?;
        let rsqrt = epsilon_type("rsqrt", opset, ty.dtype);
        Ok(Step::MaxScale {
            x,
            factors,
            rsqrt,
            too_long,
        })
    };
    match options.form {
        Choice::LayerNorm if norm.kind == Kind::Layer && block.tensor(norm.x) == Some(ty) => {
            let epsilon = stored("layer_norm", epsilon)?;
            Ok(Step::Layer { x: norm.x, epsilon })
        }
        Choice::LayerNorm => {
            let sizes = norm.axes.iter().rev().filter_map(|axis| {
                let size = ty.dims.get(*axis)?.size()?;
                Some((*axis, size))
            });
            let mut sizes = sizes.peekable();
            if sizes.peek().is_none() {
                return Err("the length of the rows is not known".to_owned());
            }
            match sizes.find(|(_, size)| *size <= LONGEST / 2) {
                Some((axis, size)) => Ok(Step::Mirrored {
                    x,
                    axis,
                    size,
                    epsilon: stored("layer_norm", epsilon)?,
                }),
                None => max_scale(true),
            }
        }
        Choice::MaxScale => max_scale(false),
        Choice::Prescale => {
            let bits = i32::try_from(options.prescale_bits).unwrap_or_default();
            let epsilon = stored("rsqrt", epsilon * 0.25f64.powi(bits))?;
            Ok(Step::Prescale { x, bits, epsilon })
        }
    }
}

/// The type of an operation's epsilon: fp32 where the opset gives it a type of its own.
fn epsilon_type(op_type: &str, opset: Opset, dtype: DType) -> DType {
    let own_type = registry::domain_mates(op_type, opset, "epsilon")
        .is_none_or(|mut mates| mates.any(|mate| mate == "x"));
    if own_type { dtype } else { DType::Float32 }
}

/// Whether a number keeps its value in a type: zero or a normal number. One that the program itself
/// has in that type may also be subnormal.
fn check(value: f64, dtype: DType, as_before: bool) -> Result<(), String> {
    let (is_normal, is_zero) = match dtype {
        DType::Float16 => {
            let half = f16::from_f64(value);
            (half.is_normal(), half == f16::ZERO)
        }
        _ => ((value as f32).is_normal(), value as f32 == 0.0),
    };
    if value == 0.0 || is_normal || (as_before && !is_zero) {
        Ok(())
    } else {
        Err(format!(
            "epsilon {:e} is no normal {dtype} number",
            value as f32
        ))
    }
}

/// Two factors whose product is the number, exactly: a power of two close to its root, and the rest.
fn factors(value: f64) -> (f64, f64) {
    if value <= 0.0 {
        return (0.0, 0.0);
    }
    let power = value.sqrt().log2().round().exp2();
    (power, value / power)
}

impl Step {
    /// In words.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Layer { .. } => "layer_norm".to_owned(),
            Self::Mirrored { .. } => "the first half of layer_norm of x beside -x".to_owned(),
            Self::MaxScale { too_long, .. } => {
                let why = if *too_long {
                    format!(", as x beside -x would be longer than {LONGEST}")
                } else {
                    String::new()
                };
                format!("one of x/max|x|{why}")
            }
            Self::Prescale { bits, .. } => format!("one of x/{}", 1u32 << bits),
        }
    }

    /// Makes the operations; gives the normalized value.
    pub(super) fn write(
        &self,
        edit: &mut Edit<'_>,
        axes: &[usize],
        rank: usize,
        dtype: DType,
    ) -> Result<ValueId, EditError> {
        let from_end = |axis: usize| axis as i32 - rank as i32;
        let axes: Vec<i32> = axes.iter().copied().map(from_end).collect();
        let over = |edit: &mut Edit<'_>| edit.constant(Value::int32s(&axes));
        match *self {
            Self::Layer { x, epsilon } => {
                let axes = over(edit);
                layer_norm(edit, x, axes, epsilon)
            }
            Self::Mirrored {
                x,
                axis,
                size,
                epsilon,
            } => {
                let minus = edit.scalar(dtype, -1.0)?;
                let negative = edit.op("mul", &[("x", Binding::Value(x)), ("y", minus)])?;
                let both = [x, negative].map(Binding::Value).to_vec();
                let along = edit.constant(Value::int32(from_end(axis)));
                let interleave = edit.constant(Value::bool(false));
                let both = edit.variadic_op(
                    "concat",
                    BTreeMap::from([
                        ("values".to_owned(), both),
                        ("axis".to_owned(), vec![along]),
                        ("interleave".to_owned(), vec![interleave]),
                    ]),
                )?;
                let axes = over(edit);
                let both = layer_norm(edit, ValueId::first(both), axes, epsilon)?;
                first(edit, both, axis, size, rank)
            }
            Self::MaxScale {
                x, factors, rsqrt, ..
            } => {
                let magnitude = edit.op("abs", &[("x", Binding::Value(x))])?;
                let axes = over(edit);
                let keep = edit.constant(Value::bool(true));
                let largest = reduced(edit, "reduce_max", magnitude, &axes, &keep)?;
                let floor = edit.scalar(dtype, FLOOR)?;
                let largest =
                    edit.op("maximum", &[("x", Binding::Value(largest)), ("y", floor)])?;
                let scaled = binary(edit, "real_div", x, largest)?;
                let squares = binary(edit, "mul", scaled, scaled)?;
                let mean = reduced(edit, "reduce_mean", squares, &axes, &keep)?;
                let guarded = if factors.1 == 0.0 {
                    mean
                } else {
                    // Its square would be lost where the magnitude is large or small; two quotients
                    // are not.
                    let [first, second] = [factors.0, factors.1].map(|factor| {
                        let factor = edit.scalar(dtype, factor)?;
                        edit.op("real_div", &[("x", factor), ("y", Binding::Value(largest))])
                    });
                    let guard = binary(edit, "mul", first?, second?)?;
                    binary(edit, "add", mean, guard)?
                };
                let none = edit.scalar(rsqrt, 0.0)?;
                let scale = edit.op(
                    "rsqrt",
                    &[("x", Binding::Value(guarded)), ("epsilon", none)],
                )?;
                binary(edit, "mul", scaled, scale)
            }
            Self::Prescale { x, bits, epsilon } => {
                let factor = edit.scalar(dtype, 0.5f64.powi(bits))?;
                let scaled = edit.op("mul", &[("x", Binding::Value(x)), ("y", factor)])?;
                let squares = binary(edit, "mul", scaled, scaled)?;
                let axes = over(edit);
                let keep = edit.constant(Value::bool(true));
                let mean = reduced(edit, "reduce_mean", squares, &axes, &keep)?;
                let epsilon = edit.scalar(epsilon.dtype, epsilon.value)?;
                let scale = edit.op(
                    "rsqrt",
                    &[("x", Binding::Value(mean)), ("epsilon", epsilon)],
                )?;
                binary(edit, "mul", scaled, scale)
            }
        }
    }
}

fn binary(
    edit: &mut Edit<'_>,
    op_type: &str,
    x: ValueId,
    y: ValueId,
) -> Result<ValueId, EditError> {
    edit.op(
        op_type,
        &[("x", Binding::Value(x)), ("y", Binding::Value(y))],
    )
}

fn reduced(
    edit: &mut Edit<'_>,
    op_type: &str,
    x: ValueId,
    axes: &Binding,
    keep: &Binding,
) -> Result<ValueId, EditError> {
    let arguments = [
        ("x", Binding::Value(x)),
        ("axes", axes.clone()),
        ("keep_dims", keep.clone()),
    ];
    edit.op(op_type, &arguments)
}

fn layer_norm(
    edit: &mut Edit<'_>,
    x: ValueId,
    axes: Binding,
    epsilon: Epsilon,
) -> Result<ValueId, EditError> {
    let epsilon = edit.scalar(epsilon.dtype, epsilon.value)?;
    let arguments = [
        ("x", Binding::Value(x)),
        ("axes", axes),
        ("epsilon", epsilon),
    ];
    edit.op("layer_norm", &arguments)
}

/// The first `size` elements along an axis.
fn first(
    edit: &mut Edit<'_>,
    x: ValueId,
    axis: usize,
    size: u64,
    rank: usize,
) -> Result<ValueId, EditError> {
    let begin = edit.constant(Value::int32s(&vec![0; rank]));
    let dims = edit.graph().ty(x).and_then(|ty| ty.as_tensor());
    let sizes = dims.map(|ty| ty.dims.clone()).unwrap_or_default();
    let end: Vec<i32> = (0..rank)
        .map(|index| match sizes.get(index) {
            _ if index == axis => size as i32,
            Some(Dim::Known(size)) => *size as i32,
            _ => 0,
        })
        .collect();
    let end = edit.constant(Value::int32s(&end));
    // Where the mask is true, the end is that of the dimension.
    let mask: Vec<bool> = (0..rank).map(|index| index != axis).collect();
    let ty = TensorType::fixed(DType::Bool, &[rank as u64]);
    let mask = edit.constant(Value::tensor(ty, TensorData::Bools(mask)));
    let arguments = [
        ("x", Binding::Value(x)),
        ("begin", begin),
        ("end", end),
        ("end_mask", mask),
    ];
    edit.op("slice_by_index", &arguments)
}
