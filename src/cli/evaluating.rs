//! What `run`, `verify` and `bisect` share: a model opened to be run, precisions, and inputs.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, anyhow};

use super::args::PrecisionArg;
use super::output::Output;
use super::with_path;
use crate::eval::inputs::Plan;
use crate::eval::npz::{self, Arrays};
use crate::eval::script::{Script, ScriptError};
use crate::eval::{Options, Precision, Runner};
use crate::ir::NamedType;
use crate::model::Form;
use crate::source::{Missing, ModelFile};
use crate::tensor::{Tensor, elements};

impl From<PrecisionArg> for Precision {
    fn from(argument: PrecisionArg) -> Self {
        match argument {
            PrecisionArg::Fp32 => Self::Fp32,
            PrecisionArg::Fp16 => Self::Fp16,
            PrecisionArg::Ane => Self::Ane,
        }
    }
}

/// The options of the interpreter.
pub(super) fn options(precision: PrecisionArg, seed: u64) -> Options {
    Options {
        seed,
        ..Options::new(Precision::from(precision).numerics())
    }
}

/// Opens a model to run it: all its weights must be there.
pub(super) fn open(path: &Path, output: &Output) -> anyhow::Result<ModelFile> {
    let file =
        ModelFile::open(path).map_err(|error| with_path(error, path.display().to_string()))?;
    for warning in file.warnings() {
        output.warning(warning);
    }
    file.check_blobs(Missing::Refuse)
        .with_context(|| format!("cannot run {}", path.display()))?;
    Ok(file)
}

/// A runner of a model. What is wrong names the model.
pub(super) fn runner<'a>(
    file: &'a ModelFile,
    function: Option<&str>,
    options: &Options,
) -> anyhow::Result<Runner<'a>> {
    Runner::new(&file.model, file.weights(), function, options)
        .with_context(|| format!("cannot run {}", file.path().display()))
}

/// How inputs are made up for a model; with `--verbose` what is in them is said.
pub(super) fn plan(runner: &Runner<'_>, file: &ModelFile, output: &Output) -> anyhow::Result<Plan> {
    let plan = Plan::new(runner, file.weights())
        .with_context(|| format!("cannot run {}", file.path().display()))?;
    if output.is_verbose() && !runner.inputs().is_empty() {
        output.diagnostic(&plan.to_string());
    }
    Ok(plan)
}

/// The arrays of a file of inputs.
pub(super) fn arrays(path: &Path) -> anyhow::Result<Arrays> {
    Ok(npz::read(path)?)
}

/// What a file of inputs says about a model. Optional inputs that it leaves out have their default
/// value.
pub(super) fn script(
    arrays: &Arrays,
    path: &Path,
    runner: &Runner<'_>,
    output: &Output,
) -> anyhow::Result<Script> {
    let inputs: Vec<NamedType> = runner
        .inputs()
        .iter()
        .map(|input| input.named.clone())
        .collect();
    let mut script = Script::new(arrays, &inputs).map_err(|error| in_file(error, path))?;
    for unused in &script.unused {
        output.warning(&format!(
            "{}: the array `{unused}` is neither input nor output nor state of the model",
            path.display()
        ));
    }
    for input in runner.inputs() {
        for call in &mut script.calls {
            if call.inputs.contains_key(&input.named.name) {
                continue;
            }
            if let Some(tensor) = default(input) {
                call.inputs.insert(input.named.name.clone(), tensor);
            }
        }
    }
    let missing = runner.inputs().iter().find(|input| {
        let first = script.calls.first();
        first.is_none_or(|call| !call.inputs.contains_key(&input.named.name))
    });
    if let Some(missing) = missing {
        let ty = crate::eval::type_words(missing.named.ty.as_ref());
        return Err(anyhow!(
            "{}: the input `{}` ({ty}) is missing; leave --inputs out to have all inputs made up",
            path.display(),
            missing.named.name
        ));
    }
    Ok(script)
}

/// An error about a script with the file that it is from.
pub(super) fn in_file(error: ScriptError, path: &Path) -> anyhow::Error {
    anyhow::Error::from(error).context(path.display().to_string())
}

/// The value of an input that may be left out.
fn default(input: &crate::eval::Input) -> Option<Tensor> {
    let Form::Array {
        shape,
        default: Some(value),
        ..
    } = &input.feature.as_ref()?.form
    else {
        return None;
    };
    let dtype = input.named.ty.as_ref()?.as_tensor()?.dtype;
    let count = elements(shape)?;
    Some(if dtype.is_float() {
        Tensor::floats(dtype, shape.clone(), vec![*value as f32; count])
    } else {
        Tensor::ints(dtype, shape.clone(), vec![*value as i64; count])
    })
}

/// An element's place in a tensor, such as `[0, 3]`.
pub(super) fn place(index: usize, shape: &[usize]) -> String {
    let mut rest = index;
    let mut places: Vec<String> = shape
        .iter()
        .rev()
        .map(|size| {
            let size = (*size).max(1);
            let place = rest % size;
            rest /= size;
            place.to_string()
        })
        .collect();
    places.reverse();
    format!("[{}]", places.join(", "))
}

/// Writes rows in columns: numbers to the right, all else to the left.
pub(super) fn table<const COLUMNS: usize>(
    out: &mut impl std::io::Write,
    rows: &[[String; COLUMNS]],
) -> std::io::Result<()> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..COLUMNS)
        .map(|column| width(column).unwrap_or(0))
        .collect();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            if column > 0 {
                line.push_str("  ");
            }
            let is_number = rows.iter().skip(1).all(|row| {
                let cell = &row[column];
                cell.is_empty() || cell == "-" || cell.parse::<f64>().is_ok()
            });
            if is_number {
                write!(line, "{cell:>width$}").map_err(std::io::Error::other)?;
            } else {
                write!(line, "{cell:<width$}").map_err(std::io::Error::other)?;
            }
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}
