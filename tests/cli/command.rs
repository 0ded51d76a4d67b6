//! Runs the command, and knows where packages are.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use assert_cmd::Command;
use tempfile::TempDir;

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

/// A package of `tests/data`.
pub(crate) fn data(name: &str) -> PathBuf {
    data_folder().join(format!("{name}.mlpackage"))
}

/// The folder of the packages of `tests/data`.
pub(crate) fn data_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/packages")
}

/// All packages of `tests/data` that hold a program.
pub(crate) fn data_packages() -> Vec<PathBuf> {
    let mut found = packages_below(&data_folder());
    found.retain(|path| !path.ends_with("neural_network.mlpackage"));
    assert!(found.len() > 20);
    found
}

/// All packages below some folders of the collection; `None`, and a word about it, if there is no
/// collection.
pub(crate) fn collection(folders: &[&str]) -> Option<Vec<PathBuf>> {
    let Some(root) = std::env::var_os("MILWRIGHT_CORPUS") else {
        println!("skipped: MILWRIGHT_CORPUS is not set");
        return None;
    };
    let root = PathBuf::from(root);
    let mut found = Vec::new();
    for folder in folders {
        let packages = packages_below(&root.join(folder));
        assert!(packages.len() > 10, "{folder} is there");
        found.extend(packages);
    }
    Some(found)
}

/// The packages below a folder, sorted.
fn packages_below(folder: &Path) -> Vec<PathBuf> {
    let mut pending = vec![folder.to_owned()];
    let mut found = Vec::new();
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|ending| ending == "mlpackage") {
                found.push(path);
            } else if path.is_dir() {
                pending.push(path);
            }
        }
    }
    found.sort();
    found
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
        copy_tree(&data(name), &copy);
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

/// Copies a folder with all that is below it.
pub(crate) fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_tree(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

/// Every file below a folder with its bytes, by its path inside; of a file, the file itself.
pub(crate) fn content(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        } else {
            let name = path.strip_prefix(root).unwrap().to_owned();
            found.insert(name, fs::read(&path).unwrap());
        }
    }
    found
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
