//! A case file: its program, and what the comments in its first lines say.

use std::collections::BTreeMap;
use std::sync::Arc;

use milwright::eval::ranges::{Range, Ranges};
use milwright::ir::{BlobRef, DType, Program};
use milwright::model::{Feature, Form, FunctionInterface, Interface};
use milwright::package::weights::{BlobDType, WeightsError};
use milwright::pass::{Blobs, Calibration, Pipeline};
use milwright::passes;
use milwright::text::{Dialect, parse};

#[path = "inputs.rs"]
pub(crate) mod inputs;

/// A case.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) program: Program,
    pub(crate) dialect: Dialect,
    /// The pass alone, with the case's options.
    pub(crate) pipeline: Pipeline,
    pub(crate) silent: bool,
    pub(crate) issues: Vec<String>,
    /// Why no sample can be evaluated.
    pub(crate) not_evaluated: Option<String>,
    /// Whether a pass that only changes rounding is held to it in fp16 instead of fp32.
    pub(crate) in_half: bool,
    pub(crate) blobs: Weights,
    /// What the model's description says other than the program.
    described: Vec<Described>,
    /// What was measured of its values.
    pub(crate) calibration: Arc<Calibration>,
}

/// What the description says of one side of a function; of none, that it does not have the function.
struct Described {
    function: String,
    side: Option<String>,
    features: Vec<Feature>,
}

/// Data of weight files, from comments.
#[derive(Default)]
pub(crate) struct Weights {
    data: BTreeMap<BlobRef, Vec<u8>>,
    /// What is known of files beyond the data.
    files: BTreeMap<String, File>,
}

/// What a weight file is.
enum File {
    Missing,
    Pointer,
    /// The records in it, by offset.
    Records(BTreeMap<u64, (BlobDType, u64)>),
}

impl Weights {
    /// All data, by where it is.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&BlobRef, &[u8])> {
        self.data
            .iter()
            .map(|(blob, bytes)| (blob, bytes.as_slice()))
    }
}

impl Blobs for Weights {
    fn bytes(&self, blob: &BlobRef) -> Option<&[u8]> {
        self.data.get(blob).map(Vec::as_slice)
    }

    fn check(&self, blob: &BlobRef, dtype: DType, elements: u64) -> Result<(), WeightsError> {
        let BlobRef { file, offset } = blob.clone();
        let records = match self.files.get(&file) {
            None => return Ok(()),
            Some(File::Missing) => return Err(WeightsError::Missing { file, offset }),
            Some(File::Pointer) => return Err(WeightsError::LfsPointer { file, offset }),
            Some(File::Records(records)) => records,
        };
        if !offset.is_multiple_of(64) {
            return Err(WeightsError::Unaligned { file, offset });
        }
        let Some((stored, count)) = records.get(&offset).copied() else {
            let found = 0;
            return Err(WeightsError::BadSentinel {
                file,
                offset,
                found,
            });
        };
        let declared = blob_dtype(&dtype.word()).unwrap();
        if stored != declared {
            return Err(WeightsError::DTypeMismatch {
                file,
                offset,
                stored,
                declared,
            });
        }
        if count != elements {
            return Err(WeightsError::SizeMismatch {
                file,
                offset,
                stored: count,
                declared: elements,
            });
        }
        Ok(())
    }
}

fn blob_dtype(word: &str) -> Option<BlobDType> {
    BlobDType::ALL
        .into_iter()
        .find(|dtype| dtype.word() == word)
}

impl Case {
    /// Reads a case of a pass.
    pub(crate) fn read(source: &str, name: &str, pass: &str) -> Result<Self, String> {
        let mut options = String::new();
        let mut silent = false;
        let mut issues = Vec::new();
        let mut not_evaluated = None;
        let mut in_half = false;
        let mut blobs = Weights::default();
        let mut descriptions = Vec::new();
        let mut calibration = Calibration::default();
        let mut samples = 0;
        for line in source.lines() {
            let Some(comment) = line.strip_prefix("//").map(str::trim) else {
                break;
            };
            if let Some(text) = comment.strip_prefix("options:") {
                options = format!("{{{}}}", text.trim());
            } else if let Some(text) = comment.strip_prefix("expect-issue:") {
                issues.push(text.trim().to_owned());
            } else if let Some(text) = comment.strip_prefix("not evaluated:") {
                not_evaluated = Some(text.trim().to_owned());
            } else if comment.starts_with("in fp16:") {
                in_half = true;
            } else if let Some(text) = comment.strip_prefix("blob ") {
                let (blob, bytes) = blob(text).ok_or_else(|| format!("not a blob: {comment}"))?;
                blobs.data.insert(blob, bytes);
            } else if let Some(text) = comment.strip_prefix("stored ") {
                stored(text, &mut blobs.files).ok_or_else(|| format!("not stored: {comment}"))?;
            } else if let Some(text) = comment.strip_prefix("described ") {
                let described = self::described(text);
                descriptions.push(described.ok_or_else(|| format!("not described: {comment}"))?);
            } else if let Some(text) = comment.strip_prefix("measured ") {
                measured(text, &mut calibration.ranges)
                    .ok_or_else(|| format!("not measured: {comment}"))?;
            } else if let Some(text) = comment.strip_prefix("samples:") {
                let number = text.trim().parse();
                samples = number.map_err(|_| format!("not a number of samples: {comment}"))?;
            } else if comment == "silent" {
                silent = true;
            }
        }
        let parsed = parse(source, name).map_err(|errors| {
            let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
            lines.join("\n")
        })?;
        calibration.samples = inputs::samples(&parsed.program, samples)?;
        let pipeline = Pipeline::parse(&format!("{pass}{options}"), passes::ALL)
            .map_err(|error| error.to_string())?;
        Ok(Self {
            name: name.to_owned(),
            program: parsed.program,
            dialect: parsed.dialect,
            pipeline,
            silent,
            issues,
            not_evaluated,
            in_half,
            blobs,
            described: descriptions,
            calibration: Arc::new(calibration),
        })
    }

    /// Lets a description say what the case's comments say.
    pub(crate) fn describe(&self, interface: &mut Interface) {
        for described in &self.described {
            let name = &described.function;
            let Some(side) = &described.side else {
                interface
                    .functions
                    .retain(|function| function.name != *name);
                continue;
            };
            let known = interface.functions.iter().position(|f| f.name == *name);
            let index = known.unwrap_or_else(|| {
                interface.functions.push(FunctionInterface {
                    name: name.clone(),
                    ..FunctionInterface::default()
                });
                interface.functions.len() - 1
            });
            let function = &mut interface.functions[index];
            let features = match side.as_str() {
                "inputs" => &mut function.inputs,
                "outputs" => &mut function.outputs,
                _ => &mut function.states,
            };
            features.clone_from(&described.features);
        }
    }

    /// Whether the case must stay as it is.
    pub(crate) fn is_negative(&self) -> bool {
        is_negative(&self.name)
    }
}

/// Whether the case of this name must stay as it is.
pub(crate) fn is_negative(name: &str) -> bool {
    name.starts_with("no_")
}

/// `FILE OFFSET: 00 3c …`.
fn blob(text: &str) -> Option<(BlobRef, Vec<u8>)> {
    let (place, digits) = text.split_once(':')?;
    let (file, offset) = place.trim().split_once(' ')?;
    let blob = BlobRef {
        file: file.to_owned(),
        offset: offset.parse().ok()?,
    };
    let bytes = digits
        .split_whitespace()
        .map(|pair| u8::from_str_radix(pair, 16).ok())
        .collect::<Option<_>>()?;
    Some((blob, bytes))
}

/// `FUNCTION: VALUE = PEAK, …`: of one element each.
fn measured(text: &str, ranges: &mut Ranges) -> Option<()> {
    let (function, values) = text.split_once(':')?;
    for value in values.split(',') {
        let (name, peak) = value.split_once('=')?;
        let peak: f64 = peak.trim().parse().ok()?;
        let range = Range {
            elements: 1,
            peak,
            smallest: peak,
            ..Range::default()
        };
        let function = ranges.function_mut("", function.trim());
        function.add(name.trim(), &range);
    }
    Some(())
}

/// `FILE: missing`, `FILE: pointer`, or `FILE OFFSET: DTYPE ELEMENTS`.
fn stored(text: &str, files: &mut BTreeMap<String, File>) -> Option<()> {
    let (place, what) = text.split_once(": ")?;
    let Some((file, offset)) = place.split_once(' ') else {
        let file = match what.trim() {
            "missing" => File::Missing,
            "pointer" => File::Pointer,
            _ => return None,
        };
        files.insert(place.to_owned(), file);
        return Some(());
    };
    let (dtype, elements) = what.trim().split_once(' ')?;
    let record = (blob_dtype(dtype)?, elements.parse().ok()?);
    let known = files
        .entry(file.to_owned())
        .or_insert_with(|| File::Records(BTreeMap::new()));
    match known {
        File::Records(records) => records.insert(offset.parse().ok()?, record),
        File::Missing | File::Pointer => return None,
    };
    Some(())
}

/// `FUNCTION: nothing`, or `FUNCTION inputs: NAME KIND; …`, or so for `outputs` or `states`, each kind
/// in the words of [`Feature::kind`].
fn described(text: &str) -> Option<Described> {
    let (place, what) = text.split_once(':')?;
    let what = what.trim();
    let Some((function, side)) = place.split_once(' ') else {
        return (what == "nothing").then(|| Described {
            function: place.to_owned(),
            side: None,
            features: Vec::new(),
        });
    };
    let parts = what
        .split(';')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    Some(Described {
        function: function.to_owned(),
        side: Some(side.to_owned()),
        features: parts.map(feature).collect::<Option<_>>()?,
    })
}

fn feature(text: &str) -> Option<Feature> {
    let (name, kind) = text.split_once(' ')?;
    let sizes = kind.split_once('[')?.1.split_once(']')?.0;
    let sizes = sizes.split(',').map(|size| size.trim().parse().ok());
    let shape: Vec<usize> = sizes.collect::<Option<_>>()?;
    let (mut ranges, mut shapes) = (Vec::new(), Vec::new());
    if kind.ends_with("shapes in a range") {
        ranges = shape.iter().map(|size| (*size, None)).collect();
    }
    if kind.ends_with("other shapes listed") {
        shapes = vec![shape.clone(), shape.iter().map(|size| size * 2).collect()];
    }
    Some(Feature {
        name: name.to_owned(),
        kind: kind.to_owned(),
        form: Form::Array {
            shape,
            ranges,
            shapes,
            default: None,
        },
        is_optional: false,
    })
}
