//! Findings for people: each with its operation as text and the part that it is about marked.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};
use anstream::adapter::strip_str;

use super::Linted;
use crate::lint::finding::Finding;
use crate::model::Part;
use crate::pass::Severity;
use crate::text;

/// Of each rule, so many findings of a model are shown with their operations.
const SHOWN: usize = 3;

/// Longer operations are cut short.
const WIDEST: usize = 160;

/// How wide reasons are shown.
const TEXT_WIDTH: usize = 90;

/// Writes the findings of a model. `everything` shows each in full; else a rule with many findings shows
/// the first ones and the number of the rest.
pub fn write(out: &mut dyn Write, linted: &Linted<'_>, everything: bool) -> io::Result<()> {
    let mut all: BTreeMap<&str, usize> = BTreeMap::new();
    for finding in &linted.report.findings {
        *all.entry(finding.rule.id).or_default() += 1;
    }
    let parts = linted.model.programs();
    let mut shown: BTreeMap<&str, usize> = BTreeMap::new();
    for finding in &linted.report.findings {
        let shown = shown.entry(finding.rule.id).or_default();
        if *shown >= SHOWN && !everything {
            continue;
        }
        *shown += 1;
        let line = printed(&parts, finding);
        write_one(out, linted, finding, line.as_ref(), *shown == 1)?;
        let rest = all.get(finding.rule.id).map_or(0, |all| all - *shown);
        if *shown == SHOWN && rest > 0 && !everything {
            writeln!(
                out,
                "… and {rest} more of [{}]; --verbose shows them, --format concise lists them\n",
                finding.rule.id
            )?;
        }
    }
    Ok(())
}

fn write_one(
    out: &mut dyn Write,
    linted: &Linted<'_>,
    finding: &Finding,
    line: Option<&Line>,
    is_first: bool,
) -> io::Result<()> {
    let level = match finding.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
        Severity::Info => Level::INFO,
    };
    let path = match finding.path() {
        place if place.is_empty() => linted.path.display().to_string(),
        place => format!("{}:{place}", linted.path.display()),
    };
    let mut group: Group<'_> = level
        .primary_title(finding.message.as_str())
        .id(finding.rule.id)
        .element(Origin::path(path.as_str()));
    if let Some(line) = line {
        group = group.element(
            Snippet::source(line.text.as_str())
                .line_start(line.number)
                .annotation(AnnotationKind::Primary.span(line.marked.clone())),
        );
    }
    // Why and help are the same for all findings of a rule.
    if is_first {
        group = group
            .element(Level::NOTE.message(wrapped(&format!(
                "{} ({})",
                finding.rule.why,
                finding.rule.evidence.name()
            ))))
            .element(Level::HELP.message(wrapped(finding.rule.help)));
    }
    for line in Renderer::styled().render(&[group]).lines() {
        // The renderer announces a snippet by its path, which ours has not: the place is no file.
        if strip_str(line).to_string().trim() != ":::" {
            writeln!(out, "{line}")?;
        }
    }
    writeln!(out)
}

/// A text in lines of at most [`TEXT_WIDTH`] characters, if its words allow.
fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut width = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > TEXT_WIDTH {
            lines.push('\n');
            width = 0;
        } else if width > 0 {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += length;
    }
    lines
}

/// An operation as text.
struct Line {
    text: String,
    /// What the finding is about.
    marked: Range<usize>,
    /// Which statement of its block it is.
    number: usize,
}

/// The operation of a finding, with its parameter marked or, if it has none, its type.
fn printed(parts: &[Part<'_>], finding: &Finding) -> Option<Line> {
    let spot = finding.spot.as_ref()?;
    let graph = finding.graph(parts.get(finding.part)?.program)?;
    let op = graph.op(spot.node)?;
    let whole = text::print_op(graph, spot.node);
    let marked = finding
        .parameter
        .as_deref()
        .and_then(|parameter| parameter_in(&whole, parameter))
        .or_else(|| {
            let call = format!(" = {}(", op.op_type());
            let at = whole.find(&call)? + " = ".len();
            Some(at..at + op.op_type().len())
        })
        .unwrap_or(0..whole.len());
    let order = graph.schedule().ok()?;
    let number = order.iter().position(|node| *node == spot.node)? + 1;
    Some(shortened(&whole, marked, number))
}

/// Where `parameter = argument` stands in an operation's text.
fn parameter_in(text: &str, parameter: &str) -> Option<Range<usize>> {
    let name = format!("{parameter} = ");
    let starts = text.match_indices(&name).map(|(at, _)| at);
    let start = starts.into_iter().find(|at| {
        text.get(..*at)
            .is_some_and(|before| before.ends_with(['(', ' ', '[']))
    })?;
    let rest = text.get(start..)?;
    let mut depth = 0usize;
    let mut is_quoted = false;
    for (at, c) in rest.char_indices() {
        match c {
            '"' => is_quoted = !is_quoted,
            _ if is_quoted => {}
            '(' | '[' | '{' | '<' => depth += 1,
            ')' | ']' | '}' | ',' if depth == 0 => return Some(start..start + at),
            ')' | ']' | '}' | '>' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Some(start..text.len())
}

/// The text around what is marked.
fn shortened(text: &str, marked: Range<usize>, number: usize) -> Line {
    let boundary = |mut at: usize| {
        at = at.min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    if text.len() <= WIDEST {
        return Line {
            text: text.to_owned(),
            marked,
            number,
        };
    }
    let from = if marked.end <= WIDEST {
        0
    } else {
        boundary(marked.start.saturating_sub(WIDEST / 2))
    };
    let to = boundary((from + WIDEST).max(marked.start + 1));
    let mut shown = String::new();
    if from > 0 {
        shown.push('…');
    }
    let offset = shown.len();
    shown.push_str(text.get(from..to).unwrap_or_default());
    let start = marked.start - from + offset;
    let end = marked.end.min(to) - from + offset;
    if to < text.len() {
        shown.push('…');
    }
    Line {
        text: shown,
        marked: start..end.max(start),
        number,
    }
}
