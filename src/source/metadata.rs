//! `metadata.json` of a compiled model: what its description said before it was compiled.

use serde_json::Value;

use crate::model::{Feature, Metadata, Origin};

/// What is of use in the file; the rest is ignored.
#[derive(Clone, Debug, Default)]
pub struct CompiledMetadata {
    /// Version and metadata of the model that was compiled.
    pub origin: Origin,
    /// Inputs with their kinds in Core ML's own words, such as `MultiArray (Float32 1 × 576)`.
    pub inputs: Vec<Feature>,
    /// Outputs, likewise.
    pub outputs: Vec<Feature>,
    /// States, likewise.
    pub states: Vec<Feature>,
    /// In which types the weights are stored, in Core ML's own words; empty if not said.
    pub storage_precision: String,
}

impl CompiledMetadata {
    /// Reads the file's one model; `None` if there is none.
    pub(super) fn of(file: &Value) -> Option<Self> {
        let model = file.as_array()?.first()?;
        let string = |key: &str| text(model, key).to_owned();
        let version = model.get("specificationVersion").and_then(Value::as_i64);
        let user_defined = model
            .get("userDefinedMetadata")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
            .collect();
        Some(Self {
            origin: Origin {
                specification_version: version.and_then(|version| i32::try_from(version).ok()),
                metadata: Metadata {
                    short_description: string("shortDescription"),
                    version: string("version"),
                    author: string("author"),
                    license: string("license"),
                    user_defined,
                },
            },
            inputs: features(model, "inputSchema"),
            outputs: features(model, "outputSchema"),
            states: features(model, "stateSchema"),
            storage_precision: string("storagePrecision"),
        })
    }

    /// The features that the program declares as arrays and that were something else, such as
    /// images.
    pub fn others(&self) -> impl Iterator<Item = &Feature> {
        let all = self.inputs.iter().chain(&self.outputs);
        all.filter(|feature| feature.kind.starts_with("Image"))
    }
}

fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn features(model: &Value, key: &str) -> Vec<Feature> {
    let list = model.get(key).and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .map(|feature| {
            let mut kind = text(feature, "formattedType").to_owned();
            let flexible = text(feature, "shapeFlexibility");
            if !flexible.is_empty() {
                kind = format!("{kind}, {flexible}");
            }
            Feature {
                name: text(feature, "name").to_owned(),
                kind,
                ..Feature::default()
            }
        })
        .collect()
}
