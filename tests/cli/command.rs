//! Runs the command, and knows where packages are.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use assert_cmd::Command;
use tempfile::TempDir;

use crate::support::folders::{copy_tree, corpus, packages_below, test_package, test_packages};

/// The root model's path that coremltools uses.
pub(crate) const MODEL: &str = "Data/com.apple.CoreML/model.mlmodel";

/// The weight file's path that coremltools uses.
pub(crate) const WEIGHTS: &str = "Data/com.apple.CoreML/weights/weight.bin";

/// The arguments of a command: texts and paths in one list.
macro_rules! args {
    ($($argument:expr),* $(,)?) => {
        vec![$(std::ffi::OsStr::new(&$argument).to_owned()),*]
    };
}
pub(crate) use args;

/// What one run left.
#[derive(Debug)]
pub(crate) struct Ran {
    /// Exit status; −1 if a signal ended it.
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The command, not yet run.
pub(crate) fn milwright() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_milwright"));
    command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE");
    command
}

/// Runs the command with these arguments.
pub(crate) fn run<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Ran {
    let output = milwright().args(arguments).output().unwrap();
    Ran {
        status: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs the command, which must end well; gives what it left.
pub(crate) fn done<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Ran {
    let ran = run(arguments);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    ran
}

/// Runs the command, which must refuse: status 2, nothing on standard output, and one line of error
/// that holds all these words. Gives the line.
pub(crate) fn refused<S: AsRef<OsStr>>(
    arguments: impl IntoIterator<Item = S>,
    words: &[&str],
) -> String {
    let ran = run(arguments);
    assert_eq!(ran.status, 2, "{ran:?}");
    assert_eq!(ran.stdout, "", "{ran:?}");
    let errors: Vec<&str> = ran
        .stderr
        .lines()
        .filter(|line| !line.starts_with("warning: "))
        .collect();
    let [line] = errors.as_slice() else {
        panic!("not one line: {}", ran.stderr);
    };
    assert!(line.starts_with("error: "), "{line}");
    assert!(!line.contains("panicked"), "{line}");
    for word in words {
        assert!(line.contains(word), "{word:?} is not in: {line}");
    }
    (*line).to_owned()
}

/// All packages of `tests/data` that hold a program.
pub(crate) fn data_packages() -> Vec<PathBuf> {
    let mut found = packages_below(&test_packages());
    found.retain(|path| !path.ends_with("neural_network.mlpackage"));
    assert!(found.len() > 20);
    found
}

/// All packages below some folders of the collection; `None`, and a word about it, if there is no
/// collection.
pub(crate) fn collection(folders: &[&str]) -> Option<Vec<PathBuf>> {
    let root = corpus()?;
    let mut found = Vec::new();
    for folder in folders {
        let packages = packages_below(&root.join(folder));
        assert!(packages.len() > 10, "{folder} is there");
        found.extend(packages);
    }
    Some(found)
}

/// Three packages of the collection define a value twice, which no program may.
pub(crate) fn defines_a_value_twice(package: &Path) -> bool {
    [
        "058_dedup_op_and_var_names/before.mlpackage",
        "059_dedup_op_and_var_names/before.mlpackage",
        "218_prefer_state_in_downstream/after.mlpackage",
    ]
    .iter()
    .any(|ending| package.ends_with(ending))
}

/// A temporary folder for outputs and broken packages.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A copy of a package of `tests/data`, at `in.mlpackage`.
    pub(crate) fn with_copy_of(name: &str) -> (Self, PathBuf) {
        let folder = Self::new();
        let copy = folder.join("in.mlpackage");
        copy_tree(&test_package(name), &copy);
        (folder, copy)
    }

    /// Names of all that is in the folder.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// `optimize` of the package at `in.mlpackage` is refused with these words, and writes nothing.
    pub(crate) fn refuses(&self, words: &[&str]) -> String {
        self.refuses_input("in.mlpackage", words)
    }

    /// The same for another name of the input.
    pub(crate) fn refuses_input(&self, name: &str, words: &[&str]) -> String {
        let before = self.names();
        let (input, out) = (self.join(name), self.join("out.mlpackage"));
        let line = refused(args!["optimize", input, "-o", out,], words);
        let shown = input.display().to_string();
        assert!(line.contains(&shown), "{shown} is not in: {line}");
        assert_eq!(line.matches(&shown).count(), 1, "said twice: {line}");
        assert_eq!(self.names(), before);
        line
    }
}

/// Compares a text with the snapshot of this name.
pub(crate) fn snapshot(name: &str, text: &str) {
    insta::with_settings!({
        snapshot_path => "../../snapshots/cli",
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, {
        insta::assert_snapshot!(name, text);
    });
}

/// Calls `work` for all items, on as many threads as there are processors.
pub(crate) fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(usize, &T) -> R + Sync,
) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let mut results: Vec<(usize, R)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut done = Vec::new();
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some(item) = items.get(index) else {
                            return done;
                        };
                        done.push((index, work(index, item)));
                    }
                })
            })
            .collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap())
            .collect()
    });
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}
