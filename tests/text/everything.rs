//! A program with every construct of the language, in every form of text.

use std::collections::BTreeMap;

use milwright::ir::{
    BlobRef, BodyBuilder, Content, DType, DraftBinding, Function, InputOrigin, NamedType, OpDraft,
    Program, Value, ValueType,
};
use milwright::text::{
    Dialect, PrintOptions, dot, function_text, json, print_op, program_text, summary,
};

use crate::drafts::{attributes, body, const_op, name, named, op, program_of, scalar, tensor};

/// A program with a loop, a branch, a state, literals as arguments, several functions and bodies.
pub(crate) fn everything() -> Program {
    let fp16 = |shape: &[u64]| tensor(DType::Float16, shape);
    let inputs = vec![
        named("x", fp16(&[1, 4])),
        named("cache", ValueType::State(Some(Box::new(fp16(&[1, 8]))))),
    ];
    let mut builder = BodyBuilder::new();
    for input in &inputs {
        builder
            .input(input.clone(), InputOrigin::Function)
            .expect("fresh");
    }
    let zero = Value::float(DType::Float16, 0.0).expect("fp16");
    let add = |b: &mut BodyBuilder, draft: OpDraft| b.op(draft).expect("defined names");
    add(&mut builder, const_op("zero", "zero", &zero));
    let mask: Vec<i32> = (0..12).collect();
    add(
        &mut builder,
        const_op("mask", "mask", &Value::int32s(&mask)),
    );
    let blob = Value {
        doc: String::new(),
        ty: Some(fp16(&[4, 4])),
        content: Content::Blob(BlobRef {
            file: "@model_path/weights/weight.bin".to_owned(),
            offset: 64,
        }),
    };
    add(&mut builder, const_op("w", "w", &blob));
    let lin = op(
        "matmul",
        &[
            ("x", vec![name("x")]),
            ("y", vec![name("w")]),
            (
                "transpose_y",
                vec![DraftBinding::Immediate(Value::bool(true))],
            ),
        ],
        &[named("h", fp16(&[1, 4]))],
        &[("name", Value::string("op \"1\""))],
    );
    add(&mut builder, lin);
    let read = |result: &str| {
        op(
            "read_state",
            &[("input", vec![name("cache")])],
            &[named(result, fp16(&[1, 8]))],
            &[],
        )
    };
    add(&mut builder, read("old"));
    add(
        &mut builder,
        op(
            "write_state",
            &[("input", vec![name("cache")]), ("data", vec![name("old")])],
            &[],
            &[],
        ),
    );
    // while_loop with two block inputs that uses an outer value.
    let mut loop_op = op(
        "while_loop",
        &[("loop_vars", vec![name("h"), name("zero")])],
        &[
            named("a", fp16(&[1, 4])),
            named("b", scalar(DType::Float16)),
        ],
        &[("name", Value::string("loop"))],
    );
    let inner = |result: &str, op_type: &str, x: &str, y: &str| {
        op(
            op_type,
            &[("x", vec![name(x)]), ("y", vec![name(y)])],
            &[named(result, scalar(DType::Bool))],
            &[],
        )
    };
    for (suffix, op_type, outputs) in [("c", "less", vec!["r_c"]), ("b", "add", vec!["i_b", "r_b"])]
    {
        builder.begin_block();
        for (input, ty) in [("i_", fp16(&[1, 4])), ("j_", scalar(DType::Float16))] {
            let input = named(&format!("{input}{suffix}"), ty);
            builder.input(input, InputOrigin::Block).expect("fresh");
        }
        let result = format!("r_{suffix}");
        add(
            &mut builder,
            inner(&result, op_type, &format!("j_{suffix}"), "zero"),
        );
        let outputs: Vec<String> = outputs.into_iter().map(str::to_owned).collect();
        let pairs = match suffix {
            "c" => BTreeMap::new(),
            _ => attributes(&[("note", Value::string("body"))]),
        };
        loop_op
            .blocks
            .push(builder.end_block(&outputs, pairs).expect("defined"));
    }
    add(&mut builder, loop_op);
    let mut branch = op(
        "cond",
        &[("pred", vec![name("b")])],
        &[named("y", fp16(&[1, 4]))],
        &[("name", Value::string("branch"))],
    );
    for result in ["a", "h"] {
        builder.begin_block();
        let block = builder.end_block(&[result.to_owned()], BTreeMap::new());
        branch.blocks.push(block.expect("defined"));
    }
    add(&mut builder, branch);
    let mut odd = op(
        "odd op",
        &[
            ("absent", vec![DraftBinding::Absent]),
            ("none", Vec::new()),
            (
                "mixed",
                vec![name("y"), DraftBinding::Immediate(Value::int32(7))],
            ),
        ],
        &[],
        &[],
    );
    odd.results.push(NamedType {
        name: "true".to_owned(),
        ty: None,
    });
    add(&mut builder, odd);
    let outputs = ["y".to_owned(), "true".to_owned(), "mask".to_owned()];
    let main = builder.finish(&outputs, BTreeMap::new()).expect("defined");

    let mut other = BodyBuilder::new();
    for input in &inputs {
        other
            .input(input.clone(), InputOrigin::Function)
            .expect("fresh");
    }
    other
        .input(named("own", fp16(&[2])), InputOrigin::Block)
        .expect("fresh");
    let other = other
        .finish(&["x".to_owned()], attributes(&[("k", Value::int32(1))]))
        .expect("defined");
    let mut program = program_of("CoreML8", inputs, main);
    program.version = 2;
    "two\nlines".clone_into(&mut program.doc);
    program.attributes = attributes(&[("buildInfo", Value::string("x"))]);
    if let Some(function) = program.functions.get_mut("main") {
        function.specializations.insert("CoreML7".to_owned(), other);
        function.attributes = attributes(&[("flag", Value::bool(true))]);
    }
    let nothing = Function {
        opset: "next-opset".to_owned(),
        ..Function::default()
    };
    program.functions.insert("empty".to_owned(), nothing);
    program
}

fn settings() -> insta::Settings {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../../snapshots/text");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings
}

#[test]
fn a_program_with_every_construct_prints_in_both_dialects() {
    let program = everything();
    settings().bind(|| {
        for (file, dialect, types) in [
            ("everything_1.0", Dialect::Program10, false),
            ("everything_1.3", Dialect::Program13, true),
        ] {
            let options = PrintOptions {
                dialect: Some(dialect),
                types,
                ..PrintOptions::default()
            };
            insta::assert_snapshot!(file, program_text(&program, &options).expect("functions"));
        }
    });
}

#[test]
fn a_program_with_every_construct_has_a_summary_json_and_a_drawing() {
    let program = everything();
    let function = &program.functions["main"];
    settings().bind(|| {
        let summary = summary::FunctionSummary::of("main", function);
        insta::assert_snapshot!("everything_summary", summary.to_string());
        let json = json::program_json(&program, None).expect("functions");
        let text = serde_json::to_string_pretty(&json).expect("JSON");
        insta::assert_snapshot!("everything_json", text);
        let mut drawing = String::new();
        let body = function.active().expect("a body");
        dot::write_dot(&mut drawing, "main", body, Dialect::Program13, true).expect("a string");
        insta::assert_snapshot!("everything_dot", drawing);
    });
}

#[test]
fn one_function_can_be_asked_for_and_a_wrong_name_lists_the_right_ones() {
    let program = everything();
    let asked = |function| PrintOptions {
        function: Some(function),
        ..PrintOptions::default()
    };
    let text = program_text(&program, &asked("empty")).expect("a function");
    assert!(
        text.contains("func empty<`next-opset`>() @no_body;"),
        "{text}"
    );
    assert!(!text.contains("func main"));
    let error = program_text(&program, &asked("mian")).expect_err("no such function");
    assert_eq!(
        error.to_string(),
        "no function `mian` in the program; it has empty, main"
    );
    assert!(json::program_json(&program, Some("mian")).is_err());
    let alone = function_text("main", &program.functions["main"], &PrintOptions::default());
    assert!(alone.starts_with("func main<ios18>("), "{alone}");
}

#[test]
fn the_dialect_follows_the_newest_opset() {
    for (opset, dialect) in [
        ("CoreML5", Dialect::Program10),
        ("CoreML7", Dialect::Program10),
        ("CoreML8", Dialect::Program13),
        ("CoreML9", Dialect::Program13),
        ("something", Dialect::Program10),
    ] {
        let program = program_of(opset, Vec::new(), body(&[], Vec::new(), &[]));
        assert_eq!(Dialect::for_program(&program), dialect, "{opset}");
    }
}

#[test]
fn a_single_operation_is_one_short_line() {
    let program = everything();
    let graph = &program.functions["main"].active().expect("a body").graph;
    let line = |op_type: &str| {
        let (node, _) = graph
            .ops()
            .find(|(_, op)| op.op_type() == op_type)
            .expect("the op");
        print_op(graph, node)
    };
    assert_eq!(
        line("matmul"),
        "tensor<fp16, [1, 4]> h = matmul(transpose_y = bool(true), x = x, y = w)\
         [name = string(\"op \\\"1\\\"\")]"
    );
    assert!(line("while_loop").ends_with("[name = string(\"loop\")] { 1 ops } { 1 ops }"));
    let (mask, _) = graph
        .ops()
        .find(|(_, op)| op.name() == Some("mask"))
        .expect("the const");
    assert_eq!(
        print_op(graph, mask),
        "tensor<int32, [12]> mask = const()[name = string(\"mask\"), \
         val = tensor<int32, [12]>([0, 1, 2, 3, 4, 5, 6, 7, … 4 more])]"
    );
}
