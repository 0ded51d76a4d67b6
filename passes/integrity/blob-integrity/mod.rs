//! blob-integrity: references into weight files that do not meet the data they declare.

use std::mem::{Discriminant, discriminant};

use crate::ops::Opset;
use crate::package::weights::WeightsError;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Evidence, Exactness, Family, Meta, Pass, Rule, Severities, Severity, Target, Whole,
    WholeAttempt, WholeMatcher,
};

/// The check.
pub(super) struct BlobIntegrity;

static META: Meta = Meta {
    id: "blob-integrity",
    family: Family::Integrity,
    summary: "a reference into a weight file that does not meet data of its type and size",
    exactness: Exactness::None,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Documented,
    catalog: &["orion-8"],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const BLOB_INTEGRITY: Rule = Rule {
    id: "blob-integrity",
    summary: META.summary,
    why: "The model does not load, or it loads other numbers than those that were meant: an offset \
          names the 64-byte record of a blob, which starts with 0xDEADBEEF and says element type, size \
          and position of the data, all at multiples of 64. Packages are published with a Git LFS \
          pointer in place of the weights, or without them.",
    help: "Fetch the file (`git lfs pull`) or export the model again. Programs written by hand give the \
           offset of the record, 64 for the first, not that of the data behind it.",
    evidence: META.evidence,
    sources: &[
        "https://github.com/apple/coremltools/tree/main/mlmodel/src/MILBlob",
        "https://github.com/apple/ml-stable-diffusion/issues/5",
        "https://github.com/huggingface/swift-coreml-transformers/issues/18",
        "https://github.com/mechramc/Orion",
    ],
    severity: Severity::Error.everywhere(),
    catalog: META.catalog,
};

/// Whoever hands a program to the private interface gives the weights beside it, in memory.
const NOT_THERE: Severities = &[
    (Target::CoreMl, Severity::Error),
    (Target::AneDirect, Severity::Info),
];

impl Pass for BlobIntegrity {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[BLOB_INTEGRITY]
    }

    fn whole_matcher(
        &self,
        options: &OptionMap,
    ) -> Result<Option<Box<dyn WholeMatcher>>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Some(Box::new(Blobs)))
    }
}

/// References with one defect in one file.
struct Defect {
    file: String,
    kind: Discriminant<WeightsError>,
    /// The first of them, and where it stands.
    error: WeightsError,
    place: [String; 3],
    count: usize,
}

struct Blobs;

impl WholeMatcher for Blobs {
    fn attempts(&mut self, whole: &Whole<'_>) -> Vec<WholeAttempt> {
        let mut defects: Vec<Defect> = Vec::new();
        whole.program.for_each_value_at(&mut |place, value| {
            let (Some(blob), Some(tensor)) = (value.blob(), value.tensor_type()) else {
                return;
            };
            let Some(elements) = tensor.elements() else {
                return;
            };
            let Err(error) = whole.blobs.check(blob, tensor.dtype, elements) else {
                return;
            };
            let kind = discriminant(&error);
            let known = defects
                .iter_mut()
                .find(|known| known.kind == kind && known.file == blob.file);
            match known {
                Some(known) => known.count += 1,
                None => defects.push(Defect {
                    file: blob.file.clone(),
                    kind,
                    error,
                    place: [place.function, place.op, place.op_type].map(str::to_owned),
                    count: 1,
                }),
            }
        });
        defects.iter().map(attempt).collect()
    }
}

fn attempt(defect: &Defect) -> WholeAttempt {
    let more = match defect.count {
        1 => String::new(),
        2 => ", and so it is with another reference".to_owned(),
        count => format!(", and so it is with {} more references", count - 1),
    };
    let mut found = BLOB_INTEGRITY.found(format!("{}{more}", defect.error));
    if let WeightsError::Missing { .. } = defect.error {
        found = found.severities(NOT_THERE);
    }
    let [function, op, op_type] = &defect.place;
    let op_type = if op_type.is_empty() {
        "program"
    } else {
        op_type
    };
    WholeAttempt::found([function, op, op_type], found)
}
