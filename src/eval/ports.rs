//! Where the inputs and outputs of a model went when they were renamed, padded or cut into parts.
//!
//! A pass that does so leaves a map in the model's metadata, under the key [`KEY`], so that whoever
//! calls the model, or compares it with the original, finds the old ones in the new:
//!
//! ```json
//! {"version": 1, "functions": {"main": {
//!   "inputs": {"x": {"name": "i0_x"}},
//!   "outputs": {
//!     "logits": {"name": "o0_logits", "padding": [0, 24, 0, 0]},
//!     "qkv": {"parts": {"axis": 1, "ports": [{"name": "qkv_0"}, {"name": "qkv_1"}, {"name": "qkv_2"}]}}
//!   }
//! }}}
//! ```
//!
//! For each function and each original input or output: the name that it has now, and how many
//! elements lie behind the original's on each axis (none, if `padding` is left out). An application
//! fills them with zeros in an input and ignores them in an output. An output may have become several,
//! its parts along an axis: each has a name and padding of its own, or parts in turn, and an
//! application joins them. What is not in the map is as it was.

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
    /// Its name; empty if it has parts.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Elements behind the original's on each axis; empty if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub padding: Vec<usize>,
    /// The outputs that it became, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Parts>,
}

/// The outputs that an output became.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parts {
    /// The axis along which they are joined.
    pub axis: usize,
    /// The parts in their order.
    pub ports: Vec<Port>,
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
    /// A part is not among the outputs.
    #[error("the map of inputs and outputs names the output `{0}`, and there is none")]
    Missing(String),
    /// The parts do not fit.
    #[error("the map of inputs and outputs joins {shapes:?} along axis {axis}")]
    Parts {
        /// The axis.
        axis: usize,
        /// The shapes of the parts.
        shapes: Vec<Vec<usize>>,
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
        known.cloned().unwrap_or_else(|| Port::named(original))
    }

    /// The original name of an input or output, also of one that holds a part.
    pub fn original<'n>(&'n self, function: &str, direction: Direction, name: &'n str) -> &'n str {
        let mut known = self.side(function, direction).into_iter().flatten();
        known
            .find(|(_, port)| port.names().contains(&name))
            .map_or(name, |(original, _)| original)
    }

    /// Notes that an input or output has another name, or more elements, than before.
    pub fn note(&mut self, function: &str, direction: Direction, name: &str, port: &Port) {
        self.change(function, direction, name, &mut |known| {
            known.name.clone_from(&port.name);
            if known.padding.is_empty() {
                known.padding.clone_from(&port.padding);
            } else {
                let more = port.padding.iter().chain(std::iter::repeat(&0));
                for (old, more) in known.padding.iter_mut().zip(more) {
                    *old += more;
                }
            }
        });
    }

    /// Notes that an output became several, its parts along an axis.
    pub fn split(&mut self, function: &str, name: &str, axis: usize, parts: &[String]) {
        self.change(function, Direction::Output, name, &mut |known| {
            known.name = String::new();
            known.parts = Some(Parts {
                axis,
                ports: parts.iter().map(|part| Port::named(part)).collect(),
            });
        });
    }

    /// Changes what has this name now, which may be a part of an original.
    fn change(
        &mut self,
        function: &str,
        direction: Direction,
        name: &str,
        change: &mut dyn FnMut(&mut Port),
    ) {
        let original = self.original(function, direction, name).to_owned();
        let ports = self.functions.entry(function.to_owned()).or_default();
        let side = match direction {
            Direction::Input => &mut ports.inputs,
            Direction::Output => &mut ports.outputs,
        };
        let whole = side.entry(original).or_insert_with(|| Port::named(name));
        whole.change(name, change);
    }
}

impl Port {
    /// One that has only a name.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            padding: Vec::new(),
            parts: None,
        }
    }

    /// The names of the inputs or outputs that hold it: one, or those of its parts in order.
    pub fn names(&self) -> Vec<&str> {
        match &self.parts {
            None => vec![&self.name],
            Some(parts) => parts.ports.iter().flat_map(Self::names).collect(),
        }
    }

    /// Changes what has this name, it or one of its parts.
    fn change(&mut self, name: &str, change: &mut dyn FnMut(&mut Self)) {
        if let Some(parts) = &mut self.parts {
            for part in &mut parts.ports {
                part.change(name, change);
            }
        } else if self.name == name {
            change(self);
        }
    }

    /// The original array in the outputs that hold it.
    pub fn restored(
        &self,
        find: &mut dyn FnMut(&str) -> Option<Tensor>,
    ) -> Result<Tensor, PortMapError> {
        let Some(parts) = &self.parts else {
            let found = find(&self.name);
            return self.cut(&found.ok_or_else(|| PortMapError::Missing(self.name.clone()))?);
        };
        let tensors: Vec<Tensor> = parts
            .ports
            .iter()
            .map(|part| part.restored(find))
            .collect::<Result<_, _>>()?;
        self.cut(&joined(&tensors, parts.axis)?)
    }

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

/// Arrays behind each other along an axis.
fn joined(tensors: &[Tensor], axis: usize) -> Result<Tensor, PortMapError> {
    let wrong = || PortMapError::Parts {
        axis,
        shapes: tensors.iter().map(|part| part.shape().to_vec()).collect(),
    };
    let first = tensors.first().ok_or_else(wrong)?;
    let mut shape = first.shape().to_vec();
    let size = shape.get_mut(axis).ok_or_else(wrong)?;
    *size = 0;
    for part in tensors {
        let own = part.shape();
        let others = |shape: &[usize]| -> Vec<usize> {
            let others = shape.iter().enumerate().filter(|(at, _)| *at != axis);
            others.map(|(_, size)| *size).collect()
        };
        if own.len() != shape.len()
            || others(own) != others(first.shape())
            || part.dtype() != first.dtype()
        {
            return Err(wrong());
        }
        shape[axis] += own[axis];
    }
    let outer: usize = shape[..axis].iter().product();
    let chunks: Vec<usize> = tensors
        .iter()
        .map(|part| part.shape()[axis..].iter().product())
        .collect();
    let dtype = first.dtype();
    if dtype.is_float() {
        let parts: Vec<_> = tensors
            .iter()
            .map(Tensor::as_floats)
            .collect::<Result<_, _>>()?;
        let parts: Vec<&[f32]> = parts.iter().map(AsRef::as_ref).collect();
        Ok(Tensor::floats(
            dtype,
            shape,
            interleaved(&parts, &chunks, outer),
        ))
    } else if dtype.is_int() {
        let parts: Vec<_> = tensors
            .iter()
            .map(Tensor::as_ints)
            .collect::<Result<_, _>>()?;
        let parts: Vec<&[i64]> = parts.iter().map(AsRef::as_ref).collect();
        Ok(Tensor::ints(
            dtype,
            shape,
            interleaved(&parts, &chunks, outer),
        ))
    } else {
        let parts: Vec<_> = tensors
            .iter()
            .map(Tensor::as_bools)
            .collect::<Result<_, _>>()?;
        let parts: Vec<&[bool]> = parts.iter().map(AsRef::as_ref).collect();
        Ok(Tensor::bools(shape, interleaved(&parts, &chunks, outer)))
    }
}

/// The next chunk of each array, one after the other, `outer` times.
fn interleaved<T: Copy>(parts: &[&[T]], chunks: &[usize], outer: usize) -> Vec<T> {
    let mut result = Vec::new();
    for index in 0..outer {
        for (part, chunk) in parts.iter().zip(chunks) {
            let own = part.get(index * chunk..(index + 1) * chunk);
            result.extend_from_slice(own.unwrap_or_default());
        }
    }
    result
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
            padding: vec![1, 2],
            ..Port::named("y")
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
            padding: padding.to_vec(),
            ..Port::named(name)
        };
        let mut map = PortMap::default();
        map.note("main", Direction::Output, "y", &port("o0_y", &[]));
        map.note("main", Direction::Output, "o0_y", &port("o0_y", &[0, 3]));
        map.note("main", Direction::Output, "o0_y", &port("z", &[1, 1]));
        assert_eq!(map.port("main", Direction::Output, "y"), port("z", &[1, 4]));
        assert_eq!(map.original("main", Direction::Output, "z"), "y");
        assert_eq!(map.original("main", Direction::Input, "z"), "z");
        let read = PortMap::parse(&map.text().unwrap()).unwrap();
        assert_eq!(read, map);
    }

    #[test]
    fn parts_that_were_renamed_padded_and_cut_again_are_joined_to_the_original() {
        let out = Direction::Output;
        let mut map = PortMap::default();
        map.split("main", "y", 1, &["y_0".to_owned(), "y_1".to_owned()]);
        map.note("main", out, "y_1", &Port::named("o1_y_1"));
        let padded = Port {
            padding: vec![0, 1],
            ..Port::named("o1_y_1")
        };
        map.note("main", out, "o1_y_1", &padded);
        map.split("main", "y_0", 0, &["a".to_owned(), "b".to_owned()]);
        for name in ["a", "b", "o1_y_1"] {
            assert_eq!(map.original("main", out, name), "y");
        }
        assert_eq!(PortMap::parse(&map.text().unwrap()).unwrap(), map);

        let floats = |shape: [usize; 2], values: &[f32]| {
            Tensor::floats(DType::Float32, shape.to_vec(), values.to_vec())
        };
        let mut find = |name: &str| match name {
            "a" => Some(floats([1, 2], &[1.0, 2.0])),
            "b" => Some(floats([1, 2], &[3.0, 4.0])),
            "o1_y_1" => Some(floats([2, 2], &[5.0, 0.0, 6.0, 0.0])),
            _ => None,
        };
        let port = map.port("main", out, "y");
        let y = port.restored(&mut find).unwrap();
        assert_eq!(y.shape(), [2, 3]);
        let expected = [1.0, 2.0, 5.0, 3.0, 4.0, 6.0];
        assert_eq!(y.as_floats().unwrap().as_ref(), expected);
        assert!(port.restored(&mut |_| None).is_err());
    }
}
