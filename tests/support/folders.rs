//! Where the packages to test with are, and what is in a folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The folder of the source tree.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of the packages of `tests/data`.
pub(crate) fn test_packages() -> PathBuf {
    root().join("tests/data/packages")
}

/// A package of `tests/data`, by its name without `.mlpackage`.
pub(crate) fn test_package(name: &str) -> PathBuf {
    test_packages().join(format!("{name}.mlpackage"))
}

/// The collection of packages and compiled models that `MILWRIGHT_CORPUS` names; `None`, and a word
/// about it, if there is none.
pub(crate) fn corpus() -> Option<PathBuf> {
    let corpus = std::env::var_os("MILWRIGHT_CORPUS").map(PathBuf::from);
    if corpus.is_none() {
        println!("skipped: MILWRIGHT_CORPUS is not set");
    }
    corpus
}

/// All packages below a folder, sorted.
pub(crate) fn packages_below(folder: &Path) -> Vec<PathBuf> {
    found_below(folder, &["mlpackage"])
}

/// All files and folders below a folder whose names end so, sorted. What is inside one of them is
/// not looked for.
pub(crate) fn found_below(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(folder) = pending.pop() {
        let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        for path in entries.map(|entry| entry.unwrap().path()) {
            let extension = path.extension().and_then(|own| own.to_str());
            if extension.is_some_and(|own| extensions.contains(&own)) {
                found.push(path);
            } else if path.is_dir() {
                pending.push(path);
            }
        }
    }
    found.sort();
    found
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
