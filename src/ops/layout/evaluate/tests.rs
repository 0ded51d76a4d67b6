use std::sync::Arc;

use crate::ir::Opset;
use crate::ops::Datum;
use crate::ops::evaluate::trial::{Trial, floats, halves, ints};
use crate::tensor::{Data, Tensor};

/// 0, 1, 2, … in a shape.
fn counted(shape: &[usize]) -> Tensor {
    let values: Vec<i64> = (0..shape.iter().product::<usize>() as i64).collect();
    ints(shape, &values)
}

fn shares_buffer(left: &Tensor, right: &Tensor) -> bool {
    match (left.data(), right.data()) {
        (Data::Int(left), Data::Int(right)) => Arc::ptr_eq(left, right),
        _ => false,
    }
}

fn reshape(from: &[usize], shape: &[i64], opset: Opset) -> Trial {
    Trial::of("reshape")
        .with("x", counted(from))
        .ints("shape", shape)
        .opset(opset)
}

#[test]
fn zeros_of_a_shape_count_from_the_left_up_to_ios16_and_from_the_right_since() {
    let shape = |from: &[usize], shape: &[i64], opset| {
        reshape(from, shape, opset).tensor().shape().to_vec()
    };
    for opset in [Opset::CoreML5, Opset::CoreML6, Opset::CoreML7] {
        assert_eq!(shape(&[2, 6], &[0, -1], opset), [2, 6]);
    }
    // The example of coremltools' documentation of the iOS 17 op.
    assert_eq!(
        shape(&[2, 50], &[1, 0, -1, 0], Opset::CoreML7),
        [1, 1, 2, 50]
    );
    assert!(
        reshape(&[2, 50], &[1, 0, -1, 0], Opset::CoreML6)
            .run()
            .is_err()
    );
}

#[test]
fn a_shape_that_does_not_fit_is_an_error() {
    for shape in [
        &[-1, -1][..],
        &[5],
        &[-2, -6],
        &[5, -1],
        &[i64::MAX, i64::MAX],
    ] {
        assert!(
            reshape(&[2, 6], shape, Opset::CoreML8).run().is_err(),
            "{shape:?}"
        );
    }
    assert!(reshape(&[0, 6], &[0, -1], Opset::CoreML8).run().is_err());
    assert!(reshape(&[], &[1, -1], Opset::CoreML8).run().is_ok());
}

#[test]
fn changes_of_shape_that_keep_the_order_share_the_buffer() {
    let x = counted(&[2, 1, 3]);
    let of = |op_type| Trial::of(op_type).with("x", x.clone());
    let results = [
        of("reshape").ints("shape", &[6]).tensor(),
        of("expand_dims").ints("axes", &[0, -1]).tensor(),
        of("squeeze").tensor(),
        of("flatten2d").tensor(),
        of("transpose").ints("perm", &[1, 0, 2]).tensor(),
    ];
    let shapes: Vec<&[usize]> = results.iter().map(Tensor::shape).collect();
    assert_eq!(
        shapes,
        [&[6][..], &[1, 2, 1, 3, 1], &[2, 3], &[2, 3], &[1, 2, 3]]
    );
    assert!(results.iter().all(|result| shares_buffer(result, &x)));
    assert!(!shares_buffer(
        &of("transpose").ints("perm", &[2, 1, 0]).tensor(),
        &x
    ));
}

#[test]
fn squeeze_keeps_a_named_axis_that_is_not_one() {
    let x = counted(&[2, 1, 3, 1]);
    let squeezed = Trial::of("squeeze").with("x", x).ints("axes", &[0, -1]);
    assert_eq!(squeezed.tensor().shape(), [2, 1, 3]);
}

#[test]
fn axes_that_do_not_exist_or_repeat_are_errors() {
    let of = |op_type| Trial::of(op_type).with("x", counted(&[2, 3]));
    assert!(of("expand_dims").ints("axes", &[3]).run().is_err());
    assert!(of("expand_dims").ints("axes", &[1, 1]).run().is_err());
    assert!(of("squeeze").ints("axes", &[i64::MIN]).run().is_err());
    assert!(of("reverse").ints("axes", &[2]).run().is_err());
    assert!(of("transpose").ints("perm", &[0, 0]).run().is_err());
    assert!(of("transpose").ints("perm", &[0]).run().is_err());
    assert!(of("transpose").ints("perm", &[0, 2]).run().is_err());
}

#[test]
fn a_transpose_moves_every_element_to_its_permuted_place() {
    // Small, and large enough to be copied by several threads.
    for sizes in [[2, 3, 4, 5], [7, 31, 16, 33]] {
        for perm in [[3, 1, 0, 2], [0, 2, 1, 3], [1, 2, 3, 0], [0, 3, 1, 2]] {
            let signed: Vec<i64> = perm.iter().map(|axis| *axis as i64 - 4).collect();
            let x = counted(&sizes);
            let result = Trial::of("transpose")
                .with("x", x)
                .ints("perm", &signed)
                .tensor();
            let shape: Vec<usize> = perm.iter().map(|axis| sizes[*axis]).collect();
            assert_eq!(result.shape(), shape);
            let values = result.as_ints().unwrap();
            for (number, value) in values.iter().enumerate() {
                let mut index = [0; 4];
                let mut rest = number;
                for place in (0..4).rev() {
                    index[perm[place]] = rest % shape[place];
                    rest /= shape[place];
                }
                let expected = index
                    .iter()
                    .zip(&sizes)
                    .fold(0, |sum, (i, size)| sum * size + i);
                assert_eq!(*value, expected as i64);
            }
        }
    }
}

#[test]
fn reverse_turns_the_named_axes_or_all() {
    let of = || Trial::of("reverse").with("x", counted(&[2, 3]));
    assert_eq!(*of().tensor().as_ints().unwrap(), [5, 4, 3, 2, 1, 0]);
    let last = of().ints("axes", &[-1]).tensor();
    assert_eq!(*last.as_ints().unwrap(), [2, 1, 0, 5, 4, 3]);
    let none = of().ints("axes", &[]).tensor();
    assert_eq!(*none.as_ints().unwrap(), [0, 1, 2, 3, 4, 5]);
    let empty = Trial::of("reverse").with("x", counted(&[0, 3])).tensor();
    assert_eq!(empty.shape(), [0, 3]);
}

#[test]
fn reverse_sequence_turns_the_first_elements_of_each_slice() {
    // x[b, s, c] with the first lengths[b] along s turned, written out from the definition.
    let of = |lengths: &[i64]| {
        Trial::of("reverse_sequence")
            .with("x", counted(&[2, 3, 2]))
            .ints("lengths", lengths)
            .int("seq_axis", 1)
            .int("batch_axis", 0)
    };
    let result = of(&[2, 3]).tensor();
    assert_eq!(
        *result.as_ints().unwrap(),
        [2, 3, 0, 1, 4, 5, 10, 11, 8, 9, 6, 7]
    );
    let result = of(&[0, 1]).tensor();
    assert_eq!(*result.as_ints().unwrap(), (0..12).collect::<Vec<_>>());
    assert!(of(&[2, 4]).run().is_err());
    assert!(of(&[-1, 2]).run().is_err());
    assert!(of(&[2]).run().is_err());
    let before = Trial::of("reverse_sequence")
        .with("x", counted(&[3, 2]))
        .ints("lengths", &[3, 2])
        .int("seq_axis", 0)
        .int("batch_axis", 1);
    assert_eq!(*before.tensor().as_ints().unwrap(), [4, 3, 2, 1, 0, 5]);
}

#[test]
fn channels_become_blocks_in_the_order_of_tensorflow_or_of_pytorch() {
    // Channels c of value c, one pixel: TensorFlow's place in the block is c / C', PyTorch's c % b².
    let x = counted(&[1, 8, 1, 1]);
    let depth = Trial::of("depth_to_space")
        .with("x", x.clone())
        .int("block_size", 2);
    assert_eq!(*depth.tensor().as_ints().unwrap(), [0, 2, 4, 6, 1, 3, 5, 7]);
    let pixel = Trial::of("pixel_shuffle")
        .with("x", x)
        .int("upscale_factor", 2);
    assert_eq!(*pixel.tensor().as_ints().unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(pixel.tensor().shape(), [1, 2, 2, 2]);
}

#[test]
fn blocks_and_back_is_the_identity() {
    let x = counted(&[2, 12, 4, 6]);
    let values = x.as_ints().unwrap().into_owned();
    for (there, back, names) in [
        (
            "depth_to_space",
            "space_to_depth",
            ["block_size", "block_size"],
        ),
        (
            "pixel_shuffle",
            "pixel_unshuffle",
            ["upscale_factor", "downscale_factor"],
        ),
    ] {
        let there = Trial::of(there)
            .with("x", x.clone())
            .int(names[0], 2)
            .tensor();
        let back = Trial::of(back).with("x", there).int(names[1], 2).tensor();
        assert_eq!(*back.as_ints().unwrap(), values);
    }
    let pairs = ints(&[2, 2], &[1, 1, 2, 1]);
    let there = Trial::of("space_to_batch")
        .with("x", x)
        .ints("block_shape", &[2, 3])
        .with("paddings", pairs.clone())
        .tensor();
    assert_eq!(there.shape(), [12, 12, 3, 3]);
    let back = Trial::of("batch_to_space")
        .with("x", there)
        .ints("block_shape", &[2, 3])
        .with("crops", pairs)
        .tensor();
    assert_eq!(*back.as_ints().unwrap(), values);
}

#[test]
fn sizes_that_blocks_do_not_divide_are_errors() {
    let of = |op_type, shape: &[usize]| Trial::of(op_type).with("x", counted(shape));
    assert!(
        of("depth_to_space", &[1, 6, 1, 1])
            .int("block_size", 2)
            .run()
            .is_err()
    );
    assert!(
        of("depth_to_space", &[1, 4, 1])
            .int("block_size", 2)
            .run()
            .is_err()
    );
    assert!(
        of("depth_to_space", &[1, 4, 1, 1])
            .int("block_size", 0)
            .run()
            .is_err()
    );
    assert!(
        of("space_to_depth", &[1, 1, 3, 2])
            .int("block_size", 2)
            .run()
            .is_err()
    );
    let batch = |block: &[i64], crops: &[i64]| {
        of("batch_to_space", &[4, 1, 1, 1])
            .ints("block_shape", block)
            .ints("crops", crops)
            .run()
    };
    assert!(batch(&[2, 2], &[0, 0, 0, 0]).is_ok());
    assert!(batch(&[2, 0], &[0, 0, 0, 0]).is_err());
    assert!(batch(&[3, 2], &[0, 0, 0, 0]).is_err());
    assert!(batch(&[2, 2], &[2, 1, 0, 0]).is_err());
    assert!(batch(&[2, 2], &[-1, 0, 0, 0]).is_err());
    let padded = of("space_to_batch", &[1, 1, 2, 2])
        .ints("block_shape", &[1, 1])
        .ints(
            "paddings",
            &[i64::from(u32::MAX), 0, i64::from(u32::MAX), 0],
        );
    assert!(padded.run().is_err());
}

#[test]
fn reshape_like_joins_parts_of_the_shapes_of_its_references() {
    // The example of coremltools' documentation, with scalars and with one list.
    let of = |x: Tensor| {
        Trial::of("reshape_like")
            .with("x", x)
            .with("ref_tensors", floats(&[2, 3, 4], &[0.0; 24]))
            .with("ref_tensors", floats(&[1, 5, 6], &[0.0; 30]))
    };
    let single = of(counted(&[180]))
        .int("begins", 0)
        .int("begins", 1)
        .int("ends", 2)
        .int("ends", 0)
        .bool("end_masks", false)
        .bool("end_masks", true);
    assert_eq!(single.tensor().shape(), [2, 3, 5, 6]);
    let listed = |count: usize| {
        let scalars = |values: [i64; 2]| {
            let items = values.map(|value| Some(ints(&[], &[value])));
            Datum::List(Arc::new(items[..count].to_vec()))
        };
        let masks = [false, true].map(|mask| Datum::Tensor(Tensor::bools(vec![], vec![mask])));
        of(counted(&[180]))
            .datum("begins", scalars([0, -2]))
            .datum("ends", scalars([-1, 0]))
            .datum("end_masks", Datum::Tuple(Arc::new(masks.to_vec())))
    };
    assert_eq!(listed(2).tensor().shape(), [2, 3, 5, 6]);
    assert!(listed(1).run().is_err());
}

#[test]
fn flatten2d_takes_its_axis_as_a_slice_bound() {
    // The examples of coremltools' documentation.
    for (shape, axis, expected) in [
        (&[3][..], -1, [1, 3]),
        (&[3], 1, [3, 1]),
        (&[4, 3], -1, [4, 3]),
        (&[2, 3, 2], -1, [6, 2]),
        (&[5, 5, 2], 1, [5, 10]),
    ] {
        let x = counted(shape);
        let flat = Trial::of("flatten2d")
            .with("x", x)
            .int("axis", axis)
            .tensor();
        assert_eq!(flat.shape(), expected);
    }
}

#[test]
fn signs_of_zero_and_nan_are_moved_as_they_are() {
    let x = halves(&[2, 2], &[-0.0, f32::NAN, f32::INFINITY, 1e-8]);
    let moved = Trial::of("transpose")
        .with("x", x)
        .ints("perm", &[1, 0])
        .tensor();
    let bits: Vec<u32> = moved
        .as_floats()
        .unwrap()
        .iter()
        .map(|v| v.to_bits())
        .collect();
    let expected = [-0.0, f32::INFINITY, f32::NAN, 1e-8].map(f32::to_bits);
    assert_eq!(bits, expected);
}

#[test]
fn a_tensor_without_elements_may_have_sizes_that_multiply_to_nothing_that_fits() {
    let x = ints(&[0, 1 << 40, 1 << 40], &[]);
    let of = |op_type| Trial::of(op_type).with("x", x.clone());
    assert!(of("reverse").run().is_ok());
    assert!(of("transpose").ints("perm", &[0, 2, 1]).run().is_ok());
    assert!(
        of("slice_by_index")
            .ints("begin", &[0, 5, 5])
            .ints("end", &[0, 9, 9])
            .run()
            .is_ok()
    );
    assert!(
        of("sliding_windows")
            .int("axis", 1)
            .int("size", 2)
            .run()
            .is_ok()
    );
    assert!(
        of("split")
            .int("axis", 1)
            .int("num_splits", 2)
            .run()
            .is_ok()
    );
    assert!(of("tile").ints("reps", &[1, 2, 3]).run().is_ok());
    assert!(of("pad").ints("pad", &[1 << 40, 1 << 40]).run().is_ok());
    assert!(of("cumsum").int("axis", 1).run().is_ok());
    assert!(of("argsort").int("axis", 0).run().is_ok());
    assert!(of("topk").int("axis", 0).int("k", 0).run().is_ok());
    assert!(of("band_part").run().is_ok());
}
