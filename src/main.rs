//! The `milwright` command: parses, dispatches, maps errors to exit codes.

use std::process::ExitCode;

fn main() -> ExitCode {
    milwright::cli::run()
}
