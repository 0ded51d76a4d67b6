//! Tuples, lists and dictionaries as text, and the types of all values.

use milwright::ir::{Content, DType, Dim, Immediate, TensorData, TensorType, Value, ValueType};
use milwright::text::{Dialect, type_text};

use crate::drafts::{attributes, data, immediate, scalar, tensor};
use crate::literals::{literal10, literal13};

/// The attribute that the compiler writes for flexible shapes, taken whole from
/// parakeet_eou_preprocessor.mlmodelc/model.mil.
#[test]
fn containers_are_those_of_compiled_models() {
    let text = || scalar(DType::String);
    let sizes = ValueType::from(TensorType::new(DType::Int32, vec![Dim::UNKNOWN]));
    let pair = tensor(DType::Int32, &[2]);
    let ranges = ValueType::List {
        item: Some(Box::new(pair.clone())),
        length: Some(Dim::UNKNOWN),
    };
    let dictionary = |value: &ValueType| ValueType::Dictionary {
        key: Some(Box::new(text())),
        value: Some(Box::new(value.clone())),
    };
    let entry = |ty: &ValueType, name: &str, value: Value| {
        immediate(
            Some(dictionary(ty)),
            Immediate::Dictionary(vec![(Some(Value::string(name)), Some(value))]),
        )
    };
    let ints = |ty: &ValueType, values: &[i32]| data(ty.clone(), TensorData::Ints(values.to_vec()));
    let named_tuple = |name: &str, ty: &ValueType, value: Value| {
        immediate(
            Some(ValueType::Tuple(vec![text(), dictionary(ty)])),
            Immediate::Tuple(vec![Value::string(name), value]),
        )
    };
    let bounds = immediate(
        Some(ranges.clone()),
        Immediate::List(vec![ints(&pair, &[1, 1]), ints(&pair, &[1, 32000])]),
    );
    let default = named_tuple(
        "DefaultShapes",
        &sizes,
        entry(&sizes, "audio_signal", ints(&sizes, &[1, 1])),
    );
    let range = named_tuple("RangeDims", &ranges, entry(&ranges, "audio_signal", bounds));
    let types = [&default, &range].map(|value| value.ty.clone().expect("typed above"));
    let whole = immediate(
        Some(ValueType::Tuple(types.to_vec())),
        Immediate::Tuple(vec![default, range]),
    );
    assert_eq!(
        literal10(&whole),
        "tuple<tuple<tensor<string, []>, dict<tensor<string, []>, tensor<int32, [?]>>>, \
         tuple<tensor<string, []>, dict<tensor<string, []>, list<tensor<int32, [2]>, ?>>>>\
         (((\"DefaultShapes\", {{\"audio_signal\", [1, 1]}}), \
         (\"RangeDims\", {{\"audio_signal\", [[1, 1], [1, 32000]]}})))"
    );
}

#[test]
fn an_item_whose_type_is_not_that_of_the_container_says_so() {
    let list = |item, values| {
        immediate(
            Some(ValueType::List {
                item,
                length: Some(Dim::Known(2)),
            }),
            Immediate::List(values),
        )
    };
    let ints = Some(Box::new(scalar(DType::Int32)));
    let mut untyped = Value::int32(2);
    untyped.ty = None;
    assert_eq!(
        literal13(&list(ints, vec![Value::bool(true), untyped.clone()])),
        "list<int32, 2>([bool(true), @untyped(@ints [2])])"
    );
    assert_eq!(
        literal13(&list(None, vec![Value::int32(1)])),
        "list<@untyped, 2>([int32(1)])"
    );
    let mut documented = Value::int32(1);
    documented.doc = "one \"1\"".to_owned();
    let items = vec![documented.clone(), Value::int32(2)];
    let ints = Some(Box::new(scalar(DType::Int32)));
    assert_eq!(
        literal13(&list(ints, items)),
        "list<int32, 2>([@doc \"one \\\"1\\\"\" 1, 2])"
    );
    assert_eq!(literal13(&documented), "@doc \"one \\\"1\\\"\" int32(1)");
    let misplaced = [
        (
            Immediate::List(vec![Value::int32(1)]),
            "int32(@list [int32(1)])",
        ),
        (Immediate::Tuple(Vec::new()), "int32(@tuple ())"),
        (
            Immediate::Dictionary(vec![(None, Some(untyped))]),
            "int32(@dict {{@missing, @untyped(@ints [2])}})",
        ),
        (Immediate::Absent, "int32(@no_immediate)"),
        (Immediate::Tensor(TensorData::Absent), "int32(@no_data)"),
    ];
    for (content, expected) in misplaced {
        assert_eq!(
            literal13(&immediate(Some(scalar(DType::Int32)), content)),
            expected
        );
    }
    let nothing = Value {
        doc: String::new(),
        ty: None,
        content: Content::Absent,
    };
    assert_eq!(literal13(&nothing), "@untyped(@no_value)");
}

#[test]
fn types_keep_everything_that_the_file_spells() {
    let dims = |dims: Vec<Dim>| TensorType::new(DType::Float16, dims);
    let variadic = Dim::Unknown { variadic: true };
    let mut ranked = dims(vec![Dim::Known(1)]);
    ranked.rank = 3;
    let mut unranked = dims(Vec::new());
    unranked.rank = -1;
    let mut any = dims(vec![variadic]);
    any.rank = -1;
    let mut attributed = TensorType::scalar(DType::Float16);
    attributed.attributes = attributes(&[("k", Value::bool(true))]);
    let item = || Some(Box::new(tensor(DType::Float16, &[1, 8])));
    let rows: Vec<(ValueType, &str)> = vec![
        (scalar(DType::Float16), "fp16"),
        (
            dims(vec![Dim::Known(1), Dim::UNKNOWN]).into(),
            "tensor<fp16, [1, ?]>",
        ),
        (any.into(), "tensor<fp16, [...]>"),
        (dims(vec![variadic]).into(), "tensor<fp16, [...] @rank(1)>"),
        (ranked.into(), "tensor<fp16, [1] @rank(3)>"),
        (unranked.into(), "tensor<fp16, [] @rank(-1)>"),
        (dims(vec![Dim::Unspecified]).into(), "tensor<fp16, [@dim]>"),
        (
            attributed.into(),
            "tensor<fp16, [] @attributes[k = bool(true)]>",
        ),
        (ValueType::State(item()), "state<tensor<fp16, [1, 8]>>"),
        (ValueType::State(None), "state<@untyped>"),
        (
            ValueType::List {
                item: item(),
                length: Some(Dim::Known(3)),
            },
            "list<tensor<fp16, [1, 8]>, 3>",
        ),
        (
            ValueType::List {
                item: item(),
                length: None,
            },
            "list<tensor<fp16, [1, 8]>>",
        ),
        (
            ValueType::Dictionary {
                key: None,
                value: item(),
            },
            "dict<@untyped, tensor<fp16, [1, 8]>>",
        ),
        (ValueType::Tuple(Vec::new()), "tuple<>"),
        (ValueType::Unspecified, "@type"),
    ];
    for (ty, expected) in rows {
        assert_eq!(type_text(&ty, Dialect::Program13), expected);
    }
    assert_eq!(
        type_text(&scalar(DType::Float16), Dialect::Program10),
        "tensor<fp16, []>"
    );
}
