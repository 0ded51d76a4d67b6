//! fuse-conv-bias: a constant that is added to each channel of a convolution becomes its bias.

use std::collections::BTreeMap;

use half::f16;

use crate::eval;
use crate::ir::{Binding, DType, Dim, NodeId, Operation, TensorType, Value, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Target};
use crate::tensor::Tensor;

/// The pass.
pub(super) struct FuseConvBias;

static META: Meta = Meta {
    id: "fuse-conv-bias",
    family: Family::Cleanup,
    summary: "add(conv(x, w), c) with one number per channel becomes conv(x, w, bias = c)",
    exactness: Exactness::Real,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl],
    evidence: Evidence::Documented,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

impl Pass for FuseConvBias {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(Fuse))
    }
}

struct Fuse;

impl Matcher for Fuse {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let Some(add) = block.op_of_type(node, "add") else {
            return Attempt::NoMatch;
        };
        let found = [("x", "y"), ("y", "x")].into_iter().find_map(|(x, c)| {
            let product = add.value(x)?;
            let conv = block.producer_of_type(product, "conv")?;
            let is_constant =
                block.constant_of(add, c).is_some() || block.uniform_of(add, c).is_some();
            is_constant.then_some((product, conv, c))
        });
        let Some((product, conv, parameter)) = found else {
            return Attempt::NoMatch;
        };
        let result = ValueId::first(node);
        if !block.graph.used_once(product) {
            return Attempt::missed(product.node, "the convolution has other uses");
        }
        let (Some(declared), Some(ty)) = (block.tensor(product), block.graph.ty(result).cloned())
        else {
            return Attempt::missed(node, "the type of the convolution is not known");
        };
        if block.tensor(result) != Some(declared) {
            let why = "the constant's shape makes the sum larger than the convolution";
            return Attempt::missed(node, why);
        }
        let bias = match bias(block, (add, parameter), conv, declared) {
            Ok(bias) => bias,
            Err(why) => return Attempt::missed(node, why),
        };
        let mut arguments: BTreeMap<_, _> = conv
            .arguments()
            .iter()
            .map(|argument| (argument.parameter.clone(), argument.bindings.clone()))
            .collect();
        let what = if arguments.contains_key("bias") {
            "the constant is added to the bias of the convolution"
        } else {
            "the constant becomes the bias of the convolution"
        };
        Attempt::matched(what.to_owned(), move |edit| {
            let bias = edit.constant(bias);
            arguments.insert("bias".to_owned(), vec![bias]);
            let sum = ValueId::first(edit.variadic_op("conv", arguments)?);
            edit.retype(sum, ty);
            edit.replace(result, sum)
        })
    }
}

/// The bias that does what the add does, and the bias that the convolution has. Or why there is none.
fn bias(
    block: &Block<'_>,
    (add, parameter): (&Operation, &str),
    conv: &Operation,
    ty: &TensorType,
) -> Result<Value, String> {
    let channels = ty
        .dims
        .get(1)
        .and_then(|dim| usize::try_from(dim.size()?).ok())
        .ok_or("the number of channels is not fixed")?;
    // Since CoreML7 a weight may be of another type than x, and a bias has the weight's.
    let weight = match conv.binding("weight") {
        Some(Binding::Value(value)) => block.dtype(*value),
        Some(Binding::Immediate(value)) => value.tensor_type().map(|ty| ty.dtype),
        _ => None,
    };
    if weight != Some(ty.dtype) {
        return Err("the weight has another type than the result".to_owned());
    }
    let own = if conv.argument("bias").is_some() {
        let own = block
            .constant_of(conv, "bias")
            .ok_or("the convolution has a bias that is not a constant")?;
        Some(floats(block, own).ok_or("the bias of the convolution cannot be read")?)
    } else {
        None
    };
    let mut sums = match (
        block.uniform_of(add, parameter),
        block.constant_of(add, parameter),
    ) {
        (Some(uniform), _) => vec![uniform.value as f32; channels],
        (None, Some(value)) => {
            let sums = by_channel(block, value, ty.dims.len(), channels)?;
            // As many elements as channels: the data stays where it is.
            let elements = value.tensor_type().and_then(TensorType::elements);
            if own.is_none() && elements == Some(channels as u64) {
                let dims = vec![Dim::Known(channels as u64)];
                return Ok(Value {
                    ty: Some(TensorType::new(ty.dtype, dims).into()),
                    ..value.clone()
                });
            }
            sums
        }
        (None, None) => return Err("the addend is not a constant".to_owned()),
    };
    if let Some(own) = own {
        if own.len() != channels {
            return Err(
                "the convolution has a bias of another length than its channels".to_owned(),
            );
        }
        for (sum, own) in sums.iter_mut().zip(own) {
            *sum += own;
        }
        let is_finite = |sum: &f32| match ty.dtype {
            DType::Float16 => f16::from_f32(*sum).is_finite(),
            _ => sum.is_finite(),
        };
        if !sums.iter().all(is_finite) {
            return Err("the sum of both biases is not a finite number of the type".to_owned());
        }
    }
    eval::value(&Tensor::floats(ty.dtype, vec![channels], sums)).map_err(|error| error.to_string())
}

/// The number that a constant adds to each channel of a result of this rank, or why it adds several.
fn by_channel(
    block: &Block<'_>,
    value: &Value,
    rank: usize,
    channels: usize,
) -> Result<Vec<f32>, String> {
    let unknown = "the shape of the constant is not known";
    let shape = value
        .tensor_type()
        .and_then(TensorType::shape)
        .ok_or(unknown)?;
    let elements = floats(block, value).ok_or("the data of the constant cannot be read")?;
    // The channels are the second dimension of the result; the constant is aligned at the last one.
    let axis = (shape.len() + 1).checked_sub(rank);
    let (own, inner) = match axis {
        Some(axis) => {
            let inner: u64 = shape.iter().skip(axis + 1).product();
            (shape.get(axis).copied().unwrap_or(1), inner)
        }
        None => (1, 1),
    };
    let size = |size: u64| usize::try_from(size).ok().filter(|size| *size > 0);
    let (own, inner) = (size(own).ok_or(unknown)?, size(inner).ok_or(unknown)?);
    let mut numbers: Vec<Option<f32>> = vec![None; own];
    for (index, element) in elements.iter().enumerate() {
        let slot = numbers
            .get_mut(index / inner % own)
            .ok_or("the constant has more elements than its shape")?;
        if slot.is_some_and(|number| number.to_bits() != element.to_bits()) {
            return Err("the constant varies along another dimension than the channels".to_owned());
        }
        *slot = Some(*element);
    }
    let numbers: Vec<f32> = numbers.into_iter().flatten().collect();
    match numbers.as_slice() {
        [one] => Ok(vec![*one; channels]),
        _ if numbers.len() == channels => Ok(numbers),
        _ => Err("the constant has not one number for each channel".to_owned()),
    }
}

/// The elements of a constant of fp16 or fp32.
fn floats(block: &Block<'_>, value: &Value) -> Option<Vec<f32>> {
    let bytes = block.bytes(value)?;
    let ty = value.tensor_type()?;
    let elements: Vec<f32> = match ty.dtype {
        DType::Float16 => bytes
            .chunks_exact(2)
            .map(|two| Some(f16::from_le_bytes(two.try_into().ok()?).to_f32()))
            .collect::<Option<_>>()?,
        DType::Float32 => bytes
            .chunks_exact(4)
            .map(|four| Some(f32::from_le_bytes(four.try_into().ok()?)))
            .collect::<Option<_>>()?,
        _ => return None,
    };
    (ty.elements() == Some(elements.len() as u64)).then_some(elements)
}
