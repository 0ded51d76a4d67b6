//! What is wrong in a MIL text, shown with the lines it is in.

use std::fmt::Write as _;
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};

use crate::source::TextErrors;
use crate::text::ParseError;

/// Bytes of a line before the fault that are given to the renderer, which shows those near it.
/// Weights may stand in one line of many megabytes.
const BEFORE: usize = 4096;

/// Bytes of a line behind the fault that are shown.
const BEHIND: usize = 60;

/// Renders all errors of a text, and how many there are.
pub(super) fn render(errors: &TextErrors) -> String {
    let renderer = Renderer::styled();
    let mut text = String::new();
    for error in &errors.errors {
        text.push_str(&renderer.render(&[group(&errors.source, error)]));
        text.push_str("\n\n");
    }
    let count = errors.errors.len();
    // Writing to a string cannot fail.
    let _ = write!(text, "{count} error{}", if count == 1 { "" } else { "s" });
    text
}

/// The message, where the fault is, and the line around it.
fn group<'a>(source: &'a str, error: &'a ParseError) -> Group<'a> {
    let title = Level::ERROR.primary_title(error.message.as_str());
    let excerpt = excerpt(source, &error.span);
    let path = error.origin.as_ref();
    let snippet = Snippet::source(excerpt.shown)
        .line_start(error.line)
        .annotation(AnnotationKind::Primary.span(excerpt.span));
    if excerpt.is_cut {
        // The renderer would count the column from the cut.
        let origin = Origin::path(path)
            .line(error.line)
            .char_column(error.column);
        return title.element(origin).element(snippet);
    }
    title.element(snippet.path(path))
}

struct Excerpt {
    shown: String,
    span: Range<usize>,
    /// The line's start is left out.
    is_cut: bool,
}

/// The line that a span begins in, cut short on both sides if it is long, and the span within.
fn excerpt(source: &str, span: &Range<usize>) -> Excerpt {
    let boundary = |mut at: usize, step: isize| {
        at = at.min(source.len());
        while !source.is_char_boundary(at) {
            at = at.saturating_add_signed(step);
        }
        at
    };
    let start = boundary(span.start, -1);
    let line_start = source[..start].rfind('\n').map_or(0, |at| at + 1);
    let line = source[line_start..].lines().next().unwrap_or_default();
    let line_end = (line_start + line.len()).max(start);
    let end = boundary(span.end, 1).clamp(start, line_end);
    let from = boundary(start.saturating_sub(BEFORE), -1).max(line_start);
    let to = boundary(end.min(start + BEHIND) + BEHIND, 1).min(line_end);
    let mut shown = String::new();
    if from > line_start {
        shown.push('…');
    }
    let offset = shown.len();
    shown.push_str(&source[from..to]);
    let within = |at: usize| (at.clamp(from, to) - from) + offset;
    let span = within(start)..within(end);
    if to < line_end {
        shown.push('…');
    }
    Excerpt {
        shown,
        span,
        is_cut: from > line_start,
    }
}
