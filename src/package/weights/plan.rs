//! What the weight files of a saved package hold, and where each blob comes to lie.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::error::WeightsError;
use super::format::{BlobDType, Header, RECORD_BYTES};
use super::layout::{Builder, Layout, NewBlob};
use super::reader::{Place, Weights};

/// A program's reference to a blob.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlobRef {
    /// Weight file, as the program spells it.
    pub file: String,
    /// Position of the blob's record in the file, in bytes.
    pub offset: u64,
}

/// How weights are written; made by [`WeightsPlan::new`] for one package.
///
/// A file whose blobs are all still in use and that gains none is copied as it is, with whatever
/// else it holds. Any other file is written anew: the blobs in use in their old order, each once,
/// then the new ones, equal ones once. The default plan copies every file.
#[derive(Debug, Default)]
pub struct WeightsPlan {
    names: BTreeMap<String, PathBuf>,
    offsets: BTreeMap<PathBuf, BTreeMap<u64, u64>>,
    new: Vec<BlobRef>,
    rewrites: BTreeMap<PathBuf, Rewrite>,
}

/// A weight file that is not copied.
#[derive(Debug)]
pub(crate) struct Rewrite {
    /// The file that kept blobs come from, as the program spells it.
    pub(crate) source: Option<String>,
    pub(crate) layout: Layout,
}

/// What the program says about one weight file.
#[derive(Default)]
struct Wanted {
    /// One spelling of the file's name.
    file: String,
    original: BTreeSet<u64>,
    used: BTreeSet<u64>,
    /// Positions in the list of new blobs.
    new: Vec<usize>,
}

/// What equal blobs have in common, and unequal ones mostly have not: type, bytes, padding bits and
/// the first bytes.
type Likeness<'a> = (BlobDType, usize, u8, &'a [u8]);

/// Bytes at the start of a blob that are compared before the rest.
const LIKENESS_BYTES: usize = 64;

impl WeightsPlan {
    /// Decides the files' new content.
    ///
    /// `original` are the references of the program as it was opened, `used` those that are left
    /// (both may name a blob more than once), `new` the blobs to add. A file that is missing, or is
    /// a Git LFS pointer, is an error as long as the program refers to it, or with `allow_missing`
    /// is left as it is; new blobs for such a file are always an error. New blobs for a file that
    /// the program has never referred to create it.
    pub fn new(
        weights: &Weights,
        original: &[BlobRef],
        used: &[BlobRef],
        new: &[NewBlob],
        allow_missing: bool,
    ) -> Result<Self, WeightsError> {
        let mut plan = Self::default();
        let mut files: BTreeMap<PathBuf, Wanted> = BTreeMap::new();
        for blob in original {
            let wanted = plan.wanted(weights, &mut files, &blob.file)?;
            wanted.original.insert(blob.offset);
        }
        for blob in used {
            let wanted = plan.wanted(weights, &mut files, &blob.file)?;
            wanted.used.insert(blob.offset);
        }
        for (index, blob) in new.iter().enumerate() {
            blob.check()?;
            let wanted = plan.wanted(weights, &mut files, &blob.file)?;
            wanted.new.push(index);
            plan.new.push(BlobRef {
                file: blob.file.clone(),
                offset: 0,
            });
        }
        for (path, wanted) in files {
            plan.place_file(weights, path, &wanted, new, allow_missing)?;
        }
        Ok(plan)
    }

    /// Where a blob in use comes to lie: its new offset in the same file. `None` for a reference
    /// that was not among those in use.
    pub fn offset(&self, file: &str, old: u64) -> Option<u64> {
        let offsets = self.offsets.get(self.names.get(file)?)?;
        offsets.get(&old).copied()
    }

    /// Where each of the new blobs comes to lie, in the order in which they were given.
    pub fn new_blobs(&self) -> &[BlobRef] {
        &self.new
    }

    /// True if every weight file is copied byte for byte and every offset stays.
    pub fn is_unchanged(&self) -> bool {
        self.rewrites.is_empty()
    }

    pub(crate) fn rewrites(&self) -> impl Iterator<Item = (&Path, &Rewrite)> {
        self.rewrites
            .iter()
            .map(|(path, rewrite)| (path.as_path(), rewrite))
    }

    fn wanted<'a>(
        &mut self,
        weights: &Weights,
        files: &'a mut BTreeMap<PathBuf, Wanted>,
        file: &str,
    ) -> Result<&'a mut Wanted, WeightsError> {
        let path = if let Some(path) = self.names.get(file) {
            path.clone()
        } else {
            let path = weights.resolve(file)?;
            self.names.insert(file.to_owned(), path.clone());
            path
        };
        Ok(files.entry(path).or_insert_with(|| Wanted {
            file: file.to_owned(),
            ..Wanted::default()
        }))
    }

    fn place_file(
        &mut self,
        weights: &Weights,
        path: PathBuf,
        wanted: &Wanted,
        new: &[NewBlob],
        allow_missing: bool,
    ) -> Result<(), WeightsError> {
        let file = wanted.file.as_str();
        let first = wanted.used.first().or(wanted.original.first());
        let header = match weights.header(file, first.copied().unwrap_or(RECORD_BYTES)) {
            Ok(header) => Some(header),
            Err(WeightsError::Missing { .. })
                if wanted.original.is_empty() && wanted.used.is_empty() =>
            {
                None
            }
            Err(WeightsError::Missing { .. } | WeightsError::LfsPointer { .. })
                if !wanted.new.is_empty() =>
            {
                return Err(WeightsError::NewBlobIntoMissing {
                    file: file.to_owned(),
                });
            }
            Err(WeightsError::Missing { .. } | WeightsError::LfsPointer { .. })
                if allow_missing =>
            {
                self.leave(path, wanted);
                return Ok(());
            }
            Err(_) if wanted.used.is_empty() && wanted.new.is_empty() => return Ok(()),
            Err(error) => return Err(error),
        };

        if wanted.new.is_empty() && wanted.used == wanted.original {
            self.leave(path, wanted);
            return Ok(());
        }
        let mut kept = Vec::with_capacity(wanted.used.len());
        for offset in &wanted.used {
            kept.push((*offset, weights.place(file, *offset)?));
        }
        let Division { added, twins } = find_twins(&wanted.new, new, &kept);
        if added.is_empty() && wanted.used == wanted.original {
            self.leave(path.clone(), wanted);
        } else {
            refuse_overlap(file, &kept)?;
            let mut builder = Builder::new(file);
            let mut offsets = BTreeMap::new();
            for (old, place) in &kept {
                offsets.insert(*old, builder.keep(*old, place)?);
            }
            for (index, blob) in &added {
                let offset = builder.add(blob)?;
                self.set_new(*index, offset);
            }
            self.offsets.insert(path.clone(), offsets);
            self.rewrites.insert(
                path.clone(),
                Rewrite {
                    source: header.is_some().then(|| file.to_owned()),
                    layout: builder.finish(header.unwrap_or_else(Header::new)),
                },
            );
        }
        for (index, twin) in twins {
            let offset = match twin {
                Twin::Kept(old) => self.offsets.get(&path).and_then(|map| map.get(&old)),
                Twin::New(other) => self.new.get(other).map(|blob| &blob.offset),
            };
            if let Some(offset) = offset.copied() {
                self.set_new(index, offset);
            }
        }
        Ok(())
    }

    /// The file stays as it is, and so do the offsets of the blobs in use.
    fn leave(&mut self, path: PathBuf, wanted: &Wanted) {
        let offsets = wanted.used.iter().map(|offset| (*offset, *offset));
        self.offsets.insert(path, offsets.collect());
    }

    fn set_new(&mut self, index: usize, offset: u64) {
        if let Some(blob) = self.new.get_mut(index) {
            blob.offset = offset;
        }
    }
}

/// The blob that a new one is equal to.
#[derive(Clone, Copy)]
enum Twin {
    /// A kept blob, by its old offset.
    Kept(u64),
    /// An earlier new blob, by its position in the list.
    New(usize),
}

/// The new blobs of one file, by their positions in the list.
#[derive(Default)]
struct Division<'a> {
    /// Those to write.
    added: Vec<(usize, &'a NewBlob)>,
    /// Those that are in the file anyway.
    twins: Vec<(usize, Twin)>,
}

/// Divides the new blobs of one file (positions `indices` in `new`) into those to write and those
/// that are equal to a kept blob or to an earlier new one.
fn find_twins<'a>(
    indices: &[usize],
    new: &'a [NewBlob],
    kept: &[(u64, Place<'a>)],
) -> Division<'a> {
    let mut division = Division::default();
    let mut alike: BTreeMap<Likeness, Vec<(Twin, &[u8])>> = BTreeMap::new();
    if !indices.is_empty() {
        for (offset, place) in kept {
            let blob = place.blob;
            let key = likeness(blob.dtype, blob.padding_bits, blob.data);
            let twin = (Twin::Kept(*offset), blob.data);
            alike.entry(key).or_default().push(twin);
        }
    }
    for index in indices {
        let Some(blob) = new.get(*index) else {
            continue;
        };
        let padding = blob.dtype.padding_bits(blob.elements);
        let candidates = alike
            .entry(likeness(blob.dtype, padding, &blob.bytes))
            .or_default();
        let equal = candidates.iter().find(|(_, data)| **data == *blob.bytes);
        if let Some((twin, _)) = equal {
            division.twins.push((*index, *twin));
        } else {
            candidates.push((Twin::New(*index), &blob.bytes));
            division.added.push((*index, blob));
        }
    }
    division
}

fn likeness(dtype: BlobDType, padding_bits: u8, data: &[u8]) -> Likeness<'_> {
    let start = data.get(..LIKENESS_BYTES).unwrap_or(data);
    (dtype, data.len(), padding_bits, start)
}

/// Blobs that share bytes would each be written, and a small file could ask for an endless one.
fn refuse_overlap(file: &str, kept: &[(u64, Place)]) -> Result<(), WeightsError> {
    let mut ranges: Vec<(u64, u64, u64)> = Vec::with_capacity(kept.len() * 2);
    for (offset, place) in kept {
        ranges.push((*offset, *offset + RECORD_BYTES, *offset));
        ranges.push((place.start, place.end, *offset));
    }
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        if let [(_, end, _), (start, _, offset)] = pair
            && start < end
        {
            return Err(WeightsError::Overlap {
                file: file.to_owned(),
                offset: *offset,
            });
        }
    }
    Ok(())
}
