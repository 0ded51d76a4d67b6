//! Checks a program against the graph's invariants and against the meaning of its operations, and
//! tells what a pass broke from what was so before.

use std::collections::BTreeSet;

use crate::ir::{self, Program};
use crate::ops;

/// Something that does not hold.
pub type Issue = String;

/// What did not hold before any pass ran.
pub type Known = BTreeSet<Issue>;

/// Everything that does not hold of a program.
pub fn issues(program: &Program) -> Known {
    let mut issues: Known = ops::verify::verify(program)
        .into_iter()
        .map(|finding| finding.to_string())
        .collect();
    if let Err(violation) = ir::verify::verify(program) {
        issues.insert(violation.to_string());
    }
    issues
}

/// The first thing that does not hold and was not known before.
pub fn first_new(program: &Program, known: &Known) -> Option<Issue> {
    issues(program)
        .into_iter()
        .find(|issue| !known.contains(issue))
}

/// Text that differs whenever the programs differ.
pub fn fingerprint(program: &Program) -> String {
    let options = crate::text::PrintOptions {
        dialect: Some(crate::text::Dialect::Program13),
        inline_new: true,
        ..crate::text::PrintOptions::default()
    };
    crate::text::program_text(program, &options).unwrap_or_else(|error| error.to_string())
}
