//! sanitize-weights: weights that are NaN become 0, and infinite ones the greatest fp16 numbers.

use std::collections::BTreeMap;

use crate::ir::{Binding, NodeId, Operation, Value, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Edit, EditError, Evidence, Exactness, Family, Matcher, Meta, Pass, Target,
};

mod numbers;
mod readers;

use numbers::{Bad, Kind};
use readers::{Reader, Role};

/// The pass.
pub(super) struct SanitizeWeights;

static META: Meta = Meta {
    id: "sanitize-weights",
    family: Family::Numerics,
    summary: "weights that are NaN become 0, and infinite ones ±65504",
    exactness: Exactness::Approx(0.0),
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Reported,
    catalog: &[],
    default: false,
    after: &["finite-masks"],
    page: include_str!("README.md"),
};

/// Constants with more elements that are perhaps no weights are not looked into.
const LARGEST_UNCLEAR: u64 = 1 << 24;

impl Pass for SanitizeWeights {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(look))
    }
}

fn look(block: &Block<'_>, node: NodeId) -> Attempt {
    match block.op(node) {
        Some(op) => match op.const_value() {
            Some(value) => constant(block, node, value),
            None => within(block, node, op),
        },
        None => Attempt::NoMatch,
    }
}

/// A const, by what reads it.
fn constant(block: &Block<'_>, node: NodeId, value: &Value) -> Attempt {
    if numbers::element(value).is_none() {
        return Attempt::NoMatch;
    }
    let result = ValueId::first(node);
    let readers = readers::of(block, result);
    let weighing = |reader: &&Reader| matches!(reader.role, Role::Weight(_));
    let weights = readers.iter().filter(weighing).count();
    let unclear = readers.iter().find(|reader| reader.role == Role::Unclear);
    let is_small = value
        .tensor_type()
        .and_then(crate::ir::TensorType::elements)
        .is_some_and(|elements| elements <= LARGEST_UNCLEAR);
    if weights == 0 && (unclear.is_none() || !is_small) {
        return Attempt::NoMatch;
    }
    let Some(bytes) = block.bytes(value) else {
        return match weights {
            0 => Attempt::NoMatch,
            _ => Attempt::missed(node, "the data of this weight cannot be read"),
        };
    };
    let bad = Bad::of(value, &bytes);
    if !bad.any() {
        return Attempt::NoMatch;
    }
    let rows = readers
        .iter()
        .find(|reader| reader.role == Role::Weight(Kind::Row));
    if let Some(reader) = rows.filter(|_| bad.may_be_masks()) {
        let why = format!(
            "{bad}, all negative: `{}` may take masks from it",
            reader.label
        );
        return Attempt::missed(reader.at, why);
    }
    if weights == readers.len() {
        let kinds: Vec<Kind> = readers.iter().filter_map(Reader::kind).collect();
        let kind = kinds.iter().copied().max().unwrap_or(Kind::Number);
        let value = value.clone();
        return Attempt::matched(bad.what(kind), move |edit| {
            let clean = numbers::clean(edit, &value, kind)?;
            let Binding::Value(clean) = edit.constant(clean) else {
                return Ok(());
            };
            edit.replace(result, clean)
        });
    }
    if let Some(Reader { at, label, .. }) = unclear {
        let why = format!("{bad}, and it is not clear that `{label}` reads it as a weight");
        return Attempt::missed(*at, why);
    }
    // What else reads it means its infinities, as a clip does its bounds.
    let mut sites: BTreeMap<NodeId, Vec<(String, Kind)>> = BTreeMap::new();
    for reader in readers.iter().filter(weighing) {
        let Some((parameter, kind)) = reader.site.clone().zip(reader.kind()) else {
            let label = &reader.label;
            let why = format!("{bad}, which something else than `{label}` reads as it is");
            return Attempt::missed(reader.at, why);
        };
        sites.entry(reader.at).or_default().push((parameter, kind));
    }
    let value = value.clone();
    let what = format!(
        "{}, for those that read it as a weight",
        bad.what(Kind::Number)
    );
    Attempt::matched(what, move |edit| {
        for (node, parameters) in sites {
            for (parameter, kind) in parameters {
                let clean = numbers::clean(edit, &value, kind)?;
                let clean = edit.constant(clean);
                exchange(edit, node, &parameter, result, &clean);
            }
        }
        Ok(())
    })
}

/// Binds a parameter of an operation to `new` wherever it was bound to `old`.
fn exchange(edit: &mut Edit<'_>, node: NodeId, parameter: &str, old: ValueId, new: &Binding) {
    let Some(argument) = edit.graph().op(node).and_then(|op| op.argument(parameter)) else {
        return;
    };
    let mut bindings = argument.bindings.clone();
    for binding in &mut bindings {
        if *binding == Binding::Value(old) {
            *binding = new.clone();
        }
    }
    edit.bind(node, parameter, Some(bindings));
}

/// An operation with literals or attributes that are weights.
fn within(block: &Block<'_>, node: NodeId, op: &Operation) -> Attempt {
    let mut literals: Vec<(String, usize, Value, Kind)> = Vec::new();
    let mut total = Bad::default();
    let mut greatest = Kind::Number;
    let mut note = |value: &Value, kind: Kind| {
        let bytes = numbers::element(value).and_then(|_| block.bytes(value));
        let bad = bytes
            .map(|bytes| Bad::of(value, &bytes))
            .unwrap_or_default();
        total.add(&bad);
        if bad.any() {
            greatest = greatest.max(kind);
        }
        bad.any()
    };
    for argument in op.arguments() {
        for (position, binding) in argument.bindings.iter().enumerate() {
            let Binding::Immediate(value) = binding else {
                continue;
            };
            if let Role::Weight(kind) = readers::role(block, op, &argument.parameter)
                && note(value, kind)
            {
                let parameter = argument.parameter.clone();
                literals.push((parameter, position, value.clone(), kind));
            }
        }
    }
    let mut attributes: BTreeMap<String, (Value, Kind)> = BTreeMap::new();
    for (name, value) in op.attributes() {
        if let Role::Weight(kind) = readers::role(block, op, name)
            && note(value, kind)
        {
            attributes.insert(name.clone(), (value.clone(), kind));
        }
    }
    if !total.any() {
        return Attempt::NoMatch;
    }
    let (op_type, result) = (op.op_type().to_owned(), ValueId::first(node));
    let all: BTreeMap<String, Value> = op
        .attributes()
        .iter()
        .filter(|(name, _)| *name != "name")
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    Attempt::matched(total.what(greatest), move |edit| {
        for (parameter, position, value, kind) in literals {
            let clean = numbers::clean(edit, &value, kind)?;
            let clean = edit.constant(clean);
            let bound = edit.graph().op(node).and_then(|op| op.argument(&parameter));
            let mut bindings = bound
                .map(|argument| argument.bindings.clone())
                .unwrap_or_default();
            if let Some(binding) = bindings.get_mut(position) {
                *binding = clean;
            }
            edit.bind(node, &parameter, Some(bindings));
        }
        if attributes.is_empty() {
            return Ok(());
        }
        renew(edit, node, result, &op_type, all, attributes)
    })
}

/// Makes an operation anew with other attributes.
fn renew(
    edit: &mut Edit<'_>,
    node: NodeId,
    result: ValueId,
    op_type: &str,
    mut all: BTreeMap<String, Value>,
    bad: BTreeMap<String, (Value, Kind)>,
) -> Result<(), EditError> {
    for (name, (value, kind)) in bad {
        all.insert(name, numbers::clean(edit, &value, kind)?);
    }
    let arguments = edit
        .graph()
        .op(node)
        .map(Operation::arguments)
        .unwrap_or_default();
    let arguments = arguments
        .iter()
        .map(|argument| (argument.parameter.clone(), argument.bindings.clone()))
        .collect();
    let made = edit.op_with_attributes(op_type, arguments, all)?;
    edit.replace(result, ValueId::first(made))
}
