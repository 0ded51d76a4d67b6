//! MIL text: every form that a program has in it, real programs through it, and broken texts.

mod containers;
mod drafts;
mod everything;
mod literals;
mod mutations;
mod roundtrip;
mod sinks;
#[path = "../support/mod.rs"]
mod support;
