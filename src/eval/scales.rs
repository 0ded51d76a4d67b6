//! By what the residual stream of a model was multiplied, and which inputs and outputs with it.
//!
//! A pass that does so leaves a map in the model's metadata, under the key [`KEY`], so that whoever
//! calls the model, or compares it with the original, knows:
//!
//! ```json
//! {"version": 1, "functions": {"main": {
//!   "alpha": 0.125, "from_layer": 0, "inputs": ["hidden"], "outputs": ["hidden_out"]
//! }}}
//! ```
//!
//! An application multiplies the inputs that are named by `alpha`, unless they come from a model that
//! was scaled by the same number, and divides the outputs. Inputs and outputs have the names that they
//! had before any pass.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ports::Direction;
use crate::ir::DType;
use crate::tensor::{Tensor, TensorError};

/// The key in the metadata that the author defines.
pub const KEY: &str = "com.milwright.scale";

/// The version of the form.
const VERSION: u32 = 1;

/// By what the stream of each function was multiplied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScaleMap {
    version: u32,
    /// The functions by name.
    pub functions: BTreeMap<String, Scaled>,
}

/// By what the stream of one function was multiplied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scaled {
    /// The number.
    pub alpha: f64,
    /// The first layer whose stream is multiplied.
    #[serde(default)]
    pub from_layer: u32,
    /// The inputs that have to come multiplied.
    #[serde(default)]
    pub inputs: Vec<String>,
    /// The outputs that are multiplied.
    #[serde(default)]
    pub outputs: Vec<String>,
}

/// Why a map cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScaleMapError {
    /// The text is not a map.
    #[error("the map of scales in the metadata (`{KEY}`) cannot be read: {0}")]
    Text(#[from] serde_json::Error),
    /// It is of another version.
    #[error(
        "the map of scales in the metadata (`{KEY}`) has version {0}, but only {VERSION} is known"
    )]
    Version(u32),
    /// A factor is no number to multiply by.
    #[error("the map of scales in the metadata (`{KEY}`) has the factor {0}")]
    Factor(f64),
    /// An array cannot be read.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

impl Default for ScaleMap {
    fn default() -> Self {
        Self {
            version: VERSION,
            functions: BTreeMap::new(),
        }
    }
}

impl ScaleMap {
    /// The map in a model's metadata; an empty one if there is none.
    pub fn of(metadata: &BTreeMap<String, String>) -> Result<Self, ScaleMapError> {
        metadata
            .get(KEY)
            .map_or(Ok(Self::default()), |text| Self::parse(text))
    }

    /// Reads the metadata's text.
    pub fn parse(text: &str) -> Result<Self, ScaleMapError> {
        let map: Self = serde_json::from_str(text)?;
        if map.version != VERSION {
            return Err(ScaleMapError::Version(map.version));
        }
        let mut factors = map.functions.values().map(|scaled| scaled.alpha);
        match factors.find(|alpha| !(alpha.is_finite() && *alpha > 0.0)) {
            Some(alpha) => Err(ScaleMapError::Factor(alpha)),
            None => Ok(map),
        }
    }

    /// The text for the metadata, always the same for the same map.
    pub fn text(&self) -> Result<String, ScaleMapError> {
        Ok(serde_json::to_string(self)?)
    }

    /// By what an original input or output is multiplied; 1 if it is not.
    pub fn factor(&self, function: &str, direction: Direction, original: &str) -> f64 {
        let Some(scaled) = self.functions.get(function) else {
            return 1.0;
        };
        let names = match direction {
            Direction::Input => &scaled.inputs,
            Direction::Output => &scaled.outputs,
        };
        if names.iter().any(|name| name == original) {
            scaled.alpha
        } else {
            1.0
        }
    }
}

/// An array times a number. What the array's type cannot hold is rounded only if the array is to be an
/// input: fp16 then, as the model takes it.
pub fn times(tensor: &Tensor, factor: f64) -> Result<Tensor, ScaleMapError> {
    if factor == 1.0 || !tensor.dtype().is_float() {
        return Ok(tensor.clone());
    }
    let elements = tensor.as_floats()?;
    let products = elements
        .iter()
        .map(|element| (f64::from(*element) * factor) as f32);
    let products = Tensor::floats(tensor.dtype(), tensor.shape().to_vec(), products.collect());
    match tensor.dtype() {
        DType::Float16 => Ok(products.rounded_to_half(false)?),
        _ => Ok(products),
    }
}

/// An array over a number, as the model would have given it: not rounded.
pub fn over(tensor: &Tensor, factor: f64) -> Result<Tensor, ScaleMapError> {
    if factor == 1.0 || !tensor.dtype().is_float() {
        return Ok(tensor.clone());
    }
    let elements = tensor.as_floats()?;
    let quotients = elements
        .iter()
        .map(|element| (f64::from(*element) / factor) as f32);
    Ok(Tensor::floats(
        tensor.dtype(),
        tensor.shape().to_vec(),
        quotients.collect(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> ScaleMap {
        let scaled = Scaled {
            alpha: 0.125,
            from_layer: 0,
            inputs: vec!["hidden".to_owned()],
            outputs: vec!["hidden_out".to_owned()],
        };
        ScaleMap {
            functions: BTreeMap::from([("main".to_owned(), scaled)]),
            ..ScaleMap::default()
        }
    }

    #[test]
    fn a_map_reads_back_from_its_text() {
        let text = map().text().unwrap();
        let expected = "{\"version\":1,\"functions\":{\"main\":{\"alpha\":0.125,\"from_layer\":0,\
                        \"inputs\":[\"hidden\"],\"outputs\":[\"hidden_out\"]}}}";
        assert_eq!(text, expected);
        assert_eq!(ScaleMap::parse(&text).unwrap(), map());
    }

    #[test]
    fn a_map_of_another_version_or_with_no_factor_is_refused() {
        for text in [
            "{\"version\":2,\"functions\":{}}",
            "{\"version\":1,\"functions\":{\"main\":{\"alpha\":0}}}",
            "{\"version\":1,\"functions\":{\"main\":{\"alpha\":-1}}}",
            "nothing",
        ] {
            assert!(ScaleMap::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_what_the_map_names_has_a_factor() {
        let map = map();
        assert_eq!(map.factor("main", Direction::Input, "hidden"), 0.125);
        assert_eq!(map.factor("main", Direction::Output, "hidden"), 1.0);
        assert_eq!(map.factor("main", Direction::Output, "hidden_out"), 0.125);
        assert_eq!(map.factor("other", Direction::Input, "hidden"), 1.0);
    }

    #[test]
    fn what_is_multiplied_is_rounded_to_half_and_what_is_divided_is_not() {
        let tensor = Tensor::floats(DType::Float16, vec![2], vec![60_000.0, 1.0]);
        let scaled = times(&tensor, 0.48).unwrap();
        assert_eq!(
            scaled.as_floats().unwrap().as_ref(),
            [28_800.0, 0.479_980_47]
        );
        let back = over(&tensor, 0.5).unwrap();
        assert_eq!(back.as_floats().unwrap().as_ref(), [120_000.0, 2.0]);
    }
}
