//! Programs put together piece by piece.

use std::collections::BTreeMap;

use milwright::ir::{
    Body, BodyBuilder, Content, DType, DraftBinding, Function, Immediate, InputOrigin, NamedType,
    OpDraft, Program, TensorData, TensorType, Value, ValueType,
};

pub(crate) fn tensor(dtype: DType, shape: &[u64]) -> ValueType {
    TensorType::fixed(dtype, shape).into()
}

pub(crate) fn scalar(dtype: DType) -> ValueType {
    TensorType::scalar(dtype).into()
}

pub(crate) fn named(name: &str, ty: ValueType) -> NamedType {
    NamedType {
        name: name.to_owned(),
        ty: Some(ty),
    }
}

pub(crate) fn immediate(ty: Option<ValueType>, immediate: Immediate) -> Value {
    Value {
        doc: String::new(),
        ty,
        content: Content::Immediate(immediate),
    }
}

pub(crate) fn data(ty: ValueType, data: TensorData) -> Value {
    immediate(Some(ty), Immediate::Tensor(data))
}

pub(crate) fn name(text: &str) -> DraftBinding {
    DraftBinding::Name(text.to_owned())
}

pub(crate) fn attributes(pairs: &[(&str, Value)]) -> BTreeMap<String, Value> {
    let pairs = pairs.iter();
    pairs
        .map(|(name, value)| ((*name).to_owned(), value.clone()))
        .collect()
}

pub(crate) fn op(
    op_type: &str,
    arguments: &[(&str, Vec<DraftBinding>)],
    results: &[NamedType],
    pairs: &[(&str, Value)],
) -> OpDraft {
    let arguments = arguments.iter();
    OpDraft {
        op_type: op_type.to_owned(),
        arguments: arguments
            .map(|(p, b)| ((*p).to_owned(), b.clone()))
            .collect(),
        results: results.to_vec(),
        blocks: Vec::new(),
        attributes: attributes(pairs),
    }
}

pub(crate) fn const_op(result: &str, op_name: &str, value: &Value) -> OpDraft {
    let ty = value.ty.clone().expect("consts here have a type");
    let pairs = [("name", Value::string(op_name)), ("val", value.clone())];
    op("const", &[], &[named(result, ty)], &pairs)
}

pub(crate) fn program_of(opset: &str, inputs: Vec<NamedType>, body: Body) -> Program {
    let function = Function {
        inputs,
        opset: opset.to_owned(),
        specializations: BTreeMap::from([(opset.to_owned(), body)]),
        attributes: BTreeMap::new(),
    };
    Program {
        version: 1,
        functions: BTreeMap::from([("main".to_owned(), function)]),
        doc: String::new(),
        attributes: BTreeMap::new(),
    }
}

pub(crate) fn body(inputs: &[NamedType], ops: Vec<OpDraft>, outputs: &[&str]) -> Body {
    let mut builder = BodyBuilder::new();
    for input in inputs {
        builder
            .input(input.clone(), InputOrigin::Function)
            .expect("a fresh name");
    }
    for op in ops {
        builder
            .op(op)
            .expect("an operation whose names are defined");
    }
    let outputs: Vec<String> = outputs.iter().map(|&name| name.to_owned()).collect();
    builder
        .finish(&outputs, BTreeMap::new())
        .expect("outputs that are defined")
}
