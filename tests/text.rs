//! Every form of MIL text: literals, types, containers, nested blocks, and the extensions for what
//! the compiler's language has no word for.

use std::collections::BTreeMap;

use milwright::ir::{
    BlobRef, Body, BodyBuilder, Content, DType, Dim, DraftBinding, Function, Graph, Immediate,
    InputOrigin, NamedType, NewBlob, OpDraft, Program, TensorData, TensorType, Value, ValueId,
    ValueType,
};
use milwright::text::{
    Dialect, PrintError, PrintOptions, dot, function_text, json, print_op, program_text, summary,
    type_text, write_program,
};

fn tensor(dtype: DType, shape: &[u64]) -> ValueType {
    TensorType::fixed(dtype, shape).into()
}

fn scalar(dtype: DType) -> ValueType {
    TensorType::scalar(dtype).into()
}

fn named(name: &str, ty: ValueType) -> NamedType {
    NamedType {
        name: name.to_owned(),
        ty: Some(ty),
    }
}

fn immediate(ty: Option<ValueType>, immediate: Immediate) -> Value {
    Value {
        doc: String::new(),
        ty,
        content: Content::Immediate(immediate),
    }
}

fn data(ty: ValueType, data: TensorData) -> Value {
    immediate(Some(ty), Immediate::Tensor(data))
}

fn name(text: &str) -> DraftBinding {
    DraftBinding::Name(text.to_owned())
}

fn attributes(pairs: &[(&str, Value)]) -> BTreeMap<String, Value> {
    let pairs = pairs.iter();
    pairs
        .map(|(name, value)| ((*name).to_owned(), value.clone()))
        .collect()
}

fn op(
    op_type: &str,
    arguments: &[(&str, Vec<DraftBinding>)],
    results: &[NamedType],
    pairs: &[(&str, Value)],
) -> OpDraft {
    let arguments = arguments.iter();
    OpDraft {
        op_type: op_type.to_owned(),
        arguments: arguments
            .map(|(p, b)| ((*p).to_owned(), b.clone()))
            .collect(),
        results: results.to_vec(),
        blocks: Vec::new(),
        attributes: attributes(pairs),
    }
}

fn const_op(result: &str, op_name: &str, value: &Value) -> OpDraft {
    let ty = value.ty.clone().expect("consts here have a type");
    let pairs = [("name", Value::string(op_name)), ("val", value.clone())];
    op("const", &[], &[named(result, ty)], &pairs)
}

fn program_of(opset: &str, inputs: Vec<NamedType>, body: Body) -> Program {
    let function = Function {
        inputs,
        opset: opset.to_owned(),
        specializations: BTreeMap::from([(opset.to_owned(), body)]),
        attributes: BTreeMap::new(),
    };
    Program {
        version: 1,
        functions: BTreeMap::from([("main".to_owned(), function)]),
        doc: String::new(),
        attributes: BTreeMap::new(),
    }
}

fn body(inputs: &[NamedType], ops: Vec<OpDraft>, outputs: &[&str]) -> Body {
    let mut builder = BodyBuilder::new();
    for input in inputs {
        builder
            .input(input.clone(), InputOrigin::Function)
            .expect("a fresh name");
    }
    for op in ops {
        builder
            .op(op)
            .expect("an operation whose names are defined");
    }
    let outputs: Vec<String> = outputs.iter().map(|&name| name.to_owned()).collect();
    builder
        .finish(&outputs, BTreeMap::new())
        .expect("outputs that are defined")
}

/// The statement of a const with this value, from `val = ` on, without the end of the line.
fn literal(value: &Value, dialect: Dialect) -> String {
    let mut draft = const_op("c", "c", &Value::bool(true));
    draft.attributes.insert("val".to_owned(), value.clone());
    let program = program_of("CoreML8", Vec::new(), body(&[], vec![draft], &[]));
    let options = PrintOptions {
        dialect: Some(dialect),
        ..PrintOptions::default()
    };
    let text = program_text(&program, &options).expect("a program");
    let (_, rest) = text.split_once("val = ").expect("a const");
    let (value, _) = rest.split_once("];\n").expect("the statement's end");
    value.to_owned()
}

fn literal13(value: &Value) -> String {
    literal(value, Dialect::Program13)
}

fn literal10(value: &Value) -> String {
    literal(value, Dialect::Program10)
}

fn fp16s(values: &[u16]) -> TensorData {
    TensorData::Bytes(values.iter().flat_map(|bits| bits.to_le_bytes()).collect())
}

/// The text between the brackets of real compiled models, for the same bits.
#[test]
fn literals_are_those_of_compiled_models() {
    // unified_palette_2bit.mlmodelc/model.mil: the first lut, a bool mask, pads, axes, a string.
    let lut = data(
        tensor(DType::Float16, &[4]),
        fp16s(&[0xb920, 0xaab6, 0x34d1, 0x39fd]),
    );
    assert_eq!(
        literal10(&lut),
        "tensor<fp16, [4]>([-0x1.48p-1, -0x1.ad8p-5, 0x1.344p-2, 0x1.7f4p-1])"
    );
    let mask = data(
        tensor(DType::Bool, &[3]),
        TensorData::Bools(vec![true, false, true]),
    );
    assert_eq!(literal10(&mask), "tensor<bool, [3]>([true, false, true])");
    assert_eq!(
        literal10(&Value::int32s(&[0, 0, 0, 64])),
        "tensor<int32, [4]>([0, 0, 0, 64])"
    );
    assert_eq!(literal10(&Value::int32(0)), "tensor<int32, []>(0)");
    assert_eq!(
        literal10(&Value::string("reflect")),
        "tensor<string, []>(\"reflect\")"
    );
    let weight = Value {
        doc: String::new(),
        ty: Some(tensor(DType::Float16, &[128])),
        content: Content::Blob(BlobRef {
            file: "@model_path/weights/weight.bin".to_owned(),
            offset: 29120,
        }),
    };
    assert_eq!(
        literal10(&weight),
        "tensor<fp16, [128]>(BLOBFILE(path = tensor<string, []>(\"@model_path/weights/weight.bin\"), \
         offset = tensor<uint64, []>(29120)))"
    );
    // streaming_encoder.mlmodelc/model.mil: nested brackets, negative infinity.
    let nested = data(
        tensor(DType::Int32, &[1, 3]),
        TensorData::Ints(vec![0, 1, 2]),
    );
    assert_eq!(literal10(&nested), "tensor<int32, [1, 3]>([[0, 1, 2]])");
    let infinite = data(scalar(DType::Float16), fp16s(&[0xfc00]));
    assert_eq!(literal10(&infinite), "tensor<fp16, []>(-inf)");
    // The texts for iOS 18 that Apple's compiler accepts have bare scalar types.
    assert_eq!(
        literal13(&weight).split_once('(').map(|p| p.1),
        Some(
            "BLOBFILE(path = string(\"@model_path/weights/weight.bin\"), offset = uint64(29120)))"
        )
    );
    let eighth = data(scalar(DType::Float16), fp16s(&[0x3000]));
    assert_eq!(literal13(&eighth), "fp16(0x1p-3)");
    assert_eq!(literal13(&Value::bool(true)), "bool(true)");
}

/// The attribute that the compiler writes for flexible shapes, taken whole from
/// parakeet_eou_preprocessor.mlmodelc/model.mil.
#[test]
fn containers_are_those_of_compiled_models() {
    let text = || scalar(DType::String);
    let sizes = ValueType::from(TensorType::new(DType::Int32, vec![Dim::UNKNOWN]));
    let pair = tensor(DType::Int32, &[2]);
    let ranges = ValueType::List {
        item: Some(Box::new(pair.clone())),
        length: Some(Dim::UNKNOWN),
    };
    let dictionary = |value: &ValueType| ValueType::Dictionary {
        key: Some(Box::new(text())),
        value: Some(Box::new(value.clone())),
    };
    let entry = |ty: &ValueType, name: &str, value: Value| {
        immediate(
            Some(dictionary(ty)),
            Immediate::Dictionary(vec![(Some(Value::string(name)), Some(value))]),
        )
    };
    let ints = |ty: &ValueType, values: &[i32]| data(ty.clone(), TensorData::Ints(values.to_vec()));
    let named_tuple = |name: &str, ty: &ValueType, value: Value| {
        immediate(
            Some(ValueType::Tuple(vec![text(), dictionary(ty)])),
            Immediate::Tuple(vec![Value::string(name), value]),
        )
    };
    let bounds = immediate(
        Some(ranges.clone()),
        Immediate::List(vec![ints(&pair, &[1, 1]), ints(&pair, &[1, 32000])]),
    );
    let default = named_tuple(
        "DefaultShapes",
        &sizes,
        entry(&sizes, "audio_signal", ints(&sizes, &[1, 1])),
    );
    let range = named_tuple("RangeDims", &ranges, entry(&ranges, "audio_signal", bounds));
    let types = [&default, &range].map(|value| value.ty.clone().expect("typed above"));
    let whole = immediate(
        Some(ValueType::Tuple(types.to_vec())),
        Immediate::Tuple(vec![default, range]),
    );
    assert_eq!(
        literal10(&whole),
        "tuple<tuple<tensor<string, []>, dict<tensor<string, []>, tensor<int32, [?]>>>, \
         tuple<tensor<string, []>, dict<tensor<string, []>, list<tensor<int32, [2]>, ?>>>>\
         (((\"DefaultShapes\", {{\"audio_signal\", [1, 1]}}), \
         (\"RangeDims\", {{\"audio_signal\", [[1, 1], [1, 32000]]}})))"
    );
}

#[test]
fn an_item_whose_type_is_not_that_of_the_container_says_so() {
    let list = |item, values| {
        immediate(
            Some(ValueType::List {
                item,
                length: Some(Dim::Known(2)),
            }),
            Immediate::List(values),
        )
    };
    let ints = Some(Box::new(scalar(DType::Int32)));
    let mut untyped = Value::int32(2);
    untyped.ty = None;
    assert_eq!(
        literal13(&list(ints, vec![Value::bool(true), untyped.clone()])),
        "list<int32, 2>([bool(true), @untyped(@ints [2])])"
    );
    assert_eq!(
        literal13(&list(None, vec![Value::int32(1)])),
        "list<@untyped, 2>([int32(1)])"
    );
    let mut documented = Value::int32(1);
    documented.doc = "one \"1\"".to_owned();
    let items = vec![documented.clone(), Value::int32(2)];
    let ints = Some(Box::new(scalar(DType::Int32)));
    assert_eq!(
        literal13(&list(ints, items)),
        "list<int32, 2>([@doc \"one \\\"1\\\"\" 1, 2])"
    );
    assert_eq!(literal13(&documented), "@doc \"one \\\"1\\\"\" int32(1)");
    let misplaced = [
        (
            Immediate::List(vec![Value::int32(1)]),
            "int32(@list [int32(1)])",
        ),
        (Immediate::Tuple(Vec::new()), "int32(@tuple ())"),
        (
            Immediate::Dictionary(vec![(None, Some(untyped))]),
            "int32(@dict {{@missing, @untyped(@ints [2])}})",
        ),
        (Immediate::Absent, "int32(@no_immediate)"),
        (Immediate::Tensor(TensorData::Absent), "int32(@no_data)"),
    ];
    for (content, expected) in misplaced {
        assert_eq!(
            literal13(&immediate(Some(scalar(DType::Int32)), content)),
            expected
        );
    }
    let nothing = Value {
        doc: String::new(),
        ty: None,
        content: Content::Absent,
    };
    assert_eq!(literal13(&nothing), "@untyped(@no_value)");
}

#[test]
fn the_field_of_the_schema_is_marked_where_it_is_not_the_usual_one() {
    let int8 = tensor(DType::Int8, &[2]);
    let rows = [
        (
            data(int8.clone(), TensorData::Bytes(vec![0xff, 2])),
            "tensor<int8, [2]>([-1, 2])",
        ),
        (
            data(int8, TensorData::Ints(vec![-1, 2])),
            "tensor<int8, [2]>(@ints [-1, 2])",
        ),
        (
            data(
                tensor(DType::Int32, &[1]),
                TensorData::Bytes(vec![5, 0, 0, 0]),
            ),
            "tensor<int32, [1]>(@bytes [5])",
        ),
        (
            data(
                tensor(DType::Int32, &[1]),
                TensorData::Bytes(vec![5, 0, 10]),
            ),
            "tensor<int32, [1]>(@raw \"05000a\")",
        ),
        (
            data(scalar(DType::UInt64), TensorData::LongInts(vec![-1])),
            "uint64(18446744073709551615)",
        ),
        (
            data(scalar(DType::Int64), TensorData::LongInts(vec![-1])),
            "int64(-1)",
        ),
        (
            data(scalar(DType::Float64), TensorData::Doubles(vec![0.5])),
            "fp64(0x1p-1)",
        ),
        (
            data(scalar(DType::Float32), TensorData::Doubles(vec![0.5])),
            "fp32(@doubles 0x1p-1)",
        ),
        (
            data(
                scalar(DType::Float16),
                TensorData::Floats(vec![f32::from_bits(0x7f80_0001)]),
            ),
            "fp16(@floats nan(0x1))",
        ),
        (
            data(scalar(DType::Bool), TensorData::Bytes(vec![1])),
            "bool(@bytes 1)",
        ),
        (
            data(scalar(DType::Other(99)), TensorData::Bytes(vec![1])),
            "dtype99(@raw \"01\")",
        ),
        (
            data(
                tensor(DType::Int4, &[3]),
                TensorData::Bytes(vec![0x78, 0x0f]),
            ),
            "tensor<int4, [3]>([-8, 7, -1])",
        ),
        (
            // Bits set in the padding.
            data(
                tensor(DType::Int4, &[3]),
                TensorData::Bytes(vec![0x78, 0x1f]),
            ),
            "tensor<int4, [3]>(@raw \"781f\")",
        ),
    ];
    for (value, expected) in rows {
        assert_eq!(literal13(&value), expected);
    }
}

#[test]
fn the_number_of_elements_decides_the_brackets() {
    let ints =
        |ty: ValueType, values: &[i32]| literal13(&data(ty, TensorData::Ints(values.to_vec())));
    let matrix = || tensor(DType::Int32, &[2, 2]);
    assert_eq!(
        ints(matrix(), &[1, 2, 3, 4]),
        "tensor<int32, [2, 2]>([[1, 2], [3, 4]])"
    );
    assert_eq!(ints(matrix(), &[1]), "tensor<int32, [2, 2]>([1])");
    assert_eq!(ints(matrix(), &[]), "tensor<int32, [2, 2]>([])");
    assert_eq!(
        ints(tensor(DType::Int32, &[2, 0]), &[]),
        "tensor<int32, [2, 0]>([])"
    );
    assert_eq!(ints(scalar(DType::Int32), &[1, 2]), "int32([1, 2])");
    assert_eq!(ints(scalar(DType::Int32), &[]), "int32([])");
    let cube = tensor(DType::Int32, &[2, 1, 2]);
    assert_eq!(
        ints(cube, &[1, 2, 3, 4]),
        "tensor<int32, [2, 1, 2]>([[[1, 2]], [[3, 4]]])"
    );
}

#[test]
fn types_keep_everything_that_the_file_spells() {
    let dims = |dims: Vec<Dim>| TensorType::new(DType::Float16, dims);
    let variadic = Dim::Unknown { variadic: true };
    let mut ranked = dims(vec![Dim::Known(1)]);
    ranked.rank = 3;
    let mut unranked = dims(Vec::new());
    unranked.rank = -1;
    let mut any = dims(vec![variadic]);
    any.rank = -1;
    let mut attributed = TensorType::scalar(DType::Float16);
    attributed.attributes = attributes(&[("k", Value::bool(true))]);
    let item = || Some(Box::new(tensor(DType::Float16, &[1, 8])));
    let rows: Vec<(ValueType, &str)> = vec![
        (scalar(DType::Float16), "fp16"),
        (
            dims(vec![Dim::Known(1), Dim::UNKNOWN]).into(),
            "tensor<fp16, [1, ?]>",
        ),
        (any.into(), "tensor<fp16, [...]>"),
        (dims(vec![variadic]).into(), "tensor<fp16, [...] @rank(1)>"),
        (ranked.into(), "tensor<fp16, [1] @rank(3)>"),
        (unranked.into(), "tensor<fp16, [] @rank(-1)>"),
        (dims(vec![Dim::Unspecified]).into(), "tensor<fp16, [@dim]>"),
        (
            attributed.into(),
            "tensor<fp16, [] @attributes[k = bool(true)]>",
        ),
        (ValueType::State(item()), "state<tensor<fp16, [1, 8]>>"),
        (ValueType::State(None), "state<@untyped>"),
        (
            ValueType::List {
                item: item(),
                length: Some(Dim::Known(3)),
            },
            "list<tensor<fp16, [1, 8]>, 3>",
        ),
        (
            ValueType::List {
                item: item(),
                length: None,
            },
            "list<tensor<fp16, [1, 8]>>",
        ),
        (
            ValueType::Dictionary {
                key: None,
                value: item(),
            },
            "dict<@untyped, tensor<fp16, [1, 8]>>",
        ),
        (ValueType::Tuple(Vec::new()), "tuple<>"),
        (ValueType::Unspecified, "@type"),
    ];
    for (ty, expected) in rows {
        assert_eq!(type_text(&ty, Dialect::Program13), expected);
    }
    assert_eq!(
        type_text(&scalar(DType::Float16), Dialect::Program10),
        "tensor<fp16, []>"
    );
}

/// A program with a loop, a branch, a state, literals as arguments, several functions and bodies.
fn everything() -> Program {
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
    settings.set_snapshot_path("../snapshots/text");
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

#[test]
fn new_blobs_show_their_elements_or_a_digest() {
    let new = |elements: u64| Value {
        doc: String::new(),
        ty: Some(tensor(DType::UInt8, &[elements / 2, 2])),
        content: Content::New(NewBlob {
            dtype: DType::UInt8,
            elements,
            bytes: vec![7; elements as usize].into(),
        }),
    };
    assert_eq!(
        literal13(&new(4)),
        "tensor<uint8, [2, 2]>(@new(uint8, 4) [[7, 7], [7, 7]])"
    );
    let long = literal13(&new(100));
    assert!(
        long.starts_with("tensor<uint8, [50, 2]>(@new(uint8, 100, 0x"),
        "{long}"
    );
    let program = program_of(
        "CoreML8",
        Vec::new(),
        body(&[], vec![const_op("c", "c", &new(100))], &[]),
    );
    let options = PrintOptions {
        inline_new: true,
        ..PrintOptions::default()
    };
    let text = program_text(&program, &options).expect("a program");
    assert_eq!(text.matches('7').count(), 100);
}

#[test]
fn a_sink_that_fails_is_an_error_with_its_own_words() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("disk full"))
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let error = write_program(&mut Full, &everything(), &PrintOptions::default())
        .expect_err("the sink is full");
    assert!(matches!(error, PrintError::Io(_)));
    assert!(error.to_string().contains("disk full"), "{error}");
    let mut bytes = Vec::new();
    write_program(&mut bytes, &everything(), &PrintOptions::default()).expect("room");
    let text = program_text(&everything(), &PrintOptions::default()).expect("functions");
    assert_eq!(bytes, text.into_bytes());
}

#[test]
fn nodes_that_are_not_operations_print_too() {
    let graph = Graph::new();
    let (output, _) = graph.nodes().next().expect("the return");
    assert_eq!(print_op(&graph, output), "-> ()");
    assert_eq!(
        graph.name(ValueId {
            node: output,
            result: 5
        }),
        ""
    );
}
