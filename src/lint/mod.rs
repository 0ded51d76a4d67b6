//! The linter: runs the rules of all passes over a model and says what they find.
//!
//! A [`Linter`] is made of what is asked for ([`Request`], from the command line) and of a
//! configuration file ([`Config`]). It looks at a model and gives a [`Report`]: [`Finding`]s, whose
//! places are symbolic, and which become text only in [`render`].
//!
//! From what the rules find to what is shown:
//!
//! 1. A finding for which the rule is silent on the target falls away, and so does one of a rule that is
//!    not selected, or is ignored.
//! 2. `[severity]` of the configuration may make it better or worse.
//! 3. An `[[ignore]]` of the configuration that it meets takes it away. One that nothing meets is
//!    reported.
//! 4. A [`Baseline`] takes away as many findings of a rule at an operation as it knows.

mod baseline;
mod config;
mod finding;
mod glob;
mod linter;
mod orion;
pub mod placement;
pub mod render;
mod selector;

#[cfg(test)]
mod tests;

pub use baseline::{Baseline, BaselineError};
pub use config::{Config, ConfigError, Ignore};
pub use finding::{Finding, Summary};
pub use linter::{Linter, Report, Request, Setup};
pub use orion::{CATALOG, Row, RowReport, Seen, Verdict};
pub use selector::{Selection, UnknownWord};
