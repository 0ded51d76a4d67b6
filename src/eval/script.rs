//! What an `.npz` file says about runs of a model: inputs of one or more calls, and the outputs that
//! are expected.
//!
//! The names of the arrays: `<input>` or `in_<input>`; `out_<i>_<output>`, where i counts the
//! outputs; `s<k>_in_<input>` and `s<k>_out_<i>_<output>` for the call k ≥ 1 on the same states, an
//! input that is not given being that of call 0; `state_<state>` for a state after the last call.
//! `keys_<i>_<output>`, the keys of an output that is a dictionary, is for the reader alone.

use std::collections::BTreeMap;

use super::arrays::array;
use super::compare::{Closeness, Tolerance, closeness};
use super::error::RunError;
use super::interpreter::{Interpreter, States, Unobserved};
use super::npz::Arrays;
use super::typed::{fits, words};
use crate::ir::NamedType;
use crate::ir::types::ValueType;
use crate::ops::Datum;
use crate::tensor::Tensor;

/// One or more calls of a function, on the same states.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// The calls in order; at least one.
    pub calls: Vec<Call>,
    /// What states should hold after the last call.
    pub states: BTreeMap<String, Tensor>,
    /// Arrays that are nothing of this.
    pub unused: Vec<String>,
}

/// One call.
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// The inputs by name.
    pub inputs: BTreeMap<String, Tensor>,
    /// What is expected.
    pub expected: Vec<Expected>,
}

/// An expected output.
#[derive(Clone, Debug)]
pub struct Expected {
    /// Which of the outputs, in the order of the description.
    pub index: usize,
    /// Its name as the file has it.
    pub name: String,
    /// Its value.
    pub value: Tensor,
}

/// An output or state, and what was expected of it, in the same shape.
#[derive(Clone, Debug)]
pub struct Computed {
    /// The call, counted from 0.
    pub call: usize,
    /// The output's name, or the state's.
    pub name: String,
    /// What was computed.
    pub actual: Tensor,
    /// What was expected.
    pub expected: Tensor,
}

/// How an output or state compares with what was expected.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The call, counted from 0.
    pub call: usize,
    /// The output's name, or the state's.
    pub name: String,
    /// How close it is.
    pub closeness: Closeness,
}

/// Why a script does not fit a function.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// An input of the wrong kind.
    #[error("the array for input `{name}`: {reason}")]
    Input {
        /// The input.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// An output that the function does not have.
    #[error("an output `{name}` (number {index}) is expected, but the function has {}", known.join(", "))]
    Output {
        /// Its place.
        index: usize,
        /// Its name.
        name: String,
        /// The outputs of the function.
        known: Vec<String>,
    },
    /// A state that the function does not have.
    #[error("a state `{0}` is expected, but the function has none of that name")]
    State(String),
    /// An output or state that is no tensor of numbers.
    #[error("`{name}` cannot be compared: {reason}")]
    Compare {
        /// The output or state.
        name: String,
        /// Why.
        reason: String,
    },
    /// The run failed.
    #[error(transparent)]
    Run(#[from] RunError),
}

impl Script {
    /// What the arrays say about a function with these inputs.
    pub fn new(arrays: &Arrays, inputs: &[NamedType]) -> Result<Self, ScriptError> {
        let mut script = Self::default();
        let mut given: BTreeMap<(usize, String), Tensor> = BTreeMap::new();
        for (key, tensor) in arrays {
            let (call, rest) = split_call(key);
            if script.calls.len() <= call {
                script.calls.resize(call + 1, Call::default());
            }
            let input = declared(inputs, rest)
                .or_else(|| declared(inputs, rest.strip_prefix("in_")?))
                .filter(|input| !input.ty.as_ref().is_some_and(ValueType::is_state));
            if let Some(input) = input {
                let converted =
                    convert(tensor, input.ty.as_ref()).map_err(|reason| ScriptError::Input {
                        name: input.name.clone(),
                        reason,
                    })?;
                given.insert((call, input.name.clone()), converted);
            } else if let Some((index, name)) = split_output(rest) {
                script.calls[call].expected.push(Expected {
                    index,
                    name: name.to_owned(),
                    value: tensor.clone(),
                });
            } else if let Some(name) = key.strip_prefix("state_") {
                script.states.insert(name.to_owned(), tensor.clone());
            } else if !key.starts_with("keys_") {
                script.unused.push(key.clone());
            }
        }
        if script.calls.is_empty() {
            script.calls.push(Call::default());
        }
        for (index, call) in script.calls.iter_mut().enumerate() {
            call.expected.sort_by_key(|expected| expected.index);
            for input in inputs {
                let tensor = given
                    .get(&(index, input.name.clone()))
                    .or_else(|| given.get(&(0, input.name.clone())));
                if let Some(tensor) = tensor {
                    call.inputs.insert(input.name.clone(), tensor.clone());
                }
            }
        }
        Ok(script)
    }

    /// Runs the calls; gives each output and state for which something is expected, in the shape of
    /// that. `outputs` are the names of the function's outputs in the order of the description.
    pub fn run(
        &self,
        interpreter: &Interpreter<'_>,
        function: &str,
        outputs: &[String],
        states: &States,
    ) -> Result<Vec<Computed>, ScriptError> {
        let mut computed = Vec::new();
        for (number, call) in self.calls.iter().enumerate() {
            let results = interpreter.run(function, &call.inputs, states, &mut Unobserved)?;
            computed.extend(self.computed(number, &results, outputs)?);
        }
        let held = states
            .iter()
            .map(|(name, cell)| (name.clone(), cell.read()))
            .collect();
        computed.extend(self.computed_states(&held)?);
        Ok(computed)
    }

    /// What one call gave beside what is expected of it. `results` are the outputs by name.
    pub fn computed(
        &self,
        number: usize,
        results: &[(String, Datum)],
        outputs: &[String],
    ) -> Result<Vec<Computed>, ScriptError> {
        let expected = self.calls.get(number).map(|call| call.expected.iter());
        expected
            .into_iter()
            .flatten()
            .map(|expected| {
                let name = expected.resolve(outputs)?;
                let wrong = |reason: String| ScriptError::Compare {
                    name: name.to_owned(),
                    reason,
                };
                let result = results.iter().find(|(output, _)| output == name);
                let (_, datum) = result.ok_or_else(|| wrong("it is not computed".to_owned()))?;
                let tensor = array(datum).map_err(wrong)?;
                Computed::new(number, name, &tensor, &expected.value)
            })
            .collect()
    }

    /// What the states hold after the last call beside what is expected of them.
    pub fn computed_states(
        &self,
        held: &BTreeMap<String, Tensor>,
    ) -> Result<Vec<Computed>, ScriptError> {
        let last = self.calls.len().saturating_sub(1);
        self.states
            .iter()
            .map(|(name, expected)| {
                let state = held
                    .get(name)
                    .ok_or_else(|| ScriptError::State(name.clone()))?;
                Computed::new(last, name, state, expected)
            })
            .collect()
    }

    /// Runs the calls and compares all that is expected.
    pub fn check(
        &self,
        interpreter: &Interpreter<'_>,
        function: &str,
        outputs: &[String],
        states: &States,
        tolerance: Tolerance,
    ) -> Result<Vec<Checked>, ScriptError> {
        self.run(interpreter, function, outputs, states)?
            .into_iter()
            .map(|computed| {
                let closeness = closeness(&computed.actual, &computed.expected, tolerance)
                    .map_err(|error| ScriptError::Compare {
                        name: computed.name.clone(),
                        reason: error.to_string(),
                    })?;
                Ok(Checked {
                    call: computed.call,
                    name: computed.name,
                    closeness,
                })
            })
            .collect()
    }
}

impl Computed {
    fn new(
        call: usize,
        name: &str,
        actual: &Tensor,
        expected: &Tensor,
    ) -> Result<Self, ScriptError> {
        let aligned = aligned(actual, expected).ok_or_else(|| ScriptError::Compare {
            name: name.to_owned(),
            reason: format!(
                "its shape is {:?}, but {:?} is expected",
                actual.shape(),
                expected.shape()
            ),
        })?;
        Ok(Self {
            call,
            name: name.to_owned(),
            actual: aligned,
            expected: expected.clone(),
        })
    }
}

impl Expected {
    /// The name of the output that is meant: the one of this name, else the one in this place.
    pub fn resolve<'o>(&self, outputs: &'o [String]) -> Result<&'o str, ScriptError> {
        outputs
            .iter()
            .find(|output| **output == self.name)
            .or_else(|| outputs.get(self.index))
            .map(String::as_str)
            .ok_or_else(|| ScriptError::Output {
                index: self.index,
                name: self.name.clone(),
                known: outputs.to_vec(),
            })
    }
}

/// The output in the expected shape: as it is, or its last rows, or (for scalars, which have no
/// shape in a description) the same single element.
fn aligned(actual: &Tensor, expected: &Tensor) -> Option<Tensor> {
    if actual.shape() == expected.shape() {
        return Some(actual.clone());
    }
    if actual.len() == 1 && expected.len() == 1 {
        return actual.reshaped(expected.shape().to_vec()).ok();
    }
    let rows = actual.rank().checked_sub(2)?;
    let same = actual.rank() == expected.rank()
        && (0..actual.rank())
            .all(|axis| axis == rows || actual.shape()[axis] == expected.shape()[axis]);
    let skipped = actual.shape()[rows].checked_sub(expected.shape()[rows])?;
    if !same {
        return None;
    }
    let strides: Vec<isize> = crate::tensor::strides(actual.shape())
        .into_iter()
        .map(|stride| stride as isize)
        .collect();
    let start = skipped as isize * strides[rows];
    actual
        .strided(expected.shape().to_vec(), start, &strides)
        .ok()
}

fn declared<'i>(inputs: &'i [NamedType], name: &str) -> Option<&'i NamedType> {
    inputs.iter().find(|input| input.name == name)
}

/// `s3_in_x` is call 3 and `in_x`; everything else is call 0.
fn split_call(key: &str) -> (usize, &str) {
    /// A file cannot make us hold more calls than this.
    const MOST_CALLS: usize = 1 << 16;
    let call = || {
        let (number, rest) = key.strip_prefix('s')?.split_once('_')?;
        let number: usize = number.parse().ok()?;
        let is_call = rest.starts_with("in_") || rest.starts_with("out_");
        (is_call && number < MOST_CALLS).then_some((number, rest))
    };
    call().unwrap_or((0, key))
}

/// `out_2_logits` is output 2, `logits`.
fn split_output(key: &str) -> Option<(usize, &str)> {
    let (index, name) = key.strip_prefix("out_")?.split_once('_')?;
    Some((index.parse().ok()?, name))
}

/// An array as the input's type wants it: floats and integers of another width are converted,
/// integers only if they fit.
pub(super) fn convert(tensor: &Tensor, ty: Option<&ValueType>) -> Result<Tensor, String> {
    let Some(ValueType::Tensor(wanted)) = ty else {
        return Ok(tensor.clone());
    };
    let dtype = wanted.dtype;
    let found = tensor.dtype();
    let converted = if found == dtype {
        tensor.clone()
    } else if (found.is_float() && dtype.is_float()) || (found.is_int() && dtype.is_int()) {
        let converted = tensor.clone().retyped(dtype);
        if dtype.is_int() {
            let narrowed = converted.clone().wrapped_to_width();
            let fits = match (narrowed.as_ints(), converted.as_ints()) {
                (Ok(a), Ok(b)) => a == b,
                _ => false,
            };
            if !fits {
                return Err(format!("it holds {found} values that do not fit {dtype}"));
            }
        }
        converted
    } else {
        return Err(format!(
            "it is of type {found}, but {} is wanted",
            words(ty)
        ));
    };
    if fits(ty, &Datum::Tensor(converted.clone())) {
        return Ok(converted);
    }
    // numpy has no scalars apart from arrays of rank 0, and files often hold one element instead.
    if let Some(shape) = wanted.shape()
        && converted.len() == 1
        && shape.iter().product::<u64>() == 1
    {
        return converted
            .reshaped(shape.iter().map(|size| *size as usize).collect())
            .map_err(|error| error.to_string());
    }
    Err(format!(
        "its shape is {:?}, but {} is wanted",
        tensor.shape(),
        words(ty)
    ))
}
