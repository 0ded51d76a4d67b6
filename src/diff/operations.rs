//! Compares what two operations say of themselves: names, attributes, results.

use std::collections::BTreeSet;

use super::edits::{Edit, Kind, Place};
use super::values::{self, Values};
use crate::ir::{NamedType, Operation, Value, ValueType};
use crate::text::{self, Dialect};

/// The names of the results, and else the operation's own.
pub(super) fn names(place: &Place, (a, b): (&Operation, &Operation), edits: &mut Vec<Edit>) {
    let names = |op: &Operation| -> Vec<String> {
        op.results()
            .iter()
            .map(|result| result.name.clone())
            .collect()
    };
    let own = |op: &Operation| op.name().map(str::to_owned);
    let (before, after) = (names(a), names(b));
    if before != after {
        let (before, after) = (before.join(", "), after.join(", "));
        edits.push(Edit::new(place, Kind::Name, "", Some(before), Some(after)));
    } else if own(a) != own(b) {
        edits.push(Edit::new(place, Kind::Attribute, "name", own(a), own(b)));
    }
}

/// The attributes but the name; true if the value of a const has another type.
pub(super) fn attributes(
    place: &Place,
    (a, b): (&Operation, &Operation),
    values: &mut Values,
    edits: &mut Vec<Edit>,
) -> bool {
    let mut retyped = false;
    let names: BTreeSet<&String> = a.attributes().keys().chain(b.attributes().keys()).collect();
    for name in names {
        let (before, after) = (a.attributes().get(name), b.attributes().get(name));
        // A name that is no string is compared like any other attribute.
        if name == "name" && before.is_none_or(is_text) && after.is_none_or(is_text) {
            continue;
        }
        let (Some(before), Some(after)) = (before, after) else {
            let (before, after) = (before.map(values::shown), after.map(values::shown));
            edits.push(Edit::new(place, Kind::Attribute, name, before, after));
            continue;
        };
        let Some(change) = values.compare(before, after) else {
            continue;
        };
        let is_value = a.op_type() == "const" && name == "val";
        let (kind, subject) = match (change.in_files, is_value) {
            (true, true) => (Kind::Weights, ""),
            (true, false) => (Kind::Weights, name.as_str()),
            (false, true) => (Kind::Value, ""),
            (false, false) => (Kind::Attribute, name.as_str()),
        };
        retyped |= is_value && before.ty != after.ty;
        edits.push(change.edit(place, kind, subject));
    }
    retyped
}

/// The types of the results; `retyped` if the edit of a const's value says them already.
pub(super) fn results(
    place: &Place,
    (a, b): (&Operation, &Operation),
    retyped: bool,
    edits: &mut Vec<Edit>,
) {
    let (results_a, results_b) = (a.results(), b.results());
    for index in 0..results_a.len().max(results_b.len()) {
        let (before, after) = (results_a.get(index), results_b.get(index));
        let types = (before.map(|r| &r.ty), after.map(|r| &r.ty));
        if types.0 == types.1 {
            continue;
        }
        let is_said = retyped && of_value(a) == types.0 && of_value(b) == types.1;
        if is_said {
            continue;
        }
        let subject = match (before.or(after), results_a.len()) {
            (Some(result), 2..) => result.name.as_str(),
            _ => "",
        };
        let (before, after) = (before.map(type_text), after.map(type_text));
        edits.push(Edit::new(place, Kind::Result, subject, before, after));
    }
}

fn is_text(value: &Value) -> bool {
    value.as_str().is_some()
}

/// The type of a const's value.
fn of_value(op: &Operation) -> Option<&Option<ValueType>> {
    op.const_value().map(|value| &value.ty)
}

/// A declared type as text.
pub(super) fn type_text(named: &NamedType) -> String {
    match &named.ty {
        Some(ty) => text::type_text(ty, Dialect::Program13),
        None => "no type".to_owned(),
    }
}
