use super::*;
use crate::analysis::sample::Sample;

const INPUTS: &str = "tensor<fp16, [1, 2, 1, 8]> q, tensor<fp16, [1, 2, 1, 8]> u, \
                      state<tensor<fp16, [1, 2, 4, 8]>> s";

fn only(sample: &Sample) -> StateChain {
    let mut found = states(sample.block().graph);
    assert_eq!(found.len(), 1);
    found.remove(0)
}

fn role(operations: &str, output: &str) -> Role {
    let sample = Sample::new(INPUTS, operations, output);
    Role::of(only(&sample).evidence, "")
}

#[test]
fn accesses_are_in_order_with_what_the_state_holds() {
    let sample = Sample::new(
        INPUTS,
        "tensor<fp16, [1, 2, 4, 8]> a = read_state(input = s);
         tensor<fp16, [1, 2, 4, 8]> b = slice_update(x = a, update = u,
             begin = tensor<int32, [4]>([0, 0, 0, 0]), end = tensor<int32, [4]>([1, 2, 1, 8]));
         write_state(input = s, data = b);
         tensor<fp16, [1, 2, 4, 8]> c = read_state(input = s);",
        "c",
    );
    let chain = only(&sample);
    assert_eq!(chain.name, "s");
    let kinds: Vec<Kind> = chain.accesses.iter().map(|access| access.kind).collect();
    let (a, b, c) = (sample.value("a"), sample.value("b"), sample.value("c"));
    assert_eq!(
        kinds,
        [
            Kind::Read {
                result: a,
                held: Held::Initial
            },
            Kind::Write {
                data: Some(b),
                updates: Some(sample.node("b"))
            },
            Kind::Read {
                result: c,
                held: Held::Value(b)
            },
        ]
    );
    assert!(chain.is_written());
    assert!(chain.other_access().is_none());
}

#[test]
fn an_update_of_what_the_state_held_earlier_is_no_update_of_the_state() {
    let sample = Sample::new(
        INPUTS,
        "tensor<fp16, [1, 2, 4, 8]> a = read_state(input = s);
         tensor<fp16, [1, 2, 4, 8]> r = relu(x = a);
         write_state(input = s, data = r);
         tensor<fp16, [1, 2, 4, 8]> b = slice_update(x = a, update = u,
             begin = tensor<int32, [4]>([0, 0, 0, 0]), end = tensor<int32, [4]>([1, 2, 1, 8]));
         write_state(input = s, data = b);",
        "r",
    );
    let chain = only(&sample);
    let updates: Vec<bool> = chain.accesses[1..]
        .iter()
        .map(|access| {
            matches!(
                access.kind,
                Kind::Write {
                    updates: Some(_),
                    ..
                }
            )
        })
        .collect();
    assert_eq!(updates, [false, false]);
}

#[test]
fn an_access_in_a_nested_block_is_another_access() {
    let sample = Sample::new(
        "bool p, tensor<fp16, [2]> x, state<tensor<fp16, [2]>> s",
        "tensor<fp16, [2]> a = read_state(input = s);
         tensor<fp16, [2]> y = cond(pred = p) () {
             write_state(input = s, data = x);
             tensor<fp16, [2]> b = relu(x = x);
         } -> (b), () {
             tensor<fp16, [2]> c = abs(x = a);
         } -> (c);
         tensor<fp16, [2]> z = read_state(input = s);",
        "y, z",
    );
    let chain = only(&sample);
    assert_eq!(chain.accesses[1].kind, Kind::Other(Access::Write));
    assert!(matches!(
        chain.accesses[2].kind,
        Kind::Read {
            held: Held::Unknown,
            ..
        }
    ));
    assert!(chain.other_access().is_some());
}

#[test]
fn keys_and_values_of_the_fused_attention() {
    let attention = |key: &str, value: &str| {
        format!(
            "tensor<fp16, [1, 2, 4, 8]> a = read_state(input = s);
             tensor<fp16, [1, 2, 1, 8]> o = scaled_dot_product_attention(query = q, key = {key},
                 value = {value});"
        )
    };
    assert_eq!(role(&attention("a", "u"), "o"), Role::Keys);
    assert_eq!(role(&attention("u", "a"), "o"), Role::Values);
    assert_eq!(role(&attention("a", "a"), "o"), Role::Other);
}

#[test]
fn keys_meet_the_queries_before_softmax_and_values_the_weights_behind_it() {
    let keys = "tensor<fp16, [1, 2, 4, 8]> a = read_state(input = s);
        tensor<fp16, [1, 2, 4, 8]> t = mul(x = a, y = fp16(0.5));
        tensor<fp16, [1, 2, 1, 4]> m = matmul(x = q, y = t, transpose_x = bool(false), transpose_y = bool(true));
        tensor<fp16, [1, 2, 1, 4]> n = mul(x = m, y = fp16(0.25));
        tensor<fp16, [1, 2, 1, 4]> o = softmax(x = n, axis = int32(-1));";
    assert_eq!(role(keys, "o"), Role::Keys);
    let values = "tensor<fp16, [1, 2, 4, 8]> a = read_state(input = s);
        tensor<fp16, [1, 2, 1, 4]> p = slice_by_index(x = q, begin = tensor<int32, [4]>([0, 0, 0, 0]),
            end = tensor<int32, [4]>([1, 2, 1, 4]));
        tensor<fp16, [1, 2, 1, 4]> w = softmax(x = p, axis = int32(-1));
        tensor<fp32, [1, 2, 1, 4]> w32 = cast(x = w, dtype = string(\"fp32\"));
        tensor<fp32, [1, 2, 4, 8]> a32 = cast(x = a, dtype = string(\"fp32\"));
        tensor<fp32, [1, 2, 1, 8]> o = matmul(x = w32, y = a32, transpose_x = bool(false),
            transpose_y = bool(false));";
    assert_eq!(role(values, "o"), Role::Values);
}

#[test]
fn what_is_written_tells_as_much_as_what_is_read() {
    let updated = "tensor<fp16, [1, 2, 4, 8]> a = read_state(input = s);
        tensor<fp16, [1, 2, 4, 8]> b = slice_update(x = a, update = u,
            begin = tensor<int32, [4]>([0, 0, 0, 0]), end = tensor<int32, [4]>([1, 2, 1, 8]));
        write_state(input = s, data = b);
        tensor<fp16, [2, 1, 4, 8]> t = transpose(x = b, perm = tensor<int32, [4]>([1, 0, 2, 3]));
        tensor<fp16, [2, 1, 1, 8]> r = transpose(x = q, perm = tensor<int32, [4]>([1, 0, 2, 3]));
        tensor<fp16, [2, 1, 1, 8]> o = scaled_dot_product_attention(query = r, key = t, value = t);";
    assert_eq!(role(updated, "o"), Role::Other);
    let keys = updated.replace("value = t", "value = r");
    assert_eq!(role(&keys, "o"), Role::Keys);
}

#[test]
fn a_name_decides_only_where_the_graph_does_not() {
    let none = Evidence::default();
    for (name, role) in [
        ("k_0", Role::Keys),
        ("model.layers.3.key_cache", Role::Keys),
        ("v_12", Role::Values),
        ("valueCache", Role::Values),
        ("kv_cache", Role::Other),
        ("conv_state", Role::Other),
        ("k_and_v", Role::Other),
    ] {
        assert_eq!(Role::of(none, name), role, "{name}");
    }
    let values = Evidence {
        values: true,
        ..none
    };
    assert_eq!(Role::of(values, "k_0"), Role::Values);
}
