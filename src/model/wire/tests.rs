//! Tests of the wire scan: bytes are spelled by hand here, and prost is the second opinion.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use prost::Message as _;

use super::{Fault, MAX_DEPTH, MODEL, UnknownField, WireError, scan};
use crate::model::proto::specification as spec;
use crate::model::proto::specification::mil_spec as mil;

const VALUE_TYPE: &str = "CoreML.Specification.MILSpec.ValueType";
const TENSOR_VALUE: &str = "CoreML.Specification.MILSpec.TensorValue";

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn key(number: u64, wire_type: u64) -> Vec<u8> {
    varint(number << 3 | wire_type)
}

/// A length-delimited field.
fn block(number: u64, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    [
        key(number, 2),
        varint(content.len() as u64),
        content.to_vec(),
    ]
    .concat()
}

fn number(number: u64, value: u64) -> Vec<u8> {
    [key(number, 0), varint(value)].concat()
}

/// A map entry.
fn entry(number: u64, name: &str, value: impl AsRef<[u8]>) -> Vec<u8> {
    block(number, [block(1, name), block(2, value)].concat())
}

/// A model that holds this operation, after another one, in the function `main`.
fn model_with_operation(operation: &[u8]) -> Vec<u8> {
    let body = [block(3, block(1, "const")), block(3, operation)].concat();
    let function = [block(2, "CoreML8"), entry(3, "CoreML8", body)].concat();
    let program = [number(1, 1), entry(2, "main", function)].concat();
    [number(1, 9), block(502, program)].concat()
}

fn fault(message: &str, bytes: impl AsRef<[u8]>) -> Fault {
    scan(message, bytes.as_ref()).expect_err("a fault").fault
}

fn unknown(bytes: impl AsRef<[u8]>) -> UnknownField {
    scan(MODEL, bytes.as_ref())
        .expect("well formed")
        .expect("an unknown field")
}

fn tensor_type(sizes: &[Option<u64>]) -> mil::ValueType {
    let dimensions = sizes.iter().map(|size| mil::Dimension {
        dimension: Some(match *size {
            Some(size) => {
                mil::dimension::Dimension::Constant(mil::dimension::ConstantDimension { size })
            }
            None => mil::dimension::Dimension::Unknown(mil::dimension::UnknownDimension::default()),
        }),
    });
    mil::ValueType {
        r#type: Some(mil::value_type::Type::TensorType(mil::TensorType {
            data_type: mil::DataType::Float16 as i32,
            rank: sizes.len() as i64,
            dimensions: dimensions.collect(),
            attributes: BTreeMap::new(),
        })),
    }
}

fn immediate(value: mil::tensor_value::Value) -> mil::Value {
    let tensor = mil::TensorValue { value: Some(value) };
    mil::Value {
        doc_string: String::new(),
        r#type: Some(tensor_type(&[])),
        value: Some(mil::value::Value::ImmediateValue(
            mil::value::ImmediateValue {
                value: Some(mil::value::immediate_value::Value::Tensor(tensor)),
            },
        )),
    }
}

/// A model with one of most things.
fn small_model() -> spec::Model {
    use mil::tensor_value::{
        RepeatedFloats, RepeatedInts, RepeatedLongInts, RepeatedStrings, Value,
    };
    let name = |text: &str| {
        let values = vec![text.to_owned()];
        immediate(Value::Strings(RepeatedStrings { values }))
    };
    let operation = mil::Operation {
        r#type: "const".to_owned(),
        attributes: BTreeMap::from([
            ("name".to_owned(), name("größe")),
            (
                "val".to_owned(),
                immediate(Value::Floats(RepeatedFloats {
                    values: vec![0.5, -1.0, f32::NAN],
                })),
            ),
        ]),
        outputs: vec![mil::NamedValueType {
            name: "c".to_owned(),
            r#type: Some(tensor_type(&[Some(3), None])),
        }],
        ..Default::default()
    };
    let literal = |value| mil::argument::Binding {
        binding: Some(mil::argument::binding::Binding::Value(value)),
    };
    let user = mil::Operation {
        r#type: "reshape".to_owned(),
        inputs: BTreeMap::from([(
            "shape".to_owned(),
            mil::Argument {
                arguments: vec![
                    literal(immediate(Value::Ints(RepeatedInts {
                        values: vec![-1, 300, 7],
                    }))),
                    literal(immediate(Value::LongInts(RepeatedLongInts {
                        values: vec![i64::MIN, i64::MAX, 0],
                    }))),
                ],
            },
        )]),
        blocks: vec![mil::Block::default()],
        ..Default::default()
    };
    let body = mil::Block {
        operations: vec![operation, user],
        outputs: vec!["c".to_owned()],
        ..Default::default()
    };
    let function = mil::Function {
        opset: "CoreML8".to_owned(),
        block_specializations: BTreeMap::from([("CoreML8".to_owned(), body)]),
        ..Default::default()
    };
    let input = spec::FeatureDescription {
        name: "x".to_owned(),
        short_description: String::new(),
        r#type: Some(spec::FeatureType {
            is_optional: true,
            r#type: Some(spec::feature_type::Type::MultiArrayType(
                spec::ArrayFeatureType {
                    shape: vec![1, 300],
                    data_type: spec::array_feature_type::ArrayDataType::Float16 as i32,
                    default_optional_value: Some(
                        spec::array_feature_type::DefaultOptionalValue::DoubleDefaultValue(0.5),
                    ),
                    ..Default::default()
                },
            )),
        }),
    };
    spec::Model {
        specification_version: 9,
        description: Some(spec::ModelDescription {
            input: vec![input],
            metadata: Some(spec::Metadata {
                user_defined: BTreeMap::from([("k".to_owned(), "v".to_owned())]),
                ..Default::default()
            }),
            ..Default::default()
        }),
        is_updatable: true,
        r#type: Some(spec::model::Type::MlProgram(mil::Program {
            version: 1,
            functions: BTreeMap::from([("main".to_owned(), function)]),
            ..Default::default()
        })),
    }
}

/// The `.mlmodel` files of the corpus, in the order of their paths; none if there is no corpus.
fn real_models() -> Vec<PathBuf> {
    fn collect(folder: &Path, models: &mut Vec<PathBuf>) {
        for item in std::fs::read_dir(folder).expect("a readable folder") {
            let path = item.expect("a readable folder").path();
            if path.is_dir() {
                collect(&path, models);
            } else if path.extension().is_some_and(|suffix| suffix == "mlmodel") {
                models.push(path);
            }
        }
    }
    let mut models = Vec::new();
    if let Some(corpus) = std::env::var_os("MILWRIGHT_CORPUS") {
        collect(Path::new(&corpus), &mut models);
        assert!(!models.is_empty(), "MILWRIGHT_CORPUS holds no model");
    }
    models.sort();
    models
}

#[test]
fn a_model_of_the_schema_holds_nothing_unknown() {
    assert_eq!(scan(MODEL, &small_model().encode_to_vec()), Ok(None));
    assert_eq!(scan(MODEL, &[]), Ok(None));
}

#[test]
fn a_cut_model_is_an_error_unless_cut_between_its_own_fields() {
    let model = small_model();
    let whole = model.encode_to_vec();
    // prost writes the fields of Model in this order: version, description, isUpdatable, program.
    let version = key(1, 0).len() + 1;
    let description = block(2, model.description.expect("set above").encode_to_vec()).len();
    let flag = key(10, 0).len() + 1;
    let seams = [
        0,
        version,
        version + description,
        version + description + flag,
    ];
    for cut in 0..whole.len() {
        match scan(MODEL, &whole[..cut]) {
            Ok(unknown) => {
                assert_eq!(unknown, None);
                assert!(seams.contains(&cut), "cut at {cut}");
            }
            Err(error) => {
                assert_eq!(error.fault, Fault::Truncated, "cut at {cut}");
                assert!(error.offset < cut);
                assert!(!seams.contains(&cut), "cut at {cut}");
            }
        }
    }
}

#[test]
fn a_cut_real_model_is_refused_where_prost_refuses_it() {
    // Prefixes of prefixes add up, so a small one.
    let small = |path: &PathBuf| {
        path.metadata()
            .is_ok_and(|data| (2_000..8_000).contains(&data.len()))
    };
    for path in real_models().into_iter().filter(small).step_by(500) {
        let whole = std::fs::read(&path).expect("a readable model");
        for cut in 0..whole.len() {
            let scanned = scan(MODEL, &whole[..cut]);
            let decoded = spec::Model::decode(&whole[..cut]);
            assert_eq!(
                scanned.is_ok(),
                decoded.is_ok(),
                "{} cut at {cut}",
                path.display()
            );
        }
    }
}

#[test]
fn the_stages_of_a_pipeline_are_left_to_a_scan_of_their_own() {
    let stage = [number(1, 9), number(4000, 1)].concat();
    let bytes = [number(1, 9), block(202, block(1, &stage))].concat();
    assert_eq!(scan(MODEL, &bytes), Ok(None));
    let Some(spec::model::Type::Pipeline(pipeline)) = spec::Model::decode(bytes.as_slice())
        .expect("the scan passed")
        .r#type
    else {
        panic!("a pipeline");
    };
    assert_eq!(pipeline.models, [stage]);
    assert_eq!(unknown(&pipeline.models[0]).number, 4000);
}

#[test]
fn an_unknown_field_of_the_model_is_named() {
    let bytes = [number(1, 9), number(4000, 1)].concat();
    let found = unknown(bytes);
    assert_eq!(
        (found.message, found.number, found.offset),
        (MODEL, 4000, 2)
    );
    assert_eq!(found.path, "");
    assert_eq!(
        found.to_string(),
        "unknown field 4000 in CoreML.Specification.Model at byte 2"
    );
}

#[test]
fn an_unknown_field_of_an_operation_is_named_with_its_place() {
    let operation = [block(1, "relu"), block(77, "new")].concat();
    let bytes = model_with_operation(&operation);
    let found = unknown(&bytes);
    assert_eq!(found.message, "CoreML.Specification.MILSpec.Operation");
    assert_eq!(found.number, 77);
    assert_eq!(bytes[found.offset..], *block(77, "new"));
    assert_eq!(
        found.path,
        r#"mlProgram.functions["main"].block_specializations["CoreML8"].operations[1]"#
    );
}

#[test]
fn an_unknown_field_of_a_value_names_the_parameter_it_is_in() {
    let value = [block(1, "doc"), number(4, 5)].concat();
    let argument = [block(1, block(1, "x")), block(1, block(2, value))].concat();
    let found = unknown(model_with_operation(&entry(2, "values", argument)));
    assert_eq!(found.message, "CoreML.Specification.MILSpec.Value");
    assert_eq!(found.number, 4);
    assert!(
        found
            .path
            .ends_with(r#".operations[1].inputs["values"].arguments[1].value"#),
        "{}",
        found.path
    );
}

#[test]
fn an_unknown_field_of_a_feature_type_is_named() {
    let input = [block(1, "x"), block(3, number(9, 1))].concat();
    let description = [block(1, block(1, "first")), block(1, input)].concat();
    let found = unknown([number(1, 9), block(2, description)].concat());
    assert_eq!(found.message, "CoreML.Specification.FeatureType");
    assert_eq!(found.number, 9);
    assert_eq!(found.path, "description.input[1].type");
}

#[test]
fn an_unknown_field_of_a_map_entry_is_named() {
    let entry = [block(1, "key"), block(2, "value"), number(3, 1)].concat();
    let found = unknown(block(2, block(100, block(100, entry))));
    assert_eq!(
        found.message,
        "CoreML.Specification.Metadata.UserDefinedEntry"
    );
    assert_eq!(found.path, r#"description.metadata.userDefined["key"]"#);
}

#[test]
fn the_first_of_several_unknown_fields_is_named() {
    let bytes = [number(3001, 9), number(3002, 1), number(1, 9)].concat();
    assert_eq!(unknown(bytes).number, 3001);
}

#[test]
fn an_error_after_an_unknown_field_wins() {
    let bytes = [number(3001, 9), key(1, 0)].concat();
    assert_eq!(fault(MODEL, bytes), Fault::Truncated);
}

#[test]
fn unknown_fields_of_every_wire_type_are_stepped_over() {
    let bytes = [
        number(3001, u64::MAX),
        key(3001, 1),
        vec![0xff; 8],
        block(3001, [0xff; 300]),
        key(3001, 5),
        vec![0xff; 4],
        number(1, 9),
    ]
    .concat();
    assert_eq!(unknown(&bytes).number, 3001);
    let model = spec::Model::decode(bytes.as_slice()).expect("prost skips them too");
    assert_eq!(model.specification_version, 9);
}

#[test]
fn a_known_field_with_a_foreign_wire_type_is_an_error() {
    let field = "specificationVersion";
    assert_eq!(
        fault(MODEL, block(1, "9")),
        Fault::WireType { field, found: 2 }
    );
    assert_eq!(
        fault(MODEL, [key(1, 5), vec![0; 4]].concat()),
        Fault::WireType { field, found: 5 }
    );
    let field = "mlProgram";
    assert_eq!(
        fault(MODEL, number(502, 1)),
        Fault::WireType { field, found: 0 }
    );
    let field = "neuralNetwork";
    assert_eq!(
        fault(MODEL, number(500, 1)),
        Fault::WireType { field, found: 0 }
    );
    let field = "functions";
    assert_eq!(
        fault(MODEL, block(502, number(2, 1))),
        Fault::WireType { field, found: 0 }
    );
}

#[test]
fn an_error_says_in_which_message_and_where() {
    let bytes = model_with_operation(&number(1, 5));
    let error = scan(MODEL, &bytes).expect_err("wrong wire type");
    assert_eq!(
        error,
        WireError {
            fault: Fault::WireType {
                field: "type",
                found: 0
            },
            message: "CoreML.Specification.MILSpec.Operation".to_owned(),
            offset: bytes.len() - 2,
            path: r#"mlProgram.functions["main"].block_specializations["CoreML8"].operations[1]"#
                .to_owned(),
        }
    );
    assert_eq!(error.to_string().lines().count(), 1);
}

#[test]
fn groups_and_wire_types_that_do_not_exist_are_errors() {
    assert_eq!(fault(MODEL, key(1, 3)), Fault::Group { field: 1 });
    assert_eq!(fault(MODEL, key(3001, 3)), Fault::Group { field: 3001 });
    assert_eq!(fault(MODEL, key(3001, 4)), Fault::Group { field: 3001 });
    assert_eq!(
        fault(MODEL, key(1, 6)),
        Fault::NoSuchWireType { field: 1, found: 6 }
    );
    assert_eq!(
        fault(MODEL, key(3001, 7)),
        Fault::NoSuchWireType {
            field: 3001,
            found: 7
        }
    );
}

#[test]
fn field_numbers_end_where_the_wire_format_says() {
    let last = (1 << 29) - 1;
    assert_eq!(unknown(number(last, 1)).number, last as u32);
    assert_eq!(
        fault(MODEL, number(last + 1, 1)),
        Fault::FieldNumber(last + 1)
    );
    assert_eq!(fault(MODEL, number(0, 1)), Fault::FieldNumber(0));
}

#[test]
fn a_varint_holds_64_bits_and_no_more() {
    let whole = [key(1, 0), vec![0xff; 9], vec![1]].concat();
    assert_eq!(scan(MODEL, &whole), Ok(None));
    let one_bit_more = [key(1, 0), vec![0xff; 9], vec![2]].concat();
    assert_eq!(fault(MODEL, one_bit_more), Fault::VarintTooLong);
    let one_byte_more = [key(1, 0), vec![0x80; 10], vec![0]].concat();
    assert_eq!(fault(MODEL, one_byte_more), Fault::VarintTooLong);
}

#[test]
fn a_field_longer_than_its_message_is_an_error() {
    // The description says 3 bytes; its field says 9 but the file goes on for long enough.
    let bytes = [
        key(2, 2),
        vec![3],
        key(11, 2),
        vec![9, b'a'],
        vec![0x08; 20],
    ]
    .concat();
    assert_eq!(fault(MODEL, bytes), Fault::PastParent);
    let longer_than_memory = [key(2, 2), varint(u64::MAX)].concat();
    assert_eq!(fault(MODEL, longer_than_memory), Fault::Truncated);
}

#[test]
fn text_that_is_not_utf8_is_an_error() {
    let field = "predictedFeatureName";
    assert_eq!(
        fault(MODEL, block(2, block(11, [0xc3]))),
        Fault::NotUtf8 { field }
    );
    assert_eq!(scan(MODEL, &block(2, block(11, "ä"))), Ok(None));
}

#[test]
fn repeated_numbers_may_be_packed_or_not() {
    let values = |content: Vec<u8>, kind: u64| block(kind, content);
    let (floats, ints, long_ints, doubles) = (1, 2, 5, 6);
    let legal = [
        values(block(1, [0xff; 12]), floats),
        values(
            [key(1, 5), vec![0xff; 4], key(1, 5), vec![0; 4]].concat(),
            floats,
        ),
        values(
            block(1, [varint(7), varint(u64::MAX), varint(300)].concat()),
            ints,
        ),
        values([number(1, 7), number(1, u64::MAX)].concat(), ints),
        values(block(1, varint(u64::MAX).repeat(9)), long_ints),
        values(block(1, [0; 16]), doubles),
        values([key(1, 1), vec![0xff; 8]].concat(), doubles),
        values(block(1, []), doubles),
    ];
    for bytes in legal {
        assert_eq!(scan(TENSOR_VALUE, &bytes), Ok(None), "{bytes:?}");
        mil::TensorValue::decode(bytes.as_slice()).expect("prost agrees");
    }
    let illegal = [
        values(block(1, [0xff; 13]), floats),
        values(block(1, [0; 12]), doubles),
        values(block(1, [1, 2, 3, 0x80]), ints),
        values(
            block(1, [vec![0; 8], vec![0xff; 9], vec![2]].concat()),
            ints,
        ),
        values(block(1, [vec![0x80; 10], vec![0; 8]].concat()), long_ints),
    ];
    for bytes in illegal {
        let field = "values";
        assert_eq!(
            fault(TENSOR_VALUE, &bytes),
            Fault::Packed { field },
            "{bytes:?}"
        );
        assert!(mil::TensorValue::decode(bytes.as_slice()).is_err());
    }
}

#[test]
fn only_one_model_kind_is_kept_as_bytes() {
    let one = block(610, "boxes");
    assert_eq!(scan(MODEL, &one), Ok(None));
    let field = "scaler";
    let two = [one, block(604, "scale")].concat();
    assert_eq!(fault(MODEL, two), Fault::SecondOpaque { field });
}

/// A list of lists of lists ...: `depth` messages below the outermost one.
fn nested_types(depth: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for level in 0..depth {
        // A list type's element type is field 1, a value type's list type is field 2.
        let number = if (depth - level).is_multiple_of(2) {
            1
        } else {
            2
        };
        bytes = block(number, bytes);
    }
    bytes
}

#[test]
fn nesting_is_limited_exactly_as_in_prost() {
    for depth in [MAX_DEPTH - 1, MAX_DEPTH] {
        let bytes = nested_types(depth);
        assert_eq!(scan(VALUE_TYPE, &bytes), Ok(None), "{depth}");
        mil::ValueType::decode(bytes.as_slice()).expect("prost agrees");
    }
    for depth in [MAX_DEPTH + 1, MAX_DEPTH + 2, 10_000] {
        let bytes = nested_types(depth);
        assert_eq!(fault(VALUE_TYPE, &bytes), Fault::TooDeep, "{depth}");
        assert!(mil::ValueType::decode(bytes.as_slice()).is_err());
    }
}

#[test]
fn a_path_through_deep_nesting_stays_short() {
    let error = scan(VALUE_TYPE, &nested_types(10_000)).expect_err("too deep");
    assert!(
        error.path.starts_with("listType.type.listType."),
        "{}",
        error.path
    );
    assert!(error.path.ends_with("..."), "{}", error.path);
    assert!(error.to_string().len() < 600);
}

#[test]
fn a_long_key_is_cut_and_quoted_in_the_path() {
    let name = format!("new\nline{}", "é".repeat(10_000));
    let found = unknown(block(502, entry(2, &name, number(99, 1))));
    assert!(
        found.path.starts_with(r#"mlProgram.functions["new\nline"#),
        "{}",
        found.path
    );
    assert!(found.path.len() < 200);
}

#[test]
fn a_type_that_the_schema_lacks_is_an_error() {
    assert_eq!(
        fault("CoreML.Specification.Nothing", []),
        Fault::NoSuchMessage
    );
}

/// Trees of fields with numbers that mostly exist, so that many of them fit the schema.
fn field_trees() -> impl Strategy<Value = Vec<u8>> {
    let numbers = prop::sample::select(vec![1_u64, 2, 3, 4, 5, 10, 20, 100, 502, 600]);
    let leaf = prop_oneof![
        (numbers.clone(), any::<u64>()).prop_map(|(field, value)| number(field, value)),
        (numbers.clone(), "[a-z]{0,3}").prop_map(|(field, text)| block(field, text)),
        (numbers.clone(), any::<[u8; 4]>()).prop_map(|(field, bytes)| [
            key(field, 5),
            bytes.to_vec()
        ]
        .concat()),
    ];
    leaf.prop_recursive(8, 64, 4, move |inner| {
        (numbers.clone(), prop::collection::vec(inner, 0..4))
            .prop_map(|(field, fields)| block(field, fields.concat()))
    })
}

type Decodes = fn(&[u8]) -> bool;

/// prost's verdict on messages of several types; random fields seldom get far from the outermost.
const DECODERS: [(&str, Decodes); 8] = [
    (MODEL, |bytes| spec::Model::decode(bytes).is_ok()),
    (VALUE_TYPE, |bytes| mil::ValueType::decode(bytes).is_ok()),
    (TENSOR_VALUE, |bytes| {
        mil::TensorValue::decode(bytes).is_ok()
    }),
    ("CoreML.Specification.MILSpec.Operation", |bytes| {
        mil::Operation::decode(bytes).is_ok()
    }),
    ("CoreML.Specification.MILSpec.Value", |bytes| {
        mil::Value::decode(bytes).is_ok()
    }),
    ("CoreML.Specification.MILSpec.Block", |bytes| {
        mil::Block::decode(bytes).is_ok()
    }),
    ("CoreML.Specification.MILSpec.Program", |bytes| {
        mil::Program::decode(bytes).is_ok()
    }),
    ("CoreML.Specification.FeatureType", |bytes| {
        spec::FeatureType::decode(bytes).is_ok()
    }),
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn random_bytes_that_pass_the_scan_decode(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if scan(MODEL, &bytes).is_ok() {
            prop_assert!(spec::Model::decode(bytes.as_slice()).is_ok());
        }
    }

    #[test]
    fn random_fields_that_pass_the_scan_decode(
        (name, decodes) in prop::sample::select(&DECODERS[..]),
        fields in field_trees(),
    ) {
        if scan(name, &fields).is_ok() {
            prop_assert!(decodes(&fields));
        }
    }

    #[test]
    fn a_damaged_model_that_passes_the_scan_decodes(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)
    ) {
        let mut bytes = small_model().encode_to_vec();
        for (place, byte) in damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        match scan(MODEL, &bytes) {
            // Nothing unknown: what prost writes back is complete, so it scans clean as well.
            Ok(None) => {
                let model = spec::Model::decode(bytes.as_slice());
                prop_assert!(model.is_ok());
                prop_assert_eq!(scan(MODEL, &model.unwrap().encode_to_vec()), Ok(None));
            }
            Ok(Some(_)) => prop_assert!(spec::Model::decode(bytes.as_slice()).is_ok()),
            Err(error) => prop_assert!(error.offset < bytes.len()),
        }
    }
}
