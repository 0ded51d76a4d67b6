//! A compute plan that a Mac made, as JSON.
//!
//! `MLComputePlan` has no file form of its own; scripts write its rows as they like. What they have in
//! common is read: a list of rows, or an object with the lists of several functions,
//!
//! ```json
//! {"functions": {"main": [{"output": "conv_0", "preferred": "MLNeuralEngineComputeDevice"}]}}
//! ```
//!
//! where a row has the name of a result (`output`, `name`, or the first of `outputs`) and a device
//! (`preferred`, `preferred_compute_device` or `device`): the name of Core ML's class, or `ane`, `gpu`,
//! `cpu`. A row of a list may name its `function`, which else is `main`. Rows without a device, such as
//! those of constants, and all other fields are skipped. `docs/placement.md` has a script.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Device;

/// The devices of operations, by function and by the name of a result.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    functions: BTreeMap<String, BTreeMap<String, Device>>,
}

/// Why a plan cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The file cannot be read.
    #[error("{path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is no JSON.
    #[error("{path}: {source}", path = path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// It has another form.
    #[error("{path}: {what}; `milwright lint --help` names the form", path = path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// What is other.
        what: String,
    },
}

impl Plan {
    /// Reads a plan.
    pub fn read(path: &Path) -> Result<Self, PlanError> {
        let text = std::fs::read(path).map_err(|source| PlanError::Read {
            path: path.to_owned(),
            source,
        })?;
        let value = serde_json::from_slice(&text).map_err(|source| PlanError::Json {
            path: path.to_owned(),
            source,
        })?;
        Self::of(&value).map_err(|what| PlanError::Form {
            path: path.to_owned(),
            what,
        })
    }

    /// Where the operation that makes a result runs, if the plan has it.
    pub fn device(&self, function: &str, result: &str) -> Option<Device> {
        self.functions.get(function)?.get(result).copied()
    }

    /// The number of operations with a device.
    pub fn count(&self) -> usize {
        self.functions.values().map(BTreeMap::len).sum()
    }

    pub(super) fn of(value: &Value) -> Result<Self, String> {
        let mut plan = Self::default();
        match value {
            Value::Array(rows) => plan.rows("main", rows)?,
            Value::Object(fields) => match (fields.get("functions"), fields.get("operations")) {
                (Some(Value::Object(functions)), _) => {
                    for (name, rows) in functions {
                        let rows = rows.as_array();
                        plan.rows(name, rows.ok_or("a function is no list of rows")?)?;
                    }
                }
                (None, Some(Value::Array(rows))) => plan.rows("main", rows)?,
                _ => return Err("it has neither `functions` nor `operations`".to_owned()),
            },
            _ => return Err("it is neither a list nor an object".to_owned()),
        }
        match plan.count() {
            0 => Err("no row has a result's name and a device".to_owned()),
            _ => Ok(plan),
        }
    }

    fn rows(&mut self, function: &str, rows: &[Value]) -> Result<(), String> {
        for row in rows {
            let text = |field: &str| row.get(field).and_then(Value::as_str);
            let outputs = row.get("outputs").and_then(Value::as_array);
            let first = outputs
                .and_then(|outputs| outputs.first())
                .and_then(Value::as_str);
            let device = text("preferred")
                .or_else(|| text("preferred_compute_device"))
                .or_else(|| text("device"));
            let result = text("output").or_else(|| text("name")).or(first);
            let (Some(result), Some(device)) = (result, device) else {
                continue;
            };
            let parsed = parse(device).ok_or_else(|| format!("`{device}` is no device"))?;
            let function = text("function").unwrap_or(function);
            let devices = self.functions.entry(function.to_owned()).or_default();
            devices.insert(result.to_owned(), parsed);
        }
        Ok(())
    }
}

fn parse(device: &str) -> Option<Device> {
    let word = device.to_ascii_lowercase().replace([' ', '_', '-'], "");
    Some(match word.as_str() {
        "mlneuralenginecomputedevice" | "neuralengine" | "ane" | "ne" => Device::Ane,
        "mlgpucomputedevice" | "gpu" => Device::Gpu,
        "mlcpucomputedevice" | "cpu" => Device::Cpu,
        _ => return None,
    })
}
