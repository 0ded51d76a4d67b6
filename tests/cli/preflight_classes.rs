//! What `preflight` calls each thing that goes wrong, on programs of a few operations.

use std::fs;

use serde_json::Value;

use crate::command::{Folder, args};
use crate::preflighting::{inputs, norm, preflight, program};

#[test]
fn each_kind_of_failure_has_its_class() {
    // x·w = 4 · 200 · 200 = 160 000.
    let (branch, status) = of_text(
        "fp16 large = const()[val = fp16(200.0)];
         tensor<fp16, [1, 4]> a = mul(x = x, y = large);
         tensor<fp16, [1, 4]> big = mul(x = a, y = large)[name = string(\"big\")];
         tensor<fp16, [1, 4]> y = tanh(x = big)[name = string(\"y\")];",
        [4.0, 1.0, 1.0, 1.0],
    );
    let issue = only_issue(&branch);
    assert_eq!(
        (&issue["class"], &issue["value"]),
        (&"branch".into(), &"big".into())
    );
    assert_eq!((&issue["peak"], status), (&160_000.0.into(), 1));

    // A norm of 300: 90 000 is beyond fp16, and with it the row is 0.
    let (square, _) = of_text(&norm("1e-5"), [300.0, -1.0, 2.0, 4.0]);
    let issue = only_issue(&square);
    assert_eq!(
        (&issue["class"], &issue["peak"]),
        (&"norm-square".into(), &90_000.0.into())
    );
    assert_eq!(square["fp16"]["works"], false);

    // Queries and keys of 200: 4 · 200 · 200 = 160 000.
    let (logits, _) = of_text(ATTENTION, [200.0, 200.0, 200.0, 200.0]);
    let issue = only_issue(&logits);
    assert_eq!(
        (&issue["class"], &issue["peak"]),
        (&"attention-logits".into(), &160_000.0.into())
    );

    // The Neural Engine flushes 1e-5 and 0² + 1e-5: 1/√0.
    let (guard, _) = of_text(&norm("1e-5"), [0.0; 4]);
    let issue = only_issue(&guard);
    assert_eq!(
        (&issue["class"], &issue["op_type"]),
        (&"guard-epsilon".into(), &"rsqrt".into())
    );
    assert_eq!(
        (&guard["fp16"]["works"], &guard["ane"]["works"]),
        (&true.into(), &false.into())
    );

    let (weight, _) = of_text(
        "tensor<fp16, [1, 4]> w = const()[val = tensor<fp16, [1, 4]>([nan, 1.0, 2.0, 3.0])];
         tensor<fp16, [1, 4]> y = mul(x = x, y = w)[name = string(\"y\")];",
        [1.0; 4],
    );
    assert_eq!(only_issue(&weight)["class"], "weight");
    assert_eq!(
        (&weight["fp32"]["works"], &weight["score"]),
        (&false.into(), &0.0.into())
    );
}

#[test]
fn a_mask_that_makes_nan_is_told_although_fp32_is_no_better() {
    // (1 − x)·−∞ is NaN where x is 1, and the softmax of a row that holds NaN is all NaN.
    let mask = "
        fp16 one = const()[val = fp16(1.0)];
        fp16 low = const()[val = fp16(-inf)];
        tensor<fp16, [1, 4]> hidden = sub(x = one, y = x);
        tensor<fp16, [1, 4]> mask = mul(x = hidden, y = low)[name = string(\"mask\")];
        tensor<fp16, [1, 4]> y = softmax(x = mask, axis = int32(-1))[name = string(\"y\")];";
    let (report, status) = of_text(mask, [1.0, 1.0, 0.0, 0.0]);
    let issue = only_issue(&report);
    assert_eq!(
        (&issue["class"], &issue["value"]),
        (&"mask".into(), &"mask".into())
    );
    assert_eq!((&issue["cures"][0], status), (&"finite-masks".into(), 1));
    assert_eq!(
        (&report["fp32"]["works"], &report["score"]),
        (&false.into(), &0.0.into())
    );
}

#[test]
fn what_goes_wrong_without_overflow_is_told_at_the_first_value_that_is_off() {
    // softplus(20) is 20; the native one is reported to give 0 above 10.4.
    let (report, status) = of_text(
        "fp16 shift = const()[val = fp16(20.0)];
         tensor<fp16, [1, 4]> high = add(x = x, y = shift);
         tensor<fp16, [1, 4]> y = softplus(x = high)[name = string(\"y\")];",
        [0.0; 4],
    );
    let issue = only_issue(&report);
    assert_eq!(
        (&issue["value"], &issue["cures"][0]),
        (&"y".into(), &"stable-softplus".into())
    );
    assert_eq!(report["ane"]["first_departed"]["reference"], "20");
    assert_eq!(report["ane"]["first_departed"]["low"], "0");
    assert_eq!((&report["fp16"]["works"], status), (&true.into(), 1));
}

#[test]
fn products_between_the_two_limits_are_told_as_a_report() {
    // 4 · 100 · 100 = 40 000, within fp16 and beyond 32 752.
    let (report, _) = of_text(ATTENTION, [100.0; 4]);
    let issue = only_issue(&report);
    assert_eq!(
        (&issue["class"], &issue["peak"]),
        (&"attention-logits".into(), &40_000.0.into())
    );
    assert!(
        issue["message"].as_str().unwrap().contains("reported"),
        "{issue}"
    );
    assert_eq!(report["fp16"]["works"], true);
}

/// An attention of one query and one key.
const ATTENTION: &str = "
    tensor<fp16, [1, 1, 1, 4]> q = reshape(x = x, shape = tensor<int32, [4]>([1, 1, 1, 4]));
    tensor<fp16, [1, 1, 1, 1]> scores = matmul(x = q, y = q, transpose_x = bool(false), transpose_y = bool(true))[name = string(\"scores\")];
    tensor<fp16, [1, 1, 1, 1]> weights = softmax(x = scores, axis = int32(-1));
    tensor<fp16, [1, 1, 1, 4]> y = matmul(x = weights, y = q, transpose_x = bool(false), transpose_y = bool(false))[name = string(\"y\")];";

/// The report of a text on these elements of `x`.
fn of_text(statements: &str, x: [f32; 4]) -> (Value, i32) {
    let folder = Folder::new();
    let path = folder.join("m.mil");
    fs::write(&path, program(statements)).unwrap();
    let inputs = inputs(&folder, "x.npz", x);
    preflight(args![path, "--inputs", inputs])
}

/// The only issue of a report.
fn only_issue(report: &Value) -> &Value {
    let issues = report["issues"].as_array().unwrap();
    assert_eq!(issues.len(), 1, "{issues:#?}");
    &issues[0]
}
