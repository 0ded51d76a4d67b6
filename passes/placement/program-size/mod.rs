//! program-size: functions with more weights or operations than the Neural Engine's compiler takes.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::ir::{BlobRef, Content, Function, Graph};
use crate::ops::Opset;
use crate::pass::options::{self, OptionError, OptionMap};
use crate::pass::{
    Evidence, Exactness, Family, Meta, Pass, Rule, Severities, Severity, Target, Whole,
    WholeAttempt, WholeMatcher,
};

/// The check.
pub(super) struct ProgramSize;

static META: Meta = Meta {
    id: "program-size",
    family: Family::Placement,
    summary: "functions with more weights or operations than the Neural Engine's compiler takes",
    exactness: Exactness::None,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &["orion-5"],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const WEIGHT_SIZE: Rule = Rule {
    id: "weight-size",
    summary: "a function with more weights than the Neural Engine takes",
    why: "Apple gives 1 GB as the most for a model on iOS; on an iPhone 17 Pro 1.4 GB of weights compile \
          and 1.8 GB do not, run on the GPU instead and end the application, and 1.94 GB ran with nothing \
          on the Neural Engine and no message (CoreML-LLM). On Macs about 2 GB are reported as the most \
          of one program.",
    help: "Quantize the weights, or cut the model into parts; Anemll's have 950 MB.",
    evidence: Evidence::Measured,
    sources: &[
        "https://apple.github.io/coremltools/docs-guides/source/mlmodel-utilities.html",
        "https://github.com/john-rocky/CoreML-LLM",
        "https://github.com/Anemll/Anemll",
    ],
    severity: Severity::Warning.everywhere(),
    catalog: &[],
};

const TOO_MANY_OPS: Rule = Rule {
    id: "too-many-ops",
    summary: "a function with more operations than the Neural Engine's compiler takes",
    why: "A model of 24 layers in one piece ends with \"No space left on device\" in the compiler on iOS \
          26.1, in pieces of 6 it does not (CoreML-LLM); one of about 3200 operations fails to load with \
          -14. There is no fixed number.",
    help: "Cut the model into parts.",
    evidence: Evidence::Measured,
    sources: &["https://github.com/john-rocky/CoreML-LLM"],
    severity: Severity::Warning.everywhere(),
    catalog: &[],
};

const COMPILE_BUDGET: Rule = Rule {
    id: "compile-budget",
    summary: "several functions, each of which is compiled when it is loaded",
    why: "A process is said to compile about 119 programs and then to fail without a word (Orion, row 5); \
          maderix/ANE stops at 100, and the field guide holds 226 in one process.",
    help: "Load functions when they are needed, and free those that are not.",
    evidence: Evidence::Disputed,
    sources: &[
        "https://github.com/mechramc/Orion",
        "https://github.com/maderix/ANE",
        "https://github.com/skyfallsin/apple-neural-engine-field-guide",
    ],
    severity: Severity::Info.everywhere(),
    catalog: META.catalog,
};

/// The compiles at which maderix/ANE starts a new process. Disputed: the rule.
const MANY_COMPILES: usize = 100;

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    /// Operations that a function may have.
    max_ops: usize,
    /// MiB of weights that a function may have on iOS: 0.95 GiB, which Anemll has found to work.
    max_mib: u64,
    /// MiB of weights that a function may have anywhere.
    max_mib_anywhere: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_ops: 3000,
            max_mib: 972,
            max_mib_anywhere: 2048,
        }
    }
}

impl Pass for ProgramSize {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[WEIGHT_SIZE, TOO_MANY_OPS, COMPILE_BUDGET]
    }

    fn options(&self) -> OptionMap {
        options::defaults::<Options>()
    }

    fn whole_matcher(
        &self,
        options: &OptionMap,
    ) -> Result<Option<Box<dyn WholeMatcher>>, OptionError> {
        let options: Options = options::read(META.id, options)?;
        Ok(Some(Box::new(Size(options))))
    }
}

struct Size(Options);

/// The bytes of a function's weights, each blob once.
#[derive(Default)]
struct Weights {
    bytes: u64,
    seen: HashSet<BlobRef>,
}

impl WholeMatcher for Size {
    fn attempts(&mut self, whole: &Whole<'_>) -> Vec<WholeAttempt> {
        let mut attempts = Vec::new();
        let weights = weights(whole);
        for (name, function) in &whole.program.functions {
            let place = [name.as_str(), "", "function"];
            let bytes = weights.get(name).map_or(0, |weights| weights.bytes);
            let mib = bytes >> 20;
            let message = || {
                let (whole, part) = (bytes / GIB, bytes % GIB * 100 / GIB);
                format!("it has {whole}.{part:02} GiB of weights")
            };
            if mib >= self.0.max_mib_anywhere {
                let found = WEIGHT_SIZE.found(message()).severity(Severity::Error);
                attempts.push(WholeAttempt::found(place, found));
            } else if mib >= self.0.max_mib {
                attempts.push(WholeAttempt::found(place, WEIGHT_SIZE.found(message())));
            }
            let count = operations(function);
            if count > self.0.max_ops {
                let found = TOO_MANY_OPS.found(format!("it has {count} operations"));
                attempts.push(WholeAttempt::found(place, found));
            }
        }
        let count = whole.program.functions.len();
        if count > 1 {
            let severities: Severities = match count >= MANY_COMPILES {
                true => Severity::Info.everywhere(),
                // Through Core ML nobody has seen the limit with fewer.
                false => &[(Target::AneDirect, Severity::Info)],
            };
            let found = COMPILE_BUDGET.found(format!("it has {count} functions"));
            attempts.push(WholeAttempt::found(
                ["", "", "program"],
                found.severities(severities),
            ));
        }
        attempts
    }
}

const GIB: u64 = 1 << 30;

fn weights(whole: &Whole<'_>) -> BTreeMap<String, Weights> {
    let mut functions: BTreeMap<String, Weights> = BTreeMap::new();
    whole.program.for_each_value_at(&mut |place, value| {
        // What stands in the program itself is small.
        let bytes = match &value.content {
            Content::Blob(_) => value.tensor_type().and_then(|ty| ty.packed_bytes()),
            Content::New(new) => Some(new.bytes.len() as u64),
            _ => None,
        };
        let Some(bytes) = bytes else { return };
        if !functions.contains_key(place.function) {
            functions.insert(place.function.to_owned(), Weights::default());
        }
        let Some(weights) = functions.get_mut(place.function) else {
            return;
        };
        if value
            .blob()
            .is_none_or(|blob| weights.seen.insert(blob.clone()))
        {
            weights.bytes = weights.bytes.saturating_add(bytes);
        }
    });
    functions
}

/// The operations of a function that compute something, in its largest body.
fn operations(function: &Function) -> usize {
    let bodies = function.specializations.values();
    bodies.map(|body| count(&body.graph)).max().unwrap_or(0)
}

fn count(graph: &Graph) -> usize {
    let ops = graph.ops().map(|(_, op)| op);
    let computing =
        ops.filter(|op| op.op_type() != "const" && !op.op_type().starts_with("constexpr_"));
    computing
        .map(|op| 1 + op.blocks().iter().map(count).sum::<usize>())
        .sum()
}
