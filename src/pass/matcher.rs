//! The trait that a pass implements, and what an attempt to match can end in.

use super::block::Block;
use super::calibration::Needs;
use super::edit::{Edit, EditError};
use super::meta::{Exactness, Meta};
use super::options::{OptionError, OptionMap};
use super::rule::{Found, Rule};
use super::whole::WholeMatcher;
use crate::ir::NodeId;

/// A pass: one matcher that serves the report and the rewrite. A check is a pass without a rewrite.
pub trait Pass: Sync {
    /// What the pass says of itself.
    fn meta(&self) -> &'static Meta;

    /// What the linter says of what its matcher finds; none if the linter has nothing to say.
    fn rules(&self) -> &'static [Rule] {
        &[]
    }

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

    /// What it has to know of the model's values with these options, beside the program itself.
    fn needs(&self, options: &OptionMap) -> Result<Needs, OptionError> {
        let _ = options;
        Ok(Needs::default())
    }

    /// Whether what it does to whole programs changes the interface with these options, so that it is
    /// only done where that is allowed. A pass whose exactness is `interface` does nothing at all
    /// elsewhere.
    fn changes_interface(&self, options: &OptionMap) -> Result<bool, OptionError> {
        let _ = options;
        Ok(self.meta().exactness == Exactness::Interface)
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
    /// The linter has something to say of it, whatever else came of it.
    Found(Vec<Found>, Box<Attempt>),
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

    /// Findings without a rewrite; no match if there are none.
    pub fn found(findings: impl IntoIterator<Item = Found>) -> Self {
        findings.into_iter().fold(Self::NoMatch, Self::with)
    }

    /// The same attempt with one more finding beside it.
    pub fn with(self, found: Found) -> Self {
        match self {
            Self::Found(mut findings, attempt) => {
                findings.push(found);
                Self::Found(findings, attempt)
            }
            attempt => Self::Found(vec![found], Box::new(attempt)),
        }
    }

    /// The same attempt, with a finding beside it if it has a rewrite.
    pub fn on_match(self, found: impl FnOnce() -> Found) -> Self {
        let has_rewrite = match &self {
            Self::Match(_) => true,
            Self::Found(_, attempt) => matches!(**attempt, Self::Match(_)),
            _ => false,
        };
        if has_rewrite {
            self.with(found())
        } else {
            self
        }
    }

    /// The attempt and the findings apart. The attempt is none of [`Attempt::Found`].
    pub fn split(self) -> (Self, Vec<Found>) {
        match self {
            Self::Found(findings, attempt) => {
                let (attempt, mut inner) = attempt.split();
                inner.extend(findings);
                (attempt, inner)
            }
            attempt => (attempt, Vec::new()),
        }
    }
}

impl From<Found> for Attempt {
    fn from(found: Found) -> Self {
        Self::NoMatch.with(found)
    }
}

/// A function is a matcher that remembers nothing.
impl<F: FnMut(&Block<'_>, NodeId) -> Attempt> Matcher for F {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        self(block, node)
    }
}
