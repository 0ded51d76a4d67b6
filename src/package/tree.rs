//! What lies in a package's folder: all files and folders, by paths relative to it.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::OpenError;

/// Files and folders below one folder, relative to it, each list sorted by path.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) files: Vec<PathBuf>,
    pub(super) folders: Vec<PathBuf>,
}

/// What to do with a symbolic link met on the way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Links {
    /// A package is written again file by file, and a link could smuggle a foreign file in.
    Refuse,
    /// A model that is only read may be spread over links; a linked folder is not entered.
    Follow,
}

impl Tree {
    /// Lists everything below `root`. Anything that is neither a file, a folder nor a permitted
    /// link (a pipe would block whoever opens it) is an error. Errors speak of `root` as `shown`.
    pub(super) fn read(root: &Path, shown: &Path, links: Links) -> Result<Self, OpenError> {
        let mut tree = Self::default();
        let mut pending = vec![PathBuf::new()];
        while let Some(folder) = pending.pop() {
            let error = |source| OpenError::read(&shown.join(&folder), source);
            let entries = fs::read_dir(root.join(&folder)).map_err(error)?;
            for entry in entries {
                let entry = entry.map_err(error)?;
                let path = folder.join(entry.file_name());
                let mut kind = entry.file_type().map_err(error)?;
                if kind.is_symlink() {
                    if links == Links::Refuse {
                        return Err(OpenError::Symlink {
                            path: shown.join(path),
                        });
                    }
                    match fs::metadata(entry.path()) {
                        Ok(metadata) if metadata.is_file() => kind = metadata.file_type(),
                        _ => continue,
                    }
                }
                if kind.is_dir() {
                    pending.push(path.clone());
                    tree.folders.push(path);
                } else if kind.is_file() {
                    tree.files.push(path);
                } else {
                    return Err(OpenError::SpecialFile {
                        path: shown.join(path),
                    });
                }
            }
        }
        tree.files.sort();
        tree.folders.sort();
        Ok(tree)
    }
}
