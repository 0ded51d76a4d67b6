//! interface-mismatch: functions whose inputs, outputs or states are not those of the description.

use std::collections::{BTreeMap, BTreeSet};

use crate::ir::{DType, Function, NamedType, TensorType, ValueType};
use crate::model::{Feature, Form, FunctionInterface};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Evidence, Exactness, Family, Found, Meta, Pass, Rule, Severity, Target, Whole, WholeAttempt,
    WholeMatcher,
};

/// The check.
pub(super) struct InterfaceMismatch;

static META: Meta = Meta {
    id: "interface-mismatch",
    family: Family::Integrity,
    summary: "inputs, outputs or states of a function that are not those of the description",
    exactness: Exactness::None,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &["orion-14"],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const INTERFACE_MISMATCH: Rule = Rule {
    id: "interface-mismatch",
    summary: META.summary,
    why: "Core ML matches the description and the program by name. A state that the description lacks \
          ends the loading with \"MIL program input not found in Core ML model inputs\"; enumerated \
          and ranged shapes in one function abort with \"A model doesn't allow a mixture of \
          enumerated and range shape flexibility\".",
    help: "Change names, types and flexible shapes where the model is made, so that both sides say the \
           same.",
    evidence: META.evidence,
    sources: &[
        "https://github.com/apple/coremltools/issues/2275",
        "https://github.com/apple/coremltools/issues/2548",
    ],
    severity: &[(Target::CoreMl, Severity::Error)],
    catalog: &[],
};

const LIVE_OUTPUTS: Rule = Rule {
    id: "live-outputs",
    summary: "an output that no operation of the program makes any more",
    why: "A pass that renames or removes the last operation leaves an output behind that names nothing. \
          The compiler refuses the program, by Orion's account without saying which output it was. \
          Where the program itself returns such a name milwright cannot open it and says so.",
    help: "Take the output from the description, or let the program return it.",
    evidence: Evidence::Measured,
    sources: &["https://github.com/mechramc/Orion"],
    severity: Severity::Error.everywhere(),
    catalog: META.catalog,
};

const NO_INPUT_FUNCTION: Rule = Rule {
    id: "no-input-function",
    summary: "a function without an input",
    why: "Core ML does not load models without inputs, as ExecuTorch found.",
    help: "Give it an input, if only one that does not change the result.",
    evidence: Evidence::Reported,
    sources: &["https://github.com/pytorch/executorch/issues/11719"],
    severity: Severity::Error.everywhere(),
    catalog: &[],
};

impl Pass for InterfaceMismatch {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[INTERFACE_MISMATCH, LIVE_OUTPUTS, NO_INPUT_FUNCTION]
    }

    fn whole_matcher(
        &self,
        options: &OptionMap,
    ) -> Result<Option<Box<dyn WholeMatcher>>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Some(Box::new(Interfaces)))
    }
}

struct Interfaces;

impl WholeMatcher for Interfaces {
    fn attempts(&mut self, whole: &Whole<'_>) -> Vec<WholeAttempt> {
        let mut found = Findings::default();
        for (name, function) in &whole.program.functions {
            found.function.clone_from(name);
            if function.inputs.is_empty() {
                let what = NO_INPUT_FUNCTION.found("it has no inputs and no states");
                found.push("", "function", what);
            }
            if whole.interface.functions.is_empty() {
                continue;
            }
            match whole.interface.function(name) {
                Some(described) => found.compare(function, described),
                None => found.mismatch("", "function", "the description does not have it"),
            }
        }
        for described in &whole.interface.functions {
            if !whole.program.functions.contains_key(&described.name) {
                found.function.clone_from(&described.name);
                found.mismatch("", "function", "the program does not have it");
            }
        }
        found.attempts
    }
}

/// What was found, by function.
#[derive(Default)]
struct Findings {
    function: String,
    attempts: Vec<WholeAttempt>,
}

impl Findings {
    fn push(&mut self, name: &str, what: &str, found: Found) {
        let place = [self.function.as_str(), name, what];
        self.attempts.push(WholeAttempt::found(place, found));
    }

    fn mismatch(&mut self, name: &str, what: &str, message: impl Into<String>) {
        self.push(name, what, INTERFACE_MISMATCH.found(message));
    }

    fn compare(&mut self, function: &Function, described: &FunctionInterface) {
        let (states, inputs): (Vec<_>, Vec<_>) =
            function.inputs.iter().partition(|input| is_state(input));
        self.sides("input", &inputs, &described.inputs);
        self.sides("state", &states, &described.states);
        self.outputs(function, described);
        self.flexibility(&described.inputs);
    }

    /// Compares what goes in.
    fn sides(&mut self, what: &str, declared: &[&NamedType], described: &[Feature]) {
        let by_name: BTreeMap<&str, &Feature> = described.iter().map(by_name).collect();
        for input in declared {
            match by_name.get(input.name.as_str()) {
                Some(feature) => {
                    let tensor = input.ty.as_ref().and_then(ValueType::as_tensor);
                    if let Some(difference) = tensor.and_then(|tensor| differs(tensor, feature)) {
                        let found = INTERFACE_MISMATCH.found(difference);
                        self.push(&input.name, what, found.severity(Severity::Warning));
                    }
                }
                None => self.mismatch(&input.name, what, "the description does not have it"),
            }
        }
        let names: BTreeSet<&str> = declared.iter().map(|input| &*input.name).collect();
        for feature in described {
            if !names.contains(&*feature.name) {
                self.mismatch(&feature.name, what, "the function does not have it");
            }
        }
    }

    /// Compares what comes out, by name, of the body that runs.
    fn outputs(&mut self, function: &Function, described: &FunctionInterface) {
        let Some(body) = function.active() else {
            return;
        };
        let graph = &body.graph;
        let returned: Vec<&str> = graph
            .outputs()
            .iter()
            .map(|value| graph.name(*value))
            .collect();
        let by_name: BTreeMap<&str, &Feature> = described.outputs.iter().map(by_name).collect();
        for name in &returned {
            if !by_name.contains_key(name) {
                self.mismatch(name, "output", "the description does not have it");
            }
        }
        let names: BTreeSet<&str> = returned.iter().copied().collect();
        for feature in &described.outputs {
            if !names.contains(&*feature.name) {
                let what = LIVE_OUTPUTS.found(format!(
                    "the description has it, and the function returns {}",
                    listed(&returned)
                ));
                self.push(&feature.name, "output", what);
            }
        }
    }

    /// Enumerated shapes of one input beside a range of another.
    fn flexibility(&mut self, inputs: &[Feature]) {
        let first = |wanted: fn(&Form) -> bool| inputs.iter().find(|input| wanted(&input.form));
        if let (Some(listed), Some(ranged)) = (first(is_listed), first(is_ranged)) {
            let what = format!(
                "its shapes are a list, and those of `{}` are a range",
                ranged.name
            );
            self.mismatch(&listed.name, "input", what);
        }
    }
}

fn by_name(feature: &Feature) -> (&str, &Feature) {
    (&feature.name, feature)
}

fn is_state(input: &NamedType) -> bool {
    input.ty.as_ref().is_some_and(ValueType::is_state)
}

fn is_listed(form: &Form) -> bool {
    // A list of one shape is no choice.
    matches!(form, Form::Array { shapes, .. } if shapes.len() > 1)
}

fn is_ranged(form: &Form) -> bool {
    matches!(form, Form::Array { ranges, .. } if ranges.iter().any(|(low, high)| *high != Some(*low)))
}

/// How an array of the description is another than the function's tensor.
fn differs(tensor: &TensorType, feature: &Feature) -> Option<String> {
    let Form::Array {
        shape,
        ranges,
        shapes,
        ..
    } = &feature.form
    else {
        return None;
    };
    let word = feature.kind.split_whitespace().next()?;
    let described = DType::from_word(word)?;
    let is_storable = |dtype| {
        matches!(
            dtype,
            DType::Float16 | DType::Float32 | DType::Int32 | DType::Int8
        )
    };
    if described != tensor.dtype && is_storable(described) && is_storable(tensor.dtype) {
        return Some(format!(
            "it is {} in the function and {} in the description",
            tensor.dtype, described
        ));
    }
    let is_fixed = ranges.is_empty() && shapes.is_empty() && !shape.is_empty();
    let own = tensor.shape().filter(|_| is_fixed)?;
    let same = own.len() == shape.len() && own.iter().zip(shape).all(|(a, b)| *a == *b as u64);
    (!same && !own.is_empty())
        .then(|| format!("it is {own:?} in the function and {shape:?} in the description"))
}

fn listed(names: &[&str]) -> String {
    /// So many names are enough to see what is meant.
    const MOST: usize = 4;
    if names.is_empty() {
        return "nothing".to_owned();
    }
    let shown: Vec<String> = names
        .iter()
        .take(MOST)
        .map(|name| format!("`{name}`"))
        .collect();
    let more = match names.len().saturating_sub(MOST) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    shown.join(", ") + &more
}
