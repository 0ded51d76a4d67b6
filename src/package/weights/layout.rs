//! The bytes of a weight file that is to be written: header, kept blobs and new ones, as pieces.
//!
//! A kept blob is never in memory: its data is a range of the file that it comes from, and runs of
//! blobs that stay where they are become one range.

use std::io::{self, Write};
use std::sync::Arc;

use super::error::WeightsError;
use super::format::{self, BlobDType, Header, RECORD_BYTES, Record};
use super::reader::Place;

/// A blob that a weight file gains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewBlob {
    /// Weight file, as the program is to spell it.
    pub file: String,
    /// Element type.
    pub dtype: BlobDType,
    /// Number of elements.
    pub elements: u64,
    /// The packed elements, little-endian; padding bits should be zero.
    pub bytes: Arc<[u8]>,
}

impl NewBlob {
    /// Checks that there are elements, and that the bytes are as many as they take.
    pub(super) fn check(&self) -> Result<(), WeightsError> {
        let file = || self.file.clone();
        if self.elements == 0 {
            return Err(WeightsError::NewBlobEmpty { file: file() });
        }
        let expected = self
            .dtype
            .packed_bytes(self.elements)
            .ok_or_else(|| WeightsError::TooLarge { file: file() })?;
        if expected != self.bytes.len() as u64 {
            return Err(WeightsError::NewBlobSize {
                file: file(),
                dtype: self.dtype,
                elements: self.elements,
                size: self.bytes.len() as u64,
                expected,
            });
        }
        Ok(())
    }
}

/// Some of a file's bytes.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Headers, records and fill.
    Bytes(Vec<u8>),
    /// The data of a new blob.
    Data(Arc<[u8]>),
    /// A range of the file that the kept blobs come from.
    Kept {
        /// Where it starts there.
        offset: u64,
        /// Bytes.
        length: u64,
    },
}

/// The whole content of a weight file.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) length: u64,
}

/// Lays blobs out one behind the other.
pub(super) struct Builder<'a> {
    file: &'a str,
    /// All but the header.
    pieces: Vec<Piece>,
    position: u64,
    count: u32,
}

impl<'a> Builder<'a> {
    pub(super) fn new(file: &'a str) -> Self {
        Self {
            file,
            pieces: Vec::new(),
            position: RECORD_BYTES,
            count: 0,
        }
    }

    /// Appends a blob of the old file, whose record is at `old` there. Returns its new offset.
    pub(super) fn keep(&mut self, old: u64, place: &Place) -> Result<u64, WeightsError> {
        let offset = self.next()?;
        let size = place.end - place.start;
        if offset == old && place.start == offset + RECORD_BYTES {
            // The fill in front comes along, so that a run of such blobs is one range.
            let start = self.position;
            self.kept(start, place.end - start);
            self.position = place.end;
        } else {
            self.fill(offset);
            self.bytes(&place.record.with_data(offset + RECORD_BYTES));
            self.kept(place.start, size);
            self.advance(offset, size)?;
        }
        self.counted()?;
        Ok(offset)
    }

    /// Appends a new blob. Returns its offset.
    pub(super) fn add(&mut self, blob: &NewBlob) -> Result<u64, WeightsError> {
        let offset = self.next()?;
        let size = blob.bytes.len() as u64;
        let padding = blob.dtype.padding_bits(blob.elements);
        let record = Record::new(blob.dtype, size, offset + RECORD_BYTES, padding);
        self.fill(offset);
        self.bytes(&record.into_bytes());
        self.pieces.push(Piece::Data(Arc::clone(&blob.bytes)));
        self.advance(offset, size)?;
        self.counted()?;
        Ok(offset)
    }

    /// The file behind this header, whose count of blobs is set right.
    pub(super) fn finish(self, header: Header) -> Layout {
        let mut pieces = vec![Piece::Bytes(header.with_count(self.count).to_vec())];
        pieces.extend(self.pieces);
        Layout {
            pieces,
            length: self.position,
        }
    }

    /// Where the next record goes, with room for the record itself.
    fn next(&self) -> Result<u64, WeightsError> {
        format::align(self.position)
            .filter(|offset| offset.checked_add(RECORD_BYTES).is_some())
            .ok_or_else(|| self.too_large())
    }

    fn advance(&mut self, offset: u64, size: u64) -> Result<(), WeightsError> {
        let end = (offset + RECORD_BYTES).checked_add(size);
        self.position = end.ok_or_else(|| self.too_large())?;
        Ok(())
    }

    fn counted(&mut self) -> Result<(), WeightsError> {
        self.count = self.count.checked_add(1).ok_or_else(|| self.too_large())?;
        Ok(())
    }

    fn too_large(&self) -> WeightsError {
        WeightsError::TooLarge {
            file: self.file.to_owned(),
        }
    }

    /// Zeros up to `offset`, which is less than one alignment away.
    fn fill(&mut self, offset: u64) {
        let zeros = [0; format::ALIGNMENT as usize];
        let gap = usize::try_from(offset - self.position).unwrap_or(0);
        self.bytes(zeros.get(..gap).unwrap_or_default());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        match self.pieces.last_mut() {
            _ if bytes.is_empty() => {}
            Some(Piece::Bytes(last)) => last.extend_from_slice(bytes),
            _ => self.pieces.push(Piece::Bytes(bytes.to_vec())),
        }
    }

    fn kept(&mut self, from: u64, bytes: u64) {
        match self.pieces.last_mut() {
            Some(Piece::Kept { offset, length }) if *offset + *length == from => *length += bytes,
            _ => self.pieces.push(Piece::Kept {
                offset: from,
                length: bytes,
            }),
        }
    }
}

/// Writes a whole weight file that holds these blobs in this order, whatever file they name.
/// Returns the offset of each.
///
/// A blob whose bytes do not fit its type and number of elements is an error of kind
/// `InvalidInput`.
pub fn write_blobs(writer: &mut impl Write, blobs: &[NewBlob]) -> io::Result<Vec<u64>> {
    let invalid = |error: WeightsError| io::Error::new(io::ErrorKind::InvalidInput, error);
    let mut builder = Builder::new("");
    let mut offsets = Vec::with_capacity(blobs.len());
    for blob in blobs {
        blob.check().map_err(invalid)?;
        offsets.push(builder.add(blob).map_err(invalid)?);
    }
    for piece in builder.finish(Header::new()).pieces {
        match piece {
            Piece::Bytes(bytes) => writer.write_all(&bytes)?,
            Piece::Data(bytes) => writer.write_all(&bytes)?,
            Piece::Kept { .. } => {}
        }
    }
    Ok(offsets)
}
