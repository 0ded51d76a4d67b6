//! nudge-state-update: a tiny number is added to what several new tokens put into a value cache.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::analysis::state::{Role, states};
use crate::ir::{Binding, DType, Dim, NodeId, Operation, ValueId};
use crate::ops::Opset;
use crate::pass::options::{self, OptionError, OptionMap};
use crate::pass::{Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Target};

/// The pass.
pub(super) struct NudgeStateUpdate;

/// No value changes by more.
const BOUND: f64 = 6e-8;

static META: Meta = Meta {
    id: "nudge-state-update",
    family: Family::State,
    summary: "a tiny number is added to what several new tokens put into a value cache",
    exactness: Exactness::Approx(BOUND),
    since: Opset::CoreML8,
    targets: &[Target::CoreMl],
    evidence: Evidence::Reported,
    catalog: &[],
    default: false,
    after: &["remove-noops", "merge-states", "pad-states"],
    page: include_str!("README.md"),
};

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    /// What is added.
    epsilon: f64,
}

impl Pass for NudgeStateUpdate {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn options(&self) -> OptionMap {
        options::defaults::<Options>()
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        let Options { epsilon } = options::read(META.id, options)?;
        if !(0.0..=BOUND).contains(&epsilon) {
            return Err(OptionError {
                pass: META.id,
                why: format!("option `epsilon`: a number from 0 to {BOUND:e} is expected"),
            });
        }
        Ok(Box::new(Nudge {
            epsilon,
            roles: None,
        }))
    }
}

struct Nudge {
    epsilon: f64,
    /// What each state of the block is for, once something asked.
    roles: Option<HashMap<ValueId, Role>>,
}

impl Nudge {
    fn role(&mut self, block: &Block<'_>, state: ValueId) -> Option<Role> {
        let roles = self.roles.get_or_insert_with(|| {
            let chains = states(block.graph).into_iter();
            chains
                .map(|chain| (chain.state, Role::of(chain.evidence, &chain.name)))
                .collect()
        });
        roles.get(&state).copied()
    }
}

impl Matcher for Nudge {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let Some(write) = block.op_of_type(node, "write_state") else {
            return Attempt::NoMatch;
        };
        let (Some(state), Some(data)) = (write.value("input"), write.value("data")) else {
            return Attempt::NoMatch;
        };
        if self.role(block, state) != Some(Role::Values) {
            return Attempt::NoMatch;
        }
        let name = block.graph.name(state).to_owned();
        let updates = updates(block, data);
        if updates.is_empty() {
            return Attempt::missed(node, format!("`{name}` is written as a whole"));
        }
        let mut nudged = Vec::new();
        let mut already = 0;
        for update in updates {
            let Some(op) = block.op(update) else { continue };
            let Some(value) = op.value("update") else {
                return Attempt::missed(update, "the update is a literal");
            };
            let Some(dtype) = block.dtype(value).filter(|dtype| is_float(*dtype)) else {
                return Attempt::missed(update, "the update is neither fp16 nor fp32");
            };
            if self.is_nudged(block, value) {
                already += 1;
            } else if has_several_tokens(block, op, value) {
                nudged.push((update, value, dtype));
            }
        }
        if nudged.is_empty() {
            return match already {
                0 => Attempt::missed(node, format!("one token is put into `{name}` at a time")),
                _ => Attempt::NoEffect,
            };
        }
        let epsilon = self.epsilon;
        let what = format!("{epsilon:e} is added to what is put into `{name}`");
        Attempt::matched(what, move |edit| {
            for (update, value, dtype) in nudged {
                let epsilon = edit.scalar(dtype, epsilon)?;
                let sum = edit.op("add", &[("x", Binding::Value(value)), ("y", epsilon)])?;
                edit.bind(update, "update", Some(vec![Binding::Value(sum)]));
            }
            Ok(())
        })
    }
}

impl Nudge {
    /// Whether the number has been added already.
    fn is_nudged(&self, block: &Block<'_>, value: ValueId) -> bool {
        let Some(add) = block.producer_of_type(value, "add") else {
            return false;
        };
        let added = block.uniform_of(add, "y");
        add.made_by() == Some(META.id) || added.is_some_and(|added| added.value == self.epsilon)
    }
}

/// The updates of parts that make a written value of what the state held, the last first.
fn updates(block: &Block<'_>, data: ValueId) -> Vec<NodeId> {
    let mut updates = Vec::new();
    let mut value = data;
    while let Some(update) = block.producer_of_type(value, "slice_update") {
        updates.push(value.node);
        match update.value("x") {
            Some(x) => value = x,
            None => break,
        }
    }
    updates
}

/// Whether an update has more than one index where it is a part of the state, layers aside; an
/// unknown size may be more than one.
fn has_several_tokens(block: &Block<'_>, op: &Operation, update: ValueId) -> bool {
    let dims = |value: ValueId| block.tensor(value).map(|ty| ty.dims.as_slice());
    let (Some(all), Some(part)) = (op.value("x").and_then(dims), dims(update)) else {
        return false;
    };
    // The first axis is that of batches or layers; what an update lacks is in front.
    let pairs = all.iter().skip(1).rev().zip(part.iter().rev());
    let mut parts = pairs.filter(|(all, part)| all != part).peekable();
    parts.peek().is_none() || parts.any(|(_, part)| *part != Dim::Known(1))
}

fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::Float16 | DType::Float32)
}
