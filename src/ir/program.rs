//! A program: its functions, and for each function the bodies for one or more opsets.

use std::collections::BTreeMap;

use super::graph::{Graph, NamedType};
use super::names::Names;
use super::value::Value;

/// An ML Program.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Version of the program format; 1 in every file seen.
    pub version: i64,
    /// The functions by name.
    pub functions: BTreeMap<String, Function>,
    /// Free text.
    pub doc: String,
    /// Attributes, such as `buildInfo`.
    pub attributes: BTreeMap<String, Value>,
}

/// A function of a program.
#[derive(Clone, Debug, Default)]
pub struct Function {
    /// The inputs in order; every body has them as its first inputs.
    pub inputs: Vec<NamedType>,
    /// Key of the body that runs, such as `CoreML8`.
    pub opset: String,
    /// The bodies by opset.
    pub specializations: BTreeMap<String, Body>,
    /// Attributes of the function.
    pub attributes: BTreeMap<String, Value>,
}

impl Function {
    /// The body that runs: the one keyed by the function's opset.
    pub fn active(&self) -> Option<&Body> {
        self.specializations.get(&self.opset)
    }
}

/// A function body for one opset.
#[derive(Clone, Debug, Default)]
pub struct Body {
    /// The outermost block.
    pub graph: Graph,
    /// The names in use in it and in the blocks nested in it.
    pub names: Names,
}

impl Program {
    /// Number of operations in all functions and bodies, nested blocks included.
    pub fn count_ops(&self) -> usize {
        self.functions
            .values()
            .flat_map(|function| function.specializations.values())
            .map(|body| body.graph.count_ops())
            .sum()
    }
}
