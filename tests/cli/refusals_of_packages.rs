//! Packages that cannot be opened: one line that names the file and the cause, status 2, and
//! nothing written.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use crate::command::{Folder, MODEL, args, done, milwright, refused};
use crate::support::folders::{content, test_package};

/// A copy of a package whose manifest is changed by a replacement.
fn with_manifest(from: &str, to: &str) -> Folder {
    let (folder, package) = Folder::with_copy_of("metadata");
    let manifest = package.join("Manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(manifest, text.replace(from, to)).unwrap();
    folder
}

/// The model's path as the manifest spells it.
const ITEM: &str = "com.apple.CoreML/model.mlmodel";

#[test]
fn what_is_not_there() {
    Folder::new().refuses(&["no such file or folder"]);
}

#[test]
fn a_file_that_is_not_a_package() {
    let folder = Folder::new();
    fs::write(folder.join("in.txt"), "hello").unwrap();
    folder.refuses_input("in.txt", &["not a package"]);
    fs::create_dir(folder.join("in.mlpackage")).unwrap();
    fs::write(folder.join("in.mlpackage/hello.txt"), "hello").unwrap();
    folder.refuses(&["in.mlpackage"]);
}

#[test]
fn an_empty_folder() {
    let folder = Folder::new();
    fs::create_dir(folder.join("in.mlpackage")).unwrap();
    folder.refuses(&["the folder is empty"]);
}

#[test]
fn a_package_without_manifest() {
    let (folder, package) = Folder::with_copy_of("metadata");
    fs::remove_file(package.join("Manifest.json")).unwrap();
    folder.refuses(&["Manifest.json is missing"]);
}

#[test]
fn a_manifest_that_is_not_json() {
    let (folder, package) = Folder::with_copy_of("metadata");
    for text in ["", "{", "not json", "[]", "\u{0}"] {
        fs::write(package.join("Manifest.json"), text).unwrap();
        folder.refuses(&["Manifest.json"]);
    }
    fs::write(package.join("Manifest.json"), "not json").unwrap();
    folder.refuses(&["Manifest.json", "is not JSON"]);
}

#[test]
fn a_manifest_that_points_outside_the_package() {
    for path in ["../../other/model.mlmodel", "com.apple.CoreML/../../../x"] {
        with_manifest(ITEM, path).refuses(&["Manifest.json", path, "outside"]);
    }
}

#[test]
fn a_manifest_that_points_to_an_absolute_path() {
    with_manifest(ITEM, "/etc/passwd").refuses(&["Manifest.json", "/etc/passwd", "absolute"]);
}

#[cfg(unix)]
#[test]
fn a_manifest_that_points_through_a_symbolic_link() {
    let (folder, package) = Folder::with_copy_of("metadata");
    let model = package.join(MODEL);
    fs::rename(&model, folder.join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(folder.join("elsewhere"), &model).unwrap();
    folder.refuses(&[MODEL, "symbolic link"]);
}

#[test]
fn a_manifest_that_points_at_a_missing_file() {
    let (folder, package) = Folder::with_copy_of("metadata");
    fs::remove_file(package.join(MODEL)).unwrap();
    folder.refuses(&["Manifest.json", ITEM, "does not exist"]);
}

/// A zip with these entries.
fn zip(path: &Path, entries: &[(&str, &[u8])], method: CompressionMethod) {
    let mut zip = ZipWriter::new(File::create(path).unwrap());
    let options = SimpleFileOptions::default().compression_method(method);
    for (name, bytes) in entries {
        zip.start_file(*name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap();
}

fn entries() -> Vec<(String, Vec<u8>)> {
    content(&test_package("metadata"))
        .into_iter()
        .map(|(path, bytes)| (path.to_str().unwrap().to_owned(), bytes))
        .collect()
}

#[test]
fn a_zip_entry_that_leads_out_of_the_folder() {
    let folder = Folder::new();
    let files = entries();
    let mut all: Vec<(&str, &[u8])> = files.iter().map(|(n, b)| (n.as_str(), &**b)).collect();
    zip(&folder.join("in.zip"), &all, CompressionMethod::Stored);
    let out = folder.join("good.mlpackage");
    let input = folder.join("in.zip");
    done(args![
        "optimize",
        "-q",
        "--pipeline",
        "none",
        "-o",
        out,
        input
    ]);
    all.push(("../evil", b"x"));
    zip(&folder.join("in.zip"), &all, CompressionMethod::Stored);
    folder.refuses_input("in.zip", &["../evil", "not safe"]);
    assert!(!folder.path().parent().unwrap().join("evil").exists());
}

/// 320 MiB of zeros, which take a thousandth of that.
#[test]
fn a_zip_bomb() {
    let folder = Folder::new();
    let powder = folder.join("powder");
    let zeros = vec![0; 8 << 20];
    zip(&powder, &[("zeros", &zeros)], CompressionMethod::Deflated);
    let mut powder = ZipArchive::new(File::open(&powder).unwrap()).unwrap();
    let mut bomb = ZipWriter::new(File::create(folder.join("in.zip")).unwrap());
    for (name, bytes) in entries() {
        bomb.start_file(name, SimpleFileOptions::default()).unwrap();
        bomb.write_all(&bytes).unwrap();
    }
    for index in 0..40 {
        let zeros = powder.by_index_raw(0).unwrap();
        bomb.raw_copy_file_rename(zeros, format!("Data/zeros{index}"))
            .unwrap();
    }
    bomb.finish().unwrap();
    assert!(fs::metadata(folder.join("in.zip")).unwrap().len() < 1 << 20);
    folder.refuses_input("in.zip", &["zip bomb"]);
}

#[test]
fn a_broken_zip() {
    let folder = Folder::new();
    let files = entries();
    let all: Vec<(&str, &[u8])> = files.iter().map(|(n, b)| (n.as_str(), &**b)).collect();
    let path = folder.join("in.zip");
    zip(&path, &all, CompressionMethod::Deflated);
    let whole = fs::read(&path).unwrap();
    for length in [0, 1, 22, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..length]).unwrap();
        folder.refuses_input("in.zip", &["in.zip"]);
    }
}

#[test]
fn an_output_that_exists_stays_unless_forced() {
    let (folder, package) = Folder::with_copy_of("metadata");
    let before = content(&package);
    for name in ["out.mlpackage", "out.zip", "out.mil"] {
        let out = folder.join(name);
        let optimize = |more: &[&str]| {
            let mut arguments = args!["optimize", package, "-o", out];
            arguments.extend(more.iter().map(OsString::from));
            arguments
        };
        done(optimize(&["--pipeline", "none"]));
        let old = content(&out);
        let line = refused(optimize(&[]), &["exists", "--force"]);
        assert!(line.contains(&out.display().to_string()), "{line}");
        assert!(content(&out) == old);
        done(optimize(&["--force"]));
        assert!(content(&out) != old);
    }
    assert!(content(&package) == before);
    let names = folder.names();
    assert_eq!(
        names,
        ["in.mlpackage", "out.mil", "out.mlpackage", "out.zip"]
    );
}

/// A slip of the fingers is no order to delete a folder of photographs.
#[test]
fn what_is_no_package_is_not_replaced_even_if_forced() {
    let (folder, package) = Folder::with_copy_of("metadata");
    let before = content(&package);
    let photographs = folder.join("photographs");
    fs::create_dir(&photographs).unwrap();
    fs::write(photographs.join("one.jpg"), "precious").unwrap();
    let letter = folder.join("letter");
    fs::write(&letter, "precious").unwrap();
    for out in [&photographs, &letter, &package] {
        let line = refused(args!["optimize", package, "--force", "-o", out,], &[]);
        assert!(line.contains(&out.display().to_string()), "{line}");
    }
    assert_eq!(fs::read(photographs.join("one.jpg")).unwrap(), b"precious");
    assert_eq!(fs::read(&letter).unwrap(), b"precious");
    assert!(content(&package) == before);
}

/// A few blocks of a file system in memory; for root on Linux alone.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_nothing() {
    struct Mounted(Folder);
    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount")
                .arg(self.0.path())
                .status();
        }
    }
    let folder = Mounted(Folder::new());
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=4k", "tmpfs"])
        .arg(folder.0.path())
        .output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        println!("skipped: a file system in memory cannot be mounted here");
        return;
    }
    for name in ["out.mlpackage", "out.zip", "out.mil"] {
        let out = folder.0.join(name);
        let package = test_package("attention_block");
        let line = refused(
            args!["optimize", package, "-o", out],
            &[name, "No space left"],
        );
        assert_eq!(line.matches(name).count(), 1, "said twice: {line}");
        assert!(folder.0.names().is_empty(), "{:?}", folder.0.names());
    }
}

/// `tests/package` kills at every instant; this is the same promise of the whole command.
#[cfg(unix)]
#[test]
fn a_kill_leaves_the_old_output_or_the_new_one_whole() {
    let (folder, package) = Folder::with_copy_of("attention_block");
    let out = folder.join("out.mlpackage");
    let optimize = |pipeline: &str| {
        let mut command = std::process::Command::new(milwright().get_program());
        command
            .args(["optimize", "-q", "--force", "--pipeline", pipeline, "-o"])
            .arg(&out)
            .arg(&package);
        command
    };
    assert!(optimize("default").status().unwrap().success());
    let new = content(&out);
    assert!(optimize("none").status().unwrap().success());
    let old = content(&out);
    assert_ne!(old, new);
    for step in 0..30 {
        let mut child = optimize("default").spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(2 * step));
        child.kill().unwrap();
        child.wait().unwrap();
        let found = content(&out);
        assert!(found == old || found == new, "after {} ms", 2 * step);
    }
}
