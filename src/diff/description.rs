//! Compares what two models say outside of their programs.

use std::collections::BTreeSet;

use super::edits::{Edit, Kind, Place};
use crate::ir::Program;
use crate::model::{Feature, Interface, Model, Placements};

/// Adds the differences between two interfaces: features by name, in any order.
pub(super) fn compare_interfaces(stage: &str, a: &Interface, b: &Interface, edits: &mut Vec<Edit>) {
    let place = |function: &str| Place {
        stage: stage.to_owned(),
        function: function.to_owned(),
        ..Place::default()
    };
    if a.default_function != b.default_function {
        let (before, after) = (a.default_function.clone(), b.default_function.clone());
        let subject = "default function";
        edits.push(Edit::new(
            &place(""),
            Kind::Model,
            subject,
            Some(before),
            Some(after),
        ));
    }
    let names = |interface: &Interface| -> BTreeSet<String> {
        interface
            .functions
            .iter()
            .map(|function| function.name.clone())
            .collect()
    };
    for name in names(a).union(&names(b)) {
        let (of_a, of_b) = (a.function(name), b.function(name));
        let lists = [
            ("input", of_a.map(|f| &f.inputs), of_b.map(|f| &f.inputs)),
            ("output", of_a.map(|f| &f.outputs), of_b.map(|f| &f.outputs)),
            ("state", of_a.map(|f| &f.states), of_b.map(|f| &f.states)),
        ];
        for (what, before, after) in lists {
            let before = before.map_or(&[][..], Vec::as_slice);
            let after = after.map_or(&[][..], Vec::as_slice);
            features(&place(name), what, before, after, edits);
        }
    }
}

fn features(place: &Place, what: &str, a: &[Feature], b: &[Feature], edits: &mut Vec<Edit>) {
    let kind = |features: &[Feature], name: &str| {
        let feature = features.iter().find(|feature| feature.name == name);
        feature.map(|feature| feature.kind.clone())
    };
    let mut push = |name: &str, before: Option<String>, after: Option<String>| {
        let subject = format!("{what} {name}");
        edits.push(Edit::new(place, Kind::Feature, &subject, before, after));
    };
    for feature in a {
        let after = kind(b, &feature.name);
        if after.as_ref() != Some(&feature.kind) {
            push(&feature.name, Some(feature.kind.clone()), after);
        }
    }
    for feature in b {
        if kind(a, &feature.name).is_none() {
            push(&feature.name, None, Some(feature.kind.clone()));
        }
    }
}

/// What differs between two model files outside of their programs. `known` are the edits found in
/// the programs and interfaces: if none of them is about the description, but the files differ
/// there, one edit says so without details.
pub fn compare_models(before: &Model, after: &Model, known: &[Edit]) -> Vec<Edit> {
    let mut edits = Vec::new();
    let versions = (
        before.specification_version(),
        after.specification_version(),
    );
    if versions.0 != versions.1 {
        edits.push(Edit::new(
            &Place::default(),
            Kind::Model,
            "specification version",
            Some(versions.0.to_string()),
            Some(versions.1.to_string()),
        ));
    }
    let described = |edit: &Edit| matches!(edit.kind, Kind::Feature | Kind::Model | Kind::Stage);
    let is_said = !edits.is_empty() || known.iter().any(described);
    if !is_said && envelope(before) != envelope(after) {
        let subject = "description, metadata or a stage without program";
        edits.push(Edit::new(
            &Place::default(),
            Kind::Model,
            subject,
            None,
            None,
        ));
    }
    edits
}

/// The model file without its programs; `None` if it cannot be written.
fn envelope(model: &Model) -> Option<Vec<u8>> {
    let mut model = model.clone();
    for program in model.programs_mut() {
        *program = Program::default();
    }
    model.encode(&Placements::default()).ok()
}
