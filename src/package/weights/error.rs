//! What can be wrong with a weight file or a blob, with the file, the position and what to do.

use super::format::BlobDType;

/// Why a weight file or a blob cannot be used. `file` is the name as the program spells it and
/// `offset` the position of the blob's record, in bytes from the start of the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightsError {
    /// The file is not in the package.
    #[error(
        "weight file {file:?} is missing (wanted: the blob at offset {offset}), copy it into the package"
    )]
    Missing {
        /// Weight file.
        file: String,
        /// Position of the blob that was asked for.
        offset: u64,
    },
    /// The file holds the few lines that Git LFS leaves in place of the content.
    #[error(
        "weight file {file:?} is a Git LFS pointer: run `git lfs pull` (wanted: the blob at offset {offset})"
    )]
    LfsPointer {
        /// Weight file.
        file: String,
        /// Position of the blob that was asked for.
        offset: u64,
    },
    /// The name leads out of the package, or nowhere.
    #[error(
        "weight file name {file:?} is empty, absolute, or contains \"..\": it must lie below the model's folder"
    )]
    BadName {
        /// Weight file.
        file: String,
    },
    /// The name is that of the model itself.
    #[error("weight file name {file:?} is that of the model, which holds no blobs")]
    IsTheModel {
        /// Weight file.
        file: String,
    },
    /// The operating system refused to read.
    #[error("weight file {file:?} cannot be read: {reason}")]
    Read {
        /// Weight file.
        file: String,
        /// The system's reason.
        reason: String,
    },
    /// The file is shorter than its header.
    #[error("weight file {file:?} is cut off: {length} bytes, and the header alone takes 64")]
    NoHeader {
        /// Weight file.
        file: String,
        /// Bytes in the file.
        length: u64,
    },
    /// The header's version is not 2.
    #[error("weight file {file:?} is not blob storage of version 2 (its header says {version})")]
    BadVersion {
        /// Weight file.
        file: String,
        /// The version that the header says.
        version: u32,
    },
    /// The reference is not a multiple of 64.
    #[error("weight file {file:?}: blob offset {offset} is not a multiple of 64")]
    Unaligned {
        /// Weight file.
        file: String,
        /// Position of the blob.
        offset: u64,
    },
    /// The reference is to the header, or beyond the file.
    #[error(
        "weight file {file:?}: blob offset {offset} is outside of the file's blobs (the file has {length} bytes)"
    )]
    OutOfRange {
        /// Weight file.
        file: String,
        /// Position of the blob.
        offset: u64,
        /// Bytes in the file.
        length: u64,
    },
    /// No blob starts there.
    #[error(
        "weight file {file:?}: no blob at offset {offset} (sentinel {found:#010x} instead of 0xdeadbeef)"
    )]
    BadSentinel {
        /// Weight file.
        file: String,
        /// Position of the blob.
        offset: u64,
        /// The four bytes in place of the sentinel.
        found: u32,
    },
    /// The blob's element type is not one of the format.
    #[error(
        "weight file {file:?}: the blob at offset {offset} has the unknown element type {number}"
    )]
    UnknownDType {
        /// Weight file.
        file: String,
        /// Position of the blob.
        offset: u64,
        /// The number in the record.
        number: u32,
    },
    /// The blob's data does not lie on a boundary of 64 bytes.
    #[error(
        "weight file {file:?}: the blob at offset {offset} has its data at {data}, not a multiple of 64"
    )]
    UnalignedData {
        /// Weight file.
        file: String,
        /// Position of the blob.
        offset: u64,
        /// Position of its data.
        data: u64,
    },
    /// The blob's data goes beyond the file.
    #[error(
        "weight file {file:?}: the blob at offset {offset} has {size} bytes of data at {data}, beyond the end of the file ({length} bytes)"
    )]
    DataOutOfRange {
        /// Weight file.
        file: String,
        /// Position of the blob.
        offset: u64,
        /// Position of its data.
        data: u64,
        /// Bytes of data.
        size: u64,
        /// Bytes in the file.
        length: u64,
    },
    /// The blob holds no data.
    #[error(
        "weight file {file:?}: the blob at offset {offset} is empty, which Core ML refuses to read"
    )]
    Empty {
        /// Weight file.
        file: String,
        /// Position of the blob.
        offset: u64,
    },
    /// The blob's bytes are no whole number of elements.
    #[error(
        "weight file {file:?}: the blob at offset {offset} has {size} bytes with {padding_bits} padding bits, no whole number of {dtype} elements"
    )]
    NotWhole {
        /// Weight file.
        file: String,
        /// Position of the blob.
        offset: u64,
        /// Element type.
        dtype: BlobDType,
        /// Bytes of data.
        size: u64,
        /// Padding bits in the record.
        padding_bits: u64,
    },
    /// The blob's element type is not that of the value that refers to it.
    #[error(
        "weight file {file:?}: the blob at offset {offset} holds {stored}, and the program declares {declared}"
    )]
    DTypeMismatch {
        /// Weight file.
        file: String,
        /// Position of the blob.
        offset: u64,
        /// Type in the record.
        stored: BlobDType,
        /// Type that was asked for.
        declared: BlobDType,
    },
    /// The blob's size is not that of the value that refers to it.
    #[error(
        "weight file {file:?}: the blob at offset {offset} holds {stored} elements, and the program declares {declared}"
    )]
    SizeMismatch {
        /// Weight file.
        file: String,
        /// Position of the blob.
        offset: u64,
        /// Elements in the file.
        stored: u64,
        /// Elements that were asked for.
        declared: u64,
    },
    /// Blobs share bytes, so that writing them one by one would multiply the file.
    #[error(
        "weight file {file:?}: the blob at offset {offset} overlaps the one before it, the file cannot be rewritten"
    )]
    Overlap {
        /// Weight file.
        file: String,
        /// Position of the later blob.
        offset: u64,
    },
    /// New data for a file whose present content is not known.
    #[error(
        "weight file {file:?} is missing, and a new blob cannot be added to it: copy it into the package"
    )]
    NewBlobIntoMissing {
        /// Weight file.
        file: String,
    },
    /// New data whose bytes are not those of its element type and number.
    #[error(
        "new blob for weight file {file:?}: {size} bytes, and {elements} elements of {dtype} take {expected}"
    )]
    NewBlobSize {
        /// Weight file.
        file: String,
        /// Element type.
        dtype: BlobDType,
        /// Number of elements.
        elements: u64,
        /// Bytes given.
        size: u64,
        /// Bytes that the elements take.
        expected: u64,
    },
    /// New data of no elements.
    #[error(
        "new blob for weight file {file:?}: it has no elements, and Core ML refuses to read an empty blob"
    )]
    NewBlobEmpty {
        /// Weight file.
        file: String,
    },
    /// The file would outgrow the format.
    #[error("weight file {file:?} would have more blobs or bytes than its format can count")]
    TooLarge {
        /// Weight file.
        file: String,
    },
}
