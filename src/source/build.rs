//! A package from text: the description, the weight files, and which of their blobs are in use.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::blobs::blob_references;
use super::text::TextSource;
use super::{FileError, Kind, Missing, ModelFile, Place};
use crate::model::Model;
use crate::package::weights::{self, WeightsError};
use crate::package::{Package, Weights};

/// Where the parts of a package come from that are not in the text.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuildOptions<'a> {
    /// A file in place of the text's weight file.
    pub weights: Option<&'a Path>,
    /// A package (or bare model) whose description, metadata, other files and, failing all else,
    /// weight files are taken.
    pub description: Option<&'a Path>,
    /// What to do about weight files that are nowhere.
    pub missing: Missing,
}

/// A package that has been put together and not yet written.
pub struct Build {
    /// The model, ready to be saved.
    pub file: ModelFile,
    /// What an author should know, one line each.
    pub notes: Vec<String>,
}

/// The name by which a text refers to its weights if it has one file.
const USUAL_NAME: &str = "weight.bin";

/// Makes a package of the text at `path` (a `.mil` file, a compiled model, `-` for standard input).
///
/// Weight files are looked for in this order: `options.weights`, beside the text, in the package
/// of the description. A file all of whose blobs are in use (or, if it comes from that package,
/// the blobs that were in use there) is taken as it is; of any other the blobs in use are taken.
pub fn build(path: &Path, options: &BuildOptions<'_>) -> Result<Build, FileError> {
    let source = if TextSource::is_text(path) {
        TextSource::read(path)?
    } else {
        let package = Package::open(path)?;
        if package.kind() != crate::package::Kind::Compiled {
            let kind = match package.kind() {
                crate::package::Kind::Model => Kind::BareModel,
                _ => Kind::Package,
            };
            return Err(FileError::NotText { kind });
        }
        TextSource::compiled(package)?
    };
    let program = source.parse()?;
    let mut notes = Vec::new();
    let (model, package, from) = if let Some(from) = options.description {
        let package = Package::open(from)?;
        let mut model = Model::decode(package.model_bytes())?;
        let had = blob_references(&model);
        let name = from.display().to_string();
        let adopted = model.adopt(program).map_err(|source| FileError::Adopt {
            from: name.clone(),
            source: Box::new(source),
        })?;
        notes.extend(adopted);
        let weights = Arc::clone(package.weights());
        let layout = if package.kind().is_writable() {
            package
        } else {
            Package::create()
        };
        (model, layout, Some(From { name, weights, had }))
    } else {
        if let Some(metadata) = source.metadata() {
            notes.extend(metadata.others().map(|feature| {
                format!(
                    "`{}` was {} in the compiled model and is described as an array; \
                     --description FROM.mlpackage keeps what it was",
                    feature.name, feature.kind
                )
            }));
        }
        (
            Model::new(program, &source.origin())?,
            Package::create(),
            None,
        )
    };

    let references = blob_references(&model);
    let mut used: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    for blob in &references {
        used.entry(&blob.file).or_default().insert(blob.offset);
    }
    let replaced = options
        .weights
        .and_then(|file| replaced_name(file, used.keys().copied()));
    if let (Some(file), None) = (options.weights, replaced) {
        notes.push(format!(
            "no BLOBFILE of the text is {}, it is not used",
            file.display()
        ));
    }
    let finder = Finder {
        given: options.weights.zip(replaced),
        source: &source,
        from: from.as_ref(),
    };
    let mut files = Vec::new();
    let mut others = Vec::new();
    let mut absent = Vec::new();
    for name in used.keys() {
        match finder.find(name)? {
            Some(Found { path, is_theirs }) => {
                if !is_theirs {
                    others.push(*name);
                }
                files.push(((*name).to_owned(), path));
            }
            None => absent.push((*name).to_owned()),
        }
    }
    if !absent.is_empty() && options.missing == Missing::Refuse {
        return Err(finder.nowhere(absent));
    }
    let package = package.with_weight_files(files).map_err(without_place)?;
    let package = package.away_from(path);

    // What a file held in all, as far as it matters: if that is what is in use, it is kept whole.
    let mut original: Vec<weights::BlobRef> = from
        .iter()
        .flat_map(|from| &from.had)
        .filter(|blob| !others.contains(&blob.file.as_str()))
        .cloned()
        .collect();
    for name in others {
        let Some(offsets) = used.get(name) else {
            continue;
        };
        // What cannot be read is told when the blobs are checked.
        if let Ok(false) = package.weights().has_others(name, offsets) {
            original.extend(offsets.iter().map(|offset| weights::BlobRef {
                file: name.to_owned(),
                offset: *offset,
            }));
        }
    }
    let file = ModelFile {
        model,
        place: Place::Package(package),
        original,
    };
    Ok(Build { file, notes })
}

/// The package that the description is from.
struct From {
    name: String,
    weights: Arc<Weights>,
    /// The blobs that its own program refers to.
    had: Vec<weights::BlobRef>,
}

/// Where a weight file was found.
struct Found {
    path: PathBuf,
    /// In the package of the description.
    is_theirs: bool,
}

struct Finder<'a> {
    /// The file in place of the one of this name.
    given: Option<(&'a Path, &'a str)>,
    source: &'a TextSource,
    from: Option<&'a From>,
}

impl Finder<'_> {
    fn find(&self, name: &str) -> Result<Option<Found>, FileError> {
        let found = |path, is_theirs| Some(Found { path, is_theirs });
        if let Some((file, _)) = self.given.filter(|(_, replaced)| *replaced == name) {
            return Ok(found(file.to_owned(), false));
        }
        if let Some(path) = present(self.source.weights(), name)? {
            return Ok(found(path, false));
        }
        match self.from {
            Some(from) => Ok(present(&from.weights, name)?.and_then(|path| found(path, true))),
            None => Ok(None),
        }
    }

    fn nowhere(&self, files: Vec<String>) -> FileError {
        let mut looked = vec![self.source.weights_place()];
        looked.extend(self.from.map(|from| from.name.clone()));
        let hint = match (self.from, files.len()) {
            (Some(_), 1) => "give it with --weights FILE",
            (None, 1) => "give it with --weights FILE or --description FROM.mlpackage",
            _ => "put them there",
        };
        FileError::NoWeightFile {
            files,
            looked,
            hint,
        }
    }
}

/// The path of a weight file of this name, if there is one.
fn present(weights: &Weights, name: &str) -> Result<Option<PathBuf>, FileError> {
    weights.resolve(name).map_err(without_place)?;
    Ok(weights.path(name).map(Path::to_owned))
}

fn without_place(source: WeightsError) -> FileError {
    FileError::Weights {
        place: String::new(),
        source,
    }
}

/// Which of the names in a text a given file stands for: the only one, or the one whose last part
/// is the file's name, or that is called as usual.
fn replaced_name<'a>(file: &Path, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let names: Vec<&str> = names.collect();
    if let [only] = names.as_slice() {
        return Some(only);
    }
    let last = |name: &str| name.rsplit('/').next().unwrap_or_default().to_owned();
    let own = file.file_name().unwrap_or_default().to_string_lossy();
    let called = |wanted: &str| names.iter().copied().find(|name| last(name) == wanted);
    called(&own).or_else(|| called(USUAL_NAME))
}
