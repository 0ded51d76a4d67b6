//! New layouts of weight files: what moves, what stays, what is written once.

use std::fs;
use std::path::{Path, PathBuf};

use milwright::package::{
    BlobDType, BlobRef, NewBlob, Package, SaveOptions, WeightsError, WeightsPlan, weights,
};
use proptest::prelude::*;

use crate::sample::{
    MANIFEST, MODEL, RawBlob, SPELLED, Sample, WEIGHTS, content, raw, weight_file,
};

fn blob_ref(offset: u64) -> BlobRef {
    BlobRef {
        file: SPELLED.to_owned(),
        offset,
    }
}

fn refs(offsets: &[u64]) -> Vec<BlobRef> {
    offsets.iter().map(|offset| blob_ref(*offset)).collect()
}

fn new(dtype: BlobDType, elements: u64, bytes: &[u8]) -> NewBlob {
    NewBlob {
        file: SPELLED.to_owned(),
        dtype,
        elements,
        bytes: bytes.into(),
    }
}

/// Saves with this plan beside the sample and gives back the written weight file.
fn written(sample: &Sample, plan: &WeightsPlan) -> Vec<u8> {
    let out = sample.beside("out.mlpackage");
    let package = sample.open();
    package
        .save(
            &out,
            b"\x08\x09",
            plan,
            &SaveOptions::default(),
            &mut |_| {},
        )
        .unwrap();
    fs::read(out.join(WEIGHTS)).unwrap()
}

/// Three blobs at 64, 192 and 320 with garbage in their reserved bytes.
fn three() -> [RawBlob; 3] {
    [1, 2, 3].map(|byte| RawBlob {
        number: 1,
        padding: 0xdead,
        data: vec![byte; 40],
        reserved: 0xab,
    })
}

#[test]
fn a_file_whose_blobs_are_all_in_use_is_copied_with_whatever_else_it_holds() {
    let mut file = weight_file(&three());
    file[8] = 0xcc;
    file.extend(b"behind the last blob");
    let sample = Sample::with_weights(&file);
    let package = sample.open();
    // The middle blob is nobody's from the start.
    let used = refs(&[64, 320, 64]);
    let plan = WeightsPlan::new(package.weights(), &used, &used, &[], false).unwrap();
    assert!(plan.is_unchanged());
    assert_eq!(plan.offset(SPELLED, 320), Some(320));
    assert_eq!(plan.offset(SPELLED, 192), None);
    assert_eq!(plan.offset("other", 64), None);
    assert_eq!(written(&sample, &plan), file);
}

#[test]
fn dropping_a_blob_moves_those_behind_it_and_keeps_their_records() {
    let [one, two, three] = three();
    let mut file = weight_file(&[one.clone(), two, three.clone()]);
    file[9] = 0xcc;
    let sample = Sample::with_weights(&file);
    let original = refs(&[64, 192, 320]);
    let used = refs(&[320, 64]);
    let weights = sample.open();
    let plan = WeightsPlan::new(weights.weights(), &original, &used, &[], false).unwrap();
    assert_eq!(plan.offset(SPELLED, 64), Some(64));
    assert_eq!(plan.offset(SPELLED, 320), Some(192));
    let mut expected = weight_file(&[one, three]);
    expected[9] = 0xcc;
    assert_eq!(written(&sample, &plan), expected);
}

#[test]
fn dropping_every_blob_leaves_a_file_with_only_its_header() {
    let sample = Sample::with_weights(&weight_file(&three()));
    let weights = sample.open();
    let original = refs(&[64]);
    let plan = WeightsPlan::new(weights.weights(), &original, &[], &[], false).unwrap();
    assert_eq!(written(&sample, &plan), weight_file(&[]));
}

#[test]
fn new_blobs_come_behind_the_kept_ones_and_equal_ones_are_written_once() {
    let file = weight_file(&three());
    let sample = Sample::with_weights(&file);
    let weights = sample.open();
    let used = refs(&[64, 192, 320]);
    let mut almost = vec![5; 200];
    almost[199] = 6;
    let added = [
        new(BlobDType::Float32, 50, &[5; 200]),
        new(BlobDType::Float32, 50, &almost),
        // Equal to the second kept blob, and with another type not equal to it.
        new(BlobDType::Float16, 20, &[2; 40]),
        new(BlobDType::BFloat16, 20, &[2; 40]),
        new(BlobDType::Float32, 50, &[5; 200]),
        new(BlobDType::UInt3, 5, &[0xd1, 0x58]),
    ];
    let plan = WeightsPlan::new(weights.weights(), &used, &used, &added, false).unwrap();
    let offsets: Vec<u64> = plan.new_blobs().iter().map(|blob| blob.offset).collect();
    assert_eq!(offsets, [448, 768, 192, 1088, 448, 1216]);
    assert!(plan.new_blobs().iter().all(|blob| blob.file == SPELLED));
    let mut blobs = three().to_vec();
    blobs.push(raw(2, &[5; 200]));
    blobs.push(raw(2, &almost));
    blobs.push(raw(5, &[2; 40]));
    blobs.push(RawBlob {
        padding: 1,
        ..raw(12, &[0xd1, 0x58])
    });
    assert_eq!(written(&sample, &plan), weight_file(&blobs));
}

#[test]
fn new_blobs_that_are_all_in_the_file_already_change_nothing() {
    let file = weight_file(&three());
    let sample = Sample::with_weights(&file);
    let weights = sample.open();
    let used = refs(&[64, 192]);
    let added = [new(BlobDType::Float16, 20, &[2; 40])];
    let plan = WeightsPlan::new(weights.weights(), &used, &used, &added, false).unwrap();
    assert!(plan.is_unchanged());
    assert_eq!(plan.new_blobs(), [blob_ref(192)]);
}

#[test]
fn two_spellings_of_a_file_are_one_file() {
    let sample = Sample::with_weights(&weight_file(&three()));
    let weights = sample.open();
    let short = |offset| BlobRef {
        file: "weights/weight.bin".to_owned(),
        offset,
    };
    let original = [blob_ref(64), short(192), short(320)];
    let used = [blob_ref(64), short(320)];
    let plan = WeightsPlan::new(weights.weights(), &original, &used, &[], false).unwrap();
    assert_eq!(plan.offset("weights/weight.bin", 320), Some(192));
    assert_eq!(plan.offset(SPELLED, 320), Some(192));
    let [one, _, three] = three();
    assert_eq!(written(&sample, &plan), weight_file(&[one, three]));
}

#[test]
fn a_package_without_weights_gains_a_folder_and_an_item_for_its_first_blob() {
    let sample = Sample::empty();
    let start = MANIFEST.find("        \"A0AEF1B6").unwrap();
    let end = MANIFEST.find("        \"B9B63827").unwrap();
    let without = MANIFEST.replace(&MANIFEST[start..end], "");
    sample.write("Manifest.json", &without);
    sample.write(MODEL, "\x08\x09");
    let added = [new(BlobDType::Int8, 3, &[1, 2, 3])];
    let package = sample.open();
    let plan = WeightsPlan::new(package.weights(), &[], &[], &added, false).unwrap();
    assert_eq!(plan.new_blobs(), [blob_ref(64)]);
    let file = written(&sample, &plan);
    assert_eq!(file, weight_file(&[raw(4, &[1, 2, 3])]));

    let out = sample.beside("out.mlpackage");
    let text = fs::read_to_string(out.join("Manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&text).unwrap();
    let entries = manifest["itemInfoEntries"].as_object().unwrap();
    let (identifier, item) = entries
        .iter()
        .find(|(_, item)| item["name"] == "weights")
        .unwrap();
    assert_eq!(identifier.len(), 36);
    assert_eq!(item["path"], "com.apple.CoreML/weights");
    assert_eq!(item["author"], "com.apple.CoreML");
    // But for the identifier and the order that follows from it, the usual text.
    let lines = |text: &str| {
        let mut lines: Vec<String> = text
            .replace(identifier.as_str(), "A0AEF1B6-6076-4D4B-B0CC-A6F6C8679C54")
            .lines()
            .map(|line| line.trim_end_matches(',').to_owned())
            .collect();
        lines.sort();
        lines
    };
    assert_eq!(lines(&text), lines(MANIFEST));
    assert!(text.ends_with("}\n"));

    let again = Package::open(&out).unwrap();
    assert!(again.warnings().is_empty());
    assert_eq!(again.weights().blob(SPELLED, 64).unwrap().data, [1, 2, 3]);
    let second = sample.beside("second.mlpackage");
    package
        .save(
            &second,
            b"\x08\x09",
            &plan,
            &SaveOptions::default(),
            &mut |_| {},
        )
        .unwrap();
    assert_eq!(content(&second), content(&out));
}

#[test]
fn an_item_for_the_weights_is_not_added_twice() {
    let sample = Sample::with_weights(&[]);
    fs::remove_dir_all(sample.path.join(WEIGHTS).parent().unwrap()).unwrap();
    let package = sample.open();
    let added = [new(BlobDType::Int8, 1, &[1])];
    let plan = WeightsPlan::new(package.weights(), &[], &[], &added, false).unwrap();
    written(&sample, &plan);
    assert_eq!(
        fs::read_to_string(sample.beside("out.mlpackage/Manifest.json")).unwrap(),
        MANIFEST
    );
}

#[test]
fn missing_weights_stop_a_plan_unless_they_are_allowed_to_be_missing() {
    let sample = Sample::with_weights(b"version https://git-lfs.github.com/spec/v1\n");
    let package = sample.open();
    let missing = BlobRef {
        file: "@model_path/weights/1-weight.bin".to_owned(),
        offset: 64,
    };
    let plan = |used: &[BlobRef], new: &[NewBlob], allowed| {
        let original = [blob_ref(64), blob_ref(128), missing.clone()];
        WeightsPlan::new(package.weights(), &original, used, new, allowed)
    };
    assert!(matches!(
        plan(&[blob_ref(64)], &[], false),
        Err(WeightsError::LfsPointer { .. })
    ));
    assert!(matches!(
        plan(std::slice::from_ref(&missing), &[], false),
        Err(WeightsError::Missing { .. })
    ));
    let allowed = plan(&[blob_ref(128), missing.clone()], &[], true).unwrap();
    assert!(allowed.is_unchanged());
    assert_eq!(allowed.offset(SPELLED, 128), Some(128));
    assert_eq!(allowed.offset(&missing.file, 64), Some(64));
    assert!(plan(&[], &[], false).unwrap().is_unchanged());
    for allowed in [false, true] {
        assert!(matches!(
            plan(&[], &[new(BlobDType::Int8, 1, &[1])], allowed),
            Err(WeightsError::NewBlobIntoMissing { .. })
        ));
    }
}

#[test]
fn new_blobs_must_have_the_bytes_of_their_elements() {
    let sample = Sample::with_weights(&weight_file(&[]));
    let package = sample.open();
    let plan = |blob| WeightsPlan::new(package.weights(), &[], &[], &[blob], false);
    assert!(matches!(
        plan(new(BlobDType::Float16, 2, &[0; 3])),
        Err(WeightsError::NewBlobSize { expected: 4, .. })
    ));
    assert!(matches!(
        plan(new(BlobDType::UInt6, 5, &[0; 3])),
        Err(WeightsError::NewBlobSize { expected: 4, .. })
    ));
    assert!(matches!(
        plan(new(BlobDType::Float16, 0, &[])),
        Err(WeightsError::NewBlobEmpty { .. })
    ));
    assert!(matches!(
        plan(new(BlobDType::Float16, u64::MAX, &[])),
        Err(WeightsError::TooLarge { .. })
    ));
    let mut blob = new(BlobDType::Float16, 1, &[0; 2]);
    blob.file = "@model_path/../x.bin".to_owned();
    assert!(matches!(plan(blob), Err(WeightsError::BadName { .. })));
}

#[test]
fn blobs_that_share_their_data_are_not_multiplied() {
    let mut file = weight_file(&[raw(1, &[1; 64]), raw(1, &[2; 64]), raw(1, &[3; 64])]);
    // The data of the second blob is that of the first.
    let second = 64 + 128;
    file[second + 16..second + 24].copy_from_slice(&128u64.to_le_bytes());
    let sample = Sample::with_weights(&file);
    let package = sample.open();
    let original = refs(&[64, 192, 320]);
    let plan =
        |used: &[u64]| WeightsPlan::new(package.weights(), &original, &refs(used), &[], false);
    assert!(matches!(
        plan(&[64, 192]),
        Err(WeightsError::Overlap { .. })
    ));
    assert!(plan(&[64, 192, 320]).unwrap().is_unchanged());
    // Alone, its data is written behind its record.
    let expected = weight_file(&[raw(1, &[1; 64])]);
    assert_eq!(written(&sample, &plan(&[192]).unwrap()), expected);
}

#[test]
fn a_blob_that_is_kept_must_hold_when_its_file_is_written_anew() {
    let mut file = weight_file(&three());
    file[192] = 0;
    let sample = Sample::with_weights(&file);
    let package = sample.open();
    let original = refs(&[64, 192, 320]);
    assert!(matches!(
        WeightsPlan::new(package.weights(), &original, &refs(&[64, 192]), &[], false),
        Err(WeightsError::BadSentinel { offset: 192, .. })
    ));
}

#[test]
fn a_file_that_is_no_blob_storage_is_not_written_over() {
    let sample = Sample::with_weights(&weight_file(&[]));
    sample.write("Data/com.apple.CoreML/notes.bin", "x".repeat(100));
    let package = sample.open();
    for (file, is_model) in [("notes.bin", false), ("model.mlmodel", true)] {
        let mut blob = new(BlobDType::Int8, 1, &[1]);
        blob.file = file.to_owned();
        match WeightsPlan::new(package.weights(), &[], &[], &[blob], false) {
            Err(WeightsError::BadVersion { .. }) => assert!(!is_model),
            Err(WeightsError::IsTheModel { .. }) => assert!(is_model),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_whole_weight_file_is_written_from_new_blobs_alone() {
    let blobs = [
        new(BlobDType::Int8, 3, &[1, 2, 3]),
        new(BlobDType::UInt1, 9, &[0x0d, 0x01]),
    ];
    let mut file = Vec::new();
    let offsets = weights::write_blobs(&mut file, &blobs).unwrap();
    assert_eq!(offsets, [64, 192]);
    let expected = [
        raw(4, &[1, 2, 3]),
        RawBlob {
            padding: 7,
            ..raw(9, &[0x0d, 0x01])
        },
    ];
    assert_eq!(file, weight_file(&expected));
    let wrong = [new(BlobDType::Int8, 4, &[1])];
    assert!(weights::write_blobs(&mut Vec::new(), &wrong).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_is_dropped_and_added_every_blob_reads_the_same_afterwards(
        old in prop::collection::vec((1usize..200, any::<u8>(), any::<bool>()), 0..8),
        added in prop::collection::vec((1usize..200, any::<u8>()), 0..5),
        zip in any::<bool>(),
    ) {
        let blobs: Vec<RawBlob> = old.iter().map(|(size, byte, _)| raw(4, &vec![*byte; *size])).collect();
        let sample = Sample::with_weights(&weight_file(&blobs));
        let package = sample.open();
        let found = package.weights().blobs(SPELLED).unwrap();
        prop_assert_eq!(found.len(), blobs.len());
        let original: Vec<u64> = found.iter().map(|(offset, _)| *offset).collect();
        let used: Vec<u64> = original.iter().zip(&old).filter(|(_, old)| old.2).map(|(offset, _)| *offset).collect();
        let added: Vec<NewBlob> = added
            .iter()
            .map(|(size, byte)| new(BlobDType::Int8, *size as u64, &vec![*byte; *size]))
            .collect();
        let plan = WeightsPlan::new(package.weights(), &refs(&original), &refs(&used), &added, false).unwrap();
        let out = sample.beside(if zip { "out.zip" } else { "out.mlpackage" });
        package.save(&out, b"\x08\x09", &plan, &SaveOptions::default(), &mut |_| {}).unwrap();

        let saved = Package::open(&out).unwrap();
        for offset in &used {
            let moved = plan.offset(SPELLED, *offset).unwrap();
            prop_assert_eq!(
                saved.weights().blob(SPELLED, moved).unwrap(),
                package.weights().blob(SPELLED, *offset).unwrap()
            );
        }
        for (blob, place) in added.iter().zip(plan.new_blobs()) {
            let read = saved.weights().check(&place.file, place.offset, blob.dtype, blob.elements).unwrap();
            prop_assert_eq!(read.data, &*blob.bytes);
        }
        let all = saved.weights().blobs(SPELLED).unwrap();
        let count = all.len() as u32;
        let path = package.files().iter().find(|path| path.ends_with("weight.bin")).unwrap();
        prop_assert_eq!(path, &PathBuf::from(WEIGHTS));
        if !zip {
            let file = fs::read(out.join(Path::new(WEIGHTS))).unwrap();
            prop_assert_eq!(&file[..4], &count.to_le_bytes());
        }
    }
}
