//! What opens, what does not, and what is said about it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use milwright::package::{Error, Kind, ManifestError, OpenError, Package, Weights, WeightsError};

use crate::sample::{
    MANIFEST, MODEL, MODEL_BYTES, SPELLED, Sample, WEIGHTS, open_error, raw, weight_file,
};

const LFS: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";

fn manifest_error(from: &str, to: &str) -> ManifestError {
    match Sample::with_manifest(from, to).open_error() {
        Error::Manifest { problem, .. } => problem,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_folder_opens_with_all_its_files_in_order() {
    let sample = Sample::with_weights(&weight_file(&[raw(1, &[1, 2])]));
    sample.write("extra.json", "{}");
    sample.write("Data/com.apple.CoreML/weights/.keep", "keep\n");
    let package = sample.open();
    assert_eq!(package.kind(), Kind::Folder);
    assert_eq!(package.model_path(), Path::new(MODEL));
    assert_eq!(package.model_bytes(), MODEL_BYTES);
    assert!(package.warnings().is_empty());
    let files: Vec<PathBuf> = [
        MODEL,
        "Data/com.apple.CoreML/weights/.keep",
        WEIGHTS,
        "Manifest.json",
        "extra.json",
    ]
    .map(PathBuf::from)
    .to_vec();
    assert_eq!(package.files(), files);
    assert_eq!(package.weights().blob(SPELLED, 64).unwrap().data, [1, 2]);
}

#[test]
fn a_root_model_of_any_name_and_unknown_keys_and_further_items_open() {
    let sample = Sample::empty();
    sample.write(
        "Manifest.json",
        r#"{"fileFormatVersion":"0.9.5","future":[1],"rootModelIdentifier":"r","itemInfoEntries":{
        "r":{"author":"me","description":"","name":"x","path":"a/b/Model.mlmodel","size":3},
        "f":{"author":"me","description":"","name":"FeatureDescriptions","path":"a/b/f.json"}}}"#,
    );
    sample.write("Data/a/b/Model.mlmodel", MODEL_BYTES);
    sample.write("Data/a/b/f.json", "{}");
    sample.write("Data/a/b/w/x.bin", weight_file(&[raw(1, &[1, 2])]));
    let package = sample.open();
    assert_eq!(package.model_path(), Path::new("Data/a/b/Model.mlmodel"));
    let weights = package.weights();
    for name in ["@model_path/w/x.bin", "w/x.bin", "./w/x.bin"] {
        assert_eq!(weights.blob(name, 64).unwrap().data, [1, 2], "{name}");
    }
}

#[test]
fn a_compiled_model_opens_with_text_metadata_and_weights() {
    let sample = Sample::empty();
    sample.write("model.mil", "program(1.0)");
    sample.write("metadata.json", r#"[{"specificationVersion": 7}]"#);
    sample.write("weights/weight.bin", weight_file(&[raw(2, &[0; 4])]));
    let package = sample.open();
    assert_eq!(package.kind(), Kind::Compiled);
    assert!(!package.kind().is_writable());
    assert_eq!(package.model_path(), Path::new("model.mil"));
    assert_eq!(package.model_bytes(), b"program(1.0)");
    assert_eq!(
        package.metadata().unwrap()[0]["specificationVersion"],
        serde_json::json!(7)
    );
    assert!(package.weights().blob(SPELLED, 64).is_ok());
}

#[test]
fn a_compiled_model_with_broken_metadata_opens_with_a_warning() {
    let sample = Sample::empty();
    sample.write("model.mil", "program(1.0)");
    sample.write("metadata.json", "[");
    let package = sample.open();
    assert!(package.metadata().is_none());
    assert!(package.warnings()[0].contains("metadata.json"));
}

#[test]
fn a_compiled_model_without_text_is_told_from_no_model_at_all() {
    let sample = Sample::empty();
    sample.write("coremldata.bin", "x");
    assert!(matches!(
        sample.open_error(),
        Error::Open(OpenError::CompiledWithoutText { .. })
    ));
}

#[test]
fn a_bare_model_opens_with_the_weights_beside_it() {
    let sample = Sample::empty();
    sample.write("net.mlmodel", MODEL_BYTES);
    sample.write("weights/weight.bin", weight_file(&[raw(4, &[7])]));
    sample.write("unrelated.txt", "x");
    let package = Package::open(&sample.path.join("net.mlmodel")).unwrap();
    assert_eq!(package.kind(), Kind::Model);
    assert_eq!(package.model_bytes(), MODEL_BYTES);
    assert_eq!(
        package.files(),
        [
            PathBuf::from("net.mlmodel"),
            PathBuf::from("weights/weight.bin")
        ]
    );
    assert_eq!(package.weights().blob(SPELLED, 64).unwrap().data, [7]);

    let alone = Weights::beside(&sample.path.join("case.mil")).unwrap();
    assert_eq!(alone.blob(SPELLED, 64).unwrap().data, [7]);
}

#[test]
fn the_form_is_told_by_the_content_and_not_by_the_name() {
    let sample = Sample::with_weights(&weight_file(&[]));
    let renamed = sample.beside("anything");
    fs::rename(&sample.path, &renamed).unwrap();
    assert_eq!(Package::open(&renamed).unwrap().kind(), Kind::Folder);
    let model = sample.beside("model.pb");
    fs::write(&model, MODEL_BYTES).unwrap();
    assert_eq!(Package::open(&model).unwrap().kind(), Kind::Model);
}

#[test]
fn what_is_no_package_is_refused_with_its_reason() {
    let sample = Sample::empty();
    let error = |path: &Path| match open_error(path) {
        Error::Open(error) => error,
        other => panic!("{other:?}"),
    };
    assert!(matches!(error(&sample.path), OpenError::EmptyFolder { .. }));
    assert!(matches!(
        error(&sample.beside("nothing")),
        OpenError::NotFound { .. }
    ));
    let text = sample.beside("text");
    fs::write(&text, "hello").unwrap();
    assert!(matches!(error(&text), OpenError::NotAPackage { .. }));
    fs::write(&text, "").unwrap();
    assert!(matches!(error(&text), OpenError::EmptyFile { .. }));
    fs::write(&text, LFS).unwrap();
    assert!(matches!(error(&text), OpenError::LfsPointer { .. }));
    assert!(matches!(
        error(sample.folder.path()),
        OpenError::NotAPackage { .. }
    ));
    sample.write("x", "x");
    assert!(matches!(
        error(&sample.path),
        OpenError::ManifestMissing { .. }
    ));
}

#[test]
fn a_manifest_that_is_not_json_or_lacks_a_key_says_what_is_missing() {
    assert!(matches!(
        manifest_error("{", "{,"),
        ManifestError::NotJson(_)
    ));
    for key in [
        "fileFormatVersion",
        "itemInfoEntries",
        "rootModelIdentifier",
        "author",
        "description",
        "name",
        "path",
    ] {
        let error = manifest_error(&format!("\"{key}\""), "\"other\"");
        let ManifestError::Key { place, found, .. } = error else {
            panic!("{error:?}");
        };
        assert!(place.ends_with(key), "{place}");
        assert_eq!(found, "missing");
    }
    let error = manifest_error("\"1.0.0\"", "1");
    assert_eq!(
        error.to_string(),
        "fileFormatVersion must be a string, and it is a number"
    );
}

#[test]
fn versions_above_1_0_0_are_refused_and_lower_ones_open() {
    for version in ["1.0.1", "1.1.0", "2.0.0", "99999.0.0"] {
        assert!(matches!(
            manifest_error("1.0.0", version),
            ManifestError::NewVersion(_)
        ));
    }
    for version in [
        "", "1", "1.0", "1.0.0.0", "1.0.x", "1.0.-1", "+1.0.0", "1..0",
    ] {
        assert!(matches!(
            manifest_error("1.0.0", version),
            ManifestError::BadVersion(_)
        ));
    }
    Sample::with_manifest("1.0.0", "0.9.5").open();
}

#[test]
fn item_paths_that_lead_out_of_the_package_are_refused() {
    let path = "com.apple.CoreML/model.mlmodel";
    for up in ["../model.mlmodel", "com.apple.CoreML/../../x", "a/.."] {
        assert!(matches!(
            manifest_error(path, up),
            ManifestError::StepsUp(_)
        ));
    }
    assert!(matches!(
        manifest_error(path, "/etc/passwd"),
        ManifestError::Absolute(_)
    ));
    for nothing in ["", ".", "./"] {
        assert!(matches!(
            manifest_error(path, nothing),
            ManifestError::EmptyPath(_)
        ));
    }
}

#[test]
fn items_that_are_not_there_are_refused() {
    let path = "com.apple.CoreML/model.mlmodel";
    for missing in [
        "gone.mlmodel",
        "a/b",
        &format!("{path}/x"),
        "nul\\u0000byte",
    ] {
        assert!(matches!(
            manifest_error(path, missing),
            ManifestError::Missing(_)
        ));
    }
    assert!(matches!(
        manifest_error(path, "com.apple.CoreML"),
        ManifestError::RootNotAFile(_)
    ));
    assert!(matches!(
        manifest_error(
            "\"rootModelIdentifier\": \"B9",
            "\"rootModelIdentifier\": \"C9"
        ),
        ManifestError::NoRootItem(_)
    ));
}

#[test]
fn a_link_on_the_way_to_an_item_is_refused_wherever_it_leads() {
    let outside = Sample::with_weights(&weight_file(&[]));
    for (link, item) in [
        ("Data/com.apple.CoreML/model.mlmodel", true),
        ("Data/com.apple.CoreML", true),
        ("Data", true),
        ("Data/com.apple.CoreML/weights/weight.bin", false),
        ("Manifest.json", false),
    ] {
        let sample = Sample::with_weights(&weight_file(&[]));
        let place = sample.path.join(link);
        if place.is_dir() {
            fs::remove_dir_all(&place).unwrap();
        } else {
            fs::remove_file(&place).unwrap();
        }
        symlink(outside.path.join(link), &place).unwrap();
        match sample.open_error() {
            Error::Manifest {
                problem: ManifestError::Symlink { .. },
                ..
            } => assert!(item, "{link}"),
            Error::Open(OpenError::Symlink { .. }) => assert!(!item, "{link}"),
            other => panic!("{link}: {other:?}"),
        }
    }
}

#[test]
fn a_package_folder_that_is_itself_reached_by_a_link_opens() {
    let sample = Sample::with_weights(&weight_file(&[]));
    let link = sample.beside("link.mlpackage");
    symlink(&sample.path, &link).unwrap();
    assert_eq!(Package::open(&link).unwrap().model_bytes(), MODEL_BYTES);
}

#[test]
fn a_pipe_in_a_package_is_refused_instead_of_waited_for() {
    let sample = Sample::with_weights(&weight_file(&[]));
    let status = std::process::Command::new("mkfifo")
        .arg(sample.path.join("pipe"))
        .status()
        .unwrap();
    assert!(status.success());
    assert!(matches!(
        sample.open_error(),
        Error::Open(OpenError::SpecialFile { .. })
    ));
}

#[test]
fn a_weights_folder_that_is_gone_opens_with_a_warning() {
    let sample = Sample::with_weights(&weight_file(&[]));
    fs::remove_dir_all(sample.path.join(WEIGHTS).parent().unwrap()).unwrap();
    let package = sample.open();
    assert_eq!(package.warnings().len(), 1);
    assert!(package.warnings()[0].contains("com.apple.CoreML/weights"));
    assert_eq!(
        package.weights().blob(SPELLED, 64).unwrap_err(),
        WeightsError::Missing {
            file: SPELLED.to_owned(),
            offset: 64
        }
    );
}

#[test]
fn git_lfs_pointers_are_named_for_what_they_are() {
    let sample = Sample::with_weights(LFS.as_bytes());
    assert!(matches!(
        sample.open().weights().blob(SPELLED, 64).unwrap_err(),
        WeightsError::LfsPointer { offset: 64, .. }
    ));
    sample.write(MODEL, LFS);
    let error = sample.open_error();
    assert!(matches!(error, Error::Open(OpenError::LfsPointer { .. })));
    assert!(error.to_string().contains("git lfs pull"));
}

#[test]
fn a_byte_order_mark_before_the_manifest_is_passed_over() {
    let sample = Sample::with_weights(&weight_file(&[]));
    sample.write("Manifest.json", format!("\u{feff}{MANIFEST}"));
    sample.open();
}
