//! Writing a model with its package: where each blob goes, then the package.

use std::path::Path;
use std::sync::Arc;

use super::blobs::{blob_dtype, blob_references};
use super::{FileError, Missing, ModelFile, Place};
use crate::ir::{self, Content};
use crate::model::Placements;
use crate::package::weights;
use crate::package::{SaveOptions, WeightsPlan};

/// File name of new weights in a model that had none, as coremltools spells it.
const USUAL_WEIGHT_FILE: &str = "@model_path/weights/weight.bin";

impl ModelFile {
    /// Writes the package with the model as it is now. Nothing is written if anything is wrong.
    /// `progress` is told the bytes written since its last call, and the bytes to write in all.
    pub fn save(
        &self,
        out: &Path,
        missing: Missing,
        options: &SaveOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), FileError> {
        let Place::Package(package) = &self.place else {
            return Err(FileError::ReadOnly { kind: self.kind() });
        };
        if !self.is_writable() {
            return Err(FileError::ReadOnly { kind: self.kind() });
        }
        let (plan, placements) = self.plan(missing)?;
        let bytes = self.model.encode(&placements)?;
        let total = package.output_bytes(bytes.len() as u64, &plan);
        let mut progress = |written| progress(written, total);
        package.save(out, &bytes, &plan, options, &mut progress)?;
        Ok(())
    }

    /// Where all blobs go.
    fn plan(&self, missing: Missing) -> Result<(WeightsPlan, Placements), FileError> {
        let used = blob_references(&self.model);
        let file = used
            .first()
            .or(self.original.first())
            .map_or(USUAL_WEIGHT_FILE, |blob| blob.file.as_str());
        let mut made = Vec::new();
        self.model.for_each_blob(|value| {
            if let Content::New(new) = &value.content {
                made.push(new.clone());
            }
        });
        let new: Vec<weights::NewBlob> = made
            .iter()
            .map(|blob| {
                Ok(weights::NewBlob {
                    file: file.to_owned(),
                    dtype: blob_dtype(blob.dtype).ok_or_else(|| FileError::Unstorable {
                        place: "a constant made by a pass: ".to_owned(),
                        dtype: blob.dtype.word(),
                    })?,
                    elements: blob.elements,
                    bytes: Arc::clone(&blob.bytes),
                })
            })
            .collect::<Result<_, FileError>>()?;
        let allow = missing == Missing::Allow;
        let plan = WeightsPlan::new(self.weights(), &self.original, &used, &new, allow).map_err(
            |source| FileError::Weights {
                place: String::new(),
                source,
            },
        )?;
        let mut placements = Placements::default();
        for blob in used {
            if let Some(offset) = plan.offset(&blob.file, blob.offset) {
                let old = ir::BlobRef {
                    file: blob.file,
                    offset: blob.offset,
                };
                placements.move_blob(old, offset);
            }
        }
        for (blob, place) in made.iter().zip(plan.new_blobs()) {
            let place = ir::BlobRef {
                file: place.file.clone(),
                offset: place.offset,
            };
            placements.place_new(blob, place);
        }
        Ok((plan, placements))
    }
}
