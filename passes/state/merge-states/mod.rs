//! merge-states: states of one type and role become one state with a leading axis of layers.

mod body;
mod group;

use serde::{Deserialize, Serialize};

use crate::eval::states::{KEY, StateMap};
use crate::ir::{NamedType, ValueType};
use crate::model::Side;
use crate::ops::Opset;
use crate::pass::options::{self, OptionError, OptionMap};
use crate::pass::{
    Evidence, Exactness, Family, Meta, Pass, Rule, Severity, Target, Whole, WholeAttempt,
    WholeEdit, WholeEnd, WholeError, WholeMatcher,
};
use crate::text::{Dialect, type_text};
use group::Group;

/// The pass.
pub(super) struct MergeStates;

static META: Meta = Meta {
    id: "merge-states",
    family: Family::State,
    summary: "states of one type and role become one state with a leading axis of layers",
    exactness: Exactness::Interface,
    since: Opset::CoreML8,
    targets: &[Target::CoreMl],
    evidence: Evidence::Measured,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const TOO_MANY_STATES: Rule = Rule {
    id: "too-many-states",
    summary: "more states than the Neural Engine is seen to take",
    why: "Models with more than two states are reported not to compile for the Neural Engine, or to \
          compile and fail at the first prediction with status 0x1d. Of two states most reports say \
          that they work, one that they do not (macOS 26.0.1, caches and convolution states). The \
          GPU takes dozens.",
    help: "Let merge-states make one state of those that hold the same of each layer; it changes the \
           interface.",
    evidence: META.evidence,
    sources: &[
        "https://blog.squeezebits.com/disaggregated-inference-on-apple-silicon-npu-prefill-and-gpu-decode-67176",
        "https://github.com/john-rocky/CoreML-LLM",
    ],
    severity: &[(Target::CoreMl, Severity::Error)],
    catalog: &[],
};

/// States with which models are reported to run on the Neural Engine, mostly.
const MOST_STATES: usize = 2;

/// When the merged state is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Writes {
    /// Once in each function, behind the last update.
    #[default]
    Chained,
    /// Wherever one of its layers was written.
    Each,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    /// When the merged state is written.
    writes: Writes,
}

impl Pass for MergeStates {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[TOO_MANY_STATES]
    }

    fn options(&self) -> OptionMap {
        options::defaults::<Options>()
    }

    fn whole_matcher(
        &self,
        options: &OptionMap,
    ) -> Result<Option<Box<dyn WholeMatcher>>, OptionError> {
        Ok(Some(Box::new(Merger(options::read(META.id, options)?))))
    }
}

struct Merger(Options);

impl WholeMatcher for Merger {
    fn attempts(&mut self, whole: &Whole<'_>) -> Vec<WholeAttempt> {
        let mut attempts = self.merges(whole);
        let is_match = |attempt: &&mut WholeAttempt| matches!(attempt.end, WholeEnd::Match { .. });
        let Some((function, count)) = most_states(whole) else {
            return attempts;
        };
        let mut found = TOO_MANY_STATES.found(format!("`{function}` has {count} states"));
        if count <= MOST_STATES {
            found = found.severities(&[(Target::CoreMl, Severity::Info)]);
        }
        if let Some(first) = attempts.iter_mut().find(is_match) {
            first.findings.push(found);
        } else {
            attempts.push(WholeAttempt::found([&function, "", "function"], found));
        }
        attempts
    }
}

/// The function with the most states, if it has as many as may be too many.
fn most_states(whole: &Whole<'_>) -> Option<(String, usize)> {
    let counts = whole.program.functions.iter().map(|(name, function)| {
        let types = function.inputs.iter().filter_map(|input| input.ty.as_ref());
        (name.clone(), types.filter(|ty| ty.is_state()).count())
    });
    let most = counts.reduce(|most, next| if next.1 > most.1 { next } else { most });
    most.filter(|(_, count)| *count >= MOST_STATES)
}

impl Merger {
    /// All groups of states, and what keeps a state out of one.
    fn merges(&self, whole: &Whole<'_>) -> Vec<WholeAttempt> {
        let found = group::find(whole);
        let mut attempts = Vec::new();
        let map = match StateMap::of(whole.metadata) {
            Ok(map) => map,
            Err(error) if !found.groups.is_empty() => {
                attempts.push(WholeAttempt::missed(["", "", "program"], error.to_string()));
                return attempts;
            }
            Err(_) => StateMap::default(),
        };
        for (function, state, why) in found.left {
            attempts.push(WholeAttempt::missed([&function, &state, "state"], why));
        }
        for group in found.groups {
            let what = format!(
                "{} states become layers of `{}`, {}: {}",
                group.members.len(),
                group.name,
                type_text(&group.merged.clone().into(), Dialect::default()),
                group.listed()
            );
            let first = group.members.first().cloned().unwrap_or_default();
            let writes = self.0.writes;
            let mut map = map.clone();
            attempts.push(WholeAttempt::matched(
                ["", &first, "state"],
                what,
                move |edit| merge(edit, &group, writes, &mut map),
            ));
        }
        attempts
    }
}

/// Puts the merged state in the place of its members, in every function that has one of them.
fn merge(
    edit: &mut WholeEdit<'_>,
    group: &Group,
    writes: Writes,
    map: &mut StateMap,
) -> Result<(), WholeError> {
    let ty = ValueType::State(Some(Box::new(ValueType::Tensor(group.merged.clone()))));
    for function in edit.program().functions.keys().cloned().collect::<Vec<_>>() {
        let inputs = &edit.function(&function)?.inputs;
        let is_member = |input: &NamedType| group.layer(&input.name).is_some();
        let Some(index) = inputs.iter().position(is_member) else {
            continue;
        };
        let members: Vec<String> = inputs
            .iter()
            .filter(|input| is_member(input))
            .map(|input| input.name.clone())
            .collect();
        let input = NamedType {
            name: group.name.clone(),
            ty: Some(ty.clone()),
        };
        edit.function(&function)?.add_input(index, input)?;
        let bodies = &edit.function(&function)?.specializations;
        for opset in bodies.keys().cloned().collect::<Vec<_>>() {
            body::rewrite(edit, &function, &opset, group, writes)?;
        }
        for (member, layer) in members
            .iter()
            .filter_map(|member| Some((member, group.layer(member)?)))
        {
            edit.function(&function)?.remove_input(member)?;
            edit.description().remove(&function, Side::State, member);
            map.moved(
                &function,
                member,
                &group.shape,
                &group.place(layer),
                &group.merged_shape(),
            )
            .map_err(|error| WholeError::Other(error.to_string()))?;
        }
        edit.description()
            .describe(&function, Side::State, &group.name, &ty)?;
    }
    let text = map
        .text()
        .map_err(|error| WholeError::Other(error.to_string()))?;
    edit.description().set_user_defined(KEY, Some(text));
    Ok(())
}
