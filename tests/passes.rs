//! Runs every case of every pass: one test for each file `passes/*/*/cases/*.mil`, named
//! `<pass>::<case>`.
//!
//! A case is a program as MIL text. Comments in its first lines say how it is meant:
//!
//! - `// options: name=value, …`: options of the pass;
//! - `// silent`: the pass must not even report a near match;
//! - `// expect-issue: TEXT`: the verifier finds something that contains this text, before and
//!   after, and nothing but what such lines name;
//! - `// not evaluated: REASON`: the interpreter cannot run it on any sample of inputs;
//! - `// in fp16: REASON`: a pass that only changes rounding is held to it in fp16 mode, as the
//!   program rounds on purpose;
//! - `// blob FILE OFFSET: 00 3c …`: data of a weight file, in hexadecimal;
//! - `// stored FILE: missing`, or `pointer`, or `// stored FILE OFFSET: fp16 4`: what a weight file is
//!   that checks are to look at, without its data;
//! - `// described FUNCTION inputs: x fp16 [1, 4]; …` (or `outputs`, `states`), or `// described
//!   FUNCTION: nothing`: what the model's description says other than the program;
//! - `// measured FUNCTION: VALUE = PEAK, …`: the greatest magnitudes that a calibration has seen;
//! - `// samples: N`: so many samples of inputs to run the program on, floats between −2 and 2 and
//!   integers from 0 to 2, by a fixed seed for each.
//!
//! A case named `no_…` must stay as it is, with a near match that says why unless it is silent;
//! every other case must change. What the pass says and does is kept in
//! `snapshots/<pass>/<case>.snap`; `cargo insta test --review --test passes` shows each that differs
//! and asks, `INSTA_UPDATE=always cargo test --test passes` writes them all anew.
//!
//! A case of a check, which rewrites nothing, has findings exactly if it is not named `no_…`; they are
//! in its snapshot. It has no near matches, and it is not evaluated. The findings of a pass that has
//! rules stand above its remarks.
//!
//! A pass has at least twelve cases, a check six, a draft one of either kind.

#[path = "passes/broken.rs"]
mod broken;
#[path = "passes/case.rs"]
mod case;
#[path = "passes/check.rs"]
mod check;
#[path = "passes/evaluate.rs"]
mod evaluate;
#[path = "passes/package.rs"]
mod package;
#[path = "passes/states.rs"]
mod states;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use milwright::passes;

/// Every pass but a draft has at least this many cases.
const FEWEST: usize = 12;

/// Every check but a draft has at least this many cases: there is no rewrite that they must hold.
const FEWEST_OF_A_CHECK: usize = 6;

/// The folder of snapshots, if it is another than this tree's; for the harness's tests of itself.
const SNAPSHOTS: &str = "MILWRIGHT_SNAPSHOTS";

/// The folder of snapshots: one folder a pass, one file a case.
fn snapshots() -> PathBuf {
    std::env::var_os(SNAPSHOTS).map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("snapshots"),
        PathBuf::from,
    )
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut trials = Vec::new();
    let mut known = Vec::new();
    for pass in passes::ALL {
        let meta = pass.meta();
        let folder = root
            .join("passes")
            .join(meta.family.name())
            .join(meta.id)
            .join("cases");
        let files = files(&folder, "mil");
        let negative = files.iter().filter(|file| case::is_negative(&stem(file)));
        let counts = [files.len() - negative.clone().count(), negative.count()];
        for file in files {
            let name = stem(&file);
            known.push(format!("{}/{name}", meta.id));
            let snapshots = snapshots().join(meta.id);
            let title = format!("{}::{name}", meta.id);
            trials.push(Trial::test(title, move || run(&file, &snapshots, meta.id)));
        }
        let title = format!("{}::has_enough_cases", meta.id);
        let fewest = match (pass.is_draft(), meta.is_check()) {
            (true, _) => 0,
            (false, true) => FEWEST_OF_A_CHECK,
            (false, false) => FEWEST,
        };
        trials.push(Trial::test(title, move || Ok(enough(counts, fewest)?)));
    }
    trials.push(Trial::test("every_snapshot_has_a_case", move || {
        Ok(no_orphans(&snapshots(), &known)?)
    }));
    trials.extend(broken::trials());
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Checks one case and compares what the pass says and does with the snapshot.
fn run(file: &Path, snapshots: &Path, pass: &str) -> Result<(), Failed> {
    let source = fs::read_to_string(file)?;
    let case = case::Case::read(&source, &stem(file), pass)?;
    let report = check::check(&case, passes::ALL)?;
    let mut settings = insta::Settings::new();
    settings.set_snapshot_path(snapshots);
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.set_input_file(file);
    settings.bind(|| insta::assert_snapshot!(stem(file), report));
    Ok(())
}

/// Whether a pass has enough cases, of those that must match and those that must not.
fn enough(counts: [usize; 2], fewest: usize) -> Result<(), String> {
    let [positive, negative] = counts;
    if positive == 0 || negative == 0 {
        return Err(format!(
            "{positive} cases that match, {negative} that do not"
        ));
    }
    let count = positive + negative;
    if count < fewest {
        return Err(format!("only {count} cases; it needs at least {fewest}"));
    }
    Ok(())
}

/// Snapshots of passes without a case: what is left when a case is renamed or removed.
fn no_orphans(snapshots: &Path, known: &[String]) -> Result<(), String> {
    let mut orphans = Vec::new();
    for pass in passes::ALL {
        let id = pass.meta().id;
        for file in files(&snapshots.join(id), "snap") {
            if !known.contains(&format!("{id}/{}", stem(&file))) {
                orphans.push(file.display().to_string());
            }
        }
    }
    if orphans.is_empty() {
        return Ok(());
    }
    Err(format!(
        "no case has these snapshots: {}",
        orphans.join(", ")
    ))
}

/// The files with this extension in a folder, sorted; none if there is no such folder.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|own| own == extension))
        .collect();
    files.sort();
    files
}

fn stem(file: &Path) -> String {
    file.file_stem()
        .map(|stem| stem.to_string_lossy().into_owned())
        .unwrap_or_default()
}
