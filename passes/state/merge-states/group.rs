//! Which states become one: those of one type and role, in the order of the layers.

use std::collections::{BTreeMap, BTreeSet};

use crate::analysis::state::{Evidence, Role, StateChain, states};
use crate::eval::states::Place;
use crate::ir::{Dim, TensorType};
use crate::ops::Opset;
use crate::pass::Whole;
use crate::text::{Dialect, type_text};

/// A tensor of Core ML has at most this many dimensions.
const MAX_RANK: usize = 5;

/// Shorter names say nothing of what a state holds.
const SHORTEST_NAME: usize = 3;

/// States that become one.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// The name of the merged state.
    pub(super) name: String,
    /// The states, in the order of the layers.
    pub(super) members: Vec<String>,
    /// The shape of each.
    pub(super) shape: Vec<usize>,
    /// What the merged state holds.
    pub(super) merged: TensorType,
    /// Whether the axis of layers is new; else it is the states' first axis, which is 1.
    pub(super) new_axis: bool,
}

/// What a program has.
#[derive(Default)]
pub(super) struct Found {
    /// What becomes one.
    pub(super) groups: Vec<Group>,
    /// Function, state, and why it stays as it is.
    pub(super) left: Vec<(String, String, String)>,
}

/// A state in all functions.
struct Known {
    ty: TensorType,
    evidence: Evidence,
    /// The function in which it was met first, and why it cannot be merged, if so.
    obstacle: Option<(String, String)>,
}

impl Group {
    /// The index of a state among the layers.
    pub(super) fn layer(&self, state: &str) -> Option<usize> {
        self.members.iter().position(|member| member == state)
    }

    /// The merged state's shape.
    pub(super) fn merged_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if self.new_axis {
            shape.insert(0, self.members.len());
        } else if let Some(first) = shape.first_mut() {
            *first = self.members.len();
        }
        shape
    }

    /// Where a layer is, for the map.
    pub(super) fn place(&self, layer: usize) -> Place {
        Place {
            state: self.name.clone(),
            axis: 0,
            start: layer,
            length: 1,
            new_axis: self.new_axis,
            padding: Vec::new(),
        }
    }

    /// The names of the states, shortened.
    pub(super) fn listed(&self) -> String {
        let members = self.members.as_slice();
        match members {
            [first, second, .., last] if members.len() > 4 => {
                format!("{first}, {second}, … {last}")
            }
            _ => members.join(", "),
        }
    }
}

/// Looks for states to merge.
pub(super) fn find(whole: &Whole<'_>) -> Found {
    let mut known: BTreeMap<String, Known> = BTreeMap::new();
    // For each body the members in the order of the first access.
    let mut orders: Vec<(bool, Vec<String>)> = Vec::new();
    for (name, function) in &whole.program.functions {
        for (opset, body) in &function.specializations {
            let chains = states(&body.graph);
            let mut order: Vec<(usize, String)> = Vec::new();
            for chain in &chains {
                let first = chain
                    .accesses
                    .first()
                    .map_or(usize::MAX, |access| access.place);
                order.push((first, chain.name.clone()));
                meet(&mut known, name, opset, chain);
            }
            // Stable: what is not accessed keeps the order of the inputs.
            order.sort_by_key(|(first, _)| *first);
            let is_default = whole.interface.default_function == *name;
            orders.push((
                is_default,
                order.into_iter().map(|(_, state)| state).collect(),
            ));
        }
    }
    let order = layers(orders);
    let mut groups: Vec<(TensorType, Role, Vec<String>)> = Vec::new();
    let mut left = Vec::new();
    for state in &order {
        let Some(one) = known.get(state) else {
            continue;
        };
        let role = Role::of(one.evidence, state);
        match groups
            .iter_mut()
            .find(|(ty, r, _)| *ty == one.ty && *r == role)
        {
            Some((.., members)) => members.push(state.clone()),
            None => groups.push((one.ty.clone(), role, vec![state.clone()])),
        }
    }
    let mut found = Found::default();
    let mut candidates: Vec<(Group, Role)> = Vec::new();
    for (ty, role, mut members) in groups {
        if members.len() < 2 {
            continue;
        }
        members.retain(
            |member| match known.get(member).and_then(|one| one.obstacle.clone()) {
                Some((function, why)) => {
                    left.push((function, member.clone(), why));
                    false
                }
                None => true,
            },
        );
        if members.len() < 2 {
            continue;
        }
        match group(&ty, members.clone()) {
            Ok(group) => candidates.push((group, role)),
            Err(why) => {
                let first = members.into_iter().next().unwrap_or_default();
                left.push((String::new(), first, why));
            }
        }
    }
    name(&mut candidates, whole);
    found.groups = candidates.into_iter().map(|(group, _)| group).collect();
    found.left = left;
    found
}

/// Notes what one body does with a state.
fn meet(known: &mut BTreeMap<String, Known>, function: &str, opset: &str, chain: &StateChain) {
    let mut obstacle = chain
        .other_access()
        .map(|_| "something other than a plain read or write of the function takes it".to_owned());
    if Opset::parse(opset).is_none() {
        obstacle = Some("the opset is newer than those milwright knows".to_owned());
    }
    if let Some(one) = known.get_mut(&chain.name) {
        one.evidence = one.evidence | chain.evidence;
        if one.ty != chain.ty {
            obstacle = Some(format!(
                "it is {} in this function and {} in another",
                type_text(&chain.ty.clone().into(), Dialect::default()),
                type_text(&one.ty.clone().into(), Dialect::default())
            ));
        }
        if one.obstacle.is_none() {
            one.obstacle = obstacle.map(|why| (function.to_owned(), why));
        }
        return;
    }
    known.insert(
        chain.name.clone(),
        Known {
            ty: chain.ty.clone(),
            evidence: chain.evidence,
            obstacle: obstacle.map(|why| (function.to_owned(), why)),
        },
    );
}

/// The order of the layers: that of the body with the most states, the default function's among
/// equals; what it lacks comes behind, in the order of the others.
fn layers(mut orders: Vec<(bool, Vec<String>)>) -> Vec<String> {
    orders.sort_by_key(|(is_default, order)| std::cmp::Reverse((order.len(), *is_default)));
    let mut seen = BTreeSet::new();
    let all = orders.into_iter().flat_map(|(_, order)| order);
    all.filter(|state| seen.insert(state.clone())).collect()
}

/// The merged state, without a name.
fn group(ty: &TensorType, members: Vec<String>) -> Result<Group, String> {
    let shape = ty.shape().and_then(|shape| {
        // Indices are int32.
        let sizes = shape.into_iter().map(|size| {
            let size = i32::try_from(size).ok()?;
            usize::try_from(size).ok()
        });
        sizes.collect::<Option<Vec<_>>>()
    });
    let shape = shape.ok_or("a size of the states is unknown or too large")?;
    if shape.is_empty() || shape.contains(&0) {
        return Err("the states are scalars or empty".to_owned());
    }
    let new_axis = shape.first() != Some(&1);
    if new_axis && shape.len() >= MAX_RANK {
        return Err(format!(
            "the states have {MAX_RANK} dimensions, and no axis of size 1 in front that could become \
             that of the layers"
        ));
    }
    let mut dims = ty.dims.clone();
    let count = Dim::Known(members.len() as u64);
    if new_axis {
        dims.insert(0, count);
    } else if let Some(first) = dims.first_mut() {
        *first = count;
    }
    Ok(Group {
        name: String::new(),
        members,
        shape,
        merged: TensorType::new(ty.dtype, dims),
        new_axis,
    })
}

/// Gives each merged state a name: what its members' names have in common, else its role.
fn name(groups: &mut [(Group, Role)], whole: &Whole<'_>) {
    let common: Vec<String> = groups
        .iter()
        .map(|(group, _)| in_common(&group.members))
        .collect();
    let mut taken = BTreeSet::new();
    for (index, (group, role)) in groups.iter_mut().enumerate() {
        let own = &common[index];
        let is_unique = common.iter().filter(|other| *other == own).count() == 1;
        let base = if own.len() >= SHORTEST_NAME && is_unique {
            own.as_str()
        } else {
            role.word()
        };
        let mut candidate = whole.program.fresh_name(base);
        let mut number = 0;
        while taken.contains(&candidate) {
            number += 1;
            candidate = whole.program.fresh_name(&format!("{base}_{number}"));
        }
        taken.insert(candidate.clone());
        group.name = candidate;
    }
}

/// What names have in common at both ends, without numbers and separators at the joint.
fn in_common(names: &[String]) -> String {
    let Some((first, rest)) = names.split_first() else {
        return String::new();
    };
    let first: Vec<char> = first.chars().collect();
    let (mut front, mut back) = (first.len(), first.len());
    for name in rest {
        let name: Vec<char> = name.chars().collect();
        let same = |(a, b): &(&char, &char)| a == b;
        front = front.min(first.iter().zip(&name).take_while(same).count());
        let ends = first.iter().rev().zip(name.iter().rev());
        back = back.min(ends.take_while(same).count());
    }
    let is_joint = |c: &char| !c.is_alphabetic();
    let front: String = first.iter().take(front).collect();
    let front = front.trim_end_matches(|c: char| is_joint(&c)).to_owned();
    let back = back.min(first.len() - front.chars().count());
    let back: String = first.iter().skip(first.len() - back).collect();
    let back = back.trim_start_matches(|c: char| is_joint(&c));
    match (front.is_empty(), back.is_empty()) {
        (false, false) => format!("{front}_{back}"),
        _ => front + back,
    }
}

#[cfg(test)]
mod tests {
    use super::in_common;

    #[test]
    fn a_name_is_what_the_names_have_in_common() {
        let of = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            in_common(&names)
        };
        assert_eq!(of(&["keyCache_0", "keyCache_1", "keyCache_10"]), "keyCache");
        assert_eq!(of(&["k_0", "k_1"]), "k");
        assert_eq!(
            of(&["layers_0_key_cache", "layers_1_key_cache"]),
            "layers_key_cache"
        );
        assert_eq!(of(&["a", "b"]), "");
        assert_eq!(of(&["cache.k.11", "cache.k.1"]), "cache.k");
        assert_eq!(of(&["s1s", "s1s"]), "s1s");
    }
}
