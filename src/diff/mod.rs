//! What differs between two programs: the edits that make one of the other.
//!
//! A difference is what someone who reads the program would call one. Where blobs lie in a weight
//! file is none, and neither is the order in which operations are written, unless it decides what
//! a state holds when it is read. Names are shown, but the operations behind them are compared
//! whatever they are called (see `matching.rs`).
//!
//! It does not matter how the programs were opened: [`compare`] takes two lists of [`Side`]s, one
//! for each program of a model.

mod description;
mod edits;
mod functions;
mod graphs;
mod matching;
mod numbers;
mod operations;
mod render;
mod signature;
mod values;

use crate::ir::Program;
use crate::model::Interface;
pub use crate::source::{Blobs, NoBlobs};

pub use description::compare_models;
pub use edits::{Comparison, Edit, Kind, Place};
pub use numbers::ElementDifference;
pub use render::{text, write_json, write_text};

/// One program of a model, before or after.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    /// Stage of a pipeline; empty if the model is one program.
    pub stage: &'a str,
    /// The program.
    pub program: &'a Program,
    /// The data of its blobs.
    pub blobs: &'a dyn Blobs,
    /// What the model's description says of inputs, outputs and states; interfaces are compared if
    /// both sides have one.
    pub interface: Option<&'a Interface>,
}

/// How to compare.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Compare all elements of all blobs, and say how far they are apart. Without it, large blobs
    /// are compared by samples.
    pub weights: bool,
}

/// Compares the programs of two models, stage by stage.
pub fn compare(before: &[Side], after: &[Side], options: Options) -> Comparison {
    let mut comparison = Comparison::default();
    for side in before {
        match after.iter().find(|other| other.stage == side.stage) {
            Some(other) => functions::compare(side, other, options, &mut comparison),
            None => comparison.stage(side.stage, true),
        }
    }
    for side in after {
        if !before.iter().any(|other| other.stage == side.stage) {
            comparison.stage(side.stage, false);
        }
    }
    comparison
}
