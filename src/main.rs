//! The `milwright` command.
fn main() {}
