//! Pieces of weights, by numbers that numpy's slices give.

use super::*;
use crate::analysis::sample::Sample;

/// `linear` of a weight that this statement makes.
fn sample(weight: &str) -> Sample {
    let operations = format!("{weight}\n tensor<fp16, [3, 2]> y = linear(x = x, weight = w);");
    Sample::new(
        "tensor<fp16, [3, 4]> x, tensor<fp16, [2, 4]> r",
        &operations,
        "y",
    )
}

/// What a weight's piece along an axis is.
fn piece(weight: &str, axis: usize, begin: u64, end: u64) -> Result<Piece, String> {
    let sample = sample(weight);
    let block = sample.block();
    let op = block.op(sample.node("y")).unwrap();
    Weight::of(&block, op, "weight")?.cut(&block, axis, begin, end)
}

/// Shape and elements.
fn numbers(value: &Value) -> (Vec<u64>, Vec<f64>) {
    let sample = sample(PLAIN);
    let tensor = sample.block().elements(value).unwrap();
    let shape = tensor.shape().iter().map(|size| *size as u64).collect();
    (shape, tensor.to_f64().unwrap())
}

/// The parameters of a compressed piece.
fn parameters(piece: Piece) -> BTreeMap<String, (Vec<u64>, Vec<f64>)> {
    let Piece::Compressed { parameters, .. } = piece else {
        panic!("it is not compressed");
    };
    let all = parameters.iter();
    all.map(|(name, value)| (name.clone(), numbers(value)))
        .collect()
}

const PLAIN: &str =
    "tensor<fp16, [2, 4]> w = const()[val = tensor<fp16, [2, 4]>([[0, 1, 2, 3], [4, 5, 6, 7]])];";

#[test]
fn a_plain_weight_is_cut_along_either_axis() {
    // w[:, 1:3] and w[1:2]
    for (axis, begin, end, shape, expected) in [
        (1, 1, 3, vec![2, 2], vec![1.0, 2.0, 5.0, 6.0]),
        (0, 1, 2, vec![1, 4], vec![4.0, 5.0, 6.0, 7.0]),
    ] {
        let Ok(Piece::Plain(value)) = piece(PLAIN, axis, begin, end) else {
            panic!("it is not plain");
        };
        assert_eq!(numbers(&value), (shape, expected));
    }
}

#[test]
fn a_weight_of_the_moment_is_sliced() {
    let Ok(Piece::Slice { begin, size, .. }) =
        piece("tensor<fp16, [2, 4]> w = relu(x = r);", 1, 1, 3)
    else {
        panic!("it is not a slice");
    };
    assert_eq!((begin, size), (vec![0, 1], vec![-1, 2]));
}

#[test]
fn scales_are_cut_with_the_channels_that_they_belong_to_and_else_stay() {
    let weight = |axis: &str, scale: &str| {
        format!(
            "tensor<fp16, [2, 4]> w = constexpr_affine_dequantize()[quantized_data = \
             tensor<int8, [2, 4]>([[0, 1, 2, 3], [4, 5, 6, 7]]), scale = {scale}, zero_point = int8(3), \
             axis = int32({axis})];"
        )
    };
    let by_column = weight("1", "tensor<fp16, [4]>([1, 2, 4, 8])");
    let cut = parameters(piece(&by_column, 1, 1, 3).unwrap());
    assert_eq!(
        cut["quantized_data"],
        (vec![2, 2], vec![1.0, 2.0, 5.0, 6.0])
    );
    assert_eq!(cut["scale"], (vec![2], vec![2.0, 4.0]));
    assert_eq!(cut["zero_point"], (vec![], vec![3.0]));
    let by_row = weight("0", "tensor<fp16, [2]>([1, 2])");
    let cut = parameters(piece(&by_row, 1, 1, 3).unwrap());
    assert_eq!(cut["scale"], (vec![2], vec![1.0, 2.0]));
}

#[test]
fn a_cut_between_blocks_takes_their_scales_and_one_through_a_block_is_none() {
    let weight = "tensor<fp16, [2, 4]> w = constexpr_blockwise_shift_scale(data = \
                  tensor<int8, [2, 4]>([[0, 1, 2, 3], [4, 5, 6, 7]]), scale = \
                  tensor<fp16, [2, 2]>([[1, 2], [4, 8]]));";
    let cut = parameters(piece(weight, 1, 2, 4).unwrap());
    assert_eq!(cut["data"], (vec![2, 2], vec![2.0, 3.0, 6.0, 7.0]));
    assert_eq!(cut["scale"], (vec![2, 1], vec![2.0, 8.0]));
    assert!(piece(weight, 1, 1, 3).is_err());
}

#[test]
fn a_palette_keeps_its_table_and_packs_its_indices_anew() {
    // Indices of 2 bits, the first in the lowest: [[0, 1, 2, 3], [3, 2, 1, 0]] is 0xe4, 0x1b.
    let weight = "tensor<fp16, [2, 4]> w = constexpr_lut_to_dense()[indices = \
                  tensor<uint8, [2]>([228, 27]), lut = tensor<fp16, [4]>([-1, 0.5, 0, 2]), shape = \
                  tensor<uint32, [2]>([2, 4])];";
    let cut = parameters(piece(weight, 1, 1, 3).unwrap());
    // [[1, 2], [2, 1]]: 1 + 2·4 + 2·16 + 1·64.
    assert_eq!(cut["indices"], (vec![1], vec![105.0]));
    assert_eq!(cut["shape"], (vec![2], vec![2.0, 2.0]));
    assert_eq!(cut["lut"], (vec![4], vec![-1.0, 0.5, 0.0, 2.0]));
}
