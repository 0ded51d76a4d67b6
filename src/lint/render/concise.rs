//! One line for each finding: `path:function/op: severity[id] message`.

use std::io::{self, Write};

use super::Linted;

/// Writes the findings of a model.
pub fn write(out: &mut dyn Write, linted: &Linted<'_>) -> io::Result<()> {
    for finding in &linted.report.findings {
        let place = finding.path();
        let separator = if place.is_empty() { "" } else { ":" };
        writeln!(
            out,
            "{}{separator}{place}: {}[{}] {}",
            linted.path.display(),
            finding.severity.name(),
            finding.rule.id,
            finding.message
        )?;
    }
    Ok(())
}
