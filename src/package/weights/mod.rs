//! Weight files: blobs that a program refers to by file name and offset.
//!
//! [`Weights`] finds and checks blobs in the files that are there. [`WeightsPlan`] decides what the
//! files of a saved package hold and where each blob comes to lie.

mod error;
mod format;
mod layout;
mod map;
mod plan;
mod reader;
mod sub_byte;

pub use error::WeightsError;
pub use format::{ALIGNMENT, BlobDType, RECORD_BYTES};
pub(super) use layout::{Layout, Piece};
pub use layout::{NewBlob, write_blobs};
pub(super) use map::Map;
pub use plan::{BlobRef, WeightsPlan};
pub use reader::{Blob, Weights};
pub use sub_byte::{pack, sign_extend_int4, unpack};
