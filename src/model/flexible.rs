//! The shapes that a compiled model allows for its inputs, as its function's attribute lists them.
//!
//! A description that coremlc has compiled is gone; what it said about flexible shapes stands in
//! the attribute `FlexibleShapeInformation`: pairs of a word and a dictionary by input.
//! `DefaultShapes` gives each input its default shape, `RangeDims` the lowest and highest size of
//! each dimension, `EnumeratedShapes` whole sets of shapes under names of their own.

use std::collections::BTreeMap;

use crate::ir::{Content, Function, Immediate, TensorData, Value};

/// The attribute's name.
const ATTRIBUTE: &str = "FlexibleShapeInformation";

/// What an attribute says about one input.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Flexible {
    /// The shape if none is asked for.
    pub(super) default: Option<Vec<i64>>,
    /// Lowest and highest size of each dimension; a negative highest one is no limit.
    pub(super) ranges: Option<Vec<(i64, i64)>>,
    /// The shapes to choose from.
    pub(super) shapes: Vec<Vec<i64>>,
}

/// What the function's attribute says about each input; what is not understood is left out.
pub(super) fn of(function: &Function) -> BTreeMap<&str, Flexible> {
    let mut inputs: BTreeMap<&str, Flexible> = BTreeMap::new();
    let facts = function.attributes.get(ATTRIBUTE).and_then(items);
    for fact in facts.into_iter().flatten() {
        let Some([word, table]) = items(fact) else {
            continue;
        };
        match word.as_str() {
            Some("DefaultShapes") => {
                for (input, shape) in pairs(table) {
                    inputs.entry(input).or_default().default = numbers(shape);
                }
            }
            Some("RangeDims") => {
                for (input, ranges) in pairs(table) {
                    let ranges = items(ranges).map(|ranges| ranges.iter().map(range).collect());
                    inputs.entry(input).or_default().ranges = ranges.flatten();
                }
            }
            Some("EnumeratedShapes") => {
                for (input, shape) in pairs(table).flat_map(|(_, set)| pairs(set)) {
                    let shapes = &mut inputs.entry(input).or_default().shapes;
                    shapes.extend(numbers(shape).filter(|shape| !shapes.contains(shape)));
                }
            }
            _ => {}
        }
    }
    inputs
}

fn range(value: &Value) -> Option<(i64, i64)> {
    match numbers(value)?.as_slice() {
        [low, high] => Some((*low, *high)),
        _ => None,
    }
}

/// The values of a tuple or list.
fn items(value: &Value) -> Option<&[Value]> {
    match &value.content {
        Content::Immediate(Immediate::Tuple(values) | Immediate::List(values)) => Some(values),
        _ => None,
    }
}

/// The entries of a dictionary whose keys are strings.
fn pairs(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let entries = match &value.content {
        Content::Immediate(Immediate::Dictionary(entries)) => entries.as_slice(),
        _ => &[],
    };
    entries
        .iter()
        .filter_map(|(key, value)| Some((key.as_ref()?.as_str()?, value.as_ref()?)))
}

/// The numbers of an integer tensor.
fn numbers(value: &Value) -> Option<Vec<i64>> {
    match value.tensor_data()? {
        TensorData::Ints(numbers) => {
            Some(numbers.iter().map(|number| i64::from(*number)).collect())
        }
        TensorData::LongInts(numbers) => Some(numbers.clone()),
        _ => None,
    }
}
