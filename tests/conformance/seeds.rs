//! Inputs for programs that come without any.

use std::collections::BTreeMap;

use milwright::ir::{DType, NamedType};
use milwright::tensor::Tensor;

/// What unknown sizes become.
const UNKNOWN: u64 = 3;

/// Values for the inputs of a function: the same for the same names and types. Integers are 0 or 1,
/// which index anything that has two elements. States and inputs that are no tensors get none.
pub(crate) fn inputs(inputs: &[NamedType], seed: u64) -> BTreeMap<String, Tensor> {
    let mut values = BTreeMap::new();
    for input in inputs {
        let Some(ty) = input.ty.as_ref().and_then(|ty| ty.as_tensor()) else {
            continue;
        };
        let shape: Vec<usize> = ty
            .dims
            .iter()
            .map(|dim| dim.size().unwrap_or(UNKNOWN) as usize)
            .collect();
        values.insert(input.name.clone(), tensor(ty.dtype, shape, seed));
    }
    values
}

fn tensor(dtype: DType, shape: Vec<usize>, seed: u64) -> Tensor {
    let count = shape.iter().product::<usize>() as u64;
    // A full-period generator of 64 bits (Knuth, MMIX), its high bits as a number in [0, 1).
    let unit = |index: u64| {
        let state = (index + seed * 1_000_003)
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let mixed = (state ^ (state >> 32)).wrapping_mul(6_364_136_223_846_793_005);
        (mixed >> 40) as f32 / (1u64 << 24) as f32
    };
    match dtype {
        DType::Bool => Tensor::bools(shape, (0..count).map(|i| unit(i) < 0.5).collect()),
        DType::String => Tensor::texts(shape, (0..count).map(|i| i.to_string()).collect()),
        _ if dtype.is_float() => Tensor::floats(
            dtype,
            shape,
            (0..count).map(|i| unit(i) * 4.0 - 2.0).collect(),
        ),
        _ => Tensor::ints(
            dtype,
            shape,
            (0..count).map(|i| i64::from(unit(i) < 0.5)).collect(),
        ),
    }
}
