//! Speed and memory of the command on large packages, as ratios within one run.
//!
//! `cargo bench --bench packages` makes the packages with `tests/bench/generate.py` (it needs
//! `MILWRIGHT_PYTHON`, a Python with coremltools), runs each measurement several times in turn with
//! what it is compared with, and prints medians and ratios. Nothing is asserted: hardware differs
//! and is noisy.
//!
//! - A 3 GB language model: `optimize` against `cp -r`, peak anonymous memory, and the commands
//!   that need not touch the weights.
//! - 100 000 operations against 10 000.

#![expect(clippy::print_stdout, reason = "a bench reports to whoever runs it")]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How often each measurement is repeated.
const ROUNDS: usize = 5;

fn main() {
    let Some(python) = env::var_os("MILWRIGHT_PYTHON") else {
        println!("skipped: MILWRIGHT_PYTHON names no Python with coremltools");
        return;
    };
    let folder = tempfile::Builder::new()
        .prefix("milwright-bench-")
        .tempdir_in(env::var_os("MILWRIGHT_BENCH_DIR").map_or_else(env::temp_dir, PathBuf::from))
        .expect("a temporary folder");
    let make = |name: &str, arguments: &[&str]| {
        let path = folder.path().join(name);
        let generator = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bench/generate.py");
        let status = Command::new(&python)
            .arg(generator)
            .args(arguments)
            .arg(&path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("Python starts");
        assert!(status.success(), "the generator makes {name}");
        path
    };

    let large = make("language-model.mlpackage", &["llm"]);
    let short = make("10000.mlpackage", &["ops", "10000"]);
    let long = make("100000.mlpackage", &["ops", "100000"]);
    large_model(&large, folder.path());
    many_operations(&short, &long, folder.path());
}

fn large_model(model: &Path, folder: &Path) {
    println!("3 GB language model, {ROUNDS} rounds, each copied and optimized in turn");
    let (copy, out) = (folder.join("copy.mlpackage"), folder.join("out.mlpackage"));
    let mut copies = Vec::new();
    let mut runs = Vec::new();
    let mut durable = Vec::new();
    let mut peak = 0;
    for _ in 0..ROUNDS {
        remove(&copy);
        remove(&out);
        settle();
        copies.push(timed(Command::new("cp").arg("-r").args([model, &copy])).0);
        settle();
        let (time, memory) = timed(milwright().arg("optimize").arg(model).arg("-o").arg(&out));
        runs.push(time);
        peak = peak.max(memory);
        // `optimize` flushes what it writes; a copy that is flushed as well is the fairer rival.
        remove(&copy);
        settle();
        let start = Instant::now();
        timed(Command::new("cp").arg("-r").args([model, &copy]));
        timed(Command::new("sync").arg("-f").arg(&copy));
        durable.push(start.elapsed());
    }
    remove(&copy);
    remove(&out);
    let (copies, runs, durable) = (median(copies), median(runs), median(durable));
    println!("  cp -r                      {copies:8.3} s");
    println!("  cp -r, then sync           {durable:8.3} s");
    println!(
        "  optimize (flushed)         {runs:8.3} s = {:.2} × cp, {:.2} × cp and sync",
        runs / copies,
        runs / durable
    );
    println!("  peak anonymous memory      {peak:8} MiB");
    for (what, arguments) in [
        ("print", vec!["print"]),
        (
            "print --format summary",
            vec!["print", "--format", "summary"],
        ),
        ("optimize --dry-run", vec!["optimize", "--dry-run"]),
    ] {
        let times = (0..ROUNDS).map(|_| timed(milwright().args(&arguments).arg(model)).0);
        println!("  {what:26} {:8.3} s", median(times.collect()));
    }
    let times = (0..ROUNDS).map(|_| timed(milwright().arg("list")).0);
    println!("  {:26} {:8.3} s", "list", median(times.collect()));
}

fn many_operations(short: &Path, long: &Path, folder: &Path) {
    println!("10 000 and 100 000 operations, {ROUNDS} rounds in turn");
    let out = folder.join("out.mlpackage");
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (model, times) in [short, long].into_iter().zip(&mut times) {
            remove(&out);
            times.push(timed(milwright().arg("optimize").arg(model).arg("-o").arg(&out)).0);
        }
    }
    let [short, long] = times.map(median);
    println!("  10 000                     {short:8.3} s");
    println!(
        "  100 000                    {long:8.3} s = {:.1} ×",
        long / short
    );
}

fn milwright() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_milwright"));
    command.arg("--quiet");
    command
}

/// Runs a command; gives its time and its peak anonymous memory in MiB (0 where the system does not
/// tell), sampled each millisecond.
fn timed(command: &mut Command) -> (Duration, u64) {
    command.stdout(Stdio::null());
    let start = Instant::now();
    let mut child = command.spawn().expect("the command starts");
    let status_file = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    let status = loop {
        if let Some(status) = child.try_wait().expect("the command can be waited for") {
            break status;
        }
        peak = peak.max(anonymous_kib(&status_file));
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(status.success(), "{command:?} succeeds");
    (start.elapsed(), peak / 1024)
}

fn anonymous_kib(status_file: &str) -> u64 {
    fs::read_to_string(status_file)
        .ok()
        .and_then(|status| {
            let line = status.lines().find(|line| line.starts_with("RssAnon:"))?;
            line.split_whitespace().nth(1)?.parse().ok()
        })
        .unwrap_or(0)
}

/// Lets what was written reach the disk, so that it does not weigh on the next measurement.
fn settle() {
    let _ = Command::new("sync").status();
}

fn remove(path: &Path) {
    let _ = fs::remove_dir_all(path);
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}
