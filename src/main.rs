//! The `milwright` command: parses, dispatches, maps errors to exit codes.

use std::process::ExitCode;

/// A program is a great many small objects: with the system's allocator, a quarter of the time of a
/// large model goes into it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    milwright::cli::run()
}
