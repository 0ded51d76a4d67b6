use crate::ir::Opset;
use crate::ir::types::DType;
use crate::ops::evaluate::EvalError;
use crate::ops::evaluate::trial::{Trial, floats, ints};
use crate::tensor::Tensor;

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

fn both(trial: &Trial) -> (Tensor, Tensor) {
    let results = trial.run().unwrap();
    assert_eq!(results.len(), 2);
    let tensor = |index: usize| results[index].as_tensor().unwrap().clone();
    (tensor(0), tensor(1))
}

#[test]
fn equal_elements_keep_their_order_and_nan_is_last() {
    // np.argsort(x, kind="stable") and np.argsort(-x, kind="stable").
    let x = floats(&[8], &[3.0, NAN, -1.0, 3.0, -0.0, 0.0, INF, -INF]);
    let rising = Trial::of("argsort")
        .with("x", x.clone())
        .bool("ascending", true);
    assert_eq!(
        *rising.tensor().as_ints().unwrap(),
        [7, 2, 4, 5, 0, 3, 6, 1]
    );
    let falling = Trial::of("argsort").with("x", x.clone());
    assert_eq!(
        *falling.tensor().as_ints().unwrap(),
        [6, 0, 3, 4, 5, 2, 7, 1]
    );
    let (values, indices) = both(&Trial::of("topk").with("x", x).int("k", 4));
    assert_eq!(*values.as_floats().unwrap(), [INF, 3.0, 3.0, -0.0]);
    assert_eq!(*indices.as_ints().unwrap(), [6, 0, 3, 4]);
}

#[test]
fn extreme_integers_are_ordered_too() {
    let x = Tensor::ints(DType::Int64, vec![4], vec![0, i64::MIN, i64::MAX, -1]);
    let falling = Trial::of("argsort").with("x", x.clone());
    assert_eq!(*falling.tensor().as_ints().unwrap(), [2, 0, 3, 1]);
    let rising = Trial::of("argsort").with("x", x).bool("ascending", true);
    assert_eq!(*rising.tensor().as_ints().unwrap(), [1, 3, 0, 2]);
}

#[test]
fn a_selection_of_many_lines_is_the_head_of_their_order() {
    // A permutation in every column: 13·i + column mod 101 with 101 prime.
    let (rows, columns) = (101usize, 300usize);
    let values: Vec<i64> = (0..rows * columns)
        .map(|place| ((place / columns * 13 + place % columns) % rows) as i64)
        .collect();
    let trial = Trial::of("topk")
        .with("x", ints(&[rows, columns], &values))
        .int("axis", 0);
    let (values, indices) = both(&trial.int("k", 5).bool("ascending", true));
    assert_eq!(values.shape(), [5, columns]);
    let (values, indices) = (values.as_ints().unwrap(), indices.as_ints().unwrap());
    for place in 0..5 * columns {
        let (rank, column) = (place / columns, place % columns);
        assert_eq!(values[place], rank as i64);
        assert_eq!((indices[place] as usize * 13 + column) % rows, rank);
    }
}

#[test]
fn topk_takes_all_for_minus_one_and_refuses_more_than_there_are() {
    let of = |k| {
        Trial::of("topk")
            .with("x", ints(&[3], &[1, 3, 2]))
            .int("k", k)
    };
    assert_eq!(*both(&of(-1)).0.as_ints().unwrap(), [3, 2, 1]);
    assert_eq!(both(&of(0)).0.shape(), [0]);
    for k in [4, -2, i64::MAX] {
        assert!(of(k).run().is_err());
    }
    let narrow = both(&of(1).text("output_indices_dtype", "uint16")).1;
    assert_eq!(narrow.dtype(), DType::UInt16);
    assert!(of(1).text("output_indices_dtype", "fp32").run().is_err());
    let alone = of(2).bool("return_indices", false).tensor();
    assert_eq!(*alone.as_ints().unwrap(), [3, 2]);
    assert!(Trial::of("topk").with("x", ints(&[], &[1])).run().is_err());
}

#[test]
fn sums_run_forwards_or_backwards_with_or_without_the_element() {
    let of = |exclusive, reverse| {
        Trial::of("cumsum")
            .with("x", ints(&[2, 3], &[1, 2, 3, 4, 5, 6]))
            .int("axis", 1)
            .bool("exclusive", exclusive)
            .bool("reverse", reverse)
            .tensor()
            .as_ints()
            .unwrap()
            .into_owned()
    };
    assert_eq!(of(false, false), [1, 3, 6, 4, 9, 15]);
    assert_eq!(of(true, false), [0, 1, 3, 0, 4, 9]);
    assert_eq!(of(false, true), [6, 5, 3, 15, 11, 6]);
    assert_eq!(of(true, true), [5, 3, 0, 11, 6, 0]);
    let first = Trial::of("cumsum")
        .with("x", ints(&[2, 2], &[1, 2, 3, 4]))
        .tensor();
    assert_eq!(*first.as_ints().unwrap(), [1, 2, 4, 6]);
}

#[test]
fn a_long_sum_loses_nothing_on_the_way() {
    // 2^24 + 1 is no fp32, but 2^24 + 2 is: the ones must not vanish one by one.
    let x = floats(&[3], &[16_777_216.0, 1.0, 1.0]);
    let sums = Trial::of("cumsum").with("x", x).numbers();
    assert_eq!(sums, [16_777_216.0, 16_777_216.0, 16_777_218.0]);
}

#[test]
fn outside_of_the_band_everything_is_zero() {
    let of = |lower, upper| {
        Trial::of("band_part")
            .with("x", floats(&[2, 3], &[1.0, INF, NAN, INF, 2.0, 3.0]))
            .int("lower", lower)
            .int("upper", upper)
            .numbers()
    };
    assert_eq!(of(0, 0), [1.0, 0.0, 0.0, 0.0, 2.0, 0.0]);
    let inf = f64::INFINITY;
    assert_eq!(of(-1, 0), [1.0, 0.0, 0.0, inf, 2.0, 0.0]);
    assert_eq!(of(0, 1), [1.0, inf, 0.0, 0.0, 2.0, 3.0]);
    assert!(of(i64::MAX, i64::MAX)[2].is_nan());
    let wrong = Trial::of("band_part").with("x", floats(&[2], &[0.0; 2]));
    assert!(wrong.run().is_err());
    let bools = Tensor::bools(vec![2, 2], vec![true; 4]);
    let lower = Trial::of("band_part")
        .with("x", bools)
        .int("upper", 0)
        .tensor();
    assert_eq!(*lower.as_bools().unwrap(), [true, false, true, true]);
}

#[test]
fn a_one_hot_vector_stands_along_its_axis() {
    let of = |axis| {
        Trial::of("one_hot")
            .with("indices", ints(&[2], &[1, 0]))
            .int("one_hot_vector_size", 3)
            .int("axis", axis)
    };
    assert_eq!(*of(-1).tensor().as_ints().unwrap(), [0, 1, 0, 1, 0, 0]);
    assert_eq!(*of(0).tensor().as_ints().unwrap(), [0, 1, 1, 0, 0, 0]);
    let floats = of(-1)
        .float("on_value", 2.0)
        .float("off_value", 0.5)
        .tensor();
    assert_eq!(*floats.as_floats().unwrap(), [0.5, 2.0, 0.5, 2.0, 0.5, 0.5]);
    let scalar = Trial::of("one_hot")
        .int("indices", 2)
        .int("one_hot_vector_size", 3);
    assert_eq!(*scalar.tensor().as_ints().unwrap(), [0, 0, 1]);
    assert!(of(2).run().is_err());
}

#[test]
fn an_index_outside_of_a_one_hot_vector_marks_nothing() {
    // As tf.one_hot.
    let of = |indices: &[i64], size| {
        Trial::of("one_hot")
            .ints("indices", indices)
            .int("one_hot_vector_size", size)
    };
    let result = of(&[-1, 1, 2, i64::MIN, i64::MAX], 2).tensor();
    assert_eq!(*result.as_ints().unwrap(), [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(of(&[0], 0).tensor().shape(), [1, 0]);
    assert!(of(&[0], -1).run().is_err());
    assert!(matches!(
        of(&[0], i64::MAX).error(),
        EvalError::TooLarge { .. }
    ));
}

#[test]
fn elements_that_are_not_zero_are_found_in_their_order() {
    // np.transpose(np.nonzero(x)).
    let x = floats(&[2, 3], &[0.0, -0.0, 1.0, NAN, 0.0, -2.0]);
    let places = Trial::of("non_zero").with("x", x).tensor();
    assert_eq!(places.shape(), [3, 2]);
    assert_eq!(*places.as_ints().unwrap(), [0, 2, 1, 0, 1, 2]);
    let none = Trial::of("non_zero")
        .with("x", ints(&[4], &[0; 4]))
        .tensor();
    assert_eq!(none.shape(), [0, 1]);
    let scalar = Trial::of("non_zero").with("x", ints(&[], &[7])).tensor();
    assert_eq!(scalar.shape(), [1, 0]);
}

/// Three boxes: the second overlaps the first by one third, the third neither.
fn suppression(scores: &[f32], classes: usize, threshold: f32) -> Trial {
    let boxes = [1.0, 1.0, 2.0, 2.0, 2.0, 1.0, 2.0, 2.0, 9.0, 9.0, 2.0, 2.0];
    Trial::of("non_maximum_suppression")
        .opset(Opset::CoreML6)
        .with("boxes", floats(&[1, 3, 4], &boxes))
        .with("scores", floats(&[1, 3, classes], scores))
        .float("iou_threshold", threshold)
        .float("score_threshold", 0.2)
        .int("max_boxes", 3)
}

/// The indices kept, and how many.
fn kept(trial: &Trial) -> (Vec<i64>, i64) {
    let results = trial.run().unwrap();
    assert_eq!(results.len(), 4);
    let ints = |index: usize| {
        results[index]
            .as_tensor()
            .unwrap()
            .as_ints()
            .unwrap()
            .into_owned()
    };
    (ints(2), ints(3)[0])
}

#[test]
fn a_box_goes_if_a_better_one_overlaps_it_by_more_than_the_threshold() {
    let scores = [0.5, 0.9, 0.7];
    // The shared area is 2 of 6.
    assert_eq!(kept(&suppression(&scores, 1, 0.3)), (vec![1, 2, -1], 2));
    assert_eq!(kept(&suppression(&scores, 1, 0.34)), (vec![1, 2, 0], 3));
    // Nothing overlaps by more than it does.
    assert_eq!(
        kept(&suppression(&scores, 1, 1.0 / 3.0)),
        (vec![1, 2, 0], 3)
    );
}

#[test]
fn boxes_of_other_classes_do_not_suppress_each_other_if_told_so() {
    let scores = [0.5, 0.1, 0.1, 0.9, 0.7, 0.1];
    assert_eq!(kept(&suppression(&scores, 2, 0.3)), (vec![1, 2, -1], 2));
    let each = suppression(&scores, 2, 0.3).bool("per_class_suppression", true);
    assert_eq!(kept(&each), (vec![1, 2, 0], 3));
}

#[test]
fn low_scores_do_not_take_part_but_the_best_is_always_given() {
    assert_eq!(
        kept(&suppression(&[0.1, 0.2, NAN], 1, 0.3)),
        (vec![1, -1, -1], 1)
    );
    assert_eq!(
        kept(&suppression(&[0.1, 0.15, NAN], 1, 0.3)),
        (vec![1, -1, -1], 1)
    );
}

#[test]
fn an_overlap_of_exactly_the_threshold_counts_since_ios17() {
    // Two boxes that share 1 of 5, and the third, which shares nothing with them.
    let boxes = [
        [1.5, 2.0, 1.0, 2.0],
        [1.0, 1.0, 2.0, 2.0],
        [9.0, 9.0, 1.0, 1.0],
    ];
    let by_column: Vec<f32> = (0..4).flat_map(|c| boxes.map(|row| row[c])).collect();
    let kept = |opset, boxes: Tensor, scores: Tensor, threshold| {
        let trial = Trial::of("non_maximum_suppression")
            .opset(opset)
            .with("boxes", boxes)
            .with("scores", scores)
            .float("iou_threshold", threshold)
            .float("score_threshold", 0.0)
            .int("max_boxes", 3);
        let indices = trial.run().unwrap().remove(2);
        indices.as_tensor().unwrap().as_ints().unwrap().into_owned()
    };
    let scores = [0.9, 0.8, 0.7];
    let old = |threshold| {
        let boxes = floats(&[1, 3, 4], boxes.as_flattened());
        kept(
            Opset::CoreML6,
            boxes,
            floats(&[1, 3, 1], &scores),
            threshold,
        )
    };
    let new = |threshold| {
        let boxes = floats(&[1, 4, 3], &by_column);
        kept(
            Opset::CoreML7,
            boxes,
            floats(&[1, 1, 3], &scores),
            threshold,
        )
    };
    assert_eq!(old(0.2), [0, 1, 2]);
    assert_eq!(new(0.2), [0, 2, -1]);
    assert_eq!(new(0.0), [0, 2, -1]);
}

#[test]
fn boxes_stand_in_the_last_dimension_since_ios17() {
    let trial = Trial::of("non_maximum_suppression")
        .with(
            "boxes",
            floats(&[1, 4, 2], &[1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0]),
        )
        .with("scores", floats(&[1, 1, 2], &[0.5, 0.6]))
        .float("iou_threshold", 0.5)
        .int("max_boxes", 1);
    let results = trial.run().unwrap();
    assert_eq!(results.len(), 3);
    let boxes = results[0].as_tensor().unwrap();
    assert_eq!(boxes.shape(), [1, 4, 1]);
    assert_eq!(*boxes.as_floats().unwrap(), [9.0, 8.0, 7.0, 6.0]);
}

#[test]
fn boxes_that_do_not_fit_their_scores_are_errors() {
    let of = |boxes: Tensor, scores: Tensor, kept| {
        Trial::of("non_maximum_suppression")
            .opset(Opset::CoreML5)
            .with("boxes", boxes)
            .with("scores", scores)
            .float("iou_threshold", 0.5)
            .float("score_threshold", 0.5)
            .int("max_boxes", kept)
            .run()
    };
    let (boxes, scores) = (floats(&[1, 2, 4], &[0.0; 8]), floats(&[1, 2, 1], &[0.0; 2]));
    assert!(of(boxes.clone(), scores.clone(), 2).is_ok());
    assert!(of(boxes.clone(), scores.clone(), -1).is_err());
    assert!(of(boxes.clone(), scores.clone(), i64::MAX).is_err());
    assert!(of(boxes.clone(), floats(&[1, 3, 1], &[0.0; 3]), 2).is_err());
    assert!(of(boxes.clone(), floats(&[2, 1], &[0.0; 2]), 2).is_err());
    assert!(of(boxes, floats(&[1, 2, 0], &[]), 2).is_err());
    let none = of(floats(&[1, 0, 4], &[]), floats(&[1, 0, 1], &[]), 2).unwrap();
    assert_eq!(*none[2].as_tensor().unwrap().as_ints().unwrap(), [-1, -1]);
}
