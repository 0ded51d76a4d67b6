//! A model on disk: an `.mlpackage` folder, a zip of one, a compiled `.mlmodelc`, a bare `.mlmodel`.
//!
//! This layer knows files, not programs: it finds the root model's bytes and the weight files, and
//! it writes a package again with another root model and other weights, everything else byte for
//! byte. It uses no other part of the crate.
//!
//! ```no_run
//! use milwright::package::{Package, SaveOptions, WeightsPlan};
//!
//! # fn main() -> Result<(), milwright::package::Error> {
//! let package = Package::open("model.mlpackage".as_ref())?;
//! let model = package.model_bytes().to_vec();
//! let plan = WeightsPlan::default();
//! package.save("copy.mlpackage".as_ref(), &model, &plan, &SaveOptions::default(), &mut |_| {})?;
//! # Ok(())
//! # }
//! ```

mod archive;
mod error;
mod flush;
mod manifest;
mod replace;
mod save;
mod tree;
pub mod weights;
mod zip_output;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;

pub use archive::ArchiveError;
pub use error::{Error, OpenError};
pub use manifest::ManifestError;
pub use save::{SaveError, SaveOptions};
pub use weights::{Blob, BlobDType, BlobRef, NewBlob, Weights, WeightsError, WeightsPlan};

use manifest::{MANIFEST, Manifest};
use tree::{Links, Tree};
use weights::Map;

/// MIL text in a compiled model.
const COMPILED_TEXT: &str = "model.mil";

/// The file that every compiled model has, whatever its kind.
const COMPILED_DATA: &str = "coremldata.bin";

/// Interface and origin of a compiled model.
const COMPILED_METADATA: &str = "metadata.json";

/// Folder with the weight files of a bare model, beside it.
const WEIGHTS_FOLDER: &str = "weights";

/// How the text that Git LFS puts in place of a file starts
/// (<https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md>).
const LFS_START: &[u8] = b"version https://git-lfs";

/// What a [`Package`] was opened from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An `.mlpackage` folder.
    Folder,
    /// A zip that holds an `.mlpackage` folder.
    Zip,
    /// A compiled `.mlmodelc` (as a folder or in a zip) with MIL text; read-only.
    Compiled,
    /// One `.mlmodel` file outside of any package; read-only.
    Model,
}

impl Kind {
    /// True if [`Package::save`] can write what was opened.
    pub fn is_writable(self) -> bool {
        matches!(self, Self::Folder | Self::Zip)
    }
}

/// An opened package. The files must not be changed by anyone else while it lives.
#[derive(Debug)]
pub struct Package {
    kind: Kind,
    /// The path as given, for messages.
    path: PathBuf,
    /// What an output must not touch, absolute and without links: the package itself, and files
    /// that go into it.
    places: Vec<PathBuf>,
    /// Folder that holds the files.
    root: PathBuf,
    tree: Tree,
    manifest: Option<Manifest>,
    metadata: Option<serde_json::Value>,
    model_path: PathBuf,
    /// `None` in a new package.
    model: Option<Map>,
    weights: Arc<Weights>,
    /// Weight files from elsewhere, by their paths relative to the package.
    added: BTreeMap<PathBuf, PathBuf>,
    warnings: Vec<String>,
}

impl Package {
    /// Opens a package, whatever form it has; the form is told by the content, not by the name.
    ///
    /// A zip is unpacked into a temporary folder that is deleted with the last use of the package
    /// and its weights. Weight files are only listed here, not looked into.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let metadata = fs::metadata(path).map_err(|e| OpenError::read(path, e))?;
        let place = fs::canonicalize(path).map_err(|e| OpenError::read(path, e))?;
        if metadata.is_dir() {
            return Self::open_folder(path, place.clone(), place, None);
        }
        let not_a_package = || OpenError::NotAPackage {
            path: path.to_owned(),
        };
        if !metadata.is_file() {
            return Err(not_a_package().into());
        }
        let start = first_bytes(path).map_err(|e| OpenError::read(path, e))?;
        let is_named_model = path.extension().is_some_and(|e| e == "mlmodel");
        if start.is_empty() {
            let path = path.to_owned();
            return Err(OpenError::EmptyFile { path }.into());
        }
        if start.starts_with(LFS_START) {
            let path = path.to_owned();
            return Err(OpenError::LfsPointer { path }.into());
        }
        if start.starts_with(b"PK\x03\x04") || start.starts_with(b"PK\x05\x06") {
            return Self::open_zip(path, place);
        }
        // A model starts with field 1, its specification version, as a variable-length integer.
        if is_named_model || start.first() == Some(&0x08) {
            return Self::open_model(path, place);
        }
        Err(not_a_package().into())
    }

    fn open_zip(path: &Path, place: PathBuf) -> Result<Self, Error> {
        let unpacked = archive::unpack(path, &archive::Limits::DEFAULT).map_err(|problem| {
            let archive = path.to_owned();
            Error::Archive { archive, problem }
        })?;
        let root = unpacked.temporary.path().join(&unpacked.top);
        let temporary = Arc::new(unpacked.temporary);
        let mut package = Self::open_folder(path, place, root, Some(temporary))?;
        if package.kind == Kind::Folder {
            package.kind = Kind::Zip;
        }
        if unpacked.others {
            package.warnings.push(format!(
                "{}: the zip holds other files beside the package, they are not part of it",
                path.display()
            ));
        }
        Ok(package)
    }

    fn open_folder(
        path: &Path,
        place: PathBuf,
        root: PathBuf,
        temporary: Option<Arc<TempDir>>,
    ) -> Result<Self, Error> {
        let has = |name: &str| fs::symlink_metadata(root.join(name)).is_ok();
        if has(MANIFEST) {
            return Self::open_package(path, place, root, temporary);
        }
        if has(COMPILED_TEXT) {
            return Self::open_compiled(path, place, root, temporary);
        }
        let named = path.to_owned();
        if has(COMPILED_DATA) {
            return Err(OpenError::CompiledWithoutText { path: named }.into());
        }
        let mut entries = fs::read_dir(&root).map_err(|e| OpenError::read(path, e))?;
        if entries.all(|entry| entry.is_ok_and(|entry| entry.file_name() == ".DS_Store")) {
            return Err(OpenError::EmptyFolder { path: named }.into());
        }
        let is_named_package = path.extension().is_some_and(|e| e == "mlpackage");
        if is_named_package || root.join("Data").is_dir() {
            return Err(OpenError::ManifestMissing { path: named }.into());
        }
        Err(OpenError::NotAPackage { path: named }.into())
    }

    fn open_package(
        path: &Path,
        place: PathBuf,
        root: PathBuf,
        temporary: Option<Arc<TempDir>>,
    ) -> Result<Self, Error> {
        if root.join(MANIFEST).is_symlink() {
            let path = path.join(MANIFEST);
            return Err(OpenError::Symlink { path }.into());
        }
        let manifest = Manifest::read(&root).map_err(|problem| {
            let manifest = path.join(MANIFEST);
            Error::Manifest { manifest, problem }
        })?;
        let tree = Tree::read(&root, path, Links::Refuse)?;
        let warnings = manifest
            .items
            .iter()
            .filter(|item| item.gone)
            .map(|item| {
                format!(
                    "{}: the folder {} is listed in Manifest.json and missing; it is written again (git drops empty folders)",
                    path.display(),
                    item.path.display()
                )
            })
            .collect();
        let model_path = manifest.root.clone();
        Ok(Self {
            kind: Kind::Folder,
            model: Some(open_model_file(
                &root.join(&model_path),
                &path.join(&model_path),
            )?),
            weights: Arc::new(Weights::new(&root, &model_path, &tree.files, temporary)),
            path: path.to_owned(),
            places: vec![place],
            root,
            tree,
            manifest: Some(manifest),
            metadata: None,
            model_path,
            added: BTreeMap::new(),
            warnings,
        })
    }

    fn open_compiled(
        path: &Path,
        place: PathBuf,
        root: PathBuf,
        temporary: Option<Arc<TempDir>>,
    ) -> Result<Self, Error> {
        let tree = Tree::read(&root, path, Links::Follow)?;
        let model_path = PathBuf::from(COMPILED_TEXT);
        let mut warnings = Vec::new();
        let metadata = match fs::read(root.join(COMPILED_METADATA)) {
            Ok(text) => serde_json::from_slice(&text)
                .map_err(|error| {
                    warnings.push(format!(
                        "{}: is not JSON and is ignored: {error}",
                        path.join(COMPILED_METADATA).display()
                    ));
                })
                .ok(),
            Err(_) => None,
        };
        Ok(Self {
            kind: Kind::Compiled,
            model: Some(open_model_file(
                &root.join(&model_path),
                &path.join(&model_path),
            )?),
            weights: Arc::new(Weights::new(&root, &model_path, &tree.files, temporary)),
            path: path.to_owned(),
            places: vec![place],
            root,
            tree,
            manifest: None,
            metadata,
            model_path,
            added: BTreeMap::new(),
            warnings,
        })
    }

    fn open_model(path: &Path, place: PathBuf) -> Result<Self, Error> {
        // The weights lie beside the name that was given, even if that is a link.
        let absolute = std::path::absolute(path).map_err(|e| OpenError::read(path, e))?;
        let root = absolute.parent().unwrap_or(Path::new("")).to_owned();
        let model_path = PathBuf::from(absolute.file_name().unwrap_or_default());
        let mut tree = beside(&root)?;
        let weights = Arc::new(Weights::new(&root, &model_path, &tree.files, None));
        tree.files.push(model_path.clone());
        tree.files.sort();
        Ok(Self {
            kind: Kind::Model,
            model: Some(open_model_file(path, path)?),
            weights,
            path: path.to_owned(),
            places: vec![place],
            root,
            tree,
            manifest: None,
            metadata: None,
            model_path,
            added: BTreeMap::new(),
            warnings: Vec::new(),
        })
    }

    /// A new package without weights, laid out as coremltools does. [`Package::save`] gives it its
    /// root model.
    pub fn create() -> Self {
        let manifest = Manifest::new();
        let model_path = manifest.root.clone();
        Self {
            kind: Kind::Folder,
            path: PathBuf::new(),
            places: Vec::new(),
            root: PathBuf::new(),
            tree: Tree::default(),
            metadata: None,
            model: None,
            weights: Arc::new(Weights::new(Path::new(""), &model_path, &[], None)),
            manifest: Some(manifest),
            model_path,
            added: BTreeMap::new(),
            warnings: Vec::new(),
        }
    }

    /// The same package with other weight files: each by its name as the program spells it, and the
    /// path where it lies. A file of that name in the package gives way; files that are not named
    /// stay.
    pub fn with_weight_files(
        mut self,
        files: impl IntoIterator<Item = (String, PathBuf)>,
    ) -> Result<Self, WeightsError> {
        for (name, path) in files {
            let within = self.weights.resolve(&name)?;
            self.added.insert(within, path);
        }
        self.weights = Arc::new(self.weights.with_files(&self.added));
        let paths = self.added.values();
        self.places
            .extend(paths.filter_map(|path| fs::canonicalize(path).ok()));
        Ok(self)
    }

    /// The same package, which must not be written over `path`, nor into it, nor around it.
    pub fn away_from(mut self, path: &Path) -> Self {
        self.places.extend(fs::canonicalize(path));
        self
    }

    /// What the package was opened from.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The path that was opened, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The root model's path relative to the package. For a compiled model, `model.mil`.
    pub fn model_path(&self) -> &Path {
        &self.model_path
    }

    /// The root model: a serialized `Model` message, or MIL text for a compiled model.
    pub fn model_bytes(&self) -> &[u8] {
        self.model.as_ref().map(Map::bytes).unwrap_or_default()
    }

    /// `metadata.json` of a compiled model, if there is one.
    pub fn metadata(&self) -> Option<&serde_json::Value> {
        self.metadata.as_ref()
    }

    /// The weight files. They may be kept longer than the package.
    pub fn weights(&self) -> &Arc<Weights> {
        &self.weights
    }

    /// All files of the package, relative to it, sorted. For a bare model: the model and the files
    /// in the folder `weights` beside it.
    pub fn files(&self) -> &[PathBuf] {
        &self.tree.files
    }

    /// What was odd about the package, one line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl Weights {
    /// No weight files.
    pub fn none() -> Self {
        Self::new(Path::new(""), Path::new(""), &[], None)
    }

    /// The weight files of a model that stands alone at `model` (a MIL text, say): those in the
    /// folder `weights` beside it.
    pub fn beside(model: &Path) -> Result<Self, Error> {
        let root = match model.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let name = Path::new(model.file_name().unwrap_or_default());
        Ok(Self::new(root, name, &beside(root)?.files, None))
    }
}

/// The folder `weights` in `root` and what is in it, or nothing.
fn beside(root: &Path) -> Result<Tree, OpenError> {
    let folder = Path::new(WEIGHTS_FOLDER);
    if !root.join(folder).is_dir() {
        return Ok(Tree::default());
    }
    let mut tree = Tree::read(&root.join(folder), &root.join(folder), Links::Follow)?;
    for path in tree.files.iter_mut().chain(&mut tree.folders) {
        *path = folder.join(&path);
    }
    tree.folders.insert(0, folder.to_owned());
    Ok(tree)
}

fn first_bytes(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut start = Vec::new();
    File::open(path)?
        .take(LFS_START.len() as u64)
        .read_to_end(&mut start)?;
    Ok(start)
}

/// Maps the root model; errors speak of it as `shown`, since a zip's files lie elsewhere.
fn open_model_file(path: &Path, shown: &Path) -> Result<Map, OpenError> {
    let map = Map::open(path).map_err(|e| OpenError::read(shown, e))?;
    if map.bytes().starts_with(LFS_START) {
        return Err(OpenError::LfsPointer {
            path: shown.to_owned(),
        });
    }
    Ok(map)
}
