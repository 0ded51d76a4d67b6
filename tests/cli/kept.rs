//! Nothing is lost: what no pass touches is written back, and what could not be is not written.

use std::fs;

use milwright::source::ModelFile;

use crate::command::{Folder, MODEL, args, done, run};
use crate::main_job::optimize;
use crate::support::folders::test_package;
use crate::support::python::ask;
use crate::wire::{Message, Raw, operation};

/// A package with a field that no schema knows, appended to the message at a path.
fn with_unknown_field(path: &[(u64, usize)]) -> Folder {
    let (folder, package) = Folder::with_copy_of("metadata");
    let model = package.join(MODEL);
    let mut message = Message::parse(&fs::read(&model).unwrap());
    message.change(path, &mut |inner| {
        inner
            .0
            .push((9876, Raw::Bytes(b"from the future".to_vec())));
    });
    fs::write(&model, message.bytes()).unwrap();
    folder
}

fn opens_and_prints_but_is_not_written(path: &[(u64, usize)], message: &str) {
    let folder = with_unknown_field(path);
    let input = folder.join("in.mlpackage");
    let printed = done(args!["print", input]);
    assert!(printed.stdout.contains("linear("), "{}", printed.stdout);
    assert!(printed.stderr.contains(message), "{}", printed.stderr);
    assert!(printed.stderr.contains("9876"), "{}", printed.stderr);
    let line = folder.refuses(&[message, "9876", "refusing to write"]);
    assert_eq!(line.matches(message).count(), 1, "{line}");
    // Looking on is allowed.
    done(args!["optimize", "--dry-run", input,]);
}

#[test]
fn a_model_with_an_unknown_field_is_shown_and_not_written() {
    opens_and_prints_but_is_not_written(&[], "CoreML.Specification.Model");
}

#[test]
fn an_operation_with_an_unknown_field_is_shown_and_not_written() {
    opens_and_prints_but_is_not_written(&operation(2), "CoreML.Specification.MILSpec.Operation");
}

#[test]
fn a_feature_type_with_an_unknown_field_is_shown_and_not_written() {
    // description, input, type
    opens_and_prints_but_is_not_written(
        &[(2, 0), (1, 0), (3, 0)],
        "CoreML.Specification.FeatureType",
    );
}

#[test]
fn an_unknown_field_in_a_stage_of_a_pipeline_is_not_written() {
    let (folder, package) = Folder::with_copy_of("pipeline");
    let model = package.join(MODEL);
    let mut message = Message::parse(&fs::read(&model).unwrap());
    // pipeline, second model
    message.change(&[(202, 0), (1, 1)], &mut |stage| {
        stage.0.push((9876, Raw::Varint(1)));
    });
    fs::write(&model, message.bytes()).unwrap();
    folder.refuses(&["CoreML.Specification.Model", "9876", "stage 1"]);
}

/// Entries of a map may stand in any order, and may spell an empty text or leave it out.
fn sort_user_metadata(model: &mut Message) {
    if Message::parse(model.payload(2)).all(100).is_empty() {
        return;
    }
    // description, metadata
    model.change(&[(2, 0), (100, 0)], &mut |metadata| {
        for (number, raw) in &mut metadata.0 {
            if let (100, Raw::Bytes(entry)) = (&*number, raw) {
                let mut fields = Message::parse(entry);
                fields.0.retain(|(_, raw)| *raw != Raw::Bytes(Vec::new()));
                *entry = fields.bytes();
            }
        }
        metadata.0.sort();
    });
}

/// What a model says besides its program, as bytes: every field but the one that holds the program,
/// with the stages of a pipeline taken apart alike.
fn besides_programs(bytes: &[u8]) -> Message {
    let mut message = Message::parse(bytes);
    let is_program = |field: &(u64, Raw)| field.0 == 502;
    message.0.retain(|field| !is_program(field));
    sort_user_metadata(&mut message);
    for (number, raw) in &mut message.0 {
        if let (202, Raw::Bytes(pipeline)) = (&*number, raw) {
            let mut stages = Message::parse(pipeline);
            for (number, raw) in &mut stages.0 {
                if let (1, Raw::Bytes(stage)) = (&*number, raw) {
                    *stage = besides_programs(stage).bytes();
                }
            }
            *pipeline = stages.bytes();
        }
    }
    // And so may fields of different numbers.
    message.0.sort_by_key(|(number, _)| *number);
    message
}

#[test]
fn descriptions_metadata_and_other_stages_survive_the_default_pipeline_byte_for_byte() {
    for name in [
        "pipeline_nms",
        "pipeline",
        "image_input",
        "classifier",
        "metadata",
        "updatable",
        "multiarray_optional",
        "flexible",
        "stateful",
        "multifunction",
    ] {
        let folder = Folder::new();
        let out = folder.join("out.mlpackage");
        let report = optimize(&test_package(name), &out, "default");
        assert_ne!(report["ops_before"], report["ops_after"], "{name}");
        let model = |path: &std::path::Path| {
            ModelFile::open(path)
                .unwrap()
                .package()
                .unwrap()
                .model_bytes()
                .to_vec()
        };
        let before = besides_programs(&model(&test_package(name)));
        let after = besides_programs(&model(&out));
        assert!(before == after, "{name}");
        assert!(before.0.len() >= 2, "{name}");
    }
}

/// The same by coremltools' parser, which sees what a byte comparison of messages could not excuse.
#[test]
fn coremltools_reads_the_same_description_after_the_default_pipeline() {
    let folder = Folder::new();
    let names = [
        "pipeline_nms",
        "image_input",
        "classifier",
        "metadata",
        "updatable",
    ];
    let jobs: Vec<_> = names
        .iter()
        .map(|name| {
            let out = folder.join(&format!("{name}.mlpackage"));
            optimize(&test_package(name), &out, "default");
            vec![test_package(name), out]
        })
        .collect();
    let Some(lines) = ask("message_equal.py", &[], &jobs) else {
        return;
    };
    for line in lines {
        // The first difference in the order of fields' names; the program's or the pipeline's, so
        // `description` and `isUpdatable` are equal.
        let difference = line["difference"].as_str().unwrap();
        assert!(
            difference.starts_with("Model.mlProgram") || difference.starts_with("Model.pipeline"),
            "{difference}"
        );
    }
}

#[test]
fn an_operation_that_the_opset_does_not_know_is_kept_with_a_warning() {
    let folder = Folder::new();
    let out = folder.join("out.mlpackage");
    let input = test_package("unknown_op");
    let ran = run(args!["optimize", input, "-o", out,]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(
        ran.stderr.lines().any(|line| {
            line.starts_with("warning: ") && line.contains("`sparse_attention_v9` is unknown")
        }),
        "{}",
        ran.stderr
    );
    let text = |path: &std::path::Path| done(args!["print", path]).stdout;
    let kept = |text: &str| {
        let line = text
            .lines()
            .find(|line| line.contains("sparse_attention_v9"));
        line.unwrap().to_owned()
    };
    assert_eq!(kept(&text(&input)), kept(&text(&out)));
}
