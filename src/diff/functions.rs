//! Compares two programs down to the bodies of their functions.

use std::collections::{BTreeMap, BTreeSet};

use super::description;
use super::edits::{Comparison, Edit, Kind, Place};
use super::graphs::Graphs;
use super::operations::type_text;
use super::values::{self, Values};
use super::{Options, Side};
use crate::ir::{
    Body, Content, Function, Graph, Immediate, NamedType, Operation, Program, Value, ValueId,
    ValueType,
};
use crate::text::{self, Dialect};

/// Functions without namesake are counterparts if they are at least this alike, from 0 to 1.
const LEAST_LIKENESS: f64 = 0.5;

/// Functions of two programs, with their names.
type Pair<'a> = ((&'a String, &'a Function), (&'a String, &'a Function));

/// Adds the edits that make the second program of the first.
pub(super) fn compare(before: &Side, after: &Side, options: Options, into: &mut Comparison) {
    let mut programs = Programs {
        values: Values::new(before.blobs, after.blobs, options),
        before,
        after,
        edits: Vec::new(),
    };
    programs.program();
    into.edits.append(&mut programs.edits);
    into.sampled += programs.values.sampled;
    into.unreadable += programs.values.unreadable;
}

struct Programs<'a> {
    values: Values<'a>,
    before: &'a Side<'a>,
    after: &'a Side<'a>,
    edits: Vec<Edit>,
}

impl Programs<'_> {
    fn program(&mut self) {
        let (a, b) = (self.before.program, self.after.program);
        let place = Place {
            stage: self.before.stage.to_owned(),
            ..Place::default()
        };
        let mut field = |name: &str, before: String, after: String| {
            if before != after {
                let edit = Edit::new(&place, Kind::Program, name, Some(before), Some(after));
                self.edits.push(edit);
            }
        };
        field("version", a.version.to_string(), b.version.to_string());
        field("doc", a.doc.clone(), b.doc.clone());
        attributes(
            &mut self.values,
            &place,
            &a.attributes,
            &b.attributes,
            &mut self.edits,
        );
        if let (Some(a), Some(b)) = (self.before.interface, self.after.interface) {
            description::compare_interfaces(self.before.stage, a, b, &mut self.edits);
        }
        self.functions(a, b);
    }

    fn place(&self, function: &str) -> Place {
        Place {
            stage: self.before.stage.to_owned(),
            function: function.to_owned(),
            ..Place::default()
        }
    }

    fn functions(&mut self, a: &Program, b: &Program) {
        let pairs = pair_functions(a, b);
        for (name, function) in &a.functions {
            let place = self.place(name);
            let pair = pairs.iter().find(|((own, _), _)| *own == name);
            let Some((_, (other_name, other))) = pair else {
                self.push(&place, Kind::Function, "", Some(size(function)), None);
                continue;
            };
            if *other_name != name {
                let (before, after) = (name.clone(), (*other_name).clone());
                self.push(&place, Kind::Function, "", Some(before), Some(after));
            }
            self.function(name, function, other);
        }
        for (name, function) in &b.functions {
            if !pairs.iter().any(|(_, (other, _))| *other == name) {
                let place = self.place(name);
                self.push(&place, Kind::Function, "", None, Some(size(function)));
            }
        }
    }

    fn push(
        &mut self,
        place: &Place,
        kind: Kind,
        subject: &str,
        before: Option<String>,
        after: Option<String>,
    ) {
        self.edits
            .push(Edit::new(place, kind, subject, before, after));
    }

    fn function(&mut self, name: &str, a: &Function, b: &Function) {
        let place = self.place(name);
        if a.opset != b.opset {
            let (before, after) = (Some(a.opset.clone()), Some(b.opset.clone()));
            self.push(&place, Kind::Opset, "", before, after);
        }
        attributes(
            &mut self.values,
            &place,
            &a.attributes,
            &b.attributes,
            &mut self.edits,
        );
        self.inputs(&place, &a.inputs, &b.inputs);
        let mut left_a: Vec<&String> = a.specializations.keys().collect();
        let mut left_b: Vec<&String> = b.specializations.keys().collect();
        let mut pairs: Vec<(&String, &String)> = Vec::new();
        left_a.retain(|opset| {
            let known = b.specializations.contains_key(*opset);
            if known {
                pairs.push((opset, opset));
            }
            !known
        });
        left_b.retain(|opset| !a.specializations.contains_key(*opset));
        let spare = left_a.len().min(left_b.len());
        pairs.extend(left_a.drain(..spare).zip(left_b.drain(..spare)));
        for opset in left_a {
            self.push(&place, Kind::Body, opset, Some(body_size(a, opset)), None);
        }
        for opset in left_b {
            self.push(&place, Kind::Body, opset, None, Some(body_size(b, opset)));
        }
        for (opset, other) in pairs {
            let bodies = a
                .specializations
                .get(opset)
                .zip(b.specializations.get(other));
            let Some((body_a, body_b)) = bodies else {
                continue;
            };
            let mut place = place.clone();
            if *opset != a.opset {
                place.function = format!("{name}<{opset}>");
            }
            self.body(&place, body_a, body_b);
        }
    }

    fn body(&mut self, place: &Place, a: &Body, b: &Body) {
        attributes(
            &mut self.values,
            place,
            a.graph.attributes(),
            b.graph.attributes(),
            &mut self.edits,
        );
        let views = (self.before.blobs, self.after.blobs);
        let graphs = Graphs::new(&a.graph, &b.graph, views, &[]);
        self.outputs(place, &graphs);
        graphs.compare(place, "", &mut self.values, &mut self.edits);
    }

    fn inputs(&mut self, place: &Place, a: &[NamedType], b: &[NamedType]) {
        let kind = |input: &NamedType| match &input.ty {
            Some(ValueType::State(_)) => Kind::State,
            _ => Kind::Input,
        };
        let find = |inputs: &[NamedType], name: &str| -> Option<String> {
            inputs
                .iter()
                .find(|input| input.name == name)
                .map(type_text)
        };
        for input in a {
            let (before, after) = (Some(type_text(input)), find(b, &input.name));
            if before != after {
                self.push(place, kind(input), &input.name, before, after);
            }
        }
        for input in b {
            if find(a, &input.name).is_none() {
                self.push(
                    place,
                    kind(input),
                    &input.name,
                    None,
                    Some(type_text(input)),
                );
            }
        }
        let names = |inputs: &[NamedType]| inputs.iter().map(|i| i.name.clone()).collect();
        self.sequence(place, "inputs", names(a), names(b));
    }

    /// The order of what is on both sides.
    fn sequence(&mut self, place: &Place, what: &str, mut a: Vec<String>, mut b: Vec<String>) {
        let (in_a, in_b): (BTreeSet<_>, BTreeSet<_>) =
            (a.iter().cloned().collect(), b.iter().cloned().collect());
        a.retain(|name| in_b.contains(name));
        b.retain(|name| in_a.contains(name));
        if a != b {
            self.push(
                place,
                Kind::Sequence,
                what,
                Some(a.join(", ")),
                Some(b.join(", ")),
            );
        }
    }

    fn outputs(&mut self, place: &Place, graphs: &Graphs) {
        let (a, b) = graphs.graphs();
        let names = |graph: &Graph| -> Vec<String> {
            let outputs = graph.outputs().iter();
            outputs.map(|value| graph.name(*value).to_owned()).collect()
        };
        let named = |graph: &Graph, name: &str| -> Option<ValueId> {
            let mut outputs = graph.outputs().iter().copied();
            outputs.find(|value| graph.name(*value) == name)
        };
        let shown = |graph: &Graph, value: ValueId| match graph.ty(value) {
            Some(ty) => text::type_text(ty, Dialect::Program13),
            None => "no type".to_owned(),
        };
        for value in a.outputs() {
            let name = a.name(*value);
            let before = shown(a, *value);
            match named(b, name) {
                Some(other) => {
                    let after = shown(b, other);
                    if before != after {
                        self.push(place, Kind::Output, name, Some(before), Some(after));
                    } else if !graphs.agree(*value, other) {
                        let before = made_by(a, *value);
                        let after = match graphs.in_a(other) {
                            Some(own) => format!("{}, now called {name}", made_by(a, own)),
                            None => made_by(b, other),
                        };
                        let after = Some(after);
                        self.push(place, Kind::Output, name, Some(before), after);
                    }
                }
                None => self.push(place, Kind::Output, name, Some(before), None),
            }
        }
        for value in b.outputs() {
            let name = b.name(*value);
            if named(a, name).is_none() {
                self.push(place, Kind::Output, name, None, Some(shown(b, *value)));
            }
        }
        self.sequence(place, "outputs", names(a), names(b));
    }
}

/// A value by its name and the type of the operation that makes it.
fn made_by(graph: &Graph, value: ValueId) -> String {
    let op_type = graph.producer(value).map_or("input", Operation::op_type);
    format!("{} ({op_type})", graph.name(value))
}

fn size(function: &Function) -> String {
    let ops = function.active().map_or(0, |body| body.graph.count_ops());
    format!("{ops} ops, opset {}", function.opset)
}

fn body_size(function: &Function, opset: &str) -> String {
    let body = function.specializations.get(opset);
    format!("{} ops", body.map_or(0, |body| body.graph.count_ops()))
}

/// Adds the differences between attributes. A dictionary is compared by its keys.
pub(super) fn attributes(
    values: &mut Values,
    place: &Place,
    a: &BTreeMap<String, Value>,
    b: &BTreeMap<String, Value>,
    edits: &mut Vec<Edit>,
) {
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    for name in names {
        let (before, after) = (a.get(name), b.get(name));
        if let (Some(before), Some(after)) = (before, after)
            && before.ty == after.ty
            && let (Some(a), Some(b)) = (entries(before), entries(after))
        {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let subject = format!("{name}[{key:?}]");
                let pair = (a.get(key).copied(), b.get(key).copied());
                attribute(values, place, &subject, pair, edits);
            }
            continue;
        }
        attribute(values, place, name, (before, after), edits);
    }
}

fn attribute(
    values: &mut Values,
    place: &Place,
    subject: &str,
    (before, after): (Option<&Value>, Option<&Value>),
    edits: &mut Vec<Edit>,
) {
    let edit = match (before, after) {
        (Some(before), Some(after)) => {
            let Some(change) = values.compare(before, after) else {
                return;
            };
            change.edit(place, Kind::Attribute, subject)
        }
        _ => Edit::new(
            place,
            Kind::Attribute,
            subject,
            before.map(values::shown),
            after.map(values::shown),
        ),
    };
    edits.push(edit);
}

/// The entries of a dictionary whose keys are strings, each once.
fn entries(value: &Value) -> Option<BTreeMap<String, &Value>> {
    let Content::Immediate(Immediate::Dictionary(pairs)) = &value.content else {
        return None;
    };
    let mut entries = BTreeMap::new();
    for (key, value) in pairs {
        let key = key.as_ref()?.as_str()?.to_owned();
        if entries.insert(key, value.as_ref()?).is_some() {
            return None;
        }
    }
    Some(entries)
}

/// Functions that are counterparts: those of one name, then the most alike of the others.
fn pair_functions<'a>(a: &'a Program, b: &'a Program) -> Vec<Pair<'a>> {
    let mut pairs: Vec<Pair> = Vec::new();
    let mut left_a = Vec::new();
    for function in &a.functions {
        match b.functions.get_key_value(function.0) {
            Some(other) => pairs.push((function, other)),
            None => left_a.push(function),
        }
    }
    let mut left_b: Vec<_> = b
        .functions
        .iter()
        .filter(|(name, _)| !a.functions.contains_key(*name))
        .collect();
    let profiles_b: BTreeMap<&String, Profile> =
        left_b.iter().map(|(name, f)| (*name, profile(f))).collect();
    for function in left_a {
        let own = profile(function.1);
        let likeness = |name: &String| profiles_b.get(name).map_or(0.0, |p| likeness(&own, p));
        let best = (0..left_b.len())
            .max_by(|x, y| likeness(left_b[*x].0).total_cmp(&likeness(left_b[*y].0)));
        if let Some(best) = best.filter(|best| likeness(left_b[*best].0) >= LEAST_LIKENESS) {
            pairs.push((function, left_b.remove(best)));
        }
    }
    pairs
}

/// How often each type of operation occurs.
type Profile = BTreeMap<String, usize>;

fn profile(function: &Function) -> Profile {
    let mut profile = Profile::new();
    for (_, op) in function.active().iter().flat_map(|body| body.graph.ops()) {
        *profile.entry(op.op_type().to_owned()).or_default() += 1;
    }
    profile
}

/// The share of operations that both have, from 0 to 1 (Dice's coefficient).
fn likeness(a: &Profile, b: &Profile) -> f64 {
    let total: usize = a.values().chain(b.values()).sum();
    if total == 0 {
        return 1.0;
    }
    let shared: usize = a
        .iter()
        .map(|(op_type, count)| b.get(op_type).map_or(0, |other| *count.min(other)))
        .sum();
    2.0 * shared as f64 / total as f64
}
