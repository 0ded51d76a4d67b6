//! The graph to protobuf messages, in the order of the schedule.

use std::collections::BTreeMap;

use super::proto::specification::mil_spec as mil;
use super::{Error, Placements};
use crate::ir::{
    Argument, Binding, Body, Content, Dim, Function, Graph, Immediate, InputOrigin, NamedType,
    Node, Operation, Program, TensorData, TensorType, Value, ValueType,
};

/// Encodes a program; blobs get the places that `placements` gives them.
pub(super) fn program(program: &Program, placements: &Placements) -> Result<mil::Program, Error> {
    let encoder = Encoder { placements };
    let functions = program
        .functions
        .iter()
        .map(|(name, function)| Ok((name.clone(), encoder.function(function)?)))
        .collect::<Result<_, Error>>()?;
    Ok(mil::Program {
        version: program.version,
        functions,
        doc_string: program.doc.clone(),
        attributes: encoder.values(&program.attributes)?,
    })
}

struct Encoder<'a> {
    placements: &'a Placements,
}

impl Encoder<'_> {
    fn function(&self, function: &Function) -> Result<mil::Function, Error> {
        let block_specializations = function
            .specializations
            .iter()
            .map(|(opset, body)| Ok((opset.clone(), self.body(body)?)))
            .collect::<Result<_, Error>>()?;
        Ok(mil::Function {
            inputs: self.named_types(&function.inputs)?,
            opset: function.opset.clone(),
            block_specializations,
            attributes: self.values(&function.attributes)?,
        })
    }

    fn body(&self, body: &Body) -> Result<mil::Block, Error> {
        self.block(&body.graph)
    }

    fn block(&self, graph: &Graph) -> Result<mil::Block, Error> {
        let mut inputs = Vec::new();
        for node in graph.inputs() {
            if let Some(Node::Input(named, InputOrigin::Block)) = graph.node(*node) {
                inputs.push(self.named_type(named)?);
            }
        }
        let operations = graph
            .schedule()?
            .iter()
            .filter_map(|node| graph.op(*node))
            .map(|op| self.operation(graph, op))
            .collect::<Result<_, _>>()?;
        Ok(mil::Block {
            inputs,
            outputs: graph
                .outputs()
                .iter()
                .map(|value| graph.name(*value).to_owned())
                .collect(),
            operations,
            attributes: self.values(graph.attributes())?,
        })
    }

    fn operation(&self, graph: &Graph, op: &Operation) -> Result<mil::Operation, Error> {
        let inputs = op
            .arguments()
            .iter()
            .map(|argument| Ok((argument.parameter.clone(), self.argument(graph, argument)?)))
            .collect::<Result<_, Error>>()?;
        Ok(mil::Operation {
            r#type: op.op_type().to_owned(),
            inputs,
            outputs: self.named_types(op.results())?,
            blocks: op
                .blocks()
                .iter()
                .map(|block| self.block(block))
                .collect::<Result<_, _>>()?,
            attributes: self.values(op.attributes())?,
        })
    }

    fn argument(&self, graph: &Graph, argument: &Argument) -> Result<mil::Argument, Error> {
        use mil::argument::binding::Binding as Kind;
        let arguments = argument
            .bindings
            .iter()
            .map(|binding| {
                let binding = match binding {
                    Binding::Value(value) => Some(Kind::Name(graph.name(*value).to_owned())),
                    Binding::Immediate(value) => Some(Kind::Value(self.value(value)?)),
                    Binding::Absent => None,
                };
                Ok(mil::argument::Binding { binding })
            })
            .collect::<Result<_, Error>>()?;
        Ok(mil::Argument { arguments })
    }

    fn named_types(&self, named: &[NamedType]) -> Result<Vec<mil::NamedValueType>, Error> {
        named.iter().map(|named| self.named_type(named)).collect()
    }

    fn named_type(&self, named: &NamedType) -> Result<mil::NamedValueType, Error> {
        let ty = named
            .ty
            .as_ref()
            .map(|ty| self.value_type(ty))
            .transpose()?;
        Ok(mil::NamedValueType {
            name: named.name.clone(),
            r#type: ty,
        })
    }

    fn boxed_type(&self, ty: Option<&ValueType>) -> Result<Option<Box<mil::ValueType>>, Error> {
        ty.map(|ty| self.value_type(ty).map(Box::new)).transpose()
    }

    fn value_type(&self, ty: &ValueType) -> Result<mil::ValueType, Error> {
        use mil::value_type::Type;
        let ty = match ty {
            ValueType::Tensor(tensor) => Some(Type::TensorType(self.tensor_type(tensor)?)),
            ValueType::List { item, length } => Some(Type::ListType(Box::new(mil::ListType {
                r#type: self.boxed_type(item.as_deref())?,
                length: length.map(dimension),
            }))),
            ValueType::Tuple(types) => Some(Type::TupleType(mil::TupleType {
                types: types
                    .iter()
                    .map(|ty| self.value_type(ty))
                    .collect::<Result<_, _>>()?,
            })),
            ValueType::Dictionary { key, value } => {
                Some(Type::DictionaryType(Box::new(mil::DictionaryType {
                    key_type: self.boxed_type(key.as_deref())?,
                    value_type: self.boxed_type(value.as_deref())?,
                })))
            }
            ValueType::State(inner) => Some(Type::StateType(Box::new(mil::StateType {
                wrapped_type: self.boxed_type(inner.as_deref())?,
            }))),
            ValueType::Unspecified => None,
        };
        Ok(mil::ValueType { r#type: ty })
    }

    fn tensor_type(&self, tensor: &TensorType) -> Result<mil::TensorType, Error> {
        Ok(mil::TensorType {
            data_type: tensor.dtype.number(),
            rank: tensor.rank,
            dimensions: tensor.dims.iter().copied().map(dimension).collect(),
            attributes: self.values(&tensor.attributes)?,
        })
    }

    fn values<'v>(
        &self,
        values: impl IntoIterator<Item = (&'v String, &'v Value)>,
    ) -> Result<BTreeMap<String, mil::Value>, Error> {
        values
            .into_iter()
            .map(|(name, value)| Ok((name.clone(), self.value(value)?)))
            .collect()
    }

    fn value(&self, value: &Value) -> Result<mil::Value, Error> {
        let content = match &value.content {
            Content::Immediate(immediate) => Some(mil::value::Value::ImmediateValue(
                self.immediate(immediate)?,
            )),
            Content::Blob(blob) => {
                let offset = self.placements.offset(blob);
                Some(mil::value::Value::BlobFileValue(
                    mil::value::BlobFileValue {
                        file_name: blob.file.clone(),
                        offset,
                    },
                ))
            }
            Content::New(new) => {
                let place = self.placements.new_blob(new).ok_or(Error::Unplaced)?;
                Some(mil::value::Value::BlobFileValue(
                    mil::value::BlobFileValue {
                        file_name: place.file.clone(),
                        offset: place.offset,
                    },
                ))
            }
            Content::Absent => None,
        };
        let ty = value
            .ty
            .as_ref()
            .map(|ty| self.value_type(ty))
            .transpose()?;
        Ok(mil::Value {
            doc_string: value.doc.clone(),
            r#type: ty,
            value: content,
        })
    }

    fn immediate(&self, immediate: &Immediate) -> Result<mil::value::ImmediateValue, Error> {
        use mil::value::immediate_value::Value as Kind;
        let all = |values: &[Value]| -> Result<Vec<mil::Value>, Error> {
            values.iter().map(|value| self.value(value)).collect()
        };
        let maybe = |value: &Option<Value>| -> Result<Option<mil::Value>, Error> {
            value.as_ref().map(|value| self.value(value)).transpose()
        };
        let kind = match immediate {
            Immediate::Tensor(data) => Some(Kind::Tensor(tensor_data(data))),
            Immediate::Tuple(values) => Some(Kind::Tuple(mil::TupleValue {
                values: all(values)?,
            })),
            Immediate::List(values) => Some(Kind::List(mil::ListValue {
                values: all(values)?,
            })),
            Immediate::Dictionary(pairs) => Some(Kind::Dictionary(mil::DictionaryValue {
                values: pairs
                    .iter()
                    .map(|(key, value)| {
                        Ok(mil::dictionary_value::KeyValuePair {
                            key: maybe(key)?,
                            value: maybe(value)?,
                        })
                    })
                    .collect::<Result<_, Error>>()?,
            })),
            Immediate::Absent => None,
        };
        Ok(mil::value::ImmediateValue { value: kind })
    }
}

fn dimension(dim: Dim) -> mil::Dimension {
    use mil::dimension::{ConstantDimension, Dimension, UnknownDimension};
    let dimension = match dim {
        Dim::Known(size) => Some(Dimension::Constant(ConstantDimension { size })),
        Dim::Unknown { variadic } => Some(Dimension::Unknown(UnknownDimension { variadic })),
        Dim::Unspecified => None,
    };
    mil::Dimension { dimension }
}

fn tensor_data(data: &TensorData) -> mil::TensorValue {
    use mil::tensor_value as field;
    use mil::tensor_value::Value as Field;
    let value = match data.clone() {
        TensorData::Floats(values) => Some(Field::Floats(field::RepeatedFloats { values })),
        TensorData::Ints(values) => Some(Field::Ints(field::RepeatedInts { values })),
        TensorData::Bools(values) => Some(Field::Bools(field::RepeatedBools { values })),
        TensorData::Strings(values) => Some(Field::Strings(field::RepeatedStrings { values })),
        TensorData::LongInts(values) => Some(Field::LongInts(field::RepeatedLongInts { values })),
        TensorData::Doubles(values) => Some(Field::Doubles(field::RepeatedDoubles { values })),
        TensorData::Bytes(values) => Some(Field::Bytes(field::RepeatedBytes { values })),
        TensorData::Absent => None,
    };
    mil::TensorValue { value }
}
