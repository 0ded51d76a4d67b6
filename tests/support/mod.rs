//! What several test programs need: the packages to test with, folders and what is in them, and a
//! Python for second opinions.
#![allow(
    dead_code,
    clippy::print_stdout,
    reason = "each test program uses what it needs; a test says what it skips"
)]

pub(crate) mod folders;
pub(crate) mod python;
pub(crate) mod schema;
