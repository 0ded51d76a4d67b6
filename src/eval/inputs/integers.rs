//! The integers of one call: those that depend on each other, and the ranges of the others.

use std::collections::{BTreeMap, BTreeSet};

use super::linear::{Bounds, Constraint, Linear, Unknown, narrow};
use super::random::Random;
use super::{Plan, Planned, SMALL, largest, size_in};
use crate::ir::types::DType;

impl Plan {
    /// The range of integers that no constraint is known of.
    pub(super) fn loose(&self, input: &Planned, number: usize) -> (i64, i64) {
        let (low, high) = match self.trace.limits.get(&number) {
            // A length: at least half of what there is.
            Some(limit) => (limit - limit / 2, *limit),
            None => (0, SMALL),
        };
        let high = high.min(largest(input.dtype));
        (low.min(high), high)
    }

    /// Chooses the integers that depend on each other, and narrows the others.
    pub(super) fn integers(
        &self,
        seed: u64,
        sample: usize,
        call: usize,
        shapes: &[Vec<usize>],
    ) -> Integers {
        let with_sizes =
            |sum: &Linear| sum.with(&|unknown| size_in(&self.inputs, Some(shapes), unknown));
        let constraints: Vec<Constraint> = self
            .trace
            .constraints
            .iter()
            .map(|constraint| Constraint {
                sum: with_sizes(&constraint.sum),
                ..constraint.clone()
            })
            .collect();
        let mut bounds = Bounds::new();
        for unknown in constraints.iter().flat_map(|c| c.sum.terms.keys()) {
            if let Unknown::Element { input, .. } = unknown {
                let dtype = self.inputs.get(*input).map_or(DType::Int32, |i| i.dtype);
                bounds.insert(*unknown, (0, largest(dtype)));
            }
        }
        let widest = (0, i64::from(i32::MAX));
        narrow(&constraints, &mut bounds, widest);

        let mut chosen: BTreeMap<Unknown, i64> = BTreeMap::new();
        let mut offset = None;
        // Places in states first: they advance from call to call, all else follows.
        for position in &self.trace.positions {
            let begin = with_sizes(&position.begin);
            let end = with_sizes(&position.end);
            let Some(unknown) = begin.terms.keys().next().copied() else {
                offset = offset.or(begin.as_constant().filter(|at| *at > 0));
                continue;
            };
            let step = end.plus(&begin, -1).and_then(|span| span.as_constant());
            if !chosen.contains_key(&unknown) {
                let (low, high) = bounds.get(&unknown).copied().unwrap_or((0, SMALL));
                // The first sample starts at the beginning, others anywhere.
                let mut random = Random::new(seed, [sample as u64, u64::MAX, key(unknown)]);
                let start = if sample == 0 {
                    low
                } else {
                    random.between(low, high)
                };
                let step = step.or(position.length).unwrap_or(1).max(1);
                let advance = step.saturating_mul(call as i64);
                let span = high.saturating_sub(low).saturating_add(1).max(1);
                let value = low + (start - low).saturating_add(advance) % span;
                fix(unknown, value, &mut chosen, &mut bounds);
                narrow(&constraints, &mut bounds, widest);
            }
            let begin = begin.with(&|unknown| chosen.get(&unknown).copied());
            offset = offset.or(begin.as_constant());
        }
        let joint: BTreeSet<Unknown> = constraints
            .iter()
            .filter(|constraint| constraint.sum.terms.len() > 1)
            .flat_map(|constraint| constraint.sum.terms.keys().copied())
            .collect();
        for unknown in joint {
            if !chosen.contains_key(&unknown) {
                let (low, high) = tame(bounds.get(&unknown).copied().unwrap_or((0, SMALL)));
                let parts = [sample as u64, call as u64, key(unknown)];
                let value = Random::new(seed, parts).between(low, high);
                fix(unknown, value, &mut chosen, &mut bounds);
                narrow(&constraints, &mut bounds, widest);
            }
        }
        Integers {
            chosen,
            bounds,
            offset,
        }
    }
}

/// The integers of one call.
pub(super) struct Integers {
    chosen: BTreeMap<Unknown, i64>,
    bounds: Bounds,
    /// How many places of the state lie before what the call writes.
    pub(super) offset: Option<i64>,
}

impl Integers {
    pub(super) fn chosen(&self, input: usize, at: usize) -> Option<i64> {
        let one = Unknown::Element {
            input,
            at: Some(at),
        };
        let all = Unknown::Element { input, at: None };
        let found = self.chosen.get(&one).or_else(|| self.chosen.get(&all));
        found.copied()
    }

    pub(super) fn bounds(&self, input: usize, at: usize) -> Option<(i64, i64)> {
        let one = Unknown::Element {
            input,
            at: Some(at),
        };
        let all = Unknown::Element { input, at: None };
        let found = self.bounds.get(&one).or_else(|| self.bounds.get(&all));
        found.copied().map(tame)
    }
}

/// A range without an end becomes a small one.
fn tame((low, high): (i64, i64)) -> (i64, i64) {
    if high >= i64::from(i32::MAX) {
        (low, low.saturating_add(SMALL))
    } else {
        (low, high)
    }
}

fn fix(unknown: Unknown, value: i64, chosen: &mut BTreeMap<Unknown, i64>, bounds: &mut Bounds) {
    chosen.insert(unknown, value);
    bounds.insert(unknown, (value, value));
}

/// A number for the stream of an unknown's random numbers.
fn key(unknown: Unknown) -> u64 {
    match unknown {
        Unknown::Element { input, at } => ((input as u64) << 32) + at.map_or(0, |at| at as u64 + 1),
        Unknown::Size { input, axis } => ((input as u64) << 32) + (1 << 31) + axis as u64,
    }
}
