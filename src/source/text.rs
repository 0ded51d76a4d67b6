//! MIL text as a model: a `.mil` file with the weights beside it, or a compiled model.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{CompiledMetadata, FileError, Kind};
use crate::ir::Program;
use crate::model::Origin;
use crate::package::{Package, Weights};
use crate::text::{self, ParseError};

/// The path that stands for standard input.
const STANDARD_INPUT: &str = "-";

/// Everything that is wrong with a text, and the text itself to show it.
#[derive(Clone, Debug)]
pub struct TextErrors {
    /// The text.
    pub source: Arc<str>,
    /// What is wrong, in the order of the text; not empty.
    pub errors: Vec<ParseError>,
}

impl fmt::Display for TextErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for TextErrors {}

/// A text and what stands beside it.
pub(super) struct TextSource {
    path: PathBuf,
    text: Arc<str>,
    weights: Arc<Weights>,
    compiled: Option<Package>,
}

impl TextSource {
    /// Whether this path is to be read as MIL text: it says so, or its content begins so.
    pub(super) fn is_text(path: &Path) -> bool {
        if path == Path::new(STANDARD_INPUT) || path.extension().is_some_and(|e| e == "mil") {
            return !path.is_dir();
        }
        let mut start = [0; 8];
        path.is_file()
            && File::open(path).is_ok_and(|mut file| file.read_exact(&mut start).is_ok())
            && start == *b"program("
    }

    /// Reads a text; `-` is standard input.
    pub(super) fn read(path: &Path) -> Result<Self, FileError> {
        let (bytes, weights) = if path == Path::new(STANDARD_INPUT) {
            let mut bytes = Vec::new();
            let mut input = io::stdin().lock();
            input.read_to_end(&mut bytes).map_err(FileError::Read)?;
            (bytes, Weights::none())
        } else {
            let bytes = std::fs::read(path).map_err(FileError::Read)?;
            (bytes, Weights::beside(path)?)
        };
        let text = String::from_utf8(bytes).map_err(|error| FileError::NotUtf8 {
            at: error.utf8_error().valid_up_to(),
        })?;
        Ok(Self {
            path: path.to_owned(),
            text: text.into(),
            weights: Arc::new(weights),
            compiled: None,
        })
    }

    /// The text of a compiled model.
    pub(super) fn compiled(package: Package) -> Result<Self, FileError> {
        // Text holds no zero bytes, and a binary program soon does.
        let bytes = package.model_bytes();
        let text = match std::str::from_utf8(bytes) {
            Ok(text) if !bytes.contains(&0) => Arc::from(text),
            _ => return Err(FileError::BinaryProgram),
        };
        Ok(Self {
            path: package.path().to_owned(),
            text,
            weights: Arc::clone(package.weights()),
            compiled: Some(package),
        })
    }

    pub(super) fn parse(&self) -> Result<Program, TextErrors> {
        let mut origin = self.path.clone();
        if let Some(package) = &self.compiled {
            origin.push(package.model_path());
        }
        match text::parse(&self.text, &origin.to_string_lossy()) {
            Ok(parsed) => Ok(parsed.program),
            Err(errors) => Err(TextErrors {
                source: Arc::clone(&self.text),
                errors,
            }),
        }
    }

    pub(super) fn kind(&self) -> Kind {
        match self.compiled {
            Some(_) => Kind::Compiled,
            None => Kind::Text,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn warnings(&self) -> &[String] {
        self.compiled
            .as_ref()
            .map(Package::warnings)
            .unwrap_or_default()
    }

    pub(super) fn weights(&self) -> &Arc<Weights> {
        &self.weights
    }

    pub(super) fn metadata(&self) -> Option<CompiledMetadata> {
        CompiledMetadata::of(self.compiled.as_ref()?.metadata()?)
    }

    /// What the files beside the text say about the model.
    pub(super) fn origin(&self) -> Origin {
        self.metadata().map_or_else(Origin::default, |m| m.origin)
    }

    /// Where the weight files of the text are, in words.
    pub(super) fn weights_place(&self) -> String {
        match self.kind() {
            Kind::Compiled => self.path.display().to_string(),
            _ => match self.path.parent() {
                Some(parent) => parent.join("weights").display().to_string(),
                None => "weights".to_owned(),
            },
        }
    }
}
