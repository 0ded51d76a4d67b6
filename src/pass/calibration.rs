//! What was measured of a model before passes run: for passes that depend on its values.

use std::collections::BTreeMap;

use crate::eval::ranges::Ranges;
use crate::eval::verify::Calls;

/// What passes may know of a model's values.
#[derive(Clone, Debug, Default)]
pub struct Calibration {
    /// How large its values are, in fp32, by the names that they had before any pass ran.
    pub ranges: Ranges,
    /// Inputs to run it on: for each function one or more samples of calls.
    pub samples: BTreeMap<String, Vec<Calls>>,
}

impl Calibration {
    /// The samples of a function; none if it was not to be run.
    pub fn samples_of(&self, function: &str) -> &[Calls] {
        self.samples.get(function).map_or(&[], Vec::as_slice)
    }
}

/// What a pass wants to know of a model's values with the options that it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// [`Calibration::ranges`].
    pub ranges: bool,
    /// [`Calibration::samples`].
    pub samples: bool,
}
