//! Getting files onto the disk: room reserved beforehand, flushing in a second thread meanwhile.
//!
//! A weight file of gigabytes takes about as long to flush as to copy. With both, a save that
//! flushes everything takes no longer than a plain copy that flushes nothing (measured on ext4).

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Files that wait for the flushing thread; more would hold more files open.
const WAITING: usize = 16;

/// A file to flush.
pub(super) enum Job {
    /// What is written so far, to have it out of the way.
    Start(File),
    /// All of it, with the path to name if that fails.
    Finish(File, PathBuf),
}

/// Hands files to the flushing thread, which ends when this is dropped.
pub(super) struct Flusher {
    sender: SyncSender<Job>,
}

impl Flusher {
    /// The two ends: one for whoever writes, one for [`run`].
    pub(super) fn new() -> (Self, Receiver<Job>) {
        let (sender, receiver) = sync_channel(WAITING);
        (Self { sender }, receiver)
    }

    /// Lets the flush of a file begin, unless the thread is busy.
    pub(super) fn start(&self, file: &File) {
        if let Ok(file) = file.try_clone() {
            let _ = self.sender.try_send(Job::Start(file));
        }
    }

    /// Flushes a complete file. Its error comes out of [`run`].
    pub(super) fn finish(&self, file: File, path: &Path) {
        // The thread hangs up early only after an error, which `run` returns.
        let _ = self.sender.send(Job::Finish(file, path.to_owned()));
    }
}

/// Flushes whatever comes, until the sender is dropped. The first error ends it.
pub(super) fn run(jobs: Receiver<Job>) -> Result<(), (PathBuf, io::Error)> {
    for job in jobs {
        match job {
            // Whatever fails here fails again when the file is complete.
            Job::Start(file) => drop(file.sync_data()),
            Job::Finish(file, path) => file.sync_all().map_err(|error| (path, error))?,
        }
    }
    Ok(())
}

/// Bytes from which on room is reserved for a file.
#[cfg(any(target_os = "linux", target_os = "android"))]
const RESERVED_FROM: u64 = 16 << 20;

/// Reserves room for a large file that is to be written, so that a disk that is too full is found
/// at once, and blocks need not be found while flushing. The file gets this length.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    if bytes < RESERVED_FROM {
        return Ok(());
    }
    let result = fallocate(file, FallocateFlags::empty(), 0, bytes).map_err(io::Error::from);
    match result {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::StorageFull
                    | io::ErrorKind::QuotaExceeded
                    | io::ErrorKind::FileTooLarge
            ) =>
        {
            Err(error)
        }
        // Not every file system can; the writing itself tells.
        _ => Ok(()),
    }
}

/// Reserves room for a large file where the system can; here it cannot.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
#[expect(clippy::unnecessary_wraps, reason = "other systems can fail")]
pub(super) fn reserve(_file: &File, _bytes: u64) -> io::Result<()> {
    Ok(())
}

/// Flushes a folder's list of names, where the system knows such a thing.
pub(super) fn folder(path: &Path) {
    if let Ok(folder) = File::open(path) {
        let _ = folder.sync_all();
    }
}
