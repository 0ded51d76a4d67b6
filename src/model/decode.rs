//! Protobuf messages to the graph. Nothing is normalized: what the file spells is kept.

use std::collections::BTreeMap;

use super::proto::specification::mil_spec as mil;
use crate::ir::{
    BlobRef, Body, BodyBuilder, BuildError, Content, DType, Dim, DraftBinding, Function, Graph,
    Immediate, InputOrigin, NamedType, OpDraft, Program, TensorData, TensorType, Value, ValueType,
};

/// A function whose text is not a program.
#[derive(Debug, thiserror::Error)]
#[error("function `{function}`: {problem}")]
pub struct ProgramError {
    /// The function.
    pub function: String,
    /// What is wrong, and where.
    pub problem: Problem,
}

/// What can be wrong with the text of a function.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// A name is missing, defined twice or not defined.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Operations depend on their own results.
    #[error("the values {} depend on each other in a cycle", .0.join(" → "))]
    Cycle(Vec<String>),
    /// The function names an opset for which it has no body.
    #[error("it names the opset `{0}` but has no body for it")]
    NoBody(String),
}

/// Decodes a program.
pub(super) fn program(message: mil::Program) -> Result<Program, ProgramError> {
    let functions = message
        .functions
        .into_iter()
        .map(|(name, function)| match self::function(function) {
            Ok(function) => Ok((name, function)),
            Err(problem) => Err(ProgramError {
                function: name,
                problem,
            }),
        })
        .collect::<Result<_, _>>()?;
    Ok(Program {
        version: message.version,
        functions,
        doc: message.doc_string,
        attributes: values(message.attributes),
    })
}

fn function(message: mil::Function) -> Result<Function, Problem> {
    if !message.block_specializations.contains_key(&message.opset) {
        return Err(Problem::NoBody(message.opset));
    }
    let inputs: Vec<NamedType> = message.inputs.into_iter().map(named_type).collect();
    let specializations = message
        .block_specializations
        .into_iter()
        .map(|(opset, block)| Ok((opset, body(&inputs, block)?)))
        .collect::<Result<_, Problem>>()?;
    Ok(Function {
        inputs,
        opset: message.opset,
        specializations,
        attributes: values(message.attributes),
    })
}

fn body(inputs: &[NamedType], block: mil::Block) -> Result<Body, Problem> {
    let mut builder = BodyBuilder::new();
    for input in inputs {
        builder.input(input.clone(), InputOrigin::Function)?;
    }
    for input in block.inputs {
        builder.input(named_type(input), InputOrigin::Block)?;
    }
    operations(&mut builder, block.operations)?;
    Ok(builder.finish(&block.outputs, values(block.attributes))?)
}

fn nested_block(builder: &mut BodyBuilder, block: mil::Block) -> Result<Graph, Problem> {
    builder.begin_block();
    for input in block.inputs {
        builder.input(named_type(input), InputOrigin::Block)?;
    }
    operations(builder, block.operations)?;
    Ok(builder.end_block(&block.outputs, values(block.attributes))?)
}

fn operations(builder: &mut BodyBuilder, operations: Vec<mil::Operation>) -> Result<(), Problem> {
    let mut remaining = operations.into_iter();
    while let Some(operation) = remaining.next() {
        // Only kept to tell a cycle from a mere forward reference, should one turn up.
        let dependence: Vec<String> = operation.outputs.iter().map(|o| o.name.clone()).collect();
        let sources = sources(&operation);
        match add_operation(builder, operation) {
            Ok(()) => {}
            Err(Problem::Build(BuildError::Undefined { name, by })) => {
                let mut known: BTreeMap<String, Vec<String>> = BTreeMap::new();
                for output in dependence {
                    known.insert(output, sources.clone());
                }
                for later in remaining {
                    let later_sources = self::sources(&later);
                    for output in later.outputs {
                        known.insert(output.name, later_sources.clone());
                    }
                }
                return Err(match find_cycle(&known, &name) {
                    Some(cycle) => Problem::Cycle(cycle),
                    None => BuildError::Undefined { name, by }.into(),
                });
            }
            Err(problem) => return Err(problem),
        }
    }
    Ok(())
}

/// The names that an operation is bound to.
fn sources(operation: &mil::Operation) -> Vec<String> {
    operation
        .inputs
        .values()
        .flat_map(|argument| &argument.arguments)
        .filter_map(|binding| match &binding.binding {
            Some(mil::argument::binding::Binding::Name(name)) => Some(name.clone()),
            _ => None,
        })
        .collect()
}

/// A cycle through `start` in the map from values to what they are made of.
fn find_cycle(known: &BTreeMap<String, Vec<String>>, start: &str) -> Option<Vec<String>> {
    let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut stack = vec![start];
    while let Some(name) = stack.pop() {
        for source in known.get(name).into_iter().flatten() {
            if source == start {
                let mut cycle = vec![start.to_owned()];
                let mut at = name;
                while at != start {
                    cycle.push(at.to_owned());
                    at = came_from.get(at).copied().unwrap_or(start);
                }
                cycle.push(start.to_owned());
                return Some(cycle);
            }
            if !came_from.contains_key(source.as_str()) {
                came_from.insert(source, name);
                stack.push(source);
            }
        }
    }
    None
}

fn add_operation(builder: &mut BodyBuilder, operation: mil::Operation) -> Result<(), Problem> {
    let blocks = operation
        .blocks
        .into_iter()
        .map(|block| nested_block(builder, block))
        .collect::<Result<_, _>>()?;
    let arguments = operation
        .inputs
        .into_iter()
        .map(|(parameter, argument)| {
            let bindings = argument.arguments.into_iter().map(binding).collect();
            (parameter, bindings)
        })
        .collect();
    builder.op(OpDraft {
        op_type: operation.r#type,
        arguments,
        results: operation.outputs.into_iter().map(named_type).collect(),
        blocks,
        attributes: values(operation.attributes),
    })?;
    Ok(())
}

fn binding(message: mil::argument::Binding) -> DraftBinding {
    match message.binding {
        Some(mil::argument::binding::Binding::Name(name)) => DraftBinding::Name(name),
        Some(mil::argument::binding::Binding::Value(value)) => {
            DraftBinding::Immediate(self::value(value))
        }
        None => DraftBinding::Absent,
    }
}

fn named_type(message: mil::NamedValueType) -> NamedType {
    NamedType {
        name: message.name,
        ty: message.r#type.map(value_type),
    }
}

fn boxed_type(message: Option<Box<mil::ValueType>>) -> Option<Box<ValueType>> {
    message.map(|inner| Box::new(value_type(*inner)))
}

fn value_type(message: mil::ValueType) -> ValueType {
    use mil::value_type::Type;
    match message.r#type {
        Some(Type::TensorType(tensor)) => ValueType::Tensor(TensorType {
            dtype: DType::from_number(tensor.data_type),
            rank: tensor.rank,
            dims: tensor.dimensions.into_iter().map(dimension).collect(),
            attributes: values(tensor.attributes),
        }),
        Some(Type::ListType(list)) => ValueType::List {
            item: boxed_type(list.r#type),
            length: list.length.map(dimension),
        },
        Some(Type::TupleType(tuple)) => {
            ValueType::Tuple(tuple.types.into_iter().map(value_type).collect())
        }
        Some(Type::DictionaryType(dictionary)) => ValueType::Dictionary {
            key: boxed_type(dictionary.key_type),
            value: boxed_type(dictionary.value_type),
        },
        Some(Type::StateType(state)) => ValueType::State(boxed_type(state.wrapped_type)),
        None => ValueType::Unspecified,
    }
}

fn dimension(message: mil::Dimension) -> Dim {
    match message.dimension {
        Some(mil::dimension::Dimension::Constant(constant)) => Dim::Known(constant.size),
        Some(mil::dimension::Dimension::Unknown(unknown)) => Dim::Unknown {
            variadic: unknown.variadic,
        },
        None => Dim::Unspecified,
    }
}

fn values(messages: BTreeMap<String, mil::Value>) -> BTreeMap<String, Value> {
    messages
        .into_iter()
        .map(|(name, message)| (name, value(message)))
        .collect()
}

fn value(message: mil::Value) -> Value {
    let content = match message.value {
        Some(mil::value::Value::ImmediateValue(immediate)) => {
            Content::Immediate(self::immediate(immediate))
        }
        Some(mil::value::Value::BlobFileValue(blob)) => Content::Blob(BlobRef {
            file: blob.file_name,
            offset: blob.offset,
        }),
        None => Content::Absent,
    };
    Value {
        doc: message.doc_string,
        ty: message.r#type.map(value_type),
        content,
    }
}

fn immediate(message: mil::value::ImmediateValue) -> Immediate {
    use mil::value::immediate_value::Value as Kind;
    match message.value {
        Some(Kind::Tensor(tensor)) => Immediate::Tensor(tensor_data(tensor)),
        Some(Kind::Tuple(tuple)) => Immediate::Tuple(tuple.values.into_iter().map(value).collect()),
        Some(Kind::List(list)) => Immediate::List(list.values.into_iter().map(value).collect()),
        Some(Kind::Dictionary(dictionary)) => Immediate::Dictionary(
            dictionary
                .values
                .into_iter()
                .map(|pair| (pair.key.map(value), pair.value.map(value)))
                .collect(),
        ),
        None => Immediate::Absent,
    }
}

fn tensor_data(message: mil::TensorValue) -> TensorData {
    use mil::tensor_value::Value as Field;
    match message.value {
        Some(Field::Floats(field)) => TensorData::Floats(field.values),
        Some(Field::Ints(field)) => TensorData::Ints(field.values),
        Some(Field::Bools(field)) => TensorData::Bools(field.values),
        Some(Field::Strings(field)) => TensorData::Strings(field.values),
        Some(Field::LongInts(field)) => TensorData::LongInts(field.values),
        Some(Field::Doubles(field)) => TensorData::Doubles(field.values),
        Some(Field::Bytes(field)) => TensorData::Bytes(field.values),
        None => TensorData::Absent,
    }
}
