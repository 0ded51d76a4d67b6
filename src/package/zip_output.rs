//! Writing a package as a zip with one folder at its top, equal input giving equal bytes.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, System, ZipWriter};

use super::flush::Flusher;
use super::save::{self, Content, Contents, Meter, SaveError};

/// Ending of a package's folder.
const PACKAGE: &str = "mlpackage";

/// Bytes from which on a file is stored as it is: compressing weights takes long and gains little.
const STORED_FROM: u64 = 16 << 20;

/// Bytes from which on an entry needs the large form of a zip's records (the limit is 4 GiB; the
/// compressed form may be a little longer than the file).
const LARGE_FROM: u64 = 0xF000_0000;

/// Level of compression, fixed so that the bytes do not depend on a library's default.
const LEVEL: i64 = 6;

/// Writes `contents` as a zip at `file`; errors speak of it as `out`.
pub(super) fn write(
    file: &Path,
    out: &Path,
    contents: &Contents,
    meter: &mut Meter,
    flusher: &Flusher,
) -> Result<(), SaveError> {
    let failed = |path: &Path, source: io::Error| SaveError::Write {
        path: out.to_owned(),
        file: path.to_owned(),
        source,
    };
    let nowhere = Path::new("");
    let top = top_folder(out);
    let name = |path: &Path| {
        let mut name = top.to_str().map(str::to_owned);
        for part in path {
            name = name
                .zip(part.to_str())
                .map(|(name, part)| name + "/" + part);
        }
        name.ok_or_else(|| SaveError::NameInZip {
            path: out.to_owned(),
            file: path.to_owned(),
        })
    };
    let output = File::create_new(file).map_err(|e| failed(nowhere, e))?;
    let whole = output.try_clone().map_err(|e| failed(nowhere, e))?;
    let failure = Failure::default();
    let mut zip = ZipWriter::new(Output {
        inner: BufWriter::new(output),
        position: 0,
        end: 0,
        failure: failure.clone(),
    });
    let mut meter = |bytes| {
        failure.check()?;
        meter(bytes)
    };
    let options = SimpleFileOptions::default()
        .last_modified_time(DateTime::DEFAULT)
        .system(System::Unix);

    let folders = contents.folders.iter().map(|path| (path.as_path(), None));
    let files = contents
        .files
        .iter()
        .map(|(path, content)| (path.as_path(), Some(content)));
    let mut entries: Vec<(&Path, Option<&Content>)> =
        folders.chain(files).chain([(nowhere, None)]).collect();
    entries.sort_by_key(|(path, _)| *path);
    for (path, content) in entries {
        let mut write = |name: String| -> io::Result<()> {
            let Some(content) = content else {
                zip.add_directory(name, options.unix_permissions(0o755))?;
                return failure.check();
            };
            let is_stored = matches!(content, Content::Weights { .. })
                || content.length() >= STORED_FROM
                || path.extension() == Some(OsStr::new("bin"));
            let method = if is_stored {
                options.compression_method(CompressionMethod::Stored)
            } else {
                options
                    .compression_method(CompressionMethod::Deflated)
                    .compression_level(Some(LEVEL))
            };
            let method = method
                .unix_permissions(0o644)
                .large_file(content.length() >= LARGE_FROM);
            zip.start_file(name, method)?;
            save::write_content(content, &mut zip, &mut meter, &mut |_| {
                flusher.start(&whole);
            })?;
            failure.check()
        };
        if let Err(error) = write(name(path)?) {
            failure.set(io::ErrorKind::Other.into());
            return Err(failed(path, error));
        }
    }
    let finish = || -> io::Result<()> {
        zip.finish()?.flush()?;
        failure.check()
    };
    finish().map_err(|e| failed(nowhere, e))?;
    flusher.finish(whole, nowhere);
    Ok(())
}

/// The package's folder in the zip: `x.mlpackage` for `x.zip` and for `x.mlpackage.zip`.
fn top_folder(out: &Path) -> PathBuf {
    let stem = Path::new(out.file_stem().unwrap_or_default());
    if stem.extension() == Some(OsStr::new(PACKAGE)) {
        return stem.to_owned();
    }
    let mut name = stem.as_os_str().to_owned();
    name.push(".");
    name.push(PACKAGE);
    name.into()
}

/// The file behind the zip.
///
/// A `ZipWriter` does not take errors well: dropped after one it tries to complete the zip, which
/// complains on standard error or panics. So it never sees one: from the first error on this only
/// keeps count of the position, and whoever writes asks [`Failure`].
struct Output {
    inner: BufWriter<File>,
    position: u64,
    end: u64,
    failure: Failure,
}

/// The first error of an [`Output`], shared with it.
#[derive(Clone, Default)]
struct Failure(Rc<RefCell<Option<io::Error>>>);

impl Failure {
    fn set(&self, error: io::Error) {
        self.0.borrow_mut().get_or_insert(error);
    }

    fn is_set(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// The error, if there is one; it stays set, as one of the same kind and message.
    fn check(&self) -> io::Result<()> {
        match self.0.borrow().as_ref() {
            None => Ok(()),
            Some(error) => Err(io::Error::new(error.kind(), error.to_string())),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut count = bytes.len();
        if !self.failure.is_set() {
            match self.inner.write(bytes) {
                Ok(written) => count = written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
                Err(error) => self.failure.set(error),
            }
        }
        self.position = self.position.saturating_add(count as u64);
        self.end = self.end.max(self.position);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.failure.is_set() {
            self.inner.flush().unwrap_or_else(|e| self.failure.set(e));
        }
        Ok(())
    }
}

impl Seek for Output {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(step) => self.end.checked_add_signed(step),
            SeekFrom::Current(step) => self.position.checked_add_signed(step),
        };
        let position = position.ok_or(io::ErrorKind::InvalidInput)?;
        if !self.failure.is_set()
            && let Err(error) = self.inner.seek(SeekFrom::Start(position))
        {
            self.failure.set(error);
        }
        self.position = position;
        Ok(position)
    }

    fn stream_position(&mut self) -> io::Result<u64> {
        // Without this, asking would flush the buffer.
        Ok(self.position)
    }
}
