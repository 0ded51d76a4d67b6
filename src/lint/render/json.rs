//! Findings as JSON; `docs/schema/lint.schema.json` describes it. One model is an object, several are a
//! list of them.

use serde::Serialize;

use super::Linted;
use crate::lint::finding::Finding;
use crate::lint::orion::{RowReport, Verdict};
use crate::lint::placement::Placement;
use crate::pass::Target;

/// Version of the form.
const VERSION: u32 = 1;

/// One model.
#[derive(Serialize)]
pub struct Document<'r> {
    version: u32,
    model: String,
    target: &'static str,
    findings: Vec<Item<'r>>,
    summary: Counts,
    #[serde(skip_serializing_if = "Option::is_none")]
    catalog: Option<Catalog>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    placement: Vec<Placed<'r>>,
}

#[derive(Serialize)]
struct Item<'r> {
    id: &'static str,
    pass: &'static str,
    severity: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    stage: &'r str,
    function: &'r str,
    op: &'r str,
    op_type: &'r str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameter: Option<&'r str>,
    message: &'r str,
    why: &'static str,
    help: &'static str,
    fix: bool,
    evidence: &'static str,
    sources: &'static [&'static str],
    targets: Vec<&'static str>,
}

#[derive(Serialize)]
struct Counts {
    error: usize,
    warning: usize,
    info: usize,
    ignored: usize,
    known: usize,
}

#[derive(Serialize)]
struct Catalog {
    name: &'static str,
    rows: Vec<CatalogRow>,
}

#[derive(Serialize)]
struct CatalogRow {
    id: String,
    constraint: &'static str,
    verdict: &'static str,
    count: usize,
    first: Option<String>,
    evidence: &'static str,
    note: &'static str,
    fix: Option<&'static str>,
}

/// Where the operations of a function run.
#[derive(Serialize)]
struct Placed<'r> {
    #[serde(skip_serializing_if = "str::is_empty")]
    stage: &'r str,
    function: &'r str,
    ops: ByDevice<usize>,
    weight_bytes: ByDevice<u64>,
    ane_fraction: f64,
    device_changes: usize,
    measured: usize,
    reasons: Vec<Leaves<'r>>,
}

#[derive(Serialize)]
struct ByDevice<T> {
    ane: T,
    gpu: T,
    cpu: T,
}

/// Why operations leave the Neural Engine.
#[derive(Serialize)]
struct Leaves<'r> {
    device: String,
    why: &'r str,
    ops: usize,
    first: &'r str,
}

impl<'r> Document<'r> {
    /// What was found in a model.
    pub fn of(linted: &Linted<'r>) -> Self {
        let report = linted.report;
        let summary = report.summary();
        Self {
            version: VERSION,
            model: linted.path.display().to_string(),
            target: linted.setup.target.name(),
            findings: report.findings.iter().map(item).collect(),
            summary: Counts {
                error: summary.error,
                warning: summary.warning,
                info: summary.info,
                ignored: report.ignored,
                known: report.known,
            },
            catalog: report.catalog.as_deref().map(catalog),
            placement: Vec::new(),
        }
    }

    /// The same, with where the operations of its functions run.
    pub fn with_placement(mut self, placements: &'r [Placement]) -> Self {
        self.placement = placements.iter().map(placed).collect();
        self
    }
}

fn placed(placement: &Placement) -> Placed<'_> {
    let reasons = placement.reasons.iter().map(|reason| Leaves {
        device: reason.device.name().to_lowercase(),
        why: reason.why,
        ops: reason.ops,
        first: &reason.first,
    });
    Placed {
        stage: &placement.stage,
        function: &placement.function,
        ops: by_device(placement.ops),
        weight_bytes: by_device(placement.bytes),
        ane_fraction: placement.ane_fraction(),
        device_changes: placement.changes(),
        measured: placement.measured,
        reasons: reasons.collect(),
    }
}

fn by_device<T>([ane, gpu, cpu]: [T; 3]) -> ByDevice<T> {
    ByDevice { ane, gpu, cpu }
}

fn item(finding: &Finding) -> Item<'_> {
    let rule = &finding.rule;
    Item {
        id: rule.id,
        pass: finding.pass,
        severity: finding.severity.name(),
        stage: &finding.place.stage,
        function: &finding.place.function,
        op: &finding.place.op,
        op_type: &finding.place.op_type,
        parameter: finding.parameter.as_deref(),
        message: &finding.message,
        why: rule.why,
        help: rule.help,
        fix: finding.fix,
        evidence: rule.evidence.name(),
        sources: rule.sources,
        targets: rule
            .severity
            .iter()
            .map(|(target, _)| Target::name(*target))
            .collect(),
    }
}

fn catalog(rows: &[RowReport]) -> Catalog {
    let rows = rows.iter().map(|report| {
        let (count, first) = match &report.verdict {
            Verdict::Applies { count, first } => (*count, Some(first.to_string())),
            _ => (0, None),
        };
        CatalogRow {
            id: report.row.id(),
            constraint: report.row.constraint,
            verdict: report.verdict.word(),
            count,
            first,
            evidence: report.row.evidence.name(),
            note: report.row.note,
            fix: Some(report.row.fix).filter(|fix| !fix.is_empty()),
        }
    });
    Catalog {
        name: "orion",
        rows: rows.collect(),
    }
}
