//! Rules: what the linter says of what the matchers of passes find.
//!
//! A pass may have rules, and a check is a pass that has nothing but rules. The matcher says what it
//! found with [`Rule::found`], and gives that as an [`Attempt`](super::Attempt), alone or beside a
//! rewrite or a near match.

use super::meta::{Evidence, Target};
use crate::ir::NodeId;

/// How bad a finding is, the least bad first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Worth to know.
    Info,
    /// Likely to be wrong or slow.
    Warning,
    /// Wrong.
    Error,
}

impl Severity {
    /// All severities, the least bad first.
    pub const ALL: [Self; 3] = [Self::Info, Self::Warning, Self::Error];

    /// The word in reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }

    /// This severity for every target.
    pub const fn everywhere(self) -> Severities {
        match self {
            Self::Info => &[
                (Target::CoreMl, Self::Info),
                (Target::AneDirect, Self::Info),
            ],
            Self::Warning => &[
                (Target::CoreMl, Self::Warning),
                (Target::AneDirect, Self::Warning),
            ],
            Self::Error => &[
                (Target::CoreMl, Self::Error),
                (Target::AneDirect, Self::Error),
            ],
        }
    }
}

/// How bad something is for each target; for a target that is not listed it is nothing to speak of.
pub type Severities = &'static [(Target, Severity)];

/// What the linter says of one kind of finding.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Kebab-case id, which may be that of its pass.
    pub id: &'static str,
    /// One line: what is found.
    pub summary: &'static str,
    /// Which failure was seen, on which hardware, by whom.
    pub why: &'static str,
    /// What to do: the pass that repairs it, or what to change where the model is made.
    pub help: &'static str,
    /// How well the reason is known.
    pub evidence: Evidence,
    /// Where the reason is from, as links.
    pub sources: &'static [&'static str],
    /// How bad it is for each target.
    pub severity: Severities,
    /// Rows of published catalogues that it is about, such as `orion-16`.
    pub catalog: &'static [&'static str],
}

impl Rule {
    /// A finding of this rule. The message says what is there, with the measured numbers: `reduces
    /// 4096 squares of fp16 in one row`.
    pub fn found(&self, message: impl Into<String>) -> Found {
        Found {
            rule: *self,
            message: message.into(),
            at: None,
            parameter: None,
            severity: self.severity,
            is_fixed: true,
        }
    }

    /// How bad its findings usually are for a target.
    pub fn severity_for(&self, target: Target) -> Option<Severity> {
        severity_for(self.severity, target)
    }
}

fn severity_for(severities: Severities, target: Target) -> Option<Severity> {
    severities
        .iter()
        .find(|(listed, _)| *listed == target)
        .map(|(_, severity)| *severity)
}

/// What a matcher found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The rule.
    pub rule: Rule,
    /// What is there.
    pub message: String,
    /// The operation, if it is not the root of the pattern.
    pub at: Option<NodeId>,
    /// The parameter that is to be marked.
    pub parameter: Option<String>,
    severity: Severities,
    is_fixed: bool,
}

impl Found {
    /// Says that it is about another operation of the block than the root of the pattern.
    pub fn at(mut self, node: NodeId) -> Self {
        self.at = Some(node);
        self
    }

    /// Marks a parameter of the operation.
    pub fn parameter(mut self, parameter: impl Into<String>) -> Self {
        self.parameter = Some(parameter.into());
        self
    }

    /// Says that this one is so bad for every target, whatever the rule says.
    pub fn severity(self, severity: Severity) -> Self {
        self.severities(severity.everywhere())
    }

    /// Says how bad this one is for each target, whatever the rule says.
    pub fn severities(mut self, severities: Severities) -> Self {
        self.severity = severities;
        self
    }

    /// Says that the rewrite beside it does not repair it.
    pub fn not_fixed(mut self) -> Self {
        self.is_fixed = false;
        self
    }

    /// How bad it is for a target.
    pub fn severity_for(&self, target: Target) -> Option<Severity> {
        severity_for(self.severity, target)
    }

    /// Whether a rewrite that stands beside it repairs it.
    pub fn is_fixed(&self) -> bool {
        self.is_fixed
    }
}
