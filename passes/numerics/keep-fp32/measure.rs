//! How far a function in fp16 is from the same in fp32, on given inputs.

use std::collections::BTreeMap;

use crate::eval::arrays::array;
use crate::eval::verify::Calls;
use crate::eval::{Interpreter, Options, Precision, RunError, Unobserved};
use crate::ir::{Body, DType, Function, Program, ValueType};
use crate::pass::{Blobs, Readable, Whole};
use crate::tensor::Tensor;

/// The greatest |low − fp32| of all outputs and states, each relative to the greatest magnitude of the
/// same array in fp32; infinite if one has NaN or infinity where the other has not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Error(pub(super) f64);

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_finite() {
            write!(f, "{:.1e}", self.0)
        } else {
            f.write_str("infinite")
        }
    }
}

/// What one sample gave: the outputs of each call and the states in the end.
type Given = Vec<Vec<(String, Tensor)>>;

/// A function with inputs to run it on, and what it gives in fp32.
pub(super) struct Measure<'w> {
    name: String,
    function: Function,
    samples: Vec<Calls>,
    reference: Vec<Given>,
    precision: Precision,
    blobs: &'w dyn Blobs,
}

impl<'w> Measure<'w> {
    /// Runs the function in fp32.
    ///
    /// # Errors
    ///
    /// In a few words, if the samples are not for this function, or it cannot run.
    pub(super) fn new(
        whole: &Whole<'w>,
        name: &str,
        function: &Function,
        precision: Precision,
    ) -> Result<Self, String> {
        let samples = whole
            .calibration
            .samples_of(name)
            .iter()
            .map(|calls| calls.iter().map(|call| inputs(function, call)).collect())
            .collect::<Result<Vec<Calls>, String>>()?;
        let mut measure = Self {
            name: name.to_owned(),
            function: Function {
                specializations: BTreeMap::new(),
                ..function.clone()
            },
            samples,
            reference: Vec::new(),
            precision,
            blobs: whole.blobs,
        };
        let body = function.active().ok_or("it has no body for its opset")?;
        measure.reference = measure
            .run(body.clone(), Precision::Fp32)
            .map_err(|error| format!("it does not run in fp32: {error}"))?;
        let mut arrays = measure.reference.iter().flatten().flatten();
        if let Some((lost, _)) = arrays.find(|(_, array)| is_lost(array)) {
            return Err(format!(
                "in fp32 `{lost}` has no finite number on these inputs, so that no error can be measured"
            ));
        }
        Ok(measure)
    }

    /// The error of a body in the low precision.
    pub(super) fn error(&self, body: Body) -> Result<Error, String> {
        let given = self
            .run(body, self.precision)
            .map_err(|error| format!("it does not run in {}: {error}", self.precision.word()))?;
        let pairs = self.reference.iter().flatten().flatten();
        let errors = pairs
            .zip(given.iter().flatten().flatten())
            .map(|((_, reference), (_, low))| distance(reference, low));
        Ok(Error(errors.fold(0.0, f64::max)))
    }

    fn run(&self, body: Body, precision: Precision) -> Result<Vec<Given>, RunError> {
        let mut function = self.function.clone();
        let opset = function.opset.clone();
        function.specializations.insert(opset, body);
        let program = Program {
            functions: BTreeMap::from([(self.name.clone(), function)]),
            ..Program::default()
        };
        let options = Options::new(precision.numerics());
        let interpreter = Interpreter::with_blobs(&program, Readable(self.blobs), options);
        let mut given = Vec::new();
        for calls in &self.samples {
            let states = interpreter.zero_states(&self.name)?;
            let mut arrays = Vec::new();
            for call in calls {
                let results = interpreter.run(&self.name, call, &states, &mut Unobserved)?;
                let named = |(name, datum)| Some((name, array(&datum).ok()?));
                arrays.push(results.into_iter().filter_map(named).collect());
            }
            let held = states
                .iter()
                .map(|(name, cell)| (name.clone(), cell.read()));
            arrays.push(held.collect());
            given.push(arrays);
        }
        Ok(given)
    }
}

/// The inputs of a call as a function takes them. fp16 inputs are rounded, as that is what it is given.
fn inputs(
    function: &Function,
    call: &BTreeMap<String, Tensor>,
) -> Result<BTreeMap<String, Tensor>, String> {
    let mut inputs = BTreeMap::new();
    for input in &function.inputs {
        let Some(ty) = input.ty.as_ref().and_then(ValueType::as_tensor) else {
            continue;
        };
        let unfit = || format!("the inputs to run it on have no `{}` that fits", input.name);
        let tensor = call.get(&input.name).ok_or_else(unfit)?;
        let (found, wanted) = (tensor.dtype(), ty.dtype);
        let tensor = if found == wanted {
            tensor.clone()
        } else if found.is_float() && wanted.is_float() {
            tensor.clone().retyped(wanted)
        } else if found.is_int() && wanted.is_int() {
            tensor.clone().retyped(wanted).wrapped_to_width()
        } else {
            return Err(unfit());
        };
        let tensor = match wanted {
            DType::Float16 => tensor.rounded_to_half(false).map_err(|_| unfit())?,
            _ => tensor,
        };
        inputs.insert(input.name.clone(), tensor);
    }
    Ok(inputs)
}

/// Whether an array has numbers and none of them is finite.
fn is_lost(array: &Tensor) -> bool {
    let is_float = array.dtype().is_float() && !array.is_empty();
    is_float
        && array
            .to_f64()
            .is_ok_and(|numbers| !numbers.iter().any(|n| n.is_finite()))
}

fn distance(reference: &Tensor, low: &Tensor) -> f64 {
    if reference.dtype() == DType::String || low.dtype() == DType::String {
        return 0.0;
    }
    let (Ok(reference), Ok(low)) = (reference.to_f64(), low.to_f64()) else {
        return f64::INFINITY;
    };
    if reference.len() != low.len() {
        return f64::INFINITY;
    }
    let (mut scale, mut furthest) = (0f64, 0f64);
    for (a, b) in reference.iter().zip(&low) {
        if a.is_finite() && b.is_finite() {
            scale = scale.max(a.abs());
            furthest = furthest.max((a - b).abs());
        } else if a != b && !(a.is_nan() && b.is_nan()) {
            return f64::INFINITY;
        }
    }
    if furthest == 0.0 {
        0.0
    } else {
        furthest / scale
    }
}
