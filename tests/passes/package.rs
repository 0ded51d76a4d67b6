//! A case's program in a package: written, opened again, and compared.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use milwright::ir::{BlobRef, Content, NewBlob, Program, Value};
use milwright::package::SaveOptions;
use milwright::package::weights::{self, BlobDType, write_blobs};
use milwright::pass::Blobs;
use milwright::source::{Missing, ModelFile};
use milwright::text::diff;

use crate::case::Case;
use crate::check::print;

/// The package whose program is replaced; it has no weights of its own.
const TEMPLATE: &str = "tests/data/packages/no_weights_dir.mlpackage";

/// What `@model_path` stands for, from the package's folder.
const MODEL_FOLDER: &str = "Data/com.apple.CoreML";

/// A package with the program, and with the case's weight data, gives both back unchanged. Weights
/// may move in their file, so their data is compared.
///
/// # Errors
/// What is different.
pub(crate) fn survives(case: &Case, program: &Program, text: &str) -> Result<(), String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let (from, out) = (
        folder.path().join("in.mlpackage"),
        folder.path().join("out.mlpackage"),
    );
    prepare(case, program, &from)?;
    let failed = |error| format!("no package can be written of it: {error}");
    let mut file = ModelFile::open(&from).map_err(|error| error.to_string())?;
    for place in file.model.programs_mut() {
        *place = program.clone();
    }
    file.save(
        &out,
        Missing::Allow,
        &SaveOptions::default(),
        &mut |_, _| {},
    )
    .map_err(failed)?;

    let mut read = ModelFile::open(&out).map_err(|error| error.to_string())?;
    let weights = Arc::clone(read.weights());
    let Some(decoded) = read.model.programs_mut().pop() else {
        return Err("the package has no program".to_owned());
    };
    let has_data = program_with_data(program, &case.blobs);
    let expected = match &has_data {
        Some(program) => print(case, program),
        None => text.to_owned(),
    };
    let again = match program_with_data(decoded, weights.as_ref()) {
        Some(program) => print(case, &program),
        None => print(case, decoded),
    };
    if again != expected {
        let change = diff::changed_lines(&expected, &again, 1);
        return Err(format!("the package holds another program:\n{change}"));
    }
    Ok(())
}

/// The program with the data itself in place of each reference whose data is at hand; `None` if there
/// is no such reference.
fn program_with_data(program: &Program, blobs: &dyn Blobs) -> Option<Program> {
    let mut with_data = program.clone();
    let mut any = false;
    with_data.for_each_value_mut(&mut |_, _, value| {
        if let Some(new) = data_of(value, blobs) {
            value.content = Content::New(new);
            any = true;
        }
    });
    any.then_some(with_data)
}

fn data_of(value: &Value, blobs: &dyn Blobs) -> Option<NewBlob> {
    let tensor = value.tensor_type()?;
    Some(NewBlob {
        dtype: tensor.dtype,
        elements: tensor.elements()?,
        bytes: blobs.bytes(value.blob()?)?.into(),
    })
}

/// Makes the template's copy, with weight files that hold the case's data where the case says.
fn prepare(case: &Case, program: &Program, package: &Path) -> Result<(), String> {
    let template = Path::new(env!("CARGO_MANIFEST_DIR")).join(TEMPLATE);
    let model = Path::new(MODEL_FOLDER).join("model.mlmodel");
    let text = |error: std::io::Error| error.to_string();
    fs::create_dir_all(package.join(MODEL_FOLDER)).map_err(text)?;
    for file in [Path::new("Manifest.json"), &model] {
        fs::copy(template.join(file), package.join(file)).map_err(text)?;
    }
    let mut files: BTreeMap<&str, Vec<(u64, weights::NewBlob)>> = BTreeMap::new();
    for (blob, bytes) in case.blobs.all() {
        let stored = stored_blob(case, program, blob, bytes)?;
        files
            .entry(&blob.file)
            .or_default()
            .push((blob.offset, stored));
    }
    for (name, blobs) in files {
        let Some(name) = name.strip_prefix("@model_path/") else {
            return Err(format!("`{name}` does not begin with @model_path"));
        };
        let path = package.join(MODEL_FOLDER).join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(text)?;
        }
        let (offsets, blobs): (Vec<u64>, Vec<weights::NewBlob>) = blobs.into_iter().unzip();
        let mut file = fs::File::create_new(path).map_err(text)?;
        let written = write_blobs(&mut file, &blobs).map_err(text)?;
        if written != offsets {
            return Err(format!(
                "the data of {name} is at {offsets:?}, in a file it is at {written:?}"
            ));
        }
    }
    Ok(())
}

/// Data as a weight file stores it: of the type of a value of the case that refers to it.
fn stored_blob(
    case: &Case,
    program: &Program,
    blob: &BlobRef,
    bytes: &[u8],
) -> Result<weights::NewBlob, String> {
    let mut found = None;
    for program in [&case.program, program] {
        program.for_each_value(&mut |value| {
            if value.blob() == Some(blob) {
                found = found.take().or_else(|| value.tensor_type().cloned());
            }
        });
    }
    let tensor = found.ok_or_else(|| format!("nothing refers to the data at {}", blob.offset))?;
    let dtype = BlobDType::ALL
        .into_iter()
        .find(|dtype| dtype.word() == tensor.dtype.word())
        .ok_or_else(|| format!("a weight file holds no {}", tensor.dtype.word()))?;
    Ok(weights::NewBlob {
        file: blob.file.clone(),
        dtype,
        elements: tensor.elements().unwrap_or(0),
        bytes: bytes.into(),
    })
}
