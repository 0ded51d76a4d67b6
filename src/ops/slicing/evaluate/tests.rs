use crate::ops::evaluate::EvalError;
use crate::ops::evaluate::trial::{Trial, floats, ints};
use crate::tensor::Tensor;

fn counted(shape: &[usize]) -> Tensor {
    let values: Vec<i64> = (0..shape.iter().product::<usize>() as i64).collect();
    ints(shape, &values)
}

/// A slice of 0, 1, 2, 3, 4, whose missing bounds are masked.
fn sliced(begin: Option<i64>, end: Option<i64>, stride: i64) -> Trial {
    Trial::of("slice_by_index")
        .with("x", counted(&[5]))
        .ints("begin", &[begin.unwrap_or(77)])
        .ints("end", &[end.unwrap_or(-77)])
        .ints("stride", &[stride])
        .bools("begin_mask", &[begin.is_none()])
        .bools("end_mask", &[end.is_none()])
}

#[test]
fn bounds_and_strides_are_those_of_numpy() {
    // Printed by numpy: np.arange(5)[begin:end:stride].
    type Bound = Option<i64>;
    let cases: [(Bound, Bound, i64, &[i64]); 20] = [
        (Some(1), Some(4), 1, &[1, 2, 3]),
        (Some(-4), Some(-1), 2, &[1, 3]),
        (Some(0), Some(9), 2, &[0, 2, 4]),
        (Some(-9), Some(3), 1, &[0, 1, 2]),
        (Some(3), Some(1), 1, &[]),
        (Some(4), Some(0), -1, &[4, 3, 2, 1]),
        (Some(4), Some(-9), -2, &[4, 2, 0]),
        (Some(-1), Some(1), -2, &[4, 2]),
        (Some(9), Some(2), -1, &[4, 3]),
        (Some(1), Some(3), -1, &[]),
        (None, None, -1, &[4, 3, 2, 1, 0]),
        (None, Some(2), -2, &[4]),
        (Some(2), None, -1, &[2, 1, 0]),
        (None, None, 3, &[0, 3]),
        (Some(3), None, 1, &[3, 4]),
        (Some(5), None, 1, &[]),
        (Some(0), Some(i64::MAX), 1, &[0, 1, 2, 3, 4]),
        (Some(2), Some(2), 1, &[]),
        (Some(0), Some(5), i64::MAX, &[0]),
        (None, None, i64::MIN, &[4]),
    ];
    for (begin, end, stride, expected) in cases {
        let result = sliced(begin, end, stride).tensor();
        assert_eq!(
            *result.as_ints().unwrap(),
            *expected,
            "{begin:?}:{end:?}:{stride}"
        );
        assert_eq!(result.shape(), [expected.len()]);
    }
    assert!(sliced(Some(i64::MIN), Some(i64::MAX), 1).run().is_ok());
    assert!(sliced(None, None, 0).run().is_err());
}

#[test]
fn a_squeezed_axis_takes_one_index_and_goes() {
    let of = |begin: &[i64]| {
        Trial::of("slice_by_index")
            .with("x", counted(&[2, 3, 4]))
            .ints("begin", begin)
            .ints("end", &[0, 0, 0])
            .ints("stride", &[1, -1, 1])
            .bools("end_mask", &[false, true, false])
            .bools("squeeze_mask", &[true, false, true])
    };
    let result = of(&[1, 2, -1]).tensor();
    assert_eq!(result.shape(), [3]);
    // x[1, 2::-1, -1] by numpy.
    assert_eq!(*result.as_ints().unwrap(), [23, 19, 15]);
    let outside = of(&[2, 2, 0]).error();
    assert!(matches!(outside, EvalError::OutOfRange { index: 2, .. }));
    assert!(of(&[0, 0]).run().is_err());
}

#[test]
fn a_slice_update_writes_where_the_slice_reads() {
    let with = |op_type, update: Option<Tensor>| {
        let trial = Trial::of(op_type)
            .with("x", counted(&[4, 3, 5]))
            .ints("begin", &[3, 1, 0])
            .ints("end", &[0, 2, 5])
            .ints("stride", &[-2, 1, 2])
            .bools("squeeze_mask", &[false, true, false]);
        match update {
            Some(update) => trial.with("update", update),
            None => trial,
        }
    };
    let update = ints(&[2, 3], &[-1, -2, -3, -4, -5, -6]);
    let updated = with("slice_update", Some(update)).tensor();
    // Rows 3 and 1 of the first axis, 1 of the second, 0, 2 and 4 of the third.
    let mut expected: Vec<i64> = (0..60).collect();
    for (place, value) in [(50, -1), (52, -2), (54, -3), (20, -4), (22, -5), (24, -6)] {
        expected[place] = value;
    }
    assert_eq!(*updated.as_ints().unwrap(), expected);
    let wrong_shape = ints(&[3, 2], &[0; 6]);
    assert!(with("slice_update", Some(wrong_shape)).run().is_err());
    let wrong_type = floats(&[2, 3], &[0.0; 6]);
    assert!(with("slice_update", Some(wrong_type)).run().is_err());
    assert_eq!(with("slice_by_index", None).tensor().shape(), [2, 3]);
}

#[test]
fn an_update_leaves_its_argument_alone() {
    let x = counted(&[3]);
    let updated = Trial::of("slice_update")
        .with("x", x.clone())
        .with("update", ints(&[1], &[9]))
        .ints("begin", &[1])
        .ints("end", &[2]);
    assert_eq!(*updated.tensor().as_ints().unwrap(), [0, 9, 2]);
    assert_eq!(*x.as_ints().unwrap(), [0, 1, 2]);
}

#[test]
fn a_size_of_minus_one_reaches_to_the_end_and_one_beyond_it_is_an_error() {
    let of = |begin: &[i64], size: &[i64]| {
        Trial::of("slice_by_size")
            .with("x", counted(&[3, 4]))
            .ints("begin", begin)
            .ints("size", size)
    };
    assert_eq!(
        *of(&[1, -3], &[-1, 2]).tensor().as_ints().unwrap(),
        [5, 6, 9, 10]
    );
    assert_eq!(of(&[3, 0], &[-1, 0]).tensor().shape(), [0, 0]);
    for (begin, size) in [
        (&[1, 2][..], &[1, 3][..]),
        (&[4, 0], &[-1, 1]),
        (&[-4, 0], &[1, 1]),
        (&[0, 0], &[-2, 1]),
        (&[i64::MIN, 0], &[-1, 1]),
        (&[0, 1], &[1, i64::MAX]),
        (&[0], &[1]),
    ] {
        assert!(of(begin, size).run().is_err(), "{begin:?} {size:?}");
    }
}

#[test]
fn windows_follow_each_other_by_the_stride_as_long_as_they_fit() {
    let of = |axis, size, stride| {
        Trial::of("sliding_windows")
            .with("x", counted(&[2, 6]))
            .int("axis", axis)
            .int("size", size)
            .int("stride", stride)
    };
    let result = of(-1, 3, 2).tensor();
    assert_eq!(result.shape(), [2, 2, 3]);
    assert_eq!(
        *result.as_ints().unwrap(),
        [0, 1, 2, 2, 3, 4, 6, 7, 8, 8, 9, 10]
    );
    let rows = of(0, 1, 1).tensor();
    assert_eq!(rows.shape(), [2, 1, 6]);
    for (size, stride) in [(7, 1), (0, 1), (2, 0), (-1, 1), (1, -1)] {
        assert!(of(1, size, stride).run().is_err(), "{size} {stride}");
    }
    assert!(of(1, 2, i64::MAX).run().is_ok());
}

#[test]
fn a_slice_of_a_large_tensor_is_that_of_its_indices() {
    let x = counted(&[300, 40, 20]);
    let result = Trial::of("slice_by_index")
        .with("x", x)
        .ints("begin", &[10, -1, 2])
        .ints("end", &[290, 3, 18])
        .ints("stride", &[1, -3, 1])
        .tensor();
    assert_eq!(result.shape(), [280, 12, 16]);
    for (number, value) in result.as_ints().unwrap().iter().enumerate() {
        let (i, j, k) = (
            number / 192 + 10,
            39 - number / 16 % 12 * 3,
            number % 16 + 2,
        );
        assert_eq!(*value, (i * 800 + j * 20 + k) as i64);
    }
}
