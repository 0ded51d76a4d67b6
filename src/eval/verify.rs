//! Whether two models give the same outputs and leave the same states, on the same inputs.

use std::collections::BTreeMap;

use serde::Serialize;

use super::arrays::array;
use super::inputs::{InputError, Plan};
use super::interpreter::Unobserved;
use super::ports::{Direction, Port, PortMap, PortMapError};
use super::runner::{Runner, RunnerError};
use super::scales::{self, ScaleMap, ScaleMapError};
use super::script::convert;
use super::states::{Place, StateMap, StateMapError};
use super::typed::words;
use crate::ops::Datum;
use crate::tensor::Tensor;

/// When two arrays are equivalent. NaN must stand where NaN stands, and infinities where the same
/// stand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Criterion {
    /// The same bits; NaNs may differ in their payload.
    Exact,
    /// |a − b| ≤ this times the greatest finite magnitude of a's array.
    Scaled(f64),
    /// |a − b| ≤ absolute + relative · |a|.
    Within {
        /// Relative to each element.
        relative: f64,
        /// Absolute.
        absolute: f64,
    },
}

/// How one output or state of two models compares, over all samples and calls.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Difference {
    /// The output's name; a state's begins with `state_`.
    pub name: String,
    /// The greatest |a − b| of elements that are finite on both sides.
    pub max_abs: f64,
    /// The greatest |a − b| / max(|a|, |b|) of such elements: from 0 to 2.
    pub max_rel: f64,
    /// 10 · log10(Σ a² / Σ (a − b)²) over such elements; none if there is no difference.
    pub snr_db: Option<f64>,
    /// The share of rows (along the last axis) whose greatest element is in the same place.
    pub argmax_match: f64,
    /// NaN elements of the first model.
    pub nan_a: u64,
    /// NaN elements of the second.
    pub nan_b: u64,
    /// Infinite elements of the first model.
    pub inf_a: u64,
    /// Infinite elements of the second.
    pub inf_b: u64,
    /// Elements that were compared.
    #[serde(skip)]
    pub elements: u64,
    /// Elements that the criterion does not let pass.
    #[serde(skip)]
    pub misses: u64,
}

/// How two models compare. As JSON it is what `verify --format json` writes.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Whether all outputs and states are equivalent in all samples.
    pub equivalent: bool,
    /// The outputs in the order of the first model's description, then its states.
    pub outputs: Vec<Difference>,
    /// How many samples of inputs there were.
    pub samples: usize,
}

/// Why two models cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// They do not take or give the same.
    #[error("the models have different interfaces: {0}")]
    Interface(String),
    /// Inputs cannot be made.
    #[error(transparent)]
    Inputs(#[from] InputError),
    /// The map of states.
    #[error(transparent)]
    States(#[from] StateMapError),
    /// The map of inputs and outputs.
    #[error(transparent)]
    Ports(#[from] PortMapError),
    /// The map of scales.
    #[error(transparent)]
    Scales(#[from] ScaleMapError),
    /// The first model fails.
    #[error("the first model fails: {0}")]
    First(RunnerError),
    /// The second model fails where the first does not.
    #[error("the second model fails: {0}")]
    Second(RunnerError),
}

/// The inputs of the calls of one sample.
pub type Calls = Vec<BTreeMap<String, Tensor>>;

/// What the models are run on.
pub enum Samples<'s> {
    /// Inputs that are made up, so many times, for so many calls on the same states.
    Seeded {
        /// How they are made.
        plan: &'s Plan,
        /// The seed.
        seed: u64,
        /// How many samples.
        samples: usize,
        /// How many calls in each.
        calls: usize,
    },
    /// One sample that is given, for the first model.
    Given(&'s Calls),
}

impl Samples<'_> {
    fn count(&self) -> usize {
        match self {
            Self::Seeded { samples, .. } => *samples,
            Self::Given(_) => 1,
        }
    }

    fn calls(&self) -> usize {
        match self {
            Self::Seeded { calls, .. } => *calls,
            Self::Given(calls) => calls.len(),
        }
    }

    fn inputs(&self, sample: usize, call: usize) -> Result<BTreeMap<String, Tensor>, InputError> {
        match self {
            Self::Seeded { plan, seed, .. } => plan.inputs(*seed, sample, call),
            Self::Given(calls) => Ok(calls.get(call).cloned().unwrap_or_default()),
        }
    }
}

/// Runs two models on the same inputs and compares what they give. Both start each sample with
/// states of zero. `maps` are the maps in the metadata of each.
pub fn verify(
    a: &mut Runner<'_>,
    b: &mut Runner<'_>,
    samples: &Samples<'_>,
    criterion: Criterion,
    maps: [&Maps; 2],
) -> Result<Report, VerifyError> {
    let ports = [Named::new(a, maps[0]), Named::new(b, maps[1])];
    let outputs = match_outputs(a, b, &ports)?;
    match_inputs(a, b, &ports)?;
    let states = match_states(a, b, [&maps[0].states, &maps[1].states])?;
    let mut tallies: Vec<Tally> = outputs.iter().map(|name| Tally::new(name)).collect();
    let mut state_tallies: Vec<Tally> = states
        .iter()
        .map(|state| Tally::new(&format!("state_{}", state.name)))
        .collect();
    for sample in 0..samples.count() {
        a.reset().map_err(VerifyError::First)?;
        b.reset().map_err(VerifyError::Second)?;
        for call in 0..samples.calls() {
            let inputs = samples.inputs(sample, call)?;
            let of_b = inputs_for(b, &inputs, &ports)?;
            let from_a = a
                .call(&inputs, &mut Unobserved)
                .map_err(VerifyError::First)?;
            let from_b = b
                .call(&of_b, &mut Unobserved)
                .map_err(VerifyError::Second)?;
            for (name, tally) in outputs.iter().zip(&mut tallies) {
                let x = output(&from_a, name, &ports[0])?;
                let y = output(&from_b, name, &ports[1])?;
                tally.compare(&x, &y, criterion)?;
            }
        }
        let (held_a, held_b) = (a.states(), b.states());
        for (state, tally) in states.iter().zip(&mut state_tallies) {
            let x = state.content(0, &held_a)?;
            let y = state.content(1, &held_b)?;
            tally.compare(&x, &y, criterion)?;
        }
    }
    let outputs: Vec<Difference> = tallies
        .into_iter()
        .chain(state_tallies)
        .map(Tally::finish)
        .collect();
    Ok(Report {
        equivalent: outputs.iter().all(|output| output.misses == 0),
        outputs,
        samples: samples.count(),
    })
}

/// What passes noted in a model's metadata of its interface.
#[derive(Clone, Debug, Default)]
pub struct Maps {
    /// Where states went.
    pub states: StateMap,
    /// Where inputs and outputs went.
    pub ports: PortMap,
    /// By what they are multiplied.
    pub scales: ScaleMap,
}

impl Maps {
    /// The maps in a model's metadata.
    ///
    /// # Errors
    ///
    /// If one of them cannot be read.
    pub fn of(metadata: &BTreeMap<String, String>) -> Result<Self, VerifyError> {
        Ok(Self {
            states: StateMap::of(metadata)?,
            ports: PortMap::of(metadata)?,
            scales: ScaleMap::of(metadata)?,
        })
    }
}

/// The inputs and outputs of a model under the names that they had before any pass.
struct Named<'m> {
    map: &'m PortMap,
    scales: &'m ScaleMap,
    function: String,
}

impl<'m> Named<'m> {
    fn new(runner: &Runner<'_>, maps: &'m Maps) -> Self {
        let function = runner.stages().first().map(|stage| stage.function.clone());
        Self {
            map: &maps.ports,
            scales: &maps.scales,
            function: function.unwrap_or_default(),
        }
    }

    fn original(&self, direction: Direction, name: &str) -> String {
        let original = self.map.original(&self.function, direction, name);
        original.to_owned()
    }

    fn port(&self, direction: Direction, original: &str) -> Port {
        self.map.port(&self.function, direction, original)
    }

    fn factor(&self, direction: Direction, original: &str) -> f64 {
        self.scales.factor(&self.function, direction, original)
    }
}

/// The outputs by their original names, in the order of the first model.
fn match_outputs(
    a: &Runner<'_>,
    b: &Runner<'_>,
    ports: &[Named<'_>; 2],
) -> Result<Vec<String>, VerifyError> {
    let names = |runner: &Runner<'_>, named: &Named<'_>| -> Vec<String> {
        // Several may be the parts of one.
        let mut originals: Vec<String> = Vec::new();
        for name in runner.outputs() {
            let original = named.original(Direction::Output, name);
            if !originals.contains(&original) {
                originals.push(original);
            }
        }
        originals
    };
    let (of_a, of_b) = (names(a, &ports[0]), names(b, &ports[1]));
    let only = |x: &[String], y: &[String], which: &str| {
        let missing = x.iter().find(|name| !y.contains(name));
        missing.map(|name| {
            VerifyError::Interface(format!(
                "only the {which} has an output `{name}`; the other has {}",
                y.join(", ")
            ))
        })
    };
    if let Some(error) = only(&of_a, &of_b, "first").or_else(|| only(&of_b, &of_a, "second")) {
        return Err(error);
    }
    Ok(of_a)
}

/// Both models must have the same inputs; their types may differ in element type, and one may leave
/// sizes open.
fn match_inputs(a: &Runner<'_>, b: &Runner<'_>, ports: &[Named<'_>; 2]) -> Result<(), VerifyError> {
    let [of_a, of_b] = ports;
    for (x, y, names, others, which) in [(a, b, of_a, of_b, "first"), (b, a, of_b, of_a, "second")]
    {
        for input in x.inputs() {
            let name = names.original(Direction::Input, &input.named.name);
            let (own, there) = (
                names.port(Direction::Input, &name),
                others.port(Direction::Input, &name),
            );
            let mut all = y.inputs().iter();
            let Some(other) = all.find(|other| other.named.name == there.name) else {
                return Err(VerifyError::Interface(format!(
                    "only the {which} has an input `{name}`"
                )));
            };
            if !agree(shape(input, &own), shape(other, &there)) {
                return Err(VerifyError::Interface(format!(
                    "the input `{name}` is {} in the {which} and {} in the other",
                    words(input.named.ty.as_ref()),
                    words(other.named.ty.as_ref())
                )));
            }
        }
    }
    Ok(())
}

/// The sizes of an input's original, as far as they are known.
fn shape(input: &super::runner::Input, port: &Port) -> Option<Vec<Option<u64>>> {
    let ty = input.named.ty.as_ref()?.as_tensor()?;
    let padding = port.padding.iter().chain(std::iter::repeat(&0));
    let sizes = ty.dims.iter().zip(padding);
    Some(
        sizes
            .map(|(dim, more)| dim.size()?.checked_sub(*more as u64))
            .collect(),
    )
}

fn agree(x: Option<Vec<Option<u64>>>, y: Option<Vec<Option<u64>>>) -> bool {
    match (x, y) {
        (Some(x), Some(y)) => {
            let same = |(x, y): (&Option<u64>, &Option<u64>)| x.is_none() || y.is_none() || x == y;
            x.len() == y.len() && x.iter().zip(&y).all(same)
        }
        (x, y) => x.is_none() && y.is_none(),
    }
}

/// The second model's inputs of the first's, in the element types that it wants.
fn inputs_for(
    runner: &Runner<'_>,
    inputs: &BTreeMap<String, Tensor>,
    ports: &[Named<'_>; 2],
) -> Result<BTreeMap<String, Tensor>, VerifyError> {
    let mut converted = BTreeMap::new();
    for input in runner.inputs() {
        let original = ports[1].original(Direction::Input, &input.named.name);
        let [from, to] = [0, 1].map(|side: usize| ports[side].port(Direction::Input, &original));
        if let Some(tensor) = inputs.get(&from.name) {
            let [had, has] =
                [0, 1].map(|side: usize| ports[side].factor(Direction::Input, &original));
            let tensor = scales::times(&from.cut(tensor)?, has / had)?;
            let tensor = to.padded(&tensor)?;
            let tensor = convert(&tensor, input.named.ty.as_ref()).map_err(|why| {
                VerifyError::Interface(format!("the second's input `{original}`: {why}"))
            })?;
            converted.insert(to.name, tensor);
        }
    }
    Ok(converted)
}

/// An output by its original name.
fn output(
    results: &[(String, Datum)],
    name: &str,
    named: &Named<'_>,
) -> Result<Tensor, VerifyError> {
    let port = named.port(Direction::Output, name);
    let wrong = |why: &str| VerifyError::Interface(format!("the output `{name}`: {why}"));
    let mut arrays = BTreeMap::new();
    for held in port.names() {
        let found = results.iter().find(|(output, _)| output == held);
        let (_, datum) = found.ok_or_else(|| wrong("it is not computed"))?;
        arrays.insert(held, array(datum).map_err(|why| wrong(&why))?);
    }
    let restored = port.restored(&mut |held| arrays.remove(held))?;
    Ok(scales::over(
        &restored,
        named.factor(Direction::Output, name),
    )?)
}

/// A state of either model, and where to find it in both.
struct Matched {
    name: String,
    /// In each model: the state itself, or its place in a merged one.
    found: [Found; 2],
}

enum Found {
    Itself,
    At(Place),
}

impl Matched {
    fn content(&self, side: usize, held: &BTreeMap<String, Tensor>) -> Result<Tensor, VerifyError> {
        let missing = |name: &str| VerifyError::Interface(format!("there is no state `{name}`"));
        match &self.found[side] {
            Found::Itself => held
                .get(&self.name)
                .cloned()
                .ok_or_else(|| missing(&self.name)),
            Found::At(place) => {
                let tensor = held
                    .get(&place.state)
                    .ok_or_else(|| missing(&place.state))?;
                Ok(place.original(&self.name, tensor)?)
            }
        }
    }
}

/// The states that both models have, by their own names or through a map. A merged state is compared
/// part by part.
fn match_states(
    a: &Runner<'_>,
    b: &Runner<'_>,
    maps: [&StateMap; 2],
) -> Result<Vec<Matched>, VerifyError> {
    let sides = [Side::new(a, maps[0]), Side::new(b, maps[1])];
    let mut matched = Vec::new();
    for (one, other, which) in [(0, 1, "first"), (1, 0, "second")] {
        for name in sides[one].names() {
            if matched.iter().any(|state: &Matched| state.name == *name) {
                continue;
            }
            match (sides[one].find(name), sides[other].find(name)) {
                (Some(x), Some(y)) => matched.push(Matched {
                    name: name.clone(),
                    found: if one == 0 { [x, y] } else { [y, x] },
                }),
                _ => {
                    return Err(VerifyError::Interface(format!(
                        "only the {which} has a state `{name}`, and no map in the metadata (`{}`) \
                         says where it is in the other",
                        super::states::KEY
                    )));
                }
            }
        }
    }
    Ok(matched)
}

struct Side<'s> {
    states: BTreeMap<String, Tensor>,
    places: Option<&'s BTreeMap<String, Place>>,
}

impl<'s> Side<'s> {
    fn new(runner: &Runner<'_>, map: &'s StateMap) -> Self {
        let function = runner.stages().first().map(|stage| stage.function.as_str());
        Self {
            states: runner.states(),
            places: function.and_then(|function| map.functions.get(function)),
        }
    }

    /// The states under the names that they had before any merging.
    fn names(&self) -> Vec<&String> {
        let places = self.places.into_iter().flatten();
        let is_merged = |name: &String| {
            let mut places = self.places.into_iter().flatten();
            places.any(|(_, place)| place.state == *name)
        };
        let own = self.states.keys().filter(|name| !is_merged(name));
        places.map(|(original, _)| original).chain(own).collect()
    }

    fn find(&self, name: &str) -> Option<Found> {
        if let Some(place) = self.places.and_then(|places| places.get(name)) {
            return Some(Found::At(place.clone()));
        }
        self.states.contains_key(name).then_some(Found::Itself)
    }
}

mod tally;
#[cfg(test)]
mod tests;

pub use tally::Tally;
