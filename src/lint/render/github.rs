//! Findings as commands of GitHub Actions, which shows them beside a run.

use std::io::{self, Write};

use super::Linted;
use crate::pass::Severity;

/// Writes the findings of a model.
pub fn write(out: &mut dyn Write, linted: &Linted<'_>) -> io::Result<()> {
    for finding in &linted.report.findings {
        let command = match finding.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Info => "notice",
        };
        let place = match finding.path() {
            path if path.is_empty() => String::new(),
            path => format!("{path}: "),
        };
        writeln!(
            out,
            "::{command} file={},title={}::{}",
            property(&linted.path.display().to_string()),
            property(&format!("milwright {}", finding.rule.id)),
            data(&format!(
                "{place}{}. {}",
                finding.message, finding.rule.help
            ))
        )?;
    }
    Ok(())
}

/// What stands behind the second pair of colons, with what would end it written otherwise.
fn data(text: &str) -> String {
    text.replace('%', "%25")
        .replace('\r', "%0D")
        .replace('\n', "%0A")
}

/// The value of a property: also without what ends it.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}
