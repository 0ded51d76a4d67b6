//! Checks a program against the meaning of its operations.
//!
//! Invariants, for every operation that the opset knows:
//! - its parameters are among those of its signature, and the required ones are there;
//! - a parameter that must be const is bound to a literal, a const or a `constexpr_*` operation;
//! - it has as many results as its signature allows;
//! - its declared result types are compatible with the inferred ones.
//!
//! An operation or parameter that the opset does not know is worth a [`Severity::Warning`] only: a
//! newer file passes through.

use std::collections::BTreeMap;
use std::fmt;

use crate::ir::{Binding, Graph, Node, Operation, Program, Value, ValueId, ValueType};
use crate::ops::registry::{self, LookupError, Results, Variant};
use crate::ops::{Inference, OpView, Operand, Opset, compatible, infer};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Something that milwright does not know; it is kept as it is.
    Warning,
    /// Something that cannot be right.
    Error,
}

/// Something that does not hold of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The function.
    pub function: String,
    /// The operation: its first result's name, else its own.
    pub op: String,
    /// Its type.
    pub op_type: String,
    /// What does not hold.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            function,
            op,
            op_type,
            what,
            ..
        } = self;
        write!(f, "function `{function}`, `{op_type}` op `{op}`: {what}")
    }
}

/// Checks all operations of a program.
pub fn verify(program: &Program) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, function) in &program.functions {
        for (opset, body) in &function.specializations {
            let Some(opset) = Opset::parse(opset) else {
                continue;
            };
            let mut check = Check {
                function: name,
                opset,
                findings: &mut findings,
            };
            check.graph(&Scope {
                graph: &body.graph,
                outer: None,
            });
        }
    }
    findings
}

/// A graph and those around it.
struct Scope<'a> {
    graph: &'a Graph,
    outer: Option<&'a Scope<'a>>,
}

impl<'a> Scope<'a> {
    /// The value of a constant, seen through captures.
    fn constant(&self, value: ValueId) -> Option<&'a Value> {
        match self.graph.node(value.node)? {
            Node::Op(op) => op.const_value(),
            Node::Capture { source, .. } => self.outer?.constant(*source),
            _ => None,
        }
    }

    /// Whether a value is known at compile time: a const or something that only consts make up.
    fn is_constant(&self, value: ValueId) -> bool {
        match self.graph.node(value.node) {
            Some(Node::Op(op)) => op.op_type() == "const" || op.op_type().starts_with("constexpr_"),
            Some(Node::Capture { source, .. }) => {
                self.outer.is_some_and(|outer| outer.is_constant(*source))
            }
            _ => false,
        }
    }

    fn operand(&self, binding: &'a Binding) -> Option<Operand<'a>> {
        match binding {
            Binding::Value(value) => Some(Operand {
                ty: self.graph.ty(*value)?,
                constant: self.constant(*value),
            }),
            Binding::Immediate(value) => Some(Operand {
                ty: value.ty.as_ref()?,
                constant: Some(value),
            }),
            Binding::Absent => None,
        }
    }
}

struct Check<'a> {
    function: &'a str,
    opset: Opset,
    findings: &'a mut Vec<Finding>,
}

impl Check<'_> {
    fn graph(&mut self, scope: &Scope<'_>) {
        for node in scope.graph.schedule().unwrap_or_default().iter() {
            let Some(op) = scope.graph.op(*node) else {
                continue;
            };
            self.op(scope, op);
            for block in op.blocks() {
                self.graph(&Scope {
                    graph: block,
                    outer: Some(scope),
                });
            }
        }
    }

    fn op(&mut self, scope: &Scope<'_>, op: &Operation) {
        let variant = match registry::signature(op.op_type(), self.opset) {
            Ok(variant) => variant,
            Err(error @ LookupError::Unknown { .. }) => {
                self.find(
                    Severity::Warning,
                    op,
                    format!("{error}; it is kept as it is"),
                );
                return;
            }
            Err(error @ LookupError::TooNew { .. }) => {
                self.find(Severity::Warning, op, error.to_string());
                return;
            }
        };
        self.parameters(scope, op, variant);
        self.results(op, variant);
        self.types(scope, op);
    }

    fn parameters(&mut self, scope: &Scope<'_>, op: &Operation, variant: &Variant) {
        for argument in op.arguments() {
            let Some(parameter) = variant.parameter(&argument.parameter) else {
                let what = format!("parameter `{}` is unknown; it is kept", argument.parameter);
                self.find(Severity::Warning, op, what);
                continue;
            };
            let runtime = argument.bindings.iter().any(
                |binding| matches!(binding, Binding::Value(value) if !scope.is_constant(*value)),
            );
            if parameter.is_const && runtime {
                let what = format!("parameter `{}` must be const", parameter.name);
                self.find(Severity::Error, op, what);
            }
        }
        for parameter in variant.parameters {
            let given = op.argument(parameter.name).is_some()
                || op.attributes().contains_key(parameter.name);
            if !parameter.optional && !given {
                let what = format!("parameter `{}` is missing", parameter.name);
                self.find(Severity::Error, op, what);
            }
        }
    }

    fn results(&mut self, op: &Operation, variant: &Variant) {
        let count = op.results().len();
        let expected = match variant.results {
            Results::Exactly(number) if count != number => number.to_string(),
            Results::Between(least, most) if count < least || count > most => {
                format!("{least} to {most}")
            }
            _ => return,
        };
        let what = format!("it has {count} results instead of {expected}");
        self.find(Severity::Error, op, what);
    }

    fn types(&mut self, scope: &Scope<'_>, op: &Operation) {
        let mut arguments: BTreeMap<&str, Vec<Operand<'_>>> = BTreeMap::new();
        for argument in op.arguments() {
            let operands: Vec<_> = argument
                .bindings
                .iter()
                .filter_map(|binding| scope.operand(binding))
                .collect();
            if operands.len() != argument.bindings.len() {
                return;
            }
            arguments.insert(&argument.parameter, operands);
        }
        let view = OpView {
            op_type: op.op_type(),
            opset: self.opset,
            arguments,
            attributes: op.attributes(),
        };
        let inferred = match infer(&view) {
            Ok(Inference::Types(types)) => types,
            Ok(Inference::NoRule) => return,
            Err(error) => {
                self.find(Severity::Error, op, error.to_string());
                return;
            }
        };
        for (result, inferred) in op.results().iter().zip(&inferred) {
            let Some(declared) = &result.ty else { continue };
            if !compatible(declared, inferred) {
                let what = format!(
                    "`{}` is declared {} but is {}",
                    result.name,
                    brief(declared),
                    brief(inferred)
                );
                self.find(Severity::Error, op, what);
            }
        }
    }

    fn find(&mut self, severity: Severity, op: &Operation, what: String) {
        let label = op
            .results()
            .first()
            .map(|result| result.name.as_str())
            .or(op.name())
            .unwrap_or_default();
        self.findings.push(Finding {
            severity,
            function: self.function.to_owned(),
            op: label.to_owned(),
            op_type: op.op_type().to_owned(),
            what,
        });
    }
}

/// A type in a few characters, for messages.
fn brief(ty: &ValueType) -> String {
    match ty {
        ValueType::Tensor(tensor) => {
            let dims: Vec<String> = tensor
                .dims
                .iter()
                .map(|dim| {
                    dim.size()
                        .map_or_else(|| "?".to_owned(), |size| size.to_string())
                })
                .collect();
            format!("{} [{}]", tensor.dtype, dims.join(", "))
        }
        ValueType::List { .. } => "a list".to_owned(),
        ValueType::Tuple(_) => "a tuple".to_owned(),
        ValueType::Dictionary { .. } => "a dictionary".to_owned(),
        ValueType::State(_) => "a state".to_owned(),
        ValueType::Unspecified => "of no type".to_owned(),
    }
}
