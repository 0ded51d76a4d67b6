//! `lint`: what is found, in each format.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use milwright::passes;
use serde_json::Value;

use crate::command::{Folder, Ran, args, done, refused, run, snapshot};
use crate::support::folders::{root, test_package};
use crate::support::python::python;
use crate::support::schema;

/// A square by `pow`, a softplus and a running sum.
pub(crate) const MODEL: &str = "program(1.3)
{
    func main<ios18>(tensor<fp16, [1, 8]> x) {
            fp16 two = const()[name = string(\"two\"), val = fp16(0x1p+1)];
            tensor<fp16, [1, 8]> square = pow(x = x, y = two)[name = string(\"square\")];
            tensor<fp16, [1, 8]> soft = softplus(x = square)[name = string(\"soft\")];
            tensor<fp16, [1, 8]> y = cumsum(axis = int32(1), exclusive = bool(false), reverse = bool(false), x = soft)[name = string(\"y\")];
        } -> (y);
}
";

/// A folder with the model as `model.mil`.
pub(crate) fn model() -> (Folder, PathBuf) {
    let folder = Folder::new();
    let path = folder.join("model.mil");
    fs::write(&path, MODEL).unwrap();
    (folder, path)
}

pub(crate) fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

/// The ids of the findings, in order.
pub(crate) fn ids(ran: &Ran) -> Vec<String> {
    let document = json(ran);
    let findings = document["findings"].as_array().unwrap();
    findings
        .iter()
        .map(|finding| finding["id"].as_str().unwrap().to_owned())
        .collect()
}

/// Output without the folder that a run was in.
fn without(folder: &Folder, text: &str) -> String {
    text.replace(&folder.path().display().to_string(), "DIR")
}

#[test]
fn findings_are_shown_with_their_operations_reasons_and_remedies() {
    let (folder, path) = model();
    let ran = done(args!["lint", path]);
    snapshot("lint_full", &without(&folder, &ran.stdout));
    assert_eq!(
        ran.stderr,
        "0 errors, 2 warnings, 1 info; --fix -o OUT repairs 2\n"
    );
}

#[test]
fn a_line_for_each_finding_has_the_place_first() {
    let (folder, path) = model();
    let ran = done(args!["lint", path, "--format", "concise"]);
    let lines = without(&folder, &ran.stdout);
    assert_eq!(
        lines,
        "DIR/model.mil:main/square: warning[pow] pow(x, 2)\n\
         DIR/model.mil:main/soft: warning[softplus] `softplus` of fp16\n\
         DIR/model.mil:main/y: info[cpu-op] `cumsum`, a running sum, runs on the CPU\n"
    );
}

#[test]
fn a_rule_with_many_findings_shows_some_and_the_number_of_the_rest() {
    let package = test_package("pow_zoo");
    let few = done(args!["lint", package, "--select", "pow"]).stdout;
    let many = done(args!["lint", package, "--select", "pow", "--verbose"]).stdout;
    let shown = |text: &str| -> usize {
        let severities = ["warning[pow]", "info[pow]"];
        severities
            .map(|word| text.matches(word).count())
            .iter()
            .sum()
    };
    let all = ids(&done(args![
        "lint", package, "--select", "pow", "--format", "json"
    ]))
    .len();
    assert!(all > 3, "{all}");
    assert_eq!((shown(&few), shown(&many)), (3, all));
    assert!(few.contains(&format!("{} more of [pow]", all - 3)), "{few}");
}

#[test]
fn the_status_follows_the_threshold() {
    let (_folder, path) = model();
    for (threshold, status) in [("error", 0), ("warning", 1), ("info", 1), ("never", 0)] {
        let ran = run(args!["lint", path, "--fail-on", threshold]);
        assert_eq!(ran.status, status, "{threshold}");
    }
    let ran = run(args![
        "lint",
        path,
        "--select",
        "cpu-op",
        "--fail-on",
        "warning"
    ]);
    assert_eq!(ran.status, 0);
}

#[test]
fn rules_are_selected_and_left_out() {
    let (_folder, path) = model();
    let found = |more: &[&str]| {
        let mut arguments = args!["lint", path, "--format", "json"];
        arguments.extend(more.iter().map(Into::into));
        ids(&done(arguments))
    };
    assert_eq!(found(&[]), ["pow", "softplus", "cpu-op"]);
    assert_eq!(found(&["--select", "numerics"]), ["pow", "softplus"]);
    assert_eq!(
        found(&["--select", "pow-to-mul,placement"]),
        ["pow", "cpu-op"]
    );
    assert_eq!(
        found(&["--ignore", "pow,documented"]),
        ["softplus", "cpu-op"]
    );
    assert_eq!(found(&["--select", "orion"]), [""; 0]);
    refused(
        args!["lint", path, "--select", "sofplus"],
        &["--select", "`softplus`"],
    );
    refused(
        args!["lint", path, "--ignore", "numeric"],
        &["--ignore", "`numerics`"],
    );
}

#[test]
fn a_target_has_severities_of_its_own() {
    let package = test_package("attention_block");
    let found = |target: &str| {
        let ran = run(args![
            "lint", package, "--target", target, "--format", "json"
        ]);
        (ran.status, ids(&ran))
    };
    let (status, core_ml) = found("core-ml");
    assert_eq!(status, 0);
    assert!(
        !core_ml.contains(&"split-conv-bias".to_owned()),
        "{core_ml:?}"
    );
    let (_, direct) = found("ane-direct");
    assert!(direct.contains(&"split-conv-bias".to_owned()), "{direct:?}");
}

/// Every value is of the declared keys, whatever the schema's validator may be.
#[test]
fn the_json_keeps_its_contract() {
    let (_folder, path) = model();
    let ran = done(args![
        "lint",
        path,
        "--format",
        "json",
        "--catalog",
        "orion"
    ]);
    let document = json(&ran);
    let keys = |value: &Value| -> BTreeSet<String> {
        value.as_object().unwrap().keys().cloned().collect()
    };
    let has = |value: &Value, names: &[&str]| {
        let keys = keys(value);
        for name in names {
            assert!(keys.contains(*name), "{name} in {keys:?}");
        }
    };
    has(
        &document,
        &["version", "model", "findings", "summary", "catalog"],
    );
    assert_eq!(document["version"], 1);
    assert_eq!(document["model"], path.display().to_string());
    has(&document["summary"], &["error", "warning", "info"]);
    assert_eq!(document["summary"]["warning"], 2);
    let finding = &document["findings"][0];
    has(
        finding,
        &[
            "id", "severity", "function", "op", "op_type", "message", "why", "help", "fix",
            "evidence", "targets",
        ],
    );
    assert_eq!(finding["id"], "pow");
    assert_eq!(finding["severity"], "warning");
    assert_eq!(finding["function"], "main");
    assert_eq!(finding["op"], "square");
    assert_eq!(finding["op_type"], "pow");
    assert_eq!(finding["fix"], true);
    assert_eq!(document["findings"][2]["fix"], false);
    assert_eq!(document["catalog"]["rows"].as_array().unwrap().len(), 20);
}

#[test]
fn several_models_are_a_list_of_documents() {
    let (_folder, path) = model();
    let package = test_package("pow_zoo");
    let ran = done(args!["lint", path, package, "--format", "json"]);
    let documents = json(&ran);
    assert_eq!(documents.as_array().unwrap().len(), 2);
    assert_eq!(documents[1]["model"], package.display().to_string());
}

#[test]
fn the_json_fits_its_schema() {
    let Some(_) = python() else { return };
    let folder = Folder::new();
    let (_other, path) = model();
    let schema = root().join("docs/schema/lint.schema.json");
    let files: Vec<PathBuf> = [
        args![
            "lint",
            path,
            "--format",
            "json",
            "--catalog",
            "orion",
            "--placement"
        ],
        args!["lint", path, test_package("pipeline"), "--format", "json"],
        args![
            "lint",
            test_package("attention_block"),
            "--target",
            "ane-direct",
            "--format",
            "json"
        ],
    ]
    .into_iter()
    .enumerate()
    .map(|(index, arguments)| {
        let file = folder.join(&format!("{index}.json"));
        fs::write(&file, run(arguments).stdout).unwrap();
        file
    })
    .collect();
    schema::validate(&schema, &files);
}

fn sarif() -> (Folder, PathBuf) {
    let (folder, path) = model();
    let ran = run(args![
        "lint",
        path,
        test_package("attention_block"),
        "--target",
        "ane-direct",
        "--format",
        "sarif"
    ]);
    let file = folder.join("log.sarif");
    fs::write(&file, &ran.stdout).unwrap();
    (folder, file)
}

/// `MILWRIGHT_SARIF_SCHEMA` names the schema of SARIF 2.1.0.
#[test]
fn the_sarif_fits_the_schema_of_the_standard() {
    let Some(schema) = std::env::var_os("MILWRIGHT_SARIF_SCHEMA") else {
        println!("skipped: MILWRIGHT_SARIF_SCHEMA is not set");
        return;
    };
    if python().is_none() {
        return;
    }
    let (_folder, file) = sarif();
    schema::validate(Path::new(&schema), &[file]);
}

/// The properties that the standard requires, and that code scanning reads.
#[test]
fn the_sarif_has_what_the_standard_requires_and_the_metadata_of_all_rules() {
    let (_folder, file) = sarif();
    let log: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(log["version"], "2.1.0");
    let run = &log["runs"][0];
    let driver = &run["tool"]["driver"];
    assert_eq!(driver["name"], "milwright");
    let rules = driver["rules"].as_array().unwrap();
    let known: usize = passes::ALL.iter().map(|pass| pass.rules().len()).sum();
    assert_eq!(rules.len(), known);
    for rule in rules {
        for key in ["shortDescription", "fullDescription", "help"] {
            assert!(!rule[key]["text"].as_str().unwrap().is_empty(), "{rule}");
        }
        let level = rule["defaultConfiguration"]["level"].as_str().unwrap();
        assert!(["none", "note", "warning", "error"].contains(&level));
    }
    let results = run["results"].as_array().unwrap();
    assert!(results.len() > 3);
    for result in results {
        let index = result["ruleIndex"].as_u64().unwrap() as usize;
        assert_eq!(rules[index]["id"], result["ruleId"]);
        assert!(!result["message"]["text"].as_str().unwrap().is_empty());
        let location = &result["locations"][0];
        let uri = &location["physicalLocation"]["artifactLocation"]["uri"];
        assert!(
            uri.as_str().unwrap().ends_with("model.mil")
                || uri.as_str().unwrap().ends_with(".mlpackage")
        );
        let logical = &location["logicalLocations"][0];
        let name = logical["fullyQualifiedName"].as_str().unwrap();
        assert!(name.starts_with("main/"), "{name}");
    }
}

#[test]
fn github_gets_a_command_for_each_finding_with_nothing_that_ends_it_early() {
    let folder = Folder::new();
    let path = folder.join("a,b:100%.mil");
    fs::write(&path, MODEL).unwrap();
    let ran = done(args![
        "lint",
        path,
        "--format",
        "github",
        "--select",
        "softplus,cpu-op"
    ]);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].starts_with("::warning file="), "{}", lines[0]);
    assert!(
        lines[0].contains(
            "a%2Cb%3A100%25.mil,title=milwright softplus::main/soft: `softplus` of fp16. "
        ),
        "{}",
        lines[0]
    );
    assert!(lines[1].starts_with("::notice file="), "{}", lines[1]);
}

#[test]
fn the_catalogue_shows_every_row_with_its_verdict() {
    let package = test_package("attention_block");
    let text = done(args![
        "lint",
        package,
        "--select",
        "pow",
        "--catalog",
        "orion"
    ])
    .stdout;
    let rows = text.lines().filter(|line| {
        let number = line.trim_start().split("  ").next().unwrap_or_default();
        line.starts_with("  ") && number.parse::<u8>().is_ok()
    });
    assert_eq!(rows.count(), 20, "{text}");
    let document = json(&done(args![
        "lint",
        package,
        "--select",
        "pow",
        "--catalog",
        "orion",
        "--format",
        "json"
    ]));
    let row = |number: usize| &document["catalog"]["rows"][number - 1];
    assert_eq!(row(13)["verdict"], "applies");
    assert!(row(13)["count"].as_u64().unwrap() > 0);
    assert!(row(13)["first"].as_str().unwrap().starts_with("main/"));
    assert_eq!(row(13)["fix"], "split-conv-bias");
    assert_eq!(row(7)["verdict"], "not visible");
    assert_eq!(row(14)["verdict"], "clear");
    assert_eq!(row(10)["verdict"], "clear");
}

#[test]
fn what_cannot_be_opened_is_refused() {
    let folder = Folder::new();
    refused(
        args!["lint", folder.join("no.mlpackage")],
        &["no.mlpackage"],
    );
    refused(
        args!["lint", test_package("neural_network")],
        &["neural_network"],
    );
}

#[test]
fn explain_and_list_know_rules() {
    let text = done(["explain", "mask-infinity"]).stdout;
    assert!(text.starts_with("rule        mask-infinity\n"), "{text}");
    assert!(text.contains("\n# finite-masks\n"), "{text}");
    let text = done(["explain", "finite-masks"]).stdout;
    assert!(text.starts_with("# finite-masks\n"), "{text}");
    assert!(text.contains("\nrule        mask-infinity\n"), "{text}");
    let text = done(["explain", "bad-scale"]).stdout;
    assert!(text.starts_with("# bad-scale\n"), "{text}");
    refused(["explain", "mask-infinty"], &["`mask-infinity`"]);
    let listed = done(["list", "--rules"]).stdout;
    for pass in passes::ALL {
        for rule in pass.rules() {
            assert!(listed.contains(&format!("  {} ", rule.id)), "{}", rule.id);
        }
    }
    let rules: Value = serde_json::from_str(&done(["list", "--rules", "--json"]).stdout).unwrap();
    let pow = rules
        .as_array()
        .unwrap()
        .iter()
        .find(|rule| rule["id"] == "pow")
        .unwrap();
    assert_eq!(pow["pass"], "pow-to-mul");
    assert_eq!(pow["fix"], true);
    assert_eq!(pow["severity"]["core-ml"], "warning");
    refused(
        args!["why", test_package("pow_zoo"), "cpu-op"],
        &["check", "milwright lint"],
    );
}
