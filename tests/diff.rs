//! What `diff` says about pairs of programs.
//!
//! What each pass does to the test packages is kept in `snapshots/diff/<pass>.snap`;
//! `INSTA_UPDATE=always cargo test --test diff` writes them anew.

#[path = "diff/command.rs"]
mod command;
#[path = "diff/packages.rs"]
mod packages;
#[path = "support/mod.rs"]
mod support;
#[path = "diff/texts.rs"]
mod texts;
