//! `preflight`: what it measures and calls things, what it advises, and that its report is used and held
//! to its model.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use milwright::eval::npz;
use milwright::ir::DType;
use milwright::tensor::Tensor;
use serde_json::Value;

use crate::command::{Folder, args, done, refused, run, snapshot};
use crate::support::folders::{corpus, root, test_package};
use crate::support::schema;

/// Peaks of the stream behind each of the eight layers of `residual_overflow`, as PyTorch computes them.
const PEAKS: [f64; 8] = [
    40_848.0, 76_512.0, 112_963.0, 138_753.0, 165_349.0, 199_890.0, 225_777.0, 258_769.0,
];

/// The greatest of what its layers add.
const BRANCHES: f64 = 40_818.0;

/// Runs `preflight` for the report; gives it with the exit status.
pub(crate) fn preflight(arguments: Vec<std::ffi::OsString>) -> (Value, i32) {
    let mut all = args!["preflight", "--format", "json"];
    all.extend(arguments);
    let ran = run(all);
    assert!(ran.status < 2, "{ran:?}");
    (serde_json::from_str(&ran.stdout).unwrap(), ran.status)
}

/// A model of the collection with the inputs that it was recorded on.
fn model(name: &str) -> Option<(PathBuf, PathBuf)> {
    let folder = corpus()?.join("models").join(name);
    Some((folder.join("model.mlpackage"), folder.join("io.npz")))
}

/// The report of a model of the collection.
fn report(name: &str) -> Option<(Value, i32)> {
    let (package, inputs) = model(name)?;
    Some(preflight(args![package, "--inputs", inputs]))
}

fn near(value: &Value, expected: f64, part: f64) {
    let value = value.as_f64().unwrap();
    assert!(
        (value / expected - 1.0).abs() <= part,
        "{value} for {expected}"
    );
}

fn classes(report: &Value) -> Vec<&str> {
    let issues = report["issues"].as_array().unwrap();
    issues
        .iter()
        .map(|i| i["class"].as_str().unwrap())
        .collect()
}

/// Text of a program with one input `x` of fp16 `[1, 4]` and the output `y`.
pub(crate) fn program(statements: &str) -> String {
    format!(
        "program(1.3) {{ func main<ios18>(tensor<fp16, [1, 4]> x) {{\n{statements}\n}} -> (y); }}"
    )
}

pub(crate) fn inputs(folder: &Folder, name: &str, x: [f32; 4]) -> PathBuf {
    let path = folder.join(name);
    let tensor = Tensor::floats(DType::Float32, vec![1, 4], x.to_vec());
    npz::write(&path, [("x", &tensor)]).unwrap();
    path
}

#[test]
fn the_peaks_of_a_stream_that_overflows_are_those_of_pytorch() {
    let Some((report, status)) = report("residual_overflow") else {
        return;
    };
    assert_eq!(status, 1);
    assert_eq!(report["assumed_fp16"], true);
    let stream = &report["functions"][0]["stream"];
    let layers = stream["layers"].as_array().unwrap();
    assert_eq!(layers.len(), PEAKS.len());
    for (layer, peak) in layers.iter().zip(PEAKS) {
        near(&layer["peak"], peak, 1e-3);
    }
    near(&stream["branch_peak"], BRANCHES, 1e-3);
    assert_eq!(stream["first_overflow_layer"], 1);
    assert_eq!(stream["is_accumulation"], true);
    near(&stream["alpha"]["to_target"], 0.193, 2e-3);
    assert_eq!(stream["alpha"]["power_of_two"], 0.125);
    // The score as ANEMLL gives it: fp16 fails, fp16 weights in fp32 do not.
    assert_eq!(report["score"], 0.5);
    assert_eq!(report["fp16_weights"]["works"], true);
    assert_eq!(report["fp16"]["works"], false);
}

#[test]
fn the_peaks_of_a_package_of_the_project_are_those_of_numpy() {
    // Of the stream behind each layer, in float64 of the inputs beside the package: what `growing_stream`
    // in tests/data/programs.py computes.
    let expected = [21_181.34, 40_894.72, 61_971.75, 82_893.00, 102_770.53];
    let package = test_package("growing_stream");
    let (report, status) = preflight(args![package, "--inputs", package.with_extension("npz")]);
    let stream = &report["functions"][0]["stream"];
    let layers = stream["layers"].as_array().unwrap();
    assert_eq!((layers.len(), status), (expected.len(), 1));
    for (layer, peak) in layers.iter().zip(expected) {
        near(&layer["peak"], peak, 1e-5);
    }
    assert_eq!(stream["first_overflow_layer"], 3);
    assert_eq!(stream["alpha"]["power_of_two"], 0.5);
    assert_eq!(classes(&report), ["norm-square", "residual-accumulation"]);
    let issues = report["issues"].as_array().unwrap();
    assert_eq!(
        (&issues[0]["layer"], &issues[1]["layer"]),
        (&1.into(), &3.into())
    );
}

#[test]
fn squares_of_norms_overflow_before_the_stream_does_and_are_told_first() {
    let Some((report, _)) = report("residual_overflow_fp16") else {
        return;
    };
    assert_eq!(classes(&report), ["norm-square", "residual-accumulation"]);
    let first = &report["fp16"]["first_not_finite"];
    assert_eq!(
        (&first["class"], &first["op_type"]),
        (&"norm-square".into(), &"pow".into())
    );
    assert_eq!(first["by_itself"], true);
    let issues = report["issues"].as_array().unwrap();
    assert_eq!(issues[0]["cures"][0], "safe-rmsnorm");
    assert_eq!(issues[1]["cures"][0], "scale-residual{alpha=0.125}");
    // The rows become 0 in the norms, so that little is added to the stream any more.
    assert_eq!(report["fp16"]["overflow_layers"], Value::Array(Vec::new()));
}

#[test]
fn a_stream_that_never_overflows_has_the_full_score_and_no_advice() {
    for name in ["llama_prefill", "qwen3_prefill"] {
        let Some((report, status)) = report(name) else {
            return;
        };
        assert_eq!((&report["score"], status), (&1.0.into(), 0), "{name}");
        assert_eq!(report["issues"], Value::from(Vec::<Value>::new()), "{name}");
        assert_eq!(report["recommendations"], Value::from(Vec::<Value>::new()));
        assert_eq!(report["functions"][0]["stream"]["alpha"], Value::Null);
        assert!(
            report["functions"][0]["stream"]["layers"]
                .as_array()
                .unwrap()
                .len()
                == 2
        );
    }
}

#[test]
fn one_command_cures_a_model_that_overflows() {
    let Some((package, inputs)) = model("residual_overflow_fp16") else {
        return;
    };
    let folder = Folder::new();
    let out = folder.join("out.mlpackage");
    let ran = done(args![
        "optimize",
        package,
        "-o",
        out,
        "--pipeline",
        "llm",
        "--set",
        "scale-residual.alpha=auto",
        "--inputs",
        inputs,
        "--verify=fp16"
    ]);
    assert!(
        ran.stderr.contains("equivalent to the model in fp32"),
        "{}",
        ran.stderr
    );
    let (report, status) = preflight(args![out, "--inputs", inputs]);
    assert_eq!((&report["score"], status), (&1.0.into(), 0));
    let stream = &report["functions"][0]["stream"];
    near(&stream["peak"], 50_000.0, 1e-2);
    let output = &report["fp16"]["outputs"][0];
    assert_eq!(
        (&output["argmax_match"], &output["not_finite"]),
        (&1.0.into(), &0.into())
    );
    assert!(output["snr_db"].as_f64().unwrap() > 40.0, "{output}");
}

#[test]
fn clamps_are_tried_and_say_what_they_change() {
    let Some((package, inputs)) = model("residual_overflow_fp16") else {
        return;
    };
    let (report, _) = preflight(args![package, "--inputs", inputs, "--sweep"]);
    let sweep = report["sweep"].as_array().unwrap();
    let values: Vec<f64> = sweep.iter().map(|c| c["value"].as_f64().unwrap()).collect();
    let expected: Vec<f64> = (4..=13).rev().map(|n| f64::from(n) * 5000.0).collect();
    assert_eq!(values, expected);
    let clamped: Vec<u64> = sweep
        .iter()
        .map(|c| c["clamped"].as_u64().unwrap())
        .collect();
    assert!(clamped[0] > 0 && clamped.is_sorted(), "{clamped:?}");
    assert!(sweep.iter().all(|clamp| clamp["success"] == true));
    let best = sweep
        .iter()
        .map(|c| c["argmax_match"].as_f64().unwrap())
        .fold(0.0, f64::max);
    let expected = if best > 0.5 { 0.7 } else { 0.5 };
    assert_eq!(report["score"], expected);
}

/// A norm whose epsilon is added in fp16.
pub(crate) fn norm(epsilon: &str) -> String {
    format!(
        "tensor<fp16, [1, 4]> squares = square(x = x)[name = string(\"squares\")];
         tensor<fp16, [1, 1]> mean = reduce_mean(x = squares, axes = tensor<int32, [1]>([-1]), keep_dims = bool(true));
         fp16 epsilon = const()[val = fp16({epsilon})];
         tensor<fp16, [1, 1]> guarded = add(x = mean, y = epsilon);
         tensor<fp16, [1, 1]> scale = rsqrt(x = guarded, epsilon = fp32(1e-12))[name = string(\"scale\")];
         tensor<fp16, [1, 4]> y = mul(x = x, y = scale)[name = string(\"y\")];"
    )
}

#[test]
fn several_inputs_merge_to_the_worst_case() {
    let folder = Folder::new();
    let path = folder.join("m.mil");
    fs::write(
        &path,
        program("tensor<fp16, [1, 4]> y = abs(x = x)[name = string(\"y\")];"),
    )
    .unwrap();
    let files = [
        inputs(&folder, "a.npz", [1.0, 0.0, -3.0, 1e-6]),
        inputs(&folder, "b.npz", [70_000.0, 0.5, 0.0, 0.0]),
    ];
    let (report, _) = preflight(args![path, "--inputs", files[0], files[1]]);
    let values = report["functions"][0]["values"].as_array().unwrap();
    assert_eq!(
        (&values[0]["name"], &values[0]["op_type"]),
        (&"x".into(), &"input".into())
    );
    let value = &values[1];
    assert_eq!(
        (&value["name"], &value["elements"]),
        (&"y".into(), &8.into())
    );
    assert_eq!(
        (&value["peak"], &value["zeros"]),
        (&70_000.0.into(), &3.into())
    );
    assert_eq!(
        (&value["overflows"], &value["subnormal"]),
        (&1.into(), &1.into())
    );
    near(&value["smallest"], 1e-6, 1e-3);
    let sets = report["inputs"].as_array().unwrap();
    assert_eq!(sets.len(), 2);
    assert_ne!(sets[0]["hash"], sets[1]["hash"]);
}

#[test]
fn made_up_inputs_are_the_same_for_the_same_seed() {
    let package = test_package("attention_block");
    let of_seed = |seed: &str| preflight(args![package, "--seed", seed]).0;
    assert_eq!(of_seed("3"), of_seed("3"));
    assert_ne!(of_seed("3")["inputs"], of_seed("4")["inputs"]);
}

#[test]
fn inputs_that_do_not_fit_are_refused() {
    let folder = Folder::new();
    let path = folder.join("m.mil");
    fs::write(
        &path,
        program("tensor<fp16, [1, 4]> y = abs(x = x)[name = string(\"y\")];"),
    )
    .unwrap();
    let wrong = folder.join("wrong.npz");
    let tensor = Tensor::floats(DType::Float32, vec![1, 5], vec![0.0; 5]);
    npz::write(&wrong, [("x", &tensor)]).unwrap();
    refused(
        args!["preflight", path, "--inputs", wrong],
        &["wrong.npz", "`x`", "[1, 5]", "[1, 4]"],
    );
    npz::write(&wrong, [("z", &tensor)]).unwrap();
    refused(
        args!["preflight", path, "--inputs", wrong],
        &["wrong.npz", "`x`", "missing"],
    );
    refused(
        args!["preflight", path, "--inputs", folder.join("none.npz")],
        &["none.npz"],
    );
    refused(
        args!["preflight", path, "--function", "f"],
        &["m.mil", "`f`"],
    );
}

/// A stream that reaches 8 · 9 000 = 72 000, of norms that are safe already.
fn stream() -> String {
    let mut text = String::from(
        "tensor<fp16, [1, 4]> s0 = mul(x = x, y = fp16(1.0))[name = string(\"s0\")];\n",
    );
    for n in 0..8 {
        let next = n + 1;
        write!(
            text,
            "tensor<fp16, [1, 4]> m{n} = mul(x = s{n}, y = fp16(-1.0));
             tensor<fp16, [1, 8]> c{n} = concat(values = (s{n}, m{n}), axis = int32(-1), interleave = bool(false));
             tensor<fp16, [1, 8]> l{n} = layer_norm(x = c{n}, axes = tensor<int32, [1]>([-1]), epsilon = fp32(1e-5));
             tensor<fp16, [1, 4]> h{n} = slice_by_size(x = l{n}, begin = tensor<int32, [2]>([0, 0]), size = tensor<int32, [2]>([1, 4]));
             tensor<fp16, [1, 4]> b{n} = mul(x = h{n}, y = fp16(9000.0))[name = string(\"b{n}\")];
             tensor<fp16, [1, 4]> s{next} = add(x = s{n}, y = b{n})[name = string(\"s{next}\")];\n"
        )
        .unwrap();
    }
    text + "tensor<fp16, [1, 4]> m8 = mul(x = s8, y = fp16(-1.0));
            tensor<fp16, [1, 8]> c8 = concat(values = (s8, m8), axis = int32(-1), interleave = bool(false));
            tensor<fp16, [1, 8]> l8 = layer_norm(x = c8, axes = tensor<int32, [1]>([-1]), epsilon = fp32(1e-5));
            tensor<fp16, [1, 4]> y = slice_by_size(x = l8, begin = tensor<int32, [2]>([0, 0]), size = tensor<int32, [2]>([1, 4]))[name = string(\"y\")];"
}

/// A model with that stream, and inputs of which each element adds 9 000 in each layer.
fn stream_model(folder: &Folder) -> (PathBuf, PathBuf) {
    let path = folder.join("stream.mil");
    fs::write(&path, program(&stream())).unwrap();
    (path, inputs(folder, "x.npz", [1.0, -1.0, 1.0, -1.0]))
}

#[test]
fn the_text_has_a_bar_for_each_layer_and_the_advice() {
    let folder = Folder::new();
    let (path, inputs) = stream_model(&folder);
    let ran = run(args!["preflight", path, "--inputs", inputs, "--sweep"]);
    assert_eq!((ran.status, ran.stderr.as_str()), (1, ""));
    let text = ran
        .stdout
        .replace(&folder.path().display().to_string(), "DIR");
    snapshot("preflight", &text);
}

#[test]
fn a_report_serves_the_pass_and_the_linter_and_no_other_model() {
    let folder = Folder::new();
    let (path, inputs) = stream_model(&folder);
    let report = folder.join("report.json");
    run(args!["preflight", path, "--inputs", inputs, "-o", report]);
    let set = format!("scale-residual.report={}", report.display());
    let optimize = |model: &Path, alpha: &str| {
        args![
            "optimize",
            model,
            "--dry-run",
            "--passes",
            format!("scale-residual{{alpha={alpha}}}"),
            "--set",
            set,
            "--remarks",
            "all"
        ]
    };
    let ran = done(optimize(&path, "pow2"));
    assert!(ran.stderr.contains("0.5"), "{}", ran.stderr);
    // 50 000 / 72 001.
    let ran = done(optimize(&path, "auto"));
    assert!(ran.stderr.contains("0.694"), "{}", ran.stderr);

    let other = folder.join("other.mil");
    fs::write(&other, program(&stream().replace("9000.0", "8000.0"))).unwrap();
    let words = [
        "report.json",
        "another model",
        "fingerprint",
        "milwright preflight",
    ];
    refused(optimize(&other, "auto"), &words);
    refused(args!["lint", other, "--report", report], &words);
    refused(
        args!["lint", path, other, "--report", report],
        &["--report", "one model"],
    );
    done(args![
        "lint",
        path,
        "--report",
        report,
        "--fail-on",
        "never"
    ]);

    fs::write(&report, "{\"version\": 2}").unwrap();
    refused(
        args!["lint", path, "--report", report],
        &["report.json", "version 2"],
    );
    fs::write(&report, "[1").unwrap();
    refused(
        args!["lint", path, "--report", report],
        &["report.json", "no preflight report"],
    );
    refused(
        args!["lint", path, "--report", folder.join("none.json")],
        &["none.json"],
    );
}

#[test]
fn a_report_makes_a_rule_surer_either_way() {
    let folder = Folder::new();
    let path = folder.join("m.mil");
    fs::write(&path, program(&norm("1e-5"))).unwrap();
    let severity = |x: Option<f32>| {
        let mut arguments = args!["lint", path, "--format", "json", "--fail-on", "never"];
        if let Some(x) = x {
            let (inputs, report) = (inputs(&folder, "x.npz", [x; 4]), folder.join("r.json"));
            run(args!["preflight", path, "--inputs", inputs, "-o", report]);
            arguments.extend(args!["--report", report]);
        }
        let document: Value = serde_json::from_str(&done(arguments).stdout).unwrap();
        let findings = document["findings"].as_array().unwrap().iter();
        let mut found = findings.filter(|finding| finding["id"] == "rmsnorm-overflow");
        found.next().unwrap()["severity"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    // The square of 256 is the first that fp16 does not hold.
    let found = [None, Some(3.0), Some(256.0)].map(severity);
    assert_eq!(found, ["warning", "info", "error"]);
}

#[test]
fn each_function_is_searched_on_inputs_of_its_own() {
    let function = |name: &str, rows: usize| {
        format!(
            "func {name}<ios18>(tensor<fp16, [{rows}, 8]> x) {{
                tensor<fp16, [{rows}, 8]> big = mul(x = x, y = fp16(1000.0));
                tensor<fp16, [{rows}, 8]> squares = square(x = big)[name = string(\"squares\")];
                tensor<fp16, [{rows}, 8]> y = sqrt(x = squares)[name = string(\"y\")];
            }} -> (y);\n"
        )
    };
    let text = function("long", 4) + &function("short", 1);
    let folder = Folder::new();
    let path = folder.join("m.mil");
    fs::write(&path, format!("program(1.3) {{\n{text}}}")).unwrap();
    let ran = done(args![
        "optimize",
        path,
        "--dry-run",
        "--passes",
        "keep-fp32",
        "--remarks",
        "applied"
    ]);
    for name in ["long", "short"] {
        let place = format!("keep-fp32: applied at {name}/squares");
        assert!(ran.stderr.contains(&place), "{}", ran.stderr);
    }
}

#[test]
fn factors_that_are_none_are_refused() {
    let folder = Folder::new();
    let (path, _) = stream_model(&folder);
    for alpha in ["0", "-1", "NaN", "inf", "much"] {
        let passes = format!("scale-residual{{alpha={alpha}}}");
        refused(
            args!["optimize", path, "--dry-run", "--passes", passes],
            &["scale-residual", "alpha"],
        );
    }
}

#[test]
fn a_model_without_a_stream_is_told_what_was_looked_for() {
    let package = test_package("pow_zoo");
    let ran = run(args!["preflight", package, "--sweep"]);
    assert!(
        ran.stdout.contains("no residual stream; looked for"),
        "{}",
        ran.stdout
    );
    assert!(ran.stderr.contains("no sweep"), "{}", ran.stderr);
    let ran = done(args![
        "optimize",
        package,
        "--dry-run",
        "--passes",
        "scale-residual{alpha=0.5}",
        "--remarks",
        "all"
    ]);
    assert!(ran.stderr.contains("no residual stream"), "{}", ran.stderr);
}

#[test]
fn the_json_fits_its_schema() {
    let folder = Folder::new();
    let (stream, inputs) = stream_model(&folder);
    let mut files = Vec::new();
    for (index, mut arguments) in [
        args!["preflight", stream, "--inputs", inputs, "--sweep"],
        args!["preflight", test_package("pow_zoo")],
        args!["preflight", test_package("cached_attention")],
        args![
            "preflight",
            test_package("multifunction"),
            "--function",
            "decode"
        ],
        args!["preflight", test_package("quantized_ios18")],
    ]
    .into_iter()
    .enumerate()
    {
        let file = folder.join(&format!("{index}.json"));
        arguments.extend(args!["-o", file]);
        assert!(run(arguments).status < 2);
        files.push(file);
    }
    schema::validate(&root().join("docs/schema/preflight.schema.json"), &files);
}
