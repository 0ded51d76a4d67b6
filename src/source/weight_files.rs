//! One weight file for each weight, as programs that go to the Neural Engine directly have them:
//! each holds one blob, whose record is at offset 64.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::sync::Arc;

use super::blobs::blob_dtype;
use super::{FileError, ModelFile};
use crate::ir::{BlobRef, Content, Value};
use crate::package::Weights;
use crate::package::weights::{NewBlob, RECORD_BYTES, write_blobs};

/// File names stay below this many bytes; file systems allow 255.
const LONGEST_NAME: usize = 200;

impl ModelFile {
    /// Writes each weight of the program into a file of its own in `folder` (made if it is not
    /// there), and lets the program refer to those as `@model_path/<folder's name>/<value>.bin`.
    /// Returns how many there are.
    ///
    /// A file is called after the value whose weight it holds; a character that is not plain in a
    /// file name becomes `_`, and equal names get a number. The folder appears whole or not at all:
    /// one that has something in it is refused, or with `force` replaced.
    pub fn split_weights(&mut self, folder: &Path, force: bool) -> Result<usize, FileError> {
        let weights = Arc::clone(self.weights());
        let failed = |source| FileError::WriteWeights {
            path: folder.to_owned(),
            source,
        };
        let Some(folder_name) = folder.file_name() else {
            return Err(failed(io::Error::other("the folder has no name")));
        };
        let folder_name = folder_name.to_string_lossy().into_owned();
        refuse_filled(folder, force).map_err(failed)?;
        let parent = match folder.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let temporary = tempfile::Builder::new()
            .prefix(".milwright-")
            .tempdir_in(parent)
            .map_err(failed)?;
        let written = temporary.path().join(&folder_name);
        fs::create_dir(&written).map_err(failed)?;

        let mut names = BTreeSet::new();
        let mut result = Ok(());
        for program in self.model.programs_mut() {
            program.for_each_value_mut(&mut |op, parameter, value| {
                if result.is_err() || !matches!(value.content, Content::Blob(_) | Content::New(_)) {
                    return;
                }
                let wanted = match parameter {
                    "val" => op.to_owned(),
                    _ => format!("{op}_{parameter}"),
                };
                let name = format!("{}.bin", free_name(&wanted, &mut names));
                result = write_one(&weights, value, &written.join(&name));
                value.content = Content::Blob(BlobRef {
                    file: format!("@model_path/{folder_name}/{name}"),
                    offset: RECORD_BYTES,
                });
            });
        }
        result?;
        if folder.symlink_metadata().is_ok() {
            let old = temporary.path().join(format!("{folder_name}.old"));
            fs::rename(folder, old).map_err(failed)?;
        }
        fs::rename(&written, folder).map_err(failed)?;
        Ok(names.len())
    }
}

fn refuse_filled(folder: &Path, force: bool) -> io::Result<()> {
    let Ok(metadata) = folder.symlink_metadata() else {
        return Ok(());
    };
    if !metadata.is_dir() {
        return Err(io::Error::other("it exists and is not a folder"));
    }
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if !force {
            return Err(io::Error::other("the folder exists and is not empty"));
        }
        // A wrong name must not cost someone a folder of other things.
        if path.extension().is_none_or(|extension| extension != "bin") {
            return Err(io::Error::other(
                "the folder holds other things than weights, it is not replaced",
            ));
        }
    }
    Ok(())
}

/// Writes the data of one value as a weight file with one blob.
fn write_one(weights: &Weights, value: &Value, path: &Path) -> Result<(), FileError> {
    let unstorable = || FileError::Unstorable {
        place: format!("{}: ", path.display()),
        dtype: value
            .tensor_type()
            .map_or_else(String::new, |t| t.dtype.word()),
    };
    let tensor = value.tensor_type().ok_or_else(unstorable)?;
    let dtype = blob_dtype(tensor.dtype).ok_or_else(unstorable)?;
    let elements = tensor.elements().ok_or_else(unstorable)?;
    let bytes: Arc<[u8]> = match &value.content {
        Content::Blob(blob) => weights
            .check(&blob.file, blob.offset, dtype, elements)
            .map_err(|source| FileError::Weights {
                place: String::new(),
                source,
            })?
            .data
            .into(),
        Content::New(new) => Arc::clone(&new.bytes),
        _ => return Ok(()),
    };
    let blob = NewBlob {
        file: String::new(),
        dtype,
        elements,
        bytes,
    };
    let write = || -> io::Result<()> {
        let mut writer = BufWriter::new(File::create_new(path)?);
        write_blobs(&mut writer, &[blob])?;
        writer.flush()?;
        writer.get_ref().sync_all()
    };
    write().map_err(|source| FileError::WriteWeights {
        path: path.to_owned(),
        source,
    })
}

/// A file name like `wanted` that is not taken, and is then.
fn free_name(wanted: &str, taken: &mut BTreeSet<String>) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '@' | '.');
    let mut base: String = wanted
        .chars()
        .map(|c| if plain(c) { c } else { '_' })
        .take(LONGEST_NAME)
        .collect();
    if base.is_empty() || base.starts_with('.') {
        base.insert(0, '_');
    }
    let mut name = base.clone();
    let mut number = 1;
    // Names that differ in case only are one name to some file systems.
    while !taken.insert(name.to_ascii_lowercase()) {
        name = format!("{base}_{number}");
        number += 1;
    }
    name
}
