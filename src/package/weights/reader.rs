//! Looking up blobs in a package's weight files, mapped when first asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, OnceLock};

use tempfile::TempDir;

use super::error::WeightsError;
use super::format::{self, BlobDType, Header, RECORD_BYTES, Record};
use super::map::Map;
use crate::package::LFS_START;

/// Stands in a weight file's name for the folder of the root model.
const MODEL_PATH: &str = "@model_path/";

/// One tensor in a weight file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blob<'a> {
    /// Element type.
    pub dtype: BlobDType,
    /// Bits behind the last element that only fill its byte, 0 to 7; 0 for whole-byte types.
    pub padding_bits: u8,
    /// The packed elements, little-endian.
    pub data: &'a [u8],
}

impl Blob<'_> {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        let bits = self.data.len() as u64 * 8 - u64::from(self.padding_bits);
        bits / u64::from(self.dtype.bits())
    }
}

/// The weight files of a model. Opening costs nothing; a file is mapped when a blob of it is first
/// asked for, and never loaded whole.
#[derive(Debug)]
pub struct Weights {
    /// Folder of the model, relative to the root.
    folder: PathBuf,
    /// The model's own file, relative to the root.
    model: PathBuf,
    files: BTreeMap<PathBuf, Slot>,
    /// Keeps an unpacked zip on disk as long as its weights may be asked for.
    temporary: Option<Arc<TempDir>>,
}

/// A weight file: where it lies on the disk, and its content once it has been asked for.
#[derive(Debug)]
struct Slot {
    path: PathBuf,
    content: OnceLock<Content>,
}

impl Slot {
    fn new(path: PathBuf) -> Self {
        Self {
            path,
            content: OnceLock::new(),
        }
    }
}

/// What a weight file turned out to be.
#[derive(Debug)]
enum Content {
    Blobs(Map),
    LfsPointer,
    Short(u64),
    OtherVersion(u32),
    Unreadable(String),
}

/// A blob's place in its file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) record: Record,
    /// Position of the data.
    pub(super) start: u64,
    /// Position behind the data.
    pub(super) end: u64,
    pub(super) blob: Blob<'a>,
}

impl Weights {
    /// Weights of the model at `root`/`model`, with `files` in the same folder or below; all
    /// relative to `root`.
    pub(crate) fn new(
        root: &Path,
        model: &Path,
        files: &[PathBuf],
        temporary: Option<Arc<TempDir>>,
    ) -> Self {
        let slot = |file: &PathBuf| (file.clone(), Slot::new(root.join(file)));
        Self {
            folder: model.parent().unwrap_or(Path::new("")).to_owned(),
            model: model.to_owned(),
            files: files.iter().map(slot).collect(),
            temporary,
        }
    }

    /// The same weights, with these files in place of those of their names, or besides them. Names
    /// are relative to the package.
    pub(crate) fn with_files(&self, files: &BTreeMap<PathBuf, PathBuf>) -> Self {
        let own = self
            .files
            .iter()
            .map(|(name, slot)| (name, slot.path.as_path()));
        let other = files.iter().map(|(name, path)| (name, path.as_path()));
        Self {
            folder: self.folder.clone(),
            model: self.model.clone(),
            files: own
                .chain(other)
                .map(|(name, path)| (name.clone(), Slot::new(path.to_owned())))
                .collect(),
            temporary: self.temporary.clone(),
        }
    }

    /// Where the file of this name, as the program spells it, lies on the disk; `None` if it is not
    /// there.
    pub fn path(&self, file: &str) -> Option<&Path> {
        let slot = self.files.get(&self.resolve(file).ok()?)?;
        Some(&slot.path)
    }

    /// True if the file holds blobs besides those whose records are at `used`, as far as its
    /// header and the blobs that follow each other from its start tell.
    pub fn has_others(&self, file: &str, used: &BTreeSet<u64>) -> Result<bool, WeightsError> {
        let header = self.header(file, RECORD_BYTES)?;
        let others = self.blobs(file)?.iter().any(|(at, _)| !used.contains(at));
        Ok(others || u64::from(header.count()) > used.len() as u64)
    }

    /// The blob whose record is at `offset` in `file`, a name as the program spells it.
    ///
    /// Everything that the format says about a blob is checked; nothing is read but its record.
    pub fn blob(&self, file: &str, offset: u64) -> Result<Blob<'_>, WeightsError> {
        Ok(self.place(file, offset)?.blob)
    }

    /// The blob, if it holds so many elements of this type.
    pub fn check(
        &self,
        file: &str,
        offset: u64,
        dtype: BlobDType,
        elements: u64,
    ) -> Result<Blob<'_>, WeightsError> {
        let blob = self.blob(file, offset)?;
        let file = || file.to_owned();
        if blob.dtype != dtype {
            return Err(WeightsError::DTypeMismatch {
                file: file(),
                offset,
                stored: blob.dtype,
                declared: dtype,
            });
        }
        if blob.elements() != elements {
            return Err(WeightsError::SizeMismatch {
                file: file(),
                offset,
                stored: blob.elements(),
                declared: elements,
            });
        }
        Ok(blob)
    }

    /// The blobs of a file from front to back with the offsets of their records, as they follow
    /// each other. The list ends where no blob follows; it is not checked against the header.
    pub fn blobs(&self, file: &str) -> Result<Vec<(u64, Blob<'_>)>, WeightsError> {
        self.bytes(file, RECORD_BYTES)?;
        let mut found = Vec::new();
        let mut offset = RECORD_BYTES;
        while let Ok(place) = self.place(file, offset) {
            found.push((offset, place.blob));
            match format::align(place.end) {
                Some(next) if next > offset => offset = next,
                _ => break,
            }
        }
        Ok(found)
    }

    /// True if the file is there and is blob storage.
    pub fn is_present(&self, file: &str) -> bool {
        self.bytes(file, RECORD_BYTES).is_ok()
    }

    /// The file's path relative to the package, whether it is there or not.
    ///
    /// `@model_path` is the folder of the root model, and any other name is taken relative to it.
    pub fn resolve(&self, file: &str) -> Result<PathBuf, WeightsError> {
        let bad = || WeightsError::BadName {
            file: file.to_owned(),
        };
        let name = file.strip_prefix(MODEL_PATH).unwrap_or(file);
        let mut path = self.folder.clone();
        let mut named = false;
        for component in Path::new(name).components() {
            match component {
                Component::Normal(part) => {
                    path.push(part);
                    named = true;
                }
                Component::CurDir => {}
                Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                    return Err(bad());
                }
            }
        }
        if !named || name.contains('\0') || file.trim_end_matches('/') == "@model_path" {
            return Err(bad());
        }
        if path == self.model {
            return Err(WeightsError::IsTheModel {
                file: file.to_owned(),
            });
        }
        Ok(path)
    }

    /// Where the blob lies in its file.
    pub(super) fn place(&self, file: &str, offset: u64) -> Result<Place<'_>, WeightsError> {
        let name = || file.to_owned();
        let bytes = self.bytes(file, offset)?;
        let length = bytes.len() as u64;
        if !offset.is_multiple_of(format::ALIGNMENT) {
            let file = name();
            return Err(WeightsError::Unaligned { file, offset });
        }
        let record = match Record::read(bytes, offset) {
            Some(record) if offset >= RECORD_BYTES => record,
            _ => {
                return Err(WeightsError::OutOfRange {
                    file: name(),
                    offset,
                    length,
                });
            }
        };
        if !record.has_sentinel() {
            return Err(WeightsError::BadSentinel {
                file: name(),
                offset,
                found: record.sentinel(),
            });
        }
        let number = record.dtype_number();
        let dtype = BlobDType::from_number(number).ok_or_else(|| WeightsError::UnknownDType {
            file: name(),
            offset,
            number,
        })?;
        let (data, size) = (record.data(), record.size());
        if !data.is_multiple_of(format::ALIGNMENT) {
            return Err(WeightsError::UnalignedData {
                file: name(),
                offset,
                data,
            });
        }
        if size == 0 {
            let file = name();
            return Err(WeightsError::Empty { file, offset });
        }
        let range = data.checked_add(size).and_then(|end| {
            let range = usize::try_from(data).ok()?..usize::try_from(end).ok()?;
            Some((end, bytes.get(range)?))
        });
        let (end, content) = range.ok_or_else(|| WeightsError::DataOutOfRange {
            file: name(),
            offset,
            data,
            size,
            length,
        })?;
        let padding = if dtype.is_sub_byte() {
            record.padding_bits()
        } else {
            0
        };
        let bits = u64::from(dtype.bits());
        let whole = padding < 8
            && (u128::from(size) * 8 - u128::from(padding)).is_multiple_of(u128::from(bits));
        if !whole {
            return Err(WeightsError::NotWhole {
                file: name(),
                offset,
                dtype,
                size,
                padding_bits: padding,
            });
        }
        Ok(Place {
            record,
            start: data,
            end,
            blob: Blob {
                dtype,
                padding_bits: padding as u8,
                data: content,
            },
        })
    }

    /// The content of a weight file that is there and is blob storage of version 2.
    fn bytes(&self, file: &str, offset: u64) -> Result<&[u8], WeightsError> {
        Ok(self.map(file, offset)?.bytes())
    }

    /// The mapped file; `offset` is that of the blob to name if the file is missing.
    pub(crate) fn map(&self, file: &str, offset: u64) -> Result<&Map, WeightsError> {
        let path = self.resolve(file)?;
        let file = file.to_owned();
        let Some(slot) = self.files.get(&path) else {
            return Err(WeightsError::Missing { file, offset });
        };
        match slot.content.get_or_init(|| Content::look(&slot.path)) {
            Content::Blobs(map) => Ok(map),
            Content::LfsPointer => Err(WeightsError::LfsPointer { file, offset }),
            Content::Short(length) => Err(WeightsError::NoHeader {
                file,
                length: *length,
            }),
            Content::OtherVersion(version) => Err(WeightsError::BadVersion {
                file,
                version: *version,
            }),
            Content::Unreadable(reason) => Err(WeightsError::Read {
                file,
                reason: reason.clone(),
            }),
        }
    }

    /// The header of a weight file; `offset` is that of a blob to name if the file is missing.
    pub(super) fn header(&self, file: &str, offset: u64) -> Result<Header, WeightsError> {
        let bytes = self.bytes(file, offset)?;
        Header::read(bytes).ok_or_else(|| WeightsError::NoHeader {
            file: file.to_owned(),
            length: bytes.len() as u64,
        })
    }
}

impl Content {
    fn look(path: &Path) -> Self {
        let map = match Map::open(path) {
            Ok(map) => map,
            Err(error) => return Self::Unreadable(error.to_string()),
        };
        let bytes = map.bytes();
        if bytes.starts_with(LFS_START) {
            return Self::LfsPointer;
        }
        match Header::read(bytes) {
            None => Self::Short(bytes.len() as u64),
            Some(header) if header.version() != format::VERSION => {
                Self::OtherVersion(header.version())
            }
            Some(_) => Self::Blobs(map),
        }
    }
}
