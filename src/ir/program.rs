//! A program: its functions, and for each function the bodies for one or more opsets.

use std::collections::BTreeMap;
use std::fmt;

use super::graph::{Binding, Graph, NamedType, Node};
use super::names::Names;
use super::types::DType;
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
    /// Whether an operation or a value of it has this name, in any function.
    pub fn has_op(&self, name: &str) -> bool {
        fn in_graph(graph: &Graph, name: &str) -> bool {
            graph.ops().any(|(_, op)| {
                op.name() == Some(name)
                    || op.results().iter().any(|result| result.name == name)
                    || op.blocks().iter().any(|block| in_graph(block, name))
            })
        }
        self.functions
            .values()
            .flat_map(|function| function.specializations.values())
            .any(|body| in_graph(&body.graph, name))
    }
}

/// Where a value stands, for messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct ValuePlace<'a> {
    /// The function; empty for an attribute of the program.
    pub function: &'a str,
    /// The operation: its first result's name; empty for an attribute of something larger.
    pub op: &'a str,
    /// The operation's type.
    pub op_type: &'a str,
}

impl fmt::Display for ValuePlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.function, self.op_type) {
            ("", _) => f.write_str("the program's attributes"),
            (function, "") => write!(f, "function `{function}`"),
            (function, op_type) => {
                write!(f, "function `{function}`, `{op_type}` op `{}`", self.op)
            }
        }
    }
}

/// What [`Program::for_each_value_at`] calls.
type Visit<'v> = &'v mut dyn FnMut(&ValuePlace<'_>, &Value);

impl Program {
    /// Whether the program computes with fp16 values anywhere.
    pub fn has_half(&self) -> bool {
        let mut found = false;
        self.for_each_value(&mut |value| {
            let ty = value.tensor_type();
            found |= ty.is_some_and(|ty| ty.dtype == DType::Float16);
        });
        let mut inputs = self.functions.values().flat_map(|f| &f.inputs);
        found
            || inputs.any(|input| {
                let ty = input.ty.as_ref();
                let ty = ty.and_then(|ty| ty.as_tensor().or_else(|| ty.as_state()));
                ty.is_some_and(|ty| ty.dtype == DType::Float16)
            })
    }

    /// Calls `visit` for every value that the program holds: attributes, literals, and the values
    /// inside lists, tuples and dictionaries, in a fixed order.
    pub fn for_each_value(&self, visit: &mut dyn FnMut(&Value)) {
        self.for_each_value_at(&mut |_, value| visit(value));
    }

    /// Like [`Program::for_each_value`], and says where each value stands.
    pub fn for_each_value_at(&self, visit: Visit<'_>) {
        visit_all(&ValuePlace::default(), &self.attributes, visit);
        for (name, function) in &self.functions {
            let place = ValuePlace {
                function: name,
                ..ValuePlace::default()
            };
            visit_all(&place, &function.attributes, visit);
            for body in function.specializations.values() {
                visit_graph(place, &body.graph, visit);
            }
        }
    }
}

/// What [`Program::for_each_value_mut`] calls: with the name of the operation (its first result's,
/// or its own), the parameter or attribute, and the value.
type VisitMut<'v> = &'v mut dyn FnMut(&str, &str, &mut Value);

impl Program {
    /// Calls `visit` for every value that belongs to an operation, those inside lists, tuples and
    /// dictionaries included, in a fixed order. Where the data is may be changed, the type must stay.
    pub fn for_each_value_mut(&mut self, visit: VisitMut<'_>) {
        for function in self.functions.values_mut() {
            for body in function.specializations.values_mut() {
                visit_graph_mut(&mut body.graph, visit);
            }
        }
    }
}

fn visit_graph_mut(graph: &mut Graph, visit: VisitMut<'_>) {
    for node in graph.store.node_weights_mut() {
        let Node::Op(op) = node else { continue };
        let name = match op.results.first() {
            Some(result) => result.name.clone(),
            None => op.name().unwrap_or_default().to_owned(),
        };
        for argument in &mut op.arguments {
            for binding in &mut argument.bindings {
                if let Binding::Immediate(value) = binding {
                    visit_value_mut(&name, &argument.parameter, value, visit);
                }
            }
        }
        for (attribute, value) in op.attributes.iter_mut() {
            visit_value_mut(&name, attribute, value, visit);
        }
        for block in &mut op.blocks {
            visit_graph_mut(block, visit);
        }
    }
}

fn visit_value_mut(op: &str, parameter: &str, value: &mut Value, visit: VisitMut<'_>) {
    visit(op, parameter, value);
    match &mut value.content {
        Content::Immediate(Immediate::List(values) | Immediate::Tuple(values)) => {
            for value in values {
                visit_value_mut(op, parameter, value, visit);
            }
        }
        Content::Immediate(Immediate::Dictionary(pairs)) => {
            for (key, value) in pairs {
                for value in [key, value].into_iter().flatten() {
                    visit_value_mut(op, parameter, value, visit);
                }
            }
        }
        _ => {}
    }
}

fn visit_all<'a>(
    place: &ValuePlace<'_>,
    values: impl IntoIterator<Item = (&'a String, &'a Value)>,
    visit: Visit<'_>,
) {
    for (_, value) in values {
        visit_value(place, value, visit);
    }
}

fn visit_graph(place: ValuePlace<'_>, graph: &Graph, visit: Visit<'_>) {
    visit_all(&place, graph.attributes(), visit);
    for (_, op) in graph.ops() {
        let place = ValuePlace {
            op: op.results().first().map_or("", |result| &result.name),
            op_type: op.op_type(),
            ..place
        };
        for argument in op.arguments() {
            for binding in &argument.bindings {
                if let Binding::Immediate(value) = binding {
                    visit_value(&place, value, visit);
                }
            }
        }
        visit_all(&place, op.attributes(), visit);
        for block in op.blocks() {
            visit_graph(place, block, visit);
        }
    }
}

fn visit_value(place: &ValuePlace<'_>, value: &Value, visit: Visit<'_>) {
    visit(place, value);
    match &value.content {
        Content::Immediate(Immediate::List(values) | Immediate::Tuple(values)) => {
            for value in values {
                visit_value(place, value, visit);
            }
        }
        Content::Immediate(Immediate::Dictionary(pairs)) => {
            for value in pairs.iter().flat_map(|(key, value)| [key, value]).flatten() {
                visit_value(place, value, visit);
            }
        }
        _ => {}
    }
}
