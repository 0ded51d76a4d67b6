//! Tests of the recogniser of attention, spelling by spelling.

use super::*;
use crate::analysis::sample::Sample;

const OPERANDS: &str = "tensor<fp16, [1, 2, 5, 4]> q, tensor<fp16, [1, 2, 6, 4]> k, tensor<fp16, [1, 2, 6, 3]> v, \
     tensor<fp16, [1, 1, 5, 6]> m, tensor<bool, [5, 6]> b";

const FIRST: &str =
    "tensor<fp16, [1, 2, 5, 6]> s = matmul(x = q, y = k, transpose_y = bool(true));";
const SOFTMAX: &str = "tensor<fp16, [1, 2, 5, 6]> w = softmax(x = a, axis = int32(-1));";
const LAST: &str = "tensor<fp16, [1, 2, 5, 3]> y = matmul(x = w, y = v);";

fn sample(operations: &str) -> Sample {
    Sample::new(OPERANDS, operations, "y")
}

fn found(sample: &Sample) -> Attention {
    at(&sample.block(), sample.node("y")).expect("an attention")
}

/// Queries, keys and values are the inputs.
fn reads_the_inputs(sample: &Sample, attention: &Attention) {
    for (factor, name) in [
        (&attention.query, "q"),
        (&attention.key, "k"),
        (&attention.value, "v"),
    ] {
        assert_eq!(factor.value, sample.value(name));
    }
    let lengths = attention.lengths(&sample.block()).unwrap();
    assert_eq!(lengths, [Dim::Known(5), Dim::Known(6), Dim::Known(4)]);
}

#[test]
fn the_fused_operation() {
    let sample = sample(
        "tensor<fp16, [1, 2, 5, 3]> y = scaled_dot_product_attention(query = q, key = k, value = v, attn_mask = m);",
    );
    let attention = found(&sample);
    reads_the_inputs(&sample, &attention);
    assert!(attention.chain.is_none());
    assert_eq!(attention.scale(), 0.5);
    assert_eq!(attention.scales[0].place, Place::Fused);
    assert_eq!(attention.masks[0].mask, Binding::Value(sample.value("m")));
    assert_eq!(attention.masks[0].how, Applied::Fused);
    assert_eq!(attention.escape(&sample.block()), None);
}

#[test]
fn scale_and_mask_on_the_scores_in_either_order() {
    for steps in [
        "tensor<fp16, [1, 2, 5, 6]> c = mul(x = s, y = fp16(0.25)); tensor<fp16, [1, 2, 5, 6]> a = add(x = c, y = m);",
        "tensor<fp16, [1, 2, 5, 6]> c = real_div(x = s, y = fp16(4)); tensor<fp16, [1, 2, 5, 6]> a = add(x = m, y = c);",
        "tensor<fp16, [1, 2, 5, 6]> c = add(x = s, y = m); tensor<fp16, [1, 2, 5, 6]> a = mul(x = fp16(0.25), y = c);",
    ] {
        let sample = sample(&format!("{FIRST} {steps} {SOFTMAX} {LAST}"));
        let attention = found(&sample);
        reads_the_inputs(&sample, &attention);
        assert_eq!(attention.scale(), 0.25, "{steps}");
        assert_eq!(attention.scales[0].place, Place::Scores);
        assert_eq!(attention.masks.len(), 1);
        assert_eq!(attention.masks[0].mask, Binding::Value(sample.value("m")));
        let chain = attention.chain.unwrap();
        assert_eq!(
            (chain.first, chain.softmax),
            (sample.node("s"), sample.node("w"))
        );
        let steps: Vec<NodeId> = chain.steps.iter().map(|step| step.node).collect();
        assert_eq!(steps, ["c", "a", "w"].map(|name| sample.node(name)));
        assert_eq!((chain.queries, chain.keys), (2, 1));
    }
}

#[test]
fn scales_on_queries_and_keys_through_layout() {
    let sample = Sample::new(
        "tensor<fp16, [1, 5, 2, 4]> q, tensor<fp16, [1, 2, 6, 4]> k, tensor<fp16, [1, 2, 6, 3]> v",
        &format!(
            "tensor<fp16, [1, 5, 2, 4]> qs = mul(x = q, y = fp16(0.5));
             tensor<fp16, [1, 2, 5, 4]> qt = transpose(x = qs, perm = tensor<int32, [4]>([0, 2, 1, 3]));
             tensor<fp16, [1, 2, 6, 4]> ks = real_div(x = k, y = fp16(4));
             tensor<fp16, [1, 2, 4, 6]> kt = transpose(x = ks, perm = tensor<int32, [4]>([0, 1, 3, 2]));
             tensor<fp16, [1, 2, 5, 6]> a = matmul(x = qt, y = kt);
             {SOFTMAX} {LAST}"
        ),
        "y",
    );
    let attention = found(&sample);
    let places: Vec<Place> = attention.scales.iter().map(|scale| scale.place).collect();
    assert_eq!(places, [Place::Query, Place::Key]);
    assert_eq!(attention.scale(), 0.125);
    assert_eq!((attention.key.free, attention.key.summed), (1, 2));
}

#[test]
fn masks_by_select_of_scores_and_of_weights() {
    let sample = sample(&format!(
        "{FIRST} tensor<fp16, [1, 2, 5, 6]> a = select(cond = b, a = s, b = fp16(-10000));
         tensor<fp16, [1, 2, 5, 6]> p = softmax(x = a, axis = int32(3));
         tensor<fp16, [1, 2, 5, 6]> w = select(cond = b, a = fp16(0), b = p); {LAST}"
    ));
    let attention = found(&sample);
    reads_the_inputs(&sample, &attention);
    let selected = |keeps_where_true, other| Applied::Selected {
        keeps_where_true,
        other: Some(other),
    };
    assert_eq!(attention.masks[0].how, selected(true, -10000.0));
    assert_eq!(attention.masks[1].how, selected(false, 0.0));
    assert_eq!(attention.chain.unwrap().softmax, sample.node("p"));
}

#[test]
fn a_softmax_in_fp32_and_a_soft_cap() {
    let sample = sample(&format!(
        "{FIRST} tensor<fp32, [1, 2, 5, 6]> c = cast(x = s, dtype = string(\"fp32\"));
         tensor<fp32, [1, 2, 5, 6]> d = mul(x = c, y = fp32(0.02));
         tensor<fp32, [1, 2, 5, 6]> e = tanh(x = d);
         tensor<fp32, [1, 2, 5, 6]> f = mul(x = e, y = fp32(50));
         tensor<fp32, [1, 2, 5, 6]> p = softmax(x = f, axis = int32(-1));
         tensor<fp16, [1, 2, 5, 6]> w = cast(x = p, dtype = string(\"fp16\")); {LAST}"
    ));
    let attention = found(&sample);
    reads_the_inputs(&sample, &attention);
    assert_eq!(attention.chain.unwrap().steps.len(), 6);
}

#[test]
fn einsum_with_the_keys_first() {
    let sample = Sample::new(
        "tensor<fp16, [1, 4, 1, 5]> q, tensor<fp16, [1, 6, 1, 4]> k, tensor<fp16, [1, 4, 1, 6]> v",
        "tensor<fp16, [1, 6, 1, 5]> s = einsum(values = (k, q), equation = string(\"bkhc,bchq->bkhq\"));
         tensor<fp16, [1, 6, 1, 5]> w = softmax(x = s, axis = int32(1));
         tensor<fp16, [1, 4, 1, 5]> y = einsum(values = (v, w), equation = string(\"bchk,bkhq->bchq\"));",
        "y",
    );
    let attention = found(&sample);
    reads_the_inputs(&sample, &attention);
    assert_eq!(attention.result_queries, 1);
    let chain = attention.chain.unwrap();
    assert_eq!((chain.queries, chain.keys), (1, 3));
}

#[test]
fn the_scores_are_found_among_two_operands_of_an_add() {
    let sample = sample(&format!(
        "tensor<fp16, [1, 1, 5, 6]> r = relu(x = m); {FIRST}
         tensor<fp16, [1, 2, 5, 6]> a = add(x = r, y = s); {SOFTMAX} {LAST}"
    ));
    let attention = found(&sample);
    reads_the_inputs(&sample, &attention);
    assert_eq!(attention.masks[0].mask, Binding::Value(sample.value("r")));
}

#[test]
fn heads_of_keys_that_broadcast() {
    let sample = Sample::new(
        "tensor<fp16, [1, 2, 3, 5, 4]> q, tensor<fp16, [1, 2, 1, 6, 4]> k, tensor<fp16, [1, 2, 1, 6, 4]> v",
        "tensor<fp16, [1, 2, 3, 5, 6]> s = matmul(x = q, y = k, transpose_y = bool(true));
         tensor<fp16, [1, 2, 3, 5, 6]> w = softmax(x = s, axis = int32(-1));
         tensor<fp16, [1, 2, 3, 5, 4]> y = matmul(x = w, y = v);",
        "y",
    );
    let attention = found(&sample);
    assert_eq!(attention.broadcast_groups(&sample.block()), Some(3));
}

#[test]
fn weights_that_are_read_elsewhere_escape() {
    let sample = sample(&format!(
        "{FIRST} tensor<fp16, [1, 2, 5, 6]> a = add(x = s, y = m); {SOFTMAX} {LAST}
         tensor<fp16, [1, 2, 5, 6]> z = relu(x = w);"
    ));
    let attention = found(&sample);
    assert_eq!(attention.escape(&sample.block()), Some(sample.node("w")));
}

#[test]
fn products_without_a_softmax_over_the_keys_are_no_attention() {
    for middle in [
        "tensor<fp16, [1, 2, 5, 6]> w = relu(x = s);",
        "tensor<fp16, [1, 2, 5, 6]> w = softmax(x = s, axis = int32(1));",
        "tensor<fp16, [1, 2, 5, 6]> w = softmax(x = s, axis = int32(2));",
    ] {
        let sample = sample(&format!("{FIRST} {middle} {LAST}"));
        assert!(at(&sample.block(), sample.node("y")).is_none(), "{middle}");
        assert!(at(&sample.block(), sample.node("s")).is_none());
    }
}
