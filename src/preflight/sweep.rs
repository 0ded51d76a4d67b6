//! What clamps of the residual stream would do: the model is rewritten by the passes that would be used
//! on it, for each clamp anew, and runs in fp16.

use super::agreement::agreements;
use super::report::Clamp;
use super::run::{Run, Subject};
use crate::eval::verify::Calls;
use crate::eval::{Observer, RunnerError};
use crate::ir::{Graph, NodeId, Operation};
use crate::ops::{Call, Datum, Numerics};
use crate::pass::{Manager, Pipeline, PipelineError, RunError, Settings, Silent, verify};
use crate::passes;

/// The clamps that are tried: ANEMLL's, from 65 000 down by 5 000.
pub(super) const VALUES: [f64; 10] = [
    65_000.0, 60_000.0, 55_000.0, 50_000.0, 45_000.0, 40_000.0, 35_000.0, 30_000.0, 25_000.0,
    20_000.0,
];

/// Why a sweep ended.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The passes are not there.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// A pass failed.
    #[error(transparent)]
    Pass(#[from] RunError),
    /// A run failed.
    #[error(transparent)]
    Run(#[from] RunnerError),
}

/// How the sweep runs.
pub(super) struct Sweep<'s> {
    pub(super) subject: Subject<'s>,
    pub(super) samples: &'s [Calls],
    pub(super) reference: &'s Run,
    pub(super) numerics: Numerics,
    /// Whether norms are made safe first, as their squares would hide what a clamp does.
    pub(super) with_safe_norms: bool,
}

impl Sweep<'_> {
    pub(super) fn run(&self, tick: &mut dyn FnMut()) -> Result<Vec<Clamp>, SweepError> {
        VALUES
            .into_iter()
            .map(|value| self.clamp(value, tick))
            .collect()
    }

    fn clamp(&self, value: f64, tick: &mut dyn FnMut()) -> Result<Clamp, SweepError> {
        let norms = if self.with_safe_norms {
            "safe-rmsnorm,"
        } else {
            ""
        };
        let text = format!("{norms}clamp-residual{{value={value}}}");
        let pipeline = Pipeline::parse(&text, passes::ALL)?;
        let mut model = self.subject.model.clone();
        let mut manager = Manager::new(passes::ALL, Settings::default());
        for part in model.parts_mut() {
            let known = verify::issues(part.program);
            let weights = self.subject.weights.as_ref();
            manager.run_part(&pipeline, part, &known, weights, &mut Silent)?;
        }
        let subject = Subject {
            model: &model,
            ..self.subject
        };
        let mut counting = Clamped {
            value,
            count: 0,
            tick,
        };
        let run = subject.watched(self.numerics, self.samples, &mut counting)?;
        let outputs = agreements(self.reference, &run);
        let longest = longest_rows(self.reference);
        let output = outputs.iter().find(|output| output.name == longest);
        Ok(Clamp {
            value,
            success: outputs.iter().all(|output| output.not_finite == 0),
            clamped: counting.count,
            argmax_match: output.map_or(1.0, |output| output.argmax_match),
            kl: output.and_then(|output| output.kl),
            snr_db: output.and_then(|output| output.snr_db),
        })
    }
}

/// The output of floats with the longest rows: the logits, if there are any.
pub(super) fn longest_rows(run: &Run) -> String {
    let outputs = run.outputs.first().into_iter().flatten();
    outputs
        .filter(|(_, array)| array.dtype().is_float())
        .max_by_key(|(_, array)| array.shape().last().copied())
        .map(|(name, _)| name.clone())
        .unwrap_or_default()
}

/// Counts what the clips that the pass made keep back.
struct Clamped<'t> {
    value: f64,
    count: u64,
    tick: &'t mut dyn FnMut(),
}

impl Observer for Clamped<'_> {
    fn computed(&mut self, graph: &Graph, node: NodeId, op: &Operation, _: &[Datum]) {
        let _ = (graph, node, op);
        (self.tick)();
    }

    fn computing(&mut self, graph: &Graph, node: NodeId, call: &Call) {
        let is_made = graph
            .op(node)
            .and_then(Operation::made_by)
            .is_some_and(|pass| pass == "clamp-residual");
        if !is_made || call.op_type != "clip" {
            return;
        }
        let beyond = call.tensor("x").ok().and_then(|x| {
            let elements = x.as_floats().ok()?;
            let beyond = |element: &&f32| f64::from(element.abs()) > self.value;
            Some(elements.iter().filter(beyond).count() as u64)
        });
        self.count += beyond.unwrap_or(0);
    }
}
