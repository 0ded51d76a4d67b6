use super::*;
use crate::analysis::sample::Sample;

const INPUTS: &str = "tensor<fp16, [1, 2, 1, 8]> u, tensor<fp16, [2, 1, 8]> w, \
                      state<tensor<fp16, [1, 2, 4, 8]>> s";

const UPDATE: &str = "tensor<fp16, [1, 2, 4, 8]> a = read_state(input = s);
     tensor<fp16, [1, 2, 4, 8]> b = slice_update(x = a, update = u,
         begin = tensor<int32, [4]>([0, 0, 1, 0]), end = tensor<int32, [4]>([1, 2, 2, 8]));";

fn update_of(sample: &Sample) -> Vec<Extent> {
    let block = sample.block();
    let node = sample.value("b").node;
    extents(&block, block.op(node).unwrap())
}

#[test]
fn the_axes_that_are_updated_in_part() {
    let sample = Sample::new(INPUTS, UPDATE, "b");
    let part = Extent {
        axis: 2,
        size: Some(1),
        whole: 4,
    };
    assert_eq!(update_of(&sample), [part]);
    let squeezed = Sample::new(
        INPUTS,
        "tensor<fp16, [1, 2, 4, 8]> a = read_state(input = s);
         tensor<fp16, [1, 2, 4, 8]> b = slice_update(x = a, update = w,
             begin = tensor<int32, [4]>([0, 0, 1, 0]), end = tensor<int32, [4]>([1, 2, 2, 8]),
             squeeze_mask = tensor<bool, [4]>([true, false, false, false]));",
        "b",
    );
    assert_eq!(update_of(&squeezed), [part]);
}

#[test]
fn a_value_goes_to_a_state_or_not() {
    let sample = Sample::new(INPUTS, UPDATE, "b");
    assert_eq!(goal(&sample.block(), sample.value("b")), Goal::NoState);
    let written = format!(
        "{UPDATE} tensor<fp16, [1, 2, 4, 8]> c = add(x = b, y = a); write_state(input = s, data = c);"
    );
    let sample = Sample::new(INPUTS, &written, "b");
    let state = sample.value("s");
    assert_eq!(goal(&sample.block(), sample.value("b")), Goal::State(state));
}

#[test]
fn parts_of_a_state_are_known_as_such() {
    let sample = Sample::new(
        INPUTS,
        "tensor<fp16, [1, 2, 4, 8]> a = read_state(input = s);
         tensor<fp16, [2, 4, 8]> b = squeeze(x = a, axes = tensor<int32, [1]>([0]));
         tensor<fp16, [2, 4, 8]> c = relu(x = b);",
        "c",
    );
    let graph = sample.block().graph;
    assert_eq!(
        read_from(graph, sample.value("b")),
        Some((sample.value("s"), 1))
    );
    assert_eq!(read_from(graph, sample.value("c")), None);
}
