//! The blob storage against coremltools' own writer and reader, and a written package against its
//! own loader. Runs when `MILWRIGHT_PYTHON` names a Python that has coremltools.

use std::fs;
use std::path::Path;

use milwright::package::{BlobDType, NewBlob, SaveOptions, Weights, WeightsPlan, weights};

use crate::sample::{MODEL_BYTES, Sample, weight_file};
use crate::support::python::output_of;

/// Types that coremltools' Python binding can write and read, by the words of both sides: MIL's,
/// the binding's and numpy's.
const TYPES: [(BlobDType, &str, &str); 14] = [
    (BlobDType::Float16, "fp16", "uint16"),
    (BlobDType::Float32, "float", "float32"),
    (BlobDType::Int4, "int4", "int8"),
    (BlobDType::Int8, "int8", "int8"),
    (BlobDType::Int16, "int16", "int16"),
    (BlobDType::Int32, "int32", "int32"),
    (BlobDType::UInt1, "uint1", "uint8"),
    (BlobDType::UInt2, "uint2", "uint8"),
    (BlobDType::UInt3, "uint3", "uint8"),
    (BlobDType::UInt4, "uint4", "uint8"),
    (BlobDType::UInt6, "uint6", "uint8"),
    (BlobDType::UInt8, "uint8", "uint8"),
    (BlobDType::UInt16, "uint16", "uint16"),
    (BlobDType::UInt32, "uint32", "uint32"),
];

/// Elements of each blob: odd, so that the last byte is padded.
const ELEMENTS: usize = 13;

/// Defines `elements(bits, numpy type)`: 13 numbers that use all bits. Same as [`elements`].
const PRELUDE: &str = "
import sys, numpy as np
from coremltools.libmilstoragepython import _BlobStorageWriter as Writer, _BlobStorageReader as Reader
def elements(name, bits, numpy):
    codes = [(i * 0x9E3779B1 + 5) % (1 << bits) for i in range(13)]
    if name == 'int4':
        codes = [c - 16 if c > 7 else c for c in codes]
        return np.array(codes, dtype=np.int8)
    wide = np.array(codes, dtype=np.uint64).astype({8: np.uint8, 16: np.uint16, 32: np.uint32}[max(bits, 8)])
    return wide.view(numpy)
";

/// The same numbers as codes of so many bits.
fn elements(bits: u32) -> Vec<u32> {
    (0..ELEMENTS as u64)
        .map(|i| ((i * 0x9E37_79B1 + 5) % (1 << bits)) as u32)
        .collect()
}

/// The same numbers as packed bytes.
fn packed(dtype: BlobDType) -> Vec<u8> {
    let codes = elements(dtype.bits());
    if dtype.is_sub_byte() {
        let codes: Vec<u8> = codes.iter().map(|code| *code as u8).collect();
        return weights::pack(&codes, dtype.bits()).0;
    }
    let size = dtype.bits() as usize / 8;
    codes
        .iter()
        .flat_map(|code| code.to_le_bytes()[..size].to_vec())
        .collect()
}

/// Runs Python code after [`PRELUDE`] and gives its output; `None` if there is no Python to run.
fn python(code: &str, arguments: &[&Path]) -> Option<String> {
    output_of(&format!("{PRELUDE}{code}"), arguments)
}

/// Python that goes over all types as `(name, bits, numpy)`.
fn over_types() -> String {
    let rows: Vec<String> = TYPES
        .iter()
        .map(|(dtype, name, numpy)| format!("('{name}', {}, np.{numpy})", dtype.bits()))
        .collect();
    format!("types = [{}]\n", rows.join(", "))
}

#[test]
fn a_weight_file_is_the_same_bytes_as_coremltools_writes() {
    let folder = tempfile::tempdir().unwrap();
    let theirs = folder.path().join("weights/weight.bin");
    fs::create_dir(theirs.parent().unwrap()).unwrap();
    let code = over_types()
        + "
writer = Writer(sys.argv[1])
for name, bits, numpy in types:
    print(getattr(writer, f'write_{name}_data')(elements(name, bits, numpy)))
";
    let Some(printed) = python(&code, &[&theirs]) else {
        return;
    };
    let offsets: Vec<u64> = printed.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(offsets.len(), TYPES.len());

    let read = Weights::beside(&folder.path().join("case.mil")).unwrap();
    let blobs: Vec<NewBlob> = TYPES
        .iter()
        .map(|(dtype, _, _)| NewBlob {
            file: "weights/weight.bin".to_owned(),
            dtype: *dtype,
            elements: ELEMENTS as u64,
            bytes: packed(*dtype).into(),
        })
        .collect();
    for (blob, offset) in blobs.iter().zip(&offsets) {
        let found = read
            .check(&blob.file, *offset, blob.dtype, blob.elements)
            .unwrap();
        assert_eq!(found.data, &*blob.bytes, "{}", blob.dtype);
        if blob.dtype.is_sub_byte() {
            let codes = weights::unpack(found.data, blob.dtype.bits(), ELEMENTS).unwrap();
            let codes: Vec<u32> = codes.into_iter().map(u32::from).collect();
            assert_eq!(codes, elements(blob.dtype.bits()));
        }
    }
    let mut ours = Vec::new();
    assert_eq!(weights::write_blobs(&mut ours, &blobs).unwrap(), offsets);
    assert_eq!(ours, fs::read(&theirs).unwrap());
}

#[test]
fn coremltools_reads_the_blobs_that_were_added_to_a_package() {
    let sample = Sample::with_weights(&weight_file(&[]));
    let package = sample.open();
    let blobs: Vec<NewBlob> = TYPES
        .iter()
        .map(|(dtype, _, _)| NewBlob {
            file: crate::sample::SPELLED.to_owned(),
            dtype: *dtype,
            elements: ELEMENTS as u64,
            bytes: packed(*dtype).into(),
        })
        .collect();
    let plan = WeightsPlan::new(package.weights(), &[], &[], &blobs, false).unwrap();
    let out = sample.beside("out.mlpackage");
    package
        .save(
            &out,
            MODEL_BYTES,
            &plan,
            &SaveOptions::default(),
            &mut |_| {},
        )
        .unwrap();
    let offsets: Vec<String> = plan
        .new_blobs()
        .iter()
        .map(|blob| blob.offset.to_string())
        .collect();
    let code = over_types()
        + &format!("offsets = [{}]", offsets.join(", "))
        + "
reader = Reader(sys.argv[1])
for (name, bits, numpy), offset in zip(types, offsets):
    found = np.array(getattr(reader, f'read_{name}_data')(offset), copy=True)
    wanted = elements(name, bits, numpy)
    assert found.tobytes() == wanted.tobytes(), (name, found, wanted)
    print(name)
";
    let Some(printed) = python(&code, &[&out.join(crate::sample::WEIGHTS)]) else {
        return;
    };
    assert_eq!(printed.lines().count(), TYPES.len());
}

#[test]
fn coremltools_finds_the_weights_of_a_package_that_gained_its_first_blob() {
    let sample = Sample::empty();
    let manifest = crate::sample::MANIFEST;
    let start = manifest.find("        \"A0AEF1B6").unwrap();
    let end = manifest.find("        \"B9B63827").unwrap();
    sample.write("Manifest.json", manifest.replace(&manifest[start..end], ""));
    // Specification version 9, and nothing more.
    sample.write(crate::sample::MODEL, "\x08\x09");
    let package = sample.open();
    let blob = NewBlob {
        file: crate::sample::SPELLED.to_owned(),
        dtype: BlobDType::Float16,
        elements: 1,
        bytes: [0, 0x3c].into(),
    };
    let plan = WeightsPlan::new(package.weights(), &[], &[], &[blob], false).unwrap();
    let out = sample.beside("out.mlpackage");
    package
        .save(
            &out,
            b"\x08\x09",
            &plan,
            &SaveOptions::default(),
            &mut |_| {},
        )
        .unwrap();
    let code = "
import coremltools as ct
from coremltools.models.model import _try_get_weights_dir_path
print(_try_get_weights_dir_path(sys.argv[1]))
print(ct.models.utils.load_spec(sys.argv[1]).specificationVersion)
";
    let Some(printed) = python(code, &[&out]) else {
        return;
    };
    let folder = out.join(crate::sample::WEIGHTS);
    let folder = folder.parent().unwrap().display();
    let lines: Vec<&str> = printed.lines().collect();
    assert!(
        lines
            .first()
            .is_some_and(|line| Path::new(line).ends_with("com.apple.CoreML/weights")),
        "{printed} is not {folder}"
    );
    assert_eq!(lines.get(1), Some(&"9"));
}
