//! Matching and rewriting whole programs: what changes a function's inputs, outputs or states, or
//! can only be seen by looking at several functions.
//!
//! A [`Pass`](super::Pass) whose pattern is more than the surroundings of one operation gives a
//! [`WholeMatcher`]. The manager asks it for all attempts, makes the first match's rewrite, and asks
//! again until there is no match. A rewrite changes three things together: the function's inputs
//! (with each of its bodies), the bodies' operations, and the model's description.

use super::block::{Blobs, Block};
use super::calibration::Calibration;
use super::edit::{Edit, EditError};
use super::remark::{Place, Remark};
use super::rule::Found;
use super::sweep::is_erasable;
use crate::eval::ports::{self, PortMap, PortMapError};
use crate::ir::{Body, Function, InterfaceError, NodeId, Program, Rewriter};
use crate::model::{DescribeError, DescriptionMut, Interface};
use crate::ops::Opset;

/// What a matcher of whole programs sees.
pub struct Whole<'a> {
    /// The program.
    pub program: &'a Program,
    /// What the model's description says of it; empty for a program that stands alone.
    pub interface: &'a Interface,
    /// The metadata that the model's author, or an earlier pass, defined.
    pub metadata: &'a std::collections::BTreeMap<String, String>,
    /// The weight files.
    pub blobs: &'a dyn Blobs,
    /// Which program it is, if the model is a pipeline of several.
    pub stage: &'a str,
    /// What was measured of the model.
    pub calibration: &'a Calibration,
}

impl<'a> Whole<'a> {
    /// The outermost block of a body: of this function, for this opset.
    pub fn block(&self, function: &str, opset: &str) -> Option<Block<'a>> {
        let ranges = self.calibration.ranges.function(self.stage, function);
        let function = self.program.functions.get(function)?;
        let body = function.specializations.get(opset)?;
        Some(Block {
            graph: &body.graph,
            outer: None,
            opset: Opset::parse(opset),
            blobs: self.blobs,
            ranges,
        })
    }

    /// Calls `visit` for every operation of a function, those of nested blocks after their owner.
    pub fn for_each_op(&self, function: &str, visit: &mut dyn FnMut(&Block<'_>, NodeId)) {
        fn walk(block: &Block<'_>, visit: &mut dyn FnMut(&Block<'_>, NodeId)) {
            for (node, op) in block.graph.ops() {
                visit(block, node);
                for graph in op.blocks() {
                    let inner = Block {
                        graph,
                        outer: Some(block),
                        ..*block
                    };
                    walk(&inner, visit);
                }
            }
        }
        let Some(bodies) = self.program.functions.get(function) else {
            return;
        };
        for opset in bodies.specializations.keys() {
            if let Some(block) = self.block(function, opset) {
                walk(&block, visit);
            }
        }
    }
}

/// Looks for matches in a whole program.
pub trait WholeMatcher {
    /// All matches and near matches.
    fn attempts(&mut self, whole: &Whole<'_>) -> Vec<WholeAttempt>;
}

/// A match or a near match in a whole program.
pub struct WholeAttempt {
    /// The function; empty if it is none in particular.
    pub function: String,
    /// What it is about: an operation, an input, a state, an output; empty for the function itself.
    pub op: String,
    /// The operation's type, or `state`, `input`, `output`, `function`, `program`.
    pub op_type: String,
    /// How the attempt ended.
    pub end: WholeEnd,
    /// What the linter has to say of it.
    pub findings: Vec<Found>,
}

/// How an attempt on a whole program ended.
pub enum WholeEnd {
    /// There is no pattern that a rewrite is for, only something for the linter to say.
    NoMatch,
    /// What stopped it.
    Missed(String),
    /// A match.
    Match {
        /// What was found and what it becomes, in one line.
        what: String,
        /// Makes the change.
        apply: WholeApply,
    },
}

/// The rewrite of a match in a whole program.
pub type WholeApply = Box<dyn FnOnce(&mut WholeEdit<'_>) -> Result<(), WholeError>>;

impl WholeAttempt {
    /// A match with its rewrite. `place` is function, operation and the operation's type.
    pub fn matched(
        place: [&str; 3],
        what: impl Into<String>,
        apply: impl FnOnce(&mut WholeEdit<'_>) -> Result<(), WholeError> + 'static,
    ) -> Self {
        let end = WholeEnd::Match {
            what: what.into(),
            apply: Box::new(apply),
        };
        Self::at(place, end)
    }

    /// A near match.
    pub fn missed(place: [&str; 3], why: impl Into<String>) -> Self {
        Self::at(place, WholeEnd::Missed(why.into()))
    }

    /// A finding without a rewrite. `place` is function, operation and the operation's type; where
    /// there is none, an empty text and `state`, `input`, `output`, `function` or `program`.
    pub fn found(place: [&str; 3], found: Found) -> Self {
        Self::at(place, WholeEnd::NoMatch).with(found)
    }

    /// The same attempt with one more finding beside it.
    pub fn with(mut self, found: Found) -> Self {
        self.findings.push(found);
        self
    }

    fn at([function, op, op_type]: [&str; 3], end: WholeEnd) -> Self {
        Self {
            function: function.to_owned(),
            op: op.to_owned(),
            op_type: op_type.to_owned(),
            end,
            findings: Vec::new(),
        }
    }

    pub(super) fn place(&self, stage: &str) -> Place {
        Place {
            stage: stage.to_owned(),
            function: self.function.clone(),
            op: self.op.clone(),
            op_type: self.op_type.clone(),
        }
    }
}

/// Why a rewrite of a whole program could not be made.
#[derive(Debug, thiserror::Error)]
pub enum WholeError {
    /// A change of operations.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// A change of inputs or outputs.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// A change of the description.
    #[error(transparent)]
    Describe(#[from] DescribeError),
    /// The map of inputs and outputs in the metadata.
    #[error(transparent)]
    Ports(#[from] PortMapError),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

/// Makes one rewrite of a whole program. If it is refused at any point, the manager puts program and
/// description back as they were.
pub struct WholeEdit<'a> {
    program: &'a mut Program,
    description: &'a mut DescriptionMut<'a>,
    blobs: &'a dyn Blobs,
    pass: &'static str,
    /// The map of inputs and outputs, once it is asked for; it is written when the rewrite is made.
    ports: Option<PortMap>,
}

impl<'a> WholeEdit<'a> {
    /// The program as it is now.
    pub fn program(&self) -> &Program {
        self.program
    }

    /// The functions, for changes of inputs and outputs.
    pub fn function(&mut self, name: &str) -> Result<&mut Function, WholeError> {
        self.program
            .functions
            .get_mut(name)
            .ok_or_else(|| WholeError::Other(format!("there is no function `{name}`")))
    }

    /// One body of a function.
    pub fn body(&mut self, function: &str, opset: &str) -> Result<&mut Body, WholeError> {
        let body = self.function(function)?.specializations.get_mut(opset);
        body.ok_or_else(|| WholeError::Other(format!("`{function}` has no body for {opset}")))
    }

    /// Changes the map of inputs and outputs in the metadata.
    pub fn note_ports(&mut self, change: impl FnOnce(&mut PortMap)) -> Result<(), WholeError> {
        let mut map = match self.ports.take() {
            Some(map) => map,
            None => PortMap::of(&self.description.user_defined())?,
        };
        change(&mut map);
        self.ports = Some(map);
        Ok(())
    }

    /// Writes what was noted into the metadata.
    fn finish(&mut self) -> Result<(), WholeError> {
        if let Some(map) = self.ports.take() {
            let text = map.text()?;
            self.description.set_user_defined(ports::KEY, Some(text));
        }
        Ok(())
    }

    /// The model's description, to follow what is done to the functions.
    pub fn description(&mut self) -> &mut DescriptionMut<'a> {
        self.description
    }

    /// Rewrites operations of one body beside the operation `anchor`, as a pass over blocks does:
    /// new operations take their place and their names from it.
    pub fn at<T>(
        &mut self,
        function: &str,
        opset: &str,
        anchor: NodeId,
        rewrite: impl FnOnce(&mut Edit<'_>) -> Result<T, EditError>,
    ) -> Result<T, WholeError> {
        let (pass, blobs) = (self.pass, self.blobs);
        let parsed = Opset::parse(opset).ok_or_else(|| {
            WholeError::Other("the opset is newer than those milwright knows".to_owned())
        })?;
        let body = self.body(function, opset)?;
        Ok(edit_body(body, parsed, anchor, pass, blobs, rewrite)?)
    }
}

/// Rewrites operations of a body beside the operation `anchor`; see [`WholeEdit::at`]. This is also for
/// a copy of a body, on which a matcher tries what would come of a rewrite.
pub fn edit_body<T>(
    body: &mut Body,
    opset: Opset,
    anchor: NodeId,
    pass: &'static str,
    blobs: &dyn Blobs,
    rewrite: impl FnOnce(&mut Edit<'_>) -> Result<T, EditError>,
) -> Result<T, EditError> {
    let Body { graph, names } = body;
    let rewriter = Rewriter::new(graph, names, pass, anchor, is_erasable);
    let mut edit = Edit::new(rewriter, opset, blobs);
    let result = rewrite(&mut edit);
    edit.finish();
    result
}

/// What a sweep over a whole program did.
#[derive(Default)]
pub(super) struct Swept {
    pub(super) applied: Vec<Remark>,
    pub(super) missed: Vec<Remark>,
}

/// One pass over one whole program.
pub(super) struct WholeSweep<'a> {
    pub(super) pass: &'static str,
    pub(super) stage: &'a str,
    pub(super) blobs: &'a dyn Blobs,
    pub(super) calibration: &'a Calibration,
}

impl WholeSweep<'_> {
    fn attempts(
        &self,
        matcher: &mut dyn WholeMatcher,
        program: &Program,
        description: &DescriptionMut<'_>,
    ) -> Vec<WholeAttempt> {
        let whole = Whole {
            program,
            interface: &description.interface(),
            metadata: &description.user_defined(),
            blobs: self.blobs,
            stage: self.stage,
            calibration: self.calibration,
        };
        matcher.attempts(&whole)
    }

    /// Makes the rewrite of the first match; what is missed besides. No rewrite if there is no match
    /// or it was refused.
    pub(super) fn rewrite(
        &self,
        matcher: &mut dyn WholeMatcher,
        program: &mut Program,
        description: &mut DescriptionMut<'_>,
        refused: &mut Vec<Place>,
    ) -> Swept {
        let mut found = Swept::default();
        for attempt in self.attempts(matcher, program, description) {
            let place = attempt.place(self.stage);
            match attempt.end {
                WholeEnd::NoMatch => {}
                WholeEnd::Match { what, apply } => {
                    if !found.applied.is_empty() || refused.contains(&place) {
                        continue;
                    }
                    let before = (program.clone(), description.snapshot());
                    let mut lent = description.reborrow();
                    let mut edit = WholeEdit {
                        program: &mut *program,
                        description: &mut lent,
                        blobs: self.blobs,
                        pass: self.pass,
                        ports: None,
                    };
                    let result = apply(&mut edit).and_then(|()| edit.finish());
                    match result {
                        Ok(()) => {
                            let remark = Remark::applied(self.pass, place, what);
                            found.applied.push(remark);
                        }
                        Err(error) => {
                            *program = before.0;
                            description.restore(before.1);
                            refused.push(place.clone());
                            let why = error.to_string();
                            found.missed.push(Remark::missed(self.pass, place, why));
                        }
                    }
                }
                WholeEnd::Missed(why) => {
                    found.missed.push(Remark::missed(self.pass, place, why));
                }
            }
        }
        found
    }
}
