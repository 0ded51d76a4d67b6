//! Types after the inputs' shapes are fixed: from the inputs on, operation by operation.

use std::collections::BTreeMap;

use crate::eval::{Blobs, ConstantError, fold};
use crate::ir::{Binding, BlobRef, DType, Dim, NodeId, TensorType, Value, ValueId, ValueType};
use crate::ops::{Opset, has_evaluation};
use crate::pass::{Edit, EditError, WholeEdit, WholeError};
use crate::tensor::Packed;

/// Elements of a constant that shapes are computed from, and bytes that this may take.
const MAX_ELEMENTS: u64 = 64;
const MAX_BYTES: u64 = 1 << 16;

/// Gives every value of a body the type that follows from the inputs' types. Operations that compute
/// shapes become constants.
pub(super) fn retype(
    edit: &mut WholeEdit<'_>,
    function: &str,
    opset: &str,
) -> Result<(), WholeError> {
    let parsed = Opset::parse(opset);
    let order = edit.body(function, opset)?.graph.schedule();
    let order = order.map_err(|_| WholeError::Other("the program has a cycle".to_owned()))?;
    for node in order.iter().copied() {
        if edit.body(function, opset)?.graph.op(node).is_none() {
            continue;
        }
        edit.at(function, opset, node, |edit| {
            types(edit, node)?;
            match parsed.and_then(|opset| constant(edit, node, opset)) {
                Some(value) => {
                    let result = ValueId::first(node);
                    if let Some(ty) = value.ty.clone() {
                        edit.retype(result, ty);
                    }
                    match edit.constant(value) {
                        Binding::Value(constant) => edit.replace(result, constant),
                        _ => Ok(()),
                    }
                }
                None => Ok(()),
            }
        })?;
    }
    Ok(())
}

/// Gives the results of an operation their types.
fn types(edit: &mut Edit<'_>, node: NodeId) -> Result<(), EditError> {
    let Some(op) = edit.graph().op(node) else {
        return Ok(());
    };
    if op.op_type() == "const" {
        return Ok(());
    }
    let declared: Vec<Option<ValueType>> = op.results().iter().map(|r| r.ty.clone()).collect();
    let Some(inferred) = edit.inferred(node)? else {
        return Ok(());
    };
    for (index, (declared, inferred)) in (0u32..).zip(declared.into_iter().zip(inferred)) {
        let ty = match &declared {
            Some(declared) => merged(declared, &inferred),
            None => inferred,
        };
        if declared.as_ref() != Some(&ty) {
            edit.retype(
                ValueId {
                    node,
                    result: index,
                },
                ty,
            );
        }
    }
    Ok(())
}

/// What is known of a type by declaration and by inference, which is right where both know.
fn merged(declared: &ValueType, inferred: &ValueType) -> ValueType {
    let (ValueType::Tensor(old), ValueType::Tensor(new)) = (declared, inferred) else {
        return declared.clone();
    };
    if old.dims.len() != new.dims.len() {
        return inferred.clone();
    }
    let known = |(old, new): (&Dim, &Dim)| if new.size().is_some() { *new } else { *old };
    let dims = old.dims.iter().zip(&new.dims).map(known).collect();
    TensorType {
        attributes: old.attributes.clone(),
        ..TensorType::new(new.dtype, dims)
    }
    .into()
}

/// The constant that an operation on shapes has become, if it is one.
fn constant(edit: &Edit<'_>, node: NodeId, opset: Opset) -> Option<Value> {
    let graph = edit.graph();
    let op = graph.op(node)?;
    let [result] = op.results() else { return None };
    let value = ValueId::first(node);
    if graph.is_output(value) || op.op_type() == "const" || !op.blocks().is_empty() {
        return None;
    }
    let ty = result.ty.as_ref()?.as_tensor()?;
    if op.op_type() == "shape" {
        let shape = graph.ty(op.value("x")?)?.as_tensor()?.shape()?;
        let sizes = shape.iter().map(|size| i32::try_from(*size).ok());
        let sizes: Vec<i32> = sizes.collect::<Option<_>>()?;
        return (ty.dtype == DType::Int32).then(|| Value::int32s(&sizes));
    }
    let small = |ty: &TensorType| ty.elements().is_some_and(|count| count <= MAX_ELEMENTS);
    // Fractions take part in it too: some converters divide sizes as floats.
    if !small(ty) || !has_evaluation(op.op_type()) || op.arguments().is_empty() {
        return None;
    }
    let random = ["random_", "constexpr_", "list_", "make_list", "read_state"];
    if random.iter().any(|prefix| op.op_type().starts_with(prefix)) {
        return None;
    }
    let mut arguments: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for argument in op.arguments() {
        let values = argument
            .bindings
            .iter()
            .map(|binding| match binding {
                Binding::Immediate(value) => Some(value),
                Binding::Value(value) => graph.producer(*value)?.const_value(),
                Binding::Absent => None,
            })
            .collect::<Option<Vec<_>>>()?;
        if !values
            .iter()
            .all(|value| value.tensor_type().is_some_and(small))
        {
            return None;
        }
        arguments.insert(&argument.parameter, values);
    }
    let mut values = fold(
        op.op_type(),
        opset,
        &arguments,
        op.results(),
        &NoFiles,
        MAX_BYTES,
    )
    .ok()?;
    values.pop()
}

/// No weight files: what shapes are computed from is in the program.
struct NoFiles;

impl Blobs for NoFiles {
    fn packed(&self, blob: &BlobRef, _: DType, _: u64) -> Result<Packed, ConstantError> {
        Err(ConstantError::Blob(blob.file.clone()))
    }
}
