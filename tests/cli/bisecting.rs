//! `bisect`: it finds what was planted.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::command::{Folder, args, done, refused, run};
use crate::support::folders::test_package;

/// Squares of about 600 overflow in fp16. The root of the square, which pow-to-mul makes |x| of, is
/// infinite before that rewrite; the rewrites before and after it change nothing.
pub(crate) const ROOT_OF_SQUARE: &str = "program(1.3) { func main<ios18>(tensor<fp16, [4, 8]> x) {
    fp16 two = const()[val = fp16(2.0)];
    fp16 one_half = const()[val = fp16(0.5)];
    fp16 large = const()[val = fp16(600.0)];
    tensor<fp16, [4, 8]> first = pow(x = x, y = two)[name = string(\"first\")];
    tensor<fp16, [4, 8]> big = mul(x = x, y = large)[name = string(\"big\")];
    tensor<fp16, [4, 8]> square = pow(x = big, y = two)[name = string(\"square\")];
    tensor<fp16, [4, 8]> root = sqrt(x = square)[name = string(\"root\")];
    tensor<fp16, [4, 8]> positive = abs(x = x);
    tensor<fp16, [4, 8]> third = pow(x = positive, y = one_half)[name = string(\"third\")];
} -> (first, root, third); }";

/// RMSNorm whose square overflows in fp16: the mean, its root and what is scaled by it are wrong in
/// turn, but the first op that is wrong is `squares`.
const NORM: &str = "program(1.3) { func main<ios18>(tensor<fp16, [2, 16]> x) {
    fp16 large = const()[val = fp16(500.0)];
    tensor<fp16, [2, 16]> hidden = mul(x = x, y = large)[name = string(\"hidden\")];
    tensor<fp16, [2, 16]> squares = mul(x = hidden, y = hidden)[name = string(\"squares\")];
    tensor<int32, [1]> axes = const()[val = tensor<int32, [1]>([-1])];
    bool keep = const()[val = bool(true)];
    tensor<fp16, [2, 1]> mean = reduce_mean(axes = axes, keep_dims = keep, x = squares)[name = string(\"mean\")];
    fp32 epsilon = const()[val = fp32(0.00001)];
    tensor<fp16, [2, 1]> scale = rsqrt(epsilon = epsilon, x = mean)[name = string(\"scale\")];
    tensor<fp16, [2, 16]> y = mul(x = hidden, y = scale)[name = string(\"y\")];
} -> (y); }";

/// A softplus whose argument is beyond where the native one of the Neural Engine is reported to
/// collapse.
const SOFTPLUS: &str = "program(1.3) { func main<ios18>(tensor<fp16, [1, 16]> x) {
    fp16 shift = const()[val = fp16(20.0)];
    tensor<fp16, [1, 16]> high = add(x = x, y = shift)[name = string(\"high\")];
    tensor<fp16, [1, 16]> y = softplus(x = high)[name = string(\"y\")];
} -> (y); }";

fn text(folder: &Folder, source: &str) -> PathBuf {
    let path = folder.join("m.mil");
    fs::write(&path, source).unwrap();
    path
}

fn json(arguments: Vec<std::ffi::OsString>, status: i32) -> Value {
    let ran = run(arguments);
    assert_eq!(ran.status, status, "{ran:?}");
    serde_json::from_str(&ran.stdout).unwrap()
}

#[test]
fn the_first_op_that_overflows_is_found_and_said_to_do_so_by_itself() {
    let folder = Folder::new();
    let model = text(&folder, NORM);
    let found = json(args!["bisect", model, "--format", "json"], 1);
    let first = &found["first_not_finite"];
    assert_eq!(
        (&first["name"], &first["op_type"]),
        (&"squares".into(), &"mul".into())
    );
    assert!(first["local"]["not_finite"].as_u64().unwrap() > 0);
    assert_eq!(first["accumulated"]["low"], "inf");
    assert!(first["accumulated"]["reference"].as_f64().unwrap() > 65_519.0);
    let named = |list: &str| -> Vec<String> {
        let list = found[list].as_array().unwrap().iter();
        list.map(|op| op["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(named("first"), ["squares", "mean", "scale", "y"]);
    // What follows is right on right arguments, but for `mean`, which is beyond fp16 itself.
    let worst = &found["worst_local"].as_array().unwrap()[2];
    assert!(worst["local"]["error"].as_f64().unwrap() < 1e-3, "{worst}");
    let ran = run(args!["bisect", model]);
    assert_eq!(ran.status, 1);
    assert!(ran.stdout.contains("by itself"), "{}", ran.stdout);
}

#[test]
fn what_the_neural_engine_is_reported_to_do_is_found_in_its_precision_alone() {
    let folder = Folder::new();
    let model = text(&folder, SOFTPLUS);
    let ran = done(args!["bisect", model]);
    assert!(
        ran.stdout.contains("no value of 2 departs"),
        "{}",
        ran.stdout
    );
    let found = json(
        args!["bisect", model, "--precision", "ane", "--format", "json"],
        1,
    );
    assert_eq!(found["precision"], "ane");
    assert_eq!(found["first"][0]["name"], "y");
    assert_eq!(found["first"][0]["accumulated"]["low"], 0.0);
}

#[test]
fn the_rewrite_that_breaks_a_model_is_found() {
    let folder = Folder::new();
    let model = text(&folder, ROOT_OF_SQUARE);
    let arguments = args![
        "bisect",
        model,
        "--passes",
        "pow-to-mul",
        "--precision",
        "fp16"
    ];
    let mut as_json = arguments.clone();
    as_json.extend(args!["--format", "json"]);
    let found = json(as_json, 1);
    let first = &found["first"];
    assert_eq!(first["pass"], "pow-to-mul");
    assert!(first["what"].as_str().unwrap().contains("abs"), "{first}");
    assert!(first["diff"].as_str().unwrap().contains('+'), "{first}");
    assert_eq!(first["verified"]["equivalent"], false);
    let number = first["number"].as_u64().unwrap();
    // With the rewrites before it the model is as wrong in fp16 as it was; with it, it is as in fp32.
    let verify = |limit: u64| {
        let arguments = args![
            "optimize",
            model,
            "--dry-run",
            "--passes",
            "pow-to-mul",
            "--verify=fp16",
            "--max-rewrites",
            limit.to_string()
        ];
        done(arguments).stderr.contains("to the model in fp32")
    };
    assert_eq!((verify(number - 1), verify(number)), (false, true));
    let ran = run(arguments);
    assert!(
        ran.stdout
            .contains("breaks the model: pow-to-mul at main/root"),
        "{}",
        ran.stdout
    );
    assert!(ran.stdout.contains("`root`"), "{}", ran.stdout);
}

#[test]
fn a_pipeline_that_keeps_the_meaning_breaks_nothing() {
    let package = test_package("attention_block");
    let ran = done(args!["bisect", package, "--pipeline", "default"]);
    assert!(
        ran.stdout.contains("equivalent after all of"),
        "{}",
        ran.stdout
    );
    let found = json(
        args![
            "bisect",
            package,
            "--pipeline",
            "default",
            "--format",
            "json"
        ],
        0,
    );
    assert_eq!(found["first"], Value::Null);
    assert!(found["rewrites"].as_u64().unwrap() > 0);
}

#[test]
fn what_cannot_be_bisected_is_refused() {
    let package = test_package("attention_block");
    refused(
        args!["bisect", package, "--precision", "fp32"],
        &["fp32", "nowhere"],
    );
    refused(
        args!["bisect", package, "--passes", "no-such-pass"],
        &["no-such-pass"],
    );
    refused(
        args!["bisect", test_package("pipeline_nms")],
        &["nonMaximumSuppression"],
    );
}
