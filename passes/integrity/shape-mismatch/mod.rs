//! shape-mismatch: operations whose declared results are not what their arguments make.

use crate::ir::NodeId;
use crate::ops::Opset;
use crate::ops::verify::{self, Severity as Grade};
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Rule, Severity, Target,
    Whole, WholeAttempt, WholeMatcher,
};

/// The check.
pub(super) struct ShapeMismatch;

static META: Meta = Meta {
    id: "shape-mismatch",
    family: Family::Integrity,
    summary: "an operation whose declared result is not what its arguments make",
    exactness: Exactness::None,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Documented,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const SHAPE_MISMATCH: Rule = Rule {
    id: "shape-mismatch",
    summary: META.summary,
    why: "The types follow from the definition of the operation. A program that declares others does \
          not compile, or it runs with the declared shape and other numbers, as when a converter \
          dropped the `squeeze_mask` of a slice.",
    help: "Report it to the converter, and correct the operation or what it is declared as.",
    evidence: META.evidence,
    sources: &[
        "https://apple.github.io/coremltools/source/coremltools.converters.mil.mil.ops.defs.html",
        "https://github.com/apple/coremltools/issues/1710",
    ],
    severity: Severity::Error.everywhere(),
    catalog: &[],
};

const NONPOSITIVE_TILE: Rule = Rule {
    id: "nonpositive-tile",
    summary: "a `tile` whose `reps` has a number below 1",
    why: "The number of copies is positive. PyTorch's `expand(-1)`, which keeps a size, became a `tile` \
          by -1 with coremltools 8, and Metal's graph compiler stops at an assertion.",
    help: "Write the size in place of -1 in the model's source: a `tile` by 1 keeps a size.",
    evidence: Evidence::Reported,
    sources: &["https://github.com/john-rocky/CoreML-Models"],
    severity: Severity::Error.everywhere(),
    catalog: &[],
};

impl Pass for ShapeMismatch {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[SHAPE_MISMATCH, NONPOSITIVE_TILE]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(tile))
    }

    fn whole_matcher(
        &self,
        options: &OptionMap,
    ) -> Result<Option<Box<dyn WholeMatcher>>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Some(Box::new(Types)))
    }
}

/// A `tile` with a number of copies that is none.
fn tile(block: &Block<'_>, node: NodeId) -> Attempt {
    let Some(op) = block.op_of_type(node, "tile") else {
        return Attempt::NoMatch;
    };
    let reps = block.ints_of(op, "reps").unwrap_or_default();
    if reps.iter().all(|copies| *copies > 0) {
        return Attempt::NoMatch;
    }
    NONPOSITIVE_TILE
        .found(format!("`reps` is {reps:?}"))
        .parameter("reps")
        .into()
}

/// What the verifier of types finds.
struct Types;

impl WholeMatcher for Types {
    fn attempts(&mut self, whole: &Whole<'_>) -> Vec<WholeAttempt> {
        verify::verify(whole.program)
            .into_iter()
            .filter(|finding| finding.severity == Grade::Error)
            // The other rule says it better.
            .filter(|finding| finding.op_type != "tile" || !finding.what.contains("`reps` has"))
            .map(|finding| {
                let place = [&*finding.function, &*finding.op, &*finding.op_type];
                WholeAttempt::found(place, SHAPE_MISMATCH.found(&*finding.what))
            })
            .collect()
    }
}
