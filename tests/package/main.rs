//! Opening, reading and saving packages, as files on disk; no program is looked at.
#![cfg(unix)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests say what they skip"
)]

mod blobs;
mod corpus;
mod failures;
mod open;
mod peer;
mod sample;
mod save;
#[path = "../support/mod.rs"]
mod support;
mod weights;
mod zips;
