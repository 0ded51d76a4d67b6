//! Inputs to run a case's program on, of several kinds.

use std::collections::BTreeMap;

use half::f16;
use milwright::eval::verify::Calls;
use milwright::ir::{DType, NamedType, Program, ValueType};
use milwright::tensor::Tensor;

/// What unknown sizes become.
const UNKNOWN: u64 = 3;

/// A kind of inputs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Sample {
    Zeros,
    Ones,
    Negatives,
    Large,
    Subnormal,
    Random(u64),
    Special,
}

pub(crate) const SAMPLES: [Sample; 8] = [
    Sample::Zeros,
    Sample::Ones,
    Sample::Negatives,
    Sample::Large,
    Sample::Subnormal,
    Sample::Random(1),
    Sample::Random(2),
    Sample::Special,
];

/// A value for an input. Integers are small, so that many of them are indices.
///
/// # Errors
/// If it is no tensor.
pub(crate) fn tensor(input: &NamedType, sample: Sample) -> Result<Tensor, String> {
    let ty = input.ty.as_ref().and_then(ValueType::as_tensor);
    let ty = ty.ok_or_else(|| format!("the input `{}` is no tensor", input.name))?;
    let shape: Vec<usize> = ty
        .dims
        .iter()
        .map(|dim| dim.size().unwrap_or(UNKNOWN) as usize)
        .collect();
    let count = shape.iter().product::<usize>();
    let float = |index: usize| -> f32 {
        // The largest and the smallest numbers are those of the type.
        let (large, tiny) = match ty.dtype {
            DType::Float16 => (200.0, f16::from_bits(1).to_f32()),
            _ => (1e4, f32::from_bits(1 << 10)),
        };
        let sign = if index % 3 == 1 { -1.0 } else { 1.0 };
        match sample {
            Sample::Zeros => 0.0 * sign,
            Sample::Ones => 1.0,
            Sample::Negatives => -0.25 * (1 + index % 13) as f32,
            Sample::Large => sign * large * (1.0 + (index % 7) as f32 / 8.0),
            Sample::Subnormal => sign * tiny * (1 + index % 5) as f32,
            Sample::Random(seed) => random(seed, index) * 4.0 - 2.0,
            Sample::Special => {
                let specials = [
                    f32::INFINITY,
                    f32::NEG_INFINITY,
                    f32::NAN,
                    -0.0,
                    0.0,
                    1.0,
                    65504.0,
                    -65504.0,
                ];
                specials[index % specials.len()]
            }
        }
    };
    let integer = |index: usize| -> i64 {
        match sample {
            Sample::Zeros => 0,
            Sample::Negatives => -1 - (index % 2) as i64,
            Sample::Large => 1000 + index as i64,
            Sample::Random(seed) => (random(seed, index) * 3.0) as i64,
            _ => 1,
        }
    };
    Ok(match ty.dtype {
        DType::Bool => {
            let bool = |index: usize| match sample {
                Sample::Zeros => false,
                Sample::Random(seed) => random(seed, index) < 0.5,
                _ => true,
            };
            Tensor::bools(shape, (0..count).map(bool).collect())
        }
        DType::String => Tensor::texts(shape, vec!["text".to_owned(); count]),
        DType::Float16 => {
            // What a state holds that nothing writes is compared as it is.
            let half = |index| f16::from_f32(float(index)).to_f32();
            Tensor::floats(DType::Float16, shape, (0..count).map(half).collect())
        }
        dtype if dtype.is_float() => Tensor::floats(dtype, shape, (0..count).map(float).collect()),
        dtype => {
            let tensor = Tensor::ints(dtype, shape, (0..count).map(integer).collect());
            tensor.wrapped_to_width()
        }
    })
}

/// A number in [0, 1) for each index, by a generator of 64 bits (Knuth, MMIX).
fn random(seed: u64, index: usize) -> f32 {
    let state = (index as u64 + seed * 7919)
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    let mixed = (state ^ (state >> 32)).wrapping_mul(6_364_136_223_846_793_005);
    (mixed >> 40) as f32 / (1u64 << 24) as f32
}

/// So many samples of one call each, with random inputs by name for all functions together: what a case
/// lets its pass run the program on.
///
/// # Errors
/// If an input is no tensor.
pub(crate) fn samples(
    program: &Program,
    number: u64,
) -> Result<BTreeMap<String, Vec<Calls>>, String> {
    let mut samples = BTreeMap::new();
    for (name, function) in &program.functions {
        let one = |seed| {
            let mut inputs = BTreeMap::new();
            for input in &function.inputs {
                if !input.ty.as_ref().is_some_and(ValueType::is_state) {
                    inputs.insert(input.name.clone(), tensor(input, Sample::Random(seed))?);
                }
            }
            Ok(vec![inputs])
        };
        let all: Vec<Calls> = (1..=number).map(one).collect::<Result<_, String>>()?;
        if !all.is_empty() {
            samples.insert(name.clone(), all);
        }
    }
    Ok(samples)
}
