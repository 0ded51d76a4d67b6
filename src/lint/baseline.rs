//! A baseline: the findings that a project knows and lives with, so that only new ones count.
//!
//! A finding is known by its model's file name, its rule, and its place by names. The message is not part
//! of it, as it holds numbers that may change. What is there twice is known twice.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::finding::Finding;

/// Version of the file's form.
const VERSION: u32 = 1;

/// Why a baseline cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum BaselineError {
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no baseline.
    #[error("{}: it is no baseline: {why}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

/// Known findings.
#[derive(Clone, Debug, Default)]
pub struct Baseline(BTreeMap<Key, usize>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    model: String,
    path: String,
    id: String,
}

impl Key {
    fn of(model: &Path, finding: &Finding) -> Self {
        Self {
            model: file_name(model),
            path: finding.path(),
            id: finding.rule.id.to_owned(),
        }
    }
}

/// The last part of a path.
fn file_name(path: &Path) -> String {
    path.file_name()
        .map_or_else(|| path.to_string_lossy(), |name| name.to_string_lossy())
        .into_owned()
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    findings: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    model: String,
    place: String,
    id: String,
    count: usize,
}

impl Baseline {
    /// Adds the findings of a model.
    pub fn add<'f>(&mut self, model: &Path, findings: impl IntoIterator<Item = &'f Finding>) {
        for finding in findings {
            *self.0.entry(Key::of(model, finding)).or_default() += 1;
        }
    }

    /// Takes a finding that is known away. Gives whether it was.
    pub fn take(&mut self, model: &Path, finding: &Finding) -> bool {
        match self.0.get_mut(&Key::of(model, finding)) {
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        }
    }

    /// Number of findings.
    pub fn count(&self) -> usize {
        self.0.values().sum()
    }

    /// Number of findings of these models.
    pub fn count_of(&self, model: &Path) -> usize {
        let name = file_name(model);
        let of_model = self.0.iter().filter(|(key, _)| key.model == name);
        of_model.map(|(_, count)| count).sum()
    }

    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, BaselineError> {
        let invalid = |why: String| BaselineError::Invalid {
            path: path.to_owned(),
            why,
        };
        let text = std::fs::read_to_string(path).map_err(|source| BaselineError::File {
            path: path.to_owned(),
            source,
        })?;
        let file: File = serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))?;
        if file.version != VERSION {
            return Err(invalid(format!("its version is {}", file.version)));
        }
        let mut baseline = Self::default();
        for entry in file.findings {
            let key = Key {
                model: entry.model,
                path: entry.place,
                id: entry.id,
            };
            *baseline.0.entry(key).or_default() += entry.count;
        }
        Ok(baseline)
    }

    /// Writes a file, whole or not at all, in the same order for the same findings.
    pub fn write(&self, path: &Path) -> Result<(), BaselineError> {
        let file = File {
            version: VERSION,
            findings: self
                .0
                .iter()
                .map(|(key, count)| Entry {
                    model: key.model.clone(),
                    place: key.path.clone(),
                    id: key.id.clone(),
                    count: *count,
                })
                .collect(),
        };
        let write = || -> std::io::Result<()> {
            let folder = path
                .parent()
                .filter(|folder| !folder.as_os_str().is_empty());
            let mut temporary =
                tempfile::NamedTempFile::new_in(folder.unwrap_or_else(|| Path::new(".")))?;
            serde_json::to_writer_pretty(&mut temporary, &file)?;
            temporary.write_all(b"\n")?;
            temporary.persist(path).map_err(|error| error.error)?;
            Ok(())
        };
        write().map_err(|source| BaselineError::File {
            path: path.to_owned(),
            source,
        })
    }
}
