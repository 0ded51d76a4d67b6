//! A comparison as text for people, and as JSON for programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;

use serde::Serialize;

use super::edits::{Comparison, Edit, Kind};
use super::numbers::ElementDifference;

/// What a comparison without edits says.
const SAME: &str = "no differences";

/// Writes a comparison for people: one line for each edit under a line for each function, and a
/// summary.
///
/// # Errors
/// If the sink fails.
pub fn write_text(out: &mut dyn io::Write, comparison: &Comparison) -> io::Result<()> {
    let mut previous = None;
    for edit in &comparison.edits {
        let group = (&edit.place.stage, &edit.place.function);
        if previous.is_some_and(|previous| previous != group) {
            writeln!(out)?;
        }
        previous = Some(group);
        write_edit(out, edit)?;
    }
    if !comparison.edits.is_empty() {
        writeln!(out)?;
    }
    writeln!(out, "{}", summary(&comparison.edits))
}

/// The text of a comparison, as [`write_text`] writes it.
pub fn text(comparison: &Comparison) -> String {
    let mut bytes = Vec::new();
    // A buffer takes everything.
    let _ = write_text(&mut bytes, comparison);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn write_edit(out: &mut dyn io::Write, edit: &Edit) -> io::Result<()> {
    let place = &edit.place;
    let (before, after) = (edit.before.as_deref(), edit.after.as_deref());
    if edit.kind == Kind::Op {
        if let Some(before) = before {
            writeln!(out, "- {place}: {before}")?;
        }
        if let Some(after) = after {
            let mut place = place.clone();
            if before.is_some() {
                place.op_type.clone_from(&edit.subject);
            }
            writeln!(out, "+ {place}: {after}")?;
        }
        return Ok(());
    }
    let mut line = format!("{place}: {}", what(edit));
    let change = match (before, after) {
        (Some(before), Some(after)) => format!("{before} → {after}"),
        (Some(before), None) => format!("removed, was {before}"),
        (None, Some(after)) => format!("added, {after}"),
        (None, None) => String::new(),
    };
    // A string takes everything.
    let _ = match (line.ends_with(' '), change.as_str()) {
        (_, "") => Ok(()),
        (true, change) => write!(line, "{change}"),
        (false, change) => write!(line, ": {change}"),
    };
    if let Some(elements) = &edit.elements {
        let separator = if change.is_empty() { ": " } else { "; " };
        line.push_str(separator);
        line.push_str(&elements_text(elements));
    } else if change.is_empty() {
        line.push_str(match edit.kind {
            Kind::Weights => ": other data",
            _ => ": another one",
        });
    }
    let sign = match (before, after) {
        (Some(_), None) => '-',
        (None, Some(_)) => '+',
        _ => ' ',
    };
    writeln!(out, "{sign} {line}")
}

/// What an edit is about, with its subject.
fn what(edit: &Edit) -> String {
    let subject = &edit.subject;
    match edit.kind {
        Kind::Op => String::new(),
        Kind::Result if subject.is_empty() => "type".to_owned(),
        Kind::Result => format!("type of {subject}"),
        Kind::Name => "renamed ".to_owned(),
        Kind::Order => format!("access to state {subject} moved, the write before it"),
        Kind::Sequence => format!("order of {subject}"),
        Kind::Blocks => "number of nested blocks".to_owned(),
        Kind::Function if edit.before.is_some() && edit.after.is_some() => "renamed ".to_owned(),
        Kind::Parameter | Kind::Program | Kind::Model => subject.clone(),
        Kind::Feature => format!("described {subject}"),
        kind if subject.is_empty() => kind.word().to_owned(),
        kind => format!("{} {subject}", kind.word()),
    }
}

fn elements_text(elements: &ElementDifference) -> String {
    let ElementDifference {
        elements: count,
        different,
        nan,
        max_abs,
        at,
        before,
        after,
    } = elements;
    if *different == 0 {
        return format!("all {count} elements are equal");
    }
    let at: Vec<String> = at.iter().map(ToString::to_string).collect();
    let verb = if *different == 1 { "differs" } else { "differ" };
    let mut text = format!(
        "{different} of {count} elements {verb}, by at most {max_abs:?} at [{}]: {before:?} → {after:?}",
        at.join(", ")
    );
    if *nan > 0 {
        let _ = write!(text, "; {nan} of them are NaN on one side");
    }
    text
}

/// How many edits there are of which kind.
fn summary(edits: &[Edit]) -> String {
    if edits.is_empty() {
        return SAME.to_owned();
    }
    let mut counts: BTreeMap<(Kind, &str), usize> = BTreeMap::new();
    for edit in edits {
        let done = match edit.kind {
            _ if edit.is_removal() => "removed",
            _ if edit.is_addition() => "added",
            Kind::Order => "moved",
            Kind::Op => "replaced",
            _ => "changed",
        };
        *counts.entry((edit.kind, done)).or_default() += 1;
    }
    let counts: Vec<String> = counts
        .iter()
        .map(|((kind, done), count)| {
            let word = kind.word();
            let plural = match (count, word.strip_suffix(['s', 'y'])) {
                (1, _) => word.to_owned(),
                (_, Some(stem)) if word.ends_with('y') => format!("{stem}ies"),
                (_, Some(stem)) => format!("{stem}ses"),
                (_, None) => format!("{word}s"),
            };
            format!("{count} {plural} {done}")
        })
        .collect();
    let word = if edits.len() == 1 {
        "difference"
    } else {
        "differences"
    };
    format!("{} {word}: {}", edits.len(), counts.join(", "))
}

/// The form of the JSON; a contract with scripts.
#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    before: &'a str,
    after: &'a str,
    same: bool,
    #[serde(flatten)]
    comparison: &'a Comparison,
}

/// Writes a comparison of two models, called `before` and `after`, as JSON.
///
/// # Errors
/// If the sink fails.
pub fn write_json(
    out: &mut dyn io::Write,
    (before, after): (&str, &str),
    comparison: &Comparison,
) -> io::Result<()> {
    let document = Document {
        version: 1,
        before,
        after,
        same: comparison.is_same(),
        comparison,
    };
    serde_json::to_writer_pretty(&mut *out, &document)?;
    writeln!(out)
}
