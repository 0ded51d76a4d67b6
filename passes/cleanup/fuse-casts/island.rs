//! Casts around layout operations (and, on request, operations that are exact in either type).
//!
//! An island is a set of operations of type B that is entered only by casts A → B, where B holds
//! every value of A, and left only by casts. The operations only move elements (or pick one of
//! them), so the island may as well be of type A: the casts that enter it go, and so do those that
//! leave it for A.

use std::collections::BTreeSet;

use half::f16;

use super::{holds, loses};
use crate::ir::{
    Binding, Content, DType, NewBlob, NodeId, Operation, Slot, TensorData, Value, ValueId,
    ValueType,
};
use crate::ops::registry;
use crate::pass::{Attempt, Block};

/// Larger islands are left alone: the search would be repeated for each cast that leaves one.
const MAX_OPERATIONS: usize = 256;

/// From this many elements on, coremltools puts a constant into the weight file.
const BLOB_ELEMENTS: usize = 10;

/// The data parameters of an operation that only moves elements.
fn layout_parameters(op_type: &str) -> &'static [&'static str] {
    match op_type {
        "reshape" | "transpose" | "expand_dims" | "squeeze" | "slice_by_index" | "split"
        | "tile" | "gather" => &["x"],
        "concat" => &["values"],
        _ => &[],
    }
}

/// The data parameters of an operation whose fp32 result on fp16 values is an fp16 value.
fn exact_parameters(block: &Block<'_>, op: &Operation) -> &'static [&'static str] {
    match op.op_type() {
        "relu" | "abs" => &["x"],
        "maximum" | "minimum" => &["x", "y"],
        "select" => &["a", "b"],
        "clip" => &["x", "alpha", "beta"],
        "mul" => {
            let minus_one = |parameter| {
                block
                    .uniform_of(op, parameter)
                    .is_some_and(|uniform| uniform.value == -1.0)
            };
            if minus_one("x") || minus_one("y") {
                &["x", "y"]
            } else {
                &[]
            }
        }
        _ => &[],
    }
}

/// A place where a value enters the island.
struct Entry {
    user: NodeId,
    parameter: &'static str,
    position: usize,
    with: Entering,
}

enum Entering {
    /// The operand of the cast that enters.
    Cast(ValueId),
    /// A constant, in type A.
    Constant(Value),
}

/// Everything about an island.
struct Island {
    operations: BTreeSet<NodeId>,
    entries: Vec<Entry>,
    /// The casts that leave.
    exits: BTreeSet<NodeId>,
    /// The type outside.
    outside: Option<DType>,
}

/// Tries the island that the operand `x` of the cast `outer` belongs to.
pub(super) fn attempt(
    block: &Block<'_>,
    outer: NodeId,
    x: ValueId,
    through_exact_ops: bool,
) -> Attempt {
    let Some(inside) = block.dtype(x) else {
        return Attempt::NoMatch;
    };
    let parameters = |op: &Operation| match layout_parameters(op.op_type()) {
        [] if through_exact_ops => exact_parameters(block, op),
        parameters => parameters,
    };
    if block.op(x.node).is_none_or(|op| parameters(op).is_empty()) {
        return Attempt::NoMatch;
    }
    let mut island = Island {
        operations: BTreeSet::new(),
        entries: Vec::new(),
        exits: BTreeSet::new(),
        outside: None,
    };
    if let Err(attempt) = island.grow(block, x.node, inside, &parameters) {
        return attempt;
    }
    let Some(outside) = island.outside else {
        return Attempt::NoMatch;
    };
    if let Err(attempt) = island.settle_constants(block, outside) {
        return attempt;
    }
    island.finish(block, outer, inside, outside)
}

impl Island {
    /// Adds operations from `start` on until only casts are left around them.
    fn grow(
        &mut self,
        block: &Block<'_>,
        start: NodeId,
        inside: DType,
        parameters: &dyn Fn(&Operation) -> &'static [&'static str],
    ) -> Result<(), Attempt> {
        let mut stack = vec![start];
        while let Some(node) = stack.pop() {
            let Some(op) = block.op(node).filter(|_| self.operations.insert(node)) else {
                continue;
            };
            if self.operations.len() > MAX_OPERATIONS {
                return Err(Attempt::missed(
                    node,
                    "too many operations between the casts",
                ));
            }
            for parameter in parameters(op) {
                let bindings = op.argument(parameter).map_or(&[][..], |a| &a.bindings);
                for (position, binding) in bindings.iter().enumerate() {
                    let entry = |with| Entry {
                        user: node,
                        parameter,
                        position,
                        with,
                    };
                    let value = match binding {
                        Binding::Value(value) => *value,
                        Binding::Immediate(literal) => {
                            self.entries
                                .push(entry(Entering::Constant(literal.clone())));
                            continue;
                        }
                        Binding::Absent => return Err(Attempt::NoMatch),
                    };
                    let Some(producer) = block.op(value.node) else {
                        // A captured constant may still be one.
                        let Some(constant) = block.constant(value) else {
                            return self.not_enclosed(node);
                        };
                        self.entries
                            .push(entry(Entering::Constant(constant.clone())));
                        continue;
                    };
                    if producer.op_type() == "cast" {
                        let source = self.enter(block, value, producer, inside)?;
                        self.entries.push(entry(Entering::Cast(source)));
                    } else if !parameters(producer).is_empty() {
                        stack.push(value.node);
                    } else if let Some(constant) = block.constant(value) {
                        self.entries
                            .push(entry(Entering::Constant(constant.clone())));
                    } else {
                        return self.not_enclosed(node);
                    }
                }
            }
            for site in (0..op.results().len() as u32)
                .flat_map(|result| block.graph.uses(ValueId { node, result }))
            {
                let Slot::Argument { argument, .. } = site.slot else {
                    return self.not_enclosed(node);
                };
                let Some(user) = block.op(site.user) else {
                    return Err(Attempt::NoMatch);
                };
                let parameter = user.arguments().get(argument as usize);
                if user.op_type() == "cast" {
                    self.exits.insert(site.user);
                } else if parameter
                    .is_some_and(|p| parameters(user).contains(&p.parameter.as_str()))
                {
                    stack.push(site.user);
                } else {
                    return self.not_enclosed(site.user);
                }
            }
        }
        Ok(())
    }

    /// The operand of a cast that enters. All must come from one type that the island's type holds.
    fn enter(
        &mut self,
        block: &Block<'_>,
        value: ValueId,
        cast: &Operation,
        inside: DType,
    ) -> Result<ValueId, Attempt> {
        let Some(source) = cast.value("x") else {
            return Err(Attempt::NoMatch);
        };
        let Some(outside) = block.dtype(source) else {
            return Err(Attempt::NoMatch);
        };
        if !holds(inside, outside) {
            return Err(loses(value.node, inside, outside));
        }
        if *self.outside.get_or_insert(outside) != outside {
            let why = "the operands are cast from different types";
            return Err(Attempt::missed(value.node, why));
        }
        Ok(source)
    }

    /// What stops an island that has something else than casts around it: a near match if casts of
    /// the right kind were seen, else nothing worth telling.
    fn not_enclosed(&self, at: NodeId) -> Result<(), Attempt> {
        Err(if self.outside.is_some() {
            Attempt::missed(
                at,
                "the operations between the casts have other operands or uses",
            )
        } else {
            Attempt::NoMatch
        })
    }

    /// Turns the constants into type A, which must hold them exactly.
    fn settle_constants(&mut self, block: &Block<'_>, outside: DType) -> Result<(), Attempt> {
        for entry in &mut self.entries {
            if let Entering::Constant(value) = &mut entry.with {
                let Some(narrowed) = narrow(block, value, outside) else {
                    let why = format!("a constant among them cannot be {outside} without a change");
                    return Err(Attempt::missed(entry.user, why));
                };
                *value = narrowed;
            }
        }
        Ok(())
    }

    fn finish(self, block: &Block<'_>, outer: NodeId, inside: DType, outside: DType) -> Attempt {
        let returns = |exit: &NodeId| block.dtype(ValueId::first(*exit)) == Some(outside);
        if !self.exits.iter().any(returns) {
            let why = format!("no cast leaves for {outside}, so none would go");
            return Attempt::missed(outer, why);
        }
        for node in &self.operations {
            let Some(op) = block.op(*node) else {
                return Attempt::NoMatch;
            };
            let allowed = block.opset.is_some_and(|opset| takes(op, opset, outside));
            if !allowed {
                let why = format!("`{}` does not take {outside} in this opset", op.op_type());
                return Attempt::missed(*node, why);
            }
        }
        let gone: Vec<(ValueId, ValueId)> = self
            .exits
            .iter()
            .filter(|exit| returns(exit))
            .filter_map(|exit| Some((ValueId::first(*exit), block.op(*exit)?.value("x")?)))
            .collect();
        if gone
            .iter()
            .any(|(result, _)| block.graph.is_output(*result))
        {
            let why = "the cast that leaves is an output of the block and stays";
            return Attempt::missed(outer, why);
        }
        let mut retyped = Vec::new();
        for node in &self.operations {
            for (index, result) in block
                .op(*node)
                .map_or(&[][..], |op| op.results())
                .iter()
                .enumerate()
            {
                let Some(tensor) = result.ty.as_ref().and_then(ValueType::as_tensor) else {
                    return Attempt::NoMatch;
                };
                let value = ValueId {
                    node: *node,
                    result: index as u32,
                };
                retyped.push((value, tensor.with_dtype(outside)));
            }
        }
        let count = self.operations.len();
        let what = format!(
            "{outside} → {inside} → {outside} around {count} operation{} that change{} no value",
            if count == 1 { "" } else { "s" },
            if count == 1 { "s" } else { "" },
        );
        Attempt::matched(what, move |edit| {
            for entry in self.entries {
                let bound = match entry.with {
                    Entering::Cast(source) => Binding::Value(source),
                    Entering::Constant(value) => edit.constant(value),
                };
                let bindings = edit
                    .graph()
                    .op(entry.user)
                    .and_then(|op| op.argument(entry.parameter))
                    .map(|argument| argument.bindings.clone());
                let Some(mut bindings) = bindings else {
                    continue;
                };
                if let Some(place) = bindings.get_mut(entry.position) {
                    *place = bound;
                }
                edit.bind(entry.user, entry.parameter, Some(bindings));
            }
            for (value, tensor) in retyped {
                edit.retype(value, ValueType::Tensor(tensor));
            }
            gone.iter()
                .try_for_each(|(old, new)| edit.replace(*old, *new))
        })
    }
}

/// Whether an operation's data parameters take the type in this opset.
fn takes(op: &Operation, opset: crate::ops::Opset, dtype: DType) -> bool {
    match op.op_type() {
        // Its operands are typed by no domain in the registry; coremltools joins these.
        "concat" => matches!(
            dtype,
            DType::Float16 | DType::Float32 | DType::Int32 | DType::Bool
        ),
        "select" => registry::accepts("select", opset, "a", dtype) == Some(true),
        op_type => registry::accepts(op_type, opset, "x", dtype) == Some(true),
    }
}

/// A constant in another type, if every element is exactly a number of that type. Only fp32
/// constants among fp16 operations come up.
fn narrow(block: &Block<'_>, value: &Value, to: DType) -> Option<Value> {
    let tensor = value.tensor_type()?;
    if tensor.dtype != DType::Float32 || to != DType::Float16 {
        return None;
    }
    let bytes = match &value.content {
        Content::Blob(blob) => block.blobs.bytes(blob)?.to_vec(),
        _ => value.tensor_bytes()?.into_owned(),
    };
    let mut packed = Vec::with_capacity(bytes.len() / 2);
    for element in bytes.chunks_exact(4) {
        let number = f32::from_le_bytes(element.try_into().ok()?);
        let narrowed = f16::from_f32(number);
        if narrowed.to_f32().to_bits() != number.to_bits() {
            return None;
        }
        packed.extend(narrowed.to_le_bytes());
    }
    let elements = packed.len() / 2;
    let mut narrowed = Value::tensor(tensor.with_dtype(to), TensorData::Absent);
    narrowed.content = if elements < BLOB_ELEMENTS {
        Value::tensor(tensor.clone(), TensorData::Bytes(packed)).content
    } else {
        Content::New(NewBlob {
            dtype: to,
            elements: elements as u64,
            bytes: packed.into(),
        })
    };
    Some(narrowed)
}
