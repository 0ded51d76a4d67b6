//! Models that cannot be read: one line that names the package and the cause, status 2, and nothing
//! written.

use std::fs;
use std::path::Path;

use milwright::model::Model;

use crate::command::{Folder, MODEL, args, run};
use crate::support::folders::{copy_tree, test_package, test_packages};
use crate::wire::{BLOCK, FUNCTION, Message, OPERATIONS, Raw, operation};

/// A package whose model file is changed.
fn with_model(name: &str, change: impl FnOnce(&mut Message)) -> Folder {
    let (folder, package) = Folder::with_copy_of(name);
    let model = package.join(MODEL);
    let mut message = Message::parse(&fs::read(&model).unwrap());
    change(&mut message);
    fs::write(&model, message.bytes()).unwrap();
    folder
}

fn model_bytes(name: &str) -> Vec<u8> {
    fs::read(test_package(name).join(MODEL)).unwrap()
}

#[test]
fn a_model_file_cut_off_anywhere_is_an_error_or_a_shorter_model() {
    let whole = model_bytes("stateful");
    let mut refused = 0;
    for length in 0..whole.len() {
        if Model::decode(&whole[..length]).is_err() {
            refused += 1;
        }
    }
    // The program is one field of the model; without its last byte nothing opens.
    assert_eq!(refused, whole.len());
}

#[test]
fn a_model_file_with_any_byte_changed_does_not_panic() {
    let whole = model_bytes("control_flow");
    for index in 0..whole.len() {
        for change in [0x01, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[index] ^= change;
            if let Ok(model) = Model::decode(&bytes) {
                let _ = model.interface_problems();
            }
        }
    }
}

#[test]
fn a_cut_off_model_file_is_refused_in_one_line() {
    let (folder, package) = Folder::with_copy_of("stateful");
    let whole = fs::read(package.join(MODEL)).unwrap();
    for length in (0..whole.len()).step_by(whole.len() / 12) {
        fs::write(package.join(MODEL), &whole[..length]).unwrap();
        folder.refuses(&[]);
    }
    fs::write(package.join(MODEL), &whole[..whole.len() - 1]).unwrap();
    folder.refuses(&["not a valid model file"]);
}

#[test]
fn a_wrong_wire_type() {
    // The operation's type is a text, not a number.
    with_model("metadata", |model| {
        model.change(&operation(0), &mut |op| {
            let place = op.all(1)[0];
            op.0[place].1 = Raw::Varint(7);
        });
    })
    .refuses(&["not a valid model file", "type"]);
    // The specification version is a number, not a text.
    with_model("metadata", |model| {
        let place = model.all(1)[0];
        model.0[place].1 = Raw::Bytes(b"9".to_vec());
    })
    .refuses(&["not a valid model file", "specificationVersion"]);
}

#[test]
fn a_neural_network() {
    let folder = Folder::new();
    copy_tree(
        &test_package("neural_network"),
        &folder.join("in.mlpackage"),
    );
    folder.refuses(&["neuralNetwork", "only ML Programs"]);
}

#[test]
fn a_pipeline_without_a_program() {
    let network = fs::read(test_packages().join("neural_network.mlpackage").join(MODEL)).unwrap();
    let (folder, package) = Folder::with_copy_of("metadata");
    let stages = Message::default().with(1, Raw::Bytes(network));
    let model = Message::default()
        .with(1, Raw::Varint(6))
        .with_message(202, &stages);
    fs::write(package.join(MODEL), model.bytes()).unwrap();
    folder.refuses(&["pipeline", "only ML Programs"]);
}

#[test]
fn a_model_of_no_kind() {
    let (folder, package) = Folder::with_copy_of("metadata");
    let model = Message::default().with(1, Raw::Varint(9));
    fs::write(package.join(MODEL), model.bytes()).unwrap();
    folder.refuses(&["no model of any kind"]);
}

#[test]
fn a_value_that_is_used_before_it_is_defined() {
    with_model("metadata", |model| {
        model.change(&BLOCK, &mut |block| {
            let places = block.all(OPERATIONS);
            block.0.swap(places[0], places[2]);
        });
    })
    .refuses(&[
        "function `main`",
        "`y_linear_bias_0` is used by `linear` op `y_linear`",
        "before it is defined",
    ]);
}

#[test]
fn a_value_that_is_defined_twice() {
    with_model("metadata", |model| {
        model.change(&BLOCK, &mut |block| {
            let again = block.0[block.all(OPERATIONS)[2]].clone();
            block.0.push(again);
        });
    })
    .refuses(&["function `main`", "`y_linear` is defined twice"]);
}

#[test]
fn an_output_that_nothing_defines() {
    with_model("metadata", |model| {
        model.change(&BLOCK, &mut |block| {
            let place = block.all(2)[0];
            block.0[place].1 = Raw::Bytes(b"nowhere".to_vec());
        });
    })
    .refuses(&["function `main`", "`nowhere`"]);
}

#[test]
fn a_cycle() {
    let relu = |from: &str, to: &str| {
        let binding = Message::default().with_text(1, from);
        let argument = Message::default().with_message(1, &binding);
        let input = Message::default()
            .with_text(1, "x")
            .with_message(2, &argument);
        let result = Message::default().with_text(1, to);
        Message::default()
            .with_text(1, "relu")
            .with_message(2, &input)
            .with_message(3, &result)
    };
    with_model("metadata", |model| {
        model.change(&BLOCK, &mut |block| {
            *block = std::mem::take(block)
                .with_message(OPERATIONS, &relu("around", "round"))
                .with_message(OPERATIONS, &relu("round", "around"));
        });
    })
    .refuses(&["function `main`", "around → round → around", "cycle"]);
}

#[test]
fn a_function_without_a_body_for_its_opset() {
    with_model("metadata", |model| {
        model.change(&FUNCTION, &mut |function| {
            let place = function.all(2)[0];
            function.0[place].1 = Raw::Bytes(b"CoreML5".to_vec());
        });
    })
    .refuses(&["function `main`", "`CoreML5`"]);
}

/// Blocks in operations in blocks, 10 000 deep: more than a recursive reader's stack would bear.
#[test]
fn blocks_that_are_nested_ten_thousand_deep() {
    let mut operation = Message::default().with_text(1, "relu");
    for _ in 0..10_000 {
        let block = Message::default().with_message(OPERATIONS, &operation);
        operation = Message::default()
            .with_text(1, "cond")
            .with_message(4, &block);
    }
    with_model("metadata", |model| {
        model.change(&BLOCK, &mut |block| {
            *block = std::mem::take(block).with_message(OPERATIONS, &operation);
        });
    })
    .refuses(&["not a valid model file", "nest"]);
}

/// Types in types: lists of lists.
#[test]
fn types_that_are_nested_ten_thousand_deep() {
    let mut ty = Message::default();
    for _ in 0..10_000 {
        let list = Message::default().with_message(1, &ty);
        ty = Message::default().with_message(2, &list);
    }
    with_model("metadata", |model| {
        model.change(&operation(0), &mut |op| {
            op.change(&[(3, 0)], &mut |result| {
                *result = std::mem::take(result).with_message(2, &ty);
            });
        });
    })
    .refuses(&["not a valid model file", "nest"]);
}

#[test]
fn an_opset_from_the_future_is_kept_as_it_is() {
    let folder = with_model("metadata", |model| {
        model.change(&FUNCTION, &mut |function| {
            let place = function.all(2)[0];
            function.0[place].1 = Raw::Bytes(b"CoreML99".to_vec());
            function.change(&[(3, 0)], &mut |body| {
                let place = body.all(1)[0];
                body.0[place].1 = Raw::Bytes(b"CoreML99".to_vec());
            });
        });
    });
    let (input, out) = (folder.join("in.mlpackage"), folder.join("out.mlpackage"));
    let paths: [&Path; 2] = [&input, &out];
    let ran = run(args![
        "optimize",
        paths[0].as_os_str(),
        "-o",
        paths[1].as_os_str()
    ]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let warning = "warning: function `main`: the opset `CoreML99` is unknown; it is kept as it is";
    assert!(ran.stderr.contains(warning), "{}", ran.stderr);
    assert!(ran.stderr.contains("\n0 rewrites, "), "{}", ran.stderr);
}
