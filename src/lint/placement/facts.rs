//! What is known of where operations run. Each fact has its source; none of them is Apple's word.
//!
//! Most are from compute plans and profiles on an M4 and an M6 with macOS 27 that one author published
//! (*751K*, a study of the Neural Engine's microarchitecture), or from the notes of CoreML-LLM, of
//! WhisperKit's published plans, and of FluidInference on an A15. Other devices and systems place
//! operations otherwise.

use super::Device;
use crate::ir::{Binding, DType, Dim, Operation, TensorType, ValueType};
use crate::pass::Block;

/// The links that the estimate is from.
pub const SOURCES: [&str; 4] = [
    "https://github.com/751K/Apple-Neural-Engine-Microarchitecture-Study-M6",
    "https://github.com/john-rocky/CoreML-LLM",
    "https://github.com/FluidInference/mobius",
    "https://github.com/apple/coremltools/issues/1780",
];

/// The reason of an operation in a branch or a loop.
pub const IN_A_BLOCK: &str = "in a branch or a loop, which the CPU steps through";
/// The reason of an operation that a plan places where the facts do not.
pub const MEASURED: &str = "the plan says so";

/// Operations that plans place on the CPU only: *751K* (all but the last row), coremltools #1780 (LSTM),
/// CoreML-LLM (`cumsum`, `reduce_argmax`), and the operations on lists and classes, which are no
/// tensors.
const CPU_ONLY: [&str; 35] = [
    "argsort",
    "band_part",
    "cond",
    "crop_resize",
    "cumsum",
    "gru",
    "lstm",
    "non_maximum_suppression",
    "non_zero",
    "one_hot",
    "random_bernoulli",
    "random_categorical",
    "random_normal",
    "random_uniform",
    "range_1d",
    "reduce_argmax",
    "reduce_argmin",
    "reduce_prod",
    "rnn",
    "scatter",
    "scatter_along_axis",
    "scatter_nd",
    "shape",
    "sliding_windows",
    "while_loop",
    "acos",
    "asin",
    "atanh",
    "cosh",
    "classify",
    "list_gather",
    "list_length",
    "list_read",
    "list_write",
    "make_list",
];

/// Functions that the Neural Engine has no table of, and the GPU has: *751K*.
const NOT_ON_ANE: [&str; 3] = ["mod", "sinh", "tan"];

/// The largest size of the last two dimensions on an A15 (FluidInference, the compiler's message) and of
/// M1 class.
const LARGEST_INNER: u64 = 16_384;
/// The largest size of any dimension, by the same message.
const LARGEST: u64 = 65_536;
/// The largest rank, by the same: N, D, C, H, W.
const LARGEST_RANK: usize = 5;
/// The largest inner size of a product: *751K*.
const LARGEST_PRODUCT: u64 = 32_768;
/// The largest kernel of a convolution that stayed: *751K* saw 1x16, 32x1 and 17x17 leave.
const LARGEST_KERNEL: u64 = 15;
/// The largest window of a pool that stayed: *751K* saw 9x9 and 1x9 leave.
const LARGEST_WINDOW: i64 = 8;

/// Where an operation of the outermost block runs and, if that is not the Neural Engine, why.
pub(super) fn place(block: &Block<'_>, op: &Operation) -> (Device, &'static str) {
    let op_type = op.op_type();
    if CPU_ONLY.contains(&op_type) {
        return (
            Device::Cpu,
            "the Neural Engine and the GPU have no form of it",
        );
    }
    let types = Types::of(block, op);
    if let Some(place) = by_element_type(op_type, &types) {
        return place;
    }
    if NOT_ON_ANE.contains(&op_type) {
        return (Device::Gpu, "the Neural Engine has no form of it");
    }
    if let Some(place) = by_size(&types) {
        return place;
    }
    by_operation(block, op).unwrap_or((Device::Ane, ""))
}

/// The types of what an operation reads and makes; constants only if they are large.
struct Types<'a> {
    read: Vec<&'a TensorType>,
    made: Vec<&'a TensorType>,
}

impl<'a> Types<'a> {
    fn of(block: &Block<'a>, op: &'a Operation) -> Self {
        let bindings = op
            .arguments()
            .iter()
            .flat_map(|argument| &argument.bindings);
        let read = bindings.filter_map(|binding| match binding {
            Binding::Value(value) if block.constant(*value).is_none() => block.tensor(*value),
            _ => None,
        });
        let made = op.results().iter();
        Self {
            read: read.collect(),
            made: made
                .filter_map(|result| result.ty.as_ref().and_then(ValueType::as_tensor))
                .collect(),
        }
    }

    fn any(&self, wanted: impl Fn(&TensorType) -> bool) -> bool {
        self.read.iter().chain(&self.made).any(|ty| wanted(ty))
    }
}

/// The Neural Engine computes in fp16; integers are for indices.
fn by_element_type(op_type: &str, types: &Types<'_>) -> Option<(Device, &'static str)> {
    let has = |dtype| types.any(|ty| ty.dtype == dtype);
    let is_lookup = op_type.starts_with("gather");
    if op_type == "cast" {
        let is_float = |ty: &&TensorType| matches!(ty.dtype, DType::Float16);
        let is_plain = types.read.iter().all(is_float) && types.made.iter().all(is_float);
        return (!is_plain).then_some((Device::Cpu, "a conversion of types"));
    }
    if has(DType::Float32) {
        return Some((Device::Gpu, "computes in fp32"));
    }
    let makes_integers = types.made.iter().any(|ty| ty.dtype == DType::Int32);
    if makes_integers && op_type != "topk" {
        return Some((Device::Cpu, "computes with int32"));
    }
    if is_lookup && types.read.iter().any(|ty| ty.dtype.is_int()) {
        return Some((Device::Cpu, "a lookup by indices that are computed"));
    }
    None
}

fn by_size(types: &Types<'_>) -> Option<(Device, &'static str)> {
    if types.any(|ty| ty.dims.iter().any(|dim| !matches!(dim, Dim::Known(_)))) {
        return Some((Device::Gpu, "a size is not known before the model runs"));
    }
    if types.any(|ty| ty.dims.len() > LARGEST_RANK) {
        return Some((Device::Gpu, "more than 5 dimensions"));
    }
    let is_large = |ty: &TensorType| {
        let sizes = ty.shape().unwrap_or_default();
        let inner = sizes.len().saturating_sub(2);
        sizes.iter().any(|size| *size > LARGEST)
            || sizes[inner..].iter().any(|size| *size > LARGEST_INNER)
    };
    types
        .any(is_large)
        .then_some((Device::Gpu, "a dimension beyond 16 384 (inner) or 65 536"))
}

fn by_operation(block: &Block<'_>, op: &Operation) -> Option<(Device, &'static str)> {
    let shape = |parameter: &str| -> Option<Vec<u64>> {
        match op.binding(parameter)? {
            Binding::Value(value) => block.tensor(*value)?.shape(),
            Binding::Immediate(value) => value.tensor_type()?.shape(),
            Binding::Absent => None,
        }
    };
    match op.op_type() {
        "conv" | "conv_transpose" => {
            let weight = shape("weight")?;
            let is_wide = weight.get(2..)?.iter().any(|size| *size > LARGEST_KERNEL);
            is_wide.then_some((Device::Gpu, "a kernel wider than 15"))
        }
        "max_pool" | "avg_pool" | "l2_pool" => {
            let window = block.ints_of(op, "kernel_sizes")?;
            let is_wide = window.iter().any(|size| *size > LARGEST_WINDOW);
            is_wide.then_some((Device::Gpu, "a window wider than 8"))
        }
        "matmul" => {
            let x = shape("x")?;
            let inner = if block.bool_or(op, "transpose_x", false)? {
                x.get(x.len().checked_sub(2)?)?
            } else {
                x.last()?
            };
            (*inner > LARGEST_PRODUCT)
                .then_some((Device::Gpu, "a product of more than 32 768 terms"))
        }
        "slice_by_index" | "slice_update" | "slice_by_size" => {
            let is_known = block.constant_of(op, "begin").is_some();
            (!is_known).then_some((Device::Cpu, "a slice whose start is computed"))
        }
        _ => None,
    }
}
