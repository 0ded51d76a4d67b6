//! `lint`: what a configuration and a baseline take away, and what `--fix` repairs.

use std::collections::BTreeSet;
use std::fs;

use crate::command::{Folder, args, done, refused, run};
use crate::linting::{MODEL, ids, json, model};
use crate::support::folders::{content, test_package};

#[test]
fn the_nearest_configuration_above_the_model_holds_unless_one_is_given() {
    let (folder, path) = model();
    fs::write(
        folder.join("milwright.toml"),
        "ignore = [\"pow\"]\n[severity]\nsoftplus = \"error\"\n",
    )
    .unwrap();
    let ran = run(args!["lint", path, "--format", "json"]);
    assert_eq!(
        (ran.status, ids(&ran)),
        (1, vec!["softplus".to_owned(), "cpu-op".to_owned()])
    );
    let other = folder.join("other.toml");
    fs::write(&other, "select = [\"pow\"]\n").unwrap();
    let ran = done(args!["lint", path, "--format", "json", "--config", other]);
    assert_eq!(ids(&ran), ["pow"]);
    // The command line goes before it.
    let ran = done(args![
        "lint", path, "--format", "json", "--config", other, "--select", "cpu-op"
    ]);
    assert_eq!(ids(&ran), ["cpu-op"]);
    fs::write(&other, "selct = [\"pow\"]\n").unwrap();
    refused(
        args!["lint", path, "--config", other],
        &["other.toml", "`selct`", "`select`"],
    );
    refused(
        args!["lint", path, "--config", folder.join("no.toml")],
        &["no.toml"],
    );
}

#[test]
fn an_ignore_with_a_reason_takes_findings_away_and_one_that_meets_none_is_reported() {
    let (folder, path) = model();
    let config = folder.join("config.toml");
    fs::write(
        &config,
        "[[ignore]]\nrule = \"pow\"\nop = \"main/sq*\"\nreason = \"small numbers\"\n\
         [[ignore]]\nrule = \"softplus\"\nop = \"head*\"\nreason = \"gone by now\"\n",
    )
    .unwrap();
    let ran = done(args![
        "lint", path, "--format", "concise", "--config", config
    ]);
    assert!(!ran.stdout.contains("[pow]"), "{}", ran.stdout);
    assert!(ran.stdout.contains("[softplus]"), "{}", ran.stdout);
    assert!(ran.stderr.contains("1 ignored"), "{}", ran.stderr);
    let warnings: Vec<&str> = ran
        .stderr
        .lines()
        .filter(|line| line.starts_with("warning: "))
        .collect();
    let [warning] = warnings.as_slice() else {
        panic!("{}", ran.stderr);
    };
    for word in ["`softplus`", "`head*`", "gone by now"] {
        assert!(warning.contains(word), "{warning}");
    }
}

#[test]
fn a_baseline_holds_what_is_known_and_only_new_findings_count() {
    let (folder, path) = model();
    let baseline = folder.join("known.json");
    let ran = done(args![
        "lint",
        path,
        "--write-baseline",
        baseline,
        "--fail-on",
        "info"
    ]);
    assert_eq!(ran.stdout, "");
    assert!(
        ran.stderr.contains("wrote 3 known findings"),
        "{}",
        ran.stderr
    );
    let first = fs::read(&baseline).unwrap();
    let ran = done(args![
        "lint",
        path,
        "--baseline",
        baseline,
        "--fail-on",
        "info",
        "--format",
        "concise"
    ]);
    assert_eq!(ran.stdout, "");
    assert!(ran.stderr.contains("3 in the baseline"), "{}", ran.stderr);
    // The same findings make the same bytes.
    done(args!["lint", path, "--write-baseline", baseline]);
    assert_eq!(fs::read(&baseline).unwrap(), first);
    // One more operation is one more finding.
    let more = MODEL.replace(
        "} -> (y);",
        "    tensor<fp16, [1, 8]> z = softplus(x = y)[name = string(\"z\")];\n        } -> (z);",
    );
    fs::write(&path, more).unwrap();
    fs::write(folder.join("milwright.toml"), "baseline = \"known.json\"\n").unwrap();
    let ran = run(args![
        "lint",
        path,
        "--format",
        "json",
        "--fail-on",
        "warning"
    ]);
    assert_eq!((ran.status, ids(&ran)), (1, vec!["softplus".to_owned()]));
    assert_eq!(json(&ran)["summary"]["known"], 3);
    fs::write(&baseline, "[]").unwrap();
    refused(
        args!["lint", path, "--baseline", baseline],
        &["known.json", "no baseline"],
    );
}

#[test]
fn fixing_repairs_what_passes_repair_and_leaves_the_rest() {
    let (folder, path) = model();
    let out = folder.join("out.mil");
    let ran = done(args!["lint", path, "--fix", "-o", out, "--format", "json"]);
    assert_eq!(ids(&ran), ["cpu-op"]);
    assert!(ran.stderr.contains("wrote"), "{}", ran.stderr);
    let fixed = fs::read_to_string(&out).unwrap();
    assert!(
        !fixed.contains("pow(") && !fixed.contains("softplus("),
        "{fixed}"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), MODEL);
    refused(
        args!["lint", path, "--fix", "-o", out],
        &["out.mil", "exists"],
    );
    // Only what is selected.
    let ran = done(args![
        "lint", path, "--fix", "-o", out, "--force", "--select", "pow", "--format", "json"
    ]);
    assert_eq!(ids(&ran), [""; 0]);
    assert!(fs::read_to_string(&out).unwrap().contains("softplus("));
    let both = run(args![
        "lint",
        path,
        path,
        "--fix",
        "-o",
        folder.join("b.mil")
    ]);
    assert_eq!(both.status, 2, "{both:?}");
    assert_eq!(run(args!["lint", path, "--fix"]).status, 2);
}

#[test]
fn a_fixed_package_is_equivalent_to_the_model() {
    let folder = Folder::new();
    for name in ["attention_block", "pow_zoo", "rmsnorm_ios16"] {
        let package = test_package(name);
        let before = content(&package);
        let out = folder.join(&format!("{name}.mlpackage"));
        let ran = done(args![
            "lint",
            package,
            "--fix",
            "-o",
            out,
            "--format",
            "json",
            "--fail-on",
            "never"
        ]);
        let left = json(&ran);
        for finding in left["findings"].as_array().unwrap() {
            assert_eq!(finding["fix"], false, "{name}: {finding}");
        }
        done(args!["verify", package, out]);
        assert_eq!(content(&package), before);
    }
}

#[test]
fn a_model_that_is_only_read_is_linted_and_its_fix_is_text() {
    let (folder, path) = model();
    refused(
        args!["lint", path, "--fix", "-o", folder.join("o.mlpackage")],
        &["only read", "FILE.mil"],
    );
    let bare = test_package("attention_block").join("Data/com.apple.CoreML/model.mlmodel");
    let of_package = ids(&done(args![
        "lint",
        test_package("attention_block"),
        "--format",
        "json"
    ]));
    let of_bare = ids(&done(args!["lint", bare, "--format", "json"]));
    assert_eq!(of_package, of_bare);
}

#[test]
fn a_package_without_its_weights_is_linted() {
    let (folder, package) = Folder::with_copy_of("attention_block");
    let found = ids(&done(args!["lint", package, "--format", "json"]));
    fs::remove_dir_all(folder.join("in.mlpackage/Data/com.apple.CoreML/weights")).unwrap();
    let ran = run(args!["lint", package, "--format", "json"]);
    assert!(ran.status < 2, "{ran:?}");
    let left: BTreeSet<String> = ids(&ran).into_iter().collect();
    for id in &found {
        assert!(left.contains(id), "{id} is not found any more");
    }
}
