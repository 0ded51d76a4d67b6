//! One body with padded states: each read is sliced, each write padded.

use std::collections::{HashMap, HashSet};

use super::wide::{self, Wide};
use crate::analysis::state::{Kind, StateAccess, states};
use crate::ir::{Binding, Graph, NodeId, ValueId};
use crate::pass::{WholeEdit, WholeError};

/// What each slice was taken of.
pub(super) type Slices = HashMap<ValueId, Wide>;

/// Lets the body read and write the states, whose inputs have their padded type already.
pub(super) fn rewrite(
    edit: &mut WholeEdit<'_>,
    [function, opset]: [&str; 2],
    names: &[String],
    padding: &[usize],
    deep: bool,
) -> Result<(), WholeError> {
    let graph = graph(edit, function, opset)?;
    let mut accesses: HashMap<NodeId, (ValueId, StateAccess)> = HashMap::new();
    for chain in states(graph) {
        if names.contains(&chain.name) {
            let own = chain.accesses.into_iter();
            accesses.extend(own.map(|access| (access.node, (chain.state, access))));
        }
    }
    let order = graph
        .schedule()
        .map_err(|cycle| WholeError::Other(cycle.to_string()))?;
    let mut last: HashMap<ValueId, NodeId> = HashMap::new();
    let mut slices = Slices::new();
    let mut touched: HashSet<NodeId> = HashSet::new();
    for node in order.iter().copied() {
        let graph = self::graph(edit, function, opset)?;
        let Some((state, access)) = accesses.get(&node) else {
            // Only what reads a slice may be done on what the slice was taken of.
            if deep
                && touched.contains(&node)
                && let Some(plan) = wide::plan(graph, node, &slices)
            {
                let made = edit.at(function, opset, node, |edit| plan.make(edit))?;
                if let Some((slice, wide)) = made {
                    let graph = self::graph(edit, function, opset)?;
                    touched.extend(graph.uses(slice).map(|site| site.user));
                    slices.insert(slice, wide);
                }
            }
            continue;
        };
        match access.kind {
            Kind::Read { result, .. } if graph.uses(result).next().is_none() => {
                edit.at(function, opset, node, |edit| edit.remove(node))?;
            }
            Kind::Read { result, .. } => {
                let before = last.get(state).copied();
                let (slice, wide) = edit.at(function, opset, node, |edit| {
                    let value = edit.op("read_state", &[("input", Binding::Value(*state))])?;
                    if let Some(before) = before {
                        edit.order(before, value.node);
                    }
                    let wide = Wide {
                        value,
                        padding: padding.to_vec(),
                    };
                    let slice = wide.slice(edit)?;
                    edit.replace(result, slice)?;
                    Ok((slice, wide))
                })?;
                last.insert(*state, wide.value.node);
                let graph = self::graph(edit, function, opset)?;
                touched.extend(graph.uses(slice).map(|site| site.user));
                slices.insert(slice, wide);
            }
            Kind::Write { .. } => {
                let data = graph.op(node).and_then(|op| op.value("data"));
                let data = data.ok_or_else(|| {
                    WholeError::Other("a write to a state has no data".to_owned())
                })?;
                let known = slices
                    .get(&data)
                    .filter(|wide| deep && wide.padding == padding);
                let known = known.map(|wide| wide.value);
                // Named after what is written, if that is an operation's: a write has no result.
                let anchor = match graph.op(data.node) {
                    Some(_) => data.node,
                    None => node,
                };
                let before = last.get(state).copied();
                edit.at(function, opset, anchor, |edit| {
                    let padded = match known {
                        Some(value) => value,
                        None => wide::pad(edit, data, padding)?,
                    };
                    edit.bind(node, "data", Some(vec![Binding::Value(padded)]));
                    if let Some(before) = before {
                        edit.order(before, node);
                    }
                    Ok(())
                })?;
                last.insert(*state, node);
            }
            Kind::Other(_) => {
                let why = "a state is used in another way".to_owned();
                return Err(WholeError::Other(why));
            }
        }
    }
    Ok(())
}

fn graph<'a>(
    edit: &'a WholeEdit<'_>,
    function: &str,
    opset: &str,
) -> Result<&'a Graph, WholeError> {
    let function = edit.program().functions.get(function);
    let body = function.and_then(|function| function.specializations.get(opset));
    body.map(|body| &body.graph)
        .ok_or_else(|| WholeError::Other("a function is gone".to_owned()))
}
