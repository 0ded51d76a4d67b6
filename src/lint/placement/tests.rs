//! Unit tests of the estimate.

use serde_json::json;

use super::{Device, Placement, Plan, estimate};
use crate::text::parse;

fn placed(body: &str, inputs: &str, plan: Option<&Plan>) -> Placement {
    let text =
        format!("program(1.3)\n{{\n func main<ios18>({inputs}) {{\n{body}\n }} -> (y);\n}}\n");
    let program = parse(&text, "test").map_err(|errors| errors[0].to_string());
    estimate(&program.unwrap().program, "", plan).remove(0)
}

const X: &str = "tensor<fp16, [1, 8]> x";

#[test]
fn an_operation_between_two_on_the_neural_engine_makes_three_runs() {
    let placement = placed(
        "tensor<fp16, [1, 8]> a = relu(x = x);
         tensor<fp16, [1, 8]> b = cumsum(axis = int32(1), exclusive = bool(false), reverse = bool(false), x = a);
         tensor<fp16, [1, 8]> y = relu(x = b);",
        X,
        None,
    );
    assert_eq!(placement.ops, [2, 0, 1]);
    assert_eq!((placement.runs, placement.changes()), (3, 2));
    assert_eq!(placement.reasons[0].first, "b");
    assert!((placement.ane_fraction() - 2.0 / 3.0).abs() < 1e-9);
}

#[test]
fn types_and_sizes_take_operations_off_the_neural_engine() {
    let device = |body: &str, inputs: &str| placed(body, inputs, None).reasons[0].device;
    let wide = "tensor<fp16, [1, 20000]> y = relu(x = x);";
    assert_eq!(device(wide, "tensor<fp16, [1, 20000]> x"), Device::Gpu);
    let single = "tensor<fp32, [1, 8]> y = relu(x = x);";
    assert_eq!(device(single, "tensor<fp32, [1, 8]> x"), Device::Gpu);
    let integer = "tensor<int32, [1, 8]> y = add(x = x, y = int32(1));";
    assert_eq!(device(integer, "tensor<int32, [1, 8]> x"), Device::Cpu);
    let open = "tensor<fp16, [1, ?]> y = relu(x = x);";
    assert_eq!(device(open, "tensor<fp16, [1, ?]> x"), Device::Gpu);
    let lookup = "tensor<fp16, [4, 2]> w = const()[val = tensor<fp16, [4, 2]>(fill(1))];
        tensor<fp16, [3, 2]> y = gather(axis = int32(0), indices = i, x = w);";
    assert_eq!(device(lookup, "tensor<int32, [3]> i"), Device::Cpu);
}

#[test]
fn a_weight_counts_once_where_it_is_read_first_and_as_it_is_stored() {
    let placement = placed(
        "tensor<fp16, [8, 8]> w = constexpr_blockwise_shift_scale(data = tensor<int4, [8, 8]>(fill(1)), scale = tensor<fp16, [8, 1]>(fill(0.5)));
         tensor<fp16, [1, 8]> a = linear(weight = w, x = x);
         tensor<fp16, [1, 8]> y = linear(weight = w, x = a);",
        X,
        None,
    );
    assert_eq!(placement.bytes, [32 + 16, 0, 0]);
}

#[test]
fn a_plan_goes_before_the_estimate() {
    let plan = Plan::of(&json!([
        {"outputs": ["a"], "preferred": "MLCPUComputeDevice", "supported": ["MLCPUComputeDevice"]},
        {"name": "y", "device": "ane"},
        {"name": "w", "device": null},
    ]))
    .unwrap();
    let placement = placed(
        "tensor<fp16, [1, 8]> a = relu(x = x);
         tensor<fp16, [1, 8]> y = reduce_prod(axes = tensor<int32, [1]>([0]), keep_dims = bool(true), x = a);",
        X,
        Some(&plan),
    );
    assert_eq!((placement.ops, placement.measured), ([1, 0, 1], 2));
    assert_eq!(placement.reasons[0].why, super::facts::MEASURED);
}

#[test]
fn another_form_is_refused() {
    for (value, what) in [
        (json!(1), "neither a list nor an object"),
        (json!({"rows": []}), "neither `functions` nor `operations`"),
        (json!([]), "no row has"),
        (
            json!([{"name": "a", "device": "tpu"}]),
            "`tpu` is no device",
        ),
        (json!({"functions": {"main": 1}}), "no list of rows"),
    ] {
        let error = Plan::of(&value).unwrap_err();
        assert!(error.contains(what), "{error}");
    }
}
