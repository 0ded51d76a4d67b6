//! A model from whatever a `MODEL` argument can be: a package, a bare model file, a compiled model,
//! or MIL text.
//!
//! What was opened as a package can be written back; of the others only the program is there, with
//! as much of an interface as it tells. [`build`] makes a package of a text.

mod blobs;
mod build;
mod fingerprint;
mod inline;
mod metadata;
mod save;
mod text;
mod weight_files;

use std::path::Path;
use std::sync::Arc;

pub use build::{Build, BuildOptions, build};
pub use metadata::CompiledMetadata;
pub use text::TextErrors;

pub(crate) use blobs::blob_dtype;
use blobs::blob_references;
pub use blobs::{Blobs, NoBlobs};
use text::TextSource;

use crate::model::{self, AdoptError, DescribeError, Model};
use crate::package::weights::{self, WeightsError};
use crate::package::{self, Package, Weights};

/// What a model was opened from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An `.mlpackage` folder, or a zip of one.
    Package,
    /// One `.mlmodel` file outside of any package.
    BareModel,
    /// A compiled `.mlmodelc`.
    Compiled,
    /// A `.mil` text.
    Text,
}

impl Kind {
    /// The kind in a few words, with its article.
    pub fn words(self) -> &'static str {
        match self {
            Self::Package => "a package",
            Self::BareModel => "a model file without a package",
            Self::Compiled => "a compiled model",
            Self::Text => "MIL text",
        }
    }

    /// How a package is made of it, as a command.
    fn remedy(self) -> &'static str {
        match self {
            Self::Package => "",
            Self::BareModel => "open the .mlpackage that it is from",
            Self::Compiled | Self::Text => "`milwright build` makes a package of it",
        }
    }
}

/// Why a model could not be opened, built or saved.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The package.
    #[error(transparent)]
    Package(#[from] package::Error),
    /// The model file in it.
    #[error(transparent)]
    Model(#[from] model::Error),
    /// The text is not MIL.
    #[error(transparent)]
    Text(#[from] TextErrors),
    /// A weight file or a blob.
    #[error("{place}{source}")]
    Weights {
        /// The function and operation that refer to the blob, with a colon; empty if none does.
        place: String,
        /// What is wrong.
        source: WeightsError,
    },
    /// A compiled model whose program is not text.
    #[error(
        "its model.mil is binary, which only Core ML itself reads; give the .mlpackage that it was \
         compiled from, or compile that again with a coremlc that writes text"
    )]
    BinaryProgram,
    /// A text that is no UTF-8.
    #[error("it is not UTF-8 at byte {at}, so it is no MIL text")]
    NotUtf8 {
        /// Byte position of the first wrong byte.
        at: usize,
    },
    /// A text could not be read.
    #[error("it cannot be read: {0}")]
    Read(std::io::Error),
    /// A blob's declared type has no place in a weight file.
    #[error(
        "{place}a tensor of type {dtype} and unknown or unstorable size refers to a weight file"
    )]
    Unstorable {
        /// The operation that refers to the blob, with a colon.
        place: String,
        /// Its declared element type.
        dtype: String,
    },
    /// What was opened is only read.
    #[error("it is {}, which is only read; {}", kind.words(), kind.remedy())]
    ReadOnly {
        /// What it is.
        kind: Kind,
    },
    /// A package was given to build one of.
    #[error("it is {}, and a package is built from MIL text: a .mil file or an .mlmodelc", kind.words())]
    NotText {
        /// What it is.
        kind: Kind,
    },
    /// The text has no description.
    #[error("no package can be made of it: {0}")]
    Describe(#[from] DescribeError),
    /// The text does not fit the description.
    #[error("the text does not fit the description of {from}: {source}")]
    Adopt {
        /// The package with the description.
        from: String,
        /// What does not fit.
        source: Box<AdoptError>,
    },
    /// Weight files of the text are nowhere.
    #[error(
        "the text refers to {}, which {} not in {}; {hint}", some(files),
        if files.len() == 1 { "is" } else { "are" }, looked.join(", nor in ")
    )]
    NoWeightFile {
        /// The files, as the text spells them.
        files: Vec<String>,
        /// Where they were looked for.
        looked: Vec<String>,
        /// What to do.
        hint: &'static str,
    },
    /// A constant that a pass made has no place in a text.
    #[error(
        "{place}: a pass made this constant of {bytes} bytes, which is too large for a literal; give \
         --weights-dir DIR, which writes each weight into a file"
    )]
    TooLargeForText {
        /// The function and operation.
        place: String,
        /// Its size.
        bytes: usize,
    },
    /// Weight files could not be written.
    #[error("{}: {source}", path.display())]
    WriteWeights {
        /// The file or folder.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// The first of some names, and how many more there are.
fn some(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [only] => only.clone(),
        [first, rest @ ..] => format!("{first} and {} more files", rest.len()),
    }
}

/// What to do about blobs whose data is not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missing {
    /// Missing weight files are an error.
    #[default]
    Refuse,
    /// Missing weight files stay missing.
    Allow,
}

/// A model with its weight files, and with its package if it is in one.
pub struct ModelFile {
    /// The model.
    pub model: Model,
    place: Place,
    /// The blob references of the program as it was opened.
    original: Vec<weights::BlobRef>,
}

/// Where the model stands.
enum Place {
    Package(Package),
    Text(TextSource),
}

impl ModelFile {
    /// Opens a model of any kind and decodes or parses its program. Blobs are not looked at; see
    /// [`ModelFile::check_blobs`].
    pub fn open(path: &Path) -> Result<Self, FileError> {
        if TextSource::is_text(path) {
            return Self::of_text(TextSource::read(path)?);
        }
        let package = Package::open(path)?;
        if package.kind() == package::Kind::Compiled {
            return Self::of_text(TextSource::compiled(package)?);
        }
        let model = Model::decode(package.model_bytes())?;
        Ok(Self::in_package(package, model))
    }

    fn of_text(source: TextSource) -> Result<Self, FileError> {
        let program = source.parse()?;
        let model = Model::for_reading(program, &source.origin());
        let original = blob_references(&model);
        Ok(Self {
            model,
            place: Place::Text(source),
            original,
        })
    }

    fn in_package(package: Package, model: Model) -> Self {
        let original = blob_references(&model);
        Self {
            model,
            place: Place::Package(package),
            original,
        }
    }

    /// What it was opened from.
    pub fn kind(&self) -> Kind {
        match &self.place {
            Place::Package(package) if package.kind().is_writable() => Kind::Package,
            Place::Package(_) => Kind::BareModel,
            Place::Text(source) => source.kind(),
        }
    }

    /// True if [`ModelFile::save`] can write it.
    pub fn is_writable(&self) -> bool {
        self.kind() == Kind::Package
    }

    /// The path that was opened, as it was given.
    pub fn path(&self) -> &Path {
        match &self.place {
            Place::Package(package) => package.path(),
            Place::Text(source) => source.path(),
        }
    }

    /// The package, or bare model file, that it is in; `None` for a text or a compiled model.
    pub fn package(&self) -> Option<&Package> {
        match &self.place {
            Place::Package(package) => Some(package),
            Place::Text(_) => None,
        }
    }

    /// What was odd about it, one line each.
    pub fn warnings(&self) -> &[String] {
        match &self.place {
            Place::Package(package) => package.warnings(),
            Place::Text(source) => source.warnings(),
        }
    }

    /// The weight files.
    pub fn weights(&self) -> &Arc<Weights> {
        match &self.place {
            Place::Package(package) => package.weights(),
            Place::Text(source) => source.weights(),
        }
    }

    /// What the `metadata.json` of a compiled model says.
    pub fn metadata(&self) -> Option<CompiledMetadata> {
        match &self.place {
            Place::Package(_) => None,
            Place::Text(source) => source.metadata(),
        }
    }
}
