//! The interface that the model's description declares: inputs, outputs and states per function.

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
}

/// An input, output or state.
#[derive(Clone, Debug)]
pub struct Feature {
    /// Its name.
    pub name: String,
    /// Its kind in a few words, such as `fp16 [1, 8]` or `image RGB 224×224`.
    pub kind: String,
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
                })
                .collect(),
            default_function: description.default_function_name.clone(),
        }
    }

    /// The interface of a function, if the description has it.
    pub fn function(&self, name: &str) -> Option<&FunctionInterface> {
        self.functions.iter().find(|function| function.name == name)
    }
}

fn features(descriptions: &[spec::FeatureDescription]) -> Vec<Feature> {
    descriptions
        .iter()
        .map(|description| Feature {
            name: description.name.clone(),
            kind: kind(description.r#type.as_ref()),
        })
        .collect()
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
