//! The trait that a pass implements, and what an attempt to match can end in.

use super::block::Block;
use super::edit::{Edit, EditError};
use super::meta::Meta;
use super::options::{OptionError, OptionMap};
use super::whole::WholeMatcher;
use crate::ir::NodeId;

/// A pass: one matcher that serves the report and the rewrite.
pub trait Pass: Sync {
    /// What the pass says of itself.
    fn meta(&self) -> &'static Meta;

    /// The pass's options with their defaults.
    fn options(&self) -> OptionMap {
        OptionMap::new()
    }

    /// Whether its author is still at work on it. A draft may have fewer cases than a pass must have,
    /// and no release has one.
    fn is_draft(&self) -> bool {
        false
    }

    /// A matcher for one sweep over one block; one that never matches if the pass works on whole
    /// programs.
    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        let _ = options;
        Ok(Box::new(Nowhere))
    }

    /// A matcher for whole programs, if the pass is one that changes the interface or has to see
    /// several functions.
    fn whole_matcher(
        &self,
        options: &OptionMap,
    ) -> Result<Option<Box<dyn WholeMatcher>>, OptionError> {
        let _ = options;
        Ok(None)
    }
}

/// In which order a sweep visits the operations of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// As written.
    Forward,
    /// The last first.
    Backward,
}

/// Looks for matches, one operation at a time.
pub trait Matcher {
    /// In which order the operations are visited.
    fn direction(&self) -> Direction {
        Direction::Forward
    }

    /// Tries to match with this operation as the root of the pattern.
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt;
}

/// A matcher that never matches.
#[derive(Clone, Copy, Debug)]
pub struct Nowhere;

impl Matcher for Nowhere {
    fn attempt(&mut self, _block: &Block<'_>, _node: NodeId) -> Attempt {
        Attempt::NoMatch
    }
}

/// How an attempt ended.
pub enum Attempt {
    /// The operation is not the root of this pattern.
    NoMatch,
    /// The pattern is there, but a precondition fails.
    CheckFailed(Missed),
    /// The pattern is there and a rewrite would change nothing.
    NoEffect,
    /// The pattern is there, with the rewrite.
    Match(Match),
}

/// A near match.
#[derive(Clone, Debug)]
pub struct Missed {
    /// What stopped it.
    pub why: String,
    /// The operation that stopped it.
    pub at: NodeId,
}

/// The rewrite of a match.
pub type Apply = Box<dyn FnOnce(&mut Edit<'_>) -> Result<(), EditError>>;

/// A match.
pub struct Match {
    /// What was found and what it becomes, in one line.
    pub what: String,
    /// Makes the change.
    pub apply: Apply,
}

impl Attempt {
    /// A match with its rewrite.
    pub fn matched(
        what: impl Into<String>,
        apply: impl FnOnce(&mut Edit<'_>) -> Result<(), EditError> + 'static,
    ) -> Self {
        Self::Match(Match {
            what: what.into(),
            apply: Box::new(apply),
        })
    }

    /// A near match that an operation stopped.
    pub fn missed(at: NodeId, why: impl Into<String>) -> Self {
        Self::CheckFailed(Missed {
            why: why.into(),
            at,
        })
    }
}
