//! Modules use only the layers below them, as the crate's page promises: read off the paths in their
//! sources.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The layers from top to bottom. A module may use itself and modules of lower layers, never one
/// of its own layer.
const LAYERS: [&[&str]; 12] = [
    &["cli"],
    &["preflight"],
    &["lint"],
    &["passes"],
    &["analysis"],
    &["pass", "diff"],
    &["eval"],
    &["source"],
    &["ops", "text", "model"],
    &["tensor"],
    &["ir"],
    &["package"],
];

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

#[test]
fn modules_use_only_the_layers_below_them() {
    let mut wrong = Vec::new();
    for (module, file) in sources() {
        let Some(own) = layer(&module) else {
            panic!("{}: `{module}` is in no layer", file.display());
        };
        let text = fs::read_to_string(&file).unwrap();
        for used in used_modules(&text) {
            let below = match layer(&used) {
                Some(layer) => used == module || layer > own,
                None => false,
            };
            if !below {
                wrong.push(format!("{}: {module} uses {used}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn paths_into_the_crate_are_found_in_every_spelling() {
    let used = |text: &str| used_modules(text).into_iter().collect::<Vec<_>>();
    assert_eq!(used("use crate::ir::{Graph, NodeId};"), ["ir"]);
    assert_eq!(used("use crate::{ir::{self, Graph}, ops};"), ["ir", "ops"]);
    assert_eq!(used("let x = crate::text::print(y);"), ["text"]);
    assert_eq!(used("use super::super::lint::Finding;"), ["lint"]);
    assert_eq!(used("use super::super::super::lint::Finding;"), ["lint"]);
    assert_eq!(used("use super::super::Dialect;"), [""; 0]);
    assert_eq!(used("pub(crate) fn f() {} // crate::cli"), [""; 0]);
    assert_eq!(used("//! See [`crate::ops`].\n/// [`crate::cli`]"), [""; 0]);
}

/// The modules of this crate that a source file names in paths from the crate's root. Comments do
/// not count: a page may point anywhere.
fn used_modules(source: &str) -> BTreeSet<String> {
    let code: String = source
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n");
    let mut used = BTreeSet::new();
    for (at, prefix) in code.match_indices("crate::") {
        let continues_a_name = code[..at]
            .chars()
            .next_back()
            .is_some_and(|c| c.is_alphanumeric() || c == '_');
        if !continues_a_name {
            used.extend(first_names(&code[at + prefix.len()..]));
        }
    }
    // Above the file's own module `super` leads to the root, where only modules have these names.
    for (at, prefix) in code.match_indices("super::super::") {
        let path = code[at + prefix.len()..].trim_start_matches("super::");
        used.extend(
            first_names(path)
                .into_iter()
                .filter(|name| layer(name).is_some()),
        );
    }
    used
}

/// The first name of a path, or of each path in braces.
fn first_names(path: &str) -> Vec<String> {
    let name = |text: &str| -> String {
        text.trim_start()
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect()
    };
    let Some(group) = path.strip_prefix('{') else {
        return vec![name(path)];
    };
    let mut names = vec![name(group)];
    let mut depth = 0usize;
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => names.push(name(&group[at + 1..])),
            _ => {}
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

/// All source files of the library with the top module that each belongs to. The crate's root and
/// the binary's stand above all layers.
fn sources() -> Vec<(String, PathBuf)> {
    let mut files = Vec::new();
    for entry in entries(&root().join("src")) {
        let module = entry.file_stem().unwrap().to_string_lossy().into_owned();
        if !["lib", "main"].contains(&module.as_str()) {
            files.extend(rust_files(&entry).into_iter().map(|f| (module.clone(), f)));
        }
    }
    files.extend(
        rust_files(&root().join("passes"))
            .into_iter()
            .map(|file| ("passes".to_owned(), file)),
    );
    files
}

fn rust_files(path: &Path) -> Vec<PathBuf> {
    if path.is_dir() {
        return entries(path).iter().flat_map(|p| rust_files(p)).collect();
    }
    let is_rust = path.extension().is_some_and(|extension| extension == "rs");
    is_rust.then(|| path.to_owned()).into_iter().collect()
}

fn entries(path: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths
}
