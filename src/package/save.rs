//! Writing a package: beside the output first, flushed, then moved into place.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread;

use super::flush::{self, Flusher};
use super::manifest::MANIFEST;
use super::replace;
use super::weights::{Layout, Map, Piece};
use super::zip_output;
use super::{Error, Package, WeightsPlan};

/// How to write a package.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SaveOptions {
    /// Replace an output that exists. Only a package is replaced by a folder, and only a file by a
    /// zip.
    pub force: bool,
}

/// Why a package was not written. Neither the output nor a temporary file is left, unless the
/// message says so.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// What was opened is not a package.
    #[error("{}: a compiled or bare model is read-only, open the .mlpackage to write one", path.display())]
    ReadOnly {
        /// The input.
        path: PathBuf,
    },
    /// The output's path has no last part.
    #[error("{}: is no name for an output", path.display())]
    NoName {
        /// The output.
        path: PathBuf,
    },
    /// The output's folder is not there or cannot be entered.
    #[error("{}: the folder {} cannot be written to: {source}", path.display(), folder.display())]
    NoFolder {
        /// The output.
        path: PathBuf,
        /// The folder it was to be in.
        folder: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Something is at the output's path.
    #[error("{}: exists already, choose another name or use --force to replace it", path.display())]
    Exists {
        /// The output.
        path: PathBuf,
    },
    /// Something other than a package is at the output's path.
    #[error("{}: exists and is not {expected}, it is not replaced even with --force", path.display())]
    NotReplaced {
        /// The output.
        path: PathBuf,
        /// What would have been replaced.
        expected: &'static str,
    },
    /// The output is the input, or one is inside the other.
    #[error("{}: the output must be neither the input {}, nor inside it, nor around it", path.display(), input.display())]
    TouchesInput {
        /// The output.
        path: PathBuf,
        /// The input.
        input: PathBuf,
    },
    /// A file's name cannot stand in a zip.
    #[error("{}: the file name {file:?} is not Unicode and cannot be put into a zip, write a folder", path.display())]
    NameInZip {
        /// The output.
        path: PathBuf,
        /// The file, relative to the package.
        file: PathBuf,
    },
    /// A file could not be written, or not be read from the input.
    #[error("{}: cannot be written ({}): {source}, nothing was left behind", path.display(), file.display())]
    Write {
        /// The output.
        path: PathBuf,
        /// The file, relative to the package.
        file: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The written package could not be moved into place.
    #[error("{}: cannot be moved into place: {source}, what was there is still there", path.display())]
    Move {
        /// The output.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The output is written, but the temporary folder beside it is still there.
    #[error("{}: is written whole, but {} could not be removed: {source}, delete it", path.display(), temporary.display())]
    LeftBehind {
        /// The output.
        path: PathBuf,
        /// The temporary folder.
        temporary: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// What a file of the output holds.
pub(super) enum Content<'a> {
    /// These bytes.
    Bytes(Cow<'a, [u8]>),
    /// Those of another file, as many as were seen there.
    Copy { from: PathBuf, length: u64 },
    /// Pieces of a weight file, and the file that kept pieces come from.
    Weights {
        layout: &'a Layout,
        source: Option<&'a Map>,
    },
}

impl Content<'_> {
    pub(super) fn length(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Copy { length, .. } => *length,
            Self::Weights { layout, .. } => layout.length,
        }
    }
}

/// All that the output holds, by paths relative to it, in sorted order.
pub(super) struct Contents<'a> {
    pub(super) folders: BTreeSet<PathBuf>,
    pub(super) files: BTreeMap<PathBuf, Content<'a>>,
}

/// Told how many bytes are about to be written; its error ends the writing as a full disk would.
pub(super) type Meter<'a> = dyn FnMut(u64) -> io::Result<()> + 'a;

impl Package {
    /// Writes the package to `out` with another root model and other weights; everything else is
    /// copied byte for byte, empty folders too.
    ///
    /// `out` becomes a zip if its name ends in `.zip`, else a folder. The output is first written
    /// beside `out` under a hidden name and flushed to the disk, then moved into place, so that a
    /// kill at any moment leaves what was there before, or the new output whole (where the file
    /// system cannot exchange two names, there is an instant with the old one still under the
    /// hidden name). On an error nothing is left. `progress` is called with the number of bytes
    /// written since its last call; [`Package::output_bytes`] gives the sum.
    ///
    /// Equal input gives equal bytes.
    pub fn save(
        &self,
        out: &Path,
        root_model: &[u8],
        plan: &WeightsPlan,
        options: &SaveOptions,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Error> {
        let mut meter = |bytes| {
            progress(bytes);
            Ok(())
        };
        self.save_metered(out, root_model, plan, options, &mut meter)
    }

    /// Bytes of all files that [`Package::save`] would write for a root model of so many bytes.
    pub fn output_bytes(&self, root_model: u64, plan: &WeightsPlan) -> u64 {
        let contents = self.contents(&[], plan);
        let files = contents.map_or(0, |contents| {
            contents.files.values().map(Content::length).sum()
        });
        root_model + files
    }

    pub(super) fn save_metered(
        &self,
        out: &Path,
        root_model: &[u8],
        plan: &WeightsPlan,
        options: &SaveOptions,
        meter: &mut Meter,
    ) -> Result<(), Error> {
        let path = out.to_owned();
        if !self.kind().is_writable() {
            let path = self.path().to_owned();
            return Err(SaveError::ReadOnly { path }.into());
        }
        let name = out.file_name().ok_or(SaveError::NoName { path })?;
        let parent = match out.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let no_folder = |source| SaveError::NoFolder {
            path: out.to_owned(),
            folder: parent.to_owned(),
            source,
        };
        let absolute = fs::canonicalize(parent).map_err(no_folder)?.join(name);
        self.refuse_input(out, &absolute)?;
        let is_zip = out
            .extension()
            .is_some_and(|extension| extension.eq_ignore_ascii_case("zip"));
        refuse_existing(out, is_zip, options.force)?;

        let contents = self.contents(root_model, plan)?;
        let temporary = tempfile::Builder::new()
            .prefix(".milwright-")
            .tempdir_in(parent)
            .map_err(no_folder)?;
        // Inside the private temporary folder, so that the output gets the usual permissions.
        let written = temporary.path().join(name);
        let failed = |(file, source): (PathBuf, io::Error)| SaveError::Write {
            path: out.to_owned(),
            file,
            source,
        };
        thread::scope(|scope| {
            let (flusher, jobs) = Flusher::new();
            let flushing = scope.spawn(move || flush::run(jobs));
            let result = if is_zip {
                zip_output::write(&written, out, &contents, meter, &flusher)
            } else {
                write_folder(&written, &contents, meter, &flusher).map_err(failed)
            };
            drop(flusher);
            let flushed = flushing.join().unwrap_or_else(|_| {
                let source = io::Error::other("the thread that flushes files failed");
                Err((PathBuf::new(), source))
            });
            result.and_then(|()| flushed.map_err(failed))
        })?;
        replace::move_into_place(&written, out, options.force).map_err(|source| {
            let path = out.to_owned();
            SaveError::Move { path, source }
        })?;
        flush::folder(parent);
        let hidden = temporary.path().to_owned();
        temporary.close().map_err(|source| SaveError::LeftBehind {
            path: out.to_owned(),
            temporary: hidden,
            source,
        })?;
        Ok(())
    }

    /// Everything that the output is to hold.
    fn contents<'a>(
        &'a self,
        root_model: &'a [u8],
        plan: &'a WeightsPlan,
    ) -> Result<Contents<'a>, Error> {
        let mut folders: BTreeSet<PathBuf> = self.tree.folders.iter().cloned().collect();
        let mut files = BTreeMap::new();
        for path in &self.tree.files {
            let from = self.root.join(path);
            let metadata = fs::metadata(&from);
            let metadata = metadata.map_err(|e| super::OpenError::read(&from, e))?;
            let length = metadata.len();
            files.insert(path.clone(), Content::Copy { from, length });
        }
        let mut created = Vec::new();
        for (path, rewrite) in plan.rewrites() {
            let source = match &rewrite.source {
                Some(file) => Some(self.weights.map(file, 0)?),
                None => None,
            };
            let layout = &rewrite.layout;
            let content = Content::Weights { layout, source };
            if files.insert(path.to_owned(), content).is_none() {
                created.extend(path.parent().map(Path::to_owned));
            }
        }
        files.insert(
            self.model_path.clone(),
            Content::Bytes(Cow::Borrowed(root_model)),
        );
        if let Some(manifest) = &self.manifest {
            let text = if created.is_empty() {
                Cow::Borrowed(manifest.bytes())
            } else {
                Cow::Owned(manifest.with_weights(&created))
            };
            files.insert(PathBuf::from(MANIFEST), Content::Bytes(text));
            let gone = manifest.items.iter().filter(|item| item.gone);
            folders.extend(gone.map(|item| item.path.clone()));
        }
        let parents: Vec<PathBuf> = files
            .keys()
            .chain(&folders)
            .flat_map(|path| path.ancestors().skip(1))
            .filter(|parent| !parent.as_os_str().is_empty())
            .map(Path::to_owned)
            .collect();
        folders.extend(parents);
        Ok(Contents { folders, files })
    }

    fn refuse_input(&self, out: &Path, absolute: &Path) -> Result<(), SaveError> {
        let existing = fs::canonicalize(out).ok();
        for place in existing.iter().map(PathBuf::as_path).chain([absolute]) {
            if place.starts_with(&self.place) || self.place.starts_with(place) {
                return Err(SaveError::TouchesInput {
                    path: out.to_owned(),
                    input: self.path().to_owned(),
                });
            }
        }
        Ok(())
    }
}

/// Only what an earlier save could have written is replaced: a wrong `-o` with `--force` must not
/// cost someone a folder of other things.
fn refuse_existing(out: &Path, is_zip: bool, force: bool) -> Result<(), SaveError> {
    let path = out.to_owned();
    if fs::symlink_metadata(out).is_err() {
        return Ok(());
    }
    if !force {
        return Err(SaveError::Exists { path });
    }
    if is_zip && !out.is_file() {
        let expected = "a file";
        return Err(SaveError::NotReplaced { path, expected });
    }
    let is_package = || out.join(MANIFEST).is_file();
    let is_empty = || fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_none());
    if !is_zip && !is_package() && !is_empty() {
        let expected = "a package";
        return Err(SaveError::NotReplaced { path, expected });
    }
    Ok(())
}

fn write_folder(
    folder: &Path,
    contents: &Contents,
    meter: &mut Meter,
    flusher: &Flusher,
) -> Result<(), (PathBuf, io::Error)> {
    fs::create_dir(folder).map_err(|e| (PathBuf::new(), e))?;
    for path in &contents.folders {
        fs::create_dir(folder.join(path)).map_err(|e| (path.clone(), e))?;
    }
    for (path, content) in &contents.files {
        let mut write = || -> io::Result<()> {
            let file = File::create_new(folder.join(path))?;
            flush::reserve(&file, content.length())?;
            let mut writer = BufWriter::with_capacity(BUFFER_BYTES, file);
            write_content(content, &mut writer, meter, &mut |writer| {
                flusher.start(writer.get_ref());
            })?;
            let file = writer
                .into_inner()
                .map_err(io::IntoInnerError::into_error)?;
            flusher.finish(file, path);
            Ok(())
        };
        write().map_err(|e| (path.clone(), e))?;
    }
    Ok(())
}

/// Bytes of small pieces that are gathered before they are written.
const BUFFER_BYTES: usize = 256 << 10;

/// Bytes that are copied before progress is reported again.
const CHUNK_BYTES: u64 = 32 << 20;

/// Bytes of a file after which flushing starts while writing goes on. Each start costs a commit of
/// the file system's journal, and what is not yet flushed at the end has to be waited for: of 32,
/// 128 and 512 MiB, this took the least time for a file of 3 GB on ext4.
const FLUSH_BYTES: u64 = 128 << 20;

/// Writes a file's content. `start_flush` is called from time to time.
pub(super) fn write_content<W: Write>(
    content: &Content,
    writer: &mut W,
    meter: &mut Meter,
    start_flush: &mut dyn FnMut(&W),
) -> io::Result<()> {
    let mut output = Output {
        writer,
        meter,
        start_flush,
        unflushed: 0,
    };
    match content {
        Content::Bytes(bytes) => output.bytes(bytes),
        Content::Copy { from, length } => output.range(&File::open(from)?, 0, *length),
        Content::Weights { layout, source } => {
            for piece in &layout.pieces {
                match (piece, source) {
                    (Piece::Bytes(bytes), _) => output.bytes(bytes)?,
                    (Piece::Data(bytes), _) => output.bytes(bytes)?,
                    (Piece::Kept { offset, length }, Some(map)) => {
                        output.range(map.file(), *offset, *length)?;
                    }
                    (Piece::Kept { .. }, None) => {
                        return Err(io::Error::other("kept weights have no source"));
                    }
                }
            }
            Ok(())
        }
    }
}

/// One file that is being written.
struct Output<'a, 'm, W> {
    writer: &'a mut W,
    meter: &'a mut Meter<'m>,
    start_flush: &'a mut dyn FnMut(&W),
    /// Bytes since the last start of a flush.
    unflushed: u64,
}

impl<W: Write> Output<'_, '_, W> {
    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        for chunk in bytes.chunks(CHUNK_BYTES as usize) {
            (self.meter)(chunk.len() as u64)?;
            self.writer.write_all(chunk)?;
            self.written(chunk.len() as u64);
        }
        Ok(())
    }

    /// Copies a range of a file. With a file behind the writer, the standard library lets Linux
    /// copy it (`copy_file_range`), so that the bytes never come into this process.
    fn range(&mut self, mut source: &File, offset: u64, length: u64) -> io::Result<()> {
        source.seek(SeekFrom::Start(offset))?;
        let mut left = length;
        while left > 0 {
            let chunk = left.min(CHUNK_BYTES);
            (self.meter)(chunk)?;
            let copied = io::copy(&mut source.take(chunk), self.writer)?;
            if copied != chunk {
                let message = "the input became shorter while it was copied";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
            }
            self.written(chunk);
            left -= chunk;
        }
        Ok(())
    }

    fn written(&mut self, bytes: u64) {
        self.unflushed += bytes;
        if self.unflushed >= FLUSH_BYTES {
            self.unflushed = 0;
            (self.start_flush)(self.writer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A package with one item and a file beside it.
    fn sample(folder: &Path) -> Package {
        let input = folder.join("in.mlpackage");
        fs::create_dir_all(input.join("Data")).expect("folders");
        let manifest = r#"{"fileFormatVersion":"1.0.0","rootModelIdentifier":"a","itemInfoEntries":
            {"a":{"author":"","description":"","name":"","path":"m"}}}"#;
        for (name, bytes) in [
            (MANIFEST, manifest.as_bytes()),
            ("Data/m", b"\x08\x09"),
            ("extra", &[7; 300]),
        ] {
            fs::write(input.join(name), bytes).expect("a file");
        }
        Package::open(&input).expect("the package")
    }

    #[test]
    fn a_write_that_fails_after_any_number_of_bytes_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let package = sample(folder.path());
        let plan = WeightsPlan::default();
        let bytes = package.output_bytes(2, &plan);
        for name in ["out.mlpackage", "out.zip"] {
            let out = folder.path().join(name);
            for limit in (0..bytes).step_by(23) {
                let mut left = limit;
                let mut meter = |bytes| {
                    let rest = u64::checked_sub(left, bytes);
                    left = rest.ok_or(io::ErrorKind::StorageFull)?;
                    Ok(())
                };
                let options = SaveOptions::default();
                let error = package
                    .save_metered(&out, b"\x08\x09", &plan, &options, &mut meter)
                    .expect_err("the disk is full");
                assert!(
                    matches!(&error, Error::Save(SaveError::Write { source, .. })
                        if source.kind() == io::ErrorKind::StorageFull),
                    "{error:?}"
                );
                assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 1);
            }
        }
    }
}
