//! specialize-shapes: inputs of flexible shape get a fixed one, and all types follow.

mod flexible;
mod shapes;
mod walk;

use serde::{Deserialize, Serialize};

use self::shapes::Shapes;
use crate::ir::{Dim, Function, NamedType, TensorType, ValueType};
use crate::model::{Feature, Form, Side};
use crate::ops::Opset;
use crate::pass::options::{self, OptionError, OptionMap};
use crate::pass::{
    Evidence, Exactness, Family, Meta, Pass, Rule, Severity, Target, Whole, WholeAttempt,
    WholeEdit, WholeError, WholeMatcher,
};

/// The pass.
pub(super) struct SpecializeShapes;

static META: Meta = Meta {
    id: "specialize-shapes",
    family: Family::Placement,
    summary: "inputs of flexible shape get a fixed one, and the arithmetic of shapes becomes constants",
    exactness: Exactness::Interface,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Documented,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const FLEXIBLE_SHAPE: Rule = Rule {
    id: "flexible-shape",
    summary: "an input whose shape is not fixed",
    why: "The Neural Engine's compiler refuses shapes in a range: a model runs there at its default shape \
          at best, with other shapes 71 % of the operations became 2 % (coremltools issue 2370). Listed \
          shapes are supported, up to 128 of them (Apple); with layer_norm one model fell off the Neural \
          Engine with them (coremltools issue 1909).",
    help: "specialize-shapes fixes them, one model or function for each shape; or list the shapes.",
    evidence: Evidence::Measured,
    sources: &[
        "https://github.com/apple/coremltools/issues/2370",
        "https://github.com/apple/coremltools/issues/1909",
        "https://apple.github.io/coremltools/docs-guides/source/faqs.html",
    ],
    severity: Severity::Warning.everywhere(),
    catalog: &[],
};

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    /// Shapes by input, as `x:1x128+mask:1x128`.
    shapes: String,
    /// The size of every dimension that is open and that `shapes` does not fix; 0 for the default of
    /// the description, or 1 if there is none.
    size: u64,
}

impl Pass for SpecializeShapes {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[FLEXIBLE_SHAPE]
    }

    fn options(&self) -> OptionMap {
        options::defaults::<Options>()
    }

    fn whole_matcher(
        &self,
        options: &OptionMap,
    ) -> Result<Option<Box<dyn WholeMatcher>>, OptionError> {
        let options: Options = options::read(META.id, options)?;
        let wrong = |why: String| OptionError { pass: META.id, why };
        let shapes = Shapes::parse(&options.shapes)
            .map_err(|why| wrong(format!("option `shapes`: {why}")))?;
        Ok(Some(Box::new(Specialize {
            shapes,
            size: options.size,
        })))
    }
}

struct Specialize {
    shapes: Shapes,
    size: u64,
}

impl WholeMatcher for Specialize {
    fn attempts(&mut self, whole: &Whole<'_>) -> Vec<WholeAttempt> {
        let mut attempts = Vec::new();
        for (name, function) in &whole.program.functions {
            let attempt = self.attempt(whole, name, function);
            attempts.extend(attempt.map(|attempt| {
                let found = flexible::found(whole, name, function);
                found.into_iter().fold(attempt, WholeAttempt::with)
            }));
        }
        attempts
    }
}

impl Specialize {
    fn attempt(&self, whole: &Whole<'_>, name: &str, function: &Function) -> Option<WholeAttempt> {
        let described = whole.interface.functions.iter().find(|f| f.name == name);
        let mut fixed = Vec::new();
        for input in &function.inputs {
            let Some(ty) = open(input) else { continue };
            let mut features = described.into_iter().flat_map(|f| &f.inputs);
            let feature = features.find(|feature| feature.name == input.name);
            match self.fixed(&input.name, ty, feature) {
                Ok(ty) => fixed.push((input.name.clone(), ty)),
                Err(why) => {
                    return Some(WholeAttempt::missed([name, &input.name, "input"], why));
                }
            }
        }
        let first = fixed.first()?.0.clone();
        let place = [name, first.as_str(), "input"];
        for body in function.specializations.values() {
            // Types inside would have to follow as well, and loops find theirs only by running.
            if let Some((_, op)) = body.graph.ops().find(|(_, op)| !op.blocks().is_empty()) {
                let why = format!("the function has a nested block, in a {}", op.op_type());
                return Some(WholeAttempt::missed(place, why));
            }
        }
        let list: Vec<String> = fixed
            .iter()
            .map(|(name, ty)| format!("`{name}` {:?}", ty.shape().unwrap_or_default()))
            .collect();
        let what = format!("fixed: {}", list.join(", "));
        let function = name.to_owned();
        Some(WholeAttempt::matched(place, what, move |edit| {
            specialize(edit, &function, &fixed)
        }))
    }

    /// The type with all sizes known, or why there is none.
    fn fixed(
        &self,
        name: &str,
        ty: &TensorType,
        feature: Option<&Feature>,
    ) -> Result<TensorType, String> {
        if ty.rank < 0 || ty.dims.contains(&Dim::Unknown { variadic: true }) {
            return Err("its rank is not known".to_owned());
        }
        let default = match feature.map(|feature| &feature.form) {
            Some(Form::Array { shape, .. }) => shape.as_slice(),
            None => &[],
            Some(_) => return Err("it is described as something else than an array".to_owned()),
        };
        let given = self.shapes.of(name);
        if given.is_some_and(|given| given.len() != ty.dims.len()) {
            return Err(format!(
                "the shape given has {} dimensions, and it has {}",
                given.map_or(0, <[u64]>::len),
                ty.dims.len()
            ));
        }
        let mut sizes = Vec::new();
        for (axis, dim) in ty.dims.iter().enumerate() {
            let wanted = given.and_then(|given| given.get(axis).copied());
            let size = match (dim.size(), wanted) {
                (Some(own), Some(wanted)) if own != wanted => {
                    return Err(format!("its dimension {axis} is {own}, not {wanted}"));
                }
                (Some(own), _) => own,
                (None, Some(wanted)) => wanted,
                (None, None) if self.size > 0 => self.size,
                (None, None) => default
                    .get(axis)
                    .map(|size| *size as u64)
                    .filter(|_| default.len() == ty.dims.len())
                    .unwrap_or(1),
            };
            sizes.push(size);
        }
        if (given.is_some() || self.size > 0)
            && let Some(Form::Array { ranges, shapes, .. }) = feature.map(|feature| &feature.form)
        {
            allowed(&sizes, ranges, shapes)?;
        }
        Ok(TensorType::fixed(ty.dtype, &sizes))
    }
}

/// Whether a model's description allows a shape.
fn allowed(
    sizes: &[u64],
    ranges: &[(usize, Option<usize>)],
    shapes: &[Vec<usize>],
) -> Result<(), String> {
    for (axis, (size, (least, most))) in sizes.iter().zip(ranges).enumerate() {
        if *size < *least as u64 || most.is_some_and(|most| *size > most as u64) {
            return Err(format!(
                "the description does not allow {size} for its dimension {axis}"
            ));
        }
    }
    let same = |shape: &Vec<usize>| {
        shape
            .iter()
            .map(|size| *size as u64)
            .eq(sizes.iter().copied())
    };
    if !shapes.is_empty() && !shapes.iter().any(same) {
        return Err("the shape is none of those that the description lists".to_owned());
    }
    Ok(())
}

/// The type of an input whose shape is open.
fn open(input: &NamedType) -> Option<&TensorType> {
    let ty = input.ty.as_ref()?.as_tensor()?;
    ty.shape().is_none().then_some(ty)
}

fn specialize(
    edit: &mut WholeEdit<'_>,
    function: &str,
    fixed: &[(String, TensorType)],
) -> Result<(), WholeError> {
    for (name, ty) in fixed {
        let ty: ValueType = ty.clone().into();
        edit.function(function)?.retype_input(name, &ty)?;
        edit.description()
            .describe(function, Side::Input, name, &ty)?;
    }
    let opsets: Vec<String> = edit
        .function(function)?
        .specializations
        .keys()
        .cloned()
        .collect();
    for opset in &opsets {
        walk::retype(edit, function, opset)?;
    }
    let mut outputs = Vec::new();
    for body in edit.function(function)?.specializations.values() {
        for value in body.graph.outputs() {
            outputs.extend(body.graph.named(*value).cloned());
        }
    }
    let described = edit.description().interface();
    let described = described.functions.into_iter().find(|f| f.name == function);
    for feature in described.map(|f| f.outputs).unwrap_or_default() {
        let output = outputs.iter().find(|output| output.name == feature.name);
        if let (Form::Array { .. }, Some(ty)) = (&feature.form, output.and_then(|o| o.ty.as_ref()))
        {
            edit.description()
                .describe(function, Side::Output, &feature.name, ty)?;
        }
    }
    Ok(())
}
