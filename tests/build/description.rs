//! Descriptions made from signatures, and descriptions that are taken over.

use std::fs;
use std::path::{Path, PathBuf};

use milwright::source::{BuildOptions, ModelFile};

use crate::support::folders::test_package;
use crate::support::python::output_of;
use crate::{build_at, print, second_opinion};

/// A program with this opset word, these inputs, this body, these outputs.
fn program(opset: &str, inputs: &str, body: &str, outputs: &str) -> String {
    format!(
        "program(1.3)\n{{\n    func main<{opset}>({inputs}) {{\n{body}\n    }} -> ({outputs});\n}}\n"
    )
}

/// Builds the text, with the description of another package if one is given.
fn built(text: &str, description: Option<&Path>) -> Result<ModelFile, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text.mil");
    fs::write(&path, text).unwrap();
    let out = folder.path().join("out.mlpackage");
    let options = BuildOptions {
        weights: None,
        description,
        ..BuildOptions::default()
    };
    build_at(&path, &options, &out).map_err(|error| error.to_string())?;
    // The model is decoded, so that the folder may go.
    Ok(ModelFile::open(&out).unwrap())
}

/// The inputs, outputs and states of a function as the description has them.
fn described(file: &ModelFile, function: &str) -> [Vec<String>; 3] {
    let parts = file.model.programs();
    let interface = parts[0].interface.function(function).unwrap();
    [&interface.inputs, &interface.outputs, &interface.states].map(|features| {
        let features = features.iter();
        features
            .map(|f| format!("{}: {}", f.name, f.kind))
            .collect()
    })
}

#[test]
fn each_type_of_a_signature_gets_its_type_in_the_description() {
    let text = program(
        "ios26",
        "tensor<fp16, [1, 4]> h, tensor<fp32, [1, ?]> s, tensor<int32, [2]> i, tensor<int8, [3]> b, state<tensor<fp16, [1, 4]>> memory",
        "tensor<fp16, [1, 4]> m = read_state(input = memory);
         tensor<fp16, [1, 4]> sum = add(x = h, y = m);
         tensor<fp32, [1, ?]> r = relu(x = s);",
        "sum, r, i, b",
    );
    let file = built(&text, None).unwrap();
    assert_eq!(file.model.specification_version(), 10);
    let [inputs, outputs, states] = described(&file, "main");
    let flexible = "s: fp32 [1, 1], shapes in a range";
    assert_eq!(
        inputs,
        ["h: fp16 [1, 4]", flexible, "i: int32 [2]", "b: int8 [3]"]
    );
    assert_eq!(
        outputs,
        [
            "sum: fp16 [1, 4]",
            "r: fp32 []",
            "i: int32 [2]",
            "b: int8 [3]"
        ]
    );
    assert_eq!(states, ["memory: fp16 [1, 4]"]);
}

#[test]
fn the_specification_version_follows_from_the_opset() {
    // coremltools' `_OPSET` and `_SPECIFICATION_VERSION_*`: iOS15 is 6, iOS18 is 9, iOS26 is 10.
    for (word, version) in [
        ("ios15", 6),
        ("ios16", 7),
        ("ios17", 8),
        ("ios18", 9),
        ("ios26", 10),
    ] {
        let text = program(
            word,
            "tensor<fp32, [1]> x",
            "tensor<fp32, [1]> y = relu(x = x);",
            "y",
        );
        let file = built(&text, None).unwrap();
        assert_eq!(file.model.specification_version(), version, "{word}");
    }
}

#[test]
fn what_an_opset_or_a_description_cannot_have_is_refused_with_what_to_do() {
    let simple = |opset: &str, dtype: &str| {
        let input = format!("tensor<{dtype}, [4]> x");
        let body = format!("tensor<{dtype}, [4]> y = relu(x = x);");
        program(opset, &input, &body, "y")
    };
    let state = program(
        "ios17",
        "tensor<fp16, [4]> x, state<tensor<fp16, [4]>> s",
        "tensor<fp16, [4]> y = relu(x = x);",
        "y",
    );
    let scalar = program("ios17", "fp32 x", "fp32 y = relu(x = x);", "y");
    let renamed = simple("ios17", "fp32").replace("main", "step");
    for (text, expected) in [
        (
            simple("ios15", "fp16"),
            ["fp16 as the type of input `x`", "ios16"],
        ),
        (simple("ios18", "bool"), ["element type bool", "cast"]),
        (
            simple("ios18", "int8"),
            ["int8 as the type of input `x`", "ios26"],
        ),
        (simple("ios99", "fp32"), ["`ios99`", "ios15 to ios18"]),
        (state, ["state `s`", "ios18"]),
        (scalar, ["input `x`", "shape [1]"]),
        (renamed, ["`step`", "ios18"]),
        (
            "program(1.3)\n{\n}\n".to_owned(),
            ["no function", "program"],
        ),
    ] {
        let error = built(&text, None).err().unwrap_or_else(|| panic!("{text}"));
        for part in expected {
            assert!(error.contains(part), "{part:?} is not in {error:?}");
        }
    }
}

#[test]
fn several_functions_are_described_each_and_main_or_the_first_runs_by_default() {
    let function = |name: &str, size: u32| {
        format!(
            "func {name}<ios18>(tensor<fp16, [{size}]> x) {{ tensor<fp16, [{size}]> y = relu(x = x); }} -> (y);"
        )
    };
    let text = |one: &str, other: &str| {
        format!(
            "program(1.3)\n{{\n{}\n{}\n}}\n",
            function(one, 1),
            function(other, 2)
        )
    };
    let file = built(&text("prefill", "decode"), None).unwrap();
    let interface = file.model.programs()[0].interface.clone();
    assert_eq!(interface.default_function, "decode");
    assert_eq!(described(&file, "prefill")[0], ["x: fp16 [1]"]);
    assert_eq!(described(&file, "decode")[0], ["x: fp16 [2]"]);
    let file = built(&text("main", "decode"), None).unwrap();
    let interface = file.model.programs()[0].interface.clone();
    assert_eq!(interface.default_function, "main");
}

#[test]
fn the_descriptions_that_coremltools_made_of_signatures_are_made_again() {
    let folder = tempfile::tempdir().unwrap();
    // Without images, defaults, limits and names that only a description has.
    let names = [
        "attention_block",
        "control_flow",
        "lists",
        "multifunction",
        "pow_zoo",
        "quantized_ios16",
        "rmsnorm_fp32",
        "rmsnorm_ios16",
        "stateful",
    ];
    let pairs: Vec<(PathBuf, PathBuf)> = names
        .iter()
        .map(|name| {
            let package = test_package(name);
            let text = folder.path().join(name).join("text.mil");
            fs::create_dir(text.parent().unwrap()).unwrap();
            fs::write(&text, print(&ModelFile::open(&package).unwrap())).unwrap();
            let weights = package.join("Data/com.apple.CoreML/weights/weight.bin");
            let options = BuildOptions {
                weights: weights.is_file().then_some(&weights),
                description: None,
                ..BuildOptions::default()
            };
            let out = text.with_file_name("out.mlpackage");
            build_at(&text, &options, &out).unwrap();
            (out, package)
        })
        .collect();
    let rows: Vec<Vec<&Path>> = pairs.iter().map(|(a, b)| vec![&**a, &**b]).collect();
    for line in second_opinion("accepts.py", &rows).into_iter().flatten() {
        let functions = line["interface"].as_str().unwrap_or_default();
        // Which function is the default one is in no text.
        let by_choice = line["before"].to_string().contains("multifunction");
        assert!(functions == "ok" || by_choice, "{line:#}");
    }
}

#[test]
fn a_classifier_gets_the_names_of_its_label_and_probabilities() {
    let package = test_package("classifier");
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.mil");
    fs::write(&text, print(&ModelFile::open(&package).unwrap())).unwrap();
    let weights = package.join("Data/com.apple.CoreML/weights/weight.bin");
    let options = BuildOptions {
        weights: Some(&weights),
        description: None,
        ..BuildOptions::default()
    };
    let out = folder.path().join("out.mlpackage");
    build_at(&text, &options, &out).unwrap();
    let rows = [vec![out.as_path(), package.as_path()]];
    for line in second_opinion("accepts.py", &rows).into_iter().flatten() {
        assert_eq!(line["interface"], "ok", "{line:#}");
    }
}

#[test]
fn a_description_that_is_taken_over_must_fit() {
    let package = test_package("attention_block");
    let text = print(&ModelFile::open(&package).unwrap());
    let signature = "(tensor<fp16, [1, 8, 32]> x, tensor<fp16, [1, 1, 8, 8]> mask)";
    assert!(text.contains(signature));
    for (from, to, expected) in [
        (
            " x, tensor",
            " x, tensor<int32, [1]> more, tensor",
            "the text has mask, more, x",
        ),
        (
            "[1, 1, 8, 8]> mask)",
            "[1, 1, 1, 8]> mask)",
            "input `mask` is fp16 [1, 1, 8, 8] there",
        ),
        (
            "func main<",
            "func step<",
            "functions main, and the text has step",
        ),
    ] {
        let text = text.replace(from, to);
        let error = built(&text, Some(&package)).err().expect("it does not fit");
        assert!(error.contains(expected), "{expected:?} is not in {error:?}");
        assert!(error.contains("attention_block.mlpackage"), "{error:?}");
    }
    let pipeline = test_package("pipeline");
    let error = built(&text, Some(&pipeline)).err().expect("a pipeline");
    assert!(error.contains("pipeline"), "{error:?}");
}

#[test]
fn outputs_that_come_and_go_are_followed_by_the_description() {
    let package = test_package("metadata");
    let text = print(&ModelFile::open(&package).unwrap());
    let file = built(
        &text.replace("-> (y);", "-> (y, y_linear);"),
        Some(&package),
    )
    .unwrap();
    let [inputs, outputs, _] = described(&file, "main");
    assert_eq!(inputs.len(), 1);
    assert_eq!(outputs.len(), 2);
    assert_eq!(outputs[1], "y_linear: fp32 [2, 12]");
    let file = built(&text.replace("-> (y);", "-> (y_linear);"), Some(&package)).unwrap();
    assert_eq!(described(&file, "main")[1], ["y_linear: fp32 [2, 12]"]);
    assert!(file.model.interface_problems().is_empty());
}

#[test]
fn a_later_opset_raises_the_version_of_a_description_that_is_taken_over() {
    let package = test_package("metadata");
    let text = print(&ModelFile::open(&package).unwrap());
    let file = built(&text.replace("main<ios16>", "main<ios18>"), Some(&package)).unwrap();
    assert_eq!(file.model.specification_version(), 9);
}

#[test]
fn shapes_that_a_compiled_program_allows_are_in_the_description() {
    // The attribute as coremlc writes it, in the dialect of iOS 18.
    let with = |word: &str, ty: &str, table: &str| {
        let defaults = "tuple<string, dict<string, tensor<int32, [?]>>>";
        let attribute = format!(
            "[FlexibleShapeInformation = tuple<{defaults}, tuple<string, {ty}>>\
             (((\"DefaultShapes\", {{{{\"x\", [1, 8]}}}}), (\"{word}\", {table})))]"
        );
        let text = program(
            "ios18",
            "tensor<fp32, [1, ?]> x",
            "tensor<fp32, [1, ?]> y = relu(x = x);",
            "y",
        );
        text.replace(") {", &format!(") {attribute} {{"))
    };
    let ranges = with(
        "RangeDims",
        "dict<string, list<tensor<int32, [2]>, ?>>",
        "{{\"x\", [[1, 1], [4, 32]]}}",
    );
    let shapes = with(
        "EnumeratedShapes",
        "dict<string, dict<string, tensor<int32, [?]>>>",
        "{{\"a\", {{\"x\", [1, 8]}}}, {\"b\", {{\"x\", [1, 16]}}}}",
    );
    for (text, expected, bounds) in [
        (
            ranges,
            "x: fp32 [1, 8], shapes in a range",
            "shapeRange [1, 1] [4, 32]",
        ),
        (
            shapes,
            "x: fp32 [1, 8], other shapes listed",
            "enumeratedShapes [1, 8] [1, 16]",
        ),
    ] {
        let file = built(&text, None).unwrap();
        assert_eq!(described(&file, "main")[0], [expected]);
        // The attribute stays in the program.
        assert!(print(&file).contains("FlexibleShapeInformation"));
        let folder = tempfile::tempdir().unwrap();
        let (path, out) = (
            folder.path().join("a.mil"),
            folder.path().join("a.mlpackage"),
        );
        fs::write(&path, &text).unwrap();
        build_at(&path, &BuildOptions::default(), &out).unwrap();
        let model = out.join("Data/com.apple.CoreML/model.mlmodel");
        if let Some(printed) = output_of(FLEXIBILITY, &[&model]) {
            assert_eq!(printed.trim(), bounds);
        }
    }
}

/// Python that prints the shapes that a model file allows for its first input.
const FLEXIBILITY: &str = "
import sys, coremltools.proto.Model_pb2 as pb
model = pb.Model.FromString(open(sys.argv[1], 'rb').read())
array = model.description.input[0].type.multiArrayType
kind = array.WhichOneof('ShapeFlexibility')
rows = [list(s.shape) for s in array.enumeratedShapes.shapes] or [
    [r.lowerBound, r.upperBound] for r in array.shapeRange.sizeRanges]
print(kind, *rows)
";
