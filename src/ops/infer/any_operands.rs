//! Inference on operands as a broken file may have them: it may refuse, it must not panic.

use std::collections::BTreeMap;

use super::*;
use crate::ir::Attributes;
use crate::ir::value::{TensorData, Value};
use crate::ops::Opset;
use crate::ops::registry::Results;
use crate::ops::view::Operand;

/// A small generator of numbers (Knuth's MMIX multiplier), so that a failure repeats.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// An operand that is mostly sensible: a type the parameter takes, few dimensions, odd sizes.
fn any_operand(numbers: &mut Numbers, dtypes: &[DType]) -> (ValueType, Option<Value>) {
    const SIZES: [u64; 8] = [0, 1, 2, 3, 4, 1 << 31, i64::MAX as u64, u64::MAX];
    const ELEMENTS: [i32; 9] = [0, 1, -1, 2, 3, -2, 7, i32::MAX, i32::MIN];
    let dtype = if dtypes.is_empty() {
        DType::Float16
    } else {
        numbers.pick(dtypes)
    };
    let rank = numbers.below(6);
    let dims = (0..rank)
        .map(|_| match numbers.below(5) {
            0 => Dim::UNKNOWN,
            1 => Dim::Known(numbers.pick(&SIZES)),
            _ => Dim::Known(1 + numbers.below(4) as u64),
        })
        .collect();
    let ty = TensorType::new(dtype, dims);
    let count = match ty.elements() {
        // A constant of another shape than the operand's declared type, as a broken file has it.
        _ if numbers.below(20) == 0 => numbers.below(4),
        Some(count) if count < 100 => count as usize,
        _ => return (ValueType::Tensor(ty), None),
    };
    let words = [
        "same",
        "custom",
        "int32",
        "fp16",
        "nchw,nwhu->nchu",
        "a,b->ab",
        "bidirectional",
    ];
    let data = match dtype {
        _ if numbers.below(3) == 0 => return (ValueType::Tensor(ty), None),
        DType::String => TensorData::Strings(vec![numbers.pick(&words).to_owned(); count]),
        DType::Bool => TensorData::Bools((0..count).map(|_| numbers.below(2) == 1).collect()),
        DType::Float32 => {
            TensorData::Floats((0..count).map(|_| numbers.pick(&ELEMENTS) as f32).collect())
        }
        DType::Float16 => {
            TensorData::Bytes((0..2 * count).map(|_| numbers.below(256) as u8).collect())
        }
        _ => TensorData::Ints((0..count).map(|_| numbers.pick(&ELEMENTS)).collect()),
    };
    let declared = if ty.elements() == Some(count as u64) {
        ty.clone()
    } else {
        TensorType::fixed(dtype, &[count as u64])
    };
    (ValueType::Tensor(ty), Some(Value::tensor(declared, data)))
}

#[test]
fn no_operands_whatsoever_make_inference_panic() {
    let mut numbers = Numbers(1);
    let attributes = Attributes::new();
    let mut typed = 0;
    for entry in registry::all() {
        for round in 0..2000 {
            let opset = Opset::ALL[2 + round % 5];
            let Some(variant) = entry.variant(opset) else {
                continue;
            };
            let mut operands = Vec::new();
            for parameter in variant.parameters {
                if numbers.below(8) == 0 {
                    continue;
                }
                let dtypes: &[DType] = match numbers.below(30) {
                    0 => &[DType::Int4, DType::Other(99)],
                    _ => parameter.dtypes,
                };
                let count = match parameter.kind {
                    Kind::Tuple => numbers.below(4),
                    _ => 1,
                };
                for _ in 0..count {
                    let (ty, value) = any_operand(&mut numbers, dtypes);
                    let ty = match parameter.kind {
                        Kind::State => ValueType::State(Some(Box::new(ty))),
                        Kind::List => ValueType::List {
                            item: Some(Box::new(ty)),
                            length: None,
                        },
                        _ => ty,
                    };
                    operands.push((parameter.name, ty, value));
                }
            }
            let mut arguments: BTreeMap<&str, Vec<Operand>> = BTreeMap::new();
            for (name, ty, value) in &operands {
                arguments.entry(name).or_default().push(Operand {
                    ty,
                    constant: value.as_ref(),
                });
            }
            let view = OpView {
                op_type: entry.name,
                opset,
                arguments,
                attributes: &attributes,
            };
            if let Ok(Inference::Types(types)) = infer(&view) {
                typed += 1;
                if variant.results != Results::Any {
                    assert!(variant.results.allows(types.len()), "{}", entry.name);
                }
            }
        }
    }
    assert!(typed > 10_000, "{typed}");
}
