//! Writing a package as a zip with one folder at its top, equal input giving equal bytes.

use std::cell::Cell;
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
    let dead = Rc::new(Cell::new(false));
    let mut zip = ZipWriter::new(Output {
        inner: BufWriter::new(output),
        dead: Rc::clone(&dead),
    });
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
                return Ok(());
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
            save::write_content(content, &mut zip, meter, &mut |_| flusher.start(&whole))
        };
        let written = write(name(path)?).map_err(|e| failed(path, e));
        if written.is_err() {
            dead.set(true);
        }
        written?;
    }
    let finish = || -> io::Result<()> {
        let mut output = zip.finish()?;
        output.inner.flush()
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

/// The file behind the zip. Once dead it takes everything without a word: a `ZipWriter` that is
/// dropped after an error tries to complete the zip, and would complain on standard error.
struct Output {
    inner: BufWriter<File>,
    dead: Rc<Cell<bool>>,
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.dead.get() {
            return Ok(bytes.len());
        }
        self.inner.write(bytes).inspect_err(|_| self.dead.set(true))
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.dead.get() {
            return Ok(());
        }
        self.inner.flush()
    }
}

impl Seek for Output {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        if self.dead.get() {
            return Ok(0);
        }
        self.inner.seek(position)
    }
}
