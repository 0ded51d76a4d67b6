//! Findings as text: for people ([`full`], [`concise`], [`table`], [`placement`]) and for programs ([`json`],
//! [`sarif`], [`github`]).

pub mod concise;
pub mod full;
pub mod github;
pub mod json;
pub mod placement;
pub mod sarif;
pub mod table;

use std::path::Path;

use super::linter::{Report, Setup};
use crate::model::Model;

/// A model with what was found in it.
pub struct Linted<'r> {
    /// The path that was given.
    pub path: &'r Path,
    /// The model.
    pub model: &'r Model,
    /// How it was linted.
    pub setup: &'r Setup,
    /// What was found.
    pub report: &'r Report,
}
