//! Passes in general: the trait, what a matcher sees and what a rewrite works with, the manager,
//! pipelines, options and remarks. The passes themselves are in `passes/`.

mod block;
mod calibration;
mod edit;
mod manager;
mod matcher;
mod meta;
pub mod options;
mod pipeline;
mod remark;
mod rule;
mod scan;
mod sweep;
pub mod verify;
mod whole;

#[cfg(test)]
mod tests;

pub use block::{Blobs, Block, NoBlobs, Readable, Uniform};
pub use calibration::{Calibration, Needs};
pub use edit::{Edit, EditError};
pub use manager::{Manager, Observer, Outcome, PassRun, RunError, Settings, Silent};
pub use matcher::{Apply, Attempt, Direction, Match, Matcher, Missed, Nowhere, Pass};
pub use meta::{Evidence, Exactness, Family, Meta, Target};
pub use pipeline::{NAMED, Pipeline, PipelineError, Step, nearest};
pub use remark::{Place, Remark, RemarkKind};
pub use rule::{Found, Rule, Severities, Severity};
pub use scan::{Hit, Spot, report, scan};
pub use sweep::is_erasable;
pub use whole::{
    Whole, WholeApply, WholeAttempt, WholeEdit, WholeEnd, WholeError, WholeMatcher, edit_body,
};
