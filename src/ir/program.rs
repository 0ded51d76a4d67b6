//! A program: its functions, and for each function the bodies for one or more opsets.

use std::collections::BTreeMap;

use super::graph::{Binding, Graph, NamedType};
use super::names::Names;
use super::value::{Content, Immediate, Value};

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

impl Program {
    /// Calls `visit` for every value that the program holds: attributes, literals, and the values
    /// inside lists, tuples and dictionaries, in a fixed order.
    pub fn for_each_value(&self, visit: &mut dyn FnMut(&Value)) {
        visit_all(&self.attributes, visit);
        for function in self.functions.values() {
            visit_all(&function.attributes, visit);
            for body in function.specializations.values() {
                visit_graph(&body.graph, visit);
            }
        }
    }
}

fn visit_all(values: &BTreeMap<String, Value>, visit: &mut dyn FnMut(&Value)) {
    for value in values.values() {
        visit_value(value, visit);
    }
}

fn visit_graph(graph: &Graph, visit: &mut dyn FnMut(&Value)) {
    visit_all(graph.attributes(), visit);
    for (_, op) in graph.ops() {
        for argument in op.arguments() {
            for binding in &argument.bindings {
                if let Binding::Immediate(value) = binding {
                    visit_value(value, visit);
                }
            }
        }
        visit_all(op.attributes(), visit);
        for block in op.blocks() {
            visit_graph(block, visit);
        }
    }
}

fn visit_value(value: &Value, visit: &mut dyn FnMut(&Value)) {
    visit(value);
    match &value.content {
        Content::Immediate(Immediate::List(values) | Immediate::Tuple(values)) => {
            for value in values {
                visit_value(value, visit);
            }
        }
        Content::Immediate(Immediate::Dictionary(pairs)) => {
            for value in pairs.iter().flat_map(|(key, value)| [key, value]).flatten() {
                visit_value(value, visit);
            }
        }
        _ => {}
    }
}
