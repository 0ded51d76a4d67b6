//! Small packages made by hand, independent of the code under test.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use milwright::package::{Error, Package};
use tempfile::TempDir;

/// The root model's path that coremltools uses.
pub(crate) const MODEL: &str = "Data/com.apple.CoreML/model.mlmodel";

/// The weight file's path that coremltools uses.
pub(crate) const WEIGHTS: &str = "Data/com.apple.CoreML/weights/weight.bin";

/// The weight file's name as programs spell it.
pub(crate) const SPELLED: &str = "@model_path/weights/weight.bin";

/// The first bytes of a model: specification version 9.
pub(crate) const MODEL_BYTES: &[u8] = b"\x08\x09model";

pub(crate) const MANIFEST: &str = r#"{
    "fileFormatVersion": "1.0.0",
    "itemInfoEntries": {
        "A0AEF1B6-6076-4D4B-B0CC-A6F6C8679C54": {
            "author": "com.apple.CoreML",
            "description": "CoreML Model Weights",
            "name": "weights",
            "path": "com.apple.CoreML/weights"
        },
        "B9B63827-DD46-4E4C-B308-F2E481B7A64B": {
            "author": "com.apple.CoreML",
            "description": "CoreML Model Specification",
            "name": "model.mlmodel",
            "path": "com.apple.CoreML/model.mlmodel"
        }
    },
    "rootModelIdentifier": "B9B63827-DD46-4E4C-B308-F2E481B7A64B"
}
"#;

/// A temporary folder with a package in it.
pub(crate) struct Sample {
    pub(crate) folder: TempDir,
    pub(crate) path: PathBuf,
}

impl Sample {
    /// A folder with nothing in it, at `in.mlpackage`.
    pub(crate) fn empty() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("in.mlpackage");
        fs::create_dir(&path).unwrap();
        Self { folder, path }
    }

    /// A package as coremltools writes it, with these weights.
    pub(crate) fn with_weights(weights: &[u8]) -> Self {
        let sample = Self::empty();
        sample.write("Manifest.json", MANIFEST);
        sample.write(MODEL, MODEL_BYTES);
        sample.write(WEIGHTS, weights);
        sample
    }

    /// A package whose manifest is changed by a replacement.
    pub(crate) fn with_manifest(from: &str, to: &str) -> Self {
        let sample = Self::with_weights(&weight_file(&[]));
        assert!(MANIFEST.contains(from), "{from}");
        sample.write("Manifest.json", MANIFEST.replace(from, to));
        sample
    }

    pub(crate) fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.path.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub(crate) fn open(&self) -> Package {
        Package::open(&self.path).unwrap()
    }

    /// The error of opening, whose message is one line that starts with the package's path.
    pub(crate) fn open_error(&self) -> Error {
        open_error(&self.path)
    }

    /// A path beside the package.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Names of everything beside the package.
    pub(crate) fn neighbours(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

pub(crate) fn open_error(path: &Path) -> Error {
    let error = Package::open(path).unwrap_err();
    let message = error.to_string();
    assert!(!message.contains('\n'), "{message:?}");
    assert!(
        message.starts_with(&path.display().to_string()),
        "{message:?}"
    );
    error
}

/// A blob for [`weight_file`].
#[derive(Clone)]
pub(crate) struct RawBlob {
    pub(crate) number: u32,
    pub(crate) padding: u64,
    pub(crate) data: Vec<u8>,
    pub(crate) reserved: u8,
}

pub(crate) fn raw(number: u32, data: &[u8]) -> RawBlob {
    RawBlob {
        number,
        padding: 0,
        data: data.to_vec(),
        reserved: 0,
    }
}

/// Bytes of a weight file of version 2, laid out by the format's description.
pub(crate) fn weight_file(blobs: &[RawBlob]) -> Vec<u8> {
    let mut file = vec![0; 64];
    file[..4].copy_from_slice(&u32::try_from(blobs.len()).unwrap().to_le_bytes());
    file[4] = 2;
    for blob in blobs {
        while !file.len().is_multiple_of(64) {
            file.push(0);
        }
        let data = file.len() as u64 + 64;
        file.extend(0xDEAD_BEEF_u32.to_le_bytes());
        file.extend(blob.number.to_le_bytes());
        file.extend((blob.data.len() as u64).to_le_bytes());
        file.extend(data.to_le_bytes());
        file.extend(blob.padding.to_le_bytes());
        file.extend([blob.reserved; 32]);
        file.extend(&blob.data);
    }
    file
}

/// Every file below a folder with its content, and every folder with `None`.
pub(crate) fn content(folder: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    fn visit(root: &Path, folder: &Path, found: &mut BTreeMap<PathBuf, Option<Vec<u8>>>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_owned();
            if path.is_dir() {
                found.insert(name, None);
                visit(root, &path, found);
            } else {
                found.insert(name, Some(fs::read(&path).unwrap()));
            }
        }
    }
    let mut found = BTreeMap::new();
    visit(folder, folder, &mut found);
    found
}
