//! Operations of one body in fp32: which can be, and the rewrite of a set of them.

use std::collections::{BTreeMap, HashMap, HashSet};

use half::f16;

use super::ID;
use crate::ir::{
    Binding, Body, Content, DType, Graph, NamedType, NewBlob, NodeId, Operation, Slot, TensorData,
    TensorType, Use, Value, ValueId, ValueType,
};
use crate::ops::registry::{self, Effect, Kind};
use crate::ops::{Inference, OpView, Operand, Opset, infer};
use crate::pass::{Blobs, Block, Edit, EditError, edit_body};

/// A constant of at most this many elements gets a copy in fp32; a larger one is cast where it is used,
/// unless its parameter takes nothing but a constant. 128 KiB of fp32.
const LARGEST_COPY: u64 = 32 << 10;

/// Constants of fewer elements stand in the program, as coremltools writes them, others in the weight
/// file.
const LEAST_IN_A_FILE: usize = 10;

/// What evaluating an operation in fp32 would mean.
#[derive(Debug, PartialEq)]
pub(super) enum Fitness {
    /// It can be done.
    Fit,
    /// There is nothing in fp16 about it.
    Idle(&'static str),
    /// It cannot be done.
    Unfit(String),
}

/// Whether an operation of an outermost block can be evaluated in fp32.
pub(super) fn fitness(block: &Block<'_>, node: NodeId) -> Fitness {
    let Some(op) = block.op(node) else {
        return Fitness::Idle("it is no operation");
    };
    let op_type = op.op_type();
    if op.const_value().is_some() {
        return Fitness::Idle("it is a constant");
    }
    if op_type.starts_with("constexpr_") {
        return Fitness::Unfit("it unpacks weights".to_owned());
    }
    if op_type == "shape" {
        return Fitness::Idle("it does not look at the numbers");
    }
    if !op.blocks().is_empty() {
        return Fitness::Unfit("it has blocks of its own".to_owned());
    }
    let Some(variant) = block
        .opset
        .and_then(|opset| registry::signature(op_type, opset).ok())
    else {
        return Fitness::Unfit("nothing is known of its type".to_owned());
    };
    let is_stateful = matches!(
        registry::effect(op_type),
        Effect::ReadsState | Effect::WritesState
    ) || variant.parameters.iter().any(|p| p.kind == Kind::State);
    if is_stateful {
        return Fitness::Unfit("a state keeps its element type".to_owned());
    }
    let is_half = |ty: Option<&ValueType>| ty.is_some_and(|ty| dtype(ty) == Some(DType::Float16));
    if variant.parameters.iter().any(|p| p.kind == Kind::List) {
        return Fitness::Unfit("a list keeps its element type".to_owned());
    }
    let from_half = bindings(op).any(|(_, binding)| is_half(binding_type(block.graph, binding)));
    let to_half = op.results().iter().any(|r| is_half(r.ty.as_ref()));
    if is_upcast(op) || !(from_half || to_half) {
        let is_float = op
            .results()
            .iter()
            .any(|r| r.ty.as_ref().and_then(dtype) == Some(DType::Float32));
        return Fitness::Idle(if is_float {
            "it is fp32 already"
        } else {
            "it has nothing to do with fp16"
        });
    }
    if !block.graph.is_used(node) {
        return Fitness::Idle("nothing uses it");
    }
    if op_type == "cast" {
        return Fitness::Fit;
    }
    match widened_types(block, op) {
        Ok(types) => {
            let keeps = |(result, ty): (&NamedType, &ValueType)| {
                is_half(result.ty.as_ref()) && dtype(ty) != Some(DType::Float32)
            };
            if op.results().iter().zip(&types).any(keeps) {
                Fitness::Unfit("its result is fp16 whatever it computes with".to_owned())
            } else {
                Fitness::Fit
            }
        }
        Err(why) => Fitness::Unfit(why),
    }
}

/// An operand as it would be: its type, and its value if it is a constant that stays as it is.
type Widened<'a> = (ValueType, Option<&'a Value>);

/// The types of an operation's results when its fp16 operands are fp32.
fn widened_types(block: &Block<'_>, op: &Operation) -> Result<Vec<ValueType>, String> {
    let opset = block.opset.ok_or("the opset is not known")?;
    let mut is_packed = false;
    let mut operands: Vec<(&str, Vec<Widened<'_>>)> = Vec::new();
    for argument in op.arguments() {
        let mut own = Vec::new();
        for binding in &argument.bindings {
            let Some(ty) = binding_type(block.graph, binding) else {
                continue;
            };
            let constant = match binding {
                Binding::Immediate(value) => Some(value),
                Binding::Value(value) => block.constant(*value),
                Binding::Absent => None,
            };
            if dtype(ty) == Some(DType::Float16) {
                if stays_half(block.graph, opset, op, &argument.parameter, binding) {
                    is_packed = true;
                    own.push((ty.clone(), None));
                } else {
                    own.push((widened(ty), None));
                }
            } else {
                own.push((ty.clone(), constant));
            }
        }
        operands.push((&argument.parameter, own));
    }
    let mut view = OpView {
        op_type: op.op_type(),
        opset,
        arguments: BTreeMap::new(),
        attributes: op.attributes(),
    };
    for (parameter, own) in &operands {
        let own = own.iter().map(|(ty, constant)| Operand {
            ty,
            constant: *constant,
        });
        view.arguments.insert(parameter, own.collect());
    }
    match infer(&view) {
        Ok(Inference::Types(types)) => Ok(types),
        Ok(Inference::NoRule) => Err("its result type cannot be inferred".to_owned()),
        Err(_) if is_packed => Err("its weights are packed, and have to be constants".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Whether an fp16 operand cannot be brought to fp32: packed weights for a parameter that takes nothing
/// but constants.
fn stays_half(graph: &Graph, opset: Opset, op: &Operation, parameter: &str, of: &Binding) -> bool {
    let Binding::Value(value) = of else {
        return false;
    };
    let is_packed = graph
        .producer(*value)
        .is_some_and(|producer| producer.op_type().starts_with("constexpr_"));
    is_packed && must_be_constant(opset, op.op_type(), parameter)
}

fn must_be_constant(opset: Opset, op_type: &str, parameter: &str) -> bool {
    registry::signature(op_type, opset)
        .ok()
        .and_then(|variant| variant.parameter(parameter))
        .is_some_and(|parameter| parameter.is_const)
}

/// A cast to fp32.
fn is_upcast(op: &Operation) -> bool {
    let result = op.results().first().and_then(|result| result.ty.as_ref());
    op.op_type() == "cast" && result.and_then(dtype) == Some(DType::Float32)
}

fn bindings(op: &Operation) -> impl Iterator<Item = (&str, &Binding)> {
    op.arguments().iter().flat_map(|argument| {
        let parameter = argument.parameter.as_str();
        argument.bindings.iter().map(move |of| (parameter, of))
    })
}

fn binding_type<'a>(graph: &'a Graph, binding: &'a Binding) -> Option<&'a ValueType> {
    match binding {
        Binding::Value(value) => graph.ty(*value),
        Binding::Immediate(value) => value.ty.as_ref(),
        Binding::Absent => None,
    }
}

fn dtype(ty: &ValueType) -> Option<DType> {
    Some(ty.as_tensor()?.dtype)
}

/// The same type with fp32 elements.
fn widened(ty: &ValueType) -> ValueType {
    match ty {
        ValueType::Tensor(tensor) => ValueType::Tensor(tensor.with_dtype(DType::Float32)),
        other => other.clone(),
    }
}

/// How many connected groups a set of operations is: those of a group hand fp32 to each other.
pub(super) fn islands(graph: &Graph, set: &[NodeId]) -> usize {
    let members: HashMap<NodeId, usize> = set.iter().enumerate().map(|(i, n)| (*n, i)).collect();
    let mut group: Vec<usize> = (0..set.len()).collect();
    let mut count = set.len();
    for (index, node) in set.iter().enumerate() {
        let Some(op) = graph.op(*node) else { continue };
        for (_, binding) in bindings(op) {
            let Binding::Value(value) = binding else {
                continue;
            };
            let is_half = graph.ty(*value).and_then(dtype) == Some(DType::Float16);
            if let (Some(other), true) = (members.get(&value.node), is_half) {
                let (a, b) = (root(&mut group, index), root(&mut group, *other));
                if a != b {
                    group[a] = b;
                    count -= 1;
                }
            }
        }
    }
    count
}

/// The member that stands for the group of a member.
fn root(group: &mut [usize], mut at: usize) -> usize {
    while group[at] != at {
        group[at] = group[group[at]];
        at = group[at];
    }
    at
}

/// What a rewrite did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Made {
    /// Operations that compute in fp32 now.
    pub(super) ops: usize,
    /// Casts that were made, in either direction.
    pub(super) casts: usize,
    /// Casts that went, since what they made is there in fp32.
    pub(super) joined: usize,
}

impl Made {
    /// Whether the rewrite changed anything.
    pub(super) fn is_change(&self) -> bool {
        self.ops + self.casts + self.joined > 0
    }
}

/// Evaluates these operations of a body in fp32. They must be fit for it.
pub(super) fn widen(
    body: &mut Body,
    opset: Opset,
    set: &[NodeId],
    blobs: &dyn Blobs,
) -> Result<Made, EditError> {
    let widens: HashSet<NodeId> = set.iter().copied().collect();
    let mut widening = Widening {
        opset,
        set: widens.clone(),
        wide: HashMap::new(),
        words: HashMap::new(),
        made: Made::default(),
    };
    let schedule = body.graph.schedule().unwrap_or_default();
    for node in schedule.iter().filter(|node| widens.contains(node)) {
        edit_body(body, opset, *node, ID, blobs, |edit| {
            widening.operation(edit, *node)
        })?;
    }
    Ok(widening.made)
}

struct Widening {
    opset: Opset,
    set: HashSet<NodeId>,
    /// fp16 values that are there in fp32 too.
    wide: HashMap<ValueId, ValueId>,
    /// The consts with the names of types.
    words: HashMap<DType, Binding>,
    made: Made,
}

impl Widening {
    fn operation(&mut self, edit: &mut Edit<'_>, node: NodeId) -> Result<(), EditError> {
        let Some(op) = edit.graph().op(node).cloned() else {
            return Ok(());
        };
        let first = ValueId::first(node);
        if op.op_type() == "cast" && is_typed(edit, first, DType::Float16) {
            return self.cast(edit, &op, first);
        }
        let mut arguments = BTreeMap::new();
        for argument in op.arguments() {
            let mut bindings = Vec::new();
            for binding in &argument.bindings {
                bindings.push(self.operand(edit, &op, &argument.parameter, binding)?);
            }
            arguments.insert(argument.parameter.clone(), bindings);
        }
        let new = edit.variadic_op(op.op_type(), arguments)?;
        self.made.ops += 1;
        for (result, named) in (0..).zip(op.results()) {
            let (old, new) = (ValueId { node, result }, ValueId { node: new, result });
            let Some(ty) = &named.ty else { continue };
            // Inference may know less of the sizes than the program declares.
            edit.retype(new, widened_if_half(ty));
            if dtype(ty) == Some(DType::Float16) {
                self.hand_over(edit, old, new)?;
            } else {
                edit.replace(old, new)?;
            }
        }
        Ok(())
    }

    /// A cast to fp16 that is not to round: what it casts, if that is a float, else the cast to fp32.
    fn cast(&mut self, edit: &mut Edit<'_>, op: &Operation, old: ValueId) -> Result<(), EditError> {
        let source = match op.binding("x") {
            Some(Binding::Value(x)) if is_typed(edit, *x, DType::Float32) => Some(*x),
            Some(binding @ Binding::Value(x)) if is_typed(edit, *x, DType::Float16) => {
                match self.operand(edit, op, "x", binding)? {
                    Binding::Value(wide) => Some(wide),
                    _ => None,
                }
            }
            _ => None,
        };
        if let Some(source) = source {
            let joined = self.join(edit, old, source)?;
            let read = edit.graph().uses(old).any(|site| self.is_inside(&site));
            self.made.ops += usize::from(read || joined > 0);
            self.wide.insert(old, source);
            return Ok(());
        }
        let Some(x) = op.binding("x").cloned() else {
            return Ok(());
        };
        let ty = edit.graph().ty(old).map(widened);
        let new = self.new_cast(edit, x, DType::Float32, ty)?;
        self.made.ops += 1;
        self.hand_over(edit, old, new)
    }

    /// An operand in fp32, if it is fp16.
    fn operand(
        &mut self,
        edit: &mut Edit<'_>,
        op: &Operation,
        parameter: &str,
        binding: &Binding,
    ) -> Result<Binding, EditError> {
        let half = binding_type(edit.graph(), binding).and_then(dtype) == Some(DType::Float16);
        if !half || stays_half(edit.graph(), self.opset, op, parameter, binding) {
            return Ok(binding.clone());
        }
        let value = match binding {
            Binding::Immediate(value) => {
                return Ok(Binding::Immediate(widened_value(edit, value)?));
            }
            Binding::Value(value) => *value,
            Binding::Absent => return Ok(Binding::Absent),
        };
        let must_be_constant = must_be_constant(self.opset, op.op_type(), parameter);
        let is_constant = |value: ValueId| {
            let producer = edit.graph().producer(value);
            producer.is_some_and(|producer| producer.const_value().is_some())
        };
        if let Some(wide) = self.wide.get(&value)
            && (!must_be_constant || is_constant(*wide))
        {
            return Ok(Binding::Value(*wide));
        }
        let constant = edit
            .graph()
            .producer(value)
            .and_then(Operation::const_value)
            .cloned();
        let is_copied = |constant: &Value| {
            let elements = constant.tensor_type().and_then(TensorType::elements);
            elements.is_some_and(|elements| elements <= LARGEST_COPY)
                || must_be_constant
                || parameter == "weight"
        };
        let wide = if let Some(constant) = constant.filter(is_copied) {
            let copy = widened_value(edit, &constant)?;
            edit.constant(copy)
        } else {
            self.made.casts += 1;
            let ty = edit.graph().ty(value).map(widened);
            Binding::Value(self.new_cast(edit, binding.clone(), DType::Float32, ty)?)
        };
        if let Binding::Value(wide) = wide {
            self.wide.insert(value, wide);
        }
        Ok(wide)
    }

    /// Puts an fp32 value in the place of an fp16 one: as it is for those that read fp32 now, through a
    /// cast for all others.
    fn hand_over(
        &mut self,
        edit: &mut Edit<'_>,
        old: ValueId,
        new: ValueId,
    ) -> Result<(), EditError> {
        self.join(edit, old, new)?;
        let leaves = edit.graph().uses(old).any(|site| !self.is_inside(&site));
        let Some(ty) = edit.graph().ty(old).cloned() else {
            return Ok(());
        };
        if !leaves {
            edit.retype(old, widened(&ty));
            return edit.replace(old, new);
        }
        let cast = self.new_cast(edit, Binding::Value(new), DType::Float16, Some(ty))?;
        self.made.casts += 1;
        self.wide.insert(cast, new);
        edit.replace(old, cast)
    }

    /// A cast, whose result has this type. All casts of one type read its name from one const.
    fn new_cast(
        &mut self,
        edit: &mut Edit<'_>,
        x: Binding,
        to: DType,
        ty: Option<ValueType>,
    ) -> Result<ValueId, EditError> {
        let word = if let Some(word) = self.words.get(&to) {
            word.clone()
        } else {
            let word = edit.constant(Value::string(to.word()));
            self.words.insert(to, word.clone());
            word
        };
        let cast = edit.op("cast", &[("x", x), ("dtype", word)])?;
        if let Some(ty) = ty {
            edit.retype(cast, ty);
        }
        Ok(cast)
    }

    /// Lets what casts an fp16 value to fp32 read the fp32 value that it is made of; how many did.
    fn join(
        &mut self,
        edit: &mut Edit<'_>,
        old: ValueId,
        new: ValueId,
    ) -> Result<usize, EditError> {
        let graph = edit.graph();
        let readers: Vec<ValueId> = graph
            .uses(old)
            .filter(|site| matches!(site.slot, Slot::Argument { .. }))
            .filter(|site| graph.op(site.user).is_some_and(is_upcast))
            .map(|site| ValueId::first(site.user))
            .filter(|reader| !graph.is_output(*reader) && graph.can_replace(*reader, new).is_ok())
            .collect();
        for reader in &readers {
            edit.replace(*reader, new)?;
            edit.remove(reader.node)?;
        }
        self.made.joined += readers.len();
        Ok(readers.len())
    }

    /// Whether a use is that of an operation that computes in fp32.
    fn is_inside(&self, site: &Use) -> bool {
        matches!(site.slot, Slot::Argument { .. }) && self.set.contains(&site.user)
    }
}

fn is_typed(edit: &Edit<'_>, value: ValueId, of: DType) -> bool {
    edit.graph().ty(value).and_then(dtype) == Some(of)
}

fn widened_if_half(ty: &ValueType) -> ValueType {
    match dtype(ty) {
        Some(DType::Float16) => widened(ty),
        _ => ty.clone(),
    }
}

/// The same numbers in fp32.
fn widened_value(edit: &Edit<'_>, value: &Value) -> Result<Value, EditError> {
    let unreadable = || EditError::Constant(DType::Float32);
    let ty = value.tensor_type().ok_or_else(unreadable)?;
    let bytes = edit.bytes(value)?;
    let numbers: Vec<f32> = bytes
        .as_chunks()
        .0
        .iter()
        .map(|half| f16::from_le_bytes(*half).to_f32())
        .collect();
    if ty.elements() != Some(numbers.len() as u64) {
        return Err(unreadable());
    }
    let ty = ty.with_dtype(DType::Float32);
    if numbers.len() < LEAST_IN_A_FILE {
        return Ok(Value::tensor(ty, TensorData::Floats(numbers)));
    }
    Ok(Value {
        doc: String::new(),
        ty: Some(ValueType::Tensor(ty)),
        content: Content::New(NewBlob {
            dtype: DType::Float32,
            elements: numbers.len() as u64,
            bytes: numbers.iter().flat_map(|n| n.to_le_bytes()).collect(),
        }),
    })
}
