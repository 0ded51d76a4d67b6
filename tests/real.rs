//! What the passes see in real packages, if `MILWRIGHT_CORPUS` says where the corpus is: the near
//! misses are kept in a snapshot for each pipeline, and what is no hazard stays as it is.

#[path = "support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use milwright::eval;
use milwright::ir::{Binding, Graph, Program, TensorType, Value};
use milwright::pass::{Manager, Outcome, Pipeline, Readable, RemarkKind, Settings, Silent, verify};
use milwright::passes;
use milwright::source::ModelFile;
use support::folders::packages_below;

/// The real packages and where they are below the corpus' folder.
fn real() -> Vec<(String, PathBuf)> {
    let Some(corpus) = std::env::var_os("MILWRIGHT_CORPUS").map(PathBuf::from) else {
        return Vec::new();
    };
    let root = corpus.join("real");
    let name = |path: &Path| {
        path.strip_prefix(&root)
            .unwrap_or(path)
            .display()
            .to_string()
    };
    packages_below(&root)
        .into_iter()
        .map(|path| (name(&path), path))
        .collect()
}

/// The model after a pipeline, what was done, and the program as it was. None for what is no ML
/// Program.
fn optimized(path: &Path, pipeline: &str) -> Option<(ModelFile, Vec<Outcome>, Vec<Program>)> {
    let mut file = ModelFile::open(path).ok()?;
    let before = file.model.programs().into_iter();
    let before: Vec<Program> = before.map(|part| part.program.clone()).collect();
    let steps = Pipeline::parse(pipeline, passes::ALL).expect("a pipeline");
    let settings = Settings {
        interface_changes: true,
        verify_each: false,
        ..Settings::default()
    };
    let weights = file.weights().clone();
    let mut outcomes = Vec::new();
    for part in file.model.parts_mut() {
        let known = verify::issues(part.program);
        let outcome = Manager::new(passes::ALL, settings.clone())
            .run_part(&steps, part, &known, &*weights, &mut Silent)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        outcomes.push(outcome);
    }
    Some((file, outcomes, before))
}

/// Near misses by pass and reason, with how many there are in which packages.
fn near_misses(pipeline: &str) -> Option<String> {
    let mut misses: BTreeMap<(&str, String), BTreeMap<String, usize>> = BTreeMap::new();
    for (name, path) in real() {
        let Some((_, outcomes, _)) = optimized(&path, pipeline) else {
            continue;
        };
        let remarks = outcomes.iter().flat_map(|outcome| &outcome.remarks);
        for remark in remarks.filter(|remark| remark.kind == RemarkKind::Missed) {
            let reason = (remark.pass, remark.what.clone());
            *misses
                .entry(reason)
                .or_default()
                .entry(name.clone())
                .or_default() += 1;
        }
    }
    if misses.is_empty() {
        return None;
    }
    let mut text = String::new();
    for ((pass, why), packages) in misses {
        let total: usize = packages.values().sum();
        let first = packages.keys().next().map_or("", String::as_str);
        let more = match packages.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let _ = writeln!(text, "{pass}: {why}\n    {total} times in {first}{more}");
    }
    Some(text)
}

fn compare_near_misses(pipeline: &str) {
    let Some(text) = near_misses(pipeline) else {
        return;
    };
    let mut settings = insta::Settings::new();
    settings.set_snapshot_path(Path::new(env!("CARGO_MANIFEST_DIR")).join("snapshots/real"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(format!("near_misses_of_{pipeline}"), text));
}

#[test]
fn near_misses_of_the_default_pipeline_are_those_known() {
    compare_near_misses("default");
}

#[test]
fn near_misses_of_the_pipeline_for_language_models_are_those_known() {
    compare_near_misses("llm");
}

#[test]
fn near_misses_of_the_pipeline_for_the_private_interface_are_those_known() {
    compare_near_misses("ane-direct");
}

/// The infinities among the bounds of clips and elsewhere, in all blocks.
fn infinities(graph: &Graph, file: &ModelFile) -> [usize; 2] {
    let mut counts = [0, 0];
    let infinite = |value: &Value| -> usize {
        let is_small = value.tensor_type().and_then(TensorType::elements);
        if is_small.is_none_or(|elements| elements > 1 << 20) {
            return 0;
        }
        let weights = file.weights();
        match eval::datum(value, &Readable(&**weights)) {
            Ok(milwright::ops::Datum::Tensor(tensor)) => {
                let floats = tensor.as_floats();
                floats.map_or(0, |floats| {
                    floats.iter().filter(|f| f.is_infinite()).count()
                })
            }
            _ => 0,
        }
    };
    for (_, op) in graph.ops() {
        for argument in op.arguments() {
            for binding in &argument.bindings {
                let value = match binding {
                    Binding::Immediate(value) => Some(value),
                    Binding::Value(value) => graph.producer(*value).and_then(|op| op.const_value()),
                    Binding::Absent => None,
                };
                let is_bound = op.op_type() == "clip" && argument.parameter != "x";
                counts[usize::from(!is_bound)] += value.map_or(0, infinite);
            }
        }
        for block in op.blocks() {
            let inner = infinities(block, file);
            counts[0] += inner[0];
            counts[1] += inner[1];
        }
    }
    counts
}

#[test]
fn infinite_bounds_of_clips_stay_as_they_are() {
    let packages = real();
    let mut seen = 0;
    for (name, path) in &packages {
        let Some((file, _, before)) = optimized(path, "finite-masks") else {
            continue;
        };
        let count = |program: &Program| {
            let bodies = program.functions.values();
            bodies
                .flat_map(|function| function.specializations.values())
                .map(|body| infinities(&body.graph, &file)[0])
                .sum::<usize>()
        };
        let parts = file.model.programs();
        let bounds: usize = before.iter().map(count).sum();
        let left: usize = parts.iter().map(|part| count(part.program)).sum();
        assert_eq!(left, bounds, "{name}");
        seen += bounds;
    }
    assert!(
        packages.is_empty() || seen > 0,
        "no clip with an infinite bound"
    );
}
