//! duplicate-weights: the same data in several blobs of the weight files.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ir::BlobRef;
use crate::ops::Opset;
use crate::pass::options::{self, OptionError, OptionMap};
use crate::pass::{
    Evidence, Exactness, Family, Meta, Pass, Rule, Severity, Target, Whole, WholeAttempt,
    WholeMatcher,
};

/// The check.
pub(super) struct DuplicateWeights;

static META: Meta = Meta {
    id: "duplicate-weights",
    family: Family::Integrity,
    summary: "the same weights stored more than once",
    exactness: Exactness::None,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const DUPLICATE_WEIGHTS: Rule = Rule {
    id: "duplicate-weights",
    summary: META.summary,
    why: "Each copy is downloaded, stored and loaded. It happens to models that are merged from several, \
          as functions or as stages: three models became nine copies.",
    help: "`dedup-consts` lets the operations of a function share one copy. For copies in several \
           functions merge them with coremltools' `save_multifunction`, which stores equal weights once.",
    evidence: META.evidence,
    sources: &[
        "https://github.com/apple/coremltools/issues/1818",
        "https://github.com/apple/coremltools/issues/1832",
    ],
    severity: Severity::Info.everywhere(),
    catalog: &[],
};

/// So many bytes at the start, and in the middle, of blobs of one size are compared before the rest.
const SAMPLE: usize = 64;

/// So many bytes are read in one run to compare blobs in full, which takes some hundredths of a second.
/// Blobs beyond it are taken as equal if their samples are, and the finding says so.
const BUDGET: usize = 32 << 20;

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    /// Smaller blobs are not looked at: nobody minds two equal biases.
    least_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { least_bytes: 16384 }
    }
}

impl Pass for DuplicateWeights {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[DUPLICATE_WEIGHTS]
    }

    fn options(&self) -> OptionMap {
        options::defaults::<Options>()
    }

    fn whole_matcher(
        &self,
        options: &OptionMap,
    ) -> Result<Option<Box<dyn WholeMatcher>>, OptionError> {
        Ok(Some(Box::new(Duplicates(options::read(META.id, options)?))))
    }
}

struct Duplicates(Options);

/// A blob, and the first place that refers to it.
struct Stored<'a> {
    bytes: &'a [u8],
    place: [String; 3],
}

/// Blobs with the same data: the first and the others.
struct Group<'a> {
    first: &'a Stored<'a>,
    copies: Vec<&'a Stored<'a>>,
    /// Whether all bytes were compared.
    is_sure: bool,
}

impl Group<'_> {
    fn waste(&self) -> usize {
        self.copies.len() * self.first.bytes.len()
    }
}

impl WholeMatcher for Duplicates {
    fn attempts(&mut self, whole: &Whole<'_>) -> Vec<WholeAttempt> {
        let mut places: BTreeMap<BlobRef, [String; 3]> = BTreeMap::new();
        whole.program.for_each_value_at(&mut |place, value| {
            if let Some(blob) = value.blob()
                && !places.contains_key(blob)
            {
                let place = [place.function, place.op, place.op_type].map(str::to_owned);
                places.insert(blob.clone(), place);
            }
        });
        let stored: Vec<Stored<'_>> = places
            .into_iter()
            .filter_map(|(blob, place)| {
                let bytes = whole.blobs.bytes(&blob)?;
                (bytes.len() >= self.0.least_bytes.max(1)).then_some(Stored { bytes, place })
            })
            .collect();
        let groups = groups(&stored);
        report(&groups).into_iter().collect()
    }
}

/// What blobs must have in common to be compared: size, and bytes at the start and in the middle.
fn likeness<'a>(blob: &Stored<'a>) -> (usize, &'a [u8], &'a [u8]) {
    let bytes = blob.bytes;
    let sample = |at: usize| &bytes[at..bytes.len().min(at + SAMPLE)];
    (bytes.len(), sample(0), sample(bytes.len() / 2))
}

/// The blobs with equal data, in the order of the file. Sizes alone part nearly all blobs, and the
/// first bytes nearly all others; only what is left is read.
fn groups<'a>(stored: &'a [Stored<'a>]) -> Vec<Group<'a>> {
    let mut sizes: BTreeMap<usize, Vec<&Stored<'_>>> = BTreeMap::new();
    for blob in stored {
        sizes.entry(blob.bytes.len()).or_default().push(blob);
    }
    let mut budget = BUDGET;
    let mut found: Vec<Group<'_>> = Vec::new();
    for blobs in sizes.into_values().filter(|blobs| blobs.len() > 1) {
        let mut alike: BTreeMap<_, Vec<Group<'_>>> = BTreeMap::new();
        for blob in blobs {
            let groups = alike.entry(likeness(blob)).or_default();
            let mut is_placed = false;
            for group in groups.iter_mut() {
                let size = blob.bytes.len();
                let is_sure = size <= budget;
                if is_sure {
                    budget -= size;
                    if group.first.bytes != blob.bytes {
                        continue;
                    }
                }
                group.copies.push(blob);
                group.is_sure &= is_sure;
                is_placed = true;
                break;
            }
            if !is_placed {
                groups.push(Group {
                    first: blob,
                    copies: Vec::new(),
                    is_sure: true,
                });
            }
        }
        let several = alike.into_values().flatten();
        found.extend(several.filter(|group| !group.copies.is_empty()));
    }
    found
}

/// One finding for all of them, at a copy of the group that wastes most.
fn report(groups: &[Group<'_>]) -> Option<WholeAttempt> {
    let worst = groups.iter().max_by_key(|group| group.waste())?;
    let copy = worst.copies.first()?;
    let waste: usize = groups.iter().map(Group::waste).sum();
    let copies: usize = groups.iter().map(|group| group.copies.len()).sum();
    let [first_function, first_op, _] = &worst.first.place;
    let [function, op, op_type] = &copy.place;
    let first = if first_function == function {
        format!("`{first_op}`")
    } else {
        format!("`{first_op}` of function `{first_function}`")
    };
    let blobs = if copies == 1 { "one blob" } else { "blobs" };
    let of = if copies == 1 {
        format!("{blobs} is a copy of another")
    } else {
        format!("{copies} {blobs} are copies of others")
    };
    let doubt = if groups.iter().all(|group| group.is_sure) {
        ""
    } else {
        "; not all of them were read to the end"
    };
    let found = DUPLICATE_WEIGHTS.found(format!(
        "{of}, {waste} bytes in all; this one, of {} bytes, of {first}{doubt}",
        worst.first.bytes.len()
    ));
    let op_type = if op_type.is_empty() {
        "program"
    } else {
        op_type
    };
    Some(WholeAttempt::found([function, op, op_type], found))
}
