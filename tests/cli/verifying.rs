//! `verify` and `optimize --verify`: the verdict, its numbers, and what cannot be compared.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::command::{Folder, MODEL, args, done, refused, run};
use crate::support::folders::test_package;

/// `y = x · 2`, and z = x.
fn scaled(factor: &str) -> String {
    format!(
        "program(1.3) {{ func main<ios18>(tensor<fp32, [2, 4]> x) {{
    fp32 factor = const()[val = fp32({factor})];
    tensor<fp32, [2, 4]> y = mul(x = x, y = factor)[name = string(\"y\")];
    tensor<fp32, [2, 4]> z = relu(x = x)[name = string(\"z\")];
}} -> (y, z); }}"
    )
}

fn text(folder: &Folder, name: &str, source: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, source).unwrap();
    path
}

#[test]
fn a_model_is_equivalent_to_itself_whatever_its_kind() {
    for package in [
        "attention_block",
        "stateful",
        "pipeline",
        "multifunction",
        "classifier",
    ] {
        let package = test_package(package);
        for precision in ["fp32", "fp16", "ane"] {
            let ran = done(args!["verify", package, package, "--precision", precision]);
            assert!(ran.stdout.contains("\nequivalent"), "{}", ran.stdout);
        }
    }
}

#[test]
fn the_json_keeps_its_contract() {
    let folder = Folder::new();
    let (a, b) = (
        text(&folder, "a.mil", &scaled("2.0")),
        text(&folder, "b.mil", &scaled("2.5")),
    );
    let ran = run(args!["verify", a, b, "--format", "json", "--samples", "2"]);
    assert_eq!(ran.status, 1, "{ran:?}");
    let found: Value = serde_json::from_str(&ran.stdout).unwrap();
    let keys = |value: &Value| -> BTreeSet<String> {
        value.as_object().unwrap().keys().cloned().collect()
    };
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(keys(&found), set(&["equivalent", "outputs", "samples"]));
    assert_eq!(
        (&found["equivalent"], &found["samples"]),
        (&false.into(), &2.into())
    );
    let [y, z] = found["outputs"].as_array().unwrap().as_slice() else {
        panic!("{found}")
    };
    let expected = [
        "name",
        "max_abs",
        "max_rel",
        "snr_db",
        "argmax_match",
        "nan_a",
        "nan_b",
        "inf_a",
        "inf_b",
    ];
    assert_eq!(keys(y), set(&expected));
    // b = 1.25 · a: |a − b| / |b| is 0.2, and Σ a² / Σ (a/4)² is 16, which is 12.04 dB.
    assert!((y["max_rel"].as_f64().unwrap() - 0.2).abs() < 1e-6, "{y}");
    assert!(
        (y["snr_db"].as_f64().unwrap() - 12.0412).abs() < 1e-3,
        "{y}"
    );
    assert_eq!(y["argmax_match"], 1.0);
    assert_eq!((&z["max_abs"], &z["snr_db"]), (&0.0.into(), &Value::Null));
}

#[test]
fn tolerances_decide_the_verdict() {
    let folder = Folder::new();
    let (a, b) = (
        text(&folder, "a.mil", &scaled("2.0")),
        text(&folder, "b.mil", &scaled("2.002")),
    );
    assert_eq!(run(args!["verify", a, b]).status, 1);
    // 1e-3 of the scale is within what fp16 may differ.
    done(args!["verify", a, b, "--precision", "fp16"]);
    done(args!["verify", a, b, "--rtol", "0.0011"]);
    assert_eq!(run(args!["verify", a, b, "--rtol", "0.0009"]).status, 1);
    done(args!["verify", a, b, "--atol", "1"]);
}

#[test]
fn infinities_on_one_side_alone_are_a_difference_and_counted() {
    let folder = Folder::new();
    let source = |order: &str| {
        format!(
            "program(1.3) {{ func main<ios18>(tensor<fp16, [8]> x) {{
    fp16 large = const()[val = fp16(60000.0)];
    fp16 small = const()[val = fp16(0.0001)];
    {order}
}} -> (y); }}"
        )
    };
    let a = text(
        &folder,
        "a.mil",
        &source(
            "tensor<fp16, [8]> t = mul(x = large, y = small);
         tensor<fp16, [8]> y = mul(x = x, y = t)[name = string(\"y\")];",
        )
        .replace("tensor<fp16, [8]> t", "fp16 t"),
    );
    let b = text(
        &folder,
        "b.mil",
        &source(
            "tensor<fp16, [8]> t = mul(x = x, y = large);
         tensor<fp16, [8]> y = mul(x = t, y = small)[name = string(\"y\")];",
        ),
    );
    done(args!["verify", a, b]);
    let ran = run(args![
        "verify",
        a,
        b,
        "--precision",
        "fp16",
        "--format",
        "json"
    ]);
    assert_eq!(ran.status, 1, "{ran:?}");
    let found: Value = serde_json::from_str(&ran.stdout).unwrap();
    let y = &found["outputs"][0];
    assert_eq!((&y["inf_a"], &y["nan_a"]), (&0.into(), &0.into()));
    assert!(y["inf_b"].as_u64().unwrap() > 0, "{y}");
}

#[test]
fn models_with_other_interfaces_cannot_be_compared() {
    let folder = Folder::new();
    let a = text(&folder, "a.mil", &scaled("2.0"));
    for (change, words) in [
        (("> x)", "> w)"), ["input", "`x`"]),
        (("-> (y, z)", "-> (y)"), ["output", "`z`"]),
        (("[2, 4]", "[4, 2]"), ["`x`", "[4, 2]"]),
    ] {
        let source = scaled("2.0").replace(change.0, change.1);
        let source = source.replace(
            "(x = x",
            &format!("(x = {}", if change.1 == "> w)" { "w" } else { "x" }),
        );
        let b = text(&folder, "b.mil", &source);
        refused(
            args!["verify", a, b],
            &["a.mil", "b.mil", words[0], words[1]],
        );
    }
    refused(
        args![
            "verify",
            test_package("multifunction"),
            test_package("rmsnorm_fp32")
        ],
        &["functions", "decode, prefill"],
    );
    refused(args!["verify", a, folder.join("none.mil")], &["none.mil"]);
}

#[test]
fn optimize_verifies_what_it_made_and_reports_it() {
    let folder = Folder::new();
    let (out, report) = (folder.join("out.mlpackage"), folder.join("report.json"));
    let package = test_package("attention_block");
    for (value, precision) in [("--verify", "fp32"), ("--verify=fp16", "fp16")] {
        let ran = done(args![
            "optimize", package, "-o", out, "--force", value, "--report", report
        ]);
        assert!(
            ran.stderr.contains("verified: equivalent"),
            "{}",
            ran.stderr
        );
        let found: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
        let verified = &found["verified"];
        assert_eq!(verified["equivalent"], true, "{found}");
        assert_eq!(verified["precision"], precision);
        assert!(verified["samples"].as_u64().unwrap() > 0);
        assert!(!verified["outputs"].as_array().unwrap().is_empty());
    }
    // Passes that are exact must be so bit by bit.
    let ran = done(args![
        "optimize",
        package,
        "--dry-run",
        "--verify",
        "--passes",
        "dead-code,dedup-consts"
    ]);
    assert!(ran.stderr.contains("bit by bit"), "{}", ran.stderr);
}

#[test]
fn optimize_writes_nothing_that_is_not_equivalent() {
    let folder = Folder::new();
    // The stream of this one is in the thousands, and it is kept within 10.
    let package = test_package("growing_stream");
    let (out, report) = (folder.join("out.mlpackage"), folder.join("report.json"));
    let ran = run(args![
        "optimize",
        package,
        "-o",
        out,
        "--passes",
        "clamp-residual{value=10}",
        "--verify",
        "--report",
        report,
        "--force"
    ]);
    assert_eq!(ran.status, 1, "{ran:?}");
    assert!(ran.stderr.contains("not equivalent"), "{}", ran.stderr);
    assert!(ran.stderr.contains("wrote nothing"), "{}", ran.stderr);
    assert!(!out.exists());
    let found: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    assert_eq!(
        (&found["output"], &found["verified"]["equivalent"]),
        (&Value::Null, &false.into())
    );
    done(args![
        "optimize",
        package,
        "-o",
        out,
        "--verify",
        "--passes",
        "dedup-consts"
    ]);
    assert!(out.exists());
}

#[test]
fn a_model_that_goes_wrong_in_fp16_is_no_reference_for_what_cures_it() {
    let folder = Folder::new();
    // √x² overflows in fp16 where |x| does not.
    let model = text(&folder, "m.mil", crate::bisecting::ROOT_OF_SQUARE);
    let (out, report) = (folder.join("out.mil"), folder.join("report.json"));
    let ran = done(args![
        "optimize",
        model,
        "-o",
        out,
        "--verify=fp16",
        "--report",
        report
    ]);
    assert!(
        ran.stderr
            .contains("equivalent to the model in fp32, which is not so itself in fp16"),
        "{}",
        ran.stderr
    );
    let found: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    assert_eq!(
        (
            &found["verified"]["reference"],
            &found["verified"]["precision"]
        ),
        (&"fp32".into(), &"fp16".into())
    );
    assert!(out.exists());
}

/// Two states that two calls advance, and the same two as halves of one.
const TWO: &str = "program(1.3) { func main<ios18>(tensor<fp16, [1, 3]> x,
    state<tensor<fp16, [1, 3]>> a, state<tensor<fp16, [1, 3]>> b) {
    tensor<fp16, [1, 3]> old_a = read_state(input = a);
    tensor<fp16, [1, 3]> new_a = add(x = old_a, y = x);
    write_state(data = new_a, input = a);
    tensor<fp16, [1, 3]> old_b = read_state(input = b);
    tensor<fp16, [1, 3]> new_b = sub(x = old_b, y = x);
    write_state(data = new_b, input = b);
    tensor<fp16, [1, 3]> y = sub(x = new_a, y = new_b)[name = string(\"y\")];
} -> (y); }";

const MERGED: &str = "program(1.3) { func main<ios18>(tensor<fp16, [1, 3]> x,
    state<tensor<fp16, [2, 4]>> ab) {
    tensor<fp16, [2, 4]> old = read_state(input = ab);
    tensor<int32, [4]> pads = const()[val = tensor<int32, [4]>([0, 0, 0, 1])];
    string mode = const()[val = string(\"constant\")];
    fp16 zero = const()[val = fp16(0.0)];
    tensor<fp16, [1, 4]> wide = pad(constant_val = zero, mode = mode, pad = pads, x = x);
    int32 axis = const()[val = int32(0)];
    bool no = const()[val = bool(false)];
    fp16 minus = const()[val = fp16(-1.0)];
    tensor<fp16, [1, 4]> negative = mul(x = wide, y = minus);
    tensor<fp16, [2, 4]> both = concat(axis = axis, interleave = no, values = (wide, negative));
    tensor<fp16, [2, 4]> new = add(x = old, y = both);
    write_state(data = new, input = ab);
    tensor<int32, [2]> from = const()[val = tensor<int32, [2]>([0, 0])];
    tensor<int32, [2]> size = const()[val = tensor<int32, [2]>([1, 3])];
    tensor<int32, [2]> below = const()[val = tensor<int32, [2]>([1, 0])];
    tensor<fp16, [1, 3]> new_a = slice_by_size(begin = from, size = size, x = new);
    tensor<fp16, [1, 3]> new_b = slice_by_size(begin = below, size = size, x = new);
    tensor<fp16, [1, 3]> y = sub(x = new_a, y = new_b)[name = string(\"y\")];
} -> (y); }";

/// A protobuf field with a length: fields of a message that is there already are added to it.
fn field(number: u32, content: &[u8]) -> Vec<u8> {
    let varint = |mut value: u64, bytes: &mut Vec<u8>| {
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
    };
    let mut bytes = Vec::new();
    varint(u64::from(number << 3 | 2), &mut bytes);
    varint(content.len() as u64, &mut bytes);
    bytes.extend(content);
    bytes
}

#[test]
fn merged_states_are_found_by_the_map_in_the_metadata() {
    let folder = Folder::new();
    let two = text(&folder, "two.mil", TWO);
    let merged = text(&folder, "merged.mil", MERGED);
    let package = folder.join("merged.mlpackage");
    done(args!["build", merged, "-o", package]);
    refused(
        args!["verify", two, package],
        &["only the first has a state `a`", "com.milwright.states"],
    );

    // Model.description is field 2, its metadata 100, and userDefined there 100.
    let model = package.join(MODEL);
    let plain = fs::read(&model).unwrap();
    let map = |b: usize| {
        let map = format!(
            r#"{{"version": 1, "functions": {{"main": {{
                "a": {{"state": "ab", "axis": 0, "start": 0, "length": 1, "padding": [0, 1]}},
                "b": {{"state": "ab", "axis": 0, "start": {b}, "length": 1, "padding": [0, 1]}}}}}}}}"#
        );
        let entry = [field(1, b"com.milwright.states"), field(2, map.as_bytes())].concat();
        let bytes = field(2, &field(100, &field(100, &entry)));
        fs::write(&model, [plain.clone(), bytes].concat()).unwrap();
    };
    map(1);
    let ran = done(args!["verify", two, package, "--precision", "fp16"]);
    assert!(
        ran.stdout.contains("state_a") && ran.stdout.contains("state_b"),
        "{}",
        ran.stdout
    );
    done(args!["verify", package, two]);
    // With the wrong half the outputs agree, but b does not.
    map(0);
    let ran = run(args!["verify", two, package, "--format", "json"]);
    assert_eq!(ran.status, 1, "{ran:?}");
    let found: Value = serde_json::from_str(&ran.stdout).unwrap();
    let differs = |name: &str| {
        let outputs = found["outputs"].as_array().unwrap();
        let output = outputs
            .iter()
            .find(|output| output["name"] == name)
            .unwrap();
        output["max_abs"].as_f64().unwrap() > 0.0
    };
    assert_eq!(
        ["y", "state_a", "state_b"].map(differs),
        [false, false, true]
    );
    map(2);
    refused(args!["verify", two, package], &["`b`", "axis 0", "`ab`"]);
}
