//! Which ops make a low precision depart from fp32: the program runs in both at once.
//!
//! The run in fp32 is the reference. For each op there are two errors: the *local* one, when the op
//! computes in the low precision on the arguments of the fp32 run, so that it is the op's own; and
//! the *accumulated* one, of the whole run in the low precision up to there. Both are the greatest
//! distance relative to the greatest magnitude of the reference.
//!
//! Ops that only move values are not told of: their errors are those of their arguments.
//!
//! The two runs go in step, in two threads: neither is ahead by more than a few ops, so that no more
//! is held than what each needs anyway.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use serde::Serialize;

use super::interpreter::{Observer, Options};
use super::runner::{Runner, RunnerError};
use super::typed::rounded;
use super::verify::Calls;
use crate::ir::{Graph, NodeId, Operation};
use crate::model::Model;
use crate::ops::{Call, Datum, Numerics, evaluate};
use crate::package::Weights;
use crate::tensor::Tensor;

/// Ops that only move values: their errors are those of their arguments, and told there.
pub const MOVES: [&str; 20] = [
    "concat",
    "depth_to_space",
    "expand_dims",
    "flatten2d",
    "gather",
    "gather_along_axis",
    "gather_nd",
    "identity",
    "pixel_shuffle",
    "read_state",
    "reshape",
    "reverse",
    "slice_by_index",
    "slice_by_size",
    "slice_update",
    "split",
    "squeeze",
    "stack",
    "tile",
    "transpose",
];

/// How many ops the run in the low precision may be ahead.
const AHEAD: usize = 4;

/// How far one result is from the reference.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Departure {
    /// The greatest |low − reference|, of elements that are finite in both, divided by the greatest
    /// finite magnitude of the reference.
    pub error: f64,
    /// Elements that are NaN or infinite in the low precision and finite in the reference, or the
    /// other way around.
    pub not_finite: u64,
    /// The element that is furthest off; one that is not finite on one side, if there is any.
    pub index: usize,
    /// That element in the reference.
    #[serde(serialize_with = "number")]
    pub reference: f64,
    /// That element in the low precision.
    #[serde(serialize_with = "number")]
    pub low: f64,
}

/// JSON has no NaN and no infinities; they are texts.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn number<S: serde::Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.is_finite() {
        serializer.serialize_f64(*value)
    } else {
        serializer.collect_str(value)
    }
}

impl Departure {
    /// The order of how bad it is: elements that are not finite first.
    fn badness(&self) -> f64 {
        if self.not_finite > 0 {
            f64::INFINITY
        } else {
            self.error
        }
    }
}

/// One result of one op.
#[derive(Clone, Debug, Serialize)]
pub struct OpReport {
    /// The result's name.
    pub name: String,
    /// The op's type.
    pub op_type: String,
    /// The call, counted from 0.
    pub call: usize,
    /// The result's shape.
    pub shape: Vec<usize>,
    /// The op's own error; none for ops with blocks, states or constants.
    pub local: Option<Departure>,
    /// The error of the whole run up to there; none where the runs take different branches.
    pub accumulated: Option<Departure>,
}

/// What the walk found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Walk {
    /// How many results were compared.
    pub results: usize,
    /// The error from which on a result has departed.
    pub threshold: f64,
    /// The first result that is NaN or infinite in the low precision alone.
    pub first_not_finite: Option<OpReport>,
    /// The first results that have departed, by their accumulated error.
    pub first: Vec<OpReport>,
    /// Those with the greatest local errors, the worst first.
    pub worst_local: Vec<OpReport>,
    /// Those with the greatest accumulated errors, the worst first.
    pub worst_accumulated: Vec<OpReport>,
    /// The op after which the two runs take different branches, if they do.
    pub parted_after: Option<String>,
    /// Why the run in the low precision ended before the other, if it did.
    pub low_failed: Option<String>,
}

/// How to walk.
#[derive(Clone, Debug)]
pub struct WalkOptions {
    /// The low precision.
    pub numerics: Numerics,
    /// The error from which on a result has departed.
    pub threshold: f64,
    /// How many results each list has at most.
    pub top: usize,
    /// Seed of random ops.
    pub seed: u64,
}

/// Runs a function in fp32 and in a low precision, call by call on the same inputs.
///
/// # Errors
///
/// If the run in fp32 fails.
pub fn walk(
    model: &Model,
    weights: &Arc<Weights>,
    function: Option<&str>,
    calls: &Calls,
    options: &WalkOptions,
) -> Result<Walk, RunnerError> {
    let with = |numerics| Options {
        seed: options.seed,
        ..Options::new(numerics)
    };
    let (low, high) = (with(options.numerics), with(Numerics::FP32));
    let runner = Runner::new(model, weights, function, &high)?;
    let (sender, receiver) = sync_channel(AHEAD);
    thread::scope(|scope| {
        let other = scope.spawn(move || run_low(model, weights, function, calls, &low, sender));
        let mut walker = Walker {
            options,
            walk: Walk {
                threshold: options.threshold,
                ..Walk::default()
            },
            steps: Some(receiver),
            local: None,
            call: 0,
        };
        let mut result = Ok(());
        for (number, inputs) in calls.iter().enumerate() {
            walker.call = number;
            result = runner.call(inputs, &mut walker).map(|_| ());
            if result.is_err() {
                break;
            }
        }
        // The other thread must not wait for someone to take its results.
        walker.steps = None;
        let mut walk = walker.walk;
        match other.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => walk.low_failed = Some(error.to_string()),
            Err(panic) => std::panic::resume_unwind(panic),
        }
        result.map(|()| walk)
    })
}

/// One op of the run in the low precision.
struct Step {
    graph: usize,
    node: NodeId,
    results: Vec<Datum>,
}

/// The run in the low precision, which hands over what it computes.
fn run_low(
    model: &Model,
    weights: &Arc<Weights>,
    function: Option<&str>,
    calls: &Calls,
    options: &Options,
    sender: SyncSender<Step>,
) -> Result<(), RunnerError> {
    let runner = Runner::new(model, weights, function, options)?;
    let mut hand_over = HandOver(Some(sender));
    for inputs in calls {
        runner.call(inputs, &mut hand_over)?;
    }
    Ok(())
}

struct HandOver(Option<SyncSender<Step>>);

impl Observer for HandOver {
    fn computed(&mut self, graph: &Graph, node: NodeId, op: &Operation, results: &[Datum]) {
        if op.const_value().is_some() {
            return;
        }
        let step = Step {
            graph: address(graph),
            node,
            results: results.to_vec(),
        };
        // Nobody looks any more once the runs have parted.
        if self.0.as_ref().is_some_and(|to| to.send(step).is_err()) {
            self.0 = None;
        }
    }
}

/// Both runs are of the same graphs.
fn address(graph: &Graph) -> usize {
    std::ptr::from_ref(graph) as usize
}

/// Watches the run in fp32.
struct Walker<'w> {
    options: &'w WalkOptions,
    walk: Walk,
    /// The results of the other run; none once the runs have parted.
    steps: Option<Receiver<Step>>,
    /// The op in the low precision on the arguments of this run.
    local: Option<Vec<Datum>>,
    call: usize,
}

impl Observer for Walker<'_> {
    fn computing(&mut self, _: &Graph, _: NodeId, call: &Call) {
        if MOVES.contains(&call.op_type) {
            return;
        }
        self.local = local(call, &self.options.numerics);
    }

    fn computed(&mut self, graph: &Graph, node: NodeId, op: &Operation, results: &[Datum]) {
        if op.const_value().is_some() {
            return;
        }
        let local = self.local.take();
        let low = self.next(graph, node, op);
        for (index, (result, named)) in results.iter().zip(op.results()).enumerate() {
            let Datum::Tensor(reference) = result else {
                continue;
            };
            let departure = |results: &Option<Vec<Datum>>| {
                let low = results.as_ref()?.get(index)?.as_tensor()?;
                departure(reference, low)
            };
            self.walk.results += 1;
            if MOVES.contains(&op.op_type()) {
                continue;
            }
            let report = OpReport {
                name: named.name.clone(),
                op_type: op.op_type().to_owned(),
                call: self.call,
                shape: reference.shape().to_vec(),
                local: departure(&local),
                accumulated: departure(&low),
            };
            self.record(&report);
        }
    }
}

impl Walker<'_> {
    /// The same op's results in the other run.
    fn next(&mut self, graph: &Graph, node: NodeId, op: &Operation) -> Option<Vec<Datum>> {
        let steps = self.steps.as_ref()?;
        match steps.recv() {
            Ok(step) if step.graph == address(graph) && step.node == node => Some(step.results),
            Ok(_) => {
                let name = op.results().first().map_or("", |r| r.name.as_str());
                self.walk.parted_after = Some(name.to_owned());
                self.steps = None;
                None
            }
            Err(_) => {
                self.steps = None;
                None
            }
        }
    }

    fn record(&mut self, report: &OpReport) {
        let top = self.options.top;
        let walk = &mut self.walk;
        let badness =
            |departure: &Option<Departure>| departure.as_ref().map_or(0.0, Departure::badness);
        if let Some(accumulated) = &report.accumulated {
            let appears = accumulated.not_finite > 0 && !accumulated.low.is_finite();
            if appears && walk.first_not_finite.is_none() {
                walk.first_not_finite = Some(report.clone());
            }
            if accumulated.badness() > walk.threshold && walk.first.len() < top {
                walk.first.push(report.clone());
            }
        }
        keep(&mut walk.worst_accumulated, report, top, |r| {
            badness(&r.accumulated)
        });
        keep(&mut walk.worst_local, report, top, |r| badness(&r.local));
    }
}

/// Keeps the worst few, those that came first before others as bad.
fn keep(
    worst: &mut Vec<OpReport>,
    report: &OpReport,
    top: usize,
    badness: impl Fn(&OpReport) -> f64,
) {
    let own = badness(report);
    if own == 0.0 {
        return;
    }
    let at = worst.partition_point(|other| badness(other) >= own);
    if at < top {
        worst.insert(at, report.clone());
        worst.truncate(top);
    }
}

/// The results of an op in other numerics, on the same arguments. None if it fails there, or if it
/// would change a state.
fn local(call: &Call, numerics: &Numerics) -> Option<Vec<Datum>> {
    let mut arguments = call.arguments.values().flatten();
    if arguments.any(|argument| matches!(argument, Datum::State(_))) {
        return None;
    }
    let low = Call {
        op_type: call.op_type,
        opset: call.opset,
        arguments: call.arguments.clone(),
        results: call.results,
        numerics,
        seed: call.seed,
        memory: call.memory,
    };
    let results = evaluate(&low).ok()?;
    results
        .into_iter()
        .zip(call.results)
        .map(|(result, named)| rounded(numerics, named.ty.as_ref(), result).ok())
        .collect()
}

/// How far a tensor is from the reference; none if they cannot be compared.
fn departure(reference: &Tensor, low: &Tensor) -> Option<Departure> {
    if reference.shape() != low.shape() {
        return None;
    }
    if let (Ok(a), Ok(b)) = (reference.as_floats(), low.as_floats()) {
        let pairs = a.iter().zip(b.iter());
        return Some(compare(pairs.map(|(a, b)| (f64::from(*a), f64::from(*b)))));
    }
    let (a, b) = (reference.to_f64().ok()?, low.to_f64().ok()?);
    Some(compare(a.into_iter().zip(b)))
}

fn compare(pairs: impl Iterator<Item = (f64, f64)>) -> Departure {
    let mut scale: f64 = 0.0;
    let mut furthest: f64 = 0.0;
    let mut found = Departure {
        error: 0.0,
        not_finite: 0,
        index: 0,
        reference: 0.0,
        low: 0.0,
    };
    for (index, (a, b)) in pairs.enumerate() {
        if a.is_finite() {
            scale = scale.max(a.abs());
        }
        let worse = if a.is_finite() && b.is_finite() {
            let distance = (a - b).abs();
            let worse = distance > furthest;
            furthest = furthest.max(distance);
            worse && found.not_finite == 0
        } else {
            let same = a == b || (a.is_nan() && b.is_nan());
            found.not_finite += u64::from(!same);
            !same && found.not_finite == 1
        };
        if worse {
            (found.index, found.reference, found.low) = (index, a, b);
        } else if index == 0 {
            (found.reference, found.low) = (a, b);
        }
    }
    found.error = if furthest == 0.0 {
        0.0
    } else if scale == 0.0 {
        f64::INFINITY
    } else {
        furthest / scale
    };
    found
}

/// The first number from 1 to `last` for which `breaks` holds, if it does for `last`; it is taken to
/// hold for all numbers after the first.
///
/// # Errors
///
/// Those of `breaks`.
pub fn first_that<E>(
    last: usize,
    mut breaks: impl FnMut(usize) -> Result<bool, E>,
) -> Result<Option<usize>, E> {
    if last == 0 || !breaks(last)? {
        return Ok(None);
    }
    // `high` breaks, `low` does not.
    let (mut low, mut high) = (0, last);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if breaks(middle)? {
            high = middle;
        } else {
            low = middle;
        }
    }
    Ok(Some(high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_finds_the_first_of_those_that_break_in_few_steps() {
        for first in 1..=100 {
            let mut steps = 0;
            let found = first_that::<()>(100, |number| {
                steps += 1;
                Ok(number >= first)
            });
            assert_eq!(found, Ok(Some(first)));
            assert!(steps <= 8, "{steps}");
        }
        assert_eq!(first_that::<()>(100, |_| Ok(false)), Ok(None));
        assert_eq!(first_that::<()>(0, |_| Ok(true)), Ok(None));
        assert_eq!(first_that(3, |_| Err("why")), Err("why"));
    }

    #[test]
    fn the_error_is_relative_to_the_scale_and_names_the_worst_element() {
        let found = compare([(1.0, 1.0), (-4.0, -3.0), (2.0, 2.5)].into_iter());
        assert_eq!((found.error, found.index), (0.25, 1));
        assert_eq!(
            (found.reference, found.low, found.not_finite),
            (-4.0, -3.0, 0)
        );
    }

    #[test]
    fn an_element_that_overflows_is_worse_than_any_distance() {
        let inf = f64::INFINITY;
        let found = compare([(1.0, 9.0), (70000.0, inf), (inf, inf), (2.0, f64::NAN)].into_iter());
        assert_eq!((found.not_finite, found.index), (2, 1));
        assert_eq!((found.reference, found.low), (70000.0, inf));
        let same = compare([(f64::NAN, f64::NAN)].into_iter());
        assert_eq!((same.not_finite, same.error), (0, 0.0));
    }
}
