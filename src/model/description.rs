//! The interface that the model's description declares: inputs, outputs and states per function.

use crate::ir::{NamedType, Program, ValueType};

use super::proto::specification::{
    self as spec, array_feature_type, feature_type, image_feature_type,
};

/// The interface of a model.
#[derive(Clone, Debug, Default)]
pub struct Interface {
    /// One entry for each described function; a model without named functions has one, `main`.
    pub functions: Vec<FunctionInterface>,
    /// The function that runs if none is named.
    pub default_function: String,
}

/// The interface of one function.
#[derive(Clone, Debug, Default)]
pub struct FunctionInterface {
    /// Name of the function.
    pub name: String,
    /// Inputs in the order of the description.
    pub inputs: Vec<Feature>,
    /// Outputs in the order of the description.
    pub outputs: Vec<Feature>,
    /// States in the order of the description.
    pub states: Vec<Feature>,
    /// The outputs that are a classifier's, by name: the class and the probabilities.
    pub predicted: Vec<String>,
}

/// An input, output or state.
#[derive(Clone, Debug, Default)]
pub struct Feature {
    /// Its name.
    pub name: String,
    /// Its kind in a few words, such as `fp16 [1, 8]` or `image RGB 224×224`.
    pub kind: String,
    /// What an application gives or gets.
    pub form: Form,
    /// Whether an application may leave it out.
    pub is_optional: bool,
}

/// What an application gives for an input, or gets for an output.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Form {
    /// An array.
    Array {
        /// The shape, the default one where others are allowed too; empty if nothing is said.
        shape: Vec<usize>,
        /// Lowest and highest size of each dimension where sizes are free within a range; no
        /// highest one is no limit.
        ranges: Vec<(usize, Option<usize>)>,
        /// The shapes to choose from where they are listed.
        shapes: Vec<Vec<usize>>,
        /// What fills the array where an optional input is left out.
        default: Option<f64>,
    },
    /// An image, in pixels.
    Image {
        /// Its width, the default one where others are allowed too.
        width: usize,
        /// Its height, likewise.
        height: usize,
    },
    /// Anything else.
    #[default]
    Other,
}

impl Interface {
    pub(super) fn of(model: &spec::Model) -> Self {
        let Some(description) = &model.description else {
            return Self::default();
        };
        if description.functions.is_empty() {
            return Self {
                functions: vec![FunctionInterface {
                    name: "main".to_owned(),
                    inputs: features(&description.input),
                    outputs: features(&description.output),
                    states: features(&description.state),
                    predicted: predicted(
                        &description.predicted_feature_name,
                        &description.predicted_probabilities_name,
                    ),
                }],
                default_function: "main".to_owned(),
            };
        }
        Self {
            functions: description
                .functions
                .iter()
                .map(|function| FunctionInterface {
                    name: function.name.clone(),
                    inputs: features(&function.input),
                    outputs: features(&function.output),
                    states: features(&function.state),
                    predicted: predicted(
                        &function.predicted_feature_name,
                        &function.predicted_probabilities_name,
                    ),
                })
                .collect(),
            default_function: description.default_function_name.clone(),
        }
    }

    /// Adds a line for each function whose inputs, states or outputs are not the described ones.
    pub(super) fn compare(&self, program: &Program, problems: &mut Vec<String>) {
        for (name, function) in &program.functions {
            let Some(described) = self.function(name) else {
                problems.push(format!(
                    "function `{name}` is not in the model's description"
                ));
                continue;
            };
            let names = |features: &[Feature]| -> Vec<String> {
                features
                    .iter()
                    .map(|feature| feature.name.clone())
                    .collect()
            };
            let (states, inputs): (Vec<_>, Vec<_>) = function
                .inputs
                .iter()
                .partition(|input| input.ty.as_ref().is_some_and(ValueType::is_state));
            let declared = |inputs: Vec<&NamedType>| -> Vec<String> {
                inputs.into_iter().map(|input| input.name.clone()).collect()
            };
            for (opset, body) in &function.specializations {
                let outputs: Vec<String> = body
                    .graph
                    .outputs()
                    .iter()
                    .map(|value| body.graph.name(*value).to_owned())
                    .collect();
                let outputs_described = names(&described.outputs);
                if !same_names(&outputs, &outputs_described) {
                    problems.push(format!(
                        "function `{name}` ({opset}) returns {} but the description says {}",
                        outputs.join(", "),
                        outputs_described.join(", ")
                    ));
                }
            }
            for (what, declared, described) in [
                ("inputs", declared(inputs), names(&described.inputs)),
                ("states", declared(states), names(&described.states)),
            ] {
                if !same_names(&declared, &described) {
                    problems.push(format!(
                        "function `{name}` has the {what} {} but the description says {}",
                        declared.join(", "),
                        described.join(", ")
                    ));
                }
            }
        }
    }

    /// The interface of a function, if the description has it.
    pub fn function(&self, name: &str) -> Option<&FunctionInterface> {
        self.functions.iter().find(|function| function.name == name)
    }
}

/// Core ML matches by name, so that order is free.
fn same_names(a: &[String], b: &[String]) -> bool {
    let sorted = |names: &[String]| {
        let mut names = names.to_vec();
        names.sort();
        names
    };
    sorted(a) == sorted(b)
}

fn predicted(class: &str, probabilities: &str) -> Vec<String> {
    let names = [class, probabilities].into_iter();
    let names = names.filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

fn features(descriptions: &[spec::FeatureDescription]) -> Vec<Feature> {
    descriptions
        .iter()
        .map(|description| Feature {
            name: description.name.clone(),
            kind: kind(description.r#type.as_ref()),
            form: form(description.r#type.as_ref()),
            is_optional: description.r#type.as_ref().is_some_and(|t| t.is_optional),
        })
        .collect()
}

fn form(feature: Option<&spec::FeatureType>) -> Form {
    use feature_type::Type;
    match feature.and_then(|feature| feature.r#type.as_ref()) {
        Some(Type::MultiArrayType(array)) => array_form(array),
        Some(Type::ImageType(image)) => Form::Image {
            width: usize::try_from(image.width).unwrap_or(0),
            height: usize::try_from(image.height).unwrap_or(0),
        },
        _ => Form::Other,
    }
}

fn array_form(array: &spec::ArrayFeatureType) -> Form {
    use array_feature_type::{DefaultOptionalValue, ShapeFlexibility};
    let sizes = |shape: &[i64]| -> Vec<usize> {
        let sizes = shape.iter().map(|size| usize::try_from(*size));
        sizes.collect::<Result<_, _>>().unwrap_or_default()
    };
    let (mut ranges, mut shapes) = (Vec::new(), Vec::new());
    match &array.shape_flexibility {
        None => {}
        Some(ShapeFlexibility::EnumeratedShapes(listed)) => {
            shapes = listed.shapes.iter().map(|s| sizes(&s.shape)).collect();
        }
        Some(ShapeFlexibility::ShapeRange(range)) => {
            let range_of = |range: &spec::SizeRange| {
                let low = usize::try_from(range.lower_bound).unwrap_or(usize::MAX);
                (low, usize::try_from(range.upper_bound).ok())
            };
            ranges = range.size_ranges.iter().map(range_of).collect();
        }
    }
    Form::Array {
        shape: sizes(&array.shape),
        ranges,
        shapes,
        default: array
            .default_optional_value
            .as_ref()
            .map(|value| match value {
                DefaultOptionalValue::IntDefaultValue(value) => f64::from(*value),
                DefaultOptionalValue::FloatDefaultValue(value) => f64::from(*value),
                DefaultOptionalValue::DoubleDefaultValue(value) => *value,
            }),
    }
}

fn kind(feature: Option<&spec::FeatureType>) -> String {
    use feature_type::Type;
    let Some(feature) = feature else {
        return "of no type".to_owned();
    };
    let text = match &feature.r#type {
        None => "of no type".to_owned(),
        Some(Type::Int64Type(_)) => "int64".to_owned(),
        Some(Type::DoubleType(_)) => "double".to_owned(),
        Some(Type::StringType(_)) => "string".to_owned(),
        Some(Type::ImageType(image)) => image_kind(image),
        Some(Type::MultiArrayType(array)) => array_kind(array),
        Some(Type::DictionaryType(_)) => "dictionary".to_owned(),
        Some(Type::SequenceType(_)) => "sequence".to_owned(),
        Some(Type::StateType(state)) => match &state.r#type {
            Some(spec::state_feature_type::Type::ArrayType(array)) => array_kind(array),
            None => "of no type".to_owned(),
        },
    };
    if feature.is_optional {
        format!("{text}, optional")
    } else {
        text
    }
}

fn image_kind(image: &spec::ImageFeatureType) -> String {
    use image_feature_type::{ColorSpace, SizeFlexibility};
    let space = match image.color_space() {
        ColorSpace::InvalidColorSpace => "of no colour space",
        ColorSpace::Grayscale => "grayscale",
        ColorSpace::Rgb => "RGB",
        ColorSpace::Bgr => "BGR",
        ColorSpace::GrayscaleFloat16 => "grayscale fp16",
    };
    let flexible = match &image.size_flexibility {
        None => "",
        Some(SizeFlexibility::EnumeratedSizes(_)) => ", other sizes listed",
        Some(SizeFlexibility::ImageSizeRange(_)) => ", sizes in a range",
    };
    format!("image {space} {}×{}{flexible}", image.width, image.height)
}

fn array_kind(array: &spec::ArrayFeatureType) -> String {
    use array_feature_type::{ArrayDataType, ShapeFlexibility};
    let element = match array.data_type() {
        ArrayDataType::InvalidArrayDataType => "of no element type",
        ArrayDataType::Float32 => "fp32",
        ArrayDataType::Double => "fp64",
        ArrayDataType::Int32 => "int32",
        ArrayDataType::Float16 => "fp16",
        ArrayDataType::Int8 => "int8",
    };
    let shape: Vec<String> = array.shape.iter().map(ToString::to_string).collect();
    let flexible = match &array.shape_flexibility {
        None => "",
        Some(ShapeFlexibility::EnumeratedShapes(_)) => ", other shapes listed",
        Some(ShapeFlexibility::ShapeRange(_)) => ", shapes in a range",
    };
    format!("{element} [{}]{flexible}", shape.join(", "))
}
