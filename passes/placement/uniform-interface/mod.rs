//! uniform-interface: inputs, and outputs, of different sizes get one size.

use std::collections::BTreeMap;

use crate::eval;
use crate::eval::ports::{Direction, Port};
use crate::ir::{Binding, DType, NamedType, TensorType, Value, ValueId, ValueType};
use crate::model::{Form, Side};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Edit, EditError, Evidence, Exactness, Family, Meta, Pass, Rule, Severity, Target, Whole,
    WholeAttempt, WholeEdit, WholeError, WholeMatcher,
};
use crate::tensor::Tensor;

/// The pass.
pub(super) struct UniformInterface;

static META: Meta = Meta {
    id: "uniform-interface",
    family: Family::Placement,
    summary: "inputs, and outputs, of different sizes are padded to one; inside they are as before",
    exactness: Exactness::Interface,
    since: Opset::CoreML5,
    targets: &[Target::AneDirect],
    evidence: Evidence::Disputed,
    catalog: &["orion-2", "orion-18"],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const UNEQUAL: Rule = Rule {
    id: "uniform-interface",
    summary: "inputs, or outputs, of different sizes",
    why: "The private interface fails with status 0x1d if the surfaces of the outputs are of different \
          sizes (Orion, row 2), and the same is said of inputs (row 18), where others run inputs of \
          unequal size. Core ML allocates for itself.",
    help: "uniform-interface pads them to one size; or allocate all surfaces as large as the largest. \
           Not for Core ML.",
    evidence: META.evidence,
    sources: &[
        "https://github.com/mechramc/Orion",
        "https://github.com/skyfallsin/apple-neural-engine-field-guide",
    ],
    severity: &[(Target::AneDirect, Severity::Error)],
    catalog: META.catalog,
};

impl Pass for UniformInterface {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[UNEQUAL]
    }

    fn whole_matcher(
        &self,
        options: &OptionMap,
    ) -> Result<Option<Box<dyn WholeMatcher>>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Some(Box::new(Uniform)))
    }
}

struct Uniform;

/// An input or output with its place among all of them.
struct Place {
    index: usize,
    named: NamedType,
}

impl WholeMatcher for Uniform {
    fn attempts(&mut self, whole: &Whole<'_>) -> Vec<WholeAttempt> {
        let mut attempts = Vec::new();
        for (name, function) in &whole.program.functions {
            let is_state = |named: &NamedType| named.ty.as_ref().is_some_and(ValueType::is_state);
            let inputs = function
                .inputs
                .iter()
                .enumerate()
                .filter(|(_, named)| !is_state(named))
                .map(|(index, named)| Place {
                    index,
                    named: named.clone(),
                })
                .collect();
            attempts.extend(attempt(whole, name, Direction::Input, inputs));
            // Bodies return the same; should they not, the change of one of them is refused.
            let outputs = function.specializations.values().next().map(|body| {
                let outputs = body.graph.outputs().iter().enumerate();
                outputs
                    .filter_map(|(index, value)| {
                        let named = body.graph.named(*value)?.clone();
                        Some(Place { index, named })
                    })
                    .collect()
            });
            attempts.extend(attempt(
                whole,
                name,
                Direction::Output,
                outputs.unwrap_or_default(),
            ));
        }
        attempts
    }
}

fn attempt(
    whole: &Whole<'_>,
    function: &str,
    direction: Direction,
    places: Vec<Place>,
) -> Option<WholeAttempt> {
    let (what, row) = match direction {
        Direction::Input => ("input", &["orion-18"]),
        Direction::Output => ("output", &["orion-2"]),
    };
    let first = places.first()?;
    let tensor = |place: &Place| {
        place
            .named
            .ty
            .as_ref()
            .and_then(|ty| ty.as_tensor())
            .cloned()
    };
    let bytes = |place: &Place| tensor(place).and_then(|ty| ty.packed_bytes());
    let size = bytes(first);
    let odd = places
        .iter()
        .find(|place| bytes(place) != size || size.is_none())?;
    if places.len() < 2 {
        return None;
    }
    let mut found = UNEQUAL.found(match (size, bytes(odd)) {
        (Some(size), Some(other)) => format!(
            "{what} `{}` has {size} bytes, and `{}` has {other} bytes",
            first.named.name, odd.named.name
        ),
        _ => format!("the size of {what} `{}` is not known", odd.named.name),
    });
    found.rule.catalog = row;
    let odd = odd.named.name.clone();
    let place = [function, odd.as_str(), what];
    match common(whole, function, direction, &places) {
        Err(why) => Some(WholeAttempt::missed(place, why).with(found)),
        Ok((dtype, shape)) => {
            let text = format!("the {what}s become {dtype} {shape:?}");
            let function = function.to_owned();
            let attempt = WholeAttempt::matched(place, text, move |edit| {
                for place in &places {
                    pad(edit, &function, direction, place, dtype, &shape)?;
                }
                Ok(())
            });
            Some(attempt.with(found))
        }
    }
}

/// The element type of all, and the smallest shape that all fit in, or why there is none.
fn common(
    whole: &Whole<'_>,
    function: &str,
    direction: Direction,
    places: &[Place],
) -> Result<(DType, Vec<u64>), String> {
    let described = whole
        .interface
        .functions
        .iter()
        .find(|known| known.name == function)
        .map(|known| match direction {
            Direction::Input => known.inputs.as_slice(),
            Direction::Output => known.outputs.as_slice(),
        });
    let mut found: Option<(DType, Vec<u64>)> = None;
    for Place { named, .. } in places {
        let name = &named.name;
        let ty = named.ty.as_ref().and_then(|ty| ty.as_tensor());
        let ty = ty.ok_or_else(|| format!("`{name}` is no tensor"))?;
        let shape = ty
            .shape()
            .filter(|shape| !shape.is_empty() && !shape.contains(&0))
            .ok_or_else(|| format!("the shape of `{name}` is not fixed"))?;
        let mut features = described.into_iter().flatten();
        if let Some(feature) = features.find(|feature| feature.name == *name)
            && !matches!(feature.form, Form::Array { .. })
        {
            return Err(format!(
                "`{name}` is described as something else than an array"
            ));
        }
        match &mut found {
            None => found = Some((ty.dtype, shape)),
            Some((dtype, _)) if *dtype != ty.dtype => {
                return Err(format!("`{name}` is {}, others are {dtype}", ty.dtype));
            }
            Some((_, common)) if common.len() != shape.len() => {
                return Err(format!("`{name}` has another rank than others"));
            }
            Some((_, common)) => {
                for (most, size) in common.iter_mut().zip(shape) {
                    *most = size.max(*most);
                }
            }
        }
    }
    found.ok_or_else(|| "there are none".to_owned())
}

/// Gives one input or output the common shape.
fn pad(
    edit: &mut WholeEdit<'_>,
    function: &str,
    direction: Direction,
    Place { index, named }: &Place,
    dtype: DType,
    shape: &[u64],
) -> Result<(), WholeError> {
    let own = named.ty.as_ref().and_then(|ty| ty.as_tensor());
    let Some(own) = own.and_then(TensorType::shape) else {
        return Err(WholeError::Other("the shape is not known".to_owned()));
    };
    let padding: Vec<usize> = shape
        .iter()
        .zip(&own)
        .map(|(all, own)| (all - own) as usize)
        .collect();
    if padding.iter().all(|more| *more == 0) {
        return Ok(());
    }
    let ty: ValueType = TensorType::fixed(dtype, shape).into();
    let opsets: Vec<String> = edit
        .function(function)?
        .specializations
        .keys()
        .cloned()
        .collect();
    for opset in &opsets {
        match direction {
            Direction::Input => cut_input(edit, function, opset, *index, &own)?,
            Direction::Output => pad_output(edit, function, opset, *index, dtype, &own, shape)?,
        }
    }
    let side = match direction {
        Direction::Input => {
            edit.function(function)?.retype_input(&named.name, &ty)?;
            Side::Input
        }
        Direction::Output => Side::Output,
    };
    edit.description()
        .describe(function, side, &named.name, &ty)?;
    let port = Port {
        padding,
        ..Port::named(&named.name)
    };
    edit.note_ports(|map| map.note(function, direction, &named.name, &port))
}

/// Lets what reads an input read its first elements instead.
fn cut_input(
    edit: &mut WholeEdit<'_>,
    function: &str,
    opset: &str,
    index: usize,
    own: &[u64],
) -> Result<(), WholeError> {
    let graph = &edit.body(function, opset)?.graph;
    let Some(node) = graph.inputs().get(index).copied() else {
        return Err(WholeError::Other("a body lacks an input".to_owned()));
    };
    let input = ValueId::first(node);
    if graph.uses(input).next().is_none() {
        return Ok(());
    }
    let sizes = int32s(own)?;
    let slice = edit.at(function, opset, node, |edit| {
        let begin = edit.constant(Value::int32s(&vec![0; sizes.len()]));
        let size = edit.constant(Value::int32s(&sizes));
        let arguments = [
            ("x", Binding::Value(input)),
            ("begin", begin),
            ("size", size),
        ];
        let slice = edit.op("slice_by_size", &arguments)?;
        edit.keep(slice.node);
        Ok(slice)
    })?;
    let body = edit.body(function, opset)?;
    body.divert_input(index, slice, (slice.node, "x"))?;
    Ok(())
}

fn int32s(sizes: &[u64]) -> Result<Vec<i32>, WholeError> {
    let int32 = |size: &u64| i32::try_from(*size);
    let sizes: Result<_, _> = sizes.iter().map(int32).collect();
    sizes.map_err(|_| WholeError::Other("a size is no int32".to_owned()))
}

/// Puts an output with zeros behind it in its place.
fn pad_output(
    edit: &mut WholeEdit<'_>,
    function: &str,
    opset: &str,
    index: usize,
    dtype: DType,
    own: &[u64],
    shape: &[u64],
) -> Result<(), WholeError> {
    let graph = &edit.body(function, opset)?.graph;
    let Some(output) = graph.outputs().get(index).copied() else {
        return Err(WholeError::Other("a body lacks an output".to_owned()));
    };
    if graph.ty(output).and_then(|ty| ty.as_tensor()) != Some(&TensorType::fixed(dtype, own)) {
        return Err(WholeError::Other(
            "bodies have outputs of other types".to_owned(),
        ));
    }
    let (from, to) = (int32s(own)?, int32s(shape)?);
    let padded = edit.at(function, opset, output.node, |edit| {
        let padded = with_zeros(edit, output, dtype, &from, &to)?;
        edit.keep(padded.node);
        Ok(padded)
    })?;
    edit.body(function, opset)?.exchange_output(index, padded)?;
    Ok(())
}

/// Zeros behind a value on its last two axes.
fn padded(
    edit: &mut Edit<'_>,
    value: ValueId,
    dtype: DType,
    rank: usize,
    more: [i32; 2],
) -> Result<ValueId, EditError> {
    let mut amounts = vec![0; 2 * rank];
    amounts[2 * rank - 3] = more[0];
    amounts[2 * rank - 1] = more[1];
    let pad = edit.constant(Value::int32s(&amounts));
    let mode = edit.constant(Value::string("constant"));
    let zero = edit.scalar(dtype, 0.0)?;
    edit.op(
        "pad",
        &[
            ("x", Binding::Value(value)),
            ("pad", pad),
            ("mode", mode),
            ("constant_val", zero),
        ],
    )
}

fn transposed(edit: &mut Edit<'_>, value: ValueId, order: &[i32]) -> Result<ValueId, EditError> {
    let order = edit.constant(Value::int32s(order));
    edit.op(
        "transpose",
        &[("x", Binding::Value(value)), ("perm", order)],
    )
}

/// A value with zeros behind it: by `pad` on the last two axes, which the Neural Engine knows, and on
/// others by `pad` between two transpositions. `pad` knows no integers, and no single axis here: a
/// concat with a constant it is for those.
fn with_zeros(
    edit: &mut Edit<'_>,
    value: ValueId,
    dtype: DType,
    from: &[i32],
    to: &[i32],
) -> Result<ValueId, EditError> {
    let rank = from.len();
    let mut value = value;
    let mut sizes: Vec<usize> = from.iter().map(|size| *size as usize).collect();
    if dtype.is_float() && rank >= 2 {
        let more = |axis: usize| to[axis] - from[axis];
        for axis in 0..rank - 2 {
            if more(axis) != 0 {
                let mut order: Vec<i32> = (0..rank as i32).collect();
                order.swap(axis, rank - 1);
                value = transposed(edit, value, &order)?;
                value = padded(edit, value, dtype, rank, [0, more(axis)])?;
                value = transposed(edit, value, &order)?;
            }
        }
        let last = [more(rank - 2), more(rank - 1)];
        return if last == [0, 0] {
            Ok(value)
        } else {
            padded(edit, value, dtype, rank, last)
        };
    }
    for axis in (0..rank).rev() {
        let more = to[axis] as usize - sizes[axis];
        if more == 0 {
            continue;
        }
        let mut shape = sizes.clone();
        shape[axis] = more;
        sizes[axis] += more;
        let zeros =
            eval::value(&Tensor::zeros(dtype, shape)).map_err(|_| EditError::Constant(dtype))?;
        let zeros = edit.constant(zeros);
        let arguments = BTreeMap::from([
            ("values".to_owned(), vec![Binding::Value(value), zeros]),
            (
                "axis".to_owned(),
                vec![edit.constant(Value::int32(axis as i32))],
            ),
            (
                "interleave".to_owned(),
                vec![edit.constant(Value::bool(false))],
            ),
        ]);
        value = ValueId::first(edit.variadic_op("concat", arguments)?);
    }
    Ok(value)
}
