//! One pass over one body: each operation of each block as the root of the pattern, once.

use super::block::{Blobs, Block};
use super::edit::Edit;
use super::matcher::{Attempt, Direction, Matcher, Pass};
use super::options::{OptionError, OptionMap};
use super::remark::{Place, Remark};
use crate::eval::ranges::FunctionRanges;
use crate::ir::{Graph, Names, NodeId, Operation, Rewriter};
use crate::ops::{Opset, registry};

/// One sweep of one pass over one body.
pub(super) struct Sweep<'a> {
    pub(super) pass: &'static dyn Pass,
    pub(super) options: &'a OptionMap,
    pub(super) stage: &'a str,
    pub(super) function: String,
    pub(super) opset: Option<Opset>,
    pub(super) blobs: &'a dyn Blobs,
    pub(super) ranges: Option<&'a FunctionRanges>,
    /// Rewrites that may still be made.
    pub(super) budget: usize,
    /// Whether the matcher wants the last operation first.
    pub(super) backward: bool,
    pub(super) applied: Vec<Remark>,
    pub(super) missed: Vec<Remark>,
}

impl<'a> Sweep<'a> {
    /// Sweeps over a body; the remarks are in the program's order, whatever the matcher's is.
    pub(super) fn body(&mut self, graph: &mut Graph, names: &mut Names) -> Result<(), OptionError> {
        let (applied, missed) = (self.applied.len(), self.missed.len());
        self.block(graph, names, None)?;
        if self.backward {
            self.applied[applied..].reverse();
            self.missed[missed..].reverse();
        }
        Ok(())
    }

    fn block(
        &mut self,
        graph: &mut Graph,
        names: &mut Names,
        outer: Option<&Block<'_>>,
    ) -> Result<(), OptionError> {
        let mut matcher = self.pass.matcher(self.options)?;
        // A graph with a cycle has no order; decoding refuses it and rewrites cannot make one.
        let order = graph.schedule().unwrap_or_default();
        let backward = matcher.direction() == Direction::Backward;
        self.backward = backward;
        for index in 0..order.len() {
            let node = order[if backward {
                order.len() - 1 - index
            } else {
                index
            }];
            if self.budget == 0 {
                return Ok(());
            }
            let nested = graph.op(node).map_or(0, |op| op.blocks().len());
            for index in 0..nested {
                let Some(mut inner) = graph.take_block(node, index) else {
                    continue;
                };
                let result = {
                    let around = self.view(graph, outer);
                    self.block(&mut inner, names, Some(&around))
                };
                graph.return_block(node, index, inner);
                result?;
            }
            self.attempt(matcher.as_mut(), graph, names, outer, node);
        }
        Ok(())
    }

    fn view<'b>(&self, graph: &'b Graph, outer: Option<&'b Block<'b>>) -> Block<'b>
    where
        'a: 'b,
    {
        Block {
            graph,
            outer,
            opset: self.opset,
            blobs: self.blobs,
            ranges: self.ranges,
        }
    }

    fn attempt(
        &mut self,
        matcher: &mut dyn Matcher,
        graph: &mut Graph,
        names: &mut Names,
        outer: Option<&Block<'_>>,
        node: NodeId,
    ) {
        if graph.op(node).is_none() {
            return;
        }
        let id = self.pass.meta().id;
        let (attempt, place) = {
            let block = self.view(graph, outer);
            // Findings are for the linter.
            let (attempt, _) = matcher.attempt(&block, node).split();
            if matches!(attempt, Attempt::NoMatch | Attempt::NoEffect) {
                return;
            }
            let place = Place::of(&block, node, self.stage, &self.function);
            (attempt, place)
        };
        match attempt {
            Attempt::NoMatch | Attempt::NoEffect | Attempt::Found(..) => {}
            Attempt::CheckFailed(missed) => {
                let block = self.view(graph, outer);
                let remark = Remark::stopped(id, &block, node, place, missed);
                self.missed.push(remark);
            }
            Attempt::Match(found) => {
                let Some(opset) = self.opset else {
                    let why = "the opset is newer than those milwright knows".to_owned();
                    self.missed.push(Remark::missed(id, place, why));
                    return;
                };
                let rewriter = Rewriter::new(graph, names, id, node, is_erasable);
                let mut edit = Edit::new(rewriter, opset, self.blobs);
                let result = (found.apply)(&mut edit);
                // Each step of a rewrite keeps the meaning, so what a later step refuses leaves a
                // valid program, and what was done counts.
                let changed = result.is_ok() || edit.has_changed();
                edit.finish();
                if changed {
                    self.budget -= 1;
                    let remark = Remark::applied(id, place.clone(), found.what);
                    self.applied.push(remark);
                }
                if let Err(error) = result {
                    let remark = Remark::missed(id, place, error.to_string());
                    self.missed.push(remark);
                }
            }
        }
    }
}

/// Whether an operation, and everything in its blocks, may be erased when nothing uses its
/// results. (Writes to states are found by the rewriter itself.)
pub fn is_erasable(op: &Operation) -> bool {
    match registry::effect(op.op_type()) {
        registry::Effect::Nested => op
            .blocks()
            .iter()
            .all(|block| block.ops().all(|(_, inner)| is_erasable(inner))),
        effect => effect.is_erasable(),
    }
}
