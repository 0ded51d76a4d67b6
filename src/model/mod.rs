//! The model file: protobuf in, protobuf out. The only user of the generated messages.
//!
//! A model is an ML Program, or a pipeline whose stages may be ML Programs (or pipelines again), or
//! something else that passes through as bytes. [`Model::decode`] keeps everything that the schema
//! knows; where the file holds a field that it does not know, the model opens, and
//! [`Model::encode`] refuses with the message's name.

mod adopt;
mod decode;
mod describe;
mod description;
mod edit;
mod encode;
mod flexible;
mod proto;
pub mod wire;

use std::collections::{BTreeMap, HashMap};

use prost::Message;

pub use adopt::AdoptError;
pub use decode::{Problem, ProgramError};
pub use describe::{DescribeError, Metadata, Origin, Side};
pub use description::{Feature, Form, FunctionInterface, Interface};
pub use edit::{DescriptionMut, DescriptionSnapshot, PartMut};
pub use proto::descriptor_set;

use crate::ir::{BlobRef, Content, Cycle, NewBlob, Program, Value};
use proto::specification::{self as spec, model::Type};

/// Why a model file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bytes are not a protobuf message of this schema.
    #[error("{what} is not a valid model file: {why}")]
    Malformed {
        /// Which model: the package's own or a stage of a pipeline.
        what: String,
        /// What is wrong, with the byte offset.
        why: String,
    },
    /// The model is of a kind that has no ML Program.
    #[error(
        "{what} is a `{kind}` model; only ML Programs (`mlProgram`) and pipelines of them are \
         handled: convert it again with `convert_to=\"mlprogram\"`"
    )]
    NotMlProgram {
        /// Which model.
        what: String,
        /// The kind's name in the schema.
        kind: &'static str,
    },
    /// A function's text is not a program.
    #[error("{what}: {source}")]
    Program {
        /// Which model.
        what: String,
        /// What is wrong.
        source: ProgramError,
    },
    /// The file holds a field that the schema does not know, and writing would lose it.
    #[error("refusing to write: the model holds a field that milwright does not know ({0})")]
    UnknownField(String),
    /// A graph has a cycle.
    #[error(transparent)]
    Cycle(#[from] Cycle),
    /// A pass made a blob that has no place in a weight file.
    #[error("a constant made by a pass has no place in a weight file")]
    Unplaced,
}

/// Where blobs go when a model is written.
#[derive(Debug, Default)]
pub struct Placements {
    moved: HashMap<BlobRef, u64>,
    new: HashMap<usize, BlobRef>,
}

impl Placements {
    /// The blob at `old` moves to `offset` in the same file.
    pub fn move_blob(&mut self, old: BlobRef, offset: u64) {
        self.moved.insert(old, offset);
    }

    /// The data that a pass made goes to `place`.
    pub fn place_new(&mut self, new: &NewBlob, place: BlobRef) {
        self.new.insert(new.bytes.as_ptr() as usize, place);
    }

    fn offset(&self, blob: &BlobRef) -> u64 {
        self.moved.get(blob).copied().unwrap_or(blob.offset)
    }

    fn new_blob(&self, new: &NewBlob) -> Option<&BlobRef> {
        self.new.get(&(new.bytes.as_ptr() as usize))
    }
}

/// A model, decoded.
#[derive(Clone, Debug)]
pub struct Model {
    /// Everything but the `Type`.
    envelope: spec::Model,
    kind: Kind,
    unknown: Option<String>,
}

#[derive(Clone, Debug)]
enum Kind {
    Program(Program),
    Pipeline {
        wrapper: Wrapper,
        stages: Vec<Stage>,
        names: Vec<String>,
    },
}

/// Which message holds the pipeline.
#[derive(Clone, Copy, Debug)]
enum Wrapper {
    Plain,
    Classifier,
    Regressor,
}

#[derive(Clone, Debug)]
enum Stage {
    Decoded(Box<Model>),
    /// A model without a program, as it stands in the file.
    Untouched(Vec<u8>, &'static str),
}

impl Model {
    /// Decodes the bytes of a model file.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let what = "the model";
        match Self::decode_stage(bytes, what)? {
            Stage::Decoded(model) if model.holds_program() => Ok(*model),
            Stage::Decoded(_) => Err(Error::NotMlProgram {
                what: what.to_owned(),
                kind: "pipeline",
            }),
            Stage::Untouched(_, kind) => Err(Error::NotMlProgram {
                what: what.to_owned(),
                kind,
            }),
        }
    }

    fn decode_stage(bytes: &[u8], what: &str) -> Result<Stage, Error> {
        let malformed = |why: String| Error::Malformed {
            what: what.to_owned(),
            why,
        };
        let unknown = wire::scan(wire::MODEL, bytes)
            .map_err(|error| malformed(error.to_string()))?
            .map(|field| format!("{field} in {what}"));
        let mut envelope =
            spec::Model::decode(bytes).map_err(|error| malformed(error.to_string()))?;
        let (wrapper, pipeline) = match envelope.r#type.take() {
            None => return Err(malformed("it holds no model of any kind".to_owned())),
            Some(Type::MlProgram(message)) => {
                let program = decode::program(message).map_err(|source| Error::Program {
                    what: what.to_owned(),
                    source,
                })?;
                return Ok(Stage::Decoded(Box::new(Self {
                    envelope,
                    kind: Kind::Program(program),
                    unknown,
                })));
            }
            Some(Type::Pipeline(pipeline)) => (Wrapper::Plain, pipeline),
            Some(Type::PipelineClassifier(outer)) => {
                (Wrapper::Classifier, outer.pipeline.unwrap_or_default())
            }
            Some(Type::PipelineRegressor(outer)) => {
                (Wrapper::Regressor, outer.pipeline.unwrap_or_default())
            }
            Some(other) => return Ok(Stage::Untouched(bytes.to_vec(), kind_name(&other))),
        };
        let stages = pipeline
            .models
            .iter()
            .enumerate()
            .map(|(index, stage)| Self::decode_stage(stage, &format!("{what}'s stage {index}")))
            .collect::<Result<_, _>>()?;
        Ok(Stage::Decoded(Box::new(Self {
            envelope,
            kind: Kind::Pipeline {
                wrapper,
                stages,
                names: pipeline.names,
            },
            unknown,
        })))
    }

    fn holds_program(&self) -> bool {
        match &self.kind {
            Kind::Program(_) => true,
            Kind::Pipeline { stages, .. } => stages
                .iter()
                .any(|stage| matches!(stage, Stage::Decoded(model) if model.holds_program())),
        }
    }

    /// The field that the schema does not know, if the file holds one; such a model is not written.
    pub fn unknown_field(&self) -> Option<&str> {
        self.unknown.as_deref().or_else(|| match &self.kind {
            Kind::Program(_) => None,
            Kind::Pipeline { stages, .. } => stages.iter().find_map(|stage| match stage {
                Stage::Decoded(model) => model.unknown_field(),
                Stage::Untouched(..) => None,
            }),
        })
    }

    /// `specificationVersion` of the model file: 6 for iOS15 up to 10 for iOS26.
    pub fn specification_version(&self) -> i32 {
        self.envelope.specification_version
    }

    /// The programs of the model: one, or one for each stage of a pipeline that has one.
    pub fn programs(&self) -> Vec<Part<'_>> {
        let mut parts = Vec::new();
        self.collect_parts("", &mut parts);
        parts
    }

    fn collect_parts<'a>(&'a self, stage: &str, parts: &mut Vec<Part<'a>>) {
        match &self.kind {
            Kind::Program(program) => parts.push(Part {
                stage: stage.to_owned(),
                program,
                interface: Interface::of(&self.envelope),
            }),
            Kind::Pipeline { stages, names, .. } => {
                for (index, inner) in stages.iter().enumerate() {
                    if let Stage::Decoded(model) = inner {
                        model.collect_parts(&stage_name(stage, index, names), parts);
                    }
                }
            }
        }
    }

    /// The inputs, outputs and states of the model as a whole: those of its program, or of the
    /// pipeline.
    pub fn interface(&self) -> Interface {
        Interface::of(&self.envelope)
    }

    /// The metadata that its author defined.
    pub fn user_defined(&self) -> BTreeMap<String, String> {
        let description = self.envelope.description.as_ref();
        let metadata = description.and_then(|description| description.metadata.as_ref());
        metadata.map_or_else(BTreeMap::new, |metadata| metadata.user_defined.clone())
    }

    /// The first stage of a pipeline that is no ML Program, and the kind of model that it is.
    pub fn foreign_stage(&self) -> Option<(String, &'static str)> {
        let Kind::Pipeline { stages, names, .. } = &self.kind else {
            return None;
        };
        let mut named = stages.iter().enumerate();
        named.find_map(|(index, stage)| match stage {
            Stage::Decoded(model) => model.foreign_stage(),
            Stage::Untouched(_, kind) => Some((stage_name("", index, names), *kind)),
        })
    }

    /// The programs of the model, to be changed, in the order of [`Model::programs`].
    pub fn programs_mut(&mut self) -> Vec<&mut Program> {
        match &mut self.kind {
            Kind::Program(program) => vec![program],
            Kind::Pipeline { stages, .. } => stages
                .iter_mut()
                .filter_map(|stage| match stage {
                    Stage::Decoded(model) => Some(model.programs_mut()),
                    Stage::Untouched(..) => None,
                })
                .flatten()
                .collect(),
        }
    }

    /// The programs of the model with their descriptions, in the order of [`Model::programs`].
    pub fn parts_mut(&mut self) -> Vec<PartMut<'_>> {
        let mut parts = Vec::new();
        self.collect_parts_mut("", &mut parts);
        parts
    }

    fn collect_parts_mut<'a>(&'a mut self, stage: &str, parts: &mut Vec<PartMut<'a>>) {
        match &mut self.kind {
            Kind::Program(program) => parts.push(PartMut {
                stage: stage.to_owned(),
                program,
                description: DescriptionMut::of(&mut self.envelope),
            }),
            Kind::Pipeline { stages, names, .. } => {
                for (index, inner) in stages.iter_mut().enumerate() {
                    if let Stage::Decoded(model) = inner {
                        model.collect_parts_mut(&stage_name(stage, index, names), parts);
                    }
                }
            }
        }
    }

    /// Calls `visit` for every value of every program that has data in a weight file, or new data
    /// that will go there.
    pub fn for_each_blob(&self, mut visit: impl FnMut(&Value)) {
        for part in self.programs() {
            part.program.for_each_value(&mut |value| {
                if matches!(value.content, Content::Blob(_) | Content::New(_)) {
                    visit(value);
                }
            });
        }
    }

    /// Where a program's inputs and outputs are not those of the model's description, by name.
    pub fn interface_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for part in self.programs() {
            part.interface.compare(part.program, &mut problems);
        }
        problems
    }

    /// Encodes the model. Refused if the file held a field that the schema does not know.
    pub fn encode(&self, placements: &Placements) -> Result<Vec<u8>, Error> {
        if let Some(unknown) = self.unknown_field() {
            return Err(Error::UnknownField(unknown.to_owned()));
        }
        Ok(self.message(placements)?.encode_to_vec())
    }

    fn message(&self, placements: &Placements) -> Result<spec::Model, Error> {
        let kind = match &self.kind {
            Kind::Program(program) => Type::MlProgram(encode::program(program, placements)?),
            Kind::Pipeline {
                wrapper,
                stages,
                names,
            } => {
                let models = stages
                    .iter()
                    .map(|stage| match stage {
                        Stage::Decoded(model) => Ok(model.message(placements)?.encode_to_vec()),
                        Stage::Untouched(bytes, _) => Ok(bytes.clone()),
                    })
                    .collect::<Result<_, Error>>()?;
                let pipeline = spec::Pipeline {
                    models,
                    names: names.clone(),
                };
                match wrapper {
                    Wrapper::Plain => Type::Pipeline(pipeline),
                    Wrapper::Classifier => Type::PipelineClassifier(spec::PipelineClassifier {
                        pipeline: Some(pipeline),
                    }),
                    Wrapper::Regressor => Type::PipelineRegressor(spec::PipelineRegressor {
                        pipeline: Some(pipeline),
                    }),
                }
            }
        };
        Ok(spec::Model {
            r#type: Some(kind),
            ..self.envelope.clone()
        })
    }
}

/// One program of a model.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    /// Which stage of a pipeline; empty if the model is one program.
    pub stage: String,
    /// The program.
    pub program: &'a Program,
    /// The inputs, outputs and states as the model's description has them.
    pub interface: Interface,
}

fn stage_name(outer: &str, index: usize, names: &[String]) -> String {
    let own = match names.get(index) {
        Some(name) if !name.is_empty() => format!("stage {index} ({name})"),
        _ => format!("stage {index}"),
    };
    if outer.is_empty() {
        own
    } else {
        format!("{outer}, {own}")
    }
}

fn kind_name(kind: &Type) -> &'static str {
    match kind {
        Type::PipelineClassifier(_) => "pipelineClassifier",
        Type::PipelineRegressor(_) => "pipelineRegressor",
        Type::Pipeline(_) => "pipeline",
        Type::MlProgram(_) => "mlProgram",
        Type::GlmRegressor(_) => "glmRegressor",
        Type::SupportVectorRegressor(_) => "supportVectorRegressor",
        Type::TreeEnsembleRegressor(_) => "treeEnsembleRegressor",
        Type::NeuralNetworkRegressor(_) => "neuralNetworkRegressor",
        Type::BayesianProbitRegressor(_) => "bayesianProbitRegressor",
        Type::GlmClassifier(_) => "glmClassifier",
        Type::SupportVectorClassifier(_) => "supportVectorClassifier",
        Type::TreeEnsembleClassifier(_) => "treeEnsembleClassifier",
        Type::NeuralNetworkClassifier(_) => "neuralNetworkClassifier",
        Type::KNearestNeighborsClassifier(_) => "kNearestNeighborsClassifier",
        Type::NeuralNetwork(_) => "neuralNetwork",
        Type::ItemSimilarityRecommender(_) => "itemSimilarityRecommender",
        Type::CustomModel(_) => "customModel",
        Type::LinkedModel(_) => "linkedModel",
        Type::ClassConfidenceThresholding(_) => "classConfidenceThresholding",
        Type::OneHotEncoder(_) => "oneHotEncoder",
        Type::Imputer(_) => "imputer",
        Type::FeatureVectorizer(_) => "featureVectorizer",
        Type::DictVectorizer(_) => "dictVectorizer",
        Type::Scaler(_) => "scaler",
        Type::CategoricalMapping(_) => "categoricalMapping",
        Type::Normalizer(_) => "normalizer",
        Type::ArrayFeatureExtractor(_) => "arrayFeatureExtractor",
        Type::NonMaximumSuppression(_) => "nonMaximumSuppression",
        Type::Identity(_) => "identity",
        Type::TextClassifier(_) => "textClassifier",
        Type::WordTagger(_) => "wordTagger",
        Type::VisionFeaturePrint(_) => "visionFeaturePrint",
        Type::SoundAnalysisPreprocessing(_) => "soundAnalysisPreprocessing",
        Type::Gazetteer(_) => "gazetteer",
        Type::WordEmbedding(_) => "wordEmbedding",
        Type::AudioFeaturePrint(_) => "audioFeaturePrint",
        Type::SerializedModel(_) => "serializedModel",
    }
}
