use super::grid::Grid;
use crate::ir::types::DType;
use crate::ops::Opset;
use crate::ops::evaluate::EvalError;
use crate::ops::evaluate::trial::{Trial, assert_close, floats, halves, ints};
use crate::tensor::{Data, Packed, Tensor};

/// Elements packed from the low bit up.
fn packed(dtype: DType, shape: &[usize], elements: &[u8]) -> Tensor {
    let width = dtype.bits().unwrap() as usize;
    let mut bytes = vec![0u8; (elements.len() * width).div_ceil(8)];
    for (index, element) in elements.iter().enumerate() {
        for bit in 0..width {
            let place = index * width + bit;
            bytes[place / 8] |= (element >> bit & 1) << (place % 8);
        }
    }
    Tensor::new(dtype, shape.to_vec(), Data::Packed(Packed::new(bytes)))
}

#[test]
fn the_runs_of_a_grid_are_the_blocks_of_its_elements() {
    // Against the definition: the block of (i, j, k) is (i / a, j / b, k / c).
    let sizes = [4, 6, 5];
    for counts in [
        [1, 1, 1],
        [4, 1, 1],
        [1, 6, 1],
        [2, 3, 1],
        [4, 2, 5],
        [1, 1, 5],
        [2, 6, 5],
    ] {
        let grid = Grid::new(&sizes, &counts).unwrap();
        let block = |index: usize| {
            let at = [index / 30, index / 5 % 6, index % 5];
            let of = |axis: usize| at[axis] / (sizes[axis] / counts[axis]);
            (of(0) * counts[1] + of(1)) * counts[2] + of(2)
        };
        for (start, count) in [(0, 120), (7, 60), (119, 1), (40, 0)] {
            let mut found = Vec::new();
            grid.each_run(start, count, |first, run, block| {
                assert_eq!(first, found.len());
                found.extend(vec![block; run]);
            });
            let expected: Vec<usize> = (start..start + count).map(block).collect();
            assert_eq!(found, expected, "{counts:?} from {start}");
        }
    }
    assert!(Grid::new(&[4], &[3]).is_err());
    assert!(Grid::new(&[4], &[0]).is_err());
    assert!(Grid::new(&[4], &[1, 1]).is_err());
}

#[test]
fn four_bit_blocks_have_their_own_scale_and_offset() {
    // scale · (data − offset), by hand; two blocks along the second axis.
    let data = packed(DType::Int4, &[2, 4], &[0, 1, 15, 8, 7, 6, 5, 4]);
    let result = Trial::of("constexpr_blockwise_shift_scale")
        .with("data", data)
        .with("scale", halves(&[2, 2], &[1., 2., 3., 0.5]))
        .with("offset", packed(DType::Int4, &[2, 2], &[0, 1, 15, 0]))
        .tensor();
    assert_eq!(result.dtype(), DType::Float16);
    assert_eq!(
        *result.as_floats().unwrap(),
        [0., 1., -4., -18., 24., 21., 2.5, 2.]
    );
}

#[test]
fn many_blocks_are_expanded_in_many_pieces() {
    let (rows, columns, block) = (300, 256, 32);
    let codes: Vec<u8> = (0..rows * columns).map(|i| (i * 7 % 16) as u8).collect();
    let scales: Vec<f32> = (0..rows * columns / block).map(|i| i as f32).collect();
    let result = Trial::of("constexpr_blockwise_shift_scale")
        .with("data", packed(DType::UInt4, &[rows, columns], &codes))
        .with("scale", floats(&[rows, columns / block], &scales))
        .tensor();
    let expected: Vec<f32> = codes
        .iter()
        .enumerate()
        .map(|(i, code)| scales[i / block] * f32::from(*code))
        .collect();
    assert_eq!(*result.as_floats().unwrap(), expected);
}

#[test]
fn grouped_palettes_follow_the_documented_example() {
    // Case 1 of the documentation of constexpr_lut_to_dense (iOS 18).
    let indices = [2, 3, 3, 0, 1, 0, 3, 0, 2, 1, 0, 3];
    let result = Trial::of("constexpr_lut_to_dense")
        .with("indices", packed(DType::UInt2, &[6, 2], &indices))
        .with(
            "lut",
            halves(&[2, 1, 4, 1], &[1., 5., 9., 13., 2., 10., 18., 26.]),
        );
    assert_eq!(
        result.numbers(),
        [9., 13., 13., 1., 5., 1., 26., 2., 18., 10., 2., 26.]
    );
}

#[test]
fn vectors_are_laid_out_along_their_axis() {
    // Case 2 of the same documentation, with a0..a2 = 0..2 and b0..b2 = 10..12.
    let trial = Trial::of("constexpr_lut_to_dense")
        .with(
            "indices",
            packed(DType::UInt1, &[2, 2, 2], &[0, 0, 1, 0, 1, 1, 0, 0]),
        )
        .with(
            "lut",
            Tensor::ints(DType::Int8, vec![1, 1, 1, 2, 3], vec![0, 1, 2, 10, 11, 12]),
        );
    let along = |axis: i64| trial.clone().int("vector_axis", axis).tensor();
    let second = along(1);
    assert_eq!(second.shape(), [2, 6, 2]);
    assert_eq!(
        *second.as_ints().unwrap(),
        [
            0, 0, 1, 1, 2, 2, 10, 0, 11, 1, 12, 2, 10, 10, 11, 11, 12, 12, 0, 0, 1, 1, 2, 2
        ]
    );
    let third = along(-1);
    assert_eq!(third.shape(), [2, 2, 6]);
    assert_eq!(
        *third.as_ints().unwrap(),
        [
            0, 1, 2, 0, 1, 2, 10, 11, 12, 0, 1, 2, 10, 11, 12, 10, 11, 12, 0, 1, 2, 0, 1, 2
        ]
    );
    trial.error();
}

#[test]
fn older_palettes_read_indices_out_of_bytes() {
    // The documented packing of five 2-bit indices, lowest bits first: 0b01101100, 0b11.
    let result = Trial::of("constexpr_lut_to_dense")
        .opset(Opset::CoreML6)
        .with(
            "indices",
            Tensor::ints(DType::UInt8, vec![2], vec![0b0110_1100, 0b11]),
        )
        .with("lut", floats(&[4], &[0.5, 1.5, 2.5, 3.5]))
        .ints("shape", &[5]);
    assert_eq!(result.numbers(), [0.5, 3.5, 2.5, 1.5, 3.5]);
    let short = Trial::of("constexpr_lut_to_dense")
        .opset(Opset::CoreML6)
        .with("indices", Tensor::ints(DType::UInt8, vec![1], vec![0]))
        .with("lut", floats(&[4], &[0.; 4]))
        .ints("shape", &[5]);
    assert!(matches!(short.error(), EvalError::Tensor(_)));
}

/// The mask of the documentation of constexpr_lut_to_sparse.
const MASK: [u8; 24] = [
    1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 0, 1, 1, 0, 1, 0, 0, 0, 0, 1, 0, 0,
];

#[test]
fn sparse_palettes_follow_the_documented_example() {
    let trial = |lut: Tensor| {
        Trial::of("constexpr_lut_to_sparse")
            .with("indices_mask", packed(DType::UInt1, &[4, 6], &MASK))
            .with(
                "indices_nonzero_data",
                packed(DType::UInt1, &[9], &[0, 1, 1, 0, 1, 1, 0, 0, 1]),
            )
            .with("lut", lut)
    };
    let tensors = |trial: Trial| {
        let results = trial.run().unwrap();
        [0, 1].map(|index| results[index].as_tensor().unwrap().clone())
    };
    let [mask, values] = tensors(trial(halves(&[1, 1, 2, 1], &[2., 3.])));
    assert_eq!(mask.to_f64().unwrap(), MASK.map(f64::from));
    assert_eq!(
        *values.as_floats().unwrap(),
        [2., 3., 3., 2., 3., 3., 2., 2., 3.]
    );
    // With the vectors (2, 4) and (3, 5): the second half of each vector stands in the next row.
    let vectors = halves(&[1, 1, 2, 2], &[2., 4., 3., 5.]);
    let [mask, values] = tensors(trial(vectors).int("vector_axis", 0));
    assert_eq!(mask.shape(), [8, 6]);
    let rows: Vec<f64> = MASK
        .chunks(6)
        .flat_map(|row| [row, row].concat())
        .map(f64::from)
        .collect();
    assert_eq!(mask.to_f64().unwrap(), rows);
    assert_eq!(
        *values.as_floats().unwrap(),
        [
            2., 3., 4., 5., 3., 2., 3., 5., 4., 5., 3., 2., 2., 5., 4., 4., 3., 5.
        ]
    );
}

#[test]
fn sparse_blocks_follow_the_documented_example() {
    let mask = [1, 1, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 0, 0];
    let results = Trial::of("constexpr_sparse_blockwise_shift_scale")
        .with("data_mask", packed(DType::UInt1, &[4, 4], &mask))
        .with(
            "nonzero_data",
            packed(DType::UInt4, &[9], &[10, 11, 3, 4, 5, 6, 7, 8, 9]),
        )
        .with("scale", floats(&[1, 4], &[0.1, 0.2, 0.3, 0.4]))
        .with("offset", packed(DType::UInt4, &[1, 4], &[1, 2, 3, 4]))
        .run()
        .unwrap();
    let values = results[1].as_tensor().unwrap().to_f64().unwrap();
    assert_close(
        &values,
        &[0.9, 1.8, 0.2, 0.4, 0.6, 0.9, 1.2, 0.7, 1.4],
        1e-6,
    );
}

#[test]
fn sparse_elements_stand_where_the_mask_says() {
    let new = Trial::of("constexpr_sparse_to_dense")
        .with("mask", packed(DType::UInt1, &[2, 3], &[0, 1, 0, 0, 1, 1]));
    let dense = new
        .clone()
        .with("nonzero_data", halves(&[3], &[1., 2., 3.]));
    assert_eq!(dense.numbers(), [0., 1., 0., 0., 2., 3.]);
    let integers = new
        .clone()
        .with("nonzero_data", packed(DType::Int4, &[3], &[15, 7, 1]));
    assert_eq!(*integers.tensor().as_ints().unwrap(), [0, -1, 0, 0, 7, 1]);
    new.with("nonzero_data", halves(&[2], &[1., 2.])).error();
    // The documented mask of the older op: bits 2 and 3 of five.
    let old = Trial::of("constexpr_sparse_to_dense")
        .opset(Opset::CoreML6)
        .with(
            "mask",
            Tensor::ints(DType::UInt8, vec![1], vec![0b0000_1100]),
        )
        .with("nonzero_data", floats(&[2], &[1., 2.]))
        .ints("shape", &[5]);
    assert_eq!(old.numbers(), [0., 0., 1., 2., 0.]);
}

#[test]
fn quantization_rounds_half_to_even_and_clips() {
    let input = [0.5, 1.5, 2.5, -0.5, -1.5, 200., -200., f32::INFINITY];
    let trial = |word: &str| {
        Trial::of("quantize")
            .with("input", floats(&[8], &input))
            .float("scale", 1.0)
            .text("output_dtype", word)
    };
    let signed = trial("int8").tensor();
    assert_eq!(signed.dtype(), DType::Int8);
    assert_eq!(*signed.as_ints().unwrap(), [0, 2, 2, 0, -2, 127, -128, 127]);
    let unsigned = trial("uint8").with("zero_point", Tensor::ints(DType::UInt8, vec![], vec![1]));
    assert_eq!(unsigned.numbers(), [1., 3., 3., 1., 0., 201., 0., 255.]);
    trial("int32").error();
}

#[test]
fn scales_of_an_axis_count_from_the_end_too() {
    let trial = |axis| {
        Trial::of("dequantize")
            .with("input", ints(&[2, 2], &[1, 2, 3, 4]).retyped(DType::Int8))
            .with("scale", floats(&[2], &[1., 10.]))
            .with("zero_point", Tensor::ints(DType::Int8, vec![2], vec![0, 1]))
            .int("axis", axis)
    };
    assert_eq!(trial(0).numbers(), [1., 2., 20., 30.]);
    assert_eq!(trial(-1).numbers(), [1., 10., 3., 30.]);
    trial(2).error();
    let short = Trial::of("dequantize")
        .with("input", ints(&[3], &[1, 2, 3]))
        .with("scale", floats(&[2], &[1., 10.]))
        .int("axis", 0);
    short.error();
}

#[test]
fn an_index_beyond_its_table_is_an_error() {
    let trial = Trial::of("constexpr_lut_to_dense")
        .with("indices", packed(DType::UInt2, &[2], &[0, 3]))
        .with("lut", floats(&[1, 2, 1], &[1., 2.]));
    assert!(matches!(
        trial.error(),
        EvalError::OutOfRange {
            index: 3,
            highest: 1,
            ..
        }
    ));
}

#[test]
fn a_shape_too_large_for_the_memory_is_refused_before_it_is_made() {
    for op in ["constexpr_sparse_to_dense", "constexpr_lut_to_dense"] {
        let trial = Trial::of(op)
            .opset(Opset::CoreML6)
            .with("mask", Tensor::ints(DType::UInt8, vec![1], vec![0]))
            .with("indices", Tensor::ints(DType::UInt8, vec![1], vec![0]))
            .with("nonzero_data", floats(&[0], &[]))
            .with("lut", floats(&[2], &[0., 1.]))
            .ints("shape", &[1 << 40, 1 << 40]);
        assert!(matches!(trial.error(), EvalError::TooLarge { .. }));
    }
}
