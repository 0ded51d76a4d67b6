//! The report of `milwright optimize --report`.

use std::path::Path;

use serde::Serialize;

use super::verify::Judgement;
use crate::pass::PassRun;

/// The report; its form is a contract with scripts.
#[derive(Serialize)]
pub(super) struct Report<'r> {
    version: u32,
    input: String,
    output: Option<String>,
    passes: Vec<Row>,
    ops_before: usize,
    ops_after: usize,
    /// What a verification found; null where none was asked for.
    verified: Option<&'r Judgement>,
}

#[derive(Serialize)]
struct Row {
    id: &'static str,
    rewrites: usize,
    missed: usize,
    ms: f64,
}

impl<'r> Report<'r> {
    pub(super) fn new(
        input: &Path,
        output: Option<&Path>,
        runs: &[PassRun],
        ops: (usize, usize),
        verified: Option<&'r Judgement>,
    ) -> Self {
        Self {
            version: 1,
            input: input.display().to_string(),
            output: output.map(|path| path.display().to_string()),
            passes: runs
                .iter()
                .map(|run| Row {
                    id: run.id,
                    rewrites: run.rewrites,
                    missed: run.missed,
                    ms: (run.time.as_secs_f64() * 1e6).round() / 1e3,
                })
                .collect(),
            ops_before: ops.0,
            ops_after: ops.1,
            verified,
        }
    }
}
