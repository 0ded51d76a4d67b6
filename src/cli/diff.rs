//! `milwright diff`: what differs between two models.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};

use super::args::{DiffArgs, DiffFormat};
use super::output::Output;
use super::with_path;
use crate::diff::{self, Blobs, Comparison, NoBlobs, Options, Side};
use crate::ir::Program;
use crate::model::{Interface, Model};
use crate::package::Weights;
use crate::source::{Kind, ModelFile};

/// Done, and the models differ.
const DIFFERENT: u8 = 1;

pub(super) fn run(args: &DiffArgs, output: &Output) -> anyhow::Result<ExitCode> {
    let before = Opened::open(&args.before, output)?;
    let after = Opened::open(&args.after, output)?;
    let options = Options {
        weights: args.weights,
    };
    let mut comparison = diff::compare(&before.sides(), &after.sides(), options);
    if let (Some(before), Some(after)) = (&before.model, &after.model) {
        let edits = diff::compare_models(before, after, &comparison.edits);
        comparison.edits.extend(edits);
    }
    write(args, &comparison, output).context("cannot write the result")?;
    notes(&comparison, output);
    if !comparison.is_same() {
        return Ok(ExitCode::from(DIFFERENT));
    }
    if args.weights && comparison.unreadable > 0 {
        bail!("the weights that cannot be read could not be compared");
    }
    Ok(ExitCode::SUCCESS)
}

fn write(args: &DiffArgs, comparison: &Comparison, output: &Output) -> std::io::Result<()> {
    let mut out = output.results();
    match args.format {
        DiffFormat::Text => diff::write_text(&mut out, comparison)?,
        DiffFormat::Json => {
            let (before, after) = (args.before.to_string_lossy(), args.after.to_string_lossy());
            diff::write_json(&mut out, (&before, &after), comparison)?;
        }
    }
    out.flush()
}

/// What was not compared, or not whole.
fn notes(comparison: &Comparison, output: &Output) {
    let weights = |count: usize| match count {
        1 => "1 weight".to_owned(),
        _ => format!("{count} weights"),
    };
    if comparison.sampled > 0 {
        output.note(&format!(
            "{} compared by samples; --weights compares every element",
            weights(comparison.sampled)
        ));
    }
    if comparison.unreadable > 0 {
        output.warning(&format!(
            "{} cannot be read on at least one side and were taken to be the same",
            weights(comparison.unreadable)
        ));
    }
}

/// A model, whatever it was opened from.
struct Opened {
    programs: Vec<(String, Program, Option<Interface>)>,
    /// Absent for text.
    model: Option<Model>,
    weights: Option<Arc<Weights>>,
}

impl Opened {
    fn open(path: &Path, output: &Output) -> anyhow::Result<Self> {
        let file = ModelFile::open(path)
            .map_err(|error| with_path(error, format!("cannot open {}", path.display())))?;
        for warning in file.warnings() {
            output.warning(warning);
        }
        let weights = Some(Arc::clone(file.weights()));
        // What a text's description would be follows from its program.
        let is_text = matches!(file.kind(), Kind::Compiled | Kind::Text);
        let programs = file
            .model
            .programs()
            .into_iter()
            .map(|part| {
                let interface = (!is_text).then_some(part.interface);
                (part.stage, part.program.clone(), interface)
            })
            .collect();
        Ok(Self {
            programs,
            model: (!is_text).then_some(file.model),
            weights,
        })
    }

    fn sides(&self) -> Vec<Side<'_>> {
        let blobs: &dyn Blobs = match &self.weights {
            Some(weights) => weights.as_ref(),
            None => &NoBlobs,
        };
        self.programs
            .iter()
            .map(|(stage, program, interface)| Side {
                stage,
                program,
                blobs,
                interface: interface.as_ref(),
            })
            .collect()
    }
}
