//! A finding: a rule, how bad it is here, and where.

use crate::ir::{Graph, Program};
use crate::pass::{Place, Rule, Severity, Spot};

/// One finding.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The rule.
    pub rule: Rule,
    /// Id of the pass whose matcher found it.
    pub pass: &'static str,
    /// How bad it is for the target.
    pub severity: Severity,
    /// What is there.
    pub message: String,
    /// Whether the pass has a rewrite that repairs it.
    pub fix: bool,
    /// Where, by names.
    pub place: Place,
    /// Which program of the model.
    pub part: usize,
    /// The operation; `None` if it is about more than one.
    pub spot: Option<Spot>,
    /// The parameter that is to be marked.
    pub parameter: Option<String>,
}

impl Finding {
    /// The place in short: `stage/function/op`; empty for a finding about the whole model.
    pub fn path(&self) -> String {
        let place = &self.place;
        let parts = [&place.stage, &place.function, &place.op];
        let named: Vec<&str> = parts
            .into_iter()
            .map(String::as_str)
            .filter(|part| !part.is_empty())
            .collect();
        named.join("/")
    }

    /// The block that its operation is in.
    pub fn graph<'p>(&self, program: &'p Program) -> Option<&'p Graph> {
        self.spot.as_ref()?.graph(program)
    }
}

/// How many findings there are of each severity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Errors.
    pub error: usize,
    /// Warnings.
    pub warning: usize,
    /// The rest.
    pub info: usize,
}

impl Summary {
    /// Counts findings.
    pub fn of<'f>(findings: impl IntoIterator<Item = &'f Finding>) -> Self {
        let mut summary = Self::default();
        for finding in findings {
            match finding.severity {
                Severity::Error => summary.error += 1,
                Severity::Warning => summary.warning += 1,
                Severity::Info => summary.info += 1,
            }
        }
        summary
    }

    /// How many findings are as bad as this or worse.
    pub fn at_least(self, severity: Severity) -> usize {
        match severity {
            Severity::Error => self.error,
            Severity::Warning => self.error + self.warning,
            Severity::Info => self.error + self.warning + self.info,
        }
    }
}
