//! Weight files that do not hold: one line that names the operation, the file and the offset,
//! status 2, and nothing written.

use std::fs;

use crate::command::{Folder, MODEL, WEIGHTS, args, done, run};
use crate::wire::{Message, Raw, operation};

/// Offset of the record of `y_linear_weight_0`, [12, 12] of fp32, in the package's weight file.
const OFFSET: usize = 64;

/// A package whose weight file is changed.
fn with_weights(change: impl FnOnce(&mut Vec<u8>)) -> Folder {
    let (folder, package) = Folder::with_copy_of("metadata");
    let path = package.join(WEIGHTS);
    let mut bytes = fs::read(&path).unwrap();
    assert_eq!(bytes[OFFSET..OFFSET + 4], 0xdead_beef_u32.to_le_bytes());
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
    folder
}

/// A package whose first const refers to another offset.
fn with_offset(offset: u64) -> Folder {
    let (folder, package) = Folder::with_copy_of("metadata");
    let model = package.join(MODEL);
    let mut message = Message::parse(&fs::read(&model).unwrap());
    message.change(&operation(0), &mut |op| {
        for index in op.all(5) {
            let Raw::Bytes(entry) = &mut op.0[index].1 else {
                unreachable!()
            };
            let mut attribute = Message::parse(entry);
            if attribute.payload(1) == b"val" {
                // value, blobFileValue, offset
                attribute.change(&[(2, 0), (5, 0)], &mut |blob| {
                    let place = blob.all(2)[0];
                    blob.0[place].1 = Raw::Varint(offset);
                });
            }
            *entry = attribute.bytes();
        }
    });
    fs::write(&model, message.bytes()).unwrap();
    folder
}

/// What every error here names.
const PLACE: [&str; 4] = [
    "function `main`",
    "`const` op `y_linear_weight_0`",
    "@model_path/weights/weight.bin",
    "64",
];

fn refuses(folder: &Folder, cause: &str) {
    folder.refuses(&[&PLACE[..], &[cause]].concat());
    is_found(folder, cause);
}

/// `lint` says it as a finding, at the operation.
fn is_found(folder: &Folder, cause: &str) {
    let model = folder.join("in.mlpackage");
    let ran = run(args![
        "lint",
        model,
        "--select",
        "blob-integrity",
        "--format",
        "concise"
    ]);
    assert_eq!(ran.status, 1, "{ran:?}");
    let line = ran.stdout.lines().next().unwrap_or_default();
    for word in ["main/y_linear_weight_0: error[blob-integrity]", cause] {
        assert!(line.contains(word), "{line}");
    }
}

#[test]
fn an_offset_beyond_the_file() {
    let folder = with_offset(1 << 20);
    folder.refuses(&[
        PLACE[0],
        PLACE[1],
        PLACE[2],
        "1048576",
        "outside of the file",
    ]);
    is_found(&folder, "outside of the file");
    with_offset(u64::MAX - 63).refuses(&[PLACE[1], "outside of the file"]);
}

#[test]
fn an_offset_that_is_not_a_multiple_of_64() {
    let folder = with_offset(65);
    folder.refuses(&[PLACE[0], PLACE[1], PLACE[2], "65", "multiple of 64"]);
    is_found(&folder, "65 is not a multiple of 64");
}

#[test]
fn a_wrong_sentinel() {
    refuses(&with_weights(|bytes| bytes[OFFSET] ^= 1), "sentinel");
}

#[test]
fn a_size_that_is_not_the_declared_one() {
    let change = |bytes: &mut Vec<u8>| {
        let size = OFFSET + 8..OFFSET + 16;
        bytes[size].copy_from_slice(&572_u64.to_le_bytes());
    };
    refuses(
        &with_weights(change),
        "holds 143 elements, and the program declares 144",
    );
}

#[test]
fn an_element_type_that_is_not_the_declared_one() {
    // 1 is fp16, 2 is fp32.
    refuses(&with_weights(|bytes| bytes[OFFSET + 4] = 1), "holds fp16");
}

#[test]
fn data_beyond_the_end_of_the_file() {
    refuses(&with_weights(|bytes| bytes.truncate(200)), "beyond the end");
}

#[test]
fn a_weight_file_that_is_missing() {
    let (folder, package) = Folder::with_copy_of("metadata");
    fs::remove_file(package.join(WEIGHTS)).unwrap();
    folder.refuses(&["weight.bin", "missing", "--allow-missing-weights"]);
    is_found(&folder, "is missing");
    let (input, out) = (folder.join("in.mlpackage"), folder.join("out.mlpackage"));
    done(args![
        "optimize",
        "--allow-missing-weights",
        input,
        "-o",
        out,
    ]);
    assert!(out.join(MODEL).exists() && !out.join(WEIGHTS).exists());
}

#[test]
fn a_weight_file_that_is_a_pointer_of_git_lfs() {
    let (folder, package) = Folder::with_copy_of("metadata");
    let pointer = "version https://git-lfs.github.com/spec/v1\n\
                   oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n\
                   size 12345\n";
    fs::write(package.join(WEIGHTS), pointer).unwrap();
    folder.refuses(&["weight.bin", "Git LFS pointer", "git lfs pull"]);
    is_found(&folder, "run `git lfs pull`");
    let (input, out) = (folder.join("in.mlpackage"), folder.join("out.mlpackage"));
    done(args![
        "optimize",
        "--allow-missing-weights",
        input,
        "-o",
        out,
    ]);
    assert_eq!(fs::read_to_string(out.join(WEIGHTS)).unwrap(), pointer);
}

#[test]
fn a_package_without_its_weights_is_still_shown_and_tried() {
    let (folder, package) = Folder::with_copy_of("metadata");
    fs::remove_file(package.join(WEIGHTS)).unwrap();
    let input = folder.join("in.mlpackage");
    done(args!["print", input]);
    let ran = run(args!["optimize", "--dry-run", input,]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("warning: "), "{}", ran.stderr);
}
