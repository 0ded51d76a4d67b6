//! Our schema against the one inside coremltools, field by field, and against real model files.
//!
//! `MILWRIGHT_PYTHON` names a Python that can import coremltools, `MILWRIGHT_CORPUS` a folder with
//! packages. What needs one that is not set is skipped.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use milwright::model::descriptor_set;
use milwright::model::wire::{MODEL, scan};
use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet};
use support::folders::{corpus, found_below};
use support::python::python;

/// Fields that are `bytes` in our schema and messages in coremltools': the two have the same form
/// in a file, and we pass them on without looking inside.
const KEPT_AS_BYTES: [(&str, &[&str]); 2] = [
    // Decoded one by one when they hold a program.
    ("CoreML.Specification.Pipeline", &["models"]),
    (
        MODEL,
        &[
            "glmRegressor",
            "supportVectorRegressor",
            "treeEnsembleRegressor",
            "neuralNetworkRegressor",
            "bayesianProbitRegressor",
            "glmClassifier",
            "supportVectorClassifier",
            "treeEnsembleClassifier",
            "neuralNetworkClassifier",
            "kNearestNeighborsClassifier",
            "neuralNetwork",
            "itemSimilarityRecommender",
            "customModel",
            "linkedModel",
            "classConfidenceThresholding",
            "oneHotEncoder",
            "imputer",
            "featureVectorizer",
            "dictVectorizer",
            "scaler",
            "categoricalMapping",
            "normalizer",
            "arrayFeatureExtractor",
            "nonMaximumSuppression",
            "identity",
            "textClassifier",
            "wordTagger",
            "visionFeaturePrint",
            "soundAnalysisPreprocessing",
            "gazetteer",
            "wordEmbedding",
            "audioFeaturePrint",
            "serializedModel",
        ],
    ),
];

/// What a field means in a file and in JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    number: i32,
    kind: Type,
    /// Full name of the message or enum; empty for scalars.
    of: String,
    label: Label,
    oneof: Option<String>,
    /// Only of repeated numbers.
    packed: bool,
    tracks_presence: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Message {
    fields: BTreeMap<String, Field>,
    is_map_entry: bool,
}

/// Messages and enums by full name.
#[derive(Clone, Debug, Default)]
struct Schema {
    messages: BTreeMap<String, Message>,
    enums: BTreeMap<String, BTreeMap<String, i32>>,
}

impl Schema {
    fn from_bytes(bytes: &[u8]) -> Self {
        let set = FileDescriptorSet::decode(bytes).expect("an encoded FileDescriptorSet");
        let mut schema = Self::default();
        for file in &set.file {
            assert_eq!(file.syntax(), "proto3", "{}", file.name());
            schema.add(file.package(), &file.message_type, &file.enum_type);
        }
        schema
    }

    fn add(&mut self, scope: &str, messages: &[DescriptorProto], enums: &[EnumDescriptorProto]) {
        for item in enums {
            let values = item
                .value
                .iter()
                .map(|value| (value.name().to_owned(), value.number()));
            self.enums
                .insert(format!("{scope}.{}", item.name()), values.collect());
        }
        for item in messages {
            let name = format!("{scope}.{}", item.name());
            self.add(&name, &item.nested_type, &item.enum_type);
            let message = Message {
                fields: item
                    .field
                    .iter()
                    .map(|field| (field.name().to_owned(), described(item, field)))
                    .collect(),
                is_map_entry: item
                    .options
                    .as_ref()
                    .is_some_and(prost_types::MessageOptions::map_entry),
            };
            self.messages.insert(name, message);
        }
    }

    /// The messages and enums that a model holds, where `follow` says so of (message, field).
    fn reachable(&self, follow: impl Fn(&str, &str) -> bool) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut open = vec![MODEL.to_owned()];
        while let Some(name) = open.pop() {
            if !found.insert(name.clone()) {
                continue;
            }
            let Some(message) = self.messages.get(&name) else {
                assert!(
                    self.enums.contains_key(&name),
                    "{name} is described nowhere"
                );
                continue;
            };
            for (field, described) in &message.fields {
                if !described.of.is_empty() && follow(&name, field) {
                    open.push(described.of.clone());
                }
            }
        }
        found
    }
}

fn described(message: &DescriptorProto, field: &FieldDescriptorProto) -> Field {
    let kind = field.r#type();
    let is_number = !matches!(
        kind,
        Type::String | Type::Bytes | Type::Message | Type::Group
    );
    let option = field.options.as_ref().and_then(|options| options.packed);
    Field {
        number: field.number(),
        kind,
        of: field.type_name().trim_start_matches('.').to_owned(),
        label: field.label(),
        oneof: field
            .oneof_index
            .map(|index| message.oneof_decl[index as usize].name().to_owned()),
        // The default of proto3.
        packed: is_number && field.label() == Label::Repeated && option.unwrap_or(true),
        tracks_presence: field.proto3_optional(),
    }
}

fn kept_as_bytes(message: &str, field: &str) -> bool {
    KEPT_AS_BYTES
        .iter()
        .any(|(name, fields)| *name == message && fields.contains(&field))
}

/// One line for each difference that is not in [`KEPT_AS_BYTES`].
fn differences(ours: &Schema, theirs: &Schema) -> Vec<String> {
    let mut lines = Vec::new();
    let our_names = ours.reachable(|_, _| true);
    let their_names = theirs.reachable(|message, field| !kept_as_bytes(message, field));
    for name in our_names.symmetric_difference(&their_names) {
        lines.push(format!("{name}: only one side reaches it"));
    }
    for name in our_names.intersection(&their_names) {
        if ours.enums.get(name) != theirs.enums.get(name) {
            lines.push(format!("{name}: other values"));
        }
        let empty = Message::default();
        let our_message = ours.messages.get(name).unwrap_or(&empty);
        let their_message = theirs.messages.get(name).unwrap_or(&empty);
        if our_message.is_map_entry != their_message.is_map_entry {
            lines.push(format!("{name}: a map entry on one side"));
        }
        let fields: BTreeSet<_> = our_message
            .fields
            .keys()
            .chain(their_message.fields.keys())
            .collect();
        for field in fields {
            let our_field = our_message.fields.get(field);
            let mut their_field = their_message.fields.get(field).cloned();
            if let Some(field_of_theirs) = &mut their_field
                && kept_as_bytes(name, field)
                && field_of_theirs.kind == Type::Message
            {
                field_of_theirs.kind = Type::Bytes;
                field_of_theirs.of.clear();
            }
            if our_field != their_field.as_ref() {
                lines.push(format!(
                    "{name}.{field}: {our_field:?}, not {their_field:?}"
                ));
            }
        }
    }
    lines
}

/// coremltools' schema, if there is a Python that has it.
fn coremltools_schema() -> Option<&'static Schema> {
    // Asked for once: the tests run side by side, and the import takes seconds.
    static SCHEMA: OnceLock<Option<Schema>> = OnceLock::new();
    SCHEMA
        .get_or_init(|| {
            let python = python()?;
            let script =
                Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schema/dump_descriptors.py");
            let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("coremltools_descriptors.bin");
            let ran = Command::new(&python)
                .arg(script)
                .arg(&out)
                .output()
                .expect("MILWRIGHT_PYTHON runs");
            assert!(
                ran.status.success(),
                "{}",
                String::from_utf8_lossy(&ran.stderr)
            );
            let bytes = std::fs::read(out).expect("the script wrote it");
            Some(Schema::from_bytes(&bytes))
        })
        .as_ref()
}

#[test]
fn the_schema_is_that_of_coremltools_but_for_the_fields_kept_as_bytes() {
    let Some(theirs) = coremltools_schema() else {
        return;
    };
    let ours = Schema::from_bytes(descriptor_set());
    let differences = differences(&ours, theirs);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    for (message, fields) in KEPT_AS_BYTES {
        for field in fields {
            assert_eq!(
                ours.messages[message].fields[*field].kind,
                Type::Bytes,
                "{field}"
            );
            assert_eq!(
                theirs.messages[message].fields[*field].kind,
                Type::Message,
                "{field}"
            );
        }
    }
}

#[test]
fn the_schema_holds_nothing_that_a_model_cannot_hold() {
    let ours = Schema::from_bytes(descriptor_set());
    let described: BTreeSet<_> = ours
        .messages
        .keys()
        .chain(ours.enums.keys())
        .cloned()
        .collect();
    assert_eq!(ours.reachable(|_, _| true), described);
}

#[test]
fn the_comparison_sees_every_kind_of_change() {
    fn field<'a>(schema: &'a mut Schema, message: &str, field: &str) -> &'a mut Field {
        let message = schema.messages.get_mut(message).expect("a message");
        message.fields.get_mut(field).expect("a field")
    }
    type Change = fn(&mut Schema);
    const VALUE: &str = "CoreML.Specification.MILSpec.Value";
    const BLOB: &str = "CoreML.Specification.MILSpec.Value.BlobFileValue";
    const FLOATS: &str = "CoreML.Specification.MILSpec.TensorValue.RepeatedFloats";
    const COLORS: &str = "CoreML.Specification.ImageFeatureType.ColorSpace";
    let changes: [(&str, Change); 11] = [
        ("number", |schema| {
            field(schema, VALUE, "blobFileValue").number = 4;
        }),
        ("type", |schema| {
            field(schema, BLOB, "offset").kind = Type::Int64;
        }),
        ("message", |schema| {
            field(schema, VALUE, "type").of = VALUE.to_owned();
        }),
        ("label", |schema| {
            field(schema, BLOB, "fileName").label = Label::Repeated;
        }),
        ("oneof", |schema| {
            field(schema, VALUE, "blobFileValue").oneof = None;
        }),
        ("packing", |schema| {
            field(schema, FLOATS, "values").packed = false;
        }),
        ("presence", |schema| {
            field(schema, BLOB, "offset").tracks_presence = true;
        }),
        ("opaque number", |schema| {
            field(schema, MODEL, "scaler").number = 605;
        }),
        ("enum value", |schema| {
            schema
                .enums
                .get_mut(COLORS)
                .expect("an enum")
                .insert("RGB".to_owned(), 21);
        }),
        ("new enum value", |schema| {
            schema
                .enums
                .get_mut(COLORS)
                .expect("an enum")
                .insert("CMYK".to_owned(), 50);
        }),
        ("missing field", |schema| {
            schema
                .messages
                .get_mut(MODEL)
                .expect("a message")
                .fields
                .remove("identity");
        }),
    ];
    let ours = Schema::from_bytes(descriptor_set());
    // Without coremltools, our own schema stands in: it differs in nothing.
    let theirs = coremltools_schema().unwrap_or(&ours);
    assert_eq!(differences(&ours, theirs), [""; 0]);
    for (what, change) in changes {
        let mut changed = theirs.clone();
        change(&mut changed);
        assert_eq!(differences(&ours, &changed).len(), 1, "{what}");
    }
}

#[test]
fn real_models_hold_nothing_that_the_schema_lacks() {
    let Some(corpus) = corpus() else { return };
    let models = found_below(&corpus, &["mlmodel"]);
    assert!(
        models.len() > 10,
        "{} models in {}",
        models.len(),
        corpus.display()
    );
    for path in models {
        let bytes = std::fs::read(&path).expect("a readable model");
        assert_eq!(scan(MODEL, &bytes), Ok(None), "{}", path.display());
    }
}
