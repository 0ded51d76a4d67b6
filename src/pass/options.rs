//! Options of passes: a table of JSON values that a pass reads into its own serde struct.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Options given to a pass, by name.
pub type OptionMap = Map<String, Value>;

/// Options that a pass does not take.
#[derive(Debug, thiserror::Error)]
#[error("pass `{pass}`: {why}")]
pub struct OptionError {
    /// The pass.
    pub pass: &'static str,
    /// What is wrong; names the known options.
    pub why: String,
}

/// Reads the options of a pass; what is not given has its default.
pub fn read<T: DeserializeOwned>(
    pass: &'static str,
    options: &OptionMap,
) -> Result<T, OptionError> {
    let parse = |options: &OptionMap| serde_json::from_value(Value::Object(options.clone()));
    parse(options).map_err(|error| {
        // serde does not say which option it means: the one that is wrong on its own.
        let culprit = options.iter().find(|(name, value)| {
            let alone = OptionMap::from_iter([((*name).clone(), (*value).clone())]);
            parse(&alone).is_err()
        });
        let why = match culprit {
            Some((name, _)) if !error.to_string().contains(&format!("`{name}`")) => {
                format!("option `{name}`: {error}")
            }
            _ => error.to_string(),
        };
        OptionError { pass, why }
    })
}

/// The defaults of a pass's options, for its page.
pub fn defaults<T: Default + Serialize>() -> OptionMap {
    match serde_json::to_value(T::default()) {
        Ok(Value::Object(map)) => map,
        _ => OptionMap::new(),
    }
}

/// An option's value as written on the command line or in a pipeline: a bool, a number, or text.
pub fn parse_value(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(value @ (Value::Bool(_) | Value::Number(_))) => value,
        _ => Value::String(text.trim_matches('"').to_owned()),
    }
}

/// Refuses any option: for a pass that has none.
pub fn none(pass: &'static str, options: &OptionMap) -> Result<(), OptionError> {
    match options.keys().next() {
        None => Ok(()),
        Some(name) => Err(OptionError {
            pass,
            why: format!("it has no options, but was given `{name}`"),
        }),
    }
}
