//! A zip of a package: unpacked into a temporary folder, or refused if that is not safe.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use zip::ZipArchive;

use super::manifest::MANIFEST;
use super::{COMPILED_DATA, COMPILED_TEXT};

/// Most bytes that a zip may unpack to, in all. The largest models that run on a device are a
/// tenth of it.
const MOST_BYTES: u64 = 64 << 30;

/// Most unpacked bytes for each byte of the zip. Deflate gives at most 1032; weights are close to
/// random and give below 2, and a package of zeros that someone made for a test is not a real one.
const MOST_RATIO: u64 = 200;

/// Bytes that may be unpacked before the ratio counts: a small package of zeros is harmless.
const RATIO_FROM: u64 = 256 << 20;

/// Most entries of a zip; a package has about five.
const MOST_ENTRIES: usize = 100_000;

/// Folder in which macOS keeps its attributes of the zipped files.
const MAC_FOLDER: &str = "__MACOSX";

/// Why a zip was not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The zip cannot be read: damaged, encrypted, or compressed in an unknown way.
    #[error("the zip cannot be read: {0}")]
    Zip(zip::result::ZipError),
    /// An entry is damaged.
    #[error("zip entry {entry:?} cannot be read: {source}")]
    Entry {
        /// The entry's name.
        entry: String,
        /// What was found.
        source: io::Error,
    },
    /// The temporary folder cannot be written.
    #[error("cannot unpack {entry:?} into {}: {source}", folder.display())]
    Write {
        /// The entry's name.
        entry: String,
        /// The temporary folder.
        folder: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// An entry would land outside of the folder.
    #[error("zip entry {0:?} has an absolute path or one with \"..\", and is not safe to unpack")]
    Outside(String),
    /// An entry is a link or another special file.
    #[error("zip entry {0:?} is a link or a special file, and a package holds plain files only")]
    Special(String),
    /// An entry is locked.
    #[error("zip entry {0:?} is encrypted, unpack it with its password first")]
    Encrypted(String),
    /// Two entries have one name.
    #[error("zip entry {0:?} is there twice, and it is not clear which one counts")]
    Duplicate(String),
    /// The zip lists entries with the same bytes behind them.
    #[error("the zip's entries overlap, as those of a zip bomb do")]
    Overlap,
    /// The zip holds an absurd number of files.
    #[error("the zip has {entries} entries, more than the {limit} that are unpacked")]
    Entries {
        /// Entries in the zip.
        entries: usize,
        /// The limit.
        limit: usize,
    },
    /// The zip unpacks to an absurd size.
    #[error(
        "the zip unpacks to more than {limit} bytes, as a zip bomb does: unpack it by hand if it is a real model"
    )]
    Expands {
        /// Bytes after which unpacking stopped.
        limit: u64,
    },
    /// No folder in the zip is a package.
    #[error("the zip holds no package (no Manifest.json)")]
    NoPackage,
    /// More than one folder in the zip is a package.
    #[error("the zip holds several packages ({first:?} and {second:?}), zip one at a time")]
    Several {
        /// One of them.
        first: PathBuf,
        /// Another one.
        second: PathBuf,
    },
}

/// How far a zip may expand.
pub(super) struct Limits {
    bytes: u64,
    ratio: u64,
    ratio_from: u64,
    entries: usize,
}

impl Limits {
    pub(super) const DEFAULT: Self = Self {
        bytes: MOST_BYTES,
        ratio: MOST_RATIO,
        ratio_from: RATIO_FROM,
        entries: MOST_ENTRIES,
    };

    /// Unpacked bytes at which a zip of this size is given up.
    fn most(&self, zip_bytes: u64) -> u64 {
        let by_ratio = zip_bytes.saturating_mul(self.ratio).max(self.ratio_from);
        by_ratio.min(self.bytes)
    }
}

/// An unpacked zip: the temporary folder lives as long as this.
pub(super) struct Unpacked {
    /// Deletes the folder when dropped.
    pub(super) temporary: TempDir,
    /// The package's folder inside the temporary one, relative to it.
    pub(super) top: PathBuf,
    /// True if the zip holds files that are not part of the package.
    pub(super) others: bool,
}

/// Unpacks the zip at `path` and finds the package in it.
///
/// The sizes that the zip declares are not believed: the bytes are counted as they come.
pub(super) fn unpack(path: &Path, limits: &Limits) -> Result<Unpacked, ArchiveError> {
    let file = File::open(path).map_err(|e| ArchiveError::Zip(e.into()))?;
    let zip_bytes = file.metadata().map_or(0, |metadata| metadata.len());
    let mut zip = ZipArchive::new(BufReader::new(file)).map_err(ArchiveError::Zip)?;
    if zip.len() > limits.entries {
        return Err(ArchiveError::Entries {
            entries: zip.len(),
            limit: limits.entries,
        });
    }
    if zip.has_duplicate_names() {
        return Err(ArchiveError::Duplicate(duplicate(path).unwrap_or_default()));
    }
    if zip.has_overlapping_entries().map_err(ArchiveError::Zip)? {
        return Err(ArchiveError::Overlap);
    }
    let temporary = tempfile::Builder::new()
        .prefix("milwright-")
        .tempdir()
        .map_err(|source| ArchiveError::Write {
            entry: String::new(),
            folder: std::env::temp_dir(),
            source,
        })?;
    let limit = limits.most(zip_bytes);
    let mut left = limit;
    for index in 0..zip.len() {
        let mut entry = zip.by_index(index).map_err(ArchiveError::Zip)?;
        let name = entry.name().map_err(ArchiveError::Zip)?.into_owned();
        let relative = inside(&name).ok_or_else(|| ArchiveError::Outside(name.clone()))?;
        if entry.encrypted() {
            return Err(ArchiveError::Encrypted(name));
        }
        if entry.is_symlink() || !plain(entry.unix_mode()) {
            return Err(ArchiveError::Special(name));
        }
        if relative.starts_with(MAC_FOLDER) || relative.as_os_str().is_empty() {
            continue;
        }
        let target = temporary.path().join(&relative);
        let write_error = |source: io::Error| {
            if source.kind() == ErrorKind::AlreadyExists {
                ArchiveError::Duplicate(name.clone())
            } else {
                ArchiveError::Write {
                    entry: name.clone(),
                    folder: temporary.path().to_owned(),
                    source,
                }
            }
        };
        if entry.is_dir() {
            fs::create_dir_all(&target).map_err(write_error)?;
            continue;
        }
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).map_err(write_error)?;
        }
        let mut output = File::create_new(&target).map_err(write_error)?;
        let mut buffer = vec![0; 128 << 10];
        loop {
            let count = match entry.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(source) => {
                    return Err(ArchiveError::Entry {
                        entry: name.clone(),
                        source,
                    });
                }
            };
            left = left
                .checked_sub(count as u64)
                .ok_or(ArchiveError::Expands { limit })?;
            let bytes = buffer.get(..count).unwrap_or_default();
            output.write_all(bytes).map_err(write_error)?;
        }
    }
    let top = find_top(temporary.path())?;
    let others = !top.as_os_str().is_empty() && has_others(temporary.path(), &top);
    Ok(Unpacked {
        temporary,
        top,
        others,
    })
}

/// The entry's path, if it stays inside: plain names only, divided by slashes.
fn inside(name: &str) -> Option<PathBuf> {
    let mut path = PathBuf::new();
    if name.starts_with('/') || name.contains(['\\', '\0']) {
        return None;
    }
    for (index, part) in name.split('/').enumerate() {
        let drive = index == 0 && part.as_bytes().get(1) == Some(&b':') && part.len() == 2;
        match part {
            ".." => return None,
            "" | "." => {}
            _ if drive => return None,
            _ => path.push(part),
        }
    }
    Some(path)
}

/// True if the file type in a Unix mode is a file, a folder or not given.
fn plain(mode: Option<u32>) -> bool {
    const TYPE: u32 = 0o170_000;
    const FOLDER: u32 = 0o040_000;
    const FILE: u32 = 0o100_000;
    matches!(mode.unwrap_or(0) & TYPE, 0 | FOLDER | FILE)
}

/// A name that the zip's central directory lists twice; the directory is read once more for it,
/// because `ZipArchive` keeps one entry for each name.
fn duplicate(path: &Path) -> Option<String> {
    let file = File::open(path).ok()?;
    let zip = ZipArchive::new(BufReader::new(file)).ok()?;
    let start = zip.central_directory_start();
    let mut reader = zip.into_inner();
    reader.seek(SeekFrom::Start(start)).ok()?;
    let mut names = BTreeSet::new();
    loop {
        let mut record = [0; 46];
        reader.read_exact(&mut record).ok()?;
        if !record.starts_with(b"PK\x01\x02") {
            return None;
        }
        let length = |at: usize| u16::from_le_bytes([record[at], record[at + 1]]);
        let mut name = vec![0; usize::from(length(28))];
        reader.read_exact(&mut name).ok()?;
        let skip = i64::from(length(30)) + i64::from(length(32));
        reader.seek_relative(skip).ok()?;
        let name = String::from_utf8_lossy(&name).into_owned();
        if !names.insert(name.clone()) {
            return Some(name);
        }
    }
}

/// The folder nearest to the top that holds a package or a compiled model.
fn find_top(folder: &Path) -> Result<PathBuf, ArchiveError> {
    let mut level = vec![PathBuf::new()];
    while !level.is_empty() {
        let mut tops = level.iter().filter(|top| {
            [MANIFEST, COMPILED_TEXT, COMPILED_DATA]
                .iter()
                .any(|name| folder.join(top).join(name).is_file())
        });
        if let Some(first) = tops.next() {
            return match tops.next() {
                None => Ok(first.clone()),
                Some(second) => Err(ArchiveError::Several {
                    first: first.clone(),
                    second: second.clone(),
                }),
            };
        }
        let mut next: Vec<PathBuf> = Vec::new();
        for top in &level {
            let entries = fs::read_dir(folder.join(top)).into_iter().flatten();
            for entry in entries.flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    next.push(top.join(entry.file_name()));
                }
            }
        }
        next.sort();
        level = next;
    }
    Err(ArchiveError::NoPackage)
}

/// True if a file lies beside the package's folder, apart from what macOS leaves behind.
fn has_others(folder: &Path, top: &Path) -> bool {
    let mut way = PathBuf::new();
    for part in top.components() {
        let entries = fs::read_dir(folder.join(&way)).into_iter().flatten();
        for entry in entries.flatten() {
            let name = entry.file_name();
            let mac = name == ".DS_Store" || name.as_encoded_bytes().starts_with(b"._");
            if name != part.as_os_str() && !mac {
                return true;
            }
        }
        way.push(part);
    }
    false
}

#[cfg(test)]
mod tests {
    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    use super::*;

    /// A zip of these files, deflated.
    fn zip_of(files: &[(&str, Vec<u8>)]) -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a.zip");
        let mut zip = ZipWriter::new(File::create(&path).expect("a new file"));
        for (name, bytes) in files {
            zip.start_file(*name, SimpleFileOptions::default())
                .expect("an entry");
            zip.write_all(bytes).expect("its bytes");
        }
        zip.finish().expect("a zip");
        (folder, path)
    }

    fn small(bytes: u64, ratio: u64, ratio_from: u64, entries: usize) -> Limits {
        Limits {
            bytes,
            ratio,
            ratio_from,
            entries,
        }
    }

    #[test]
    fn a_zip_that_expands_too_far_is_given_up_at_the_limit() {
        let zeros = vec![0; 1 << 20];
        let (_folder, path) = zip_of(&[("Manifest.json", zeros)]);
        let zip_bytes = fs::metadata(&path).expect("the zip").len();
        let expands = |limits: &Limits| match unpack(&path, limits) {
            Err(ArchiveError::Expands { limit }) => Some(limit),
            Err(other) => panic!("{other:?}"),
            Ok(_) => None,
        };
        let far = u64::MAX;
        assert_eq!(expands(&small(1000, far, 0, 9)), Some(1000));
        assert_eq!(expands(&small(far, 10, 0, 9)), Some(zip_bytes * 10));
        assert_eq!(expands(&small(far, 10, 1 << 20, 9)), None);
        assert_eq!(expands(&small(1 << 20, far, 0, 9)), None);
        assert_eq!(expands(&Limits::DEFAULT), None);
    }

    #[test]
    fn many_entries_count_together() {
        let files: Vec<(String, Vec<u8>)> = (0..10)
            .map(|index| (format!("{index}"), vec![0; 1000]))
            .collect();
        let files: Vec<(&str, Vec<u8>)> = files
            .iter()
            .map(|(name, bytes)| (name.as_str(), bytes.clone()))
            .collect();
        let (_folder, path) = zip_of(&files);
        assert!(matches!(
            unpack(&path, &small(9999, u64::MAX, 0, 10)),
            Err(ArchiveError::Expands { .. })
        ));
        assert!(matches!(
            unpack(&path, &small(u64::MAX, u64::MAX, 0, 9)),
            Err(ArchiveError::Entries { entries: 10, .. })
        ));
    }

    #[test]
    fn sizes_that_a_zip_declares_are_not_believed() {
        let (_folder, path) = zip_of(&[("Manifest.json", vec![0; 1 << 20])]);
        let mut bytes = fs::read(&path).expect("the zip");
        // The uncompressed size stands at 22 in a local record and at 24 in a central one.
        for at in 0..bytes.len() - 46 {
            let place = if bytes[at..].starts_with(b"PK\x03\x04") {
                at + 22
            } else if bytes[at..].starts_with(b"PK\x01\x02") {
                at + 24
            } else {
                continue;
            };
            bytes[place..place + 4].copy_from_slice(&10u32.to_le_bytes());
        }
        fs::write(&path, bytes).expect("the changed zip");
        let result = unpack(&path, &small(1000, u64::MAX, 0, 9));
        assert!(matches!(
            result,
            Err(ArchiveError::Expands { .. } | ArchiveError::Entry { .. })
        ));
    }

    #[test]
    fn a_real_package_of_three_gigabytes_is_within_the_limits() {
        let stored = 3 << 30;
        assert!(Limits::DEFAULT.most(stored) >= stored);
        // Half of it zeros, deflated to a thousandth.
        assert!(Limits::DEFAULT.most(stored / 2 + stored / 2000) >= stored);
    }
}
