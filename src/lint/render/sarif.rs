//! Findings as SARIF 2.1.0, for code scanning: one run for all models, with the metadata of all rules.
//!
//! A program has no lines, so that a result has the model as its file and the operation as a logical
//! location.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;

use super::Linted;
use crate::lint::finding::Finding;
use crate::lint::selector::rules;
use crate::pass::{Pass, Rule, Severity, Target};

const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";

/// A log.
#[derive(Serialize)]
pub struct Log {
    #[serde(rename = "$schema")]
    schema: &'static str,
    version: &'static str,
    runs: [Run; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Run {
    tool: Tool,
    column_kind: &'static str,
    results: Vec<SarifResult>,
}

#[derive(Serialize)]
struct Tool {
    driver: Driver,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Driver {
    name: &'static str,
    version: &'static str,
    semantic_version: &'static str,
    rules: Vec<Descriptor>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    id: &'static str,
    short_description: Message,
    full_description: Message,
    help: Message,
    default_configuration: Configuration,
    properties: Properties,
}

#[derive(Serialize)]
struct Configuration {
    level: &'static str,
}

#[derive(Serialize)]
struct Properties {
    tags: Vec<String>,
    evidence: &'static str,
    sources: &'static [&'static str],
}

#[derive(Serialize)]
struct Message {
    text: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SarifResult {
    rule_id: &'static str,
    rule_index: usize,
    level: &'static str,
    message: Message,
    locations: [Location; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Location {
    physical_location: Physical,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    logical_locations: Vec<Logical>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Physical {
    artifact_location: Artifact,
}

#[derive(Serialize)]
struct Artifact {
    uri: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Logical {
    name: String,
    fully_qualified_name: String,
    kind: &'static str,
}

impl Log {
    /// What was found in models, with the rules of these passes.
    pub fn of(models: &[Linted<'_>], passes: &[&'static dyn Pass]) -> Self {
        let known: Vec<(&dyn Pass, &Rule)> = rules(passes)
            .map(|(pass, rule)| (pass as &dyn Pass, rule))
            .collect();
        let mut results = Vec::new();
        for linted in models {
            for finding in &linted.report.findings {
                let index = known
                    .iter()
                    .position(|(_, rule)| rule.id == finding.rule.id);
                results.push(result(finding, index.unwrap_or_default(), linted.path));
            }
        }
        let target = models
            .first()
            .map_or(Target::CoreMl, |linted| linted.setup.target);
        Self {
            schema: SCHEMA,
            version: "2.1.0",
            runs: [Run {
                tool: Tool {
                    driver: Driver {
                        name: "milwright",
                        version: env!("CARGO_PKG_VERSION"),
                        semantic_version: env!("CARGO_PKG_VERSION"),
                        rules: known
                            .iter()
                            .map(|(pass, rule)| descriptor(*pass, rule, target))
                            .collect(),
                    },
                },
                column_kind: "unicodeCodePoints",
                results,
            }],
        }
    }
}

fn level(severity: Option<Severity>) -> &'static str {
    match severity {
        Some(Severity::Error) => "error",
        Some(Severity::Warning) => "warning",
        Some(Severity::Info) => "note",
        None => "none",
    }
}

fn text(text: impl Into<String>) -> Message {
    Message { text: text.into() }
}

fn descriptor(pass: &dyn Pass, rule: &Rule, target: Target) -> Descriptor {
    let mut tags = vec![pass.meta().family.name().to_owned()];
    tags.extend(rule.catalog.iter().map(|row| (*row).to_owned()));
    Descriptor {
        id: rule.id,
        short_description: text(rule.summary),
        full_description: text(rule.why),
        help: text(rule.help),
        default_configuration: Configuration {
            level: level(rule.severity_for(target)),
        },
        properties: Properties {
            tags,
            evidence: rule.evidence.name(),
            sources: rule.sources,
        },
    }
}

fn result(finding: &Finding, rule_index: usize, path: &Path) -> SarifResult {
    let full = finding.path();
    let logical = Logical {
        name: match finding.place.op.as_str() {
            "" => finding.place.function.clone(),
            op => op.to_owned(),
        },
        kind: if finding.place.op.is_empty() {
            "function"
        } else {
            "element"
        },
        fully_qualified_name: full.clone(),
    };
    SarifResult {
        rule_id: finding.rule.id,
        rule_index,
        level: level(Some(finding.severity)),
        message: text(format!("{}. {}", finding.message, finding.rule.help)),
        locations: [Location {
            physical_location: Physical {
                artifact_location: Artifact { uri: uri(path) },
            },
            logical_locations: if full.is_empty() {
                Vec::new()
            } else {
                vec![logical]
            },
        }],
    }
}

/// A path as a reference: `/` between the parts, and what may not stand in one as `%` and two digits.
fn uri(path: &Path) -> String {
    let text = path.to_string_lossy().replace('\\', "/");
    let mut uri = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => {
                uri.push(char::from(byte));
            }
            // Writing to a string cannot fail.
            _ => drop(write!(uri, "%{byte:02X}")),
        }
    }
    uri
}
