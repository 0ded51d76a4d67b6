//! Asks the matchers of a pass about every operation of a program and about the whole of it, and
//! changes nothing: for the linter, and for who wants to know why a pass did not match.

use super::block::Block;
use super::matcher::{Attempt, Direction, Matcher, Pass};
use super::options::{OptionError, OptionMap};
use super::remark::{Place, Remark, RemarkKind};
use super::rule::Found;
use super::whole::{Whole, WholeAttempt, WholeEnd};
use crate::ir::{Graph, NodeId, Program};
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

/// Everything that the linter has to say of what a pass finds in a program, in the program's order, and
/// then of the whole.
pub fn scan(
    pass: &dyn Pass,
    options: &OptionMap,
    whole: &Whole<'_>,
) -> Result<Vec<Hit>, OptionError> {
    let stage = whole.stage;
    let mut hits = walk(pass, options, whole, &mut |walk, block, node, attempt| {
        let (attempt, findings) = attempt.split();
        let has_rewrite = matches!(attempt, Attempt::Match(_));
        let hit = |found: Found| {
            let at = found.at.unwrap_or(node);
            Hit {
                fix: has_rewrite && found.is_fixed(),
                place: Place::of(block, at, stage, walk.function),
                spot: Some(Spot {
                    function: walk.function.to_owned(),
                    opset: walk.opset.to_owned(),
                    path: walk.path.to_vec(),
                    node: at,
                }),
                found,
            }
        };
        findings.into_iter().map(hit).collect()
    })?;
    for attempt in whole_attempts(pass, options, whole)? {
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

/// What a pass would do in a program, and then what it would nearly do and why not.
pub fn report(
    pass: &dyn Pass,
    options: &OptionMap,
    whole: &Whole<'_>,
) -> Result<Vec<Remark>, OptionError> {
    let (id, stage) = (pass.meta().id, whole.stage);
    let mut remarks = Vec::new();
    for attempt in whole_attempts(pass, options, whole)? {
        let place = attempt.place(stage);
        remarks.extend(match attempt.end {
            WholeEnd::NoMatch => None,
            WholeEnd::Match { what, .. } => Some(Remark::applied(id, place, what)),
            WholeEnd::Missed(why) => Some(Remark::missed(id, place, why)),
        });
    }
    remarks.extend(walk(
        pass,
        options,
        whole,
        &mut |walk, block, node, attempt| {
            let place = || Place::of(block, node, stage, walk.function);
            let remark = match attempt.split().0 {
                Attempt::NoMatch | Attempt::NoEffect | Attempt::Found(..) => None,
                Attempt::Match(found) => Some(Remark::applied(id, place(), found.what)),
                Attempt::CheckFailed(missed) => {
                    Some(Remark::stopped(id, block, node, place(), missed))
                }
            };
            remark.into_iter().collect()
        },
    )?);
    remarks.sort_by_key(|remark| remark.kind == RemarkKind::Missed);
    Ok(remarks)
}

fn whole_attempts(
    pass: &dyn Pass,
    options: &OptionMap,
    whole: &Whole<'_>,
) -> Result<Vec<WholeAttempt>, OptionError> {
    let matcher = pass.whole_matcher(options)?;
    Ok(matcher.map_or_else(Vec::new, |mut matcher| matcher.attempts(whole)))
}

/// Where a walk is.
struct At<'w> {
    function: &'w str,
    opset: &'w str,
    path: &'w [(NodeId, usize)],
}

/// What a walk makes of each attempt.
type Visit<'w, T> = &'w mut dyn FnMut(&At<'_>, &Block<'_>, NodeId, Attempt) -> Vec<T>;

/// Asks the matcher about every operation of every block, and gives what `visit` makes of the attempts,
/// in the program's order.
fn walk<T>(
    pass: &dyn Pass,
    options: &OptionMap,
    whole: &Whole<'_>,
    visit: Visit<'_, T>,
) -> Result<Vec<T>, OptionError> {
    let mut all = Vec::new();
    for (function, bodies) in &whole.program.functions {
        for (opset, body) in &bodies.specializations {
            let mut walk = Walk {
                pass,
                options,
                function,
                opset,
                path: Vec::new(),
                visit: &mut *visit,
                seen: Vec::new(),
            };
            walk.block(&Block {
                graph: &body.graph,
                outer: None,
                opset: Opset::parse(opset),
                blobs: whole.blobs,
                ranges: whole.calibration.ranges.function(whole.stage, function),
            })?;
            all.append(&mut walk.seen);
        }
    }
    Ok(all)
}

struct Walk<'w, T> {
    pass: &'w dyn Pass,
    options: &'w OptionMap,
    function: &'w str,
    opset: &'w str,
    path: Vec<(NodeId, usize)>,
    visit: Visit<'w, T>,
    seen: Vec<T>,
}

impl<T> Walk<'_, T> {
    /// Asks about every operation of a block and of the blocks in it.
    fn block(&mut self, block: &Block<'_>) -> Result<(), OptionError> {
        let mut matcher = self.pass.matcher(self.options)?;
        // A graph with a cycle has no order; decoding refuses it.
        let order = block.graph.schedule().unwrap_or_default();
        let first = self.seen.len();
        if matcher.direction() == Direction::Backward {
            for node in order.iter().rev() {
                let before = self.seen.len();
                self.node(block, *node, matcher.as_mut())?;
                // The whole is turned round below.
                self.seen[before..].reverse();
            }
            self.seen[first..].reverse();
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
        let at = At {
            function: self.function,
            opset: self.opset,
            path: &self.path,
        };
        let seen = (self.visit)(&at, block, node, matcher.attempt(block, node));
        self.seen.extend(seen);
        Ok(())
    }
}
