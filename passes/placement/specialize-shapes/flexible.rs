//! What the linter says of the inputs of a function whose shape is not fixed.

use super::{FLEXIBLE_SHAPE, open};
use crate::ir::{Function, Graph, NamedType};
use crate::model::{Feature, Form};
use crate::pass::{Found, Severity, Whole};

/// The finding for a function's inputs of flexible shape; `None` if all are fixed.
pub(super) fn found(whole: &Whole<'_>, name: &str, function: &Function) -> Option<Found> {
    let described = whole.interface.functions.iter().find(|f| f.name == name);
    let inputs: Vec<&NamedType> = function
        .inputs
        .iter()
        .filter(|input| open(input).is_some())
        .collect();
    let form = |input: &NamedType| -> Option<&Form> {
        let mut features = described.into_iter().flat_map(|f| &f.inputs);
        features
            .find(|feature: &&Feature| feature.name == input.name)
            .map(|feature| &feature.form)
    };
    let listed = |input: &&&NamedType| match form(input) {
        Some(Form::Array { shapes, ranges, .. }) => !shapes.is_empty() && ranges.is_empty(),
        _ => false,
    };
    let in_range: Vec<&&NamedType> = inputs.iter().filter(|input| !listed(input)).collect();
    if let Some(first) = in_range.first() {
        let more = and_more(in_range.len());
        let range = match form(first) {
            Some(Form::Array { ranges, .. }) if !ranges.is_empty() => {
                format!("takes shapes from {}", text(ranges))
            }
            _ => "has no fixed shape".to_owned(),
        };
        return Some(FLEXIBLE_SHAPE.found(format!("input `{}` {range}{more}", first.name)));
    }
    let first = inputs.first()?;
    let Some(Form::Array { shapes, .. }) = form(first) else {
        return None;
    };
    let more = and_more(inputs.len());
    let message = format!(
        "input `{}` takes one of {} listed shapes{more}",
        first.name,
        shapes.len()
    );
    let bodies = function.specializations.values();
    let norms: usize = bodies.map(|body| norms(&body.graph)).sum();
    if norms == 0 {
        return Some(FLEXIBLE_SHAPE.found(message).severity(Severity::Info));
    }
    Some(FLEXIBLE_SHAPE.found(format!("{message}, and there are {norms} layer_norm")))
}

/// How many layer_norm a graph has.
fn norms(graph: &Graph) -> usize {
    let ops = graph.ops().map(|(_, op)| op);
    ops.map(|op| {
        let own = usize::from(op.op_type() == "layer_norm");
        own + op.blocks().iter().map(norms).sum::<usize>()
    })
    .sum()
}

fn and_more(count: usize) -> String {
    match count {
        0 | 1 => String::new(),
        2 => ", like one more".to_owned(),
        _ => format!(", like {} more", count - 1),
    }
}

/// `[1, 1..512, 3..]`.
fn text(ranges: &[(usize, Option<usize>)]) -> String {
    let dims: Vec<String> = ranges
        .iter()
        .map(|(low, high)| match high {
            Some(high) if high == low => low.to_string(),
            Some(high) => format!("{low}..{high}"),
            None => format!("{low}.."),
        })
        .collect();
    format!("[{}]", dims.join(", "))
}
