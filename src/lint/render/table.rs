//! The rows of a catalogue as a table for people.

use std::io::{self, Write};

use crate::lint::orion::{RowReport, Seen, Verdict};

/// Writes the rows: number, verdict, what it says, and below what is known of it.
pub fn write(out: &mut dyn Write, rows: &[RowReport]) -> io::Result<()> {
    let width = rows.iter().map(|report| verdict(report).len()).max();
    let width = width.unwrap_or_default();
    writeln!(out, "Orion's catalogue")?;
    for report in rows {
        let row = report.row;
        writeln!(
            out,
            "  {:2}  {:width$}  {}",
            row.number,
            verdict(report),
            row.constraint
        )?;
        let indent = width + 8;
        if let Verdict::Applies { first, .. } = &report.verdict {
            writeln!(out, "{:indent$}first at {first}", "")?;
        }
        let fix = match (&report.verdict, row.fix) {
            (Verdict::Applies { .. }, fix) if !fix.is_empty() => format!("; fix: {fix}"),
            _ => String::new(),
        };
        let reason = match row.seen {
            Seen::Never(why) => format!("; {why}"),
            Seen::ByRules => String::new(),
        };
        writeln!(
            out,
            "{:indent$}{}: {}{reason}{fix}",
            "",
            row.evidence.name(),
            row.note
        )?;
    }
    Ok(())
}

fn verdict(report: &RowReport) -> String {
    match &report.verdict {
        Verdict::Applies { count, .. } => format!("applies ({count})"),
        other => other.word().to_owned(),
    }
}
