//! Moving a written package to its place, whole or not at all.

use std::fs;
use std::io;
use std::path::Path;

/// Moves `written` to `out`. With `force`, whatever is at `out` is afterwards at `written` or gone;
/// without, it is an error if something is there.
pub(super) fn move_into_place(written: &Path, out: &Path, force: bool) -> io::Result<()> {
    if !force {
        return match system::rename_new(written, out) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                if fs::symlink_metadata(out).is_ok() {
                    return Err(io::Error::from(io::ErrorKind::AlreadyExists));
                }
                fs::rename(written, out)
            }
            result => result,
        };
    }
    match fs::symlink_metadata(out) {
        Err(_) => fs::rename(written, out),
        // A file takes the place of another in one step.
        Ok(metadata) if !metadata.is_dir() && !written.is_dir() => fs::rename(written, out),
        Ok(_) => match system::exchange(written, out) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                exchange_in_steps(written, out)
            }
            result => result,
        },
    }
}

/// For file systems that cannot exchange two names in one step.
fn exchange_in_steps(written: &Path, out: &Path) -> io::Result<()> {
    let mut old = written.file_name().unwrap_or_default().to_owned();
    old.push(".replaced");
    let old = written.with_file_name(old);
    fs::rename(out, &old)?;
    if let Err(error) = fs::rename(written, out) {
        fs::rename(&old, out)?;
        return Err(error);
    }
    Ok(())
}

/// What the operating system does in one step; an error of kind `Unsupported` where it cannot.
#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
mod system {
    use std::io;
    use std::path::Path;

    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;

    pub(super) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
        rename(from, to, RenameFlags::NOREPLACE)
    }

    pub(super) fn exchange(one: &Path, other: &Path) -> io::Result<()> {
        rename(one, other, RenameFlags::EXCHANGE)
    }

    fn rename(from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
        renameat_with(CWD, from, CWD, to, flags).map_err(|error| match error {
            Errno::INVAL | Errno::NOSYS | Errno::NOTSUP => io::ErrorKind::Unsupported.into(),
            error => error.into(),
        })
    }
}

/// What the operating system does in one step; here it cannot.
#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
mod system {
    use std::io;
    use std::path::Path;

    pub(super) fn rename_new(_from: &Path, _to: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn exchange(_one: &Path, _other: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
