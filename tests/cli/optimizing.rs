//! `optimize`: its options, its report, and the limit on rewrites.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use milwright::pass::Pipeline;
use milwright::passes;
use serde_json::Value;

use crate::command::{Folder, args, done, refused, snapshot};
use crate::second_opinion::assert_accepted;
use crate::support::folders::{content, test_package};

#[test]
fn the_summary_for_people() {
    let ran = done(args![
        "optimize",
        "--dry-run",
        test_package("attention_block")
    ]);
    snapshot("optimize_attention_block", &ran.stderr);
    let ran = done(args![
        "optimize",
        "--dry-run",
        test_package("rmsnorm_ios16")
    ]);
    snapshot("optimize_rmsnorm_ios16", &ran.stderr);
}

#[test]
fn the_report_keeps_its_contract() {
    let folder = Folder::new();
    let (out, report) = (folder.join("out.mlpackage"), folder.join("report.json"));
    let input = test_package("attention_block");
    done(args![
        "optimize", "-q", input, "-o", out, "--report", report
    ]);
    let found: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    let keys: BTreeSet<&str> = found
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let expected = [
        "version",
        "input",
        "output",
        "passes",
        "ops_before",
        "ops_after",
        "verified",
    ];
    assert_eq!(keys, BTreeSet::from(expected));
    assert_eq!(found["version"], 1);
    assert_eq!(found["input"], input.display().to_string());
    assert_eq!(found["output"], out.display().to_string());
    assert_eq!(found["verified"], Value::Null);
    // As coremltools counts them: 99 operations before.
    assert_eq!(found["ops_before"], 99);
    assert!(found["ops_after"].as_u64().unwrap() < 99);
    let passes = found["passes"].as_array().unwrap();
    assert_eq!(passes.len(), of_default().len());
    for pass in passes {
        let keys: BTreeSet<&str> = pass
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        assert_eq!(keys, BTreeSet::from(["id", "rewrites", "missed", "ms"]));
        assert!(pass["rewrites"].is_u64() && pass["missed"].is_u64() && pass["ms"].is_f64());
    }
}

#[test]
fn a_dry_run_needs_no_output_writes_nothing_and_still_reports() {
    let folder = Folder::new();
    let report = folder.join("report.json");
    let input = test_package("attention_block");
    done(args!["optimize", "--dry-run", input, "--report", report]);
    assert_eq!(folder.names(), ["report.json"]);
    let found: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    assert_eq!(found["output"], Value::Null);
    let out = folder.join("out.mlpackage");
    done(args!["optimize", "-q", "--dry-run", input, "-o", out]);
    assert_eq!(folder.names(), ["report.json"]);
}

/// Rewrites in all, from a report.
fn rewrites(report: &Value) -> u64 {
    let passes = report["passes"].as_array().unwrap();
    passes
        .iter()
        .map(|pass| pass["rewrites"].as_u64().unwrap())
        .sum()
}

/// So that a miscompile can be found by bisection.
#[test]
fn a_limit_on_rewrites_stops_after_exactly_so_many_and_each_result_is_whole() {
    let folder = Folder::new();
    let input = test_package("attention_block");
    let run = |limit: Option<u64>| {
        let name = limit.map_or("all".to_owned(), |limit| limit.to_string());
        let out = folder.join(&format!("{name}.mlpackage"));
        let report = folder.join(&format!("{name}.json"));
        let mut arguments = args!["optimize", "-q", input, "-o", out, "--report", report];
        if let Some(limit) = limit {
            arguments.extend(args!["--max-rewrites", limit.to_string()]);
        }
        done(arguments);
        let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
        (rewrites(&report), out)
    };
    let (total, all) = run(None);
    assert!(total > 20);
    let mut pairs = Vec::new();
    let mut last = None;
    for limit in 0..=total + 1 {
        let (made, out) = run(Some(limit));
        assert_eq!(made, limit.min(total));
        let now = content(&out);
        // Each rewrite changes something, and the whole is reached only at the end.
        assert_eq!(last.as_ref() == Some(&now), limit > total, "{limit}");
        assert_eq!(now == content(&all), limit >= total, "{limit}");
        last = Some(now);
        pairs.push((input.clone(), out));
    }
    assert_accepted(&pairs);
}

#[test]
fn passes_alone_are_the_pipeline_and_beside_one_they_come_after_it() {
    let input = test_package("pow_zoo");
    let ids = |arguments: &[&str]| -> Vec<String> {
        let folder = Folder::new();
        let report = folder.join("report.json");
        let mut all = args!["optimize", "-q", "--dry-run", input, "--report", report];
        all.extend(arguments.iter().map(std::ffi::OsString::from));
        done(all);
        let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
        let passes = report["passes"].as_array().unwrap();
        passes
            .iter()
            .map(|pass| pass["id"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(ids(&["--passes", "pow-to-mul"]), ["pow-to-mul"]);
    assert_eq!(
        ids(&["--passes", "pow-to-mul,dead-code"]),
        ["pow-to-mul", "dead-code"]
    );
    assert_eq!(
        ids(&["--pipeline", "dead-code", "--passes", "pow-to-mul"]),
        ["dead-code", "pow-to-mul"]
    );
    assert_eq!(ids(&["--pipeline", "none"]), [""; 0]);
    let cleanup = ids(&["--pipeline", "cleanup"]);
    let others = of_default().into_iter().filter(|id| !cleanup.contains(id));
    let others: Vec<String> = others.collect();
    assert_eq!(ids(&["--skip", &others.join(",")]), cleanup);
    assert_eq!(ids(&[]), ids(&["--pipeline", "default"]));
    for name in ["llm", "ane-direct"] {
        assert!(ids(&["--pipeline", name]).contains(&"pow-to-mul".to_owned()));
    }
}

#[test]
fn options_of_passes_come_in_the_text_or_by_set() {
    let text = |arguments: &[&str]| {
        let folder = Folder::new();
        let out = folder.join("out.mil");
        let mut all = args!["optimize", "-q", test_package("pow_zoo"), "-o", out];
        all.extend(arguments.iter().map(std::ffi::OsString::from));
        done(all);
        fs::read_to_string(out).unwrap()
    };
    let squares = text(&["--passes", "pow-to-mul{max_exponent=2}"]);
    assert_ne!(squares, text(&["--passes", "pow-to-mul"]));
    let set = [
        "--passes",
        "pow-to-mul",
        "--set",
        "pow-to-mul.max_exponent=2",
    ];
    assert_eq!(text(&set), squares);
    let default = text(&["--passes", "pow-to-mul{max_exponent=4}"]);
    assert_eq!(default, text(&["--passes", "pow-to-mul"]));
}

#[test]
fn options_that_no_pass_takes_are_refused_before_anything_is_read() {
    let missing = Folder::new().join("missing.mlpackage");
    let refuse = |arguments: &[&str], words: &[&str]| {
        let mut all = args!["optimize", "--dry-run", missing];
        all.extend(arguments.iter().map(std::ffi::OsString::from));
        refused(all, words);
    };
    refuse(
        &["--set", "nonsense"],
        &["`--set nonsense`", "PASS.OPTION=VALUE"],
    );
    refuse(
        &["--set", "pow-to-mul.max_exponen=2"],
        &["no option `max_exponen`", "did you mean `max_exponent`?"],
    );
    refuse(
        &["--set", "dead-code.speed=2"],
        &["`dead-code` has no option `speed`", "explain dead-code"],
    );
    refuse(
        &["--set", "pow-to-mul.max_exponent=many"],
        &["pow-to-mul", "max_exponent", "many"],
    );
    refuse(
        &["--pipeline", "none", "--set", "pow-to-mul.max_exponent=2"],
        &["the pipeline has no pass `pow-to-mul`"],
    );
    refuse(
        &["--pipeline", "default{a=1}"],
        &["`default` is a pipeline"],
    );
    refuse(
        &["--pipeline", "(dead-code"],
        &["expected `)` at column 11"],
    );
    refuse(
        &["--pipeline", "defualt"],
        &["`defualt`", "did you mean `default`?"],
    );
    refuse(&["--pipeline", "dead-code,,"], &["column"]);
    refuse(&["--pipeline", "pow-to-mul{x}"], &["column"]);
}

#[test]
fn the_program_is_printed_around_passes_on_request() {
    let print = |when: &str| {
        let input = test_package("metadata");
        done(args!["optimize", "-q", "--dry-run", "--print", when, input]).stdout
    };
    let headings = |text: &str| -> Vec<String> {
        text.lines()
            .filter(|line| line.starts_with("// "))
            .map(str::to_owned)
            .collect()
    };
    let (before, after) = (headings(&print("before")), headings(&print("after")));
    assert_eq!(before.len(), after.len());
    assert!(before.iter().all(|line| line.starts_with("// before ")));
    assert!(after.contains(&"// after pow-to-mul: 1 rewrite".to_owned()));
    let changed = print("changed");
    assert_eq!(headings(&changed), ["// after pow-to-mul: 1 rewrite"]);
    assert!(changed.contains("mul(x = y_linear, y = y_linear)"));
    snapshot("optimize_print_diff", &print("diff"));
}

#[test]
fn remarks_say_what_was_done_and_what_was_not() {
    let remarks = |which: &str| {
        let input = test_package("rmsnorm_ios16");
        done(args!["optimize", "--dry-run", "--remarks", which, input]).stderr
    };
    let of_kind = |text: &str, kind: &str| text.matches(&format!(": {kind} at ")).count();
    let (all, applied, missed) = (remarks("all"), remarks("applied"), remarks("missed"));
    assert!(of_kind(&all, "applied") > 3);
    assert_eq!(of_kind(&all, "missed"), 1);
    assert_eq!(of_kind(&applied, "applied"), of_kind(&all, "applied"));
    assert_eq!(of_kind(&applied, "missed"), 0);
    assert_eq!(of_kind(&missed, "applied"), 0);
    assert_eq!(of_kind(&missed, "missed"), 1);
    assert!(
        missed.contains("[stopped at subnormal_shifted (add)]"),
        "{missed}"
    );
}

#[test]
fn timings_name_every_pass() {
    let ran = done(args![
        "optimize",
        "--dry-run",
        "--timings",
        test_package("metadata")
    ]);
    let lines = ran.stderr.lines().filter(|line| line.contains(" ms  "));
    assert_eq!(lines.count(), of_default().len(), "{}", ran.stderr);
}

/// The passes of the default pipeline, each once.
fn of_default() -> BTreeSet<String> {
    let pipeline = Pipeline::parse("default", passes::ALL).unwrap();
    pipeline.ids().into_iter().map(str::to_owned).collect()
}

#[test]
fn an_output_that_ends_in_mil_is_the_text_of_the_result() {
    let folder = Folder::new();
    let (package, text) = (folder.join("out.mlpackage"), folder.join("out.mil"));
    // Without blobs, so that none moves.
    let input = test_package("pow_zoo");
    done(args!["optimize", "-q", input, "-o", package]);
    done(args!["optimize", "-q", input, "-o", text]);
    let printed = done(args!["print", package]).stdout;
    assert_eq!(fs::read_to_string(&text).unwrap(), printed);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let plain = folder.join("plain");
        fs::write(&plain, "").unwrap();
        assert_eq!(mode(&text), mode(&plain));
    }
    refused(
        args![
            "optimize",
            test_package("pipeline"),
            "-o",
            folder.join("two.mil")
        ],
        &["two.mil", "pipeline"],
    );
}

#[test]
fn the_input_is_never_touched() {
    let (folder, package) = Folder::with_copy_of("attention_block");
    let before = content(&package);
    let out = folder.join("out.mlpackage");
    done(args!["optimize", "-q", package, "-o", out]);
    assert!(content(&package) == before);
    refused(args!["optimize", package, "-o", package], &["exists"]);
    refused(
        args!["optimize", "--force", package, "-o", package],
        &["input"],
    );
    refused(
        args!["optimize", package, "-o", package.join("inside.mlpackage")],
        &["input"],
    );
    assert!(content(&package) == before);
}

/// A text of which fuse-casts turns a constant of this many fp32 elements into fp16.
fn text_with_a_constant(folder: &Folder, elements: usize) -> PathBuf {
    let all = elements + 2;
    let path = folder.join("in.mil");
    let text = format!(
        "program(1.3)\n{{\n    func main<ios18>(tensor<fp16, [2]> x) {{
        tensor<fp32, [{elements}]> k = const()[val = tensor<fp32, [{elements}]>(fill(0.5))];
        tensor<fp32, [2]> a = cast(x = x, dtype = string(\"fp32\"));
        tensor<fp32, [{all}]> t = concat(values = (a, k), axis = int32(0), interleave = bool(false));
        tensor<fp16, [{all}]> d = cast(x = t, dtype = string(\"fp16\"));
        tensor<fp16, [{all}]> y = relu(x = d);\n    }} -> (y);\n}}\n"
    );
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_constant_that_a_pass_made_is_a_literal_of_the_text() {
    let folder = Folder::new();
    let (input, out) = (text_with_a_constant(&folder, 12), folder.join("out.mil"));
    done(args![
        "optimize",
        input,
        "--passes",
        "fuse-casts",
        "-o",
        out
    ]);
    let text = fs::read_to_string(&out).unwrap();
    let literal = format!("tensor<fp16, [12]>([{}])", ["0x1p-1"; 12].join(", "));
    assert!(text.contains(&literal), "{text}");
    assert!(!text.contains("@new"), "{text}");
    assert_eq!(done(args!["print", out]).stdout, text);
    let package = folder.join("out.mlpackage");
    done(args!["build", out, "-o", package]);
    assert_eq!(done(args!["print", package]).stdout, text);
}

#[test]
fn a_constant_too_large_for_a_text_needs_a_folder_for_weights() {
    let folder = Folder::new();
    let (input, out) = (
        text_with_a_constant(&folder, 40_000),
        folder.join("out.mil"),
    );
    let optimize = args!["optimize", input, "--passes", "fuse-casts", "-o", out];
    let words = [
        "d_fuse_casts",
        "80000 bytes",
        "--weights-dir DIR",
        "out.mil",
    ];
    refused(&optimize, &words);
    assert_eq!(folder.names(), ["in.mil"]);

    let weights = folder.join("weights");
    done(optimize.into_iter().chain(args!["--weights-dir", weights]));
    let text = fs::read_to_string(&out).unwrap();
    assert!(text.contains("BLOBFILE"), "{text}");
    assert!(!text.contains("@new"), "{text}");
    let package = folder.join("out.mlpackage");
    done(args!["build", out, "-o", package]);
    let same = done(args!["diff", "--weights", out, package]);
    assert_eq!(same.stdout, "no differences\n");
}

#[test]
fn data_that_a_text_spells_out_is_printed_whole() {
    let folder = Folder::new();
    let path = folder.join("in.mil");
    let elements = vec!["0x1p+0"; 100].join(", ");
    let text = format!(
        "program(1.3)\n{{\n    func main<ios18>(tensor<fp16, [100]> x) {{
            tensor<fp16, [100]> k = const()[val = tensor<fp16, [100]>(@new(fp16, 100) [{elements}])];
            tensor<fp16, [100]> y = add(x = x, y = k);\n        }} -> (y);\n}}\n"
    );
    fs::write(&path, &text).unwrap();
    assert_eq!(done(args!["print", path]).stdout, text);
}
