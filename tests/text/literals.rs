//! Tensors as text: elements, the field they stand in, brackets, weight files, data that passes made.

use milwright::ir::{BlobRef, Content, DType, NewBlob, TensorData, Value, ValueType};
use milwright::text::{Dialect, PrintOptions, program_text};

use crate::drafts::{body, const_op, data, program_of, scalar, tensor};

/// The statement of a const with this value, from `val = ` on, without the end of the line.
pub(crate) fn literal(value: &Value, dialect: Dialect) -> String {
    let mut draft = const_op("c", "c", &Value::bool(true));
    draft.attributes.insert("val".to_owned(), value.clone());
    let program = program_of("CoreML8", Vec::new(), body(&[], vec![draft], &[]));
    let options = PrintOptions {
        dialect: Some(dialect),
        ..PrintOptions::default()
    };
    let text = program_text(&program, &options).expect("a program");
    let (_, rest) = text.split_once("val = ").expect("a const");
    let (value, _) = rest.split_once("];\n").expect("the statement's end");
    value.to_owned()
}

pub(crate) fn literal13(value: &Value) -> String {
    literal(value, Dialect::Program13)
}

pub(crate) fn literal10(value: &Value) -> String {
    literal(value, Dialect::Program10)
}

pub(crate) fn fp16s(values: &[u16]) -> TensorData {
    TensorData::Bytes(values.iter().flat_map(|bits| bits.to_le_bytes()).collect())
}

/// The text between the brackets of real compiled models, for the same bits.
#[test]
fn literals_are_those_of_compiled_models() {
    // unified_palette_2bit.mlmodelc/model.mil: the first lut, a bool mask, pads, axes, a string.
    let lut = data(
        tensor(DType::Float16, &[4]),
        fp16s(&[0xb920, 0xaab6, 0x34d1, 0x39fd]),
    );
    assert_eq!(
        literal10(&lut),
        "tensor<fp16, [4]>([-0x1.48p-1, -0x1.ad8p-5, 0x1.344p-2, 0x1.7f4p-1])"
    );
    let mask = data(
        tensor(DType::Bool, &[3]),
        TensorData::Bools(vec![true, false, true]),
    );
    assert_eq!(literal10(&mask), "tensor<bool, [3]>([true, false, true])");
    assert_eq!(
        literal10(&Value::int32s(&[0, 0, 0, 64])),
        "tensor<int32, [4]>([0, 0, 0, 64])"
    );
    assert_eq!(literal10(&Value::int32(0)), "tensor<int32, []>(0)");
    assert_eq!(
        literal10(&Value::string("reflect")),
        "tensor<string, []>(\"reflect\")"
    );
    let weight = Value {
        doc: String::new(),
        ty: Some(tensor(DType::Float16, &[128])),
        content: Content::Blob(BlobRef {
            file: "@model_path/weights/weight.bin".to_owned(),
            offset: 29120,
        }),
    };
    assert_eq!(
        literal10(&weight),
        "tensor<fp16, [128]>(BLOBFILE(path = tensor<string, []>(\"@model_path/weights/weight.bin\"), \
         offset = tensor<uint64, []>(29120)))"
    );
    // streaming_encoder.mlmodelc/model.mil: nested brackets, negative infinity.
    let nested = data(
        tensor(DType::Int32, &[1, 3]),
        TensorData::Ints(vec![0, 1, 2]),
    );
    assert_eq!(literal10(&nested), "tensor<int32, [1, 3]>([[0, 1, 2]])");
    let infinite = data(scalar(DType::Float16), fp16s(&[0xfc00]));
    assert_eq!(literal10(&infinite), "tensor<fp16, []>(-inf)");
    // The texts for iOS 18 that Apple's compiler accepts have bare scalar types.
    assert_eq!(
        literal13(&weight).split_once('(').map(|p| p.1),
        Some(
            "BLOBFILE(path = string(\"@model_path/weights/weight.bin\"), offset = uint64(29120)))"
        )
    );
    let eighth = data(scalar(DType::Float16), fp16s(&[0x3000]));
    assert_eq!(literal13(&eighth), "fp16(0x1p-3)");
    assert_eq!(literal13(&Value::bool(true)), "bool(true)");
}

#[test]
fn the_field_of_the_schema_is_marked_where_it_is_not_the_usual_one() {
    let int8 = tensor(DType::Int8, &[2]);
    let rows = [
        (
            data(int8.clone(), TensorData::Bytes(vec![0xff, 2])),
            "tensor<int8, [2]>([-1, 2])",
        ),
        (
            data(int8, TensorData::Ints(vec![-1, 2])),
            "tensor<int8, [2]>(@ints [-1, 2])",
        ),
        (
            data(
                tensor(DType::Int32, &[1]),
                TensorData::Bytes(vec![5, 0, 0, 0]),
            ),
            "tensor<int32, [1]>(@bytes [5])",
        ),
        (
            data(
                tensor(DType::Int32, &[1]),
                TensorData::Bytes(vec![5, 0, 10]),
            ),
            "tensor<int32, [1]>(@raw \"05000a\")",
        ),
        (
            data(scalar(DType::UInt64), TensorData::LongInts(vec![-1])),
            "uint64(18446744073709551615)",
        ),
        (
            data(scalar(DType::Int64), TensorData::LongInts(vec![-1])),
            "int64(-1)",
        ),
        (
            data(scalar(DType::Float64), TensorData::Doubles(vec![0.5])),
            "fp64(0x1p-1)",
        ),
        (
            data(scalar(DType::Float32), TensorData::Doubles(vec![0.5])),
            "fp32(@doubles 0x1p-1)",
        ),
        (
            data(
                scalar(DType::Float16),
                TensorData::Floats(vec![f32::from_bits(0x7f80_0001)]),
            ),
            "fp16(@floats nan(0x1))",
        ),
        (
            data(scalar(DType::Bool), TensorData::Bytes(vec![1])),
            "bool(@bytes 1)",
        ),
        (
            data(scalar(DType::Other(99)), TensorData::Bytes(vec![1])),
            "dtype99(@raw \"01\")",
        ),
        (
            data(
                tensor(DType::Int4, &[3]),
                TensorData::Bytes(vec![0x78, 0x0f]),
            ),
            "tensor<int4, [3]>([-8, 7, -1])",
        ),
        (
            // Bits set in the padding.
            data(
                tensor(DType::Int4, &[3]),
                TensorData::Bytes(vec![0x78, 0x1f]),
            ),
            "tensor<int4, [3]>(@raw \"781f\")",
        ),
    ];
    for (value, expected) in rows {
        assert_eq!(literal13(&value), expected);
    }
}

#[test]
fn the_number_of_elements_decides_the_brackets() {
    let ints =
        |ty: ValueType, values: &[i32]| literal13(&data(ty, TensorData::Ints(values.to_vec())));
    let matrix = || tensor(DType::Int32, &[2, 2]);
    assert_eq!(
        ints(matrix(), &[1, 2, 3, 4]),
        "tensor<int32, [2, 2]>([[1, 2], [3, 4]])"
    );
    assert_eq!(ints(matrix(), &[1]), "tensor<int32, [2, 2]>([1])");
    assert_eq!(ints(matrix(), &[]), "tensor<int32, [2, 2]>([])");
    assert_eq!(
        ints(tensor(DType::Int32, &[2, 0]), &[]),
        "tensor<int32, [2, 0]>([])"
    );
    assert_eq!(ints(scalar(DType::Int32), &[1, 2]), "int32([1, 2])");
    assert_eq!(ints(scalar(DType::Int32), &[]), "int32([])");
    let cube = tensor(DType::Int32, &[2, 1, 2]);
    assert_eq!(
        ints(cube, &[1, 2, 3, 4]),
        "tensor<int32, [2, 1, 2]>([[[1, 2]], [[3, 4]]])"
    );
}

#[test]
fn new_blobs_show_their_elements_or_a_digest() {
    let new = |elements: u64| Value {
        doc: String::new(),
        ty: Some(tensor(DType::UInt8, &[elements / 2, 2])),
        content: Content::New(NewBlob {
            dtype: DType::UInt8,
            elements,
            bytes: vec![7; elements as usize].into(),
        }),
    };
    assert_eq!(
        literal13(&new(4)),
        "tensor<uint8, [2, 2]>(@new(uint8, 4) [[7, 7], [7, 7]])"
    );
    let long = literal13(&new(100));
    assert!(
        long.starts_with("tensor<uint8, [50, 2]>(@new(uint8, 100, 0x"),
        "{long}"
    );
    let program = program_of(
        "CoreML8",
        Vec::new(),
        body(&[], vec![const_op("c", "c", &new(100))], &[]),
    );
    let options = PrintOptions {
        inline_new: true,
        ..PrintOptions::default()
    };
    let text = program_text(&program, &options).expect("a program");
    assert_eq!(text.matches('7').count(), 100);
}
