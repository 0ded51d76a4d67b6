//! Writing that fails or is killed half-way, in a process of its own.
//!
//! The test binary runs itself again with an environment variable that says what the child saves
//! where; the parent then looks at what is left.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::Instant;

use milwright::package::{Package, SaveOptions, WeightsPlan};

use crate::sample::{MODEL_BYTES, Sample, content, raw, weight_file};

const INPUT: &str = "MILWRIGHT_TEST_SAVE_INPUT";
const OUTPUT: &str = "MILWRIGHT_TEST_SAVE_OUTPUT";
/// Bytes of progress after which the child kills itself.
const KILL_AFTER: &str = "MILWRIGHT_TEST_SAVE_KILL_AFTER";

/// What the child does; without the variables it is a test that does nothing.
#[test]
fn child_that_saves() {
    let (Some(input), Some(output)) = (env::var_os(INPUT), env::var_os(OUTPUT)) else {
        return;
    };
    let kill_after = env::var(KILL_AFTER).map_or(u64::MAX, |text| text.parse().unwrap());
    let mut written = 0;
    let mut progress = |bytes| {
        written += bytes;
        if written > kill_after {
            let own = std::process::id().to_string();
            Command::new("kill").args(["-KILL", &own]).status().unwrap();
        }
    };
    let package = Package::open(Path::new(&input)).unwrap();
    let saved = package.save(
        Path::new(&output),
        b"\x08\x09new",
        &WeightsPlan::default(),
        &SaveOptions { force: true },
        &mut progress,
    );
    if let Err(error) = saved {
        eprintln!("refused: {error}");
        std::process::exit(2);
    }
}

/// Runs the child in a shell after some commands.
fn child(before: &str, input: &Path, output: &Path, kill_after: Option<u64>) -> Output {
    let mut command = Command::new("bash");
    command
        .args([
            OsStr::new("-c"),
            OsStr::new(&format!("{before} exec \"$0\" \"$@\"")),
        ])
        .arg(env::current_exe().unwrap())
        .args(["--exact", "failures::child_that_saves", "--nocapture"])
        .env(INPUT, input)
        .env(OUTPUT, output);
    if let Some(bytes) = kill_after {
        command.env(KILL_AFTER, bytes.to_string());
    }
    command.output().unwrap()
}

fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(9)
}

fn sample() -> Sample {
    let sample = Sample::with_weights(&weight_file(&[raw(4, &vec![7; 400_000])]));
    sample.write("zz.txt", "last");
    sample
}

fn save(sample: &Sample, out: &Path) {
    let plan = WeightsPlan::default();
    sample
        .open()
        .save(
            out,
            MODEL_BYTES,
            &plan,
            &SaveOptions::default(),
            &mut |_| {},
        )
        .unwrap();
}

#[test]
fn a_full_disk_leaves_neither_output_nor_temporary_files() {
    let sample = sample();
    for name in ["out.mlpackage", "out.zip"] {
        let out = sample.beside(name);
        for blocks in [0, 1, 2, 100, 390] {
            // No file may grow beyond so many blocks of 1024 bytes; the signal for it is ignored,
            // so that writing fails as on a full disk.
            let limit = format!("trap '' XFSZ; ulimit -f {blocks};");
            let output = child(&limit, &sample.path, &out, None);
            assert_eq!(output.status.code(), Some(2), "{blocks}: {output:?}");
            let message = String::from_utf8(output.stderr).unwrap();
            assert!(message.contains("refused: "), "{message}");
            assert!(message.contains("nothing was left behind"), "{message}");
            assert_eq!(message.trim().lines().count(), 1, "{message}");
            assert_eq!(sample.neighbours(), ["in.mlpackage"]);
        }
        // And an older output stays.
        save(&sample, &out);
        let before = snapshot(&out);
        let output = child("trap '' XFSZ; ulimit -f 100;", &sample.path, &out, None);
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(snapshot(&out), before);
        assert_eq!(sample.neighbours(), ["in.mlpackage", name]);
        if out.is_dir() {
            fs::remove_dir_all(&out).unwrap();
        } else {
            fs::remove_file(&out).unwrap();
        }
    }
}

#[test]
fn a_kill_in_the_middle_of_writing_leaves_the_old_output_whole() {
    let sample = sample();
    for name in ["out.mlpackage", "out.zip"] {
        let out = sample.beside(name);
        save(&sample, &out);
        let before = snapshot(&out);
        for bytes in [0, 10, 1000, 400_000] {
            let output = child("", &sample.path, &out, Some(bytes));
            assert!(was_killed(output.status), "{bytes}: {output:?}");
            assert_eq!(snapshot(&out), before, "{bytes}");
        }
        // What the killed one left is hidden, and does not stop the next.
        let output = child("", &sample.path, &out, None);
        assert!(output.status.success(), "{output:?}");
        assert_ne!(snapshot(&out), before);
        assert!(
            sample
                .neighbours()
                .iter()
                .all(|other| other.starts_with(".milwright-") || !other.starts_with('.'))
        );
    }
}

#[test]
fn a_kill_at_any_instant_leaves_the_old_output_or_the_new_one_whole() {
    let sample = sample();
    let out = sample.beside("out.mlpackage");
    save(&sample, &out);
    let old = snapshot(&out);
    let other = sample.beside("other.mlpackage");
    let start = Instant::now();
    assert!(child("", &sample.path, &other, None).status.success());
    let whole = start.elapsed();
    let new = snapshot(&other);
    assert_ne!(old, new);
    let mut seen = [0, 0];
    for step in 0..40 {
        let delay = whole * step / 32;
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "failures::child_that_saves"])
            .env(INPUT, &sample.path)
            .env(OUTPUT, &out)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(delay);
        child.kill().unwrap();
        child.wait().unwrap();
        let found = snapshot(&out);
        assert!(found == old || found == new, "after {delay:?}");
        seen[usize::from(found == new)] += 1;
        fs::remove_dir_all(&out).unwrap();
        save(&sample, &out);
    }
    println!("old {}, new {}", seen[0], seen[1]);
}

/// All of an output's bytes, be it a folder or a file.
fn snapshot(out: &Path) -> Vec<(std::path::PathBuf, Option<Vec<u8>>)> {
    if out.is_dir() {
        content(out).into_iter().collect()
    } else {
        vec![(out.to_owned(), Some(fs::read(out).unwrap()))]
    }
}
