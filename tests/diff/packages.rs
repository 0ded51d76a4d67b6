//! Whole packages: with themselves, before and after passes, and as Core ML's compiler left them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use milwright::diff::{self, Blobs, Comparison, NoBlobs, Options, Side};
use milwright::ir::Program;
use milwright::model::{Model, Placements};
use milwright::package::Package;
use milwright::pass::{Exactness, Manager, Pass, Pipeline, Settings, Silent, verify};
use milwright::passes::ALL;
use milwright::source::ModelFile;
use milwright::text::{PrintOptions, parse, program_text};

use crate::support::folders::{corpus, packages_below, root, test_package, test_packages};
use crate::support::python::ask;

fn compare(before: &Model, after: &Model, blobs: (&dyn Blobs, &dyn Blobs)) -> Comparison {
    let (parts_a, parts_b) = (before.programs(), after.programs());
    let of_a: Vec<Side> = parts_a.iter().map(|part| side(part, blobs.0)).collect();
    let of_b: Vec<Side> = parts_b.iter().map(|part| side(part, blobs.1)).collect();
    let mut comparison = diff::compare(&of_a, &of_b, Options::default());
    let outside = diff::compare_models(before, after, &comparison.edits);
    comparison.edits.extend(outside);
    comparison
}

fn side<'a>(part: &'a milwright::model::Part<'a>, blobs: &'a dyn Blobs) -> Side<'a> {
    Side {
        stage: &part.stage,
        program: part.program,
        blobs,
        interface: Some(&part.interface),
    }
}

/// Compares each package that opens with itself, encoded and decoded again.
fn check_with_themselves(folder: &Path) -> usize {
    let mut count = 0;
    for path in packages_below(folder) {
        // Some packages hold other kinds of model.
        let Ok(file) = ModelFile::open(&path) else {
            continue;
        };
        let Ok(bytes) = file.model.encode(&Placements::default()) else {
            continue;
        };
        let again = Model::decode(&bytes).expect("what was encoded decodes");
        let blobs = file.weights().as_ref();
        let comparison = compare(&file.model, &again, (blobs, blobs));
        assert!(
            comparison.is_same(),
            "{}: {}",
            path.display(),
            diff::text(&comparison)
        );
        count += 1;
    }
    count
}

#[test]
fn test_packages_do_not_differ_from_themselves() {
    let count = check_with_themselves(&test_packages());
    assert!(count >= 20, "only {count} packages");
}

#[test]
fn packages_of_the_corpus_do_not_differ_from_themselves() {
    let Some(corpus) = corpus() else { return };
    let count = check_with_themselves(&corpus);
    assert!(count >= 200, "only {count} packages");
}

/// What a pass does to a program.
fn optimized(program: &Program, blobs: &dyn milwright::pass::Blobs, pass: &str) -> Program {
    let mut after = program.clone();
    let pipeline = Pipeline::parse(pass, ALL).expect("a pass");
    let settings = Settings {
        interface_changes: true,
        ..Settings::default()
    };
    let known = verify::issues(program);
    Manager::new(ALL, settings)
        .run(&pipeline, &mut after, "", &known, blobs, &mut Silent)
        .expect("the pass runs");
    after
}

#[test]
fn what_each_pass_does_to_the_test_packages_is_shown() {
    let rewrites = |pass: &&&dyn Pass| !pass.is_draft() && pass.meta().exactness != Exactness::None;
    for pass in ALL.iter().filter(rewrites) {
        let id = pass.meta().id;
        let mut report = String::new();
        for path in packages_below(&test_packages()) {
            let Ok(file) = ModelFile::open(&path) else {
                continue;
            };
            let weights = file.weights().as_ref();
            for part in file.model.programs() {
                let after = optimized(part.program, weights, id);
                let changed = verify::fingerprint(part.program) != verify::fingerprint(&after);
                let before = side(&part, weights);
                let after = Side {
                    program: &after,
                    ..before
                };
                let comparison = diff::compare(&[before], &[after], Options { weights: true });
                assert_eq!(!comparison.is_same(), changed, "{id}: {}", path.display());
                if changed {
                    let name = path.file_stem().expect("a name").to_string_lossy();
                    let text = diff::text(&comparison);
                    write!(report, "{name}\n{text}\n").expect("a string takes everything");
                }
            }
        }
        let mut settings = insta::Settings::new();
        settings.set_snapshot_path(root().join("snapshots/diff"));
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        settings.bind(|| insta::assert_snapshot!(id, report));
    }
}

/// (package, compiled model made from it, what the compiler changed). Core ML's compiler adds its
/// versions and sorts the inputs.
const COMPILED: [(&str, &str, &str); 3] = [
    (
        "FluidInference__FluidAudio/streaming_encoder.mlpackage",
        "FluidInference__FluidAudio/streaming_encoder.mlmodelc",
        "\
+ program: attribute buildInfo[\"coremlc-component-MIL\"]: added, string(\"3500.14.1\")
+ program: attribute buildInfo[\"coremlc-version\"]: added, string(\"3500.32.1\")

  main: order of inputs: audio_signal, audio_length, pre_cache, cache_last_channel, \
cache_last_time, cache_last_channel_len → audio_length, audio_signal, cache_last_channel, \
cache_last_channel_len, cache_last_time, pre_cache

3 differences: 2 attributes added, 1 order changed
",
    ),
    (
        "FluidInference__mobius/unified_int8.mlpackage",
        "FluidInference__mobius/unified_int8.mlmodelc",
        "\
+ program: attribute buildInfo: added, dict<string, string>({{\"coremlc-component-MIL\", \
\"3500.14.1\"}, {\"coremlc-version\", \"3500.32.1\"}})

  main: order of inputs: audio_input, hidden_state, cell_state → audio_input, cell_state, \
hidden_state

2 differences: 1 attribute added, 1 order changed
",
    ),
    (
        "FluidInference__mobius/silero-vad-unified-256ms-v6.0.0.mlpackage",
        "FluidInference__mobius/silero-vad-unified-256ms-v6.0.0.v2.mlmodelc",
        "\
+ program: attribute buildInfo[\"coremlc-component-MIL\"]: added, string(\"3500.14.1\")
+ program: attribute buildInfo[\"coremlc-version\"]: added, string(\"3500.32.1\")

  main: order of inputs: audio_input, hidden_state, cell_state → audio_input, cell_state, \
hidden_state

3 differences: 2 attributes added, 1 order changed
",
    ),
];

#[test]
fn a_compiled_model_differs_from_its_package_in_what_the_compiler_changed() {
    let Some(corpus) = corpus() else { return };
    for (package, compiled, expected) in COMPILED {
        let file = ModelFile::open(&corpus.join("real").join(package)).expect("a package");
        let parts = file.model.programs();
        let before = side(&parts[0], file.weights().as_ref());
        let package = Package::open(&corpus.join("real").join(compiled)).expect("a model");
        let source = std::str::from_utf8(package.model_bytes()).expect("text");
        let program = parse(source, compiled).expect("MIL text").program;
        let after = Side {
            stage: "",
            program: &program,
            blobs: package.weights().as_ref(),
            interface: None,
        };
        let comparison = diff::compare(&[before], &[after], Options::default());
        assert_eq!(diff::text(&comparison), expected, "{compiled}");
    }
}

/// The pairs of models before and after passes of coremltools.
fn pairs(corpus: &Path) -> Vec<(PathBuf, PathBuf)> {
    let mut pairs: Vec<(PathBuf, PathBuf)> = std::fs::read_dir(corpus.join("passes"))
        .expect("a readable folder")
        .map(|entry| entry.expect("a readable folder").path())
        .map(|folder| {
            (
                folder.join("before.mlpackage"),
                folder.join("after.mlpackage"),
            )
        })
        .filter(|(before, after)| before.is_dir() && after.is_dir())
        .collect();
    pairs.sort();
    pairs
}

/// The lines of all programs, in any order and without the offsets of blobs.
fn statements(model: &Model) -> Vec<String> {
    let mut lines = Vec::new();
    for part in model.programs() {
        let text = program_text(part.program, &PrintOptions::default()).expect("all functions");
        for line in text.lines() {
            let mut pieces = line.split("offset = uint64(");
            let mut kept = pieces.next().unwrap_or_default().to_owned();
            for piece in pieces {
                kept += piece.trim_start_matches(|c: char| c.is_ascii_digit());
            }
            lines.push(kept);
        }
    }
    lines.sort();
    lines
}

/// What coremltools' parser finds first to differ in each pair, `None` where nothing does; and
/// nothing at all where there is no Python.
fn second_opinion(pairs: &[(PathBuf, PathBuf)]) -> Option<Vec<Option<String>>> {
    let jobs: Vec<Vec<&Path>> = pairs.iter().map(|(a, b)| vec![&**a, &**b]).collect();
    let lines = ask("message_equal.py", &[], &jobs)?;
    let difference = |line: &serde_json::Value| line["difference"].as_str().map(str::to_owned);
    Some(lines.iter().map(difference).collect())
}

#[test]
fn pairs_of_the_corpus_differ_where_coremltools_says_so() {
    let Some(corpus) = corpus() else { return };
    let pairs = pairs(&corpus);
    assert!(pairs.len() >= 200, "only {} pairs", pairs.len());
    let opinions = second_opinion(&pairs);
    let mut different = 0;
    let mut unopened = 0;
    let mut quiet = Vec::new();
    for (index, (before, after)) in pairs.iter().enumerate() {
        let (Ok(a), Ok(b)) = (ModelFile::open(before), ModelFile::open(after)) else {
            // Some programs before a pass are none that a file may hold.
            unopened += 1;
            continue;
        };
        let blobs: (&dyn Blobs, &dyn Blobs) = (a.weights().as_ref(), b.weights().as_ref());
        let forth = compare(&a.model, &b.model, blobs);
        let back = compare(&b.model, &a.model, (blobs.1, blobs.0));
        assert_eq!(forth.is_same(), back.is_same(), "{}", before.display());
        different += usize::from(!forth.is_same());
        let opinion = opinions.as_ref().and_then(|all| all[index].as_ref());
        let same_but_for_places = || statements(&a.model) == statements(&b.model);
        if let Some(difference) = opinion.filter(|_| forth.is_same() && !same_but_for_places()) {
            quiet.push(format!("{}: {difference}", before.display()));
        }
        if opinions.is_some() && opinion.is_none() {
            assert!(
                forth.is_same(),
                "{}: {}",
                before.display(),
                diff::text(&forth)
            );
        }
    }
    assert!(unopened <= 5, "{unopened} pairs do not open");
    assert!(different >= 150, "only {different} pairs differ");
    assert!(quiet.is_empty(), "{}", quiet.join("\n"));
}

#[test]
fn programs_without_their_weights_are_compared() {
    let path = test_package("attention_block");
    let file = ModelFile::open(&path).expect("a test package");
    let comparison = compare(&file.model, &file.model, (&NoBlobs, &NoBlobs));
    assert!(comparison.is_same());
    assert!(comparison.unreadable > 0);
}
