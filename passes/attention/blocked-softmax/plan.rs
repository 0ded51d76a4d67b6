//! What is written for each block of keys, and how the blocks are joined.
//!
//! ```text
//! s = scores of the block             m = max(s), at least the lowest finite number
//! p = exp(s − m)                      d = sum(p), in fp16 as p · (1, 1, …)
//! y = (p / max(d, 1/2)) · v           never larger than v
//! M = max over blocks of m            t = d · exp(m − M)
//! result = Σ over blocks of y · (t / Σ t)
//! ```
//!
//! A block all of whose scores of a row are −∞ has p = 0, d = 0 and y = 0 in it: without the lowest finite
//! number −∞ − −∞ would be NaN, and without the half 0/0. Neither changes anything elsewhere, as a score
//! that is finite is not below the lowest number, and then d is at least exp(0).

use std::collections::BTreeMap;

use crate::analysis::attention::{Attention, Chain, Factor, Step};
use crate::analysis::slicing::{Slicing, ints};
use crate::ir::{
    Binding, Content, DType, Immediate, NewBlob, NodeId, Operation, TensorData, TensorType, Value,
    ValueId, ValueType,
};
use crate::pass::{Block, Edit, EditError, Missed};

/// What is written.
pub(super) struct Plan {
    keys: u64,
    size: u64,
    /// The first product and what follows up to the softmax, for one block.
    scores: Vec<Copy>,
    /// The casts between the softmax and the last product: to which types.
    casts: Vec<Binding>,
    last: Copy,
    /// What has one part for each block.
    sources: Vec<Slicing>,
    /// Of the softmax, and of the result.
    types: [DType; 2],
}

/// An operation that is made for each block.
struct Copy {
    op_type: String,
    arguments: BTreeMap<String, Vec<Operand>>,
}

/// A binding of a copy.
enum Operand {
    /// What the original reads.
    Same(Binding),
    /// This block's part of a source.
    Part(usize),
    /// The result of the copy before.
    Previous,
    /// A shape with this block's number of keys at the end.
    Shape(Vec<u64>),
}

/// A block that is written.
struct Written {
    greatest: Binding,
    sum: Binding,
    result: Binding,
}

/// What may stand between the first product and the softmax: each number of it depends on one score.
const STEPS: [&str; 12] = [
    "add", "cast", "clip", "identity", "maximum", "minimum", "mul", "real_div", "reshape",
    "select", "sub", "tanh",
];

fn missed(at: NodeId, why: impl Into<String>) -> Missed {
    Missed {
        at,
        why: why.into(),
    }
}

impl Plan {
    pub(super) fn of(
        block: &Block<'_>,
        attention: &Attention,
        chain: &Chain,
        [keys, size]: [u64; 2],
    ) -> Result<Self, Missed> {
        let weights = &chain.weights;
        let is_plain = block.op_of_type(attention.root, "matmul").is_some()
            && weights.parameter == "x"
            && [weights.free, weights.summed] == [2, 1]
            && [chain.queries, chain.keys, attention.result_queries] == [2, 1, 2];
        if !is_plain {
            let why = "the last product is not one of weights whose last axis is that of the keys, as \
                       they are, with values";
            return Err(missed(attention.root, why));
        }
        let dtype = |node: NodeId| {
            block
                .dtype(ValueId::first(node))
                .filter(|dtype| matches!(dtype, DType::Float16 | DType::Float32))
                .ok_or_else(|| missed(node, "its type is not known"))
        };
        let mut planner = Planner {
            block,
            keys,
            sources: Vec::new(),
        };
        let key = planner.part(
            &Binding::Value(attention.key.value),
            attention.key.free,
            chain.first,
        )?;
        let mut scores = vec![planner.product(chain.first, &attention.key, key)?];
        let (mut casts, mut is_before) = (Vec::new(), true);
        for step in &chain.steps {
            if step.node == chain.softmax {
                is_before = false;
            } else if is_before {
                scores.push(planner.step(step)?);
            } else {
                casts.extend(planner.cast(step)?);
            }
        }
        let value = planner.part(
            &Binding::Value(attention.value.value),
            attention.value.summed,
            attention.root,
        )?;
        let mut last = planner.product(attention.root, weights, Operand::Previous)?;
        let place = last.arguments.get_mut(attention.value.parameter);
        if let Some(place) = place.and_then(|place| place.get_mut(attention.value.position)) {
            *place = value;
        }
        Ok(Self {
            keys,
            size,
            scores,
            casts,
            last,
            types: [dtype(chain.softmax)?, dtype(attention.root)?],
            sources: planner.sources,
        })
    }

    pub(super) fn write(&self, edit: &mut Edit<'_>) -> Result<ValueId, EditError> {
        let whole: Vec<Binding> = self
            .sources
            .iter()
            .map(|source| match &source.binding {
                Binding::Immediate(value) => edit.constant(value.clone()),
                other => other.clone(),
            })
            .collect();
        let mut blocks = Vec::new();
        let mut ones: Option<(u64, Binding)> = None;
        let mut begin = 0;
        while begin < self.keys {
            let end = begin.saturating_add(self.size).min(self.keys);
            if self.types[0] == DType::Float16
                && ones.as_ref().map(|ones| ones.0) != Some(end - begin)
            {
                ones = Some((end - begin, edit.constant(column_of_ones(end - begin))));
            }
            let ones = ones.as_ref().map(|ones| &ones.1);
            blocks.push(self.block(edit, &whole, ones, [begin, end])?);
            begin = end;
        }
        self.join(edit, &blocks)
    }

    fn block(
        &self,
        edit: &mut Edit<'_>,
        whole: &[Binding],
        ones: Option<&Binding>,
        [begin, end]: [u64; 2],
    ) -> Result<Written, EditError> {
        let mut parts = Vec::with_capacity(self.sources.len());
        for (source, x) in self.sources.iter().zip(whole) {
            parts.push(source.part(edit, x, begin, end)?);
        }
        let mut scores = Binding::Absent;
        for copy in &self.scores {
            scores = copy.write(edit, &parts, &scores, end - begin)?;
        }
        let dtype = self.types[0];
        let over_keys = |edit: &mut Edit<'_>, op_type: &str, x: &Binding| {
            let axes = edit.constant(Value::int32s(&[-1]));
            let keep = edit.constant(Value::bool(true));
            let arguments = [("x", x.clone()), ("axes", axes), ("keep_dims", keep)];
            edit.op(op_type, &arguments).map(Binding::Value)
        };
        let greatest = over_keys(edit, "reduce_max", &scores)?;
        let lowest = edit.scalar(dtype, lowest(dtype))?;
        let greatest = binary(edit, "maximum", &greatest, &lowest)?;
        let powers = binary(edit, "sub", &scores, &greatest)?;
        let powers = Binding::Value(edit.op("exp", &[("x", powers)])?);
        let sum = match ones {
            Some(ones) => binary(edit, "matmul", &powers, ones)?,
            None => over_keys(edit, "reduce_sum", &powers)?,
        };
        let half = edit.scalar(dtype, 0.5)?;
        let divisor = binary(edit, "maximum", &sum, &half)?;
        let mut weights = binary(edit, "real_div", &powers, &divisor)?;
        for to in &self.casts {
            let arguments = [("x", weights), ("dtype", to.clone())];
            weights = Binding::Value(edit.op("cast", &arguments)?);
        }
        let result = self.last.write(edit, &parts, &weights, end - begin)?;
        Ok(Written {
            greatest,
            sum,
            result,
        })
    }

    fn join(&self, edit: &mut Edit<'_>, blocks: &[Written]) -> Result<ValueId, EditError> {
        let [dtype, result_dtype] = self.types;
        let mut greatest: Option<Binding> = None;
        for block in blocks {
            greatest = Some(match greatest {
                None => block.greatest.clone(),
                Some(greatest) => binary(edit, "maximum", &greatest, &block.greatest)?,
            });
        }
        let greatest = greatest.unwrap_or(Binding::Absent);
        // Sums of more numbers than fp16 counts: each is made smaller by a power of two.
        let smaller = if dtype == DType::Float16 && self.keys > COUNTED {
            let parts = self.keys.div_ceil(COUNTED).next_power_of_two();
            Some(edit.scalar(dtype, 1.0 / parts as f64)?)
        } else {
            None
        };
        let (mut shares, mut total) = (Vec::new(), None);
        for block in blocks {
            let factor = binary(edit, "sub", &block.greatest, &greatest)?;
            let factor = Binding::Value(edit.op("exp", &[("x", factor)])?);
            let sum = match &smaller {
                Some(smaller) => binary(edit, "mul", &block.sum, smaller)?,
                None => block.sum.clone(),
            };
            let share = binary(edit, "mul", &sum, &factor)?;
            total = Some(match total {
                None => share.clone(),
                Some(total) => binary(edit, "add", &total, &share)?,
            });
            shares.push(share);
        }
        let total = total.unwrap_or(Binding::Absent);
        let mut result: Option<Binding> = None;
        for (block, share) in blocks.iter().zip(&shares) {
            let mut share = binary(edit, "real_div", share, &total)?;
            if result_dtype != dtype {
                let to = edit.constant(Value::string(match result_dtype {
                    DType::Float16 => "fp16",
                    _ => "fp32",
                }));
                share = Binding::Value(edit.op("cast", &[("x", share), ("dtype", to)])?);
            }
            let part = binary(edit, "mul", &block.result, &share)?;
            result = Some(match result {
                None => part,
                Some(result) => binary(edit, "add", &result, &part)?,
            });
        }
        match result {
            Some(Binding::Value(result)) => Ok(result),
            _ => Err(EditError::NoRule("attention".to_owned())),
        }
    }
}

fn binary(
    edit: &mut Edit<'_>,
    op_type: &str,
    x: &Binding,
    y: &Binding,
) -> Result<Binding, EditError> {
    let arguments = [("x", x.clone()), ("y", y.clone())];
    edit.op(op_type, &arguments).map(Binding::Value)
}

/// So many ones of fp16, one below the other. A product with it is a sum that is kept wider than fp16,
/// where `reduce_sum` of ones is reported to stop at 2048.
fn column_of_ones(count: u64) -> Value {
    let bytes: Vec<u8> = std::iter::repeat_n(half::f16::ONE.to_le_bytes(), count as usize)
        .flatten()
        .collect();
    let content = if count > LARGEST_IMMEDIATE {
        Content::New(NewBlob {
            dtype: DType::Float16,
            elements: count,
            bytes: bytes.into(),
        })
    } else {
        Content::Immediate(Immediate::Tensor(TensorData::Bytes(bytes)))
    };
    Value {
        doc: String::new(),
        ty: Some(ValueType::Tensor(TensorType::fixed(
            DType::Float16,
            &[count, 1],
        ))),
        content,
    }
}

/// So many ones may be added in fp16.
const COUNTED: u64 = 1 << 15;

/// Constants with more elements go into the weight file.
const LARGEST_IMMEDIATE: u64 = 1024;

/// The lowest finite number of a type.
fn lowest(dtype: DType) -> f64 {
    match dtype {
        DType::Float16 => -crate::eval::ranges::HALF_MAX,
        _ => f64::from(f32::MIN),
    }
}

impl Copy {
    fn write(
        &self,
        edit: &mut Edit<'_>,
        parts: &[Binding],
        previous: &Binding,
        keys: u64,
    ) -> Result<Binding, EditError> {
        let mut arguments = BTreeMap::new();
        for (parameter, operands) in &self.arguments {
            let mut bindings = Vec::with_capacity(operands.len());
            for operand in operands {
                bindings.push(match operand {
                    Operand::Same(binding) => binding.clone(),
                    Operand::Part(source) => parts.get(*source).cloned().unwrap_or(Binding::Absent),
                    Operand::Previous => previous.clone(),
                    Operand::Shape(dims) => {
                        let mut dims = dims.clone();
                        if let Some(last) = dims.last_mut() {
                            *last = keys;
                        }
                        ints(edit, &dims)
                    }
                });
            }
            arguments.insert(parameter.clone(), bindings);
        }
        let node = edit.variadic_op(&self.op_type, arguments)?;
        Ok(Binding::Value(ValueId::first(node)))
    }
}

/// Finds out what each block is made of.
struct Planner<'a, 'b> {
    block: &'a Block<'b>,
    keys: u64,
    sources: Vec<Slicing>,
}

impl Planner<'_, '_> {
    /// A part of what has one element for each key along an axis, counted from the end.
    fn part(&mut self, binding: &Binding, from_end: usize, at: NodeId) -> Result<Operand, Missed> {
        let ty = match binding {
            Binding::Value(value) => self.block.tensor(*value),
            Binding::Immediate(value) => value.tensor_type(),
            Binding::Absent => None,
        };
        let ty = ty.ok_or_else(|| missed(at, "the type of what it reads is not known"))?;
        // What has no such axis, or only one element along it, is for all keys.
        let Some(axis) = ty.dims.len().checked_sub(from_end) else {
            return Ok(Operand::Same(binding.clone()));
        };
        match ty.dims.get(axis).and_then(|dim| dim.size()) {
            Some(1) if self.keys != 1 => return Ok(Operand::Same(binding.clone())),
            Some(size) if size == self.keys => {}
            _ => {
                let why = "what it reads has another number of keys, or one that is not fixed";
                return Err(missed(at, why));
            }
        }
        let mut sizes = ty.dims.iter().filter_map(|dim| dim.size());
        if sizes.any(|size| i32::try_from(size).is_err()) {
            return Err(missed(
                at,
                "what it reads is too large for an index of 32 bits",
            ));
        }
        let known = self
            .sources
            .iter()
            .position(|source| source.binding == *binding && source.axis == axis);
        let index = known.unwrap_or_else(|| {
            self.sources.push(Slicing {
                binding: binding.clone(),
                dims: ty.dims.clone(),
                axis,
            });
            self.sources.len() - 1
        });
        Ok(Operand::Part(index))
    }

    fn op(&self, node: NodeId) -> Result<&Operation, Missed> {
        let gone = || missed(node, "the operation is gone");
        self.block.op(node).ok_or_else(gone)
    }

    /// A copy of a product, with another operand in the place of one factor.
    fn product(&self, node: NodeId, factor: &Factor, operand: Operand) -> Result<Copy, Missed> {
        let op = self.op(node)?;
        let mut arguments: BTreeMap<String, Vec<Operand>> = op
            .arguments()
            .iter()
            .map(|argument| {
                let operands = argument.bindings.iter().cloned().map(Operand::Same);
                (argument.parameter.clone(), operands.collect())
            })
            .collect();
        let place = arguments.get_mut(factor.parameter);
        if let Some(place) = place.and_then(|place| place.get_mut(factor.position)) {
            *place = operand;
        }
        Ok(Copy {
            op_type: op.op_type().to_owned(),
            arguments,
        })
    }

    /// A copy of what happens to the scores.
    fn step(&mut self, step: &Step) -> Result<Copy, Missed> {
        let op = self.op(step.node)?.clone();
        let op_type = op.op_type().to_owned();
        if !STEPS.contains(&op_type.as_str()) {
            return Err(missed(
                step.node,
                "it stands between the product and the softmax",
            ));
        }
        let mut arguments = BTreeMap::new();
        for argument in op.arguments() {
            let mut operands = Vec::new();
            for binding in &argument.bindings {
                operands.push(if argument.parameter == step.parameter {
                    Operand::Previous
                } else if op_type == "reshape" {
                    self.shape(step.node, &argument.parameter)?
                } else {
                    self.part(binding, 1, step.node)?
                });
            }
            arguments.insert(argument.parameter.clone(), operands);
        }
        Ok(Copy { op_type, arguments })
    }

    /// The shape of a reshape, from its result; the keys are the last axis before and after.
    fn shape(&self, node: NodeId, parameter: &str) -> Result<Operand, Missed> {
        let dims = self
            .block
            .tensor(ValueId::first(node))
            .and_then(TensorType::shape)
            .filter(|_| parameter == "shape")
            .ok_or_else(|| missed(node, "its shape is not fixed"))?;
        Ok(Operand::Shape(dims))
    }

    /// To which type a cast behind the softmax goes; `None` if it is none.
    fn cast(&self, step: &Step) -> Result<Option<Binding>, Missed> {
        let op = self.op(step.node)?;
        match (op.op_type(), op.binding("dtype")) {
            ("identity", _) => Ok(None),
            ("cast", Some(dtype)) => Ok(Some(dtype.clone())),
            _ => Err(missed(
                step.node,
                "it changes the weights behind the softmax",
            )),
        }
    }
}
