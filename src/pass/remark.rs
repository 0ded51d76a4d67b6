//! Remarks: what a pass did, and what it did not do and why.

use std::fmt;

use super::block::Block;
use super::matcher::Missed;
use crate::ir::{NodeId, Operation};

/// The kind of a remark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemarkKind {
    /// A rewrite was made.
    Applied,
    /// A pattern nearly matched.
    Missed,
}

/// Where something is: symbolic, so that it can be shown in any form.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Stage of a pipeline; empty if the model is one program.
    pub stage: String,
    /// The function.
    pub function: String,
    /// The operation: its first result's name, else its own name.
    pub op: String,
    /// The operation's type.
    pub op_type: String,
}

/// One remark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// What kind.
    pub kind: RemarkKind,
    /// The pass.
    pub pass: &'static str,
    /// The operation that was the root of the pattern.
    pub place: Place,
    /// What was done, or what stopped it.
    pub what: String,
    /// The operation that stopped it, if it is not the root.
    pub stopped_at: Option<Place>,
}

impl Place {
    /// Where a node of a block is.
    pub(super) fn of(block: &Block<'_>, node: NodeId, stage: &str, function: &str) -> Self {
        Self {
            stage: stage.to_owned(),
            function: function.to_owned(),
            op: block.label(node),
            op_type: block
                .op(node)
                .map_or("input", Operation::op_type)
                .to_owned(),
        }
    }
}

impl Remark {
    /// What was done.
    pub(super) fn applied(pass: &'static str, place: Place, what: String) -> Self {
        Self {
            kind: RemarkKind::Applied,
            pass,
            place,
            what,
            stopped_at: None,
        }
    }

    /// What was not done, and why.
    pub(super) fn missed(pass: &'static str, place: Place, why: String) -> Self {
        Self {
            kind: RemarkKind::Missed,
            ..Self::applied(pass, place, why)
        }
    }

    /// A near match of the pattern with this root.
    pub(super) fn stopped(
        pass: &'static str,
        block: &Block<'_>,
        root: NodeId,
        place: Place,
        missed: Missed,
    ) -> Self {
        let stopped_at =
            (missed.at != root).then(|| Place::of(block, missed.at, &place.stage, &place.function));
        Self {
            stopped_at,
            ..Self::missed(pass, place, missed.why)
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.stage.is_empty() {
            write!(f, "{}/", self.stage)?;
        }
        write!(f, "{}/{} ({})", self.function, self.op, self.op_type)
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            RemarkKind::Applied => "applied",
            RemarkKind::Missed => "missed",
        };
        write!(f, "{}: {kind} at {}: {}", self.pass, self.place, self.what)?;
        match &self.stopped_at {
            Some(place) => write!(f, " [stopped at {} ({})]", place.op, place.op_type),
            None => Ok(()),
        }
    }
}
