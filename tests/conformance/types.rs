//! Every package and text of the corpus against the verifier: the declared type of every result is
//! the inferred one, and everything else that is to hold of a program holds.

use std::path::{Path, PathBuf};

use milwright::pass::verify;
use milwright::source::ModelFile;

use crate::Check;

pub(crate) fn checks(corpus: &Path) -> Vec<Check> {
    let mut models = Vec::new();
    collect(corpus, &mut models);
    models
        .into_iter()
        .map(|path| {
            let place = path.strip_prefix(corpus).unwrap_or(&path);
            Check {
                id: format!("types::{}", place.display()),
                ops: String::new(),
                run: Box::new(move || run(&path)),
            }
        })
        .collect()
}

/// All models below a folder, sorted.
fn collect(folder: &Path, models: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("mlpackage" | "mlmodelc" | "mil") => models.push(path),
            _ if path.is_dir() => collect(&path, models),
            _ => {}
        }
    }
}

fn run(path: &Path) -> Result<(), String> {
    let file = ModelFile::open(path).map_err(|error| error.to_string())?;
    for part in file.model.programs() {
        if let Some(issue) = verify::issues(part.program).first() {
            return Err(issue.clone());
        }
    }
    Ok(())
}
