//! The interpreter on a language model of 135 million parameters, 32 tokens, against PyTorch.
//!
//! `cargo bench --bench prefill` makes the package with `tests/bench/generate.py` (it needs
//! `MILWRIGHT_PYTHON`, a Python with coremltools), runs it in fp32, and times PyTorch on the same
//! architecture (`MILWRIGHT_TORCH_PYTHON` names a Python with torch), in turn, on two threads. It
//! prints medians, the ratio, and the peak of anonymous memory; then how many runs a preflight of the same
//! model is worth, and the peak with it. Nothing is asserted.

#![expect(clippy::print_stdout, reason = "a bench reports to whoever runs it")]

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use milwright::eval::{Interpreter, Options, Precision, States, Unobserved};
use milwright::ir::DType;
use milwright::preflight::{Preflight, Report, Sample, Subject};
use milwright::source::ModelFile;
use milwright::tensor::Tensor;

const ROUNDS: usize = 5;
const TOKENS: usize = 32;
const VOCABULARY: i64 = 32_000;

fn main() {
    let Some(python) = env::var_os("MILWRIGHT_PYTHON") else {
        println!("skipped: MILWRIGHT_PYTHON names no Python with coremltools");
        return;
    };
    let folder = tempfile::Builder::new()
        .prefix("milwright-bench-")
        .tempdir_in(env::var_os("MILWRIGHT_BENCH_DIR").map_or_else(env::temp_dir, PathBuf::from))
        .expect("a temporary folder");
    let package = folder.path().join("llama.mlpackage");
    let bench = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bench");
    let made = Command::new(&python)
        .arg(bench.join("generate.py"))
        .args(["llm", "--layers", "10", "--dim", "768", "--vocab", "32000"])
        .args(["--tokens", "32"])
        .arg(&package)
        .output()
        .expect("Python starts");
    assert!(made.status.success(), "the generator makes the model");
    println!("{}", String::from_utf8_lossy(&made.stdout).trim());

    let file = ModelFile::open(&package).expect("the model opens");
    let programs = file.model.programs();
    let options = Options::new(Precision::Fp32.numerics());
    let interpreter = Interpreter::new(programs[0].program, file.weights().clone(), options);
    let inputs = inputs();
    let run = || {
        let start = Instant::now();
        let outputs = interpreter
            .run("main", &inputs, &States::new(), &mut Unobserved)
            .expect("the model runs");
        assert_eq!(outputs.len(), 1);
        start.elapsed().as_secs_f64()
    };
    run();
    let mut own = Vec::new();
    let mut theirs = Vec::new();
    for _ in 0..ROUNDS {
        own.push(run());
        theirs.extend(torch(&bench));
    }
    println!(
        "milwright, fp32: {:.3} s (median of {ROUNDS})",
        median(&mut own)
    );
    if let Some(peak) = peak_anonymous_memory() {
        println!("peak memory besides mapped files: {} MiB", peak >> 10);
    }
    let start = Instant::now();
    let report = preflight(&file, &inputs);
    println!(
        "preflight: {:.1} times one run, score {:.1}, {} values",
        start.elapsed().as_secs_f64() / median(&mut own),
        report.score,
        report
            .functions
            .iter()
            .map(|f| f.values.len())
            .sum::<usize>()
    );
    if let Some(peak) = peak_anonymous_memory() {
        println!(
            "peak memory besides mapped files with it: {} MiB",
            peak >> 10
        );
    }
    if theirs.is_empty() {
        println!("PyTorch: not measured; MILWRIGHT_TORCH_PYTHON names no Python with torch");
        return;
    }
    let theirs = median(&mut theirs);
    println!(
        "PyTorch, fp32: {theirs:.3} s, ratio {:.2}",
        median(&mut own) / theirs
    );
}

/// What `milwright preflight` does, the fingerprint with it.
fn preflight(file: &ModelFile, inputs: &BTreeMap<String, Tensor>) -> Report {
    let preflight = Preflight {
        subject: Subject {
            model: &file.model,
            weights: file.weights(),
            function: None,
            seed: 0,
        },
        path: String::new(),
        fingerprint: file.fingerprint(),
        samples: vec![Sample {
            source: "the inputs of the bench".to_owned(),
            calls: vec![inputs.clone()],
        }],
        sweep: false,
    };
    preflight.run(&mut || ()).expect("the model runs")
}

fn inputs() -> BTreeMap<String, Tensor> {
    let ids = (0..TOKENS as i64).map(|i| i * 977 % VOCABULARY).collect();
    let mask = (0..TOKENS * TOKENS)
        .map(|i| if i % TOKENS > i / TOKENS { -1e4 } else { 0.0 })
        .collect();
    BTreeMap::from([
        (
            "ids".to_owned(),
            Tensor::ints(DType::Int32, vec![1, TOKENS], ids),
        ),
        (
            "mask".to_owned(),
            Tensor::floats(DType::Float16, vec![1, 1, TOKENS, TOKENS], mask),
        ),
    ])
}

/// Seconds of one round of PyTorch, after one that is not counted.
fn torch(bench: &Path) -> Option<f64> {
    let python = env::var_os("MILWRIGHT_TORCH_PYTHON")?;
    let output = Command::new(python)
        .arg(bench.join("prefill.py"))
        .arg("1")
        .output()
        .ok()?;
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}

/// Kilobytes, from the kernel's account of this process; `None` where there is none.
fn peak_anonymous_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let field = |name: &str| -> Option<u64> {
        let line = status.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    // The peak counts mapped files too; what is resident of them now is taken off.
    Some(field("VmHWM:")?.saturating_sub(field("RssFile:")?))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
