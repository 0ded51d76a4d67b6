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

#[cfg(test)]
mod tests {
    use super::*;

    /// Moves a written folder over an old one with `step` and says what is where.
    fn replaced(step: fn(&Path, &Path) -> io::Result<()>) -> (String, bool) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let written = folder.path().join("hidden").join("out");
        let out = folder.path().join("out");
        for (path, text) in [(&written, "new"), (&out, "old")] {
            fs::create_dir_all(path).expect("a folder");
            fs::write(path.join("file"), text).expect("a file");
        }
        step(&written, &out).expect("the move");
        let text = fs::read_to_string(out.join("file")).expect("the file");
        (text, folder.path().join("hidden").exists())
    }

    #[test]
    fn a_folder_takes_the_place_of_another_with_one_step_or_with_several() {
        let expected = ("new".to_owned(), true);
        let forced = |written: &Path, out: &Path| move_into_place(written, out, true);
        assert_eq!(replaced(forced), expected);
        assert_eq!(replaced(exchange_in_steps), expected);
    }

    #[test]
    fn what_appeared_meanwhile_is_not_replaced_without_force() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (written, out) = (folder.path().join("a"), folder.path().join("b"));
        fs::create_dir(&written).expect("a folder");
        fs::create_dir(&out).expect("a folder");
        let error = move_into_place(&written, &out, false).expect_err("something is there");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        fs::remove_dir(&out).expect("it is removed");
        move_into_place(&written, &out, false).expect("the move");
    }

    #[test]
    fn an_old_folder_comes_back_when_the_new_one_cannot_be_moved() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let hidden = folder.path().join("hidden");
        fs::create_dir(&hidden).expect("a folder");
        let out = folder.path().join("out");
        fs::create_dir(&out).expect("a folder");
        fs::write(out.join("file"), "old").expect("a file");
        assert!(exchange_in_steps(&hidden.join("nothing"), &out).is_err());
        assert!(out.join("file").exists());
    }
}
