//! A description made from the program: names, types, shapes and states as the functions declare
//! them.
//!
//! What may stand in a description depends on the specification version, which follows from the
//! opset: fp16 arrays since 7, states and several functions since 9, int8 arrays since 10.

use std::collections::BTreeMap;

use super::flexible::{self, Flexible};
use super::proto::specification::{
    self as spec, array_feature_type, dictionary_feature_type, feature_type, state_feature_type,
};
use super::{Kind, Model};
use crate::ir::{DType, Dim, Function, Opset, Program, TensorType, ValueType};

/// The function that a description without function names speaks of.
pub(super) const MAIN: &str = "main";

/// First specification version with fp16 arrays.
const FLOAT16_ARRAYS: i32 = 7;

/// First specification version with states, and with several functions.
const STATES_AND_FUNCTIONS: i32 = 9;

/// First specification version with int8 arrays.
const INT8_ARRAYS: i32 = 10;

/// Key under which a new package says what wrote it.
const WRITTEN_BY: &str = "com.milwright.version";

/// Why a program has no description.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescribeError {
    /// There is nothing to describe.
    #[error("the program has no function")]
    NoFunction,
    /// The function has no body to run.
    #[error("function `{function}` has no body for its opset {opset}")]
    NoBody {
        /// The function.
        function: String,
        /// Its opset.
        opset: String,
    },
    /// No specification version is known for an opset.
    #[error(
        "function `{function}` has the opset `{opset}`, and which specification version that needs \
         is not known; the opsets with ML Programs are ios15 to ios18 and ios26"
    )]
    Opset {
        /// The function.
        function: String,
        /// Its opset.
        opset: String,
    },
    /// Something that only a later opset's models may have.
    #[error("{what} is possible from {since} on, and the program has the opset {opset}")]
    TooEarly {
        /// What is possible only later.
        what: String,
        /// The first opset that has it.
        since: &'static str,
        /// The opset of the program.
        opset: &'static str,
    },
    /// A type that a model's interface cannot have.
    #[error("{feature} of function `{function}` {why}")]
    Type {
        /// Input, output or state, with its name.
        feature: String,
        /// The function.
        function: String,
        /// What is wrong with the type, and what to do.
        why: String,
    },
}

/// Facts about a model that stands as text, from beside the text.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// `specificationVersion` of the model that was compiled.
    pub specification_version: Option<i32>,
    /// What the model says about itself.
    pub metadata: Metadata,
}

/// What a model says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// What it is.
    pub short_description: String,
    /// Its own version.
    pub version: String,
    /// Who made it.
    pub author: String,
    /// How it may be used.
    pub license: String,
    /// Further entries by key.
    pub user_defined: BTreeMap<String, String>,
}

impl Model {
    /// A model of this program, with a description made from its functions.
    pub fn new(program: Program, origin: &Origin) -> Result<Self, DescribeError> {
        let (model, problem) = Self::described(program, origin);
        match problem {
            None => Ok(model),
            Some(problem) => Err(problem),
        }
    }

    /// Like [`Model::new`] for a program that is only looked at: what has no description is left
    /// without. Such a model should not be written.
    pub fn for_reading(program: Program, origin: &Origin) -> Self {
        Self::described(program, origin).0
    }

    fn described(program: Program, origin: &Origin) -> (Self, Option<DescribeError>) {
        let mut describer = Describer::default();
        describer.specification_version(&program, origin);
        let mut description = describer.description(&program);
        description.metadata = Some(metadata(&origin.metadata));
        let model = Self {
            envelope: spec::Model {
                specification_version: describer.version,
                description: Some(description),
                ..spec::Model::default()
            },
            kind: Kind::Program(program),
            unknown: None,
        };
        (model, describer.problem)
    }
}

fn metadata(metadata: &Metadata) -> spec::Metadata {
    let mut user_defined = metadata.user_defined.clone();
    user_defined.insert(WRITTEN_BY.to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    spec::Metadata {
        short_description: metadata.short_description.clone(),
        version_string: metadata.version.clone(),
        author: metadata.author.clone(),
        license: metadata.license.clone(),
        user_defined,
    }
}

/// Makes descriptions and keeps the first problem.
#[derive(Default)]
pub(super) struct Describer {
    version: i32,
    problem: Option<DescribeError>,
}

/// Which side of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say what they are")]
pub enum Side {
    Input,
    Output,
    State,
}

impl Side {
    /// The word in messages.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Output => "output",
            Self::State => "state",
        }
    }
}

/// The names and types of one side of a function, in order. Outputs are those of the body that
/// runs.
pub(super) fn signature(function: &Function, side: Side) -> Vec<(&str, Option<&ValueType>)> {
    if side == Side::Output {
        let graph = function.active().map(|body| &body.graph);
        return graph
            .into_iter()
            .flat_map(|graph| {
                let outputs = graph.outputs().iter();
                outputs.map(|value| (graph.name(*value), graph.ty(*value)))
            })
            .collect();
    }
    function
        .inputs
        .iter()
        .map(|input| (input.name.as_str(), input.ty.as_ref()))
        .filter(|(_, ty)| ty.is_some_and(ValueType::is_state) == (side == Side::State))
        .collect()
}

/// The latest opset among the functions, as far as they are known.
pub(super) fn latest_opset(program: &Program) -> Option<Opset> {
    let opsets = program.functions.values();
    opsets.filter_map(|f| Opset::parse(&f.opset)).max()
}

impl Describer {
    /// A describer for a model of this specification version.
    pub(super) fn new(version: i32) -> Self {
        Self {
            version,
            problem: None,
        }
    }

    /// The first thing that could not be described.
    pub(super) fn finish(self) -> Result<(), DescribeError> {
        self.problem.map_or(Ok(()), Err)
    }

    fn report(&mut self, problem: DescribeError) {
        self.problem.get_or_insert(problem);
    }

    fn specification_version(&mut self, program: &Program, origin: &Origin) {
        for (name, function) in &program.functions {
            if Opset::parse(&function.opset).is_none_or(|opset| opset < Opset::CoreML5) {
                self.report(DescribeError::Opset {
                    function: name.clone(),
                    opset: function.opset.clone(),
                });
            }
        }
        let needed = latest_opset(program).map_or(0, Opset::specification_version);
        self.version = needed.max(origin.specification_version.unwrap_or(0));
    }

    fn since(&mut self, version: i32, what: &str) {
        if self.version >= version {
            return;
        }
        let word = |version| Opset::from_specification_version(version).map_or("?", Opset::word);
        self.report(DescribeError::TooEarly {
            what: what.to_owned(),
            since: word(version),
            opset: word(self.version),
        });
    }

    fn description(&mut self, program: &Program) -> spec::ModelDescription {
        let mut described: Vec<spec::FunctionDescription> = program
            .functions
            .iter()
            .map(|(name, function)| self.function(name, function))
            .collect();
        let is_plain = described.len() == 1 && program.functions.contains_key(MAIN);
        if let Some(only) = described.pop_if(|_| is_plain) {
            return spec::ModelDescription {
                input: only.input,
                output: only.output,
                state: only.state,
                predicted_feature_name: only.predicted_feature_name,
                predicted_probabilities_name: only.predicted_probabilities_name,
                ..spec::ModelDescription::default()
            };
        }
        match described.as_slice() {
            [] => self.report(DescribeError::NoFunction),
            [only] => {
                let what = format!("a function that is called `{}` and not `{MAIN}`", only.name);
                self.since(STATES_AND_FUNCTIONS, &what);
            }
            _ => self.since(STATES_AND_FUNCTIONS, "a model with several functions"),
        }
        let main = described.iter().find(|function| function.name == MAIN);
        let default = main.or(described.first());
        spec::ModelDescription {
            default_function_name: default.map_or_else(String::new, |f| f.name.clone()),
            functions: described,
            ..spec::ModelDescription::default()
        }
    }

    fn function(&mut self, name: &str, function: &Function) -> spec::FunctionDescription {
        if function.active().is_none() {
            self.report(DescribeError::NoBody {
                function: name.to_owned(),
                opset: function.opset.clone(),
            });
        }
        let flexible = flexible::of(function);
        let mut features = |side| -> Vec<spec::FeatureDescription> {
            signature(function, side)
                .into_iter()
                .map(|(feature, ty)| self.feature(name, side, feature, ty, flexible.get(feature)))
                .collect()
        };
        let (input, output, state) = (
            features(Side::Input),
            features(Side::Output),
            features(Side::State),
        );
        let (predicted_feature_name, predicted_probabilities_name) = predicted(&output);
        spec::FunctionDescription {
            name: name.to_owned(),
            input,
            output,
            state,
            predicted_feature_name,
            predicted_probabilities_name,
        }
    }

    /// The description of one feature; without a type if it cannot have one.
    pub(super) fn feature(
        &mut self,
        function: &str,
        side: Side,
        name: &str,
        ty: Option<&ValueType>,
        flexible: Option<&Flexible>,
    ) -> spec::FeatureDescription {
        let place = format!("{} `{name}` of function `{function}`", side.word());
        let kind = match side {
            Side::Input => self.input(&place, ty, flexible),
            Side::Output => self.output(&place, ty),
            Side::State => self.state(&place, ty),
        };
        let kind = kind.map_err(|why| {
            self.report(DescribeError::Type {
                feature: format!("{} `{name}`", side.word()),
                function: function.to_owned(),
                why,
            });
        });
        spec::FeatureDescription {
            name: name.to_owned(),
            short_description: String::new(),
            r#type: Some(spec::FeatureType {
                is_optional: false,
                r#type: kind.ok(),
            }),
        }
    }

    fn input(
        &mut self,
        place: &str,
        ty: Option<&ValueType>,
        flexible: Option<&Flexible>,
    ) -> Result<feature_type::Type, String> {
        let tensor = ty
            .and_then(ValueType::as_tensor)
            .ok_or("is no tensor, and a description has no place for it")?;
        let data_type = self.array_data_type(place, tensor.dtype)?;
        if tensor.rank < 0 || tensor.rank != tensor.dims.len() as i64 {
            return Err("has a rank that is not known; write as many dimensions as it has".into());
        }
        if tensor.dims.is_empty() {
            return Err(
                "is a scalar; an application gives arrays, so declare it with the shape [1]".into(),
            );
        }
        let none = Flexible::default();
        let flexible = flexible.unwrap_or(&none);
        let fits = |shape: &&Vec<i64>| shape.len() == tensor.dims.len();
        let ranges: Vec<(i64, i64)> = match &flexible.ranges {
            Some(ranges) if ranges.len() == tensor.dims.len() => ranges.clone(),
            _ => tensor.dims.iter().map(|dim| range(*dim)).collect(),
        };
        let shape = match flexible.default.as_ref().filter(fits) {
            Some(shape) => shape.clone(),
            None => ranges.iter().map(|(low, _)| (*low).max(1)).collect(),
        };
        let shapes: Vec<_> = flexible.shapes.iter().filter(fits).collect();
        let flexibility = if !shapes.is_empty() {
            let shapes = shapes
                .into_iter()
                .map(|shape| array_feature_type::Shape {
                    shape: shape.clone(),
                })
                .collect();
            let listed = array_feature_type::EnumeratedShapes { shapes };
            Some(array_feature_type::ShapeFlexibility::EnumeratedShapes(
                listed,
            ))
        } else if ranges.iter().any(|(low, high)| low != high) {
            let size_ranges = ranges
                .iter()
                .map(|(low, high)| spec::SizeRange {
                    lower_bound: (*low).max(0) as u64,
                    upper_bound: *high,
                })
                .collect();
            let range = array_feature_type::ShapeRange { size_ranges };
            Some(array_feature_type::ShapeFlexibility::ShapeRange(range))
        } else {
            None
        };
        Ok(feature_type::Type::MultiArrayType(spec::ArrayFeatureType {
            shape,
            data_type,
            shape_flexibility: flexibility,
            default_optional_value: None,
        }))
    }

    fn output(
        &mut self,
        place: &str,
        ty: Option<&ValueType>,
    ) -> Result<feature_type::Type, String> {
        use feature_type::Type;
        match ty {
            Some(ValueType::Dictionary { key: Some(key), .. }) => {
                use dictionary_feature_type::KeyType;
                let key = match key.as_tensor().map(|key| key.dtype) {
                    Some(DType::String) => KeyType::StringKeyType(spec::StringFeatureType {}),
                    Some(DType::Int64) => KeyType::Int64KeyType(spec::Int64FeatureType {}),
                    _ => {
                        return Err(
                            "is a dictionary, and its keys are neither string nor int64".into()
                        );
                    }
                };
                let key_type = Some(key);
                Ok(Type::DictionaryType(spec::DictionaryFeatureType {
                    key_type,
                }))
            }
            Some(ValueType::Tensor(tensor))
                if tensor.rank == 0 && tensor.dtype == DType::String =>
            {
                Ok(Type::StringType(spec::StringFeatureType {}))
            }
            Some(ValueType::Tensor(tensor)) if tensor.rank == 0 && tensor.dtype == DType::Int64 => {
                Ok(Type::Int64Type(spec::Int64FeatureType {}))
            }
            Some(ValueType::Tensor(tensor)) => Ok(Type::MultiArrayType(spec::ArrayFeatureType {
                // A shape that is known only when the model runs is left out.
                shape: shape(tensor).unwrap_or_default(),
                data_type: self.array_data_type(place, tensor.dtype)?,
                ..spec::ArrayFeatureType::default()
            })),
            _ => Err(
                "is neither tensor nor dictionary, and a description has no place for it".into(),
            ),
        }
    }

    fn state(&mut self, place: &str, ty: Option<&ValueType>) -> Result<feature_type::Type, String> {
        self.since(STATES_AND_FUNCTIONS, place);
        let tensor = ty
            .and_then(ValueType::as_state)
            .ok_or("wraps no tensor, and a description has no place for it")?;
        let array = spec::ArrayFeatureType {
            shape: shape(tensor).ok_or("has a shape that is not known; a state's is fixed")?,
            data_type: self.array_data_type(place, tensor.dtype)?,
            ..spec::ArrayFeatureType::default()
        };
        Ok(feature_type::Type::StateType(spec::StateFeatureType {
            r#type: Some(state_feature_type::Type::ArrayType(array)),
        }))
    }

    /// The number of an array's element type, if this version's models have it.
    fn array_data_type(&mut self, place: &str, dtype: DType) -> Result<i32, String> {
        use array_feature_type::ArrayDataType;
        let found = match dtype {
            DType::Float32 => ArrayDataType::Float32,
            DType::Float64 => ArrayDataType::Double,
            DType::Int32 => ArrayDataType::Int32,
            DType::Float16 => {
                self.since(FLOAT16_ARRAYS, &format!("fp16 as the type of {place}"));
                ArrayDataType::Float16
            }
            DType::Int8 => {
                self.since(INT8_ARRAYS, &format!("int8 as the type of {place}"));
                ArrayDataType::Int8
            }
            other => {
                return Err(format!(
                    "has the element type {}, which applications cannot exchange with a model; \
                     cast it from or to fp16, fp32 or int32",
                    other.word()
                ));
            }
        };
        Ok(found as i32)
    }
}

fn range(dim: Dim) -> (i64, i64) {
    match dim.size().map(i64::try_from) {
        Some(Ok(size)) => (size, size),
        // Any size from one on.
        _ => (1, -1),
    }
}

fn shape(tensor: &TensorType) -> Option<Vec<i64>> {
    let shape = tensor.shape()?;
    shape.iter().map(|size| i64::try_from(*size).ok()).collect()
}

/// The names of the label and of the probabilities, if the outputs are those of a classifier: one
/// dictionary, and one string or int64.
fn predicted(outputs: &[spec::FeatureDescription]) -> (String, String) {
    use feature_type::Type;
    let named = |wanted: fn(&Type) -> bool| -> Vec<&String> {
        outputs
            .iter()
            .filter(|output| {
                let kind = output.r#type.as_ref().and_then(|t| t.r#type.as_ref());
                kind.is_some_and(wanted)
            })
            .map(|output| &output.name)
            .collect()
    };
    let labels = named(|kind| matches!(kind, Type::StringType(_) | Type::Int64Type(_)));
    let probabilities = named(|kind| matches!(kind, Type::DictionaryType(_)));
    match (labels.as_slice(), probabilities.as_slice()) {
        ([label], [probabilities]) => ((*label).clone(), (*probabilities).clone()),
        _ => (String::new(), String::new()),
    }
}
