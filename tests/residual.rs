//! Models whose residual stream is scaled compute what they did, and their stream is as much smaller: in
//! fp32 on programs of several families and, if `MILWRIGHT_CORPUS` says where they are, on models of the
//! corpus; in fp16 on a model whose stream overflows.

#[allow(dead_code, reason = "shared with other tests, which use more of it")]
#[path = "repairs/measure.rs"]
mod measure;
#[path = "residual/sketch.rs"]
mod sketch;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use milwright::analysis::residual;
use milwright::eval::npz;
use milwright::eval::ranges::{HALF_MAX, Range};
use milwright::eval::scales::{KEY, ScaleMap};
use milwright::eval::verify::{Criterion, Maps, Samples, verify as compare};
use milwright::eval::{Interpreter, Observer, Options, Precision, Runner, States};
use milwright::ir::{DType, Graph, NodeId, Operation, Program, ValueType};
use milwright::model::{Model, Origin};
use milwright::ops::{Datum, Opset, StateCell};
use milwright::package::Weights;
use milwright::pass::{
    Blobs, Block, Manager, NoBlobs, Pipeline, Readable, Settings, Silent, verify,
};
use milwright::passes;
use milwright::source::ModelFile;
use milwright::tensor::Tensor;
use sketch::{LAYERS, ROWS, Sketch, WIDTH, blockwise, palette, program};

use measure::{Arrays, distance, noise, open};

/// The greatest magnitudes of some values.
struct Peaks {
    names: BTreeSet<String>,
    seen: BTreeMap<String, Range>,
}

impl Observer for Peaks {
    fn computed(&mut self, _: &Graph, _: NodeId, op: &Operation, results: &[Datum]) {
        for (named, result) in op.results().iter().zip(results) {
            if !self.names.contains(&named.name) {
                continue;
            }
            let tensor = result.as_tensor();
            if let Some(range) = tensor.and_then(|tensor| Range::of(tensor, HALF_MAX)) {
                self.seen
                    .entry(named.name.clone())
                    .or_default()
                    .merge(&range);
            }
        }
    }
}

/// What a run gave.
struct Run {
    outputs: BTreeMap<String, Vec<f64>>,
    peaks: BTreeMap<String, f64>,
    overflows: u64,
}

/// Runs `main` with states of zero.
fn run(
    program: &Program,
    blobs: &dyn Blobs,
    precision: Precision,
    inputs: &Arrays,
    names: &BTreeSet<String>,
) -> Run {
    let options = Options::new(precision.numerics());
    let interpreter = Interpreter::with_blobs(program, Readable(blobs), options);
    let function = &program.functions["main"];
    let (mut given, mut states) = (BTreeMap::new(), States::new());
    for input in &function.inputs {
        if let Some(state) = input.ty.as_ref().and_then(ValueType::as_state) {
            let shape = state.shape().expect("fixed sizes");
            let shape = shape.into_iter().map(|size| size as usize).collect();
            let zeros = Tensor::zeros(state.dtype, shape);
            states.insert(input.name.clone(), StateCell::new(zeros));
        } else {
            let mut tensor = inputs[&input.name].clone();
            if let Some(ty) = input.ty.as_ref().and_then(ValueType::as_tensor) {
                tensor = tensor.retyped(ty.dtype);
            }
            given.insert(input.name.clone(), tensor);
        }
    }
    let mut peaks = Peaks {
        names: names.clone(),
        seen: BTreeMap::new(),
    };
    let results = interpreter
        .run("main", &given, &states, &mut peaks)
        .expect("it runs");
    let mut outputs = BTreeMap::new();
    for (name, datum) in results {
        if let Datum::Tensor(tensor) = datum {
            outputs.insert(name, tensor.to_f64().expect("numbers"));
        }
    }
    for (name, state) in states {
        outputs.insert(
            format!("state {name}"),
            state.read().to_f64().expect("numbers"),
        );
    }
    Run {
        outputs,
        overflows: peaks
            .seen
            .values()
            .map(|range| range.overflows + range.not_finite())
            .sum(),
        peaks: peaks
            .seen
            .into_iter()
            .map(|(name, range)| (name, range.peak))
            .collect(),
    }
}

/// The names of the values of the stream that additions make.
fn stream(program: &Program, blobs: &dyn Blobs) -> BTreeSet<String> {
    let body = program.functions["main"].specializations.iter().next();
    let (opset, body) = body.expect("a body");
    let block = Block {
        graph: &body.graph,
        outer: None,
        opset: Opset::parse(opset),
        blobs,
        ranges: None,
    };
    let stream = residual::longest(&block).expect("a stream");
    let sums = stream.values().skip(1);
    sums.map(|value| body.graph.name(value).to_owned())
        .collect()
}

fn after(program: &Program, blobs: &dyn Blobs, pipeline: &str) -> (Program, usize) {
    let mut after = program.clone();
    let known = verify::issues(program);
    let steps = Pipeline::parse(pipeline, passes::ALL).expect("a pipeline");
    let settings = Settings {
        interface_changes: true,
        ..Settings::default()
    };
    let outcome = Manager::new(passes::ALL, settings)
        .run(&steps, &mut after, "", &known, blobs, &mut Silent)
        .expect("the pass runs");
    (after, outcome.rewrites())
}

fn farthest(actual: &Run, right: &Run) -> f64 {
    assert!(actual.outputs.keys().eq(right.outputs.keys()));
    let pairs = actual.outputs.iter().zip(&right.outputs);
    pairs
        .map(|((_, a), (_, r))| distance(a, r))
        .fold(0.0, f64::max)
}

/// The same outputs and states in fp32 within 1e-5, and a stream that is α times as large.
#[track_caller]
fn is_scaled(what: &str, program: &Program, blobs: &dyn Blobs, alpha: f64, inputs: &Arrays) {
    let names = stream(program, blobs);
    let right = run(program, blobs, Precision::Fp32, inputs, &names);
    let (after, rewrites) = after(program, blobs, &format!("scale-residual{{alpha={alpha}}}"));
    assert_eq!(rewrites, 1, "{what}");
    let scaled = run(&after, blobs, Precision::Fp32, inputs, &names);
    let farthest = farthest(&scaled, &right);
    assert!(farthest <= 1e-5, "{what}: off by {farthest:e}");
    assert!(names.len() > 1, "{what}");
    for name in &names {
        let ratio = scaled.peaks[name] / right.peaks[name];
        assert!(
            (ratio / alpha - 1.0).abs() <= 1e-3,
            "{what}: {name} by {ratio}"
        );
    }
}

fn ids(count: usize, below: usize) -> Arrays {
    let ids = (0..count).map(|at| (noise(at + 5).abs() * below as f32) as i64);
    let tensor = Tensor::ints(DType::Int32, vec![1, count], ids.collect());
    Arrays::from([("ids".to_owned(), tensor)])
}

#[test]
fn sketches_of_several_families_compute_what_they_did() {
    let llama = Sketch::LLAMA;
    for (what, sketch) in [
        ("llama", llama),
        (
            "a tied head",
            Sketch {
                tied: true,
                ..Sketch::LLAMA
            },
        ),
        (
            "gemma",
            Sketch {
                gemma: true,
                tied: true,
                ..Sketch::LLAMA
            },
        ),
        (
            "anemll",
            Sketch {
                norm: "anemll",
                ..Sketch::LLAMA
            },
        ),
        (
            "layer norms",
            Sketch {
                norm: "layer",
                ..Sketch::LLAMA
            },
        ),
        (
            "a small stream",
            Sketch {
                size: 1e-3,
                ..Sketch::LLAMA
            },
        ),
        (
            "palettes of four bits",
            Sketch {
                weight: palette,
                ..Sketch::LLAMA
            },
        ),
        (
            "eight bits with scales",
            Sketch {
                weight: blockwise,
                ..Sketch::LLAMA
            },
        ),
        (
            "a state",
            Sketch {
                state: true,
                ..Sketch::LLAMA
            },
        ),
        (
            "half precision",
            Sketch {
                dtype: "fp16",
                ..Sketch::LLAMA
            },
        ),
        (
            "palettes in half precision",
            Sketch {
                dtype: "fp16",
                weight: palette,
                gemma: true,
                ..Sketch::LLAMA
            },
        ),
        (
            "eight bits in half precision",
            Sketch {
                dtype: "fp16",
                weight: blockwise,
                tied: true,
                ..Sketch::LLAMA
            },
        ),
    ] {
        let program = sketch.program();
        for alpha in [0.125, 0.5] {
            is_scaled(what, &program, &NoBlobs, alpha, &ids(ROWS, 32));
        }
    }
}

#[test]
fn a_factor_that_is_no_power_of_two_is_as_good_in_fp32() {
    for sketch in [
        Sketch::LLAMA,
        Sketch {
            gemma: true,
            tied: true,
            ..Sketch::LLAMA
        },
        Sketch {
            norm: "anemll",
            weight: palette,
            ..Sketch::LLAMA
        },
    ] {
        // 0.1875 and 0.82 are the published ones of Gemma 3.
        for alpha in [0.1875, 0.82] {
            let program = sketch.program();
            is_scaled("by a number", &program, &NoBlobs, alpha, &ids(ROWS, 32));
        }
    }
}

#[test]
fn without_the_square_at_the_epsilons_it_would_be_another_function() {
    let alpha = 0.125;
    let sketch = |epsilon| {
        Sketch {
            size: 1e-2,
            epsilon,
            ..Sketch::LLAMA
        }
        .program()
    };
    let (program, inputs) = (sketch(1e-5), ids(ROWS, 32));
    let names = stream(&program, &NoBlobs);
    let right = run(&program, &NoBlobs, Precision::Fp32, &inputs, &names);
    let pass = format!("scale-residual{{alpha={alpha}}}");
    let with = after(&program, &NoBlobs, &pass).0;
    // The same weights with epsilons that the pass brings back to what they were.
    let without = after(&sketch(1e-5 / (alpha * alpha)), &NoBlobs, &pass).0;
    let [with, without] = [with, without].map(|program| {
        farthest(
            &run(&program, &NoBlobs, Precision::Fp32, &inputs, &names),
            &right,
        )
    });
    assert!(with <= 1e-5, "with: {with:e}");
    assert!(without > 1e-2, "without: {without:e}");
}

#[test]
fn a_part_of_the_stream_is_scaled_from_a_layer_on() {
    let program = Sketch::LLAMA.program();
    let names = stream(&program, &NoBlobs);
    let inputs = ids(ROWS, 32);
    let right = run(&program, &NoBlobs, Precision::Fp32, &inputs, &names);
    for layer in 1..LAYERS {
        let pass = format!("scale-residual{{alpha=0.25, from_layer={layer}}}");
        let (after, rewrites) = after(&program, &NoBlobs, &pass);
        assert_eq!(rewrites, 1);
        let scaled = run(&after, &NoBlobs, Precision::Fp32, &inputs, &names);
        assert!(farthest(&scaled, &right) <= 1e-5);
        for n in 1..=2 * LAYERS {
            let name = format!("s{n}");
            let expected = if n > 2 * layer { 0.25 } else { 1.0 };
            let ratio = scaled.peaks[&name] / right.peaks[&name];
            assert!(
                (ratio / expected - 1.0).abs() < 1e-4,
                "{name} from {layer}: {ratio}"
            );
        }
    }
}

/// A model of a program, scaled, with the program as it was.
fn scaled_model(program: &Program, options: &str) -> Model {
    let mut model = Model::for_reading(program.clone(), &Origin::default());
    let known = verify::issues(program);
    let steps = Pipeline::parse(&format!("scale-residual{{{options}}}"), passes::ALL).unwrap();
    let settings = Settings {
        interface_changes: true,
        ..Settings::default()
    };
    let part = model.parts_mut().pop().expect("a program");
    Manager::new(passes::ALL, settings)
        .run_part(&steps, part, &known, &NoBlobs, &mut Silent)
        .expect("the pass runs");
    model
}

#[test]
fn two_chunks_agree_on_the_factor() {
    let sketch = Sketch::LLAMA;
    let first = program(
        "tensor<int32, [1, 6]> ids",
        &(sketch.source() + &sketch.layers(0, 1)),
        "s2",
    );
    let second = program(
        "tensor<fp32, [1, 6, 16]> s2",
        &(sketch.layers(1, LAYERS) + &sketch.head(2 * LAYERS)),
        "logits",
    );
    let none = BTreeSet::new();
    let pass = |program: &Program| {
        let (after, rewrites) = after(program, &NoBlobs, "scale-residual{alpha=0.125, chunk=true}");
        assert_eq!(rewrites, 1);
        after
    };
    let chain = |first: &Program, second: &Program| {
        let hidden = run(first, &NoBlobs, Precision::Fp32, &ids(ROWS, 32), &none);
        let hidden = hidden.outputs["s2"].clone();
        let floats = hidden.iter().map(|value| *value as f32).collect();
        let tensor = Tensor::floats(DType::Float32, vec![1, ROWS, WIDTH], floats);
        let inputs = Arrays::from([("s2".to_owned(), tensor)]);
        let logits = run(second, &NoBlobs, Precision::Fp32, &inputs, &none);
        (hidden, logits.outputs["logits"].clone())
    };
    let (hidden, logits) = chain(&first, &second);
    let (smaller, same) = chain(&pass(&first), &pass(&second));
    let expected: Vec<f64> = hidden.iter().map(|value| value * 0.125).collect();
    assert!(distance(&smaller, &expected) <= 1e-6);
    assert!(distance(&same, &logits) <= 1e-5);
    // Without leave, neither is touched.
    for chunk in [&first, &second] {
        assert_eq!(after(chunk, &NoBlobs, "scale-residual{alpha=0.125}").1, 0);
    }

    // A comparison reads the metadata: each chunk is equivalent to what it was.
    for (chunk, inputs) in [
        (&first, ids(ROWS, 32)),
        (
            &second,
            measure::one(
                "s2",
                measure::float(DType::Float32, &[1, ROWS, WIDTH], noise),
            ),
        ),
    ] {
        let before = Model::for_reading(chunk.clone(), &Origin::default());
        let after = scaled_model(chunk, "alpha=0.125, chunk=true");
        let map = ScaleMap::of(&after.user_defined()).unwrap();
        assert_eq!(map.functions["main"].alpha, 0.125);
        let weights = Arc::new(Weights::none());
        let options = Options::new(Precision::Fp32.numerics());
        let [mut a, mut b] = [&before, &after]
            .map(|model| Runner::new(model, &weights, None, &options).expect("it can run"));
        let maps = [&before, &after].map(|model| Maps::of(&model.user_defined()).unwrap());
        let calls = vec![inputs];
        let criterion = Criterion::Scaled(1e-5);
        let samples = Samples::Given(&calls);
        let report = compare(&mut a, &mut b, &samples, criterion, [&maps[0], &maps[1]]).unwrap();
        assert!(report.equivalent, "{:?}", report.outputs);
        // Without the map it is not.
        let report = compare(&mut a, &mut b, &samples, criterion, [&maps[0], &maps[0]]).unwrap();
        assert!(!report.equivalent);
    }
}

#[test]
fn what_the_metadata_says_is_scaled_is_not_scaled_again() {
    let program = Sketch::LLAMA.program();
    let mut model = scaled_model(&program, "alpha=0.5");
    let metadata = model.user_defined();
    assert!(metadata.contains_key(KEY));
    let known = verify::issues(&program);
    let steps = Pipeline::parse("scale-residual{alpha=0.25}", passes::ALL).unwrap();
    let part = model.parts_mut().pop().expect("a program");
    let outcome = Manager::new(passes::ALL, Settings::default())
        .run_part(&steps, part, &known, &NoBlobs, &mut Silent)
        .unwrap();
    assert_eq!((outcome.rewrites(), outcome.remarks.len()), (0, 0));
    assert_eq!(model.user_defined(), metadata);
}

#[test]
fn factors_that_are_none_are_refused_with_what_is_allowed() {
    let check = |alpha: &str| {
        let text = format!("scale-residual{{alpha={alpha}}}");
        let pipeline = Pipeline::parse(&text, passes::ALL).expect("a pipeline");
        pipeline.check_options(passes::ALL)
    };
    for alpha in ["0", "-1", "1e-9", "1e9", "half", "true", "inf", "NaN"] {
        let error = check(alpha).expect_err(alpha).to_string();
        assert!(error.contains("none of `auto`, `pow2`"), "{error}");
    }
    for alpha in ["auto", "pow2", "1", "0.125", "2"] {
        assert!(check(alpha).is_ok(), "{alpha}");
    }
}

/// The inputs that a model of the corpus was recorded with.
fn inputs_of(model: &str) -> Option<Arrays> {
    let corpus = std::env::var_os("MILWRIGHT_CORPUS").map(PathBuf::from)?;
    let arrays = npz::read(&corpus.join("models").join(model).join("io.npz")).expect("arrays");
    let inputs = arrays
        .into_iter()
        .filter_map(|(name, tensor)| Some((name.strip_prefix("in_")?.to_owned(), tensor)));
    Some(inputs.collect())
}

fn model(name: &str) -> Option<(ModelFile, Arrays)> {
    let file = open(&format!("models/{name}/model.mlpackage"))?;
    Some((file, inputs_of(name)?))
}

#[test]
fn models_of_the_corpus_compute_what_they_did() {
    for name in [
        "residual_overflow",
        "residual_overflow_fp16",
        "llama_prefill",
        "llama_prefill_fp32",
        "qwen3_prefill",
        "gemma3_fp32",
        "gemma3_prefill",
        "gpt2_causal_sdpa",
        "tiny_llama_trained",
        "tiny_llama_trained_fp32",
    ] {
        let Some((file, inputs)) = model(name) else {
            return;
        };
        let program = file.model.programs().remove(0).program;
        is_scaled(name, program, &**file.weights(), 0.125, &inputs);
    }
}

#[test]
fn layers_of_models_of_the_corpus() {
    for (name, writes, layers) in [
        ("residual_overflow", 8, 8),
        ("residual_overflow_fp16", 8, 8),
        ("llama_prefill", 4, 2),
        ("qwen3_prefill", 4, 2),
        ("gemma3_fp32", 4, 2),
        ("gpt2_causal_sdpa", 4, 2),
        ("tiny_llama_trained", 8, 4),
        ("llama_states_two", 8, 4),
    ] {
        let Some(file) = open(&format!("models/{name}/model.mlpackage")) else {
            return;
        };
        let program = file.model.programs().remove(0).program;
        let body = program.functions["main"].specializations.values().next();
        let block = Block {
            graph: &body.expect("a body").graph,
            outer: None,
            opset: Some(Opset::CoreML8),
            blobs: &**file.weights(),
            ranges: None,
        };
        let stream = residual::longest(&block).expect("a stream");
        let found = stream.layers(&block);
        let size = writes / layers;
        let expected: Vec<_> = (0..layers).map(|n| n * size..(n + 1) * size).collect();
        assert_eq!((stream.writes.len(), found), (writes, expected), "{name}");
    }
}

#[test]
fn a_stream_that_overflows_in_half_precision_is_repaired() {
    let Some((file, inputs)) = model("residual_overflow_fp16") else {
        return;
    };
    let Some((exact, _)) = model("residual_overflow") else {
        return;
    };
    let (weights, program) = (&**file.weights(), file.model.programs().remove(0).program);
    let every: BTreeSet<String> = program.functions["main"]
        .specializations
        .values()
        .flat_map(|body| body.graph.ops().flat_map(|(_, op)| op.results().to_vec()))
        .map(|named| named.name)
        .collect();
    let output = |run: &Run| run.outputs.values().next().expect("an output").clone();
    let right = {
        let program = exact.model.programs().remove(0).program;
        output(&run(
            program,
            &**exact.weights(),
            Precision::Fp32,
            &inputs,
            &every,
        ))
    };
    let before = run(program, weights, Precision::Fp16, &inputs, &every);
    assert!(before.overflows > 0);
    let only_norms = after(program, weights, "safe-rmsnorm").0;
    assert!(run(&only_norms, weights, Precision::Fp16, &inputs, &every).overflows > 0);

    let (after, rewrites) = after(program, weights, "safe-rmsnorm,scale-residual{alpha=0.125}");
    assert!(rewrites > 1);
    let repaired = run(&after, weights, Precision::Fp16, &inputs, &every);
    assert_eq!(repaired.overflows, 0);
    let result = output(&repaired);
    assert!(result.iter().all(|value| value.is_finite()));
    let columns = 64;
    let argmax = |row: &[f64]| {
        let places = row.iter().enumerate();
        places.max_by(|a, b| a.1.total_cmp(b.1)).map(|(at, _)| at)
    };
    for (a, b) in result.chunks(columns).zip(right.chunks(columns)) {
        assert_eq!(argmax(a), argmax(b));
    }
    let signal: f64 = right.iter().map(|value| value * value).sum();
    let noise: f64 = result
        .iter()
        .zip(&right)
        .map(|(a, b)| (a - b) * (a - b))
        .sum();
    let decibels = 10.0 * (signal / noise).log10();
    assert!(decibels > 40.0, "{decibels} dB");
}
