//! The operations that a report of `milwright bisect --format json` says depart from fp32.

use std::fs;

use serde::Deserialize;

#[derive(Deserialize)]
struct Report {
    first_not_finite: Option<Entry>,
    first: Vec<Entry>,
    worst_local: Vec<Entry>,
    worst_accumulated: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    name: String,
}

/// The names of the values, each once: the first that is not finite, the first that have departed, those
/// that are worst by themselves, those that are worst altogether.
///
/// # Errors
///
/// In a few words, if the file cannot be read or is something else.
pub(super) fn read(file: &str) -> Result<Vec<String>, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("cannot read {file}: {error}"))?;
    let report: Report = serde_json::from_str(&text).map_err(|error| {
        format!(
            "{file} is no report of `milwright bisect --format json` about a precision (without \
             passes): {error}"
        )
    })?;
    let mut names: Vec<String> = Vec::new();
    let entries = report
        .first_not_finite
        .into_iter()
        .chain(report.first)
        .chain(report.worst_local)
        .chain(report.worst_accumulated);
    for entry in entries {
        if !names.contains(&entry.name) {
            names.push(entry.name);
        }
    }
    Ok(names)
}
