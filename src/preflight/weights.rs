//! The constants of a model in numbers.

use std::collections::HashSet;

use super::anatomy::{Anatomy, Class};
use super::report::{LargeWeight, WeightSummary};
use crate::eval::ranges::FunctionRanges;

/// How many of the largest are told.
const LARGEST: usize = 10;

/// Adds the constants of a function; what a `constexpr_*` reads is counted as what it gives.
pub(super) fn add(summary: &mut WeightSummary, anatomy: &Anatomy, ranges: &FunctionRanges) {
    let packed: HashSet<&str> = anatomy
        .members
        .iter()
        .filter(|member| member.op_type.starts_with("constexpr_"))
        .flat_map(|member| &member.operands)
        .map(String::as_str)
        .collect();
    for member in &anatomy.members {
        let is_weight = member.class == Class::Weight && !packed.contains(member.name.as_str());
        // A number that an operation takes as a parameter is no weight.
        let range = ranges.get(&member.name).filter(|range| range.elements > 1);
        let Some(range) = range.filter(|_| is_weight) else {
            continue;
        };
        summary.total_params += range.elements;
        summary.exceed_fp16 += range.overflows;
        summary.not_finite += range.not_finite();
        if range.peak > summary.max_abs {
            summary.max_abs = range.peak;
            summary.max_value.clone_from(&member.name);
        }
        summary.largest.push(LargeWeight {
            value: member.name.clone(),
            max_abs: range.peak,
        });
    }
}

/// Leaves only the largest of the constants that are told one by one.
pub(super) fn keep_largest(summary: &mut WeightSummary) {
    let largest = &mut summary.largest;
    largest.sort_by(|a, b| b.max_abs.total_cmp(&a.max_abs));
    largest.truncate(LARGEST);
}
