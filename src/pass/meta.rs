//! What a pass says of itself: id, family, exactness, evidence, where it applies.

use crate::ops::Opset;

/// The family of a pass, which is also the name of its folder's parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the families' names say what they are")]
pub enum Family {
    Cleanup,
    Numerics,
    Attention,
    State,
    Placement,
    Quantization,
    Integrity,
}

impl Family {
    /// All families.
    pub const ALL: [Self; 7] = [
        Self::Cleanup,
        Self::Numerics,
        Self::Attention,
        Self::State,
        Self::Placement,
        Self::Quantization,
        Self::Integrity,
    ];

    /// The family's name, as in `passes/<family>/<pass>`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cleanup => "cleanup",
            Self::Numerics => "numerics",
            Self::Attention => "attention",
            Self::State => "state",
            Self::Placement => "placement",
            Self::Quantization => "quantization",
            Self::Integrity => "integrity",
        }
    }
}

/// How exact a rewrite is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Exactness {
    /// Bit-identical at the program's own element types.
    Exact,
    /// Equal in real arithmetic; differs only by rounding.
    Real,
    /// Differs by at most this much, in exact arithmetic.
    Approx(f64),
    /// Inputs, outputs or states change; runs only when asked to.
    Interface,
    /// Nothing is rewritten: the pass is a check.
    None,
}

impl Exactness {
    /// The word in lists and reports: `exact`, `real`, `approx(0.0005)`, `interface`,
    /// `none`.
    pub fn word(self) -> String {
        match self {
            Self::Exact => "exact".to_owned(),
            Self::Real => "real".to_owned(),
            Self::Approx(bound) => format!("approx({bound})"),
            Self::Interface => "interface".to_owned(),
            Self::None => "none".to_owned(),
        }
    }
}

/// Who runs the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// The Core ML framework.
    CoreMl,
    /// Programs that hand MIL text to the private ANE interface.
    AneDirect,
}

impl Target {
    /// All targets.
    pub const ALL: [Self; 2] = [Self::CoreMl, Self::AneDirect];

    /// The word on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::CoreMl => "core-ml",
            Self::AneDirect => "ane-direct",
        }
    }
}

/// How well the reason for a pass is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// By Apple's documentation, the format, or plain mathematics.
    Documented,
    /// A source shows runs.
    Measured,
    /// A source asserts it.
    Reported,
    /// Sources contradict each other.
    Disputed,
}

impl Evidence {
    /// All levels, the best first.
    pub const ALL: [Self; 4] = [
        Self::Documented,
        Self::Measured,
        Self::Reported,
        Self::Disputed,
    ];

    /// The word in lists.
    pub fn name(self) -> &'static str {
        match self {
            Self::Documented => "documented",
            Self::Measured => "measured",
            Self::Reported => "reported",
            Self::Disputed => "disputed",
        }
    }
}

/// What a pass says of itself.
#[derive(Debug)]
pub struct Meta {
    /// Kebab-case id; the folder's name.
    pub id: &'static str,
    /// The family.
    pub family: Family,
    /// One line: what matches and what it becomes.
    pub summary: &'static str,
    /// How exact the rewrite is.
    pub exactness: Exactness,
    /// The first opset in which the pass can do anything.
    pub since: Opset,
    /// Where the pass makes sense.
    pub targets: &'static [Target],
    /// How well its reason is known; the page names the sources.
    pub evidence: Evidence,
    /// Rows of published catalogues that it covers, such as `orion-16`.
    pub catalog: &'static [&'static str],
    /// Whether the default pipeline has it.
    pub default: bool,
    /// Passes that must come before it in a pipeline that has both.
    pub after: &'static [&'static str],
    /// The pass's page, `README.md` of its folder.
    pub page: &'static str,
}

impl Meta {
    /// Whether it rewrites nothing.
    pub fn is_check(&self) -> bool {
        self.exactness == Exactness::None
    }

    /// The opsets in which the pass can do anything, among those that ML Programs use.
    pub fn opsets(&self) -> Vec<&'static str> {
        Opset::ALL
            .into_iter()
            .filter(|opset| *opset >= Opset::CoreML5 && *opset >= self.since)
            .map(Opset::name)
            .collect()
    }
}
