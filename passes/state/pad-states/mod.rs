//! pad-states: dimensions of states that are no power of two are padded with zeros.

mod body;
mod wide;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::analysis::state::states;
use crate::eval::states::{KEY, Place, StateMap};
use crate::ir::{DType, Dim, TensorType, ValueType};
use crate::model::Side;
use crate::ops::Opset;
use crate::pass::options::{self, OptionError, OptionMap};
use crate::pass::{
    Evidence, Exactness, Family, Found, Meta, Pass, Rule, Severity, Target, Whole, WholeAttempt,
    WholeEdit, WholeError, WholeMatcher,
};
use crate::text::{Dialect, type_text};

/// The pass.
pub(super) struct PadStates;

static META: Meta = Meta {
    id: "pad-states",
    family: Family::State,
    summary: "dimensions of states that are no power of two are padded with zeros",
    exactness: Exactness::Interface,
    since: Opset::CoreML8,
    targets: &[Target::CoreMl],
    evidence: Evidence::Disputed,
    catalog: &[],
    default: false,
    after: &["merge-states"],
    page: include_str!("README.md"),
};

const STATE_DIMS: Rule = Rule {
    id: "state-dims",
    summary: "a dimension of a state is no power of two",
    why: "States with such dimensions are reported to fail on the Neural Engine at run time, with a \
          message that does not name the cause: heads of width 80 (EXAONE), a last dimension of 270 \
          (M4, macOS 15.2). Sources differ on whether all dimensions but the first must be powers of \
          two, or the last a multiple of 32.",
    help: "Let pad-states pad them; it changes the interface. multiple=32 pads the last one alone.",
    evidence: META.evidence,
    sources: &[
        "https://blog.squeezebits.com/disaggregated-inference-on-apple-silicon-npu-prefill-and-gpu-decode-67176",
        "https://github.com/apple/coremltools/issues/2631",
    ],
    severity: &[(Target::CoreMl, Severity::Warning)],
    catalog: &[],
};

/// What the last dimension of a state is said to be a multiple of.
const LAST_MULTIPLE: u64 = 32;

/// To which sizes dimensions are padded.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(untagged)]
enum Multiple {
    /// Every dimension but the first, to the next power of two.
    Word(Word),
    /// The last dimension, to the next multiple of this.
    Of(u64),
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum Word {
    #[serde(rename = "pow2")]
    PowerOfTwo,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    /// To which sizes dimensions are padded.
    multiple: Multiple,
    /// Whether the padded size goes on through the operations that read the state.
    deep: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            multiple: Multiple::Word(Word::PowerOfTwo),
            deep: false,
        }
    }
}

impl Pass for PadStates {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[STATE_DIMS]
    }

    fn options(&self) -> OptionMap {
        options::defaults::<Options>()
    }

    fn whole_matcher(
        &self,
        options: &OptionMap,
    ) -> Result<Option<Box<dyn WholeMatcher>>, OptionError> {
        let options: Options = options::read(META.id, options)?;
        if let Multiple::Of(0) = options.multiple {
            return Err(OptionError {
                pass: META.id,
                why: "option `multiple`: `pow2` or a number of 1 or more is expected".to_owned(),
            });
        }
        Ok(Some(Box::new(Padder(options))))
    }
}

struct Padder(Options);

/// States of one type, and what becomes of them.
#[derive(Clone)]
struct Group {
    names: Vec<String>,
    shape: Vec<usize>,
    /// What is behind each dimension.
    padding: Vec<usize>,
    padded: TensorType,
}

/// A state in all functions.
struct Known {
    ty: TensorType,
    obstacle: Option<(String, String)>,
}

impl WholeMatcher for Padder {
    fn attempts(&mut self, whole: &Whole<'_>) -> Vec<WholeAttempt> {
        let mut attempts = Vec::new();
        let mut groups: Vec<(TensorType, Group)> = Vec::new();
        for (name, known) in known(whole) {
            let padding = match self.padding(&known.ty) {
                Ok(padding) if padding.iter().all(|padding| *padding == 0) => continue,
                Ok(padding) => padding,
                Err(why) => {
                    attempts.push(WholeAttempt::missed(["", &name, "state"], why));
                    continue;
                }
            };
            if let Some((function, why)) = known.obstacle {
                let found = found(&name, &known.ty);
                let missed = WholeAttempt::missed([&function, &name, "state"], why);
                attempts.push(missed.with(found));
                continue;
            }
            match groups.iter_mut().find(|(ty, _)| *ty == known.ty) {
                Some((_, group)) => group.names.push(name),
                None => {
                    if let Some(group) = Group::of(name, &known.ty, padding) {
                        groups.push((known.ty, group));
                    }
                }
            }
        }
        let map = match StateMap::of(whole.metadata) {
            Ok(map) => map,
            Err(error) if !groups.is_empty() => {
                attempts.push(WholeAttempt::missed(["", "", "program"], error.to_string()));
                return attempts;
            }
            Err(_) => StateMap::default(),
        };
        for (ty, group) in groups {
            let listed = match group.names.as_slice() {
                [first, second, .., last] if group.names.len() > 4 => {
                    format!("{first}, {second}, … {last}")
                }
                names => names.join(", "),
            };
            let what = format!(
                "{listed}: {} becomes {}",
                type_text(&ty.clone().into(), Dialect::default()),
                type_text(&group.padded.clone().into(), Dialect::default())
            );
            let first = group.names.first().cloned().unwrap_or_default();
            let (deep, mut map) = (self.0.deep, map.clone());
            let found = found(&listed, &ty);
            let matched = WholeAttempt::matched(["", &first, "state"], what, move |edit| {
                pad(edit, &group, deep, &mut map)
            });
            attempts.push(matched.with(found));
        }
        attempts
    }
}

/// What is said of states of one type.
fn found(names: &str, ty: &TensorType) -> Found {
    let sizes = ty.shape().unwrap_or_default();
    let odd: Vec<String> = sizes
        .iter()
        .skip(1)
        .filter(|size| !size.is_power_of_two())
        .map(u64::to_string)
        .collect();
    let mut message = format!(
        "{names}: {}",
        type_text(&ty.clone().into(), Dialect::default())
    );
    if !odd.is_empty() {
        let _ = write!(message, " has {}, no power of two", odd.join(", "));
    }
    if sizes
        .last()
        .is_some_and(|last| !last.is_multiple_of(LAST_MULTIPLE))
    {
        let _ = write!(
            message,
            "; the last dimension is no multiple of {LAST_MULTIPLE}"
        );
    }
    STATE_DIMS.found(message)
}

impl Padder {
    /// What each dimension lacks.
    fn padding(&self, ty: &TensorType) -> Result<Vec<usize>, String> {
        if !matches!(ty.dtype, DType::Float16 | DType::Float32) {
            return Err(format!("`pad` does not take {}", ty.dtype));
        }
        let unknown = || "a size of the state is not known".to_owned();
        let sizes = ty.shape().ok_or_else(unknown)?;
        let last = sizes.len().saturating_sub(1);
        let mut padding = Vec::new();
        for (axis, size) in sizes.into_iter().enumerate() {
            let wanted = match self.0.multiple {
                _ if axis == 0 => Some(size),
                Multiple::Word(Word::PowerOfTwo) => size.checked_next_power_of_two(),
                Multiple::Of(number) if axis == last => size.checked_next_multiple_of(number),
                Multiple::Of(_) => Some(size),
            };
            let fits = |wanted: &u64| i32::try_from(*wanted).is_ok();
            let wanted = wanted.filter(fits).ok_or("it would be too large")?;
            padding.push((wanted - size) as usize);
        }
        Ok(padding)
    }
}

impl Group {
    fn of(name: String, ty: &TensorType, padding: Vec<usize>) -> Option<Self> {
        let sizes = ty.shape()?;
        let shape: Vec<usize> = sizes.iter().map(|size| *size as usize).collect();
        let dims = shape.iter().zip(&padding);
        let dims = dims.map(|(size, padding)| Dim::Known((size + padding) as u64));
        Some(Self {
            names: vec![name],
            padded: TensorType::new(ty.dtype, dims.collect()),
            shape,
            padding,
        })
    }

    fn padded_shape(&self) -> Vec<usize> {
        let dims = self.shape.iter().zip(&self.padding);
        dims.map(|(size, padding)| size + padding).collect()
    }
}

/// All states by name.
fn known(whole: &Whole<'_>) -> BTreeMap<String, Known> {
    let mut known: BTreeMap<String, Known> = BTreeMap::new();
    for (name, function) in &whole.program.functions {
        for (opset, body) in &function.specializations {
            for chain in states(&body.graph) {
                let mut why = chain.other_access().map(|_| {
                    "something other than a plain read or write of the function takes it".to_owned()
                });
                if Opset::parse(opset).is_none() {
                    why = Some("the opset is newer than those milwright knows".to_owned());
                }
                let one = known.entry(chain.name.clone()).or_insert_with(|| Known {
                    ty: chain.ty.clone(),
                    obstacle: None,
                });
                if one.ty != chain.ty {
                    why = Some(format!(
                        "it is {} in this function and {} in another",
                        type_text(&chain.ty.clone().into(), Dialect::default()),
                        type_text(&one.ty.clone().into(), Dialect::default())
                    ));
                }
                if one.obstacle.is_none() {
                    one.obstacle = why.map(|why| (name.clone(), why));
                }
            }
        }
    }
    known
}

/// Pads the states of a group in every function.
fn pad(
    edit: &mut WholeEdit<'_>,
    group: &Group,
    deep: bool,
    map: &mut StateMap,
) -> Result<(), WholeError> {
    let ty = ValueType::State(Some(Box::new(group.padded.clone().into())));
    for function in edit.program().functions.keys().cloned().collect::<Vec<_>>() {
        let inputs = &edit.function(&function)?.inputs;
        let is_of = |name: &String| inputs.iter().any(|input| input.name == *name);
        let own: Vec<String> = group
            .names
            .iter()
            .filter(|name| is_of(name))
            .cloned()
            .collect();
        if own.is_empty() {
            continue;
        }
        for state in &own {
            edit.function(&function)?.retype_input(state, &ty)?;
            edit.description()
                .describe(&function, Side::State, state, &ty)?;
            let place = Place {
                state: state.clone(),
                axis: 0,
                start: 0,
                length: group.shape.first().copied().unwrap_or_default(),
                new_axis: false,
                padding: group.padding.clone(),
            };
            map.moved(
                &function,
                state,
                &group.shape,
                &place,
                &group.padded_shape(),
            )
            .map_err(|error| WholeError::Other(error.to_string()))?;
        }
        let bodies = &edit.function(&function)?.specializations;
        for opset in bodies.keys().cloned().collect::<Vec<_>>() {
            body::rewrite(edit, [&function, &opset], &own, &group.padding, deep)?;
        }
    }
    let text = map
        .text()
        .map_err(|error| WholeError::Other(error.to_string()))?;
    edit.description().set_user_defined(KEY, Some(text));
    Ok(())
}
