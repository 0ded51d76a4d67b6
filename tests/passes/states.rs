//! States of a program before a pass in the states of the program after it, by the map that the pass
//! left in the metadata.

use std::collections::BTreeMap;

use milwright::eval::states::{Place, StateMap};
use milwright::ir::{Program, ValueType};
use milwright::tensor::{Tensor, strides};

/// What the states after the pass start with: the values of those before where the map says that
/// they are, 0 elsewhere.
pub(crate) fn moved(
    states: &BTreeMap<String, Tensor>,
    after: &Program,
    function: &str,
    map: &StateMap,
) -> Result<BTreeMap<String, Tensor>, String> {
    let mut moved = BTreeMap::new();
    for input in &after.functions[function].inputs {
        let Some(ty) = input.ty.as_ref().and_then(ValueType::as_state) else {
            continue;
        };
        if map.place(function, &input.name).is_none()
            && let Some(same) = states.get(&input.name)
        {
            moved.insert(input.name.clone(), same.clone());
            continue;
        }
        let shape: Option<Vec<usize>> = ty
            .dims
            .iter()
            .map(|dim| Some(dim.size()? as usize))
            .collect();
        let shape = shape.ok_or_else(|| format!("the shape of the state `{}`", input.name))?;
        let mut elements = vec![0.0; shape.iter().product()];
        for (name, value) in states {
            let place = map.place(function, name);
            let Some(place) = place.filter(|place| place.state == input.name) else {
                continue;
            };
            let values = value.as_floats().map_err(|error| error.to_string())?;
            for (index, value) in values.iter().enumerate() {
                let at = target(index, value_shape(states, name), &shape, place)
                    .ok_or_else(|| format!("`{name}` is not in `{}`", input.name))?;
                elements[at] = *value;
            }
        }
        moved.insert(
            input.name.clone(),
            Tensor::floats(ty.dtype, shape, elements),
        );
    }
    Ok(moved)
}

fn value_shape<'s>(states: &'s BTreeMap<String, Tensor>, name: &str) -> &'s [usize] {
    states.get(name).map_or(&[], |state| state.shape())
}

/// The index in the new state of an element of the old one.
fn target(index: usize, shape: &[usize], held: &[usize], place: &Place) -> Option<usize> {
    let mut at: Vec<usize> = strides(shape)
        .into_iter()
        .zip(shape)
        .map(|(stride, size)| index / stride % size)
        .collect();
    if place.new_axis {
        at.insert(place.axis, place.start);
    } else {
        *at.get_mut(place.axis)? += place.start;
    }
    let inside = at.len() == held.len() && at.iter().zip(held).all(|(at, size)| at < size);
    let steps = strides(held);
    inside.then(|| at.iter().zip(steps).map(|(at, stride)| at * stride).sum())
}

/// The results of the program after the pass, with the states of the program before it.
pub(crate) fn restored(
    mut results: BTreeMap<String, Tensor>,
    function: &str,
    states: &BTreeMap<String, Tensor>,
    map: &StateMap,
) -> Result<BTreeMap<String, Tensor>, String> {
    let mut held = BTreeMap::new();
    for name in states.keys() {
        let Some(place) = map.place(function, name) else {
            continue;
        };
        let key = format!("state {}", place.state);
        let state = results
            .get(&key)
            .ok_or_else(|| format!("there is no state `{}`", place.state))?;
        let original = place
            .original(name, state)
            .map_err(|error| error.to_string())?;
        held.insert(name, (key, original));
    }
    for (key, _) in held.values() {
        results.remove(key);
    }
    for (name, (_, original)) in held {
        results.insert(format!("state {name}"), original);
    }
    Ok(results)
}
