//! Zips of packages: those that open, those that are not safe, and those that are written.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use milwright::package::{ArchiveError, Error, Kind, Package, SaveOptions, WeightsPlan};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use crate::sample::{
    MANIFEST, MODEL, MODEL_BYTES, SPELLED, Sample, content, open_error, raw, weight_file,
};

/// A zip with these entries; a name that ends in a slash is a folder.
fn zip(path: &Path, entries: &[(&str, &[u8])]) {
    let mut zip = ZipWriter::new(File::create(path).unwrap());
    let options = SimpleFileOptions::default();
    for (name, bytes) in entries {
        if name.ends_with('/') {
            zip.add_directory(*name, options).unwrap();
        } else {
            zip.start_file(*name, options).unwrap();
            zip.write_all(bytes).unwrap();
        }
    }
    zip.finish().unwrap();
}

/// The files of a package below `top`, with these others.
fn package_zip(path: &Path, top: &str, others: &[(&str, &[u8])]) {
    let weights = weight_file(&[raw(1, &[1, 2])]);
    let files: [(&str, &[u8]); 3] = [
        ("Manifest.json", MANIFEST.as_bytes()),
        (MODEL, MODEL_BYTES),
        ("Data/com.apple.CoreML/weights/weight.bin", &weights),
    ];
    let names: Vec<String> = files
        .iter()
        .map(|file| format!("{top}{}", file.0))
        .collect();
    let mut entries: Vec<(&str, &[u8])> = others.to_vec();
    for (name, file) in names.iter().zip(files) {
        entries.push((name, file.1));
    }
    zip(path, &entries);
}

fn archive_error(path: &Path) -> ArchiveError {
    match open_error(path) {
        Error::Archive { problem, .. } => problem,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_zip_opens_with_and_without_a_folder_at_its_top() {
    let sample = Sample::empty();
    for top in ["", "Net.mlpackage/", "dist/a b/Net.mlpackage/"] {
        let path = sample.beside("net.zip");
        package_zip(&path, top, &[]);
        let package = Package::open(&path).unwrap();
        assert_eq!(package.kind(), Kind::Zip);
        assert!(package.kind().is_writable());
        assert!(package.warnings().is_empty());
        assert_eq!(package.model_bytes(), MODEL_BYTES);
        assert_eq!(package.files().len(), 3);
        // The unpacked files live as long as the weights do.
        let weights = std::sync::Arc::clone(package.weights());
        drop(package);
        assert_eq!(weights.blob(SPELLED, 64).unwrap().data, [1, 2]);
    }
}

#[test]
fn what_macos_adds_to_a_zip_is_not_part_of_the_package() {
    let sample = Sample::empty();
    let path = sample.beside("net.zip");
    let mac: [(&str, &[u8]); 3] = [
        ("__MACOSX/", b""),
        ("__MACOSX/._Manifest.json", b"x"),
        ("__MACOSX/Net.mlpackage/._Data", b"x"),
    ];
    package_zip(&path, "", &mac);
    let package = Package::open(&path).unwrap();
    assert_eq!((package.files().len(), package.warnings().len()), (3, 0));
    let mut beside = mac.to_vec();
    beside.push((".DS_Store", b"x"));
    package_zip(&path, "Net.mlpackage/", &beside);
    let package = Package::open(&path).unwrap();
    assert_eq!((package.files().len(), package.warnings().len()), (3, 0));
}

#[test]
fn files_beside_the_package_in_a_zip_are_warned_about() {
    let sample = Sample::empty();
    let path = sample.beside("net.zip");
    package_zip(&path, "Net.mlpackage/", &[("README.md", b"x")]);
    let package = Package::open(&path).unwrap();
    assert_eq!(package.warnings().len(), 1);
}

#[test]
fn a_zip_of_a_compiled_model_is_read_only() {
    let sample = Sample::empty();
    let path = sample.beside("net.zip");
    zip(&path, &[("net.mlmodelc/model.mil", b"program(1.0)")]);
    let package = Package::open(&path).unwrap();
    assert_eq!(package.kind(), Kind::Compiled);
    assert_eq!(package.model_bytes(), b"program(1.0)");
}

#[test]
fn a_zip_without_a_package_or_with_two_is_refused() {
    let sample = Sample::empty();
    let path = sample.beside("net.zip");
    zip(&path, &[("a/b", b"x")]);
    assert!(matches!(archive_error(&path), ArchiveError::NoPackage));
    zip(&path, &[]);
    assert!(matches!(archive_error(&path), ArchiveError::NoPackage));
    let one = ("one.mlpackage/Manifest.json", MANIFEST.as_bytes());
    package_zip(&path, "two.mlpackage/", &[one]);
    assert!(matches!(archive_error(&path), ArchiveError::Several { .. }));
}

#[test]
fn a_zip_that_is_cut_off_or_damaged_is_refused() {
    let sample = Sample::empty();
    let path = sample.beside("net.zip");
    package_zip(&path, "", &[]);
    let whole = fs::read(&path).unwrap();
    for length in (4..whole.len()).step_by(7) {
        fs::write(&path, &whole[..length]).unwrap();
        open_error(&path);
    }
    // A byte of an entry's data, which its checksum then denies.
    fs::write(&path, &whole).unwrap();
    let mut archive = ZipArchive::new(File::open(&path).unwrap()).unwrap();
    let entry = archive.by_name(MODEL).unwrap();
    let at = usize::try_from(entry.data_start().unwrap()).unwrap() + 3;
    let mut damaged = whole.clone();
    damaged[at] ^= 0xff;
    fs::write(&path, &damaged).unwrap();
    open_error(&path);
}

#[test]
fn entries_that_would_land_outside_are_refused() {
    let sample = Sample::empty();
    let path = sample.beside("net.zip");
    for name in [
        "../evil",
        "a/../../evil",
        "a/..",
        "/tmp/evil",
        "..\\evil",
        "C:/evil",
    ] {
        package_zip(&path, "", &[(name, b"x")]);
        assert!(
            matches!(archive_error(&path), ArchiveError::Outside(found) if found == name),
            "{name}"
        );
    }
    assert_eq!(sample.neighbours(), ["in.mlpackage", "net.zip"]);
}

#[test]
fn links_in_a_zip_are_refused() {
    let sample = Sample::empty();
    let path = sample.beside("net.zip");
    let mut writer = ZipWriter::new(File::create(&path).unwrap());
    let options = SimpleFileOptions::default();
    writer.add_symlink("Data", "/etc", options).unwrap();
    writer.finish().unwrap();
    assert!(matches!(archive_error(&path), ArchiveError::Special(name) if name == "Data"));
}

#[test]
fn two_entries_of_one_name_are_refused() {
    let sample = Sample::empty();
    let path = sample.beside("net.zip");
    package_zip(&path, "", &[("Manifest.jsoX", b"x")]);
    let mut bytes = fs::read(&path).unwrap();
    for at in 0..bytes.len() - 13 {
        if &bytes[at..at + 13] == b"Manifest.jsoX" {
            bytes[at + 12] = b'n';
        }
    }
    fs::write(&path, &bytes).unwrap();
    assert!(
        matches!(archive_error(&path), ArchiveError::Duplicate(name) if name == "Manifest.json")
    );
    // A file and a folder of one name, too.
    package_zip(&path, "", &[("Manifest.json/", b"")]);
    assert!(matches!(archive_error(&path), ArchiveError::Duplicate(_)));
}

#[test]
fn an_encrypted_entry_or_one_in_an_unknown_compression_is_refused() {
    let sample = Sample::empty();
    let path = sample.beside("net.zip");
    package_zip(&path, "", &[]);
    let whole = fs::read(&path).unwrap();
    // Flag bit 0 and the method, in every local and central record.
    let patched = |local: usize, central: usize, value: u8| {
        let mut bytes = whole.clone();
        for at in 0..bytes.len() - 46 {
            if bytes[at..].starts_with(b"PK\x03\x04") {
                bytes[at + local] = value;
            } else if bytes[at..].starts_with(b"PK\x01\x02") {
                bytes[at + central] = value;
            }
        }
        bytes
    };
    fs::write(&path, patched(6, 8, 1)).unwrap();
    archive_error(&path);
    fs::write(&path, patched(8, 10, 99)).unwrap();
    archive_error(&path);
}

#[test]
fn a_saved_zip_has_one_folder_and_opens_with_the_same_content() {
    let sample = Sample::with_weights(&weight_file(&[raw(1, &[1, 2])]));
    sample.write("extra/note.txt", "x".repeat(1000));
    fs::create_dir(sample.path.join("empty")).unwrap();
    let package = sample.open();
    let plan = WeightsPlan::default();
    for (name, top) in [
        ("out.zip", "out.mlpackage"),
        ("net.mlpackage.ZIP", "net.mlpackage"),
        ("a b.zip", "a b.mlpackage"),
    ] {
        let out = sample.beside(name);
        package
            .save(
                &out,
                MODEL_BYTES,
                &plan,
                &SaveOptions::default(),
                &mut |_| {},
            )
            .unwrap();
        let mut archive = ZipArchive::new(File::open(&out).unwrap()).unwrap();
        let mut found = std::collections::BTreeMap::new();
        let mut names = Vec::new();
        for index in 0..archive.len() {
            let mut entry = archive.by_index(index).unwrap();
            let name = entry.name().unwrap().into_owned();
            let path = PathBuf::from(name.strip_prefix(top).unwrap().trim_matches('/'));
            names.push(path.clone());
            if path == Path::new("Data/com.apple.CoreML/weights/weight.bin") {
                assert_eq!(entry.compression(), CompressionMethod::Stored);
            }
            assert_eq!(entry.last_modified().unwrap().year(), 1980);
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            found.insert(path, entry.is_file().then_some(bytes));
        }
        assert!(names.is_sorted());
        assert_eq!(found.remove(Path::new("")), Some(None));
        assert_eq!(found, content(&sample.path));

        let unpacked = Package::open(&out).unwrap();
        let again = sample.beside(&format!("{name}.mlpackage"));
        unpacked
            .save(
                &again,
                MODEL_BYTES,
                &plan,
                &SaveOptions::default(),
                &mut |_| {},
            )
            .unwrap();
        assert_eq!(content(&again), content(&sample.path));
    }
}

#[test]
fn equal_input_gives_an_equal_zip() {
    let sample = Sample::with_weights(&weight_file(&[raw(1, &[1, 2])]));
    let package = sample.open();
    let plan = WeightsPlan::default();
    let bytes = ["x/net.zip", "y/net.zip"].map(|name| {
        let out = sample.beside(name);
        fs::create_dir(out.parent().unwrap()).unwrap();
        package
            .save(
                &out,
                MODEL_BYTES,
                &plan,
                &SaveOptions::default(),
                &mut |_| {},
            )
            .unwrap();
        fs::read(out).unwrap()
    });
    assert_eq!(bytes[0], bytes[1]);
}
