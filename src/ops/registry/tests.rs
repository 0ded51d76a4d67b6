//! The registry against counts and signatures of coremltools 9.0.

use super::*;

fn variant(op_type: &str, opset: Opset) -> &'static Variant {
    signature(op_type, opset).unwrap_or_else(|error| panic!("{error}"))
}

fn parameter(op_type: &str, opset: Opset, name: &str) -> &'static Parameter {
    variant(op_type, opset)
        .parameter(name)
        .unwrap_or_else(|| panic!("{op_type} has no parameter {name}"))
}

#[test]
fn the_table_holds_every_op_of_coremltools_and_the_state_write() {
    // `SSAOpRegistry` of coremltools 9.0: 168 core op types in 227 variants.
    let (from_coremltools, on_disk_only): (Vec<_>, Vec<_>) =
        all().iter().partition(|entry| entry.name != "write_state");
    assert_eq!(from_coremltools.len(), 168);
    let variants: usize = from_coremltools.iter().map(|e| e.variants.len()).sum();
    assert_eq!(variants, 227);
    assert_eq!(on_disk_only.len(), 1);
}

#[test]
fn op_types_are_sorted_and_variants_grow_newer() {
    assert!(all().is_sorted_by(|a, b| a.name < b.name));
    for entry in all() {
        assert!(!entry.variants.is_empty(), "{}", entry.name);
        assert!(
            entry.variants.is_sorted_by(|a, b| a.since < b.since),
            "{}",
            entry.name
        );
    }
}

#[test]
fn every_op_is_found_by_its_name_and_no_other() {
    for entry in all() {
        assert_eq!(op(entry.name).map(|found| found.name), Some(entry.name));
    }
    assert!(op("custom_layer").is_none());
    assert!(op("").is_none());
}

#[test]
fn a_default_stands_only_where_the_argument_may_be_missing() {
    for entry in all() {
        for variant in entry.variants {
            for parameter in variant.parameters {
                assert!(
                    parameter.optional || parameter.default.is_none(),
                    "{}.{}",
                    entry.name,
                    parameter.name
                );
                assert!(
                    parameter.kind != Kind::Tensor
                        || !parameter.dtypes.is_empty()
                        || entry.name == "write_state",
                    "{}.{}",
                    entry.name,
                    parameter.name
                );
            }
        }
    }
}

#[test]
fn rsqrt_takes_an_epsilon_of_another_type_since_core_ml_7() {
    // `rsqrt` of iOS 13: T; of iOS 17: epsilon has its own domain U.
    let old = parameter("rsqrt", Opset::CoreML6, "epsilon");
    let new = parameter("rsqrt", Opset::CoreML7, "epsilon");
    assert_eq!(old.type_domain, Some("T"));
    assert_eq!(new.type_domain, Some("U"));
    assert_eq!(new.default, Some(DefaultValue::FloatLikeX(1e-12)));
    let mates = |opset| -> Vec<_> {
        domain_mates("rsqrt", opset, "epsilon")
            .into_iter()
            .flatten()
            .collect()
    };
    assert_eq!(mates(Opset::CoreML6), ["x"]);
    assert!(mates(Opset::CoreML9).is_empty());
}

#[test]
fn layout_ops_take_sixteen_bit_integers_since_core_ml_7() {
    for op_type in ["transpose", "reshape", "slice_by_index", "squeeze"] {
        assert_eq!(
            accepts(op_type, Opset::CoreML6, "x", DType::Int16),
            Some(false)
        );
        assert_eq!(
            accepts(op_type, Opset::CoreML7, "x", DType::Int16),
            Some(true)
        );
    }
    // `split` and `tile` never got them.
    assert_eq!(
        accepts("split", Opset::CoreML9, "x", DType::Int16),
        Some(false)
    );
    assert_eq!(accepts("split", Opset::CoreML9, "y", DType::Int16), None);
    assert_eq!(accepts("slit", Opset::CoreML9, "x", DType::Int16), None);
    assert_eq!(
        accepts("concat", Opset::CoreML9, "values", DType::Int16),
        None
    );
}

#[test]
fn an_op_newer_than_the_opset_is_refused_with_the_reason() {
    let error = signature("scaled_dot_product_attention", Opset::CoreML7).unwrap_err();
    assert_eq!(
        error.to_string(),
        "op type `scaled_dot_product_attention` exists since CoreML8, not in CoreML7"
    );
    assert!(signature("scaled_dot_product_attention", Opset::CoreML9).is_ok());
    assert!(signature("write_state", Opset::CoreML7).is_err());
    assert_eq!(
        signature("einsums", Opset::CoreML9)
            .unwrap_err()
            .to_string(),
        "op type `einsums` is unknown"
    );
}

#[test]
fn a_variant_applies_until_the_next_one() {
    // `topk`: iOS 13, iOS 16 adds `sort` and `return_indices`, iOS 17 `output_indices_dtype`.
    assert!(!variant("topk", Opset::CoreML5).takes_input("sort"));
    assert!(variant("topk", Opset::CoreML6).takes_input("sort"));
    assert!(!variant("topk", Opset::CoreML6).takes_input("output_indices_dtype"));
    assert!(variant("topk", Opset::CoreML9).takes_input("output_indices_dtype"));
    // `constexpr_lut_to_dense` of iOS 18 lost `shape` and stands in inputs.
    let old = variant("constexpr_lut_to_dense", Opset::CoreML7);
    let new = variant("constexpr_lut_to_dense", Opset::CoreML8);
    assert!(old.takes_attribute("shape") && !old.takes_input("shape"));
    assert!(!new.takes_attribute("shape") && !new.takes_input("shape"));
    assert!(new.takes_input("vector_axis") && !new.takes_attribute("vector_axis"));
}

#[test]
fn every_op_takes_the_attribute_name_and_const_its_value() {
    assert!(variant("relu", Opset::CoreML5).takes_attribute("name"));
    assert!(!variant("relu", Opset::CoreML5).takes_attribute("val"));
    assert!(variant("const", Opset::CoreML5).takes_attribute("val"));
    assert!(!variant("const", Opset::CoreML5).takes_input("val"));
}

#[test]
fn defaults_read_as_coremltools_defines_them() {
    let default = |op_type, name| parameter(op_type, Opset::CoreML9, name).default;
    assert_eq!(
        default("conv", "strides"),
        Some(DefaultValue::OnesPerSpatialDim)
    );
    assert_eq!(
        default("conv", "pad"),
        Some(DefaultValue::ZerosPerSpatialSide)
    );
    assert_eq!(default("conv", "bias"), Some(DefaultValue::Absent));
    assert_eq!(default("layer_norm", "axes"), Some(DefaultValue::AllAxes));
    assert_eq!(
        default("layer_norm", "epsilon"),
        Some(DefaultValue::Float(1e-5))
    );
    assert_eq!(
        default("linear", "bias"),
        Some(DefaultValue::ZeroPerOutputChannel)
    );
    assert_eq!(
        default("crop_resize", "box_indices"),
        Some(DefaultValue::IndexPerBox)
    );
    assert_eq!(default("softmax", "axis"), Some(DefaultValue::Int(-1)));
    assert_eq!(
        default("reduce_sum", "keep_dims"),
        Some(DefaultValue::Bool(false))
    );
    assert_eq!(
        default("topk", "output_indices_dtype"),
        Some(DefaultValue::Str("int32"))
    );
    assert_eq!(default("softmax", "x"), None);
    // Rounds to the smallest denormal in fp32 and to 0 in fp16.
    assert_eq!(
        default("log", "epsilon"),
        Some(DefaultValue::FloatLikeX(1e-45))
    );
}

#[test]
fn result_numbers_follow_the_op() {
    assert_eq!(variant("lstm", Opset::CoreML5).results, Results::Exactly(3));
    assert!(!variant("topk", Opset::CoreML5).results.allows(1));
    assert!(variant("topk", Opset::CoreML6).results.allows(1));
    assert!(variant("split", Opset::CoreML6).results.allows(7));
    assert!(variant("write_state", Opset::CoreML8).results.allows(0));
    assert!(
        variant("non_maximum_suppression", Opset::CoreML7)
            .results
            .allows(3)
    );
}

#[test]
fn only_pure_reading_and_random_ops_may_be_erased() {
    assert_eq!(effect("add"), Effect::Pure);
    assert_eq!(effect("const"), Effect::Pure);
    assert_eq!(effect("read_state"), Effect::ReadsState);
    assert_eq!(effect("write_state"), Effect::WritesState);
    assert_eq!(effect("while_loop"), Effect::Nested);
    assert_eq!(effect("custom_layer"), Effect::Opaque);
    let random: Vec<_> = all()
        .iter()
        .filter(|entry| effect(entry.name) == Effect::Random)
        .map(|entry| entry.name)
        .collect();
    assert_eq!(
        random,
        [
            "random_bernoulli",
            "random_categorical",
            "random_normal",
            "random_uniform"
        ]
    );
    assert!(!effect("write_state").is_erasable() && !effect("custom_layer").is_erasable());
    assert!(!effect("while_loop").is_erasable() && effect("read_state").is_erasable());
}
