//! A file mapped into memory, read-only. The only unsafe code of the crate.

use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::Mmap;

/// The content of a file, paged in by the system as it is looked at.
#[derive(Debug)]
pub(crate) struct Map {
    file: File,
    /// `None` for an empty file, which cannot be mapped on every system.
    content: Option<Mmap>,
}

impl Map {
    /// Maps the whole file. It must not be changed by anyone while the map lives.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let content = if file.metadata()?.len() == 0 {
            None
        } else {
            // SAFETY: a mapped file must not be changed while the map lives. This crate opens its
            // input for reading only and refuses to write into it. Another process that truncates
            // the file ends this one with a signal (SIGBUS); one that overwrites it changes the
            // numbers that are read, and no code here relies on two reads being equal for its
            // memory safety.
            #[expect(unsafe_code, reason = "mapping a file is unsafe by its nature")]
            let mapped = unsafe { Mmap::map(&file) }?;
            Some(mapped)
        };
        Ok(Self { file, content })
    }

    /// The file's content.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.content.as_deref().unwrap_or_default()
    }

    /// The file itself, for copies that never pass through memory.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}
