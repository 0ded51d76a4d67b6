//! Where the commands write: results to standard output, the rest to standard error.

use std::io::{self, Write};

use super::args::{Cli, Color};
use super::text_errors;
use crate::source::FileError;

/// Bold red, for the word `error`.
const ERROR: &str = "\u{1b}[1;31m";
/// Bold yellow, for the word `warning`.
const WARNING: &str = "\u{1b}[1;33m";
/// Back to normal.
const RESET: &str = "\u{1b}[0m";

/// A number with its noun, such as `1 rewrite` and `2 matches`.
pub(super) fn count(number: usize, noun: &str) -> String {
    format!("{number} {}", plural(number, noun))
}

/// A noun in the form for this number.
pub(super) fn plural(number: usize, noun: &str) -> String {
    let ending = match (number, noun.ends_with("ch")) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{noun}{ending}")
}

/// The streams and how to use them.
pub(super) struct Output {
    color: anstream::ColorChoice,
    quiet: bool,
    verbose: bool,
}

impl Output {
    pub(super) fn new(cli: &Cli) -> Self {
        Self {
            color: match cli.color {
                Color::Auto => anstream::ColorChoice::Auto,
                Color::Always => anstream::ColorChoice::Always,
                Color::Never => anstream::ColorChoice::Never,
            },
            quiet: cli.quiet,
            verbose: cli.verbose,
        }
    }

    /// True if only results and errors are wanted.
    pub(super) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// True if more than usual is wanted.
    pub(super) fn is_verbose(&self) -> bool {
        self.verbose
    }

    /// A buffered writer to standard output.
    pub(super) fn results(&self) -> impl Write {
        io::BufWriter::new(anstream::AutoStream::new(io::stdout().lock(), self.color))
    }

    /// A line for the reader that is neither result nor problem; not with `--quiet`.
    pub(super) fn note(&self, text: &str) {
        if !self.quiet {
            self.diagnostic(text);
        }
    }

    /// A warning; not with `--quiet`.
    pub(super) fn warning(&self, text: &str) {
        if !self.quiet {
            self.diagnostic(&format!("{WARNING}warning{RESET}: {text}"));
        }
    }

    /// An error with its causes on one line, what is wrong in a text with the lines it is in. A cause
    /// that an error has already told is not told again.
    pub(super) fn error(&self, error: &anyhow::Error) {
        let in_text = error.chain().find_map(|cause| match cause.downcast_ref() {
            Some(FileError::Text(errors)) => Some(errors),
            _ => None,
        });
        if let Some(errors) = in_text {
            self.diagnostic(&text_errors::render(errors));
            return;
        }
        let mut text = String::new();
        for cause in error.chain().map(ToString::to_string) {
            if !text.ends_with(&cause) {
                if !text.is_empty() {
                    text.push_str(": ");
                }
                text.push_str(&cause);
            }
        }
        self.diagnostic(&format!("{ERROR}error{RESET}: {text}"));
    }

    /// A line that was asked for, on standard error whatever `--quiet` says.
    pub(super) fn diagnostic(&self, text: &str) {
        let mut stream = anstream::AutoStream::new(io::stderr().lock(), self.color);
        // There is nowhere left to report that standard error is gone.
        let _ = writeln!(stream, "{text}");
    }
}
