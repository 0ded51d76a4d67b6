//! order-interface: inputs and outputs get names whose alphabetical order is the declared one.

use crate::eval::ports::{Direction, Port};
use crate::ir::{Function, ValueType};
use crate::model::Side;
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Evidence, Exactness, Family, Meta, Pass, Rule, Severity, Target, Whole, WholeAttempt,
    WholeEdit, WholeError, WholeMatcher,
};

/// The pass.
pub(super) struct OrderInterface;

static META: Meta = Meta {
    id: "order-interface",
    family: Family::Placement,
    summary: "inputs and outputs get names whose alphabetical order is the declared order",
    exactness: Exactness::Interface,
    since: Opset::CoreML5,
    targets: &[Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &["orion-3", "orion-19"],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const ORDER: Rule = Rule {
    id: "order-interface",
    summary: "inputs or outputs that are not in the alphabetical order of their names",
    why: "The private interface takes surfaces in the alphabetical order of the names, whatever order \
          the program declares: Orion's outputs q32, k32, v32 arrived as k32, q32, v32 (rows 3 and 19, \
          tried with all orders of three inputs). Nothing complains, the numbers are others. Core ML \
          binds by name.",
    help: "order-interface gives them names in order; not for Core ML.",
    evidence: META.evidence,
    sources: &["https://github.com/mechramc/Orion"],
    severity: &[(Target::AneDirect, Severity::Error)],
    catalog: META.catalog,
};

impl Pass for OrderInterface {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[ORDER]
    }

    fn whole_matcher(
        &self,
        options: &OptionMap,
    ) -> Result<Option<Box<dyn WholeMatcher>>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Some(Box::new(Order)))
    }
}

struct Order;

impl WholeMatcher for Order {
    fn attempts(&mut self, whole: &Whole<'_>) -> Vec<WholeAttempt> {
        let mut attempts = Vec::new();
        for (name, function) in &whole.program.functions {
            let inputs: Vec<String> = function
                .inputs
                .iter()
                .filter(|input| !input.ty.as_ref().is_some_and(ValueType::is_state))
                .map(|input| input.name.clone())
                .collect();
            attempts.extend(attempt(whole, name, Direction::Input, &inputs));
            match outputs(function) {
                Ok(outputs) => attempts.extend(attempt(whole, name, Direction::Output, &outputs)),
                Err(why) => attempts.push(WholeAttempt::missed([name, "", "output"], why)),
            }
        }
        attempts
    }
}

/// The names of a function's outputs, which are the same in each of its bodies.
fn outputs(function: &Function) -> Result<Vec<String>, String> {
    let mut names: Option<Vec<String>> = None;
    for body in function.specializations.values() {
        let own: Vec<String> = body
            .graph
            .outputs()
            .iter()
            .map(|value| body.graph.name(*value).to_owned())
            .collect();
        if names.as_ref().is_some_and(|names| *names != own) {
            return Err("its bodies have outputs of other names, or in another order".to_owned());
        }
        names = Some(own);
    }
    Ok(names.unwrap_or_default())
}

fn attempt(
    whole: &Whole<'_>,
    function: &str,
    direction: Direction,
    names: &[String],
) -> Option<WholeAttempt> {
    let first = names
        .iter()
        .zip(names.iter().skip(1))
        .find(|(a, b)| a > b)?;
    let (what, letter, row) = match direction {
        Direction::Input => ("input", 'i', &["orion-19"]),
        Direction::Output => ("output", 'o', &["orion-3"]),
    };
    let mut found = ORDER.found(format!(
        "{what} `{}` is declared before `{}`, and bound behind it",
        first.0, first.1
    ));
    found.rule.catalog = row;
    let place = [function, first.1.as_str(), what];
    let width = (names.len() - 1).to_string().len();
    // Functions with the same inputs get the same names for them.
    let own = whole.program.functions.get(function)?;
    let pairs: Vec<(String, String)> = names
        .iter()
        .enumerate()
        .map(|(index, name)| {
            let new = own.fresh_name(&format!("{letter}{index:0width$}_{name}"));
            (name.clone(), new)
        })
        .collect();
    let list: Vec<&str> = pairs.iter().map(|(_, new)| new.as_str()).collect();
    let text = format!("the {what}s are called {}", list.join(", "));
    let function = function.to_owned();
    let attempt = WholeAttempt::matched(place, text, move |edit| {
        rename(edit, &function, direction, &pairs)
    });
    Some(attempt.with(found))
}

fn rename(
    edit: &mut WholeEdit<'_>,
    function: &str,
    direction: Direction,
    pairs: &[(String, String)],
) -> Result<(), WholeError> {
    for (index, (old, new)) in pairs.iter().enumerate() {
        let side = match direction {
            Direction::Input => {
                edit.function(function)?.rename_input(old, new)?;
                Side::Input
            }
            Direction::Output => {
                edit.function(function)?.rename_output(index, new)?;
                Side::Output
            }
        };
        edit.description().rename(function, side, old, new);
    }
    edit.note_ports(|map| {
        for (old, new) in pairs {
            map.note(function, direction, old, &Port::named(new));
        }
    })
}
