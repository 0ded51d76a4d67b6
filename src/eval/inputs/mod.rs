//! Seeded inputs: made for a model so that it runs as it would in use, the same on every machine.
//!
//! - Shapes are the declared ones; where sizes are free, the description's default.
//! - Floats are about standard normal. An image has integers from 0 to 255. An optional input has
//!   its default value, if it has one.
//! - Integers are followed to where they are used: an index is within its table, the
//!   ends of slices belong together, what is written to a state fits. What is only compared with
//!   a constant goes up to it; everything else is from 0 to 7.
//! - A float that is added to attention scores is a causal mask of 0 and [`MASKED`]; what becomes a
//!   mask by arithmetic, or a bool, is one for all but one in eight.
//! - Where a call writes to a state, further calls write behind it: positions advance, and so do
//!   sizes that say how much of the state is in use.

mod demands;
mod integers;
mod linear;
mod mask;
mod random;
mod trace;
mod words;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::eval::runner::{Input, Runner};
use crate::ir::types::{DType, Dim, TensorType, ValueType};
use crate::ir::{Node, NodeId};
use crate::model::Form;
use crate::package::Weights;
use crate::tensor::{Tensor, elements};
use integers::Integers;
use linear::{Linear, Unknown};
use random::Random;
use trace::{Role, Trace, Traced, follow};

/// What stands in an additive mask for a key that must not be seen: far below any score and within
/// fp16.
pub const MASKED: f32 = -1e4;

/// One in so many flags is zero.
const RARE: i64 = 8;

/// The greatest of numbers that nothing is known of.
const SMALL: i64 = 7;

/// Inputs of rank 1 with up to so many elements are followed element by element.
const FEW_ELEMENTS: usize = 16;

/// All inputs of one call together have at most so many elements, so that a description cannot make
/// us take all memory: 4 GiB of them.
const MOST_ELEMENTS: usize = 1 << 30;

/// Why no inputs can be made.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// An input is not a tensor of numbers.
    #[error("no value can be made up for the input `{name}`, which is {ty}; give it by --inputs")]
    Kind {
        /// The input.
        name: String,
        /// Its type.
        ty: String,
    },
    /// Inputs of absurd size.
    #[error("the input `{name}` of shape {shape:?} is too large")]
    TooLarge {
        /// The input.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
    },
}

/// How the inputs of a model are made.
#[derive(Debug)]
pub struct Plan {
    inputs: Vec<Planned>,
    trace: Trace,
    /// Sizes that advance from call to call: the input and axis, by how much, and the greatest.
    growing: Vec<Growing>,
}

#[derive(Debug)]
struct Planned {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    /// The greatest size of each axis; `None` is no limit.
    largest: Vec<Option<usize>>,
    form: Form,
}

#[derive(Debug)]
struct Growing {
    input: usize,
    axis: usize,
    step: usize,
    most: usize,
}

impl Plan {
    /// The plan for a model's inputs.
    ///
    /// # Errors
    ///
    /// If an input is no tensor of numbers.
    pub fn new(runner: &Runner<'_>, weights: &Arc<Weights>) -> Result<Self, InputError> {
        let inputs = runner
            .inputs()
            .iter()
            .map(Planned::new)
            .collect::<Result<Vec<_>, _>>()?;
        let mut trace = Trace::default();
        for stage in runner.stages() {
            let Ok(body) = stage.interpreter().body(&stage.function) else {
                continue;
            };
            let mut known: HashMap<NodeId, (usize, Traced)> = HashMap::new();
            for node in body.graph.inputs() {
                let Some(Node::Input(named, _)) = body.graph.node(*node) else {
                    continue;
                };
                let at = inputs.iter().position(|input| input.name == named.name);
                if let Some((at, input)) = at.and_then(|at| Some((at, inputs.get(at)?))) {
                    known.insert(*node, (at, input.elements(at)));
                }
            }
            follow(&body.graph, known, weights, &mut trace);
        }
        let mut plan = Self {
            inputs,
            trace,
            growing: Vec::new(),
        };
        plan.growing = plan.find_growing();
        Ok(plan)
    }

    /// Sizes in the place that a call writes to. They advance by what is written.
    fn find_growing(&self) -> Vec<Growing> {
        let mut growing: Vec<Growing> = Vec::new();
        for position in &self.trace.positions {
            for (unknown, times) in &position.end.terms {
                let (Unknown::Size { input, axis }, 1) = (*unknown, *times) else {
                    continue;
                };
                let step = position.end.plus(&position.begin, -1);
                let step = step.and_then(|step| self.at_first(&step));
                let Some(step) = step.and_then(|step| usize::try_from(step).ok()) else {
                    continue;
                };
                let known = growing.iter().any(|g| (g.input, g.axis) == (input, axis));
                let Some(planned) = self.inputs.get(input).filter(|_| !known && step > 0) else {
                    continue;
                };
                let Some(now) = planned.shape.get(axis).copied() else {
                    continue;
                };
                let end = self.at_first(&position.end).unwrap_or(0);
                let room = position.size.map(|size| size.saturating_sub(end).max(0));
                let most = room
                    .and_then(|room| usize::try_from(room).ok())
                    .map_or(usize::MAX, |room| now.saturating_add(room));
                let allowed = planned.largest.get(axis).copied().flatten();
                growing.push(Growing {
                    input,
                    axis,
                    step,
                    most: most.min(allowed.unwrap_or(usize::MAX)),
                });
            }
        }
        growing
    }

    /// A sum of sizes in the first call.
    fn at_first(&self, sum: &Linear) -> Option<i64> {
        sum.with(&|unknown| size_in(&self.inputs, None, unknown))
            .as_constant()
    }

    /// The shapes of all inputs in a call.
    fn shapes(&self, call: usize) -> Vec<Vec<usize>> {
        let mut shapes: Vec<Vec<usize>> = self
            .inputs
            .iter()
            .map(|input| input.shape.clone())
            .collect();
        for growing in &self.growing {
            let size = shapes
                .get_mut(growing.input)
                .and_then(|shape| shape.get_mut(growing.axis));
            if let Some(size) = size {
                let room = growing.most.saturating_sub(*size) / growing.step;
                *size += growing.step * call.min(room);
            }
        }
        shapes
    }

    /// The inputs of one call. Samples are independent of each other; the calls of one sample follow
    /// each other on the same states.
    ///
    /// # Errors
    ///
    /// If the shapes are absurdly large.
    pub fn inputs(
        &self,
        seed: u64,
        sample: usize,
        call: usize,
    ) -> Result<BTreeMap<String, Tensor>, InputError> {
        let shapes = self.shapes(call);
        let mut total = 0_usize;
        for (input, shape) in self.inputs.iter().zip(&shapes) {
            let count = elements(shape).and_then(|count| total.checked_add(count));
            total = count
                .filter(|total| *total <= MOST_ELEMENTS)
                .ok_or_else(|| InputError::TooLarge {
                    name: input.name.clone(),
                    shape: shape.clone(),
                })?;
        }
        let integers = self.integers(seed, sample, call, &shapes);
        let mut made = BTreeMap::new();
        for (number, (input, shape)) in self.inputs.iter().zip(shapes).enumerate() {
            let random = Random::new(seed, [sample as u64, call as u64, number as u64]);
            let tensor = self.tensor(number, input, shape, &integers, random);
            made.insert(input.name.clone(), tensor);
        }
        Ok(made)
    }

    fn tensor(
        &self,
        number: usize,
        input: &Planned,
        shape: Vec<usize>,
        integers: &Integers,
        mut random: Random,
    ) -> Tensor {
        let count = elements(&shape).unwrap_or(0);
        if let Form::Array {
            default: Some(value),
            ..
        } = input.form
        {
            return typed(input.dtype, shape, vec![value as f32; count]);
        }
        if matches!(input.form, Form::Image { .. }) {
            let pixels = (0..count).map(|_| random.between(0, 255) as f32).collect();
            return typed(input.dtype, shape, pixels);
        }
        match self.trace.roles.get(&number) {
            Some(Role::AdditiveMask) if input.dtype.is_float() => {
                let values = causal_mask(&shape, integers.offset);
                return typed(input.dtype, shape, values);
            }
            Some(Role::Flags) if !self.trace.reasons.contains_key(&number) => {
                let flags = (0..count).map(|_| f32::from(u8::from(!random.once_in(RARE))));
                let flags = flags.collect();
                return typed(input.dtype, shape, flags);
            }
            _ => {}
        }
        if input.dtype.is_float() && !self.trace.reasons.contains_key(&number) {
            let values = (0..count).map(|_| random.normal()).collect();
            return typed(input.dtype, shape, values);
        }
        let element = |at: usize| {
            let bounds = integers.bounds(number, at);
            integers.chosen(number, at).unwrap_or_else(|| {
                let (low, high) = bounds.unwrap_or_else(|| self.loose(input, number));
                random.between(low, high)
            })
        };
        integer_tensor(input.dtype, shape, (0..count).map(element).collect())
    }
}

/// A size of an input, in these shapes or in the first call's.
fn size_in(inputs: &[Planned], shapes: Option<&[Vec<usize>]>, unknown: Unknown) -> Option<i64> {
    let Unknown::Size { input, axis } = unknown else {
        return None;
    };
    let shape = match shapes {
        Some(shapes) => shapes.get(input)?,
        None => &inputs.get(input)?.shape,
    };
    i64::try_from(*shape.get(axis)?).ok()
}

/// The greatest integer of an element type that inputs have; floats hold integers too.
fn largest(dtype: DType) -> i64 {
    match dtype {
        DType::Int8 => i64::from(i8::MAX),
        DType::UInt8 => i64::from(u8::MAX),
        DType::Int16 => i64::from(i16::MAX),
        DType::UInt16 => i64::from(u16::MAX),
        // Above that not every integer is an fp16 number.
        DType::Float16 => 2048,
        _ => i64::from(i32::MAX),
    }
}

/// Rows are queries and columns keys; the last query sees all keys, unless `offset` says how many
/// keys lie before the first query.
fn causal_mask(shape: &[usize], offset: Option<i64>) -> Vec<f32> {
    let (rows, columns) = match shape {
        [.., rows, columns] => (*rows, *columns),
        [columns] => (1, *columns),
        [] => (1, 1),
    };
    let count = elements(shape).unwrap_or(0);
    if count == 0 {
        return Vec::new();
    }
    let aligned = columns as i64 - rows as i64;
    let offset = offset
        .filter(|offset| *offset <= aligned)
        .unwrap_or(aligned);
    let mut one = Vec::with_capacity(rows * columns);
    for row in 0..rows as i64 {
        one.extend((0..columns as i64).map(|column| {
            // A row that sees nothing would be a uniform average of everything.
            if column <= (row + offset).max(0) {
                0.0
            } else {
                MASKED
            }
        }));
    }
    one.iter().copied().cycle().take(count).collect()
}

/// A tensor of these numbers, rounded to what its element type holds.
fn typed(dtype: DType, shape: Vec<usize>, values: Vec<f32>) -> Tensor {
    if dtype.is_float() {
        let tensor = Tensor::floats(dtype, shape, values);
        if dtype == DType::Float16 {
            return tensor.clone().rounded_to_half(false).unwrap_or(tensor);
        }
        return tensor;
    }
    let integers = values.into_iter().map(|value| value as i64).collect();
    integer_tensor(dtype, shape, integers)
}

fn integer_tensor(dtype: DType, shape: Vec<usize>, values: Vec<i64>) -> Tensor {
    if dtype.is_float() {
        let values = values.into_iter().map(|value| value as f32).collect();
        return Tensor::floats(dtype, shape, values);
    }
    if dtype == DType::Bool {
        return Tensor::bools(shape, values.into_iter().map(|value| value != 0).collect());
    }
    Tensor::ints(dtype, shape, values)
}

impl Planned {
    fn new(input: &Input) -> Result<Self, InputError> {
        let name = &input.named.name;
        let ty = match &input.named.ty {
            Some(ValueType::Tensor(ty)) if ty.rank >= 0 && is_number(ty.dtype) => ty,
            other => {
                return Err(InputError::Kind {
                    name: name.clone(),
                    ty: super::typed::words(other.as_ref()),
                });
            }
        };
        let form = input
            .feature
            .as_ref()
            .map(|feature| feature.form.clone())
            .unwrap_or_default();
        let (shape, largest) = shape(ty, &form);
        Ok(Self {
            name: name.clone(),
            dtype: ty.dtype,
            shape,
            largest,
            form,
        })
    }

    /// What is known of the elements at the start: that they are the input's.
    fn elements(&self, input: usize) -> Traced {
        let count = elements(&self.shape).unwrap_or(usize::MAX);
        let few = self.shape.len() <= 1 && count <= FEW_ELEMENTS && count > 1;
        if few && !self.dtype.is_float() {
            let each = (0..count).map(|at| {
                let at = Some(at);
                Some(Linear::unknown(Unknown::Element { input, at }))
            });
            return Traced::Elements(each.collect());
        }
        let any = Linear::unknown(Unknown::Element { input, at: None });
        if count == 1 {
            Traced::Elements(vec![Some(any)])
        } else {
            Traced::Among(vec![any])
        }
    }
}

fn is_number(dtype: DType) -> bool {
    dtype.is_float() || dtype.is_int() || dtype == DType::Bool
}

/// The shape of an input in the first call, and the greatest size of each axis.
fn shape(ty: &TensorType, form: &Form) -> (Vec<usize>, Vec<Option<usize>>) {
    let rank = ty.dims.len();
    let none = (Vec::new(), Vec::new(), Vec::new());
    let (default, ranges, shapes) = match form {
        Form::Array {
            shape,
            ranges,
            shapes,
            ..
        } => (shape.clone(), ranges.clone(), shapes.clone()),
        Form::Image { width, height } if rank >= 2 => {
            let mut shape = vec![1; rank];
            shape[rank - 2] = *height;
            shape[rank - 1] = *width;
            (shape, Vec::new(), Vec::new())
        }
        _ => none,
    };
    let listed = shapes.iter().find(|shape| shape.len() == rank);
    let sizes = ty.dims.iter().enumerate().map(|(axis, dim)| {
        if let Some(size) = dim.size() {
            return usize::try_from(size).unwrap_or(usize::MAX);
        }
        let default = default.get(axis).filter(|_| default.len() == rank);
        let listed = listed.and_then(|shape| shape.get(axis));
        let least = ranges.get(axis).map(|(low, _)| low);
        let size = default.or(listed).or(least).copied().unwrap_or(1);
        size.max(1)
    });
    let largest = ty.dims.iter().enumerate().map(|(axis, dim)| match dim {
        Dim::Known(size) => usize::try_from(*size).ok(),
        _ => ranges.get(axis).and_then(|(_, high)| *high),
    });
    (sizes.collect(), largest.collect())
}
