//! What a program computes before and after a pass: the declared exactness, in the interpreter.
//!
//! Every function runs on several samples, each with inputs and states of one kind. An `exact` pass
//! must keep every bit at the program's own types (fp16 mode) on all of them; a `real` one every value
//! but for rounding in fp32, on those whose inputs are finite numbers; an `approx` one within its
//! bound, wherever the value before is a finite number.

use std::collections::BTreeMap;

use half::f16;
use milwright::eval::ports::{Direction, PortMap};
use milwright::eval::scales::{self, ScaleMap};
use milwright::eval::states::StateMap;
use milwright::eval::{self, ConstantError, Interpreter, Options, Precision, States, Unobserved};
use milwright::ir::{BlobRef, DType, NamedType, Program, ValueType};
use milwright::ops::{Datum, StateCell};
use milwright::pass::{Blobs as _, Exactness};
use milwright::tensor::{Packed, Tensor};

use crate::case::{Case, Weights};
use crate::states;

/// What unknown sizes become.
const UNKNOWN: u64 = 3;

/// Relative to the largest magnitude of an output, for passes that only change rounding.
const ROUNDING: f64 = 1e-5;
/// The same in fp16.
const HALF_ROUNDING: f64 = 4e-3;

/// A kind of inputs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sample {
    Zeros,
    Ones,
    Negatives,
    Large,
    Subnormal,
    Random(u64),
    Special,
}

const SAMPLES: [Sample; 8] = [
    Sample::Zeros,
    Sample::Ones,
    Sample::Negatives,
    Sample::Large,
    Sample::Subnormal,
    Sample::Random(1),
    Sample::Random(2),
    Sample::Special,
];

/// Whether two programs compute the same, as exactly as the pass declares.
///
/// # Errors
/// Where they do not; also if no sample can be evaluated, unless the case says why not.
pub(crate) fn equivalent(
    case: &Case,
    before: &Program,
    after: &Program,
    exactness: Exactness,
    (map, ports, scales): (&StateMap, &PortMap, &ScaleMap),
) -> Result<(), String> {
    let (precision, rounding) = match exactness {
        Exactness::Exact | Exactness::Interface | Exactness::None => (Precision::Fp16, 0.0),
        _ if case.in_half => (Precision::Fp16, HALF_ROUNDING),
        _ => (Precision::Fp32, ROUNDING),
    };
    for function in before.functions.keys() {
        let mut evaluated = 0;
        let mut failure = String::new();
        for sample in SAMPLES {
            let start = match Start::of(before, function, sample) {
                Ok(start) => start,
                Err(error) => {
                    failure = error;
                    continue;
                }
            };
            let old = match outputs(case, before, function, &start, precision) {
                Ok(outputs) => outputs,
                Err(error) => {
                    failure = error;
                    continue;
                }
            };
            let place = format!("{sample:?}, function `{function}`");
            let new = start
                .moved(after, function, map, (ports, scales))
                .and_then(|moved| outputs(case, after, function, &moved, precision))
                .map_err(|error| format!("{place}: it runs before and not after: {error}"))?;
            let new = states::restored(new, function, &start.states, map)
                .and_then(|new| originals(&new, function, (ports, scales)))
                .map_err(|error| format!("{place}: {error}"))?;
            evaluated += 1;
            compare(&old, &new, exactness, sample, rounding)
                .map_err(|why| format!("{place}: {why}"))?;
        }
        match (&case.not_evaluated, evaluated) {
            (None, 0) => {
                return Err(format!(
                    "function `{function}` cannot be evaluated on any sample; if that is meant, say \
                     so with `// not evaluated: REASON`: {failure}"
                ));
            }
            (Some(reason), 1..) => {
                return Err(format!("it says `not evaluated: {reason}`, but it can be"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The outputs of a function by name, and its states after the call.
fn outputs(
    case: &Case,
    program: &Program,
    function: &str,
    start: &Start,
    precision: Precision,
) -> Result<BTreeMap<String, Tensor>, String> {
    let options = Options {
        loop_turns: 100,
        ..Options::new(precision.numerics())
    };
    let interpreter = Interpreter::with_blobs(program, Data(&case.blobs), options);
    let cell = |(name, value): (&String, &Tensor)| (name.clone(), StateCell::new(value.clone()));
    let states: States = start.states.iter().map(cell).collect();
    let results = interpreter
        .run(function, &start.inputs, &states, &mut Unobserved)
        .map_err(|error| error.to_string())?;
    let mut outputs = BTreeMap::new();
    for (name, result) in results {
        if let Datum::Tensor(tensor) = result {
            outputs.insert(name, tensor);
        }
    }
    for (name, state) in states {
        outputs.insert(format!("state {name}"), state.read());
    }
    Ok(outputs)
}

/// The results under their names and in their shapes before the pass.
fn originals(
    results: &BTreeMap<String, Tensor>,
    function: &str,
    (ports, scales): (&PortMap, &ScaleMap),
) -> Result<BTreeMap<String, Tensor>, String> {
    let mut originals = BTreeMap::new();
    for name in results.keys() {
        let original = ports.original(function, Direction::Output, name);
        if !originals.contains_key(original) {
            let port = ports.port(function, Direction::Output, original);
            let tensor = port
                .restored(&mut |held| results.get(held).cloned())
                .map_err(|error| error.to_string())?;
            let factor = scales.factor(function, Direction::Output, original);
            let tensor = scales::over(&tensor, factor).map_err(|error| error.to_string())?;
            originals.insert(original.to_owned(), tensor);
        }
    }
    Ok(originals)
}

/// What a call starts with.
struct Start {
    inputs: BTreeMap<String, Tensor>,
    states: BTreeMap<String, Tensor>,
}

impl Start {
    fn of(program: &Program, function: &str, sample: Sample) -> Result<Self, String> {
        let (mut inputs, mut states) = (BTreeMap::new(), BTreeMap::new());
        for input in &program.functions[function].inputs {
            if let Some(state) = input.ty.as_ref().and_then(ValueType::as_state) {
                let named = NamedType {
                    name: input.name.clone(),
                    ty: Some(state.clone().into()),
                };
                states.insert(input.name.clone(), tensor(&named, sample)?);
            } else {
                inputs.insert(input.name.clone(), tensor(input, sample)?);
            }
        }
        Ok(Self { inputs, states })
    }

    /// The same for the program after the pass, whose states may hold those of before.
    fn moved(
        &self,
        after: &Program,
        function: &str,
        map: &StateMap,
        (ports, scales): (&PortMap, &ScaleMap),
    ) -> Result<Self, String> {
        let mut inputs = BTreeMap::new();
        for (name, tensor) in &self.inputs {
            let port = ports.port(function, Direction::Input, name);
            let factor = scales.factor(function, Direction::Input, name);
            let tensor = scales::times(tensor, factor).map_err(|error| error.to_string())?;
            let tensor = port.padded(&tensor).map_err(|error| error.to_string())?;
            inputs.insert(port.name, tensor);
        }
        Ok(Self {
            inputs,
            states: states::moved(&self.states, after, function, map)?,
        })
    }
}

/// A value for an input. Integers are small, so that many of them are indices.
fn tensor(input: &NamedType, sample: Sample) -> Result<Tensor, String> {
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

fn compare(
    before: &BTreeMap<String, Tensor>,
    after: &BTreeMap<String, Tensor>,
    exactness: Exactness,
    sample: Sample,
    rounding: f64,
) -> Result<(), String> {
    if !before.keys().eq(after.keys()) {
        let names =
            |outputs: &BTreeMap<String, Tensor>| outputs.keys().cloned().collect::<Vec<_>>();
        return Err(format!(
            "the outputs {:?} become {:?}",
            names(before),
            names(after)
        ));
    }
    for (name, old) in before {
        let new = &after[name];
        if old.shape() != new.shape() || old.dtype() != new.dtype() {
            return Err(format!(
                "`{name}`: {} {:?} becomes {} {:?}",
                old.dtype(),
                old.shape(),
                new.dtype(),
                new.shape()
            ));
        }
        if old.dtype() == DType::String {
            let same = old.as_texts() == new.as_texts();
            return if same {
                Ok(())
            } else {
                Err(format!("`{name}`: the strings differ"))
            };
        }
        let (old, new) = (values(old)?, values(new)?);
        let bound = match exactness {
            Exactness::Exact | Exactness::Interface | Exactness::None => None,
            _ if sample == Sample::Special => continue,
            Exactness::Real => Some(rounding * scale(&old)),
            Exactness::Approx(bound) => Some(bound + rounding * scale(&old)),
        };
        for (index, (a, b)) in old.iter().zip(&new).enumerate() {
            let same_bits = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
            let is_repair = matches!(exactness, Exactness::Approx(_)) && !a.is_finite();
            let close = is_repair || bound.is_some_and(|bound| a == b || (a - b).abs() <= bound);
            if !same_bits && !close {
                return Err(format!(
                    "`{name}`: element {index} is {a:?} before and {b:?} after"
                ));
            }
        }
    }
    Ok(())
}

fn values(tensor: &Tensor) -> Result<Vec<f64>, String> {
    tensor.to_f64().map_err(|error| error.to_string())
}

fn scale(values: &[f64]) -> f64 {
    let finite = values.iter().filter(|value| value.is_finite());
    finite.fold(0f64, |largest, value| largest.max(value.abs()))
}

/// The weight files of a case, as the interpreter reads them.
struct Data<'a>(&'a Weights);

impl eval::Blobs for Data<'_> {
    fn packed(&self, blob: &BlobRef, dtype: DType, _: u64) -> Result<Packed, ConstantError> {
        let bytes = self.0.bytes(blob).ok_or(ConstantError::Data(dtype))?;
        Ok(Packed::new(bytes.to_vec()))
    }
}
