//! What `keep-fp32` finds: on small programs next to the smallest set that there is, by trying all sets,
//! and on models of the corpus that go wrong in fp16 (if `MILWRIGHT_CORPUS` says where that is).

#![expect(
    clippy::print_stdout,
    reason = "what was found is shown with --nocapture"
)]

#[path = "precision/small.rs"]
mod small;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use milwright::eval::{Interpreter, Options, Precision, States, Unobserved};
use milwright::ir::{Content, DType, Program};
use milwright::ops::Datum;
use milwright::pass::{
    Blobs, Calibration, Manager, NoBlobs, Outcome, Pipeline, Readable, RemarkKind, Settings,
    Silent, verify,
};
use milwright::passes;
use milwright::source::ModelFile;
use milwright::tensor::Tensor;
use milwright::text::parse;

use small::small_programs;

type Arrays = BTreeMap<String, Tensor>;

/// A number in [−1, 1) for each index, by a generator of 64 bits (Knuth, MMIX).
fn noise(index: usize) -> f32 {
    let state = (index as u64 + 1)
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    let mixed = (state ^ (state >> 32)).wrapping_mul(6_364_136_223_846_793_005);
    (mixed >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

fn half(shape: &[usize], element: impl Fn(usize) -> f32) -> Tensor {
    let elements = (0..shape.iter().product()).map(element).collect();
    Tensor::floats(DType::Float16, shape.to_vec(), elements)
        .rounded_to_half(false)
        .expect("floats")
}

fn one(name: &str, tensor: Tensor) -> Arrays {
    Arrays::from([(name.to_owned(), tensor)])
}

/// The outputs of the only function.
fn run(
    program: &Program,
    blobs: &dyn Blobs,
    precision: Precision,
    inputs: &Arrays,
) -> Vec<Vec<f64>> {
    let options = Options::new(precision.numerics());
    let interpreter = Interpreter::with_blobs(program, Readable(blobs), options);
    let name = program.functions.keys().next().expect("a function");
    let results = interpreter
        .run(name, inputs, &States::new(), &mut Unobserved)
        .expect("it runs");
    let numbers = |(_, datum)| match datum {
        Datum::Tensor(tensor) => Tensor::to_f64(&tensor).expect("numbers"),
        _ => panic!("no tensor"),
    };
    results.into_iter().map(numbers).collect()
}

/// The greatest distance of an output, relative to the greatest magnitude of the right one.
fn distance(right: &[Vec<f64>], actual: &[Vec<f64>]) -> f64 {
    let of_one = |(right, actual): (&Vec<f64>, &Vec<f64>)| {
        let scale = right.iter().fold(0f64, |most, value| most.max(value.abs()));
        let far = right.iter().zip(actual).map(|(a, b)| {
            assert!(a.is_finite(), "the test's own numbers are finite in fp32");
            if b.is_finite() {
                (a - b).abs()
            } else {
                f64::INFINITY
            }
        });
        far.fold(0f64, f64::max) / scale
    };
    right.iter().zip(actual).map(of_one).fold(0.0, f64::max)
}

/// Runs the pass with options; gives the program after it.
fn keep(
    program: &Program,
    blobs: &dyn Blobs,
    options: &str,
    samples: Vec<Vec<Arrays>>,
) -> (Program, Outcome) {
    let mut after = program.clone();
    let pipeline =
        Pipeline::parse(&format!("keep-fp32{options}"), passes::ALL).expect("a pipeline");
    let calibration = Calibration {
        samples: BTreeMap::from([("main".to_owned(), samples)]),
        ..Calibration::default()
    };
    let settings = Settings {
        calibration: Arc::new(calibration),
        ..Settings::default()
    };
    let known = verify::issues(program);
    let outcome = Manager::new(passes::ALL, settings)
        .run(&pipeline, &mut after, "", &known, blobs, &mut Silent)
        .expect("the pass runs");
    (after, outcome)
}

/// How many operations an applied remark says are in fp32, and the remark.
fn size(outcome: &Outcome) -> (usize, &str) {
    let mut applied = outcome
        .remarks
        .iter()
        .filter(|remark| remark.kind == RemarkKind::Applied);
    let remark = applied
        .next()
        .unwrap_or_else(|| panic!("{:?}", outcome.remarks));
    let number = remark.what.split(' ').next().unwrap_or_default();
    (number.parse().expect("a number"), &remark.what)
}

/// Names of the operations: of every result.
fn operations(program: &Program) -> Vec<String> {
    let function = program.functions.values().next().expect("a function");
    let graph = &function.active().expect("a body").graph;
    let ops = graph.ops().filter(|(_, op)| op.const_value().is_none());
    ops.map(|(_, op)| op.results()[0].name.clone()).collect()
}

/// The next choice of numbers below n; false after the last.
fn advance(choice: &mut [usize], n: usize) -> bool {
    let k = choice.len();
    let Some(at) = (0..k).rev().find(|at| choice[*at] < n - k + at) else {
        return false;
    };
    choice[at] += 1;
    for next in at + 1..k {
        choice[next] = choice[next - 1] + 1;
    }
    true
}

/// The size of the smallest set with which the error is within the tolerance: all sets are tried, the
/// small ones first. That the pass makes what is asked of it is not taken for granted: each program
/// runs.
fn smallest(program: &Program, inputs: &Arrays, right: &[Vec<f64>], tolerance: f64) -> Vec<String> {
    let names = operations(program);
    for k in 1..=names.len() {
        let mut choice: Vec<usize> = (0..k).collect();
        loop {
            let set: Vec<String> = choice.iter().map(|index| names[*index].clone()).collect();
            let options = format!("{{ops={}}}", set.join("+"));
            let (after, outcome) = keep(program, &NoBlobs, &options, Vec::new());
            assert_eq!(size(&outcome).0, k);
            let error = distance(right, &run(&after, &NoBlobs, Precision::Fp16, inputs));
            if error <= tolerance {
                return set;
            }
            if !advance(&mut choice, names.len()) {
                break;
            }
        }
    }
    panic!("not even all operations in fp32 suffice");
}

#[test]
fn the_search_finds_at_most_two_operations_more_than_the_smallest_set_of_all() {
    let (mut exact, mut tried) = (0, 0);
    for small in small_programs() {
        let parsed = parse(&small.source, small.name).unwrap_or_else(|errors| panic!("{errors:?}"));
        let program = parsed.program;
        assert!(operations(&program).len() <= 10, "{}", small.name);
        let right = run(&program, &NoBlobs, Precision::Fp32, &small.inputs);
        let before = distance(
            &right,
            &run(&program, &NoBlobs, Precision::Fp16, &small.inputs),
        );
        for &tolerance in small.tolerances {
            tried += 1;
            assert!(
                before > tolerance,
                "{}: nothing is wrong: {before}",
                small.name
            );
            let least = smallest(&program, &small.inputs, &right, tolerance);
            let samples = vec![vec![small.inputs.clone()]];
            let options = format!("{{tolerance={tolerance}}}");
            let (after, outcome) = keep(&program, &NoBlobs, &options, samples);
            let (found, remark) = size(&outcome);
            println!(
                "{} at {tolerance}: {} is least: {remark}",
                small.name,
                least.join("+")
            );
            let error = distance(
                &right,
                &run(&after, &NoBlobs, Precision::Fp16, &small.inputs),
            );
            assert!(
                error <= tolerance,
                "{}: {error} after: {remark}",
                small.name
            );
            assert!(
                found <= least.len() + 2,
                "{}: {found} instead of {least:?}: {remark}",
                small.name
            );
            exact += usize::from(found == least.len());
        }
    }
    println!("the smallest in {exact} of {tried}");
    assert!(
        4 * exact >= 3 * tried,
        "the smallest in {exact} of {tried} only"
    );
}

/// The set that bisect would name is enough where the hazard is among it.
#[test]
fn a_report_of_bisect_restricts_the_search() {
    let small = small_programs().remove(0);
    let program = parse(&small.source, small.name).expect("text").program;
    let entry = |name: &str| format!("{{\"name\": \"{name}\", \"op_type\": \"x\"}}");
    let file = std::env::temp_dir().join(format!("keep-fp32-{}.json", std::process::id()));
    let report = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| entry(name)).collect();
        let text = format!(
            "{{\"first_not_finite\": null, \"first\": [{}], \"worst_local\": [], \"worst_accumulated\": []}}",
            names.join(", ")
        );
        std::fs::write(&file, text).expect("a file");
        let mut pipeline = Pipeline::parse("keep-fp32", passes::ALL).expect("a pipeline");
        let path = serde_json::Value::String(file.display().to_string());
        pipeline.set("keep-fp32", "bisect", &path);
        let mut after = program.clone();
        let settings = Settings {
            calibration: Arc::new(Calibration {
                samples: BTreeMap::from([("main".to_owned(), vec![vec![small.inputs.clone()]])]),
                ..Calibration::default()
            }),
            ..Settings::default()
        };
        let mut manager = Manager::new(passes::ALL, settings);
        let outcome = manager.run(&pipeline, &mut after, "", &[].into(), &NoBlobs, &mut Silent);
        outcome.map_err(|error| error.to_string())
    };
    let outcome = report(&["scale", "guarded", "mean", "squares", "norm"]).expect("it runs");
    assert_eq!(size(&outcome).0, 4, "{:?}", outcome.remarks);
    let outcome = report(&["mean", "guarded"]).expect("it runs");
    let what = &outcome.remarks[0].what;
    assert!(
        what.contains("the operations that the report names in fp32 (2)"),
        "{what}"
    );
    std::fs::write(&file, "{\"rewrites\": 3, \"first\": null}").expect("a file");
    let mut options = milwright::pass::options::OptionMap::new();
    options.insert("bisect".to_owned(), file.display().to_string().into());
    let pass = passes::by_id("keep-fp32").expect("the pass");
    let error = pass
        .whole_matcher(&options)
        .err()
        .expect("an error")
        .to_string();
    assert!(
        error.contains("is no report of `milwright bisect"),
        "{error}"
    );
    std::fs::remove_file(&file).expect("it is there");
    let error = pass
        .whole_matcher(&options)
        .err()
        .expect("an error")
        .to_string();
    assert!(error.contains("cannot read"), "{error}");
}

/// The state grows with each call, and the square overflows in the second one.
#[test]
fn all_calls_of_a_sample_count_on_the_same_states() {
    let source = "program(1.3)
{
    func main<ios18>(tensor<fp16, [4]> x, state<tensor<fp16, [4]>> s) {
        tensor<fp16, [4]> before = read_state(input = s);
        tensor<fp16, [4]> next = add(x = before, y = x);
        write_state(data = next, input = s);
        tensor<fp16, [4]> big = mul(x = next, y = fp16(150));
        tensor<fp16, [4]> square = mul(x = big, y = big);
        tensor<fp16, [4]> y = sqrt(x = square);
    } -> (y);
}
";
    let program = parse(source, "state").expect("text").program;
    let call = one("x", half(&[4], |index| 1.0 + 0.1 * noise(index)));
    let (_, once) = keep(&program, &NoBlobs, "", vec![vec![call.clone()]]);
    assert_eq!(once.rewrites(), 0);
    assert!(once.remarks[0].what.contains("within the tolerance"));
    for samples in [
        vec![vec![call.clone(); 2]],
        vec![vec![call.clone()], vec![call.clone(); 2]],
    ] {
        let (_, outcome) = keep(&program, &NoBlobs, "", samples);
        let (found, remark) = size(&outcome);
        assert_eq!(found, 2, "{remark}");
        assert!(remark.contains("square (mul), y (sqrt)"), "{remark}");
    }
}

/// A weight that is cast for one operation is still copied for another, which takes constants alone.
#[test]
fn a_large_weight_is_copied_even_if_it_is_cast_elsewhere() {
    let source = "program(1.3)
{
    func main<ios18>(tensor<fp16, [129, 256]> x) {
        tensor<fp16, [129, 256]> table = const()[val = tensor<fp16, [129, 256]>(random(1, 1))];
        tensor<fp16, [129, 256]> a = mul(x = x, y = table);
        tensor<fp16, [129, 129]> b = linear(weight = table, x = a);
    } -> (b);
}
";
    let program = parse(source, "large").expect("text").program;
    let (after, outcome) = keep(&program, &NoBlobs, "{ops=a+b}", Vec::new());
    assert_eq!(size(&outcome).0, 2);
    let graph = &after.functions["main"].active().expect("a body").graph;
    let copies: Vec<usize> = graph
        .ops()
        .filter_map(|(_, op)| match &op.const_value()?.content {
            Content::New(new) => Some(new.bytes.len()),
            _ => None,
        })
        .collect();
    assert_eq!(copies, [129 * 256 * 4]);
    let x = one("x", half(&[129, 256], noise));
    let before = run(&program, &NoBlobs, Precision::Fp32, &x);
    assert_eq!(before, run(&after, &NoBlobs, Precision::Fp32, &x));
}

/// Options that make no sense are refused when they are read.
#[test]
fn options_that_cannot_be_meant_are_refused() {
    for (options, why) in [
        ("{tolerance=0}", "above 0"),
        ("{tolerance=-1}", "above 0"),
        ("{ops=auto+exp}", "stands alone"),
        ("{ops=+}", "names nothing"),
        ("{runs=0}", "at least 1"),
        ("{precision=fp32}", "unknown variant"),
        ("{ops=exp,bisect=file.json}", "has no meaning"),
        ("{report=file.json}", "unknown field"),
    ] {
        let error = match Pipeline::parse(&format!("keep-fp32{options}"), passes::ALL) {
            Ok(pipeline) => pipeline
                .check_options(passes::ALL)
                .err()
                .map(|e| e.to_string()),
            Err(error) => Some(error.to_string()),
        };
        let error = error.unwrap_or_else(|| panic!("{options} is taken"));
        assert!(error.contains(why), "{options}: {error}");
    }
}

/// A model of the corpus, inputs that it goes wrong on, in which precision, and how many operations of
/// it compute in fp16.
struct Broken {
    package: &'static str,
    inputs: Arrays,
    precision: Precision,
    most: usize,
}

fn broken() -> Vec<Broken> {
    let new = |package, x: (&str, Tensor), precision, most| Broken {
        package,
        inputs: one(x.0, x.1),
        precision,
        most,
    };
    let fp16 = Precision::Fp16;
    vec![
        new(
            "R04_rmsnorm_naive",
            ("x", half(&[1, 128, 2048], |i| noise(i) * 2000.0)),
            fp16,
            4,
        ),
        new(
            "R11_groupnorm_manual_var",
            ("x", half(&[1, 32, 64, 64], |i| noise(i) * 2000.0)),
            fp16,
            4,
        ),
        new(
            "R13_power_spectrum_log",
            ("x", half(&[1, 1, 16000], |i| noise(i) * 20.0)),
            fp16,
            6,
        ),
        new(
            "R15_phase_cumsum_sin",
            ("f0", half(&[1, 24000], |i| 220.0 + 20.0 * noise(i))),
            fp16,
            4,
        ),
        new(
            "R11_groupnorm_manual_var",
            ("x", half(&[1, 32, 64, 64], |i| noise(i) * 2.0)),
            Precision::Ane,
            1,
        ),
        new(
            "R39_rangedim_reduce_mean",
            ("x", half(&[1, 3, 64, 64], |i| 1.0 + noise(i))),
            Precision::Ane,
            2,
        ),
    ]
}

#[test]
fn models_that_only_precision_cures_come_within_the_tolerance() {
    let Some(corpus) = std::env::var_os("MILWRIGHT_CORPUS").map(PathBuf::from) else {
        return;
    };
    for broken in broken() {
        let path = corpus
            .join("bugs")
            .join(format!("{}.mlpackage", broken.package));
        let file = ModelFile::open(&path).expect("a package of the corpus");
        let program = file.model.programs().remove(0).program;
        let blobs = &**file.weights();
        let started = Instant::now();
        let right = run(program, blobs, Precision::Fp32, &broken.inputs);
        let before = distance(
            &right,
            &run(program, blobs, broken.precision, &broken.inputs),
        );
        let tolerance = 1e-3;
        assert!(before > tolerance, "{}: {before}", broken.package);
        let options = format!(
            "{{precision={},runs=40,tolerance={tolerance}}}",
            broken.precision.word()
        );
        let samples = vec![vec![broken.inputs.clone()]];
        let (after, outcome) = keep(program, blobs, &options, samples);
        let (found, remark) = size(&outcome);
        let error = distance(
            &right,
            &run(&after, blobs, broken.precision, &broken.inputs),
        );
        println!(
            "{}: {remark} ({:.1} s)",
            broken.package,
            started.elapsed().as_secs_f64()
        );
        assert!(error <= tolerance, "{}: {error}", broken.package);
        assert!(found <= broken.most, "{}: {remark}", broken.package);
        let types: BTreeSet<Option<DType>> = outputs(&after);
        assert_eq!(types, outputs(program));
    }
}

/// The element types of the outputs.
fn outputs(program: &Program) -> BTreeSet<Option<DType>> {
    let function = program.functions.values().next().expect("a function");
    let graph = &function.active().expect("a body").graph;
    let ty = |value: &milwright::ir::ValueId| Some(graph.ty(*value)?.as_tensor()?.dtype);
    graph.outputs().iter().map(ty).collect()
}
