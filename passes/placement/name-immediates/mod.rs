//! name-immediates: parameters written as literals become named consts.

use crate::ir::{Binding, NodeId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Target};

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

impl Pass for NameImmediates {
    fn meta(&self) -> &'static Meta {
        &META
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
            return Attempt::missed(node, why);
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
    }
}
