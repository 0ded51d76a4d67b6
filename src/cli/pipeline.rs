//! The pipeline that arguments ask for, and how it runs over a model.

use anyhow::bail;

use super::args::PipelineArgs;
use super::explain;
use crate::model::Model;
use crate::package::Weights;
use crate::pass::verify::Known;
use crate::pass::{Manager, Observer, Outcome, Pipeline, Settings, nearest, options};
use crate::passes;

impl PipelineArgs {
    /// Whether any pass is asked for.
    pub(super) fn is_given(&self) -> bool {
        self.pipeline.is_some() || self.passes.is_some()
    }

    /// The pipeline: `default` if none is named and no passes are listed.
    ///
    /// # Errors
    ///
    /// Names of passes and options that there are not, and options of the wrong type.
    pub(super) fn pipeline(&self) -> anyhow::Result<Pipeline> {
        let mut pipeline = match (&self.pipeline, &self.passes) {
            (Some(text), _) => Pipeline::parse(text, passes::ALL)?,
            (None, Some(_)) => Pipeline::default(),
            (None, None) => Pipeline::parse("default", passes::ALL)?,
        };
        if let Some(list) = &self.passes {
            pipeline.append(Pipeline::parse(list, passes::ALL)?);
        }
        for setting in &self.set {
            let parts = setting
                .split_once('=')
                .and_then(|(name, value)| Some((name.split_once('.')?, value)));
            let Some(((id, option), value)) = parts else {
                bail!("`--set {setting}` is not of the form PASS.OPTION=VALUE");
            };
            let known = explain::find(id)?.options();
            if !known.contains_key(option) {
                match nearest(option, known.keys().map(String::as_str)) {
                    Some(name) => {
                        bail!("pass `{id}` has no option `{option}`; did you mean `{name}`?")
                    }
                    None => {
                        bail!("pass `{id}` has no option `{option}`; see `milwright explain {id}`")
                    }
                }
            }
            if !pipeline.set(id, option, &options::parse_value(value)) {
                bail!("`--set {setting}`: the pipeline has no pass `{id}`");
            }
        }
        for id in &self.skip {
            explain::find(id)?;
            pipeline.skip(id);
        }
        // Options of the wrong type are an error before anything is read.
        pipeline.check_options(passes::ALL)?;
        Ok(pipeline)
    }
}

/// Runs a pipeline over all programs of a model. `issues` are what did not hold of each before.
///
/// # Errors
///
/// Defects of passes: a program that does not verify, or an interface that is not the described one.
pub(super) fn apply(
    pipeline: &Pipeline,
    settings: Settings,
    model: &mut Model,
    weights: &Weights,
    issues: &[Known],
    observer: &mut dyn Observer,
) -> anyhow::Result<Outcome> {
    let interface_before = model.interface_problems();
    let mut manager = Manager::new(passes::ALL, settings);
    let mut total = Outcome::default();
    for (part, known) in model.parts_mut().into_iter().zip(issues) {
        let outcome = manager.run_part(pipeline, part, known, weights, observer)?;
        merge(&mut total, outcome);
    }
    for problem in model.interface_problems() {
        if !interface_before.contains(&problem) {
            bail!("internal error: a pass broke the interface: {problem}");
        }
    }
    Ok(total)
}

/// Adds what happened to one program to what happened to those before it.
fn merge(total: &mut Outcome, outcome: Outcome) {
    for run in outcome.passes {
        match total.passes.iter_mut().find(|known| known.id == run.id) {
            Some(known) => {
                known.rewrites += run.rewrites;
                known.missed += run.missed;
                known.time += run.time;
            }
            None => total.passes.push(run),
        }
    }
    total.remarks.extend(outcome.remarks);
    for note in outcome.notes {
        if !total.notes.contains(&note) {
            total.notes.push(note);
        }
    }
    total.stopped |= outcome.stopped;
}
