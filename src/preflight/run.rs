//! Runs of a model on samples of inputs, in one way of computing, with every value measured.

use std::sync::Arc;

use crate::eval::arrays::array;
use crate::eval::ranges::{Meter, Ranges};
use crate::eval::verify::Calls;
use crate::eval::{Observer, Options, Runner, RunnerError};
use crate::ir::{Graph, NodeId, Operation};
use crate::model::Model;
use crate::ops::{Call, Datum, Numerics};
use crate::package::Weights;
use crate::tensor::Tensor;

/// What runs.
#[derive(Clone, Copy)]
pub struct Subject<'m> {
    /// The model.
    pub model: &'m Model,
    /// Its weights.
    pub weights: &'m Arc<Weights>,
    /// The function; by default the one that the description names.
    pub function: Option<&'m str>,
    /// Seed of random operations.
    pub seed: u64,
}

/// What was seen in the runs.
#[derive(Debug)]
pub struct Run {
    /// How large the values were, over all samples.
    pub ranges: Ranges,
    /// The outputs that are arrays, of each call of each sample in turn.
    pub outputs: Vec<Vec<(String, Tensor)>>,
}

impl Subject<'_> {
    /// Runs all calls of all samples; states are zero at the beginning of each sample. `tick` is
    /// called for each operation that was computed.
    ///
    /// # Errors
    ///
    /// If a run fails.
    pub fn run(
        &self,
        numerics: Numerics,
        samples: &[Calls],
        tick: &mut dyn FnMut(),
    ) -> Result<Run, RunnerError> {
        self.watched(numerics, samples, &mut Ticking(tick))
    }

    /// The same with an observer of one's own.
    pub(super) fn watched(
        &self,
        numerics: Numerics,
        samples: &[Calls],
        observer: &mut dyn Observer,
    ) -> Result<Run, RunnerError> {
        let options = Options {
            seed: self.seed,
            ..Options::new(numerics)
        };
        let mut runner = Runner::new(self.model, self.weights, self.function, &options)?;
        let mut meter = Meter::new(&runner);
        let mut outputs = Vec::new();
        for calls in samples {
            runner.reset()?;
            for inputs in calls {
                meter.given(&runner, inputs);
                let mut both = Both(&mut meter, observer);
                let results = runner.call(inputs, &mut both)?;
                let arrays = results.into_iter();
                outputs.push(
                    arrays
                        .filter_map(|(name, datum)| Some((name, array(&datum).ok()?)))
                        .collect(),
                );
            }
        }
        Ok(Run {
            ranges: meter.ranges,
            outputs,
        })
    }
}

/// Counts operations.
struct Ticking<'t>(&'t mut dyn FnMut());

impl Observer for Ticking<'_> {
    fn computed(&mut self, _: &Graph, _: NodeId, _: &Operation, _: &[Datum]) {
        (self.0)();
    }
}

/// Two observers of one run.
struct Both<'o>(&'o mut Meter, &'o mut dyn Observer);

impl Observer for Both<'_> {
    fn computed(&mut self, graph: &Graph, node: NodeId, op: &Operation, results: &[Datum]) {
        self.0.computed(graph, node, op, results);
        self.1.computed(graph, node, op, results);
    }

    fn computing(&mut self, graph: &Graph, node: NodeId, call: &Call) {
        self.1.computing(graph, node, call);
    }
}
