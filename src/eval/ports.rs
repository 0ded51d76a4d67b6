//! Where the inputs and outputs of a model went when they were renamed or padded.
//!
//! A pass that does so leaves a map in the model's metadata, under the key [`KEY`], so that whoever
//! calls the model, or compares it with the original, finds the old ones in the new:
//!
//! ```json
//! {"version": 1, "functions": {"main": {
//!   "inputs": {"x": {"name": "i0_x"}},
//!   "outputs": {"logits": {"name": "o0_logits", "padding": [0, 24, 0, 0]}}
//! }}}
//! ```
//!
//! For each function and each original input or output: the name that it has now, and how many
//! elements lie behind the original's on each axis (none, if `padding` is left out). An application
//! fills them with zeros in an input and ignores them in an output. What is not in the map is as it
//! was.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::tensor::{Tensor, TensorError};

/// The key in the metadata that the author defines.
pub const KEY: &str = "com.milwright.interface";

/// The version of the form.
const VERSION: u32 = 1;

/// Where the inputs and outputs of each function went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortMap {
    version: u32,
    /// The functions by name.
    pub functions: BTreeMap<String, Ports>,
}

/// Where those of one function went, by their original names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ports {
    /// The inputs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, Port>,
    /// The outputs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub outputs: BTreeMap<String, Port>,
}

/// What an original input or output is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Elements behind the original's on each axis; empty if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub padding: Vec<usize>,
}

/// Which side of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say what they are")]
pub enum Direction {
    Input,
    Output,
}

/// Why a map cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PortMapError {
    /// The text is not a map.
    #[error("the map of inputs and outputs in the metadata (`{KEY}`) cannot be read: {0}")]
    Text(#[from] serde_json::Error),
    /// It is of another version.
    #[error(
        "the map of inputs and outputs in the metadata (`{KEY}`) has version {0}, but only \
         {VERSION} is known"
    )]
    Version(u32),
    /// The padding is not that of the array.
    #[error("the map of inputs and outputs says {padding:?} behind each axis of {shape:?}")]
    Padding {
        /// The padding.
        padding: Vec<usize>,
        /// The array's shape.
        shape: Vec<usize>,
    },
    /// An array cannot be read.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

impl Default for PortMap {
    fn default() -> Self {
        Self {
            version: VERSION,
            functions: BTreeMap::new(),
        }
    }
}

impl PortMap {
    /// The map in a model's metadata; an empty one if there is none.
    pub fn of(metadata: &BTreeMap<String, String>) -> Result<Self, PortMapError> {
        metadata
            .get(KEY)
            .map_or(Ok(Self::default()), |text| Self::parse(text))
    }

    /// Reads the metadata's text.
    pub fn parse(text: &str) -> Result<Self, PortMapError> {
        let map: Self = serde_json::from_str(text)?;
        if map.version != VERSION {
            return Err(PortMapError::Version(map.version));
        }
        Ok(map)
    }

    /// The text for the metadata, always the same for the same map.
    pub fn text(&self) -> Result<String, PortMapError> {
        Ok(serde_json::to_string(self)?)
    }

    /// The inputs or outputs of a function that changed, by their original names.
    pub fn side(&self, function: &str, direction: Direction) -> Option<&BTreeMap<String, Port>> {
        let ports = self.functions.get(function)?;
        Some(match direction {
            Direction::Input => &ports.inputs,
            Direction::Output => &ports.outputs,
        })
    }

    /// What an original input or output is now: itself if the map does not have it.
    pub fn port(&self, function: &str, direction: Direction, original: &str) -> Port {
        let known = self.side(function, direction).and_then(|s| s.get(original));
        known.cloned().unwrap_or_else(|| Port {
            name: original.to_owned(),
            padding: Vec::new(),
        })
    }

    /// The original name of an input or output.
    pub fn original<'n>(&'n self, function: &str, direction: Direction, name: &'n str) -> &'n str {
        let mut known = self.side(function, direction).into_iter().flatten();
        known
            .find(|(_, port)| port.name == name)
            .map_or(name, |(original, _)| original)
    }

    /// Notes that an input or output has another name, or more elements, than before.
    pub fn note(&mut self, function: &str, direction: Direction, name: &str, port: Port) {
        let original = self.original(function, direction, name).to_owned();
        let ports = self.functions.entry(function.to_owned()).or_default();
        let side = match direction {
            Direction::Input => &mut ports.inputs,
            Direction::Output => &mut ports.outputs,
        };
        let known = side.entry(original).or_insert_with(|| Port {
            name: String::new(),
            padding: Vec::new(),
        });
        known.name = port.name;
        if known.padding.is_empty() {
            known.padding = port.padding;
        } else {
            let more = port.padding.iter().chain(std::iter::repeat(&0));
            for (old, more) in known.padding.iter_mut().zip(more) {
                *old += more;
            }
        }
    }
}

impl Port {
    /// The array that the model takes for the original one.
    pub fn padded(&self, original: &Tensor) -> Result<Tensor, PortMapError> {
        if self.padding.is_empty() {
            return Ok(original.clone());
        }
        let shape = original.shape();
        if shape.len() != self.padding.len() {
            return Err(self.wrong(shape));
        }
        let larger = shape
            .iter()
            .zip(&self.padding)
            .map(|(size, more)| size + more);
        box_of(original, shape, larger.collect())
    }

    /// The original array in the one that the model gives.
    pub fn cut(&self, padded: &Tensor) -> Result<Tensor, PortMapError> {
        if self.padding.is_empty() {
            return Ok(padded.clone());
        }
        let shape = padded.shape();
        let smaller: Option<Vec<usize>> = shape
            .iter()
            .zip(&self.padding)
            .map(|(size, more)| size.checked_sub(*more))
            .collect();
        match smaller {
            Some(smaller) if shape.len() == self.padding.len() => {
                let common = smaller.clone();
                box_of(padded, &common, smaller)
            }
            _ => Err(self.wrong(shape)),
        }
    }

    fn wrong(&self, shape: &[usize]) -> PortMapError {
        PortMapError::Padding {
            padding: self.padding.clone(),
            shape: shape.to_vec(),
        }
    }
}

/// The elements of the box `common` in an array of another shape, zeros elsewhere.
fn box_of(tensor: &Tensor, common: &[usize], shape: Vec<usize>) -> Result<Tensor, PortMapError> {
    let from = tensor.shape();
    let dtype = tensor.dtype();
    Ok(if dtype.is_float() {
        let elements = moved(&tensor.as_floats()?, 0.0, from, common, &shape);
        Tensor::floats(dtype, shape, elements)
    } else if dtype.is_int() {
        let elements = moved(&tensor.as_ints()?, 0, from, common, &shape);
        Tensor::ints(dtype, shape, elements)
    } else {
        let elements = moved(&tensor.as_bools()?, false, from, common, &shape);
        Tensor::bools(shape, elements)
    })
}

fn moved<T: Copy>(
    elements: &[T],
    zero: T,
    from: &[usize],
    common: &[usize],
    to: &[usize],
) -> Vec<T> {
    let place = |index: usize, shape: &[usize]| {
        let mut rest = index;
        let mut at = 0;
        let mut step = 1;
        for (size, own) in common.iter().zip(shape).rev() {
            at += rest % size * step;
            rest /= size;
            step *= own;
        }
        at
    };
    let mut result = vec![zero; to.iter().product()];
    for index in 0..common.iter().product() {
        if let (Some(slot), Some(element)) = (
            result.get_mut(place(index, to)),
            elements.get(place(index, from)),
        ) {
            *slot = *element;
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::DType;

    #[test]
    fn what_is_padded_is_cut_to_the_original() {
        let port = Port {
            name: "y".to_owned(),
            padding: vec![1, 2],
        };
        let original = Tensor::floats(DType::Float32, vec![2, 1], vec![5.0, 6.0]);
        let padded = port.padded(&original).unwrap();
        assert_eq!(padded.shape(), [3, 3]);
        let expected = [5.0, 0.0, 0.0, 6.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        assert_eq!(padded.as_floats().unwrap().as_ref(), expected);
        let cut = port.cut(&padded).unwrap();
        assert_eq!(cut.shape(), [2, 1]);
        assert_eq!(cut.as_floats().unwrap().as_ref(), [5.0, 6.0]);
        assert!(port.cut(&original).is_err());
    }

    #[test]
    fn a_second_change_is_noted_with_the_first() {
        let port = |name: &str, padding: &[usize]| Port {
            name: name.to_owned(),
            padding: padding.to_vec(),
        };
        let mut map = PortMap::default();
        map.note("main", Direction::Output, "y", port("o0_y", &[]));
        map.note("main", Direction::Output, "o0_y", port("o0_y", &[0, 3]));
        map.note("main", Direction::Output, "o0_y", port("z", &[1, 1]));
        assert_eq!(map.port("main", Direction::Output, "y"), port("z", &[1, 4]));
        assert_eq!(map.original("main", Direction::Output, "z"), "y");
        assert_eq!(map.original("main", Direction::Input, "z"), "z");
        let read = PortMap::parse(&map.text().unwrap()).unwrap();
        assert_eq!(read, map);
    }
}
