//! A case file: its program, and what the comments in its first lines say.

use std::collections::BTreeMap;

use milwright::ir::{BlobRef, Program};
use milwright::pass::{Blobs, Pipeline};
use milwright::passes;
use milwright::text::{Dialect, parse};

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
}

/// Data of weight files, from comments.
#[derive(Default)]
pub(crate) struct Weights(BTreeMap<BlobRef, Vec<u8>>);

impl Weights {
    /// All data, by where it is.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&BlobRef, &[u8])> {
        self.0.iter().map(|(blob, bytes)| (blob, bytes.as_slice()))
    }
}

impl Blobs for Weights {
    fn bytes(&self, blob: &BlobRef) -> Option<&[u8]> {
        self.0.get(blob).map(Vec::as_slice)
    }
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
                blobs.0.insert(blob, bytes);
            } else if comment == "silent" {
                silent = true;
            }
        }
        let parsed = parse(source, name).map_err(|errors| {
            let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
            lines.join("\n")
        })?;
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
        })
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
