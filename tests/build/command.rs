//! The commands over texts and compiled models.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use milwright::package::Weights;

use crate::second_opinion;
use crate::support::folders::{packages_below, root, test_package, test_packages};

fn milwright(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_milwright"));
    command.current_dir(folder).args(arguments);
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs it, expects that it succeeds, and gives what it printed.
fn succeeds(folder: &Path, arguments: &[&str]) -> String {
    let output = milwright(folder, arguments);
    let errors = text(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    text(&output.stdout)
}

/// Runs it, expects that it could not, and gives the complaint.
fn refused(folder: &Path, arguments: &[&str]) -> String {
    let output = milwright(folder, arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    text(&output.stderr)
}

/// The blocks of shell commands in a section of the README.
fn readme_commands(heading: &str) -> Vec<String> {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let (_, section) = readme.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let blocks = section.split("```sh\n").skip(1);
    blocks
        .map(|block| block.split("```").next().unwrap().to_owned())
        .collect()
}

/// Runs shell commands in a folder from which the test packages can be reached.
fn shell(folder: &Path, commands: &str) {
    let link = folder.join("tests");
    if !link.exists() {
        std::os::unix::fs::symlink(root().join("tests"), link).unwrap();
    }
    let own = Path::new(env!("CARGO_BIN_EXE_milwright")).parent().unwrap();
    let path = format!("{}:{}", own.display(), std::env::var("PATH").unwrap());
    let output = Command::new("sh")
        .args(["-e", "-c", commands])
        .current_dir(folder)
        .env("PATH", path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn the_readme_s_edits_take_five_lines_each_and_do_what_it_says() {
    let blocks = readme_commands("Editing a model as text");
    let [longer, exposed] = blocks.as_slice() else {
        panic!("{} blocks of commands", blocks.len());
    };
    for (commands, name, outputs) in [
        (longer, "longer.mlpackage", &["z: fp16 [1, 8, 32]"][..]),
        (
            exposed,
            "exposed.mlpackage",
            &["y: fp16 [1, 8, 32]", "attention: fp16 [1, 2, 8, 16]"][..],
        ),
    ] {
        assert_eq!(commands.lines().count(), 5, "{commands}");
        let folder = tempfile::tempdir().unwrap();
        shell(folder.path(), commands);
        let summary = succeeds(folder.path(), &["print", name, "--format", "summary"]);
        let (described, _) = summary.split_once("\n\n").unwrap();
        let found: Vec<&str> = described
            .lines()
            .filter_map(|line| line.trim().strip_prefix("output "))
            .collect();
        assert_eq!(found, outputs);
        let out = folder.path().join(name);
        for line in second_opinion("accepts.py", &[vec![&out]])
            .into_iter()
            .flatten()
        {
            for check in ["spec", "unknown", "blobs", "types"] {
                assert_eq!(line[check], "ok", "{line:#}");
            }
        }
    }
}

#[test]
fn a_print_that_is_piped_into_build_is_the_package_again() {
    let folder = tempfile::tempdir().unwrap();
    shell(
        folder.path(),
        "P=tests/data/packages/attention_block.mlpackage
         milwright print $P | milwright build - -o out.mlpackage --description $P
         milwright print $P > before.mil
         milwright print out.mlpackage > after.mil
         cmp before.mil after.mil
         cmp $P/Manifest.json out.mlpackage/Manifest.json
         milwright print $P | milwright build - -o out.zip --description $P
         milwright print out.zip > after.mil
         cmp before.mil after.mil",
    );
}

#[test]
fn all_faults_of_a_text_are_shown_with_their_lines() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("faulty.mil");
    let long = vec!["1.25"; 4000].join(", ");
    fs::write(
        &path,
        format!(
            "program(1.3)\n{{\n    func main<ios18>(tensor<fp16, [4]> x) {{\n        \
             tensor<fp16, [4]> y = relu(x = missing);\n        \
             tensor<fp16, 4]> z = relu(x = x);\n        \
             tensor<fp32, [4001]> w = const()[val = tensor<fp32, [4001]>([{long}, oops])];\n    \
             }} -> (y);\n}}\n"
        ),
    )
    .unwrap();
    for command in [
        vec!["build", "faulty.mil", "-o", "out.mlpackage"],
        vec!["print", "faulty.mil"],
        vec!["why", "faulty.mil", "dead-code"],
    ] {
        let complaint = refused(folder.path(), &command);
        for part in [
            "missing",
            "faulty.mil:4:40",
            "4 |         tensor<fp16, [4]> y = relu(x = missing);",
            "faulty.mil:5:22",
            "5 |         tensor<fp16, 4]> z = relu(x = x);",
            "faulty.mil:6:",
            "oops",
            "3 errors",
        ] {
            assert!(complaint.contains(part), "{part:?} is not in\n{complaint}");
        }
        let widest = complaint.lines().map(|line| line.chars().count()).max();
        assert!(widest < Some(200), "{widest:?}");
    }
    assert!(!folder.path().join("out.mlpackage").exists());
}

/// A compiled model in `folder`, as far as milwright looks: text, weights and metadata.
fn compiled(folder: &Path, program: &[u8]) {
    let model = folder.join("small.mlmodelc");
    fs::create_dir_all(model.join("weights")).unwrap();
    fs::write(model.join("model.mil"), program).unwrap();
    fs::write(model.join("coremldata.bin"), [0; 8]).unwrap();
    let weights = test_package("metadata").join("Data/com.apple.CoreML/weights");
    fs::copy(weights.join("weight.bin"), model.join("weights/weight.bin")).unwrap();
    let metadata = r#"[{"specificationVersion": 8, "author": "Ada", "shortDescription": "",
        "inputSchema": [{"name": "x", "formattedType": "Image (Color 4 × 3)"}],
        "outputSchema": [], "userDefinedMetadata": {"key": "value"}}]"#;
    fs::write(model.join("metadata.json"), metadata).unwrap();
}

#[test]
fn a_compiled_model_is_read_like_a_package_and_built_into_one() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let package = test_package("metadata");
    let program = succeeds(folder, &["print", package.to_str().unwrap()]);
    compiled(folder, program.as_bytes());
    assert_eq!(succeeds(folder, &["print", "small.mlmodelc"]), program);
    let summary = succeeds(folder, &["print", "small.mlmodelc", "--format", "summary"]);
    for part in ["version 8", "Ada", "x: Image (Color 4 × 3)", "pow"] {
        assert!(summary.contains(part), "{part:?} is not in\n{summary}");
    }
    succeeds(folder, &["why", "small.mlmodelc", "pow-to-mul"]);
    succeeds(folder, &["optimize", "small.mlmodelc", "--dry-run"]);
    succeeds(folder, &["optimize", "small.mlmodelc", "-o", "out.mil"]);
    assert!(succeeds(folder, &["print", "out.mil"]).contains("mul"));

    let complaint = refused(
        folder,
        &["optimize", "small.mlmodelc", "-o", "out.mlpackage"],
    );
    assert!(complaint.contains("-o FILE.mil"), "{complaint}");

    let output = milwright(folder, &["build", "small.mlmodelc", "-o", "out.mlpackage"]);
    let notes = text(&output.stderr);
    assert!(notes.contains("`x` was Image"), "{notes}");
    assert_eq!(succeeds(folder, &["print", "out.mlpackage"]), program);
    let summary = succeeds(folder, &["print", "out.mlpackage", "--format", "summary"]);
    assert!(summary.contains("version 8"), "{summary}");
}

#[test]
fn a_compiled_model_with_a_binary_program_says_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    compiled(folder.path(), b"\x08\x01\x00\xff binary");
    let complaint = refused(folder.path(), &["print", "small.mlmodelc"]);
    for part in ["binary", ".mlpackage"] {
        assert!(complaint.contains(part), "{part:?} is not in {complaint}");
    }
}

#[test]
fn every_command_reads_a_text_with_its_weights_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let package = test_package("metadata");
    let program = succeeds(folder, &["print", package.to_str().unwrap()]);
    fs::write(folder.join("a.mil"), &program).unwrap();
    let weights = package.join("Data/com.apple.CoreML/weights");
    std::os::unix::fs::symlink(weights, folder.join("weights")).unwrap();
    assert_eq!(succeeds(folder, &["print", "a.mil"]), program);
    succeeds(folder, &["why", "a.mil", "pow-to-mul"]);
    succeeds(folder, &["optimize", "a.mil", "--dry-run"]);
    succeeds(folder, &["optimize", "a.mil", "-o", "b.mil"]);
    succeeds(folder, &["build", "b.mil", "-o", "b.mlpackage"]);
    let complaint = refused(folder, &["build", "a.mil", "-o", "b.mlpackage"]);
    assert!(complaint.contains("--force"), "{complaint}");
    succeeds(folder, &["build", "a.mil", "-o", "b.mlpackage", "--force"]);
    let complaint = refused(folder, &["build", "b.mlpackage", "-o", "c.mlpackage"]);
    assert!(complaint.contains("built from MIL text"), "{complaint}");
}

#[test]
fn weights_are_split_into_files_of_one_blob_at_offset_64() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for package in packages_below(&test_packages()) {
        let name = package.file_stem().unwrap().to_str().unwrap().to_owned();
        let model = package.to_str().unwrap();
        // Pipelines, and what is no program.
        if ["pipeline", "pipeline_nms", "neural_network"].contains(&name.as_str()) {
            continue;
        }
        let split = format!("{name}/weights");
        fs::create_dir(folder.join(&name)).unwrap();
        let whole = succeeds(folder, &["print", model]);
        let text = succeeds(folder, &["print", model, "--weights-dir", &split]);
        assert_eq!(
            whole.matches("BLOBFILE").count(),
            text.matches("BLOBFILE").count()
        );
        let at_64 = text.matches("uint64(64)").count() + text.matches("uint64, []>(64)").count();
        assert_eq!(at_64, text.matches("BLOBFILE").count(), "{name}");
        let path = folder.join(&name).join("text.mil");
        fs::write(&path, &text).unwrap();
        let weights = Weights::beside(&path).unwrap();
        for (index, part) in text.split("@model_path/").enumerate().skip(1) {
            let file = part.split('"').next().unwrap();
            assert!(file.starts_with("weights/"), "{name}: {index}: {file}");
            assert_eq!(weights.blobs(file).unwrap().len(), 1, "{name}: {file}");
            let bytes = fs::read(folder.join(&name).join(file)).unwrap();
            assert_eq!(bytes[..8], [1, 0, 0, 0, 2, 0, 0, 0], "{name}: {file}");
        }
    }
    // What was split comes together again: each file is a weight file of the package.
    let attention = ["build", "attention_block/text.mil", "-o", "split.mlpackage"];
    succeeds(folder, &attention);
    let out = folder.join("split.mlpackage");
    for line in second_opinion("accepts.py", &[vec![&out]])
        .into_iter()
        .flatten()
    {
        for check in ["spec", "unknown", "blobs"] {
            assert_eq!(line[check], "ok", "{line:#}");
        }
    }
}

#[test]
fn new_weights_of_an_optimized_text_are_split_too() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let package = test_package("attention_block");
    let model = package.to_str().unwrap();
    let arguments = ["optimize", model, "-o", "a.mil", "--weights-dir", "w"];
    succeeds(folder, &arguments);
    let text = fs::read_to_string(folder.join("a.mil")).unwrap();
    assert!(text.contains("@model_path/w/"));
    assert!(!text.contains("@new"));
    // The folder is full now.
    let complaint = refused(folder, &["print", model, "--weights-dir", "w"]);
    assert!(complaint.contains("not empty"), "{complaint}");
    let complaint = refused(
        folder,
        &["optimize", model, "-o", "b.mlpackage", "--weights-dir", "v"],
    );
    assert!(complaint.contains("-o FILE.mil"), "{complaint}");
}
