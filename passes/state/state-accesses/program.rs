//! What is about several functions: states that none of them uses, and long updates.

use crate::analysis::state::{Kind, StateChain, states};
use crate::analysis::update::extents;
use crate::ops::Opset;
use crate::pass::{Block, Whole, WholeAttempt, WholeMatcher};

use super::{MULTIFUNCTION, UNTOUCHED, WARNING};

/// States of a whole program.
pub(super) struct States;

impl WholeMatcher for States {
    fn attempts(&mut self, whole: &Whole<'_>) -> Vec<WholeAttempt> {
        let mut attempts = Vec::new();
        let mut functions = Vec::new();
        for (name, function) in &whole.program.functions {
            for (opset, body) in &function.specializations {
                let block = Block {
                    graph: &body.graph,
                    outer: None,
                    opset: Opset::parse(opset),
                    blobs: whole.blobs,
                    ranges: None,
                };
                functions.push((name.as_str(), block, states(&body.graph)));
            }
        }
        for (name, block, chains) in &functions {
            for chain in chains.iter().filter(|chain| is_untouched(block, chain)) {
                let message = format!("nothing in `{name}` computes with `{}`", chain.name);
                let elsewhere = functions.iter().any(|(_, block, chains)| {
                    let mut same = chains.iter().filter(|other| other.name == chain.name);
                    same.any(|other| !is_untouched(block, other))
                });
                let mut found = UNTOUCHED.found(message);
                if elsewhere {
                    found = found.severities(WARNING);
                }
                let place = [*name, chain.name.as_str(), "state"];
                attempts.push(WholeAttempt::found(place, found));
            }
        }
        let count = whole.program.functions.len();
        if count > 1 {
            let long = functions.iter().find_map(|(name, block, chains)| {
                let at_once = longest(block, chains)?;
                (chains.len() > 1).then_some((name, chains.len(), at_once))
            });
            attempts.extend(long.map(|(name, states, at_once)| {
                let message = format!(
                    "`{name}`, one of {count} functions, has {states} states and updates {at_once} at once"
                );
                WholeAttempt::found([name, "", "function"], MULTIFUNCTION.found(message))
            }));
        }
        attempts
    }
}

/// Whether nothing is made of the state, and nothing is written to it.
fn is_untouched(block: &Block<'_>, chain: &StateChain) -> bool {
    chain.accesses.iter().all(|access| match access.kind {
        Kind::Read { result, .. } => block.graph.uses(result).next().is_none(),
        _ => false,
    })
}

/// The longest update of a state, if it is of more than one position.
fn longest(block: &Block<'_>, chains: &[StateChain]) -> Option<String> {
    let accesses = chains.iter().flat_map(|chain| &chain.accesses);
    let updates = accesses.filter_map(|access| match access.kind {
        Kind::Write { updates, .. } => block.op(updates?),
        _ => None,
    });
    let sizes: Vec<_> = updates
        .flat_map(|op| extents(block, op))
        .map(|extent| extent.size)
        .collect();
    if sizes.contains(&None) {
        return Some("as many positions as there are".to_owned());
    }
    let longest = sizes.into_iter().flatten().max()?;
    (longest > 1).then(|| format!("{longest} positions"))
}
