//! What can go wrong with a package, each with the file it is about and what to do.

use std::io;
use std::path::{Path, PathBuf};

use super::archive::ArchiveError;
use super::manifest::ManifestError;
use super::save::SaveError;
use super::weights::WeightsError;

/// Anything that stops a package from being opened, read or written. Every message is one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The input is not something that can be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The package's `Manifest.json` does not hold.
    #[error("{}: {problem}", manifest.display())]
    Manifest {
        /// The manifest's path.
        manifest: PathBuf,
        /// What is wrong with it.
        problem: ManifestError,
    },
    /// The input is a zip that cannot be unpacked, or that is not safe to unpack.
    #[error("{}: {problem}", archive.display())]
    Archive {
        /// The zip's path.
        archive: PathBuf,
        /// What is wrong with it.
        problem: ArchiveError,
    },
    /// A weight file, or a blob in one, does not hold.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The package could not be written.
    #[error(transparent)]
    Save(#[from] SaveError),
}

/// Why a path does not open as a package.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Nothing is there.
    #[error("{}: no such file or folder", path.display())]
    NotFound {
        /// The path as given.
        path: PathBuf,
    },
    /// The folder or file is there, but is none of the kinds that can be opened.
    #[error(
        "{}: not a package: expected an .mlpackage folder, a zip of one, an .mlmodelc folder or an .mlmodel file",
        path.display()
    )]
    NotAPackage {
        /// The path as given.
        path: PathBuf,
    },
    /// The folder holds nothing at all.
    #[error("{}: the folder is empty, there is no package in it", path.display())]
    EmptyFolder {
        /// The folder.
        path: PathBuf,
    },
    /// The file holds nothing at all.
    #[error("{}: the file is empty, copy or download it again", path.display())]
    EmptyFile {
        /// The file.
        path: PathBuf,
    },
    /// The folder looks like a package, but its manifest is gone.
    #[error("{}: Manifest.json is missing, copy the whole package again", path.display())]
    ManifestMissing {
        /// The package's folder.
        path: PathBuf,
    },
    /// A compiled model that holds no MIL text, such as a neural network or a pipeline.
    #[error(
        "{}: a compiled model without model.mil (a neural network or a pipeline), open the .mlpackage it was compiled from",
        path.display()
    )]
    CompiledWithoutText {
        /// The `.mlmodelc` folder.
        path: PathBuf,
    },
    /// A symbolic link inside a package.
    #[error(
        "{}: is a symbolic link, and a package must hold its own files: copy the package with `cp -rL` and open the copy",
        path.display()
    )]
    Symlink {
        /// The link.
        path: PathBuf,
    },
    /// A pipe, socket or device inside a package.
    #[error("{}: neither a file nor a folder, remove it from the package", path.display())]
    SpecialFile {
        /// The path.
        path: PathBuf,
    },
    /// The file holds the few lines that Git LFS leaves in place of the content.
    #[error("{}: is a Git LFS pointer: run `git lfs pull` to fetch the file itself", path.display())]
    LfsPointer {
        /// The file.
        path: PathBuf,
    },
    /// The operating system refused to read.
    #[error("{}: cannot be read: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl OpenError {
    pub(super) fn read(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        if source.kind() == io::ErrorKind::NotFound {
            Self::NotFound { path }
        } else {
            Self::Read { path, source }
        }
    }
}
