//! Blobs that are read, and every way in which one can be wrong.

use milwright::package::{BlobDType, Package, WeightsError};
use proptest::prelude::*;

use crate::sample::{RawBlob, SPELLED, Sample, raw, weight_file};

/// The error of looking at the blob at `offset`, whose message is one line with file and offset.
fn blob_error(weights: &[u8], offset: u64) -> WeightsError {
    let sample = Sample::with_weights(weights);
    let error = sample.open().weights().blob(SPELLED, offset).unwrap_err();
    let message = error.to_string();
    assert!(!message.contains('\n'), "{message}");
    assert!(message.contains("weight.bin"), "{message}");
    error
}

/// A file of one fp16 blob with four bytes at a position replaced.
fn damaged(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut file = weight_file(&[raw(1, &[1, 2, 3, 4])]);
    file[at..at + bytes.len()].copy_from_slice(bytes);
    file
}

#[test]
fn blobs_of_every_type_are_read_with_their_number_of_elements() {
    // Number in the format, bits per element, elements.
    let table = [
        (1, 16, 5),
        (2, 32, 3),
        (3, 8, 7),
        (4, 8, 1),
        (5, 16, 2),
        (6, 16, 9),
        (7, 16, 1),
        (8, 4, 3),
        (9, 1, 9),
        (10, 2, 5),
        (11, 4, 4),
        (12, 3, 5),
        (13, 6, 5),
        (14, 32, 2),
        (15, 32, 1),
        (16, 8, 3),
        (17, 8, 3),
    ];
    let blobs: Vec<RawBlob> = table
        .iter()
        .map(|(number, bits, elements)| {
            let used: usize = bits * elements;
            RawBlob {
                number: *number,
                padding: (used.div_ceil(8) * 8 - used) as u64,
                data: vec![u8::try_from(*number).unwrap(); used.div_ceil(8)],
                reserved: 0,
            }
        })
        .collect();
    let sample = Sample::with_weights(&weight_file(&blobs));
    let package = sample.open();
    let found = package.weights().blobs(SPELLED).unwrap();
    assert_eq!(found.len(), 17);
    for ((offset, blob), (number, bits, elements)) in found.into_iter().zip(table) {
        assert_eq!(blob.dtype.number(), number);
        assert_eq!(blob.dtype.bits() as usize, bits);
        assert_eq!(blob.elements(), elements as u64, "{}", blob.dtype);
        assert!(blob.data.iter().all(|byte| u32::from(*byte) == number));
        let checked = package
            .weights()
            .check(SPELLED, offset, blob.dtype, elements as u64);
        assert_eq!(checked.unwrap(), blob);
    }
}

#[test]
fn a_blob_of_another_type_or_size_than_declared_is_refused() {
    let sample = Sample::with_weights(&weight_file(&[raw(1, &[0; 8])]));
    let package = sample.open();
    let check = |dtype, elements| package.weights().check(SPELLED, 64, dtype, elements);
    assert!(check(BlobDType::Float16, 4).is_ok());
    assert!(matches!(
        check(BlobDType::BFloat16, 4).unwrap_err(),
        WeightsError::DTypeMismatch {
            stored: BlobDType::Float16,
            declared: BlobDType::BFloat16,
            ..
        }
    ));
    for elements in [0, 3, 5, u64::MAX] {
        assert!(matches!(
            check(BlobDType::Float16, elements).unwrap_err(),
            WeightsError::SizeMismatch { stored: 4, declared, .. } if declared == elements
        ));
    }
}

#[test]
fn a_reference_to_where_no_blob_is_says_why() {
    let file = weight_file(&[raw(1, &[1, 2, 3, 4])]);
    for offset in [1, 32, 63, 65, 100] {
        let error = blob_error(&file, offset);
        assert!(matches!(error, WeightsError::Unaligned { .. }), "{error}");
    }
    for offset in [0, 128, 192, 1 << 40, u64::MAX - 63] {
        let error = blob_error(&file, offset);
        assert!(matches!(error, WeightsError::OutOfRange { .. }), "{error}");
    }
    assert!(matches!(
        blob_error(&damaged(64, &[0; 4]), 64),
        WeightsError::BadSentinel { found: 0, .. }
    ));
}

#[test]
fn a_damaged_record_says_what_is_wrong() {
    for number in [0u32, 18, u32::MAX] {
        assert!(matches!(
            blob_error(&damaged(68, &number.to_le_bytes()), 64),
            WeightsError::UnknownDType { .. }
        ));
    }
    assert!(matches!(
        blob_error(&damaged(72, &0u64.to_le_bytes()), 64),
        WeightsError::Empty { .. }
    ));
    assert!(matches!(
        blob_error(&damaged(72, &3u64.to_le_bytes()), 64),
        WeightsError::NotWhole { .. }
    ));
    for size in [5, 6, 1 << 40, u64::MAX] {
        assert!(matches!(
            blob_error(&damaged(72, &u64::to_le_bytes(size)), 64),
            WeightsError::DataOutOfRange { .. }
        ));
    }
    assert!(matches!(
        blob_error(&damaged(80, &130u64.to_le_bytes()), 64),
        WeightsError::UnalignedData { data: 130, .. }
    ));
    assert!(matches!(
        blob_error(&damaged(80, &(u64::MAX - 63).to_le_bytes()), 64),
        WeightsError::DataOutOfRange { .. }
    ));
}

#[test]
fn padding_bits_must_leave_whole_elements() {
    let one = |number, padding, size| {
        weight_file(&[RawBlob {
            number,
            padding,
            data: vec![0; size],
            reserved: 0,
        }])
    };
    // int4 by 3 bits, uint2 by 1 bit, a whole byte, uint3 and uint6 with a rest, nonsense.
    for (number, padding, size) in [
        (8, 3, 2),
        (10, 1, 2),
        (9, 8, 2),
        (12, 0, 2),
        (13, 0, 2),
        (11, u64::MAX, 1),
    ] {
        assert!(matches!(
            blob_error(&one(number, padding, size), 64),
            WeightsError::NotWhole { .. }
        ));
    }
}

#[test]
fn garbage_in_the_padding_field_of_whole_byte_types_is_passed_over() {
    // Tools from before iOS18 left the field uninitialised.
    let blob = RawBlob {
        number: 1,
        padding: 0x5555_5555_0123_4567,
        data: vec![0; 6],
        reserved: 0xaa,
    };
    let sample = Sample::with_weights(&weight_file(&[blob]));
    let package = sample.open();
    let blob = package.weights().blob(SPELLED, 64).unwrap();
    assert_eq!((blob.padding_bits, blob.elements()), (0, 3));
}

#[test]
fn a_file_that_is_no_blob_storage_is_refused() {
    assert!(matches!(
        blob_error(b"short", 64),
        WeightsError::NoHeader { length: 5, .. }
    ));
    assert!(matches!(
        blob_error(b"", 64),
        WeightsError::NoHeader { length: 0, .. }
    ));
    assert!(matches!(
        blob_error(&damaged(4, &[1]), 64),
        WeightsError::BadVersion { version: 1, .. }
    ));
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let sample = Sample::with_weights(&weight_file(&[]));
    let package = sample.open();
    for name in [
        "",
        "@model_path",
        "@model_path/",
        "@model_path/../weights/weight.bin",
        "@model_path//etc/passwd",
        "/etc/passwd",
        "..",
        "weights/../../x",
        "a\0b",
    ] {
        let error = package.weights().blob(name, 64).unwrap_err();
        assert!(matches!(error, WeightsError::BadName { .. }), "{name:?}");
    }
    assert!(matches!(
        package.weights().blob("@model_path/model.mlmodel", 64),
        Err(WeightsError::IsTheModel { .. })
    ));
    for name in ["@model_path/weights/other.bin", "weight.bin", "weights"] {
        let error = package.weights().blob(name, 64).unwrap_err();
        assert!(matches!(error, WeightsError::Missing { .. }), "{name:?}");
    }
}

proptest! {
    #[test]
    fn no_content_of_a_weight_file_makes_reading_panic(
        changes in prop::collection::vec((0usize..400, any::<u8>()), 0..12),
        cut in 0usize..400,
        offset in prop_oneof![(0u64..8).prop_map(|n| n * 64), any::<u64>()],
    ) {
        let mut file = weight_file(&[
            raw(1, &[1; 70]),
            RawBlob { number: 12, padding: 1, data: vec![3, 4], reserved: 0 },
        ]);
        for (at, byte) in changes {
            if let Some(slot) = file.get_mut(at) {
                *slot = byte;
            }
        }
        file.truncate(cut);
        let sample = Sample::with_weights(&file);
        let package = Package::open(&sample.path).unwrap();
        if let Ok(blob) = package.weights().blob(SPELLED, offset) {
            prop_assert!(!blob.data.is_empty());
        }
        let _ = package.weights().blobs(SPELLED);
    }
}
