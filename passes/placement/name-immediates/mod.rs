//! name-immediates: parameters written as literals become named consts.

use crate::ir::{Binding, NodeId, Operation};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Found, Matcher, Meta, Pass, Rule, Severity, Target,
};

/// The pass.
pub(super) struct NameImmediates;

static META: Meta = Meta {
    id: "name-immediates",
    family: Family::Placement,
    summary: "parameters written as literals become named consts",
    exactness: Exactness::Exact,
    since: Opset::CoreML5,
    targets: &[Target::AneDirect],
    evidence: Evidence::Reported,
    catalog: &["orion-12"],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const LITERAL: Rule = Rule {
    id: "name-immediates",
    summary: "a parameter written as a literal",
    why: "The private interface is reported to reject a matmul whose transpose flags are no named consts \
          (Orion, row 12); programs that others have run with it name all of them. Core ML reads \
          literals, and coremltools writes named consts.",
    help: "name-immediates makes named consts of them.",
    evidence: META.evidence,
    sources: &["https://github.com/mechramc/Orion"],
    severity: &[(Target::AneDirect, Severity::Error)],
    catalog: META.catalog,
};

impl Pass for NameImmediates {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[LITERAL]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(Name))
    }
}

struct Name;

impl Matcher for Name {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let Some(op) = block.op(node) else {
            return Attempt::NoMatch;
        };
        // The literals of a compressed weight are the weight; Core ML wants them in place.
        if op.op_type().starts_with("constexpr_") {
            return Attempt::NoMatch;
        }
        let literal = |binding: &Binding| matches!(binding, Binding::Immediate(_));
        let arguments: Vec<_> = op
            .arguments()
            .iter()
            .filter(|argument| argument.bindings.iter().any(literal))
            .cloned()
            .collect();
        if arguments.is_empty() {
            return Attempt::NoMatch;
        }
        let untyped = |binding: &Binding| match binding {
            Binding::Immediate(value) => value.ty.is_none(),
            _ => false,
        };
        if let Some(argument) = arguments.iter().find(|a| a.bindings.iter().any(untyped)) {
            let why = format!("the type of its `{}` is not known", argument.parameter);
            return Attempt::missed(node, why).with(found(op));
        }
        let names: Vec<String> = arguments
            .iter()
            .map(|argument| format!("`{}`", argument.parameter))
            .collect();
        let what = match names.as_slice() {
            [one] => format!("{one} becomes a named const"),
            _ => format!("{} become named consts", names.join(", ")),
        };
        Attempt::matched(what, move |edit| {
            for argument in arguments {
                let bindings = argument
                    .bindings
                    .into_iter()
                    .map(|binding| match binding {
                        Binding::Immediate(value) => edit.constant(value),
                        other => other,
                    })
                    .collect();
                edit.bind(node, &argument.parameter, Some(bindings));
            }
            Ok(())
        })
        .with(found(op))
    }
}

fn found(op: &Operation) -> Found {
    let literals = op.arguments().iter().filter(|argument| {
        let mut bindings = argument.bindings.iter();
        bindings.any(|binding| matches!(binding, Binding::Immediate(_)))
    });
    let names: Vec<String> = literals.map(|a| format!("`{}`", a.parameter)).collect();
    let of = format!("{} of `{}`", names.join(", "), op.op_type());
    match (op.op_type(), names.len()) {
        // The report is about these.
        ("matmul", 1) => LITERAL.found(format!("{of} is a literal")),
        ("matmul", _) => LITERAL.found(format!("{of} are literals")),
        (_, 1) => warning(format!("{of} is a literal")),
        _ => warning(format!("{of} are literals")),
    }
}

fn warning(message: String) -> Found {
    LITERAL
        .found(message)
        .severities(&[(Target::AneDirect, Severity::Warning)])
}
