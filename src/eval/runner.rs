//! A model ready to be called: one function of its program, or the programs of a pipeline in turn.
//!
//! The stages of a pipeline find their inputs by name: among the pipeline's own inputs, and the
//! outputs of the stages before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::arrays::array;
use super::error::RunError;
use super::interpreter::{Interpreter, Observer, Options, States};
use super::script::convert;
use crate::ir::types::ValueType;
use crate::ir::{NamedType, Program};
use crate::model::{Feature, FunctionInterface, Model, Part};
use crate::ops::Datum;
use crate::package::Weights;
use crate::tensor::Tensor;

/// Why a model cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// A function of a pipeline was asked for.
    #[error("it is a pipeline, which has no functions to choose from; leave `{0}` out")]
    FunctionOfPipeline(String),
    /// A stage of a pipeline is no program.
    #[error(
        "it is a pipeline whose {stage} is a `{kind}` model; only pipelines of ML Programs can run"
    )]
    ForeignStage {
        /// Which stage.
        stage: String,
        /// The kind of model.
        kind: &'static str,
    },
    /// Nothing gives an input of a stage.
    #[error(
        "the pipeline's {stage} wants `{input}`, which is neither an input of the pipeline nor an \
         output of a stage before; there are {}", known.join(", ")
    )]
    StageInput {
        /// Which stage.
        stage: String,
        /// The input.
        input: String,
        /// What there is.
        known: Vec<String>,
    },
    /// No stage gives an output of the pipeline.
    #[error("the pipeline's output `{0}` is an output of none of its stages")]
    PipelineOutput(String),
    /// What one stage gives does not fit the next.
    #[error("the pipeline's {stage} cannot take `{input}`: {reason}")]
    Hand {
        /// Which stage.
        stage: String,
        /// The input.
        input: String,
        /// Why.
        reason: String,
    },
    /// The run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The run of a stage of a pipeline failed.
    #[error("{stage}: {source}")]
    Stage {
        /// Which stage.
        stage: String,
        /// Why.
        source: RunError,
    },
}

/// An input that a caller gives.
#[derive(Clone, Debug)]
pub struct Input {
    /// Name and type as the program declares them.
    pub named: NamedType,
    /// What the model's description says of it.
    pub feature: Option<Feature>,
}

/// A function of one program, as a runner has it.
pub struct Stage<'a> {
    /// Which stage of a pipeline; empty if there is only one program.
    pub name: String,
    /// The program.
    pub program: &'a Program,
    /// The function.
    pub function: String,
    interpreter: Interpreter<'a>,
    states: States,
}

/// A model ready to be called. Its states live as long as it does.
pub struct Runner<'a> {
    stages: Vec<Stage<'a>>,
    inputs: Vec<Input>,
    outputs: Vec<String>,
}

impl<'a> Runner<'a> {
    /// A runner of one function, by default the one that the description names; all states are
    /// zero.
    ///
    /// # Errors
    ///
    /// If there is no such function, or the model is a pipeline whose stages do not fit together.
    pub fn new(
        model: &'a Model,
        weights: &Arc<Weights>,
        function: Option<&str>,
        options: &Options,
    ) -> Result<Self, RunnerError> {
        if let Some((stage, kind)) = model.foreign_stage() {
            return Err(RunnerError::ForeignStage { stage, kind });
        }
        let parts = model.programs();
        let is_pipeline = parts.iter().any(|part| !part.stage.is_empty());
        if let (true, Some(function)) = (is_pipeline, function) {
            return Err(RunnerError::FunctionOfPipeline(function.to_owned()));
        }
        let stages = parts
            .iter()
            .map(|part| Stage::new(part, weights, function, options))
            .collect::<Result<Vec<_>, _>>()?;
        if is_pipeline {
            return Self::pipeline(model, &parts, stages);
        }
        let described = match (parts.first(), stages.first()) {
            (Some(part), Some(stage)) => part.interface.function(&stage.function).cloned(),
            _ => None,
        };
        let described = described.unwrap_or_default();
        let inputs = stages
            .iter()
            .flat_map(Stage::inputs)
            .map(|named| Input {
                named: named.clone(),
                feature: find(&described.inputs, &named.name),
            })
            .collect();
        let outputs = match stages.first() {
            Some(stage) => in_order(stage.outputs()?, &described),
            None => Vec::new(),
        };
        Ok(Self {
            stages,
            inputs,
            outputs,
        })
    }

    fn pipeline(
        model: &Model,
        parts: &[Part<'_>],
        stages: Vec<Stage<'a>>,
    ) -> Result<Self, RunnerError> {
        let interface = model.interface();
        let outer = interface.functions.first().cloned().unwrap_or_default();
        let mut inputs: Vec<Input> = Vec::new();
        let mut made: BTreeSet<String> = BTreeSet::new();
        for (part, stage) in parts.iter().zip(&stages) {
            let inner = part.interface.function(&stage.function);
            for named in stage.inputs() {
                let known = inputs.iter().any(|input| input.named.name == named.name);
                if known || made.contains(&named.name) {
                    continue;
                }
                let Some(feature) = find(&outer.inputs, &named.name) else {
                    let given = outer.inputs.iter().map(|feature| feature.name.clone());
                    return Err(RunnerError::StageInput {
                        stage: stage.name.clone(),
                        input: named.name.clone(),
                        known: given.chain(made).collect(),
                    });
                };
                inputs.push(Input {
                    named: named.clone(),
                    // The pipeline's description is for people, the stage's has the shapes.
                    feature: inner
                        .and_then(|inner| find(&inner.inputs, &named.name))
                        .or(Some(feature)),
                });
            }
            made.extend(stage.outputs()?);
        }
        let outputs: Vec<String> = outer.outputs.iter().map(|o| o.name.clone()).collect();
        if let Some(missing) = outputs.iter().find(|output| !made.contains(*output)) {
            return Err(RunnerError::PipelineOutput(missing.clone()));
        }
        Ok(Self {
            stages,
            inputs,
            outputs,
        })
    }

    /// The inputs that a call wants, states aside.
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// The outputs of a call in the order of the description.
    pub fn outputs(&self) -> &[String] {
        &self.outputs
    }

    /// The functions that run, one for each stage.
    pub fn stages(&self) -> &[Stage<'a>] {
        &self.stages
    }

    /// True if the model has states, so that a call may depend on those before.
    pub fn has_states(&self) -> bool {
        self.stages.iter().any(|stage| !stage.states.is_empty())
    }

    /// What the states hold, by name.
    pub fn states(&self) -> BTreeMap<String, Tensor> {
        let states = self.stages.iter().flat_map(|stage| &stage.states);
        states
            .map(|(name, cell)| (name.clone(), cell.read()))
            .collect()
    }

    /// Makes all states zero again.
    pub fn reset(&mut self) -> Result<(), RunnerError> {
        for stage in &mut self.stages {
            stage.states = stage.interpreter.zero_states(&stage.function)?;
        }
        Ok(())
    }

    /// Runs the model once; the outputs are in the order of the description.
    pub fn call(
        &self,
        inputs: &BTreeMap<String, Tensor>,
        observer: &mut dyn Observer,
    ) -> Result<Vec<(String, Datum)>, RunnerError> {
        let mut made: BTreeMap<String, Datum> = BTreeMap::new();
        let alone = self.stages.len() == 1;
        for stage in &self.stages {
            let results = if alone {
                stage.run(inputs, observer)?
            } else {
                let inputs = stage.gather(inputs, &made)?;
                stage
                    .run(&inputs, observer)
                    .map_err(|source| RunnerError::Stage {
                        stage: stage.name.clone(),
                        source,
                    })?
            };
            made.extend(results);
        }
        let taken = self.outputs.iter().filter_map(|name| {
            let datum = made.remove(name)?;
            Some((name.clone(), datum))
        });
        Ok(taken.collect())
    }
}

impl<'a> Stage<'a> {
    fn new(
        part: &Part<'a>,
        weights: &Arc<Weights>,
        function: Option<&str>,
        options: &Options,
    ) -> Result<Self, RunnerError> {
        let interpreter = Interpreter::new(part.program, Arc::clone(weights), options.clone());
        let function = match function {
            Some(function) => function.to_owned(),
            None => default_function(part),
        };
        let states = interpreter.zero_states(&function)?;
        Ok(Self {
            name: part.stage.clone(),
            program: part.program,
            function,
            interpreter,
            states,
        })
    }

    /// The interpreter.
    pub fn interpreter(&self) -> &Interpreter<'a> {
        &self.interpreter
    }

    /// The inputs of the function that are no states.
    fn inputs(&self) -> impl Iterator<Item = &'a NamedType> + use<'a> {
        let function = self.program.functions.get(&self.function);
        let inputs = function.map_or(&[][..], |function| function.inputs.as_slice());
        inputs
            .iter()
            .filter(|input| !input.ty.as_ref().is_some_and(ValueType::is_state))
    }

    fn outputs(&self) -> Result<Vec<String>, RunnerError> {
        let graph = &self.interpreter.body(&self.function)?.graph;
        let outputs = graph.outputs().iter();
        Ok(outputs.map(|o| graph.name(*o).to_owned()).collect())
    }

    fn run(
        &self,
        inputs: &BTreeMap<String, Tensor>,
        observer: &mut dyn Observer,
    ) -> Result<Vec<(String, Datum)>, RunError> {
        self.interpreter
            .run(&self.function, inputs, &self.states, observer)
    }

    /// The stage's inputs from those of the pipeline and from what the stages before made.
    fn gather(
        &self,
        given: &BTreeMap<String, Tensor>,
        made: &BTreeMap<String, Datum>,
    ) -> Result<BTreeMap<String, Tensor>, RunnerError> {
        let mut inputs = BTreeMap::new();
        for input in self.inputs() {
            if let Some(datum) = made.get(&input.name) {
                let tensor = array(datum).and_then(|tensor| convert(&tensor, input.ty.as_ref()));
                let tensor = tensor.map_err(|reason| RunnerError::Hand {
                    stage: self.name.clone(),
                    input: input.name.clone(),
                    reason,
                })?;
                inputs.insert(input.name.clone(), tensor);
            } else if let Some(tensor) = given.get(&input.name) {
                inputs.insert(input.name.clone(), tensor.clone());
            }
        }
        Ok(inputs)
    }
}

/// The function that runs if none is named: the description's, or the only one there is.
fn default_function(part: &Part<'_>) -> String {
    let named = &part.interface.default_function;
    let functions = &part.program.functions;
    if functions.contains_key(named) {
        return named.clone();
    }
    let mut names = functions.keys();
    match (names.next(), names.next()) {
        (Some(only), None) => only.clone(),
        _ => named.clone(),
    }
}

fn find(features: &[Feature], name: &str) -> Option<Feature> {
    features
        .iter()
        .find(|feature| feature.name == name)
        .cloned()
}

/// A function's outputs in the order of the description, those that it lacks last.
fn in_order(outputs: Vec<String>, described: &FunctionInterface) -> Vec<String> {
    let mut ordered: Vec<String> = described
        .outputs
        .iter()
        .map(|feature| feature.name.clone())
        .filter(|name| outputs.contains(name))
        .collect();
    for output in outputs {
        if !ordered.contains(&output) {
            ordered.push(output);
        }
    }
    ordered
}
