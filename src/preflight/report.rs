//! The report of a preflight, as it is written to a file and read from one.
//! `docs/schema/preflight.schema.json` describes it.

use serde::{Deserialize, Serialize};

use super::agreement::Agreement;
use super::anatomy::Class;
use crate::eval::ranges::{Range, Ranges};

/// The version of the form.
pub(super) const VERSION: u32 = 1;

/// What a preflight found of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The version of the form, 1.
    pub version: u32,
    /// Who wrote it.
    pub tool: String,
    /// The model's path as it was given.
    pub model: String,
    /// What tells the model from others; see [`crate::source::ModelFile::fingerprint`].
    pub fingerprint: String,
    /// Whether the program computes in fp32 and was held to fp16 as if it were converted.
    pub assumed_fp16: bool,
    /// What it ran on.
    pub inputs: Vec<InputSet>,
    /// 1.0 if fp16 works; 0.7 if it does not, but the weights in fp16 do and the stream can be
    /// clamped; 0.5 if the weights in fp16 do; 0.0 if not even these.
    pub score: f64,
    /// Whether fp16 works.
    pub ane_compatible: bool,
    /// Constants of floats.
    pub weights: WeightSummary,
    /// The run in fp32, the reference.
    pub fp32: ReferenceRun,
    /// The run in fp16.
    pub fp16: LowRun,
    /// The run in fp32 with weights rounded to fp16; left out for a program whose weights are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fp16_weights: Option<LowRun>,
    /// The run in fp16 with what is reported of the Neural Engine.
    pub ane: LowRun,
    /// What goes wrong, in the order of the program.
    pub issues: Vec<Issue>,
    /// What to do, as commands.
    pub recommendations: Vec<String>,
    /// What clamps of the stream would do, if that was asked for and there is a stream.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sweep: Vec<Clamp>,
    /// The functions that ran.
    pub functions: Vec<FunctionReport>,
}

/// Where inputs came from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InputSet {
    /// A file, or the seed by which they were made up.
    pub source: String,
    /// Calls on the same states.
    pub calls: usize,
    /// XXH3 of their names and elements, 32 hexadecimal digits.
    pub hash: String,
}

/// The weights of a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WeightSummary {
    /// Elements of float constants, what is compressed counted as it is decompressed.
    pub total_params: u64,
    /// The greatest finite magnitude.
    pub max_abs: f64,
    /// Where it is.
    pub max_value: String,
    /// Finite elements above 65 504.
    pub exceed_fp16: u64,
    /// Elements that are NaN or infinite.
    pub not_finite: u64,
    /// The ten constants with the greatest magnitudes.
    pub largest: Vec<LargeWeight>,
}

/// One constant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LargeWeight {
    /// Its name.
    pub value: String,
    /// Its greatest finite magnitude.
    pub max_abs: f64,
}

/// The run in fp32.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReferenceRun {
    /// Whether all outputs are finite.
    pub works: bool,
    /// Elements of outputs that are not.
    pub not_finite: u64,
}

/// A run in lower precision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LowRun {
    /// Whether all outputs are still worth something; see [`Agreement::holds`].
    pub works: bool,
    /// Why the run ended early, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// How the outputs agree with fp32.
    pub outputs: Vec<Agreement>,
    /// The first value that is NaN or infinite here and not in fp32.
    pub first_not_finite: Option<WrongValue>,
    /// The first value that is off by more than a tenth of its scale.
    pub first_departed: Option<WrongValue>,
    /// Layers with values of the stream that are not finite here and are in fp32.
    pub overflow_layers: Vec<usize>,
}

/// A value that goes wrong.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WrongValue {
    /// Its name.
    pub value: String,
    /// The operation that makes it.
    pub op_type: String,
    /// What it is there for.
    pub class: Class,
    /// Its layer, if it is in one.
    pub layer: Option<usize>,
    /// Whether the operation alone makes it so, on the values of fp32; none if that is not known.
    pub by_itself: Option<bool>,
    /// An element that is wrong, as fp32 has it.
    pub reference: String,
    /// The same element here.
    pub low: String,
}

/// Something that goes wrong, or is reported to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Issue {
    /// What it is.
    pub class: Class,
    /// The stage of a pipeline, empty if the model is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stage: String,
    /// The function.
    pub function: String,
    /// The first value that it is about.
    pub value: String,
    /// The operation that makes it.
    pub op_type: String,
    /// Its layer, if it is in one.
    pub layer: Option<usize>,
    /// How many values it is about.
    pub values: usize,
    /// The greatest finite magnitude of these in fp32.
    pub peak: f64,
    /// What is wrong, with the numbers.
    pub message: String,
    /// Passes that cure it, the first the best, with their options.
    pub cures: Vec<String>,
}

/// What a clamp of the stream would do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Clamp {
    /// Values of the stream are kept within minus and plus this.
    pub value: f64,
    /// Whether all outputs are finite in fp16.
    pub success: bool,
    /// Elements of the stream that were beyond.
    pub clamped: u64,
    /// See [`Agreement::argmax_match`]; of the output with the longest rows.
    pub argmax_match: f64,
    /// See [`Agreement::kl`]; of the same output.
    pub kl: Option<f64>,
    /// See [`Agreement::snr_db`]; of the same output.
    pub snr_db: Option<f64>,
}

/// One function that ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FunctionReport {
    /// The stage of a pipeline, empty if the model is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stage: String,
    /// Its name.
    pub function: String,
    /// The residual stream, if there is one.
    pub stream: Option<StreamReport>,
    /// The float values, in the order in which they are computed.
    pub values: Vec<ValueReport>,
}

/// A residual stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamReport {
    /// The value before the first layer.
    pub start: String,
    /// Its greatest finite magnitude.
    pub start_peak: f64,
    /// The greatest finite magnitude of all values of the stream.
    pub peak: f64,
    /// The greatest finite magnitude of what is added to the stream.
    pub branch_peak: f64,
    /// Whether the stream passes 65 504 while nothing that is added to it does.
    pub is_accumulation: bool,
    /// The first layer that makes a value above 65 504, counted from 0.
    pub first_overflow_layer: Option<usize>,
    /// What to scale the stream by; none if it need not be.
    pub alpha: Option<Alpha>,
    /// The layers.
    pub layers: Vec<LayerReport>,
}

/// What to scale a stream by.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alpha {
    /// 50 000 / peak.
    pub to_target: f64,
    /// The greatest power of two that fits.
    pub power_of_two: f64,
    /// The peak under this power of two.
    pub power_of_two_peak: f64,
}

/// One layer of a stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerReport {
    /// Counted from 0.
    pub layer: usize,
    /// The value of the stream behind the layer.
    pub value: String,
    /// The greatest finite magnitude of that value.
    pub peak: f64,
    /// The same of the values of the stream within the layer, that one too.
    pub peak_within: f64,
    /// The same of what the layer adds.
    pub branch_peak: f64,
    /// What would scale this layer alone to 50 000: 1 if it is within 65 504. To scale each layer by
    /// a factor of its own, the stream must be multiplied wherever the factor changes.
    pub alpha: f64,
    /// `overflow` above 65 504, `close` above four fifths of it, `high` above 50 000, else `fine`.
    pub status: Status,
}

/// How close to the limit a layer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Up to 50 000.
    Fine,
    /// Above 50 000.
    High,
    /// Above four fifths of 65 504.
    Close,
    /// Above 65 504.
    Overflow,
}

impl Status {
    /// The status of a peak.
    pub fn of(peak: f64) -> Self {
        use crate::analysis::residual::TARGET;
        use crate::eval::ranges::HALF_MAX;
        if peak > HALF_MAX {
            Self::Overflow
        } else if peak > 0.8 * HALF_MAX {
            Self::Close
        } else if peak > TARGET {
            Self::High
        } else {
            Self::Fine
        }
    }
}

/// One value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValueReport {
    /// Its name.
    pub name: String,
    /// The operation that makes it.
    pub op_type: String,
    /// What it is there for.
    pub class: Class,
    /// Its layer, if it is in one.
    pub layer: Option<usize>,
    /// What was seen of it in fp32.
    #[serde(flatten)]
    pub range: Range,
    /// Elements that are NaN or infinite in fp16.
    pub fp16_not_finite: u64,
    /// The same in the mode `ane`.
    pub ane_not_finite: u64,
}

/// Why a report cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The text is no report.
    #[error("it is no preflight report: {0}")]
    Text(#[from] serde_json::Error),
    /// It is of another version.
    #[error("it is a preflight report of version {0}, but only {VERSION} is known")]
    Version(u64),
    /// It is of another model.
    #[error(
        "it is of another model: of {model} with the fingerprint {theirs}, but this one has {own}; \
         run `milwright preflight` on this model"
    )]
    Model {
        /// The model that it is of.
        model: String,
        /// That model's fingerprint.
        theirs: String,
        /// The fingerprint of the model at hand.
        own: String,
    },
}

impl Report {
    /// Reads a report.
    ///
    /// # Errors
    ///
    /// If the text is no report of a version that is known.
    pub fn parse(text: &str) -> Result<Self, ReportError> {
        let value: serde_json::Value = serde_json::from_str(text)?;
        let version = value.get("version").and_then(serde_json::Value::as_u64);
        if let Some(version) = version.filter(|version| *version != u64::from(VERSION)) {
            return Err(ReportError::Version(version));
        }
        Ok(serde_json::from_value(value)?)
    }

    /// Holds the report to a model by its fingerprint.
    ///
    /// # Errors
    ///
    /// If it is of another one.
    pub fn is_of(&self, fingerprint: &str) -> Result<(), ReportError> {
        if self.fingerprint == fingerprint {
            return Ok(());
        }
        Err(ReportError::Model {
            model: self.model.clone(),
            theirs: self.fingerprint.clone(),
            own: fingerprint.to_owned(),
        })
    }

    /// What was measured of the values.
    pub fn ranges(&self) -> Ranges {
        let mut ranges = Ranges::default();
        for function in &self.functions {
            let own = ranges.function_mut(&function.stage, &function.function);
            for value in &function.values {
                own.add(&value.name, &value.range);
            }
        }
        ranges
    }

    /// The stream with the greatest peak, if any function has one.
    pub fn stream(&self) -> Option<&StreamReport> {
        let streams = self.functions.iter().filter_map(|f| f.stream.as_ref());
        streams.max_by(|a, b| a.peak.total_cmp(&b.peak))
    }
}
