//! `milwright.toml`: which rules a project wants, how bad they are, and what is known and accepted.
//!
//! ```toml
//! target = "core-ml"                  # or "ane-direct"
//! select = ["all"]                    # ids of rules and passes, families, "orion", levels of evidence
//! baseline = "milwright-baseline.json" # beside this file
//!
//! [severity]
//! pow = "info"                        # for findings of this rule, where it is not silent
//!
//! [[ignore]]
//! rule = "pow"                        # any word that `select` takes
//! op = "encoder_*"                    # the operation, or function/operation; everywhere if not given
//! reason = "checked on the device"    # required
//!
//! [rule.pow-to-mul]
//! max_exponent = 2                    # options of the rule's pass
//! ```
//!
//! `ignore = ["pow"]` is short for words that are ignored everywhere. TOML has a key only once, so that a
//! file has either that or `[[ignore]]`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::glob;
use super::selector::{Selection, UnknownWord, rules};
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{Pass, Severity, Target, nearest};

/// The file's name.
const FILE_NAME: &str = "milwright.toml";

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no configuration.
    #[error("{}: {why}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

/// An operation at which a rule's findings are accepted.
#[derive(Clone, Debug)]
pub struct Ignore {
    /// The words as written, for messages.
    pub rule: String,
    /// The rules.
    pub rules: Selection,
    /// A pattern of the operation's name, or of `function/op`; `*` fits anything.
    pub op: String,
    /// Why.
    pub reason: String,
}

impl Ignore {
    /// Whether the operation of a path `stage/function/op` is meant: the pattern fits the whole of it,
    /// or the end of it behind a `/`.
    pub(super) fn fits(&self, path: &str) -> bool {
        let ends = path
            .match_indices('/')
            .map(|(at, _)| path.get(at + 1..).unwrap_or_default());
        std::iter::once(path)
            .chain(ends)
            .any(|end| glob::matches(&self.op, end))
    }
}

/// A configuration, checked.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The target.
    pub target: Option<Target>,
    /// The rules that are wanted; all if it does not say.
    pub select: Option<Selection>,
    /// The rules that are not.
    pub ignore: Selection,
    /// How bad findings of a rule are.
    pub severity: BTreeMap<String, Severity>,
    /// What is accepted where.
    pub ignores: Vec<Ignore>,
    /// The baseline, as a path that can be opened.
    pub baseline: Option<PathBuf>,
    /// Options of passes, by the pass's id.
    pub options: BTreeMap<&'static str, OptionMap>,
}

#[derive(Deserialize)]
struct Raw {
    target: Option<String>,
    select: Option<Vec<String>>,
    ignore: Option<toml::Value>,
    severity: Option<BTreeMap<String, String>>,
    baseline: Option<PathBuf>,
    rule: Option<BTreeMap<String, OptionMap>>,
    #[serde(flatten)]
    rest: BTreeMap<String, toml::Value>,
}

/// The keys of the file.
const KEYS: [&str; 6] = ["target", "select", "ignore", "severity", "baseline", "rule"];

/// The keys of an `[[ignore]]`.
const IGNORE_KEYS: [&str; 3] = ["rule", "op", "reason"];

impl Config {
    /// The file that holds for a model: in the folder that the model is in, or the nearest above it.
    pub fn find(model: &Path) -> Option<PathBuf> {
        let absolute = std::path::absolute(model).ok()?;
        absolute
            .ancestors()
            .skip(1)
            .map(|folder| folder.join(FILE_NAME))
            .find(|file| file.is_file())
    }

    /// Reads a file.
    pub fn read(path: &Path, passes: &[&'static dyn Pass]) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        let mut config = Self::parse(&text, passes).map_err(|why| ConfigError::Invalid {
            path: path.to_owned(),
            why,
        })?;
        if let (Some(baseline), Some(folder)) = (&mut config.baseline, path.parent()) {
            *baseline = folder.join(&*baseline);
        }
        Ok(config)
    }

    /// Reads a text. The error says what is wrong, and names the nearest word where one is unknown.
    pub fn parse(text: &str, passes: &[&'static dyn Pass]) -> Result<Self, String> {
        let raw: Raw = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.map(|before| before.matches('\n').count() + 1);
            let line = line.map_or_else(String::new, |line| format!("line {line}: "));
            format!("{line}{}", error.message())
        })?;
        if let Some(key) = raw.rest.keys().next() {
            return Err(unknown("key", key, KEYS));
        }
        let words = |words: &[String]| -> Result<Selection, String> {
            Selection::parse(words, passes).map_err(|error: UnknownWord| error.to_string())
        };
        let mut config = Self {
            target: raw.target.as_deref().map(target).transpose()?,
            select: raw.select.as_deref().map(words).transpose()?,
            baseline: raw.baseline,
            ..Self::default()
        };
        let ignored = match raw.ignore {
            None => Vec::new(),
            Some(toml::Value::Array(ignored)) => ignored,
            Some(_) => return Err("`ignore` is no list of words and no `[[ignore]]`".to_owned()),
        };
        for entry in ignored {
            match entry {
                toml::Value::String(word) => config.ignore.extend(words(&[word])?),
                toml::Value::Table(place) => config.ignores.push(ignore(place, passes)?),
                _ => return Err("`ignore` has an entry that is no word".to_owned()),
            }
        }
        for (id, word) in raw.severity.unwrap_or_default() {
            if !rules(passes).any(|(_, rule)| rule.id == id) {
                let ids = rules(passes).map(|(_, rule)| rule.id);
                return Err(format!("[severity] {}", unknown("rule", &id, ids)));
            }
            config.severity.insert(id, severity(&word)?);
        }
        for (id, options) in raw.rule.unwrap_or_default() {
            config.add_options(&id, options, passes)?;
        }
        Ok(config)
    }

    /// Options in `[rule.ID]`; the id is a rule's or a pass's.
    fn add_options(
        &mut self,
        id: &str,
        options: OptionMap,
        passes: &[&'static dyn Pass],
    ) -> Result<(), String> {
        let found = passes
            .iter()
            .find(|pass| pass.meta().id == id || pass.rules().iter().any(|rule| rule.id == id));
        let Some(pass) = found else {
            let ids = rules(passes)
                .map(|(_, rule)| rule.id)
                .chain(passes.iter().map(|pass| pass.meta().id));
            return Err(format!("[rule.{id}]: {}", unknown("rule", id, ids)));
        };
        let known = pass.options();
        if let Some(name) = options.keys().find(|name| !known.contains_key(*name)) {
            let names = known.keys().map(String::as_str);
            return Err(format!("[rule.{id}]: {}", unknown("option", name, names)));
        }
        let check = || -> Result<(), OptionError> {
            pass.matcher(&options)?;
            pass.whole_matcher(&options)?;
            Ok(())
        };
        check().map_err(|error| format!("[rule.{id}]: {error}"))?;
        self.options
            .entry(pass.meta().id)
            .or_default()
            .extend(options);
        Ok(())
    }
}

/// Says that there is no such word, and which one is like it.
fn unknown<'a>(what: &str, word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    match nearest(word, known) {
        Some(nearest) => format!("there is no {what} `{word}`; did you mean `{nearest}`?"),
        None => format!("there is no {what} `{word}`"),
    }
}

fn target(word: &str) -> Result<Target, String> {
    Target::ALL
        .into_iter()
        .find(|target| target.name() == word)
        .ok_or_else(|| unknown("target", word, Target::ALL.map(Target::name)))
}

fn severity(word: &str) -> Result<Severity, String> {
    Severity::ALL
        .into_iter()
        .find(|severity| severity.name() == word)
        .ok_or_else(|| {
            format!(
                "[severity] {}",
                unknown("severity", word, Severity::ALL.map(Severity::name))
            )
        })
}

fn ignore(place: toml::Table, passes: &[&'static dyn Pass]) -> Result<Ignore, String> {
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    for (key, value) in place {
        if !IGNORE_KEYS.contains(&key.as_str()) {
            return Err(format!("[[ignore]] {}", unknown("key", &key, IGNORE_KEYS)));
        }
        match value {
            toml::Value::String(text) => texts.insert(key, text),
            _ => return Err(format!("[[ignore]] `{key}` is no text")),
        };
    }
    let mut take = |key: &str| texts.remove(key).filter(|text| !text.trim().is_empty());
    let rule = take("rule").ok_or("[[ignore]] has no `rule`")?;
    let reason = take("reason").ok_or_else(|| {
        format!("[[ignore]] of `{rule}` has no `reason`; say why it is right here")
    })?;
    let rules =
        Selection::parse(&[&rule], passes).map_err(|error| format!("[[ignore]] {error}"))?;
    Ok(Ignore {
        rule,
        rules,
        op: take("op").unwrap_or_else(|| "*".to_owned()),
        reason,
    })
}
