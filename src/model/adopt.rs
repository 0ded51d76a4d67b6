//! A program put into an existing model: the description stays, as far as it fits.
//!
//! Inputs and states must be those that are described. Outputs may come and go: the description
//! loses those that the program no longer has, and gains those that are new.

use super::describe::{DescribeError, Describer, Side, latest_opset, signature};
use super::proto::specification as spec;
use super::{Kind, Model};
use crate::ir::{Dim, Function, Opset, Program, TensorType, ValueType};

/// Why a program does not fit a model's description.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdoptError {
    /// The model is a pipeline.
    #[error("it is a pipeline, and a text holds one program")]
    Pipeline,
    /// The functions are others.
    #[error(
        "it describes the functions {}, and the text has {}",
        list(described),
        list(declared)
    )]
    Functions {
        /// The functions of the description.
        described: Vec<String>,
        /// The functions of the program.
        declared: Vec<String>,
    },
    /// The inputs or states of a function are others.
    #[error(
        "function `{function}`: it describes the {what}s {}, and the text has {}",
        list(described),
        list(declared)
    )]
    Names {
        /// The function.
        function: String,
        /// Which side of the function.
        what: &'static str,
        /// The names in the description.
        described: Vec<String>,
        /// The names in the program.
        declared: Vec<String>,
    },
    /// A feature has another type.
    #[error(
        "function `{function}`: {what} `{name}` is {was} there and {is} in the text; to have the \
         text's type, build without its description"
    )]
    Type {
        /// The function.
        function: String,
        /// Which side of the function.
        what: &'static str,
        /// The feature.
        name: String,
        /// Its type in the model's own program.
        was: String,
        /// Its type in the program.
        is: String,
    },
    /// A new output has no description.
    #[error(transparent)]
    Describe(#[from] DescribeError),
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        return "(none)".to_owned();
    }
    names.join(", ")
}

/// The lists of one function's features, wherever the description has them.
struct Described<'a> {
    inputs: &'a [spec::FeatureDescription],
    states: &'a [spec::FeatureDescription],
    outputs: &'a mut Vec<spec::FeatureDescription>,
    predicted: [&'a mut String; 2],
}

impl Model {
    /// Puts `program` in place of the model's own. Says what had to change in the description.
    ///
    /// The types of inputs, states and kept outputs are compared with those of the model's own
    /// program. The specification version rises if the program's opset needs that.
    pub fn adopt(&mut self, program: Program) -> Result<Vec<String>, AdoptError> {
        let Kind::Program(own) = &self.kind else {
            return Err(AdoptError::Pipeline);
        };
        let mut notes = Vec::new();
        let version = &mut self.envelope.specification_version;
        let needed = latest_opset(&program).map_or(0, Opset::specification_version);
        let own_needs = latest_opset(own).map_or(0, Opset::specification_version);
        if needed > *version && needed > own_needs {
            notes.push(format!(
                "the specification version rises from {version} to {needed}, which the opset needs"
            ));
            *version = needed;
        }
        let mut describer = Describer::new(*version);
        // A model without a description is kept without.
        if let Some(description) = &mut self.envelope.description {
            for (name, described) in functions(description, own, &program)? {
                let (Some(was), Some(is)) =
                    (own.functions.get(&name), program.functions.get(&name))
                else {
                    continue;
                };
                adapt(&name, described, was, is, &mut describer, &mut notes)?;
            }
        }
        describer.finish()?;
        self.kind = Kind::Program(program);
        Ok(notes)
    }
}

/// The described functions by name; refused if they are not those of both programs.
fn functions<'a>(
    description: &'a mut spec::ModelDescription,
    own: &Program,
    program: &Program,
) -> Result<Vec<(String, Described<'a>)>, AdoptError> {
    let names = |program: &Program| program.functions.keys().cloned().collect::<Vec<_>>();
    if names(own) != names(program) {
        return Err(AdoptError::Functions {
            described: names(own),
            declared: names(program),
        });
    }
    if description.functions.is_empty() {
        let described = Described {
            inputs: &description.input,
            states: &description.state,
            outputs: &mut description.output,
            predicted: [
                &mut description.predicted_feature_name,
                &mut description.predicted_probabilities_name,
            ],
        };
        let only = program.functions.keys().next().cloned();
        return Ok(only.map(|name| (name, described)).into_iter().collect());
    }
    let described = description.functions.iter_mut().map(|function| {
        let described = Described {
            inputs: &function.input,
            states: &function.state,
            outputs: &mut function.output,
            predicted: [
                &mut function.predicted_feature_name,
                &mut function.predicted_probabilities_name,
            ],
        };
        (function.name.clone(), described)
    });
    Ok(described.collect())
}

fn adapt(
    name: &str,
    described: Described<'_>,
    was: &Function,
    is: &Function,
    describer: &mut Describer,
    notes: &mut Vec<String>,
) -> Result<(), AdoptError> {
    for (side, features) in [
        (Side::Input, described.inputs),
        (Side::State, described.states),
    ] {
        same_names(name, side, features, was, is)?;
    }
    for side in [Side::Input, Side::State, Side::Output] {
        let before = signature(was, side);
        for (feature, ty) in signature(is, side) {
            let old = before.iter().find(|(known, _)| *known == feature);
            if let Some((_, old)) = old.filter(|(_, old)| *old != ty) {
                return Err(AdoptError::Type {
                    function: name.to_owned(),
                    what: side.word(),
                    name: feature.to_owned(),
                    was: words(*old),
                    is: words(ty),
                });
            }
        }
    }
    let (before, after) = (signature(was, Side::Output), signature(is, Side::Output));
    let has = |features: &[(&str, Option<&ValueType>)], name: &str| {
        features.iter().any(|(known, _)| *known == name)
    };
    let gone = |output: &str| has(&before, output) && !has(&after, output);
    for output in described.outputs.iter().filter(|output| gone(&output.name)) {
        notes.push(format!(
            "function `{name}`: output `{}` is gone from the description",
            output.name
        ));
    }
    described.outputs.retain(|output| !gone(&output.name));
    for predicted in described.predicted {
        if gone(predicted) {
            predicted.clear();
        }
    }
    for (output, ty) in after {
        let known = described.outputs.iter().any(|known| known.name == output);
        if known || has(&before, output) {
            continue;
        }
        let feature = describer.feature(name, Side::Output, output, ty, None);
        described.outputs.push(feature);
        notes.push(format!(
            "function `{name}`: output `{output}` is new in the description"
        ));
    }
    Ok(())
}

/// Refuses inputs or states that are neither those described nor those of the model's own program.
fn same_names(
    function: &str,
    side: Side,
    described: &[spec::FeatureDescription],
    was: &Function,
    is: &Function,
) -> Result<(), AdoptError> {
    let sorted = |function: &Function| {
        let mut names: Vec<String> = signature(function, side)
            .into_iter()
            .map(|(name, _)| name.to_owned())
            .collect();
        names.sort();
        names
    };
    let declared = sorted(is);
    if declared == sorted(was) {
        return Ok(());
    }
    let mut described: Vec<String> = described.iter().map(|f| f.name.clone()).collect();
    described.sort();
    if declared == described {
        return Ok(());
    }
    Err(AdoptError::Names {
        function: function.to_owned(),
        what: side.word(),
        described,
        declared,
    })
}

/// A type in a few words, for messages.
fn words(ty: Option<&ValueType>) -> String {
    match ty {
        Some(ValueType::Tensor(tensor)) => tensor_words(tensor),
        Some(ValueType::State(Some(inner))) => format!("state of {}", words(Some(inner))),
        Some(ValueType::List { .. }) => "a list".to_owned(),
        Some(ValueType::Tuple(_)) => "a tuple".to_owned(),
        Some(ValueType::Dictionary { .. }) => "a dictionary".to_owned(),
        _ => "of no type".to_owned(),
    }
}

fn tensor_words(tensor: &TensorType) -> String {
    let dims: Vec<String> = tensor
        .dims
        .iter()
        .map(|dim| match dim {
            Dim::Known(size) => size.to_string(),
            Dim::Unknown { variadic: true } => "...".to_owned(),
            _ => "?".to_owned(),
        })
        .collect();
    format!("{} [{}]", tensor.dtype.word(), dims.join(", "))
}
