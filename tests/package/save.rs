//! What a saved package holds, and what a save refuses to touch.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use milwright::package::{Error, Package, SaveError, SaveOptions, WeightsPlan};

use crate::sample::{MANIFEST, MODEL, MODEL_BYTES, Sample, WEIGHTS, content, raw, weight_file};

const FORCE: SaveOptions = SaveOptions { force: true };

fn save(package: &Package, out: &Path, options: &SaveOptions) -> Result<(), SaveError> {
    let plan = WeightsPlan::default();
    match package.save(out, b"\x08\x09new", &plan, options, &mut |_| {}) {
        Ok(()) => Ok(()),
        Err(Error::Save(error)) => {
            let message = error.to_string();
            assert!(!message.contains('\n'), "{message}");
            assert!(message.starts_with(&out.display().to_string()), "{message}");
            Err(error)
        }
        Err(other) => panic!("{other:?}"),
    }
}

fn sample() -> Sample {
    let sample = Sample::with_weights(&weight_file(&[raw(1, &[1, 2]), raw(2, &[3; 100])]));
    sample.write("Data/com.apple.CoreML/FeatureDescriptions.json", "{ }\r\n");
    sample.write("Data/com.apple.CoreML/weights/.keep", "");
    sample.write("top \u{e9}.txt", "x");
    fs::create_dir_all(sample.path.join("Data/empty/inner")).unwrap();
    sample
}

#[test]
fn everything_but_the_root_model_is_kept_byte_for_byte() {
    let sample = sample();
    let out = sample.beside("out.mlpackage");
    save(&sample.open(), &out, &SaveOptions::default()).unwrap();
    let mut expected = content(&sample.path);
    expected.insert(PathBuf::from(MODEL), Some(b"\x08\x09new".to_vec()));
    assert_eq!(content(&out), expected);
    assert_eq!(sample.neighbours(), ["in.mlpackage", "out.mlpackage"]);
    assert_eq!(fs::read(sample.path.join(MODEL)).unwrap(), MODEL_BYTES);
}

#[test]
fn the_root_model_is_written_where_the_manifest_has_it() {
    let sample = Sample::empty();
    sample.write(
        "Manifest.json",
        MANIFEST.replace("CoreML/model.mlmodel", "CoreML/My Net.mlmodel"),
    );
    sample.write("Data/com.apple.CoreML/My Net.mlmodel", MODEL_BYTES);
    let out = sample.beside("out.mlpackage");
    // The folder of the weights is not there, and is written again.
    save(&sample.open(), &out, &SaveOptions::default()).unwrap();
    let found = content(&out);
    let names: Vec<&str> = found.keys().map(|path| path.to_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "Data",
            "Data/com.apple.CoreML",
            "Data/com.apple.CoreML/My Net.mlmodel",
            "Data/com.apple.CoreML/weights",
            "Manifest.json"
        ]
    );
    assert_eq!(
        found[Path::new("Data/com.apple.CoreML/My Net.mlmodel")].as_deref(),
        Some(b"\x08\x09new".as_slice())
    );
    assert!(Package::open(&out).unwrap().warnings().is_empty());
}

#[test]
fn the_output_gets_the_usual_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let sample = sample();
    let out = sample.beside("out.mlpackage");
    save(&sample.open(), &out, &SaveOptions::default()).unwrap();
    let plain = sample.beside("plain");
    fs::create_dir(&plain).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&out), mode(&plain));
}

#[test]
fn progress_adds_up_to_the_bytes_of_the_output() {
    let sample = sample();
    let package = sample.open();
    let plan = WeightsPlan::default();
    let mut sum = 0;
    let out = sample.beside("out.mlpackage");
    let mut progress = |bytes| sum += bytes;
    package
        .save(&out, b"1234", &plan, &SaveOptions::default(), &mut progress)
        .unwrap();
    let files = content(&out);
    let written: usize = files.values().flatten().map(Vec::len).sum();
    assert_eq!(sum, written as u64);
    assert_eq!(package.output_bytes(4, &plan), written as u64);
}

#[test]
fn an_output_that_exists_stays_without_force_and_is_replaced_with_it() {
    let sample = sample();
    let package = sample.open();
    let out = sample.beside("out.mlpackage");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("Manifest.json"), "old").unwrap();
    fs::write(out.join("old"), "old").unwrap();
    let before = content(&out);
    assert!(matches!(
        save(&package, &out, &SaveOptions::default()),
        Err(SaveError::Exists { .. })
    ));
    assert_eq!(content(&out), before);
    save(&package, &out, &FORCE).unwrap();
    assert!(!out.join("old").exists());
    assert!(out.join(MODEL).exists());
    assert_eq!(sample.neighbours(), ["in.mlpackage", "out.mlpackage"]);
}

#[test]
fn a_zip_that_exists_stays_without_force_and_is_replaced_with_it() {
    let sample = sample();
    let package = sample.open();
    let out = sample.beside("out.zip");
    fs::write(&out, "old").unwrap();
    assert!(matches!(
        save(&package, &out, &SaveOptions::default()),
        Err(SaveError::Exists { .. })
    ));
    assert_eq!(fs::read(&out).unwrap(), b"old");
    save(&package, &out, &FORCE).unwrap();
    assert!(fs::read(&out).unwrap().starts_with(b"PK"));
    assert_eq!(sample.neighbours(), ["in.mlpackage", "out.zip"]);
}

#[test]
fn what_is_no_package_is_not_replaced_even_with_force() {
    let sample = sample();
    let package = sample.open();
    let documents = sample.beside("documents");
    fs::create_dir(&documents).unwrap();
    fs::write(documents.join("thesis"), "years of work").unwrap();
    let file = sample.beside("file.mlpackage");
    fs::write(&file, "x").unwrap();
    let folder = sample.beside("folder.zip");
    fs::create_dir(&folder).unwrap();
    for out in [&documents, &file, &folder] {
        assert!(matches!(
            save(&package, out, &FORCE),
            Err(SaveError::NotReplaced { .. })
        ));
    }
    assert_eq!(
        fs::read(documents.join("thesis")).unwrap(),
        b"years of work"
    );
    let empty = sample.beside("empty.mlpackage");
    fs::create_dir(&empty).unwrap();
    save(&package, &empty, &FORCE).unwrap();
}

#[test]
fn the_input_is_never_the_output_nor_inside_or_around_it() {
    let sample = sample();
    let package = sample.open();
    let before = content(&sample.path);
    let link = sample.beside("link.mlpackage");
    symlink(&sample.path, &link).unwrap();
    let zip = sample.beside("in.zip");
    save(&package, &zip, &SaveOptions::default()).unwrap();
    for out in [
        sample.path.clone(),
        sample.path.join("Data/out.mlpackage"),
        sample.path.join("../in.mlpackage"),
        link.clone(),
        link.join("out.mlpackage"),
        sample.folder.path().to_owned(),
    ] {
        for options in [&SaveOptions::default(), &FORCE] {
            assert!(
                matches!(
                    save(&package, &out, options),
                    Err(SaveError::TouchesInput { .. })
                ),
                "{}",
                out.display()
            );
        }
    }
    let zipped = Package::open(&zip).unwrap();
    assert!(matches!(
        save(&zipped, &zip, &FORCE),
        Err(SaveError::TouchesInput { .. })
    ));
    assert_eq!(content(&sample.path), before);
}

#[test]
fn outputs_without_a_name_or_a_folder_are_refused() {
    let sample = sample();
    let package = sample.open();
    assert!(matches!(
        save(&package, Path::new("/"), &FORCE),
        Err(SaveError::NoName { .. })
    ));
    assert!(matches!(
        save(&package, Path::new(".."), &FORCE),
        Err(SaveError::NoName { .. })
    ));
    assert!(matches!(
        save(&package, &sample.beside("no/such/x.mlpackage"), &FORCE),
        Err(SaveError::NoFolder { .. })
    ));
}

#[test]
fn compiled_and_bare_models_are_read_only() {
    let sample = Sample::empty();
    sample.write("model.mil", "program(1.0)");
    sample.write("net.mlmodel", MODEL_BYTES);
    let out = sample.beside("out.mlpackage");
    for input in [sample.path.clone(), sample.path.join("net.mlmodel")] {
        let package = Package::open(&input).unwrap();
        let plan = WeightsPlan::default();
        let error = package
            .save(&out, b"", &plan, &FORCE, &mut |_| {})
            .unwrap_err();
        assert!(matches!(error, Error::Save(SaveError::ReadOnly { .. })));
        assert!(error.to_string().starts_with(&input.display().to_string()));
    }
    assert!(!out.exists());
}

#[test]
fn a_name_that_is_not_unicode_is_kept_in_a_folder_and_refused_in_a_zip() {
    use std::os::unix::ffi::OsStringExt;
    let sample = sample();
    let name = std::ffi::OsString::from_vec(b"caf\xe9".to_vec());
    fs::write(sample.path.join(&name), "x").unwrap();
    let package = sample.open();
    let out = sample.beside("out.mlpackage");
    save(&package, &out, &SaveOptions::default()).unwrap();
    assert_eq!(fs::read(out.join(&name)).unwrap(), b"x");
    assert!(matches!(
        save(&package, &sample.beside("out.zip"), &SaveOptions::default()),
        Err(SaveError::NameInZip { .. })
    ));
    assert_eq!(sample.neighbours(), ["in.mlpackage", "out.mlpackage"]);
}

#[test]
fn the_weight_file_is_the_same_after_any_number_of_saves() {
    let sample = sample();
    let mut last = sample.path.clone();
    for round in 0..3 {
        let out = sample.beside(&format!("{round}.mlpackage"));
        save(&Package::open(&last).unwrap(), &out, &FORCE).unwrap();
        last = out;
    }
    assert_eq!(
        fs::read(last.join(WEIGHTS)).unwrap(),
        fs::read(sample.path.join(WEIGHTS)).unwrap()
    );
}
