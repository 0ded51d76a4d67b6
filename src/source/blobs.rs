//! References of programs into weight files, and whether they meet what they declare.

use super::{FileError, Missing, ModelFile};
use crate::ir::{self, BlobRef, DType, Value};
use crate::model::Model;
use crate::package::weights::{self, BlobDType, WeightsError};

/// Where the data of blobs comes from.
pub trait Blobs: Sync {
    /// The packed data at a blob reference; `None` if the file or the blob cannot be read.
    fn bytes(&self, blob: &BlobRef) -> Option<&[u8]>;

    /// Whether the reference points at data of this type and size. Where nothing is known of the
    /// files, nothing is wrong with them.
    fn check(&self, _: &BlobRef, _: DType, _elements: u64) -> Result<(), WeightsError> {
        Ok(())
    }
}

impl Blobs for weights::Weights {
    fn bytes(&self, blob: &BlobRef) -> Option<&[u8]> {
        Some(self.blob(&blob.file, blob.offset).ok()?.data)
    }

    fn check(&self, blob: &BlobRef, dtype: DType, elements: u64) -> Result<(), WeightsError> {
        match blob_dtype(dtype) {
            Some(dtype) => {
                weights::Weights::check(self, &blob.file, blob.offset, dtype, elements).map(|_| ())
            }
            None => Ok(()),
        }
    }
}

/// No weight files at hand.
#[derive(Clone, Copy, Debug)]
pub struct NoBlobs;

impl Blobs for NoBlobs {
    fn bytes(&self, _: &BlobRef) -> Option<&[u8]> {
        None
    }
}

impl ModelFile {
    /// Whether the program refers to a weight file that is not there (or is a Git LFS pointer).
    pub fn first_missing(&self) -> Option<WeightsError> {
        blob_references(&self.model).iter().find_map(|blob| {
            match self.weights().blob(&blob.file, blob.offset) {
                Err(error) if is_missing(&error) => Some(error),
                _ => None,
            }
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
}

/// Whether the file is not there, or only a Git LFS pointer to it.
pub(super) fn is_missing(error: &WeightsError) -> bool {
    matches!(
        error,
        WeightsError::Missing { .. } | WeightsError::LfsPointer { .. }
    )
}

/// The blob references of all programs, in a fixed order, repeated ones included.
pub(super) fn blob_references(model: &Model) -> Vec<weights::BlobRef> {
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
pub(crate) fn blob_dtype(dtype: DType) -> Option<BlobDType> {
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
