//! Every row of Orion's catalogue: a program that it applies to and one that it does not, or that it
//! cannot be seen in a program.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::command::{Folder, MODEL, args, run};
use crate::linting::json;

/// The body of a function, by its inputs, its operations and its outputs.
fn program(inputs: &str, operations: &str, outputs: &str) -> String {
    format!(
        "program(1.3)\n{{\n{}}}\n",
        function("main", inputs, operations, outputs)
    )
}

fn function(name: &str, inputs: &str, operations: &str, outputs: &str) -> String {
    format!("    func {name}<ios18>({inputs}) {{\n{operations}\n    }} -> ({outputs});\n")
}

/// 64 KB.
const X: &str = "tensor<fp16, [1, 128, 1, 256]> x";

const RELU: &str = "tensor<fp16, [1, 128, 1, 256]> y = relu(x = x);";

/// For each row that rules see in a program alone: one that it applies to and where first, and one that
/// it does not.
fn pairs() -> Vec<(u8, String, &'static str, String)> {
    let plain = || program(X, RELU, "y");
    let two = |first: &str, second: &str, outputs: &str| {
        let operations =
            format!("tensor<fp16, [1, 128, 1, 256]> y = relu(x = x);\n{first} z = {second};");
        program(X, &operations, outputs)
    };
    let square = "tensor<fp16, [1, 128, 1, 256]>";
    let inputs = |inputs: &str| {
        program(
            inputs,
            "tensor<fp16, [1, 8, 1, 64]> y = add(x = a, y = b);",
            "y",
        )
    };
    let attention = |mask: &str, argument: &str| {
        let sides = ["q", "k", "v"].map(|name| format!("tensor<fp16, [1, 2, 64, 64]> {name}"));
        let operations = format!(
            "tensor<fp16, [1, 2, 64, 64]> y = scaled_dot_product_attention({argument}key = k, query = q, value = v);"
        );
        program(&format!("{}{mask}", sides.join(", ")), &operations, "y")
    };
    let conv = |channels: u32, outputs: u32, bias: &str| {
        let sides = format!(
            "tensor<fp16, [1, {channels}, 1, 64]> x, tensor<fp16, [{outputs}, {channels}, 1, 1]> w"
        );
        let operations = format!(
            "tensor<fp16, [{outputs}]> b = const()[val = tensor<fp16, [{outputs}]>([1, 2])];\n\
             tensor<fp16, [1, {outputs}, 1, 64]> y = conv({bias}weight = w, x = x);"
        );
        let operations = match bias {
            "" => operations.lines().skip(1).collect(),
            _ => operations,
        };
        program(&sides, &operations, "y")
    };
    let product = "tensor<fp16, [128, 128]> a, tensor<fp16, [128, 128]> b";
    vec![
        (
            1,
            program(
                X,
                "tensor<fp16, [1, 256, 1, 256]> y = concat(axis = int32(1), interleave = bool(false), values = (x, x));",
                "y",
            ),
            "main/y (concat)",
            plain(),
        ),
        (
            2,
            two(
                "tensor<fp16, [1, 128, 1, 1]>",
                "reduce_mean(axes = tensor<int32, [1]>([3]), keep_dims = bool(true), x = x)",
                "y, z",
            ),
            "main/z (output)",
            two(square, "exp(x = x)", "y, z"),
        ),
        (
            3,
            two(square, "exp(x = x)", "z, y"),
            "main/y (output)",
            two(square, "exp(x = x)", "y, z"),
        ),
        (
            4,
            program(
                "tensor<fp16, [1, 8]> x",
                "tensor<fp16, [1, 8]> y = relu(x = x);",
                "y",
            ),
            "main/x (input)",
            plain(),
        ),
        (
            5,
            format!(
                "program(1.3)\n{{\n{}{}}}\n",
                function("main", X, RELU, "y"),
                function("other", X, RELU, "y")
            ),
            "",
            plain(),
        ),
        (
            6,
            attention(", tensor<fp16, [1, 1, 64, 64]> m", "attn_mask = m, "),
            "main/y (scaled_dot_product_attention)",
            attention("", ""),
        ),
        (
            10,
            program(
                X,
                "tensor<fp16, [1, 128, 1, 256]> y = gelu(mode = string(\"EXACT\"), x = x);",
                "y",
            ),
            "main/y (gelu)",
            program(X, "tensor<fp16, [1, 128, 1, 256]> y = tanh(x = x);", "y"),
        ),
        (
            12,
            program(
                product,
                "tensor<fp16, [128, 128]> y = matmul(transpose_x = bool(false), transpose_y = bool(true), x = a, y = b);",
                "y",
            ),
            "main/y (matmul)",
            program(
                product,
                "bool no = const()[val = bool(false)];\nbool yes = const()[val = bool(true)];\n\
                 tensor<fp16, [128, 128]> y = matmul(transpose_x = no, transpose_y = yes, x = a, y = b);",
                "y",
            ),
        ),
        (
            13,
            conv(2, 2, "bias = b, "),
            "main/y (conv)",
            conv(2, 2, ""),
        ),
        (
            16,
            conv(40_000, 2, ""),
            "main/y (conv)",
            conv(2, 40_000, ""),
        ),
        (
            17,
            program(
                "tensor<fp16, [128, 2]> x",
                "tensor<fp16, [2, 2]> w = const()[val = tensor<fp16, [2, 2]>([[1, 2], [3, 4]])];\n\
                 tensor<fp16, [128, 2]> y = linear(weight = w, x = x);",
                "y",
            ),
            "main/y (linear)",
            conv(2, 2, ""),
        ),
        (
            18,
            inputs("tensor<fp16, [1, 8, 1, 64]> a, tensor<fp16, [1, 1, 1, 64]> b"),
            "main/b (input)",
            inputs("tensor<fp16, [1, 8, 1, 64]> a, tensor<fp16, [1, 8, 1, 64]> b"),
        ),
        (
            19,
            inputs("tensor<fp16, [1, 8, 1, 64]> b, tensor<fp16, [1, 8, 1, 64]> a"),
            "main/a (input)",
            inputs("tensor<fp16, [1, 8, 1, 64]> a, tensor<fp16, [1, 8, 1, 64]> b"),
        ),
    ]
}

/// The row of the catalogue as the command has it for a model.
fn row(model: &Path, number: u8) -> Value {
    let ran = run(args![
        "lint",
        model,
        "--catalog",
        "orion",
        "--target",
        "ane-direct",
        "--format",
        "json"
    ]);
    assert!((0..2).contains(&ran.status), "{ran:?}");
    let document = json(&ran);
    let rows = document["catalog"]["rows"].as_array().unwrap();
    for row in rows {
        assert_ne!(row["verdict"], "no rule yet", "{row}");
    }
    let id = format!("orion-{number}");
    rows.iter().find(|row| row["id"] == *id).unwrap().clone()
}

/// The row for a program in a file of its own.
fn row_of(text: &str, number: u8) -> Value {
    let folder = Folder::new();
    let path = folder.join("model.mil");
    fs::write(&path, text).unwrap();
    row(&path, number)
}

#[test]
fn each_row_applies_to_one_program_and_not_to_another() {
    let mut wrong = Vec::new();
    for (number, applies, first, clear) in pairs() {
        let found = row_of(&applies, number);
        let place = found["first"].as_str().unwrap_or("nowhere");
        if found["verdict"] != "applies" || found["count"] == 0 || !place.ends_with(first) {
            wrong.push(format!("{number} of {applies}{found}"));
        }
        let found = row_of(&clear, number);
        if found["verdict"] != "clear" || found["count"] != 0 {
            wrong.push(format!("{number} of {clear}{found}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_row_is_left_out() {
    let mut tested: Vec<u8> = pairs().iter().map(|(number, ..)| *number).collect();
    // Of files beside the program.
    tested.extend([8, 14]);
    let unseen = [7, 9, 11, 15, 20];
    tested.extend(unseen);
    tested.sort_unstable();
    assert_eq!(tested, (1..=20).collect::<Vec<u8>>());
    let plain = program(X, RELU, "y");
    for number in unseen {
        let found = row_of(&plain, number);
        assert_eq!(found["verdict"], "not visible", "{found}");
        assert_eq!(found["first"], Value::Null);
    }
}

/// A weight file of one record of two fp16 numbers, at 64.
fn weights() -> Vec<u8> {
    let mut file = vec![0; 192];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &1u32.to_le_bytes());
    put(4, &2u32.to_le_bytes());
    put(64, &0xDEAD_BEEF_u32.to_le_bytes());
    put(68, &1u32.to_le_bytes());
    put(72, &4u64.to_le_bytes());
    put(80, &128u64.to_le_bytes());
    put(128, &[0x00, 0x3c, 0x00, 0x40]);
    file
}

#[test]
fn row_8_is_seen_where_the_weight_file_is() {
    let folder = Folder::new();
    fs::create_dir(folder.join("weights")).unwrap();
    fs::write(folder.join("weights/weight.bin"), weights()).unwrap();
    for (offset, verdict) in [(64, "clear"), (128, "applies")] {
        let operations = format!(
            "tensor<fp16, [2]> w = const()[val = tensor<fp16, [2]>(BLOBFILE(path = string(\"@model_path/weights/weight.bin\"), offset = uint64({offset})))];\n\
             tensor<fp16, [2]> y = add(x = x, y = w);"
        );
        let path = folder.join("model.mil");
        fs::write(&path, program("tensor<fp16, [2]> x", &operations, "y")).unwrap();
        let found = row(&path, 8);
        assert_eq!(found["verdict"], verdict, "{offset}: {found}");
    }
}

#[test]
fn row_14_is_seen_in_the_description_and_a_program_that_returns_nothing_is_refused() {
    let (folder, package) = Folder::with_copy_of("attention_block");
    assert_eq!(row(&package, 14)["verdict"], "clear");
    // The description comes first in the file.
    let model = package.join(MODEL);
    let mut bytes = fs::read(&model).unwrap();
    let output = b"\x0a\x01y";
    let place = bytes
        .windows(output.len())
        .position(|window| window == output);
    bytes[place.unwrap() + 2] = b'q';
    fs::write(&model, bytes).unwrap();
    let found = row(&package, 14);
    assert_eq!(found["verdict"], "applies", "{found}");
    assert_eq!(found["first"], "main/q (output)");

    let path = folder.join("model.mil");
    fs::write(&path, program(X, RELU, "gone")).unwrap();
    let ran = run(args!["lint", path]);
    assert_eq!(ran.status, 2, "{ran:?}");
    assert!(
        ran.stderr.contains("`gone` is used before it is defined"),
        "{ran:?}"
    );
}
