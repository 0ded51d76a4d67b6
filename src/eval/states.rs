//! Where the states of a model went when they were merged, padded or renamed.
//!
//! A pass that merges states leaves a map in the model's metadata, under the key [`KEY`], so that
//! whoever calls the model, or compares it with the original, finds the old states in the new ones:
//!
//! ```json
//! {"version": 1, "functions": {"main": {
//!   "k_0": {"state": "kv", "axis": 0, "start": 0, "length": 1, "new_axis": true},
//!   "v_0": {"state": "kv", "axis": 0, "start": 1, "length": 1, "new_axis": true, "padding": [0, 0, 0, 16]}
//! }}}
//! ```
//!
//! For each function and each original state: the state that holds it now; the range of that state's
//! `axis` in which it lies; whether that axis is new, so that the original has one less; and how many
//! elements lie behind the original's on each of its axes (none, if `padding` is left out). States
//! that are not in the map are as they were.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::tensor::{Tensor, strides};

/// The key in the metadata that the author defines.
pub const KEY: &str = "com.milwright.states";

/// The version of the form.
const VERSION: u32 = 1;

/// Where the states of each function went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateMap {
    version: u32,
    /// For each function, the original states by name.
    pub functions: BTreeMap<String, BTreeMap<String, Place>>,
}

/// Where one original state is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The state that holds it.
    pub state: String,
    /// The axis of that state along which originals lie behind each other.
    pub axis: usize,
    /// The first index that is the original's.
    pub start: usize,
    /// How many indices are.
    pub length: usize,
    /// True if the original does not have the axis; `length` is 1 then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub new_axis: bool,
    /// Elements behind the original's on each of its axes; empty if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub padding: Vec<usize>,
}

/// Why a map cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateMapError {
    /// The text is not a map.
    #[error("the map of states in the metadata (`{KEY}`) cannot be read: {0}")]
    Text(#[from] serde_json::Error),
    /// It is of another version.
    #[error(
        "the map of states in the metadata (`{KEY}`) has version {0}, but only {VERSION} is known"
    )]
    Version(u32),
    /// A place in a place that no entry can say.
    #[error(
        "the map of states in the metadata (`{KEY}`) cannot say where `{0}` goes a second time"
    )]
    Twice(String),
    /// A place that is not in the state.
    #[error(
        "the map of states says that `{original}` is at {start} to {end} of axis {axis} of \
         `{state}`, which is of shape {shape:?}"
    )]
    Range {
        /// The original state.
        original: String,
        /// The state that is to hold it.
        state: String,
        /// The axis.
        axis: usize,
        /// The first index.
        start: usize,
        /// The index behind the last.
        end: usize,
        /// The state's shape.
        shape: Vec<usize>,
    },
}

impl Default for StateMap {
    fn default() -> Self {
        Self {
            version: VERSION,
            functions: BTreeMap::new(),
        }
    }
}

impl StateMap {
    /// The map in a model's metadata; an empty one if there is none.
    pub fn of(metadata: &BTreeMap<String, String>) -> Result<Self, StateMapError> {
        metadata
            .get(KEY)
            .map_or(Ok(Self::default()), |text| Self::parse(text))
    }

    /// Reads the metadata's text.
    pub fn parse(text: &str) -> Result<Self, StateMapError> {
        let map: Self = serde_json::from_str(text)?;
        if map.version != VERSION {
            return Err(StateMapError::Version(map.version));
        }
        Ok(map)
    }

    /// The text for the metadata, always the same for the same map.
    pub fn text(&self) -> Result<String, StateMapError> {
        Ok(serde_json::to_string(self)?)
    }

    /// Where an original state of a function is.
    pub fn place(&self, function: &str, original: &str) -> Option<&Place> {
        self.functions.get(function)?.get(original)
    }
}

impl StateMap {
    /// Notes that a state of shape `shape` went to `place` in one of shape `into`. What the state
    /// itself held of earlier states is found there as well.
    ///
    /// # Errors
    ///
    /// If the form has no words for where an earlier state is then; the map is unchanged.
    pub fn moved(
        &mut self,
        function: &str,
        state: &str,
        shape: &[usize],
        place: &Place,
        into: &[usize],
    ) -> Result<(), StateMapError> {
        let places = self.functions.get(function);
        let mut moved = BTreeMap::new();
        for (original, earlier) in places.into_iter().flatten() {
            if earlier.state == state {
                let within = earlier.within(shape, place, into);
                let within = within.ok_or_else(|| StateMapError::Twice(original.clone()))?;
                moved.insert(original.clone(), within);
            }
        }
        if moved.is_empty() {
            moved.insert(state.to_owned(), place.clone());
        }
        self.functions
            .entry(function.to_owned())
            .or_default()
            .extend(moved);
        Ok(())
    }
}

impl Place {
    /// This place in a state of shape `shape`, when that state is at `outer` in one of shape `into`.
    fn within(&self, shape: &[usize], outer: &Self, into: &[usize]) -> Option<Self> {
        let covers = |place: &Self, shape: &[usize]| {
            !place.new_axis && place.start == 0 && shape.get(place.axis) == Some(&place.length)
        };
        let rank = shape.len().checked_sub(usize::from(self.new_axis))?;
        let mut padding = vec![0; rank];
        for (sum, own) in padding.iter_mut().zip(&self.padding) {
            *sum = *own;
        }
        for (axis, more) in outer.padding.iter().enumerate() {
            if axis == self.axis && !covers(self, shape) {
                // What lies behind all of them is in none's range.
                continue;
            }
            let axis = axis - usize::from(self.new_axis && axis > self.axis);
            let sum = padding.get_mut(axis)?;
            *sum = sum.checked_add(*more)?;
        }
        if padding.iter().all(|padding| *padding == 0) {
            padding.clear();
        }
        let (axis, start, length, new_axis) = if covers(self, shape) {
            (outer.axis, outer.start, outer.length, outer.new_axis)
        } else if covers(outer, into) || (outer.axis == self.axis && !outer.new_axis) {
            let start = outer.start.checked_add(self.start)?;
            (self.axis, start, self.length, self.new_axis)
        } else {
            return None;
        };
        Some(Self {
            state: outer.state.clone(),
            axis,
            start,
            length,
            new_axis,
            padding,
        })
    }

    /// The original state `name` as the new state `held` holds it.
    pub fn original(&self, name: &str, held: &Tensor) -> Result<Tensor, StateMapError> {
        let wrong = || StateMapError::Range {
            original: name.to_owned(),
            state: self.state.clone(),
            axis: self.axis,
            start: self.start,
            end: self.start.saturating_add(self.length),
            shape: held.shape().to_vec(),
        };
        let mut shape = held.shape().to_vec();
        let mut steps: Vec<isize> = strides(&shape).into_iter().map(|s| s as isize).collect();
        let size = *shape.get(self.axis).ok_or_else(wrong)?;
        let fits = self
            .start
            .checked_add(self.length)
            .is_some_and(|end| end <= size);
        if !fits || (self.new_axis && self.length != 1) {
            return Err(wrong());
        }
        let first = self.start as isize * steps[self.axis];
        if self.new_axis {
            shape.remove(self.axis);
            steps.remove(self.axis);
        } else {
            shape[self.axis] = self.length;
        }
        if !self.padding.is_empty() && self.padding.len() != shape.len() {
            return Err(wrong());
        }
        for (size, padding) in shape.iter_mut().zip(&self.padding) {
            *size = size.checked_sub(*padding).ok_or_else(wrong)?;
        }
        held.strided(shape, first, &steps).map_err(|_| wrong())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::DType;

    fn counting(shape: &[usize]) -> Tensor {
        let count = shape.iter().product::<usize>();
        let values = (0..count).map(|value| value as f32).collect();
        Tensor::floats(DType::Float16, shape.to_vec(), values)
    }

    fn place(text: &str) -> Place {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn an_original_is_a_range_of_an_axis() {
        // numpy: arange(12).reshape(2, 3, 2)[:, 1:3]
        let place = place(r#"{"state": "s", "axis": 1, "start": 1, "length": 2}"#);
        let original = place.original("a", &counting(&[2, 3, 2])).unwrap();
        assert_eq!(original.shape(), [2, 2, 2]);
        assert_eq!(
            original.as_floats().unwrap().as_ref(),
            [2.0, 3.0, 4.0, 5.0, 8.0, 9.0, 10.0, 11.0]
        );
    }

    #[test]
    fn a_new_axis_and_padding_are_taken_off() {
        // numpy: arange(12).reshape(2, 2, 3)[1, :, :2]
        let place = place(
            r#"{"state": "s", "axis": 0, "start": 1, "length": 1, "new_axis": true, "padding": [0, 1]}"#,
        );
        let original = place.original("a", &counting(&[2, 2, 3])).unwrap();
        assert_eq!(original.shape(), [2, 2]);
        assert_eq!(
            original.as_floats().unwrap().as_ref(),
            [6.0, 7.0, 9.0, 10.0]
        );
    }

    #[test]
    fn a_place_outside_of_the_state_is_an_error() {
        let held = counting(&[2, 3]);
        for text in [
            r#"{"state": "s", "axis": 2, "start": 0, "length": 1}"#,
            r#"{"state": "s", "axis": 1, "start": 2, "length": 2}"#,
            r#"{"state": "s", "axis": 1, "start": 18446744073709551615, "length": 2}"#,
            r#"{"state": "s", "axis": 1, "start": 0, "length": 2, "new_axis": true}"#,
            r#"{"state": "s", "axis": 1, "start": 0, "length": 2, "padding": [0]}"#,
            r#"{"state": "s", "axis": 1, "start": 0, "length": 2, "padding": [0, 3]}"#,
        ] {
            assert!(place(text).original("a", &held).is_err(), "{text}");
        }
    }

    #[test]
    fn what_moves_twice_is_found_at_the_last_place() {
        let part = |start| Place {
            state: "all".to_owned(),
            axis: 0,
            start,
            length: 1,
            new_axis: false,
            padding: Vec::new(),
        };
        let padded = |state: &str, length| Place {
            state: state.to_owned(),
            length,
            padding: vec![0, 0, 2],
            ..part(0)
        };
        // Two of [1, 2, 3] become one of [2, 2, 3], and that one of [2, 2, 5].
        let mut joined = StateMap::default();
        for (index, state) in ["a", "b"].into_iter().enumerate() {
            joined
                .moved("main", state, &[1, 2, 3], &part(index), &[2, 2, 3])
                .unwrap();
        }
        joined
            .moved("main", "all", &[2, 2, 3], &padded("all", 2), &[2, 2, 5])
            .unwrap();
        // The same in the other order.
        let mut first = StateMap::default();
        for (index, state) in ["a", "b"].into_iter().enumerate() {
            first
                .moved("main", state, &[1, 2, 3], &padded(state, 1), &[1, 2, 5])
                .unwrap();
            first
                .moved("main", state, &[1, 2, 5], &part(index), &[2, 2, 5])
                .unwrap();
        }
        assert_eq!(joined, first);
        let held = counting(&[2, 2, 5]);
        let b = joined
            .place("main", "b")
            .unwrap()
            .original("b", &held)
            .unwrap();
        assert_eq!(b.shape(), [1, 2, 3]);
        assert_eq!(
            b.as_floats().unwrap().as_ref(),
            [10.0, 11.0, 12.0, 15.0, 16.0, 17.0]
        );
    }

    #[test]
    fn a_layer_on_a_layer_has_no_entry() {
        let stacked = |state: &str| Place {
            state: state.to_owned(),
            axis: 0,
            start: 1,
            length: 1,
            new_axis: true,
            padding: Vec::new(),
        };
        let mut map = StateMap::default();
        map.moved("main", "a", &[3], &stacked("b"), &[2, 3])
            .unwrap();
        let before = map.clone();
        let again = map.moved("main", "b", &[2, 3], &stacked("c"), &[2, 2, 3]);
        assert!(matches!(again, Err(StateMapError::Twice(name)) if name == "a"));
        assert_eq!(map, before);
    }

    #[test]
    fn a_map_survives_the_metadata() {
        let mut map = StateMap::default();
        let places = BTreeMap::from([(
            "k_0".to_owned(),
            place(r#"{"state": "kv", "axis": 0, "start": 3, "length": 1, "new_axis": true}"#),
        )]);
        map.functions.insert("main".to_owned(), places);
        let metadata = BTreeMap::from([(KEY.to_owned(), map.text().unwrap())]);
        let read = StateMap::of(&metadata).unwrap();
        assert_eq!(read, map);
        assert_eq!(read.place("main", "k_0").unwrap().start, 3);
        assert!(StateMap::parse(r#"{"version": 2, "functions": {}}"#).is_err());
        assert!(StateMap::of(&BTreeMap::new()).unwrap().functions.is_empty());
    }
}
