//! Every package of a collection goes in and comes out again. `MILWRIGHT_CORPUS` names its folder.

use std::path::{Path, PathBuf};

use milwright::package::{BlobRef, Kind, Package, SaveOptions, WeightsPlan};

use crate::sample::content;
use crate::support::folders::{corpus, found_below};

/// All packages and compiled models below a folder; `None` if there is no collection.
fn packages() -> Option<Vec<PathBuf>> {
    let mut found = found_below(&corpus()?, &["mlpackage", "mlmodelc"]);
    found.retain(|path| path.is_dir());
    assert!(found.len() > 10, "the collection is there");
    Some(found)
}

/// References to all blobs of all weight files of a package.
fn all_blobs(package: &Package) -> Vec<BlobRef> {
    let folder = package.model_path().parent().unwrap();
    let files = package.files().iter();
    let names = files.filter_map(|path| path.strip_prefix(folder).ok());
    let mut found = Vec::new();
    for name in names.filter(|name| name.extension().is_some_and(|ending| ending == "bin")) {
        let file = format!("@model_path/{}", name.display());
        for (offset, _) in package.weights().blobs(&file).unwrap_or_default() {
            let file = file.clone();
            found.push(BlobRef { file, offset });
        }
    }
    found
}

/// Number of blobs that the headers of a package's weight files say.
fn counted(package: &Path) -> usize {
    let files = content(package);
    let weights = files
        .iter()
        .filter(|(path, _)| path.ends_with("weights/weight.bin"));
    weights
        .map(|(_, bytes)| {
            let bytes = bytes.as_ref().unwrap();
            u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize
        })
        .sum()
}

#[test]
fn every_package_of_the_collection_is_saved_byte_for_byte() {
    let Some(packages) = packages() else { return };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.mlpackage");
    let mut blobs = 0;
    for path in packages {
        let package = Package::open(&path).unwrap();
        let all = all_blobs(&package);
        assert_eq!(all.len(), counted(&path), "{}", path.display());
        blobs += all.len();
        if package.kind() == Kind::Compiled {
            continue;
        }
        let plan = WeightsPlan::new(package.weights(), &all, &all, &[], false).unwrap();
        let model = package.model_bytes();
        package
            .save(
                &out,
                model,
                &plan,
                &SaveOptions { force: true },
                &mut |_| {},
            )
            .unwrap();
        let mut expected = content(&path);
        if !package.warnings().is_empty() {
            // Git dropped the empty folder; it is written again.
            let gone = PathBuf::from("Data/com.apple.CoreML/weights");
            assert_eq!(expected.insert(gone, None), None);
        }
        assert!(content(&out) == expected, "{}", path.display());
    }
    println!("{blobs} blobs");
    assert!(blobs > 0);
}

#[test]
fn every_second_blob_of_the_collection_reads_the_same_after_the_others_are_dropped() {
    let Some(packages) = packages() else { return };
    let folder = tempfile::tempdir().unwrap();
    for path in packages {
        let package = Package::open(&path).unwrap();
        let all = all_blobs(&package);
        if all.len() < 2 || package.kind() == Kind::Compiled {
            continue;
        }
        for first in [0, 1] {
            let used: Vec<BlobRef> = all.iter().skip(first).step_by(2).cloned().collect();
            let plan = WeightsPlan::new(package.weights(), &all, &used, &[], false).unwrap();
            let out = folder.path().join("out.mlpackage");
            let options = SaveOptions { force: true };
            package
                .save(&out, package.model_bytes(), &plan, &options, &mut |_| {})
                .unwrap();
            assert_eq!(counted(&out), used.len());
            let saved = Package::open(&out).unwrap();
            assert_eq!(all_blobs(&saved).len(), used.len());
            for blob in used {
                let moved = plan.offset(&blob.file, blob.offset).unwrap();
                let new = saved.weights().blob(&blob.file, moved).unwrap();
                let old = package.weights().blob(&blob.file, blob.offset).unwrap();
                assert!(new == old, "{} {}", path.display(), blob.offset);
            }
        }
    }
}
