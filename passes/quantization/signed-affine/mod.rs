//! signed-affine: int8 weights around a zero point of 0 become uint8 weights around 128.

use std::collections::BTreeMap;

use crate::ir::{
    Binding, Content, DType, Immediate, NewBlob, NodeId, Operation, TensorData, TensorType, Value,
    ValueId, ValueType,
};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Edit, EditError, Evidence, Exactness, Family, Matcher, Meta, Pass, Rule,
    Severity, Target,
};

/// The pass.
pub(super) struct SignedAffine;

static META: Meta = Meta {
    id: "signed-affine",
    family: Family::Quantization,
    summary: "int8 weights around a zero point of 0 become uint8 weights around 128",
    exactness: Exactness::Exact,
    since: Opset::CoreML6,
    targets: &[Target::CoreMl],
    evidence: Evidence::Measured,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const SIGNED_AFFINE: Rule = Rule {
    id: "signed-affine",
    summary: "int8 weights of constexpr_affine_dequantize around a zero point of 0",
    why: "With such weights MiDaS gave a constant on the GPU and infinity on the Neural Engine, and right \
          numbers on the CPU. Pull requests of coremltools write them as uint8, which the runtime is \
          reported to handle.",
    help: "`milwright optimize --passes signed-affine` writes the same weights as uint8 with a zero point \
           of 128.",
    evidence: META.evidence,
    sources: &[
        "https://github.com/apple/coremltools/issues/2114",
        "https://github.com/apple/coremltools/pull/2675",
        "https://github.com/apple/coremltools/pull/2677",
    ],
    severity: &[(Target::CoreMl, Severity::Warning)],
    catalog: &[],
};

/// What is added to the numbers and to the zero point, so that their difference stays: it takes -128
/// to 127, all that int8 has, to 0 to 255, all that uint8 has.
const SHIFT: u8 = 128;

const DATA: &str = "quantized_data";
const ZERO_POINT: &str = "zero_point";

impl Pass for SignedAffine {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[SIGNED_AFFINE]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(find))
    }
}

fn find(block: &Block<'_>, node: NodeId) -> Attempt {
    let Some(op) = block.op_of_type(node, "constexpr_affine_dequantize") else {
        return Attempt::NoMatch;
    };
    let Some(data) = parameter(block, op, DATA).filter(|data| dtype(data) == Some(DType::Int8))
    else {
        return Attempt::NoMatch;
    };
    let missed = |why: &str| Attempt::missed(node, why);
    let zero_point = parameter(block, op, ZERO_POINT);
    let zeros = zero_point.and_then(|zero_point| block.bytes(zero_point));
    let (Some(zero_point), Some(zeros)) = (zero_point, zeros) else {
        return missed("the zero point cannot be read");
    };
    if zeros.iter().any(|byte| *byte != 0) {
        return missed("the zero point is not 0, and no failure of such weights is known");
    }
    let found = || SIGNED_AFFINE.found(message(data)).parameter(DATA);
    let Some(zero_point) = shifted_zero_point(zero_point) else {
        return missed("the zero point is neither int8 nor fp32").with(found());
    };
    // Data in a weight file is mapped: nothing of it is read here.
    let stored = block.bytes(data).map(|bytes| bytes.len() as u64);
    let declared = data.tensor_type().and_then(TensorType::elements);
    if stored.is_none() || stored != declared {
        return missed("the weights cannot be read").with(found());
    }
    let parts = Parts::of(node, op);
    let data = data.clone();
    Attempt::matched(
        "int8 weights become uint8 weights around 128",
        move |edit| parts.make(edit, &data, zero_point),
    )
    .with(found())
}

/// A constant parameter, which older operations hold as an attribute.
fn parameter<'a>(block: &Block<'a>, op: &'a Operation, name: &str) -> Option<&'a Value> {
    block
        .constant_of(op, name)
        .or_else(|| op.attributes().get(name))
}

fn dtype(value: &Value) -> Option<DType> {
    Some(value.tensor_type()?.dtype)
}

fn message(data: &Value) -> String {
    match data.tensor_type().and_then(TensorType::shape) {
        Some(shape) => format!("int8 weights of {shape:?} around a zero point of 0"),
        None => "int8 weights around a zero point of 0".to_owned(),
    }
}

/// The zero point plus 128, of the type that goes with uint8 weights.
fn shifted_zero_point(zero_point: &Value) -> Option<Value> {
    let ty = zero_point.tensor_type()?;
    let count = usize::try_from(ty.elements()?).ok()?;
    match ty.dtype {
        DType::Int8 => Some(unsigned(zero_point, vec![SHIFT; count])),
        DType::Float32 => {
            let numbers = TensorData::Floats(vec![f32::from(SHIFT); count]);
            Some(Value::tensor(ty.clone(), numbers))
        }
        _ => None,
    }
}

/// Bytes as uint8 numbers, in the weight file if the old ones are there.
fn unsigned(old: &Value, bytes: Vec<u8>) -> Value {
    let ty = old.tensor_type().map(|ty| ty.with_dtype(DType::UInt8));
    let content = match old.content {
        Content::Blob(_) | Content::New(_) => Content::New(NewBlob {
            dtype: DType::UInt8,
            elements: bytes.len() as u64,
            bytes: bytes.into(),
        }),
        Content::Immediate(_) | Content::Absent => {
            Content::Immediate(Immediate::Tensor(TensorData::Bytes(bytes)))
        }
    };
    Value {
        ty: ty.map(ValueType::Tensor),
        content,
        ..old.clone()
    }
}

/// What the operation is made of.
struct Parts {
    result: ValueId,
    op_type: String,
    arguments: BTreeMap<String, Vec<Binding>>,
    attributes: BTreeMap<String, Value>,
}

impl Parts {
    fn of(node: NodeId, op: &Operation) -> Self {
        let arguments = op.arguments().iter();
        let attributes = op.attributes().iter();
        Self {
            result: ValueId::first(node),
            op_type: op.op_type().to_owned(),
            arguments: arguments
                .map(|argument| (argument.parameter.clone(), argument.bindings.clone()))
                .collect(),
            attributes: attributes
                .filter(|(name, _)| *name != "name")
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
        }
    }

    /// Makes the operation anew, with other weights around another zero point.
    fn make(
        mut self,
        edit: &mut Edit<'_>,
        data: &Value,
        zero_point: Value,
    ) -> Result<(), EditError> {
        let bytes = edit.bytes(data)?;
        let shifted = bytes.iter().map(|byte| byte.wrapping_add(SHIFT)).collect();
        let data = unsigned(data, shifted);
        for (name, value) in [(DATA, data), (ZERO_POINT, zero_point)] {
            match self.arguments.get_mut(name).map(Vec::as_mut_slice) {
                Some([Binding::Immediate(old)]) => *old = value,
                Some([binding]) => *binding = edit.constant(value),
                _ => {
                    self.attributes.insert(name.to_owned(), value);
                }
            }
        }
        let made = edit.op_with_attributes(&self.op_type, self.arguments, self.attributes)?;
        edit.replace(self.result, ValueId::first(made))
    }
}
