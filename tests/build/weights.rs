//! Which weight files a built package gets, and what is in them.

use std::fs;
use std::path::{Path, PathBuf};

use milwright::package::weights::write_blobs;
use milwright::package::{BlobDType, NewBlob, Package};
use milwright::source::{BuildOptions, ModelFile};

use crate::support::folders::{content, test_package};
use crate::{build_at, print};

const WEIGHT_BIN: &str = "Data/com.apple.CoreML/weights/weight.bin";

/// A weight file with fp16 blobs of these sizes, each filled with its own number.
fn weight_file(sizes: &[u64]) -> (Vec<u8>, Vec<u64>) {
    let blobs: Vec<NewBlob> = sizes
        .iter()
        .enumerate()
        .map(|(index, size)| NewBlob {
            file: String::new(),
            dtype: BlobDType::Float16,
            elements: *size,
            bytes: vec![index as u8 + 1; *size as usize * 2].into(),
        })
        .collect();
    let mut bytes = Vec::new();
    let offsets = write_blobs(&mut bytes, &blobs).unwrap();
    (bytes, offsets)
}

/// A program that adds one const after the other to its input.
fn program(consts: &[(&str, u64, u64)]) -> String {
    let mut text = "program(1.3)\n{\n func main<ios18>(tensor<fp16, [1, 1]> x0) {\n".to_owned();
    for (index, (file, offset, size)) in consts.iter().enumerate() {
        let name = format!("w{index}");
        let ty = format!("tensor<fp16, [{size}]>");
        let blob = format!("BLOBFILE(path = string(\"{file}\"), offset = uint64({offset}))");
        let attributes = format!("name = string(\"{name}\"), val = {ty}({blob})");
        text.extend([&ty, " ", &name, " = const()[", &attributes, "];\n"]);
    }
    text.push_str("tensor<fp16, [1, 1]> y = relu(x = x0);\n } -> (y);\n}\n");
    text
}

struct Case {
    folder: tempfile::TempDir,
}

impl Case {
    fn new(text: &str) -> Self {
        let case = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        fs::write(case.path("text.mil"), text).unwrap();
        case
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    fn build(&self, options: &BuildOptions) -> Result<PathBuf, String> {
        let out = self.path("out.mlpackage");
        build_at(&self.path("text.mil"), options, &out).map_err(|error| error.to_string())?;
        Ok(out)
    }
}

/// The first byte of each blob that the built program refers to, in its order.
fn first_bytes(package: &Path) -> Vec<u8> {
    let file = ModelFile::open(package).unwrap();
    let mut bytes = Vec::new();
    file.model.for_each_blob(|value| {
        let blob = value.blob().unwrap();
        bytes.push(file.weights().blob(&blob.file, blob.offset).unwrap().data[0]);
    });
    bytes
}

const USUAL: &str = "@model_path/weights/weight.bin";

#[test]
fn a_weight_file_that_is_in_use_as_a_whole_is_taken_byte_for_byte() {
    let (bytes, offsets) = weight_file(&[3, 70, 5]);
    let case = Case::new(&program(&[
        (USUAL, offsets[2], 5),
        (USUAL, offsets[0], 3),
        (USUAL, offsets[1], 70),
    ]));
    case.write("weights/weight.bin", &bytes);
    let out = case.build(&BuildOptions::default()).unwrap();
    assert_eq!(fs::read(out.join(WEIGHT_BIN)).unwrap(), bytes);
    assert_eq!(first_bytes(&out), [3, 1, 2]);
}

#[test]
fn of_a_weight_file_that_is_in_use_in_part_only_the_blobs_in_use_are_taken() {
    let (bytes, offsets) = weight_file(&[3, 70, 5]);
    let case = Case::new(&program(&[(USUAL, offsets[2], 5), (USUAL, offsets[0], 3)]));
    case.write("weights/weight.bin", &bytes);
    let out = case.build(&BuildOptions::default()).unwrap();
    assert_eq!(first_bytes(&out), [3, 1]);
    let package = Package::open(&out).unwrap();
    assert_eq!(package.weights().blobs(USUAL).unwrap().len(), 2);
    let kept = fs::read(out.join(WEIGHT_BIN)).unwrap();
    assert_eq!(u32::from_le_bytes(kept[..4].try_into().unwrap()), 2);
}

#[test]
fn a_given_weight_file_stands_for_the_text_s_whatever_it_is_called() {
    let (bytes, offsets) = weight_file(&[3]);
    let case = Case::new(&program(&[(USUAL, offsets[0], 3)]));
    let elsewhere = case.write("elsewhere/other.bin", &bytes);
    let (beside, _) = weight_file(&[9, 9]);
    case.write("weights/weight.bin", &beside);
    let options = BuildOptions {
        weights: Some(&elsewhere),
        description: None,
        ..BuildOptions::default()
    };
    let out = case.build(&options).unwrap();
    assert_eq!(fs::read(out.join(WEIGHT_BIN)).unwrap(), bytes);
}

#[test]
fn each_of_several_weight_files_comes_along_under_its_name() {
    let (one, _) = weight_file(&[3]);
    let (other, _) = weight_file(&[5]);
    let case = Case::new(&program(&[
        ("@model_path/weights/a.bin", 64, 3),
        ("@model_path/weights/b.bin", 64, 5),
    ]));
    case.write("weights/a.bin", &one);
    case.write("weights/b.bin", &other);
    case.write("weights/unused.bin", &other);
    let out = case.build(&BuildOptions::default()).unwrap();
    let folder = out.join("Data/com.apple.CoreML/weights");
    let names: Vec<PathBuf> = content(&folder).into_keys().collect();
    assert_eq!(names, [Path::new("a.bin"), Path::new("b.bin")]);
    assert_eq!(fs::read(folder.join("a.bin")).unwrap(), one);
    let manifest = fs::read_to_string(out.join("Manifest.json")).unwrap();
    assert_eq!(manifest.matches("com.apple.CoreML/weights").count(), 1);
}

#[test]
fn weights_that_are_nowhere_are_named_with_where_they_were_looked_for() {
    let case = Case::new(&program(&[(USUAL, 64, 3)]));
    let error = case.build(&BuildOptions::default()).unwrap_err();
    for part in [USUAL, "/weights", "--weights FILE", "--description"] {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
    assert!(!case.path("out.mlpackage").exists());
}

#[test]
fn a_blob_of_another_size_than_declared_is_refused_at_its_op() {
    let (bytes, offsets) = weight_file(&[3]);
    let case = Case::new(&program(&[(USUAL, offsets[0], 4)]));
    case.write("weights/weight.bin", &bytes);
    let error = case.build(&BuildOptions::default()).unwrap_err();
    assert!(error.contains("`const` op `w0`"), "{error:?}");
    assert!(!case.path("out.mlpackage").exists());
}

#[test]
fn tensors_that_a_pass_made_and_a_text_spells_go_into_the_weight_file() {
    let case = Case::new(
        "program(1.3)\n{\n func main<ios18>(tensor<fp16, [3]> x) {
            tensor<fp16, [3]> w = const()[name = string(\"w\"), val = tensor<fp16, [3]>(@new(fp16, 3) [1, 2, -3])];
            tensor<fp16, [3]> y = add(x = x, y = w)[name = string(\"y\")];
        } -> (y);\n}\n",
    );
    let out = case.build(&BuildOptions::default()).unwrap();
    let package = Package::open(&out).unwrap();
    let blob = package.weights().blob(USUAL, 64).unwrap();
    assert_eq!(blob.data, [0x00, 0x3c, 0x00, 0x40, 0x00, 0xc2]);
}

#[test]
fn inline_tensors_stay_inline_whatever_their_size() {
    let elements = vec!["1.5"; 40].join(", ");
    let case = Case::new(&format!(
        "program(1.3)\n{{\n func main<ios18>(tensor<fp32, [40]> x) {{
            tensor<fp32, [40]> y = add(x = x, y = tensor<fp32, [40]>([{elements}]));
        }} -> (y);\n}}\n"
    ));
    let out = case.build(&BuildOptions::default()).unwrap();
    assert_eq!(first_bytes(&out), [0u8; 0]);
    let names: Vec<PathBuf> = content(&out).into_keys().collect();
    let model = Path::new("Data/com.apple.CoreML/model.mlmodel");
    assert_eq!(names, [model, Path::new("Manifest.json")]);
}

#[test]
fn the_same_text_gives_the_same_bytes() {
    let (bytes, offsets) = weight_file(&[3, 4]);
    let case = Case::new(&program(&[(USUAL, offsets[0], 3)]));
    case.write("weights/weight.bin", &bytes);
    let first = case.build(&BuildOptions::default()).unwrap();
    let again = case.path("again.mlpackage");
    build_at(&case.path("text.mil"), &BuildOptions::default(), &again).unwrap();
    assert_eq!(content(&first), content(&again));
}

#[test]
fn nothing_is_written_over_the_text_or_its_weights() {
    let (bytes, offsets) = weight_file(&[3]);
    let case = Case::new(&program(&[(USUAL, offsets[0], 3)]));
    case.write("weights/weight.bin", &bytes);
    let text = case.path("text.mil");
    let out = case.path("weights/out.zip");
    let built = milwright::source::build(&text, &BuildOptions::default()).unwrap();
    let save = milwright::package::SaveOptions { force: true };
    let write = |out: &Path| {
        let missing = milwright::source::Missing::Refuse;
        built.file.save(out, missing, &save, &mut |_, _| {})
    };
    write(&out).expect("a new file beside the weights");
    let link = case.path("link.zip");
    std::os::unix::fs::symlink(&text, &link).unwrap();
    let error = write(&link)
        .expect_err("it would replace the text")
        .to_string();
    assert!(error.contains("text.mil"), "{error}");
    assert!(fs::read_to_string(&text).unwrap().starts_with("program"));
}

#[test]
fn weights_beside_the_text_come_before_those_of_the_description() {
    let package = test_package("metadata");
    let original = fs::read(package.join(WEIGHT_BIN)).unwrap();
    let case = Case::new(&print(&ModelFile::open(&package).unwrap()));
    let mut changed = original.clone();
    *changed.last_mut().unwrap() ^= 1;
    case.write("weights/weight.bin", &changed);
    let options = BuildOptions {
        weights: None,
        description: Some(&package),
        ..BuildOptions::default()
    };
    let out = case.build(&options).unwrap();
    assert_eq!(fs::read(out.join(WEIGHT_BIN)).unwrap(), changed);
    assert_eq!(
        fs::read(out.join("Manifest.json")).unwrap(),
        fs::read(package.join("Manifest.json")).unwrap()
    );
}

#[test]
fn weights_that_are_nowhere_stay_missing_if_that_is_allowed() {
    let case = Case::new(&program(&[(USUAL, 128, 3)]));
    let options = BuildOptions {
        missing: milwright::source::Missing::Allow,
        ..BuildOptions::default()
    };
    let out = case.build(&options).unwrap();
    let file = ModelFile::open(&out).unwrap();
    assert!(file.first_missing().is_some());
    file.model
        .for_each_blob(|value| assert_eq!(value.blob().unwrap().offset, 128));
}
