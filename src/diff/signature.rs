//! Hashes of operations and values: equal for what is equal, so that counterparts are found in
//! constant time. A collision costs nothing but a worse counterpart; the edits stay true.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::Blobs;
use crate::ir::{
    Binding, Content, Graph, Immediate, Operation, TensorData, TensorType, Value, ValueId,
    ValueType,
};

/// Bytes that are hashed at each of the places of a blob that are looked at.
const SAMPLE_BYTES: usize = 64;

/// Places of a blob that are looked at.
const SAMPLES: usize = 16;

/// How much of an operation enters its signature.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Detail {
    /// Everything but names.
    Whole,
    /// Type, parameters and operands that have counterparts; no literal, attribute or blob.
    Operands,
}

/// The hash of an operation without its names. `identity` gives an operand's number, which is the
/// same on both sides for counterparts; `None` for an operand without counterpart.
pub(super) fn of_op(
    op: &Operation,
    detail: Detail,
    blobs: &dyn Blobs,
    identity: &dyn Fn(ValueId) -> Option<(usize, u32)>,
) -> u64 {
    let mut hasher = DefaultHasher::new();
    op.op_type().hash(&mut hasher);
    op.results().len().hash(&mut hasher);
    for argument in op.arguments() {
        argument.parameter.hash(&mut hasher);
        for (position, binding) in argument.bindings.iter().enumerate() {
            match binding {
                Binding::Value(value) => {
                    if let Some(identity) = identity(*value) {
                        (position, identity).hash(&mut hasher);
                    }
                }
                Binding::Immediate(value) if detail == Detail::Whole => {
                    hash_value(value, blobs, &mut hasher);
                }
                Binding::Immediate(_) | Binding::Absent => position.hash(&mut hasher),
            }
        }
    }
    if detail == Detail::Whole {
        for (name, value) in op.attributes() {
            if name != "name" {
                name.hash(&mut hasher);
                hash_value(value, blobs, &mut hasher);
            }
        }
    }
    for block in op.blocks() {
        hash_block(block, &mut hasher);
    }
    hasher.finish()
}

/// Enough of a nested block to tell it from most others: its operations by type, in any order.
fn hash_block(block: &Graph, hasher: &mut DefaultHasher) {
    let mut types: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, op) in block.ops() {
        *types.entry(op.op_type()).or_default() += 1;
    }
    types.hash(hasher);
    block.outputs().len().hash(hasher);
}

fn hash_value(value: &Value, blobs: &dyn Blobs, hasher: &mut DefaultHasher) {
    hash_type(value.ty.as_ref(), hasher);
    match &value.content {
        Content::Immediate(immediate) => hash_immediate(immediate, blobs, hasher),
        Content::New(new) => hash_sample(&new.bytes, hasher),
        Content::Blob(blob) => match blobs.bytes(blob) {
            Some(bytes) => hash_sample(bytes, hasher),
            // Data that cannot be read is told apart by its place.
            None => blob.hash(hasher),
        },
        Content::Absent => 0u8.hash(hasher),
    }
}

fn hash_immediate(immediate: &Immediate, blobs: &dyn Blobs, hasher: &mut DefaultHasher) {
    match immediate {
        Immediate::Tensor(data) => hash_data(data, hasher),
        Immediate::Tuple(values) | Immediate::List(values) => {
            values.len().hash(hasher);
            for value in values {
                hash_value(value, blobs, hasher);
            }
        }
        Immediate::Dictionary(pairs) => {
            pairs.len().hash(hasher);
            for value in pairs.iter().flat_map(|(key, value)| [key, value]).flatten() {
                hash_value(value, blobs, hasher);
            }
        }
        Immediate::Absent => 1u8.hash(hasher),
    }
}

fn hash_data(data: &TensorData, hasher: &mut DefaultHasher) {
    match data {
        TensorData::Floats(values) => {
            for value in values {
                value.to_bits().hash(hasher);
            }
        }
        TensorData::Doubles(values) => {
            for value in values {
                value.to_bits().hash(hasher);
            }
        }
        TensorData::Ints(values) => values.hash(hasher),
        TensorData::Bools(values) => values.hash(hasher),
        TensorData::Strings(values) => values.hash(hasher),
        TensorData::LongInts(values) => values.hash(hasher),
        TensorData::Bytes(bytes) => bytes.hash(hasher),
        TensorData::Absent => 2u8.hash(hasher),
    }
}

/// Blobs may be gigabytes: their length and some places of them are enough to find a counterpart.
fn hash_sample(bytes: &[u8], hasher: &mut DefaultHasher) {
    bytes.len().hash(hasher);
    for start in sample_starts(bytes.len(), SAMPLES, SAMPLE_BYTES) {
        let end = (start + SAMPLE_BYTES).min(bytes.len());
        bytes.get(start..end).hash(hasher);
    }
}

/// Where `count` samples of `size` bytes begin in data of this length: evenly spread, the first at
/// its start and the last at its end.
pub(super) fn sample_starts(
    length: usize,
    count: usize,
    size: usize,
) -> impl Iterator<Item = usize> {
    let room = length.saturating_sub(size);
    let gaps = count.max(2) - 1;
    (0..=gaps).map(move |index| (room as u128 * index as u128 / gaps as u128) as usize)
}

fn hash_type(ty: Option<&ValueType>, hasher: &mut DefaultHasher) {
    match ty {
        None | Some(ValueType::Unspecified) => 0u8.hash(hasher),
        Some(ValueType::Tensor(tensor)) => hash_tensor_type(tensor, hasher),
        Some(ValueType::List { item, length }) => {
            length.hash(hasher);
            hash_type(item.as_deref(), hasher);
        }
        Some(ValueType::Tuple(types)) => {
            for ty in types {
                hash_type(Some(ty), hasher);
            }
        }
        Some(ValueType::Dictionary { key, value }) => {
            hash_type(key.as_deref(), hasher);
            hash_type(value.as_deref(), hasher);
        }
        Some(ValueType::State(inner)) => hash_type(inner.as_deref(), hasher),
    }
}

fn hash_tensor_type(tensor: &TensorType, hasher: &mut DefaultHasher) {
    (tensor.dtype, tensor.rank, &tensor.dims).hash(hasher);
}
