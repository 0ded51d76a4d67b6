//! Asks the matchers of a pass about every operation of a program and about the whole of it, and
//! changes nothing.

use super::block::Block;
use super::matcher::{Attempt, Direction, Matcher, Pass};
use super::options::{OptionError, OptionMap};
use super::remark::Place;
use super::rule::Found;
use super::whole::{Whole, WholeEnd};
use crate::ir::{Graph, NodeId, Operation, Program};
use crate::ops::Opset;

/// Where a node is in a program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spot {
    /// The function.
    pub function: String,
    /// Key of the body.
    pub opset: String,
    /// The way into nested blocks: the operations that own them, each with which of its blocks.
    pub path: Vec<(NodeId, usize)>,
    /// The node in the innermost block.
    pub node: NodeId,
}

impl Spot {
    /// The block that the node is in.
    pub fn graph<'p>(&self, program: &'p Program) -> Option<&'p Graph> {
        let function = program.functions.get(&self.function)?;
        let mut graph = &function.specializations.get(&self.opset)?.graph;
        for (node, block) in &self.path {
            graph = graph.op(*node)?.blocks().get(*block)?;
        }
        Some(graph)
    }
}

/// What a matcher found at a place.
#[derive(Clone, Debug)]
pub struct Hit {
    /// What was found.
    pub found: Found,
    /// Whether there is a rewrite that repairs it.
    pub fix: bool,
    /// The operation by its name.
    pub place: Place,
    /// The operation; `None` if it is about more than one.
    pub spot: Option<Spot>,
}

/// Everything that a pass finds in a program, in the program's order, and then what it finds in the
/// whole. `stage` says which program it is, if the model has several.
pub fn scan(
    pass: &dyn Pass,
    options: &OptionMap,
    whole: &Whole<'_>,
    stage: &str,
) -> Result<Vec<Hit>, OptionError> {
    let mut hits = Vec::new();
    for (function, bodies) in &whole.program.functions {
        for (opset, body) in &bodies.specializations {
            let mut scan = Scan {
                pass,
                options,
                stage,
                function,
                opset,
                path: Vec::new(),
                hits: Vec::new(),
            };
            let block = Block {
                graph: &body.graph,
                outer: None,
                opset: Opset::parse(opset),
                blobs: whole.blobs,
            };
            scan.block(&block)?;
            hits.append(&mut scan.hits);
        }
    }
    let Some(mut matcher) = pass.whole_matcher(options)? else {
        return Ok(hits);
    };
    for attempt in matcher.attempts(whole) {
        let place = attempt.place(stage);
        let has_rewrite = matches!(attempt.end, WholeEnd::Match { .. });
        for found in attempt.findings {
            hits.push(Hit {
                fix: has_rewrite && found.is_fixed(),
                place: place.clone(),
                spot: None,
                found,
            });
        }
    }
    Ok(hits)
}

struct Scan<'s> {
    pass: &'s dyn Pass,
    options: &'s OptionMap,
    stage: &'s str,
    function: &'s str,
    opset: &'s str,
    path: Vec<(NodeId, usize)>,
    hits: Vec<Hit>,
}

impl Scan<'_> {
    /// Asks about every operation of a block and of the blocks in it.
    fn block(&mut self, block: &Block<'_>) -> Result<(), OptionError> {
        let mut matcher = self.pass.matcher(self.options)?;
        // A graph with a cycle has no order; decoding refuses it.
        let order = block.graph.schedule().unwrap_or_default();
        let first = self.hits.len();
        if matcher.direction() == Direction::Backward {
            for node in order.iter().rev() {
                let before = self.hits.len();
                self.node(block, *node, matcher.as_mut())?;
                // The whole is turned round below.
                self.hits[before..].reverse();
            }
            self.hits[first..].reverse();
        } else {
            for node in order.iter() {
                self.node(block, *node, matcher.as_mut())?;
            }
        }
        Ok(())
    }

    fn node(
        &mut self,
        block: &Block<'_>,
        node: NodeId,
        matcher: &mut dyn Matcher,
    ) -> Result<(), OptionError> {
        let Some(op) = block.op(node) else {
            return Ok(());
        };
        for (index, graph) in op.blocks().iter().enumerate() {
            self.path.push((node, index));
            let inner = Block {
                graph,
                outer: Some(block),
                ..*block
            };
            let result = self.block(&inner);
            self.path.pop();
            result?;
        }
        let (attempt, findings) = matcher.attempt(block, node).split();
        let has_rewrite = matches!(attempt, Attempt::Match(_));
        for found in findings {
            let at = found.at.unwrap_or(node);
            self.hits.push(Hit {
                fix: has_rewrite && found.is_fixed(),
                place: self.place(block, at),
                spot: Some(Spot {
                    function: self.function.to_owned(),
                    opset: self.opset.to_owned(),
                    path: self.path.clone(),
                    node: at,
                }),
                found,
            });
        }
        Ok(())
    }

    fn place(&self, block: &Block<'_>, node: NodeId) -> Place {
        Place {
            stage: self.stage.to_owned(),
            function: self.function.to_owned(),
            op: block.label(node),
            op_type: block
                .op(node)
                .map_or("input", Operation::op_type)
                .to_owned(),
        }
    }
}
