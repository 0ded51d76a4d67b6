//! The catalogue of 20 constraints of the Neural Engine in Orion's paper, as data, and what a model has
//! of them.
//!
//! Most rows are about the private interface, which takes MIL text and surfaces; the table is made for
//! both targets whatever the target of the run is. Where other sources contradict a row, it says so.
//! Rules say themselves which rows they are about ([`Rule::catalog`](crate::pass::Rule)).

use super::selector::rules;
use crate::pass::{Evidence, Hit, Pass, Place, Target};

/// Whether a constraint can be seen in a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Rules look for it.
    ByRules,
    /// It cannot, and why.
    Never(&'static str),
}

/// A row of the catalogue.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its number in the paper's table, from 1 to 20.
    pub number: u8,
    /// What it says.
    pub constraint: &'static str,
    /// How well that is known.
    pub evidence: Evidence,
    /// What else is known of it.
    pub note: &'static str,
    /// The pass that makes a program that keeps to it; empty if none does.
    pub fix: &'static str,
    /// Whether it can be seen.
    pub seen: Seen,
}

impl Row {
    /// Its id, as rules name it: `orion-16`.
    pub fn id(&self) -> String {
        format!("orion-{}", self.number)
    }
}

const fn row(
    number: u8,
    constraint: &'static str,
    evidence: Evidence,
    note: &'static str,
    fix: &'static str,
) -> Row {
    Row {
        number,
        constraint,
        evidence,
        note,
        fix,
        seen: Seen::ByRules,
    }
}

const fn unseen(
    number: u8,
    constraint: &'static str,
    evidence: Evidence,
    note: &'static str,
    why: &'static str,
) -> Row {
    Row {
        number,
        constraint,
        evidence,
        note,
        fix: "",
        seen: Seen::Never(why),
    }
}

/// The rows in their order.
pub const CATALOG: [Row; 20] = [
    row(
        1,
        "concat is rejected",
        Evidence::Disputed,
        "private interface; maderix/ANE compiles it with every argument bound to a named const",
        "eliminate-concat",
    ),
    row(
        2,
        "outputs must be of one size",
        Evidence::Measured,
        "private interface; Core ML allocates for itself",
        "uniform-interface",
    ),
    row(
        3,
        "outputs are bound in alphabetical order",
        Evidence::Measured,
        "private interface; Core ML binds by name",
        "order-interface",
    ),
    row(
        4,
        "a surface has at least 49 KB",
        Evidence::Disputed,
        "private interface; others run surfaces of 512 bytes and find that the width must be 32",
        "",
    ),
    row(
        5,
        "a process compiles about 119 times",
        Evidence::Disputed,
        "others hold 226 programs; the model tells only how many functions and programs it has",
        "",
    ),
    row(
        6,
        "scaled_dot_product_attention ignores causal masks",
        Evidence::Disputed,
        "through Core ML masks are said to work; wrong numbers of the fused op are measured on iOS 26",
        "explicit-attention",
    ),
    unseen(
        7,
        "weights are fixed when a program is compiled",
        Evidence::Disputed,
        "Orion itself later reloads weights without compiling",
        "it is about what happens to a compiled program",
    ),
    row(
        8,
        "the offset in BLOBFILE is that of the blob's header, 64 for the first",
        Evidence::Documented,
        "the format has it so; a wrong offset is a broken file for Core ML too",
        "",
    ),
    unseen(
        9,
        "the MIL text is handed over as NSData",
        Evidence::Reported,
        "private interface",
        "it is about a call, not about a program",
    ),
    row(
        10,
        "gelu is no operation",
        Evidence::Disputed,
        "private interface; gelu with a mode is accepted, and Core ML runs it on the Neural Engine",
        "gelu-tanh",
    ),
    unseen(
        11,
        "a program without weights has an empty dictionary of weights, not none",
        Evidence::Reported,
        "private interface",
        "it is about a call, not about a program",
    ),
    row(
        12,
        "the transpose flags of matmul are named consts",
        Evidence::Reported,
        "private interface; coremltools writes named consts",
        "name-immediates",
    ),
    row(
        13,
        "conv has no bias",
        Evidence::Disputed,
        "private interface; Core ML's plans have conv with a bias on the Neural Engine",
        "split-conv-bias",
    ),
    row(
        14,
        "outputs name values that exist",
        Evidence::Documented,
        "holds for every program; where the program itself returns such a name it is refused when it is \
         opened",
        "",
    ),
    unseen(
        15,
        "a restart by exec() takes about 50 ms",
        Evidence::Reported,
        "private interface",
        "it is about a process, not about a program",
    ),
    row(
        16,
        "a convolution with 32 000 channels is rejected",
        Evidence::Measured,
        "32 000 input channels are; as many output channels run",
        "split-wide-conv",
    ),
    row(
        17,
        "a 1x1 convolution is about 3 times as fast as matmul",
        Evidence::Disputed,
        "CoreML-LLM measures no gain through Core ML",
        "linear-to-conv",
    ),
    row(
        18,
        "inputs must be of one size",
        Evidence::Disputed,
        "private interface; others run inputs of unequal size",
        "uniform-interface",
    ),
    row(
        19,
        "inputs are bound in alphabetical order",
        Evidence::Measured,
        "private interface; Core ML binds by name",
        "order-interface",
    ),
    unseen(
        20,
        "a flat buffer is read as packed [1, C, 1, S]",
        Evidence::Measured,
        "private interface",
        "it is about the bytes that a caller writes",
    ),
];

/// What a model has of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is concerned.
    Applies {
        /// How often.
        count: usize,
        /// The first place.
        first: Place,
    },
    /// It is not.
    Clear,
    /// It cannot be seen.
    NotVisible,
    /// There is no rule for the row.
    Unchecked,
}

impl Verdict {
    /// The verdict in a word or two.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Applies { .. } => "applies",
            Self::Clear => "clear",
            Self::NotVisible => "not visible",
            Self::Unchecked => "no rule yet",
        }
    }
}

/// A row with what a model has of it.
#[derive(Clone, Debug)]
pub struct RowReport {
    /// The row.
    pub row: &'static Row,
    /// What the model has.
    pub verdict: Verdict,
}

/// The verdicts for all rows.
pub(super) fn rows(
    hits: &[(usize, &'static str, Hit)],
    passes: &[&'static dyn Pass],
) -> Vec<RowReport> {
    CATALOG
        .iter()
        .map(|row| RowReport {
            row,
            verdict: verdict(row, hits, passes),
        })
        .collect()
}

fn verdict(
    row: &Row,
    hits: &[(usize, &'static str, Hit)],
    passes: &[&'static dyn Pass],
) -> Verdict {
    let id = row.id();
    if row.seen != Seen::ByRules {
        return Verdict::NotVisible;
    }
    if !rules(passes).any(|(_, rule)| rule.catalog.contains(&id.as_str())) {
        return Verdict::Unchecked;
    }
    let speaks = |hit: &Hit| {
        Target::ALL
            .into_iter()
            .any(|target| hit.found.severity_for(target).is_some())
    };
    let mut concerned = hits
        .iter()
        .map(|(_, _, hit)| hit)
        .filter(|hit| hit.found.rule.catalog.contains(&id.as_str()) && speaks(hit));
    match concerned.next() {
        None => Verdict::Clear,
        Some(first) => Verdict::Applies {
            first: first.place.clone(),
            count: 1 + concerned.count(),
        },
    }
}
