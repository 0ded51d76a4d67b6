//! Programs as JSON, for other tools to read.
//!
//! The form is `{"version", "dialect", "doc"?, "attributes", "functions": […]}`; each function has
//! its `inputs` and, by opset, its `bodies`; a body is a block: `inputs` (of its own), `operations`
//! in the order of the file, `outputs` (names), `attributes`. An operation's `inputs` map each
//! parameter to a list of `{"name"}` or `{"value"}`. Types have MIL text (`type`) and, for tensors
//! and states of tensors, `dtype` and `shape` with null for a dimension that is known only when the
//! model runs (and no `shape` if the rank is not known).
//!
//! A tensor's `elements` are its first sixteen; `count` says how many there are. Integers are
//! exact, every float is exact as a double, and what JSON has no number for is a string: `"inf"`,
//! `"-inf"`, `"nan"`. Data that is no whole number of elements of
//! its type has `raw_bytes` instead. Empty maps and lists are left out where they are the rule.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::elements::{Element, Elements};
use super::{Dialect, PrintError, type_text};
use crate::ir::{
    Binding, Content, Dim, Function, Graph, Immediate, InputOrigin, NamedType, Node, Operation,
    Program, TensorData, TensorType, Value, ValueType,
};

/// How many elements of a tensor are shown.
const SHOWN: usize = 16;

/// A program.
#[derive(Debug, Serialize)]
pub struct ProgramJson<'a> {
    version: i64,
    dialect: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    doc: &'a str,
    attributes: BTreeMap<&'a str, ValueJson<'a>>,
    functions: Vec<FunctionJson<'a>>,
}

#[derive(Debug, Serialize)]
struct FunctionJson<'a> {
    name: &'a str,
    opset: &'a str,
    inputs: Vec<NamedJson<'a>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<&'a str, ValueJson<'a>>,
    bodies: BTreeMap<&'a str, BlockJson<'a>>,
}

#[derive(Debug, Serialize)]
struct BlockJson<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    inputs: Vec<NamedJson<'a>>,
    operations: Vec<OperationJson<'a>>,
    outputs: Vec<&'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<&'a str, ValueJson<'a>>,
}

#[derive(Debug, Serialize)]
struct OperationJson<'a> {
    #[serde(rename = "type")]
    op_type: &'a str,
    inputs: BTreeMap<&'a str, Vec<BindingJson<'a>>>,
    outputs: Vec<NamedJson<'a>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<&'a str, ValueJson<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    blocks: Vec<BlockJson<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum BindingJson<'a> {
    Name(&'a str),
    Value(ValueJson<'a>),
    #[serde(rename = "absent")]
    Absent(bool),
}

#[derive(Debug, Serialize)]
struct NamedJson<'a> {
    name: &'a str,
    #[serde(flatten)]
    ty: TypeJson,
}

#[derive(Debug, Serialize)]
struct TypeJson {
    #[serde(rename = "type")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dtype: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shape: Option<Vec<Option<u64>>>,
}

#[derive(Debug, Serialize)]
struct ValueJson<'a> {
    #[serde(flatten)]
    ty: TypeJson,
    #[serde(skip_serializing_if = "str::is_empty")]
    doc: &'a str,
    #[serde(flatten)]
    content: ContentJson<'a>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum ContentJson<'a> {
    Tensor {
        count: usize,
        elements: Vec<ElementJson<'a>>,
    },
    Raw {
        raw_bytes: usize,
    },
    Blob {
        blob: BlobJson<'a>,
    },
    New {
        new_blob: NewJson,
    },
    Items {
        items: Vec<ValueJson<'a>>,
    },
    Entries {
        entries: Vec<(Option<ValueJson<'a>>, Option<ValueJson<'a>>)>,
    },
    Absent {},
}

#[derive(Debug, Serialize)]
struct BlobJson<'a> {
    file: &'a str,
    offset: u64,
}

#[derive(Debug, Serialize)]
struct NewJson {
    dtype: String,
    elements: u64,
    bytes: usize,
}

#[derive(Debug)]
struct ElementJson<'a>(Element<'a>);

impl Serialize for ElementJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let number = match self.0 {
            Element::Signed(value) => return serializer.serialize_i64(value),
            Element::Unsigned(value) => return serializer.serialize_u64(value),
            Element::Bool(value) => return serializer.serialize_bool(value),
            Element::Text(text) => return serializer.serialize_str(text),
            Element::Float16(bits) => half::f16::from_bits(bits).to_f64(),
            Element::BFloat16(bits) => half::bf16::from_bits(bits).to_f64(),
            Element::Float32(value) => value.into(),
            Element::Float64(value) => value,
            Element::Float8E4M3FN(bits) => fp8(bits, 3, 7, true),
            Element::Float8E5M2(bits) => fp8(bits, 2, 15, false),
        };
        if number.is_finite() {
            serializer.serialize_f64(number)
        } else if number.is_nan() {
            serializer.serialize_str("nan")
        } else {
            serializer.serialize_str(if number > 0.0 { "inf" } else { "-inf" })
        }
    }
}

/// The value of an fp8 number: sign, exponent with its bias, mantissa. `finite`: the largest
/// exponent holds numbers too and only an all-ones mantissa there is NaN (E4M3FN).
fn fp8(bits: u8, mantissa_bits: u32, bias: i32, finite: bool) -> f64 {
    let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
    let mask = (1u8 << mantissa_bits) - 1;
    let mantissa = bits & mask;
    let exponent = i32::from((bits & 0x7f) >> mantissa_bits);
    let largest = (1i32 << (7 - mantissa_bits)) - 1;
    let fraction = f64::from(mantissa) / f64::from(mask + 1);
    sign * match exponent {
        0 => fraction * 2f64.powi(1 - bias),
        _ if exponent == largest && !finite && mantissa == 0 => f64::INFINITY,
        _ if exponent == largest && (!finite || mantissa == mask) => f64::NAN,
        _ => (1.0 + fraction) * 2f64.powi(exponent - bias),
    }
}

/// The JSON form of a program, or of one function of it.
///
/// # Errors
/// If the function asked for does not exist.
pub fn program_json<'a>(
    program: &'a Program,
    only: Option<&str>,
) -> Result<ProgramJson<'a>, PrintError> {
    PrintError::check_function(program, only)?;
    let dialect = Dialect::for_program(program);
    let maker = Maker { dialect };
    Ok(ProgramJson {
        version: program.version,
        dialect: dialect.version(),
        doc: &program.doc,
        attributes: maker.values(&program.attributes),
        functions: program
            .functions
            .iter()
            .filter(|(name, _)| only.is_none_or(|only| only == name.as_str()))
            .map(|(name, function)| maker.function(name, function))
            .collect(),
    })
}

#[derive(Clone, Copy)]
struct Maker {
    dialect: Dialect,
}

impl Maker {
    fn function<'a>(self, name: &'a str, function: &'a Function) -> FunctionJson<'a> {
        FunctionJson {
            name,
            opset: &function.opset,
            inputs: function.inputs.iter().map(|n| self.named(n)).collect(),
            attributes: self.values(&function.attributes),
            bodies: function
                .specializations
                .iter()
                .map(|(opset, body)| (opset.as_str(), self.block(&body.graph)))
                .collect(),
        }
    }

    fn block(self, graph: &Graph) -> BlockJson<'_> {
        let order = graph
            .schedule()
            .unwrap_or_else(|_| graph.ops().map(|(node, _)| node).collect());
        let inputs = graph
            .inputs()
            .iter()
            .filter_map(|node| match graph.node(*node) {
                Some(Node::Input(named, InputOrigin::Block)) => Some(self.named(named)),
                _ => None,
            });
        BlockJson {
            inputs: inputs.collect(),
            operations: order
                .iter()
                .filter_map(|node| graph.op(*node))
                .map(|op| self.operation(graph, op))
                .collect(),
            outputs: graph.outputs().iter().map(|v| graph.name(*v)).collect(),
            attributes: self.values(graph.attributes()),
        }
    }

    fn operation<'a>(self, graph: &'a Graph, op: &'a Operation) -> OperationJson<'a> {
        let binding = |binding: &'a Binding| match binding {
            Binding::Value(value) => BindingJson::Name(graph.name(*value)),
            Binding::Immediate(value) => BindingJson::Value(self.value(value)),
            Binding::Absent => BindingJson::Absent(true),
        };
        OperationJson {
            op_type: op.op_type(),
            inputs: op
                .arguments()
                .iter()
                .map(|a| {
                    (
                        a.parameter.as_str(),
                        a.bindings.iter().map(binding).collect(),
                    )
                })
                .collect(),
            outputs: op.results().iter().map(|n| self.named(n)).collect(),
            attributes: self.values(op.attributes()),
            blocks: op.blocks().iter().map(|b| self.block(b)).collect(),
        }
    }

    fn named(self, named: &NamedType) -> NamedJson<'_> {
        NamedJson {
            name: &named.name,
            ty: self.ty(named.ty.as_ref()),
        }
    }

    fn ty(self, ty: Option<&ValueType>) -> TypeJson {
        let tensor = ty.and_then(|ty| ty.as_tensor().or_else(|| ty.as_state()));
        TypeJson {
            text: ty.map(|ty| type_text(ty, self.dialect)),
            dtype: tensor.map(|tensor| tensor.dtype.word()),
            shape: tensor.and_then(shape),
        }
    }

    fn values<'a>(
        self,
        values: impl IntoIterator<Item = (&'a String, &'a Value)>,
    ) -> BTreeMap<&'a str, ValueJson<'a>> {
        values
            .into_iter()
            .map(|(name, value)| (name.as_str(), self.value(value)))
            .collect()
    }

    fn value(self, value: &Value) -> ValueJson<'_> {
        ValueJson {
            ty: self.ty(value.ty.as_ref()),
            doc: &value.doc,
            content: self.content(value),
        }
    }

    fn content(self, value: &Value) -> ContentJson<'_> {
        let immediate = match &value.content {
            Content::Immediate(immediate) => immediate,
            Content::Blob(blob) => {
                return ContentJson::Blob {
                    blob: BlobJson {
                        file: &blob.file,
                        offset: blob.offset,
                    },
                };
            }
            Content::New(new) => {
                return ContentJson::New {
                    new_blob: NewJson {
                        dtype: new.dtype.word(),
                        elements: new.elements,
                        bytes: new.bytes.len(),
                    },
                };
            }
            Content::Absent => return ContentJson::Absent {},
        };
        match immediate {
            Immediate::Tensor(data) => match (Elements::of(data, value.tensor_type()), data) {
                (Some(elements), _) => ContentJson::Tensor {
                    count: elements.len(),
                    elements: (0..elements.len().min(SHOWN))
                        .map(|index| ElementJson(elements.get(index)))
                        .collect(),
                },
                (None, TensorData::Bytes(bytes)) => ContentJson::Raw {
                    raw_bytes: bytes.len(),
                },
                (None, _) => ContentJson::Absent {},
            },
            Immediate::Tuple(values) | Immediate::List(values) => ContentJson::Items {
                items: values.iter().map(|value| self.value(value)).collect(),
            },
            Immediate::Dictionary(pairs) => ContentJson::Entries {
                entries: pairs
                    .iter()
                    .map(|(key, value)| {
                        (
                            key.as_ref().map(|key| self.value(key)),
                            value.as_ref().map(|value| self.value(value)),
                        )
                    })
                    .collect(),
            },
            Immediate::Absent => ContentJson::Absent {},
        }
    }
}

/// The dimensions, null for unknown ones; none if the rank is unknown.
fn shape(ty: &TensorType) -> Option<Vec<Option<u64>>> {
    let variadic = ty.dims.contains(&Dim::Unknown { variadic: true });
    (ty.rank >= 0 && !variadic).then(|| ty.dims.iter().map(|dim| dim.size()).collect())
}
