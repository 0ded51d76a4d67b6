//! What the check asks of weights, without a look at their data.

use std::collections::BTreeSet;

use crate::analysis::weight::Weight;
use crate::ir::{Binding, DType, Node, Operation, TensorType, ValueId};
use crate::pass::Block;

/// A weight that more operations make is no constant.
const MAX_STEPS: usize = 64;

/// Cores of the Neural Engine among which outputs are divided.
const CORES: u64 = 16;

/// The distance of slow sizes, and how close to one is slow. Measured on an M4: stablehlo-coreml.
const NOTCH: u64 = 1 << 20;
const NEAR: u64 = 16 << 10;

/// The sizes of a weight.
pub(super) fn shape(block: &Block<'_>, op: &Operation) -> Option<Vec<u64>> {
    match op.binding("weight")? {
        Binding::Immediate(value) => value.tensor_type()?.shape(),
        Binding::Value(value) => block.tensor(*value)?.shape(),
        Binding::Absent => None,
    }
}

/// The input or state that a weight depends on, by its name; `None` if it is computed of constants.
pub(super) fn source<'b>(block: &Block<'b>, weight: ValueId) -> Option<&'b str> {
    let mut seen = BTreeSet::new();
    let mut open = vec![weight];
    while let Some(value) = open.pop() {
        if !seen.insert(value.node) {
            continue;
        }
        if seen.len() > MAX_STEPS {
            return Some(block.graph.name(weight));
        }
        match block.graph.node(value.node)? {
            Node::Input(named, _) => return Some(&named.name),
            Node::Capture { source: outer, .. } => {
                if let Some(name) = block.outer.and_then(|block| source(block, *outer)) {
                    return Some(name);
                }
            }
            Node::Op(op) => {
                let bindings = op.arguments().iter().flat_map(|a| &a.bindings);
                open.extend(bindings.filter_map(|binding| match binding {
                    Binding::Value(value) => Some(*value),
                    _ => None,
                }));
            }
            Node::Return(_) | Node::Erased => {}
        }
    }
    None
}

/// That what a core reads of a dense fp16 weight is of an unfortunate size, in words.
pub(super) fn notch(block: &Block<'_>, op: &Operation) -> Option<String> {
    let parameter = if op.op_type() == "matmul" {
        "y"
    } else {
        "weight"
    };
    let Weight::Plain(value) = Weight::of(block, op, parameter).ok()? else {
        return None;
    };
    let ty: &TensorType = value.tensor_type()?;
    if ty.dtype != DType::Float16 {
        return None;
    }
    let shape = ty.shape()?;
    let (outputs, inputs, window) = match (op.op_type(), shape.as_slice()) {
        ("matmul", [inputs, outputs]) => match block.bool_or(op, "transpose_y", false)? {
            false => (*outputs, *inputs, 1),
            true => (*inputs, *outputs, 1),
        },
        ("linear", [outputs, inputs]) => (*outputs, *inputs, 1),
        ("conv", [outputs, inputs, window @ ..]) => {
            let size = window
                .iter()
                .try_fold(1u64, |size, one| size.checked_mul(*one))?;
            (*outputs, *inputs, size)
        }
        _ => return None,
    };
    let bytes = outputs
        .div_ceil(CORES)
        .checked_mul(inputs)?
        .checked_mul(window)?
        .checked_mul(2)?;
    let nearest = bytes.saturating_add(NOTCH / 2) / NOTCH * NOTCH;
    let is_near = nearest > 0 && bytes.abs_diff(nearest) <= NEAR;
    is_near.then(|| {
        format!(
            "of the weight {shape:?} each core reads {bytes} bytes, {} from {} MiB",
            bytes.abs_diff(nearest),
            nearest >> 20
        )
    })
}
