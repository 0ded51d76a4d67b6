//! A model together with the package it stands in: opening, checking its blobs, saving.

use std::path::Path;
use std::sync::Arc;

use super::{Error, Model, Placements};
use crate::ir::{self, Content, DType, Value};
use crate::package::weights::{self, BlobDType, WeightsError, WeightsPlan};
use crate::package::{self, Kind, Package, SaveOptions, Weights};

/// File name of new weights in a model that had none, as coremltools spells it.
const USUAL_WEIGHT_FILE: &str = "@model_path/weights/weight.bin";

/// Why a model could not be opened or saved.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The package.
    #[error(transparent)]
    Package(#[from] package::Error),
    /// The model file in it.
    #[error(transparent)]
    Model(#[from] Error),
    /// A weight file or a blob.
    #[error("{place}{source}")]
    Weights {
        /// The function and operation that refer to the blob, with a colon; empty if none does.
        place: String,
        /// What is wrong.
        source: WeightsError,
    },
    /// A compiled model's program is text, not protobuf.
    #[error(
        "it is a compiled model: milwright finds its metadata and weights, but cannot read the \
         program in `model.mil`; give the .mlpackage it was compiled from"
    )]
    Compiled,
    /// A blob's declared type has no place in a weight file.
    #[error(
        "{place}a tensor of type {dtype} and unknown or unstorable size refers to a weight file"
    )]
    Unstorable {
        /// The operation that refers to the blob, with a colon.
        place: String,
        /// Its declared element type.
        dtype: String,
    },
}

/// What to do about blobs whose data is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Missing weight files are an error.
    Refuse,
    /// Missing weight files stay missing.
    Allow,
}

/// A model in its package.
pub struct ModelFile {
    /// The package.
    pub package: Package,
    /// The model.
    pub model: Model,
    original: Vec<weights::BlobRef>,
}

impl ModelFile {
    /// Opens a package and decodes its model. Blobs are not looked at; see
    /// [`ModelFile::check_blobs`].
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let package = Package::open(path)?;
        if package.kind() == Kind::Compiled {
            return Err(FileError::Compiled);
        }
        let model = Model::decode(package.model_bytes())?;
        let original = blob_references(&model);
        Ok(Self {
            package,
            model,
            original,
        })
    }

    /// The weight files.
    pub fn weights(&self) -> &Arc<Weights> {
        self.package.weights()
    }

    /// Whether the program refers to a weight file that is not there (or is a Git LFS pointer).
    pub fn first_missing(&self) -> Option<WeightsError> {
        self.original
            .iter()
            .find_map(|blob| match self.weights().blob(&blob.file, blob.offset) {
                Err(error) if is_missing(&error) => Some(error),
                _ => None,
            })
    }

    /// Checks that every blob reference of every program points at data of the declared type and
    /// size.
    pub fn check_blobs(&self, missing: Missing) -> Result<(), FileError> {
        for part in self.model.programs() {
            let mut first = Ok(());
            part.program.for_each_value_at(&mut |place, value| {
                if first.is_ok() {
                    first = self.check_blob(place, value, missing);
                }
            });
            first?;
        }
        Ok(())
    }

    fn check_blob(
        &self,
        place: &ir::ValuePlace<'_>,
        value: &Value,
        missing: Missing,
    ) -> Result<(), FileError> {
        let Some(blob) = value.blob() else {
            return Ok(());
        };
        let tensor = value.tensor_type();
        let stored = tensor.and_then(|t| Some((blob_dtype(t.dtype)?, t.elements()?)));
        let Some((dtype, elements)) = stored else {
            return Err(FileError::Unstorable {
                place: format!("{place}: "),
                dtype: tensor.map_or_else(|| "no tensor".to_owned(), |t| t.dtype.word()),
            });
        };
        match self
            .weights()
            .check(&blob.file, blob.offset, dtype, elements)
        {
            Ok(_) => Ok(()),
            Err(error) if is_missing(&error) && missing == Missing::Allow => Ok(()),
            Err(source) => Err(FileError::Weights {
                place: format!("{place}: "),
                source,
            }),
        }
    }

    /// Writes the package with the model as it is now. Nothing is written if anything is wrong.
    /// `progress` is told the bytes written since its last call, and the bytes to write in all.
    pub fn save(
        &self,
        out: &Path,
        missing: Missing,
        options: &SaveOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), FileError> {
        let (plan, placements) = self.plan(missing)?;
        let bytes = self.model.encode(&placements)?;
        let total = self.package.output_bytes(bytes.len() as u64, &plan);
        let mut progress = |written| progress(written, total);
        self.package
            .save(out, &bytes, &plan, options, &mut progress)?;
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

fn is_missing(error: &WeightsError) -> bool {
    matches!(
        error,
        WeightsError::Missing { .. } | WeightsError::LfsPointer { .. }
    )
}

/// The blob references of all programs, in a fixed order, repeated ones included.
fn blob_references(model: &Model) -> Vec<weights::BlobRef> {
    let mut references = Vec::new();
    model.for_each_blob(|value| {
        if let Some(blob) = value.blob() {
            references.push(weights::BlobRef {
                file: blob.file.clone(),
                offset: blob.offset,
            });
        }
    });
    references
}

/// The element type in a weight file; `None` for types that it cannot hold.
fn blob_dtype(dtype: DType) -> Option<BlobDType> {
    Some(match dtype {
        DType::Float16 => BlobDType::Float16,
        DType::Float32 => BlobDType::Float32,
        DType::UInt8 => BlobDType::UInt8,
        DType::Int8 => BlobDType::Int8,
        DType::BFloat16 => BlobDType::BFloat16,
        DType::Int16 => BlobDType::Int16,
        DType::UInt16 => BlobDType::UInt16,
        DType::Int4 => BlobDType::Int4,
        DType::UInt1 => BlobDType::UInt1,
        DType::UInt2 => BlobDType::UInt2,
        DType::UInt4 => BlobDType::UInt4,
        DType::UInt3 => BlobDType::UInt3,
        DType::UInt6 => BlobDType::UInt6,
        DType::Int32 => BlobDType::Int32,
        DType::UInt32 => BlobDType::UInt32,
        DType::Float8E4M3FN => BlobDType::Float8E4M3FN,
        DType::Float8E5M2 => BlobDType::Float8E5M2,
        _ => return None,
    })
}
