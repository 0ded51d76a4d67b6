use crate::ops::evaluate::EvalError;
use crate::ops::evaluate::trial::{Trial, floats, halves, ints};
use crate::tensor::Tensor;

fn counted(shape: &[usize]) -> Tensor {
    let values: Vec<i64> = (0..shape.iter().product::<usize>() as i64).collect();
    ints(shape, &values)
}

fn joined(op_type: &'static str, values: &[Tensor], axis: i64) -> Trial {
    values
        .iter()
        .fold(Trial::of(op_type).int("axis", axis), |trial, value| {
            trial.with("values", value.clone())
        })
}

#[test]
fn interleaving_takes_one_slice_of_each_tensor_in_turn() {
    // The example of coremltools' documentation.
    let values = [
        ints(&[3, 2], &[1, 2, 3, 4, 5, 6]),
        ints(&[3, 2], &[7, 8, 9, 10, 11, 12]),
    ];
    let plain = joined("concat", &values, 0).tensor();
    assert_eq!(*plain.as_ints().unwrap(), (1..=12).collect::<Vec<_>>());
    let interleaved = joined("concat", &values, 0)
        .bool("interleave", true)
        .tensor();
    assert_eq!(interleaved.shape(), [6, 2]);
    assert_eq!(
        *interleaved.as_ints().unwrap(),
        [1, 2, 7, 8, 3, 4, 9, 10, 5, 6, 11, 12]
    );
    let last = joined("concat", &values, -1)
        .bool("interleave", true)
        .tensor();
    assert_eq!(last.shape(), [3, 4]);
    assert_eq!(
        *last.as_ints().unwrap(),
        [1, 7, 2, 8, 3, 9, 4, 10, 5, 11, 6, 12]
    );
}

#[test]
fn scalars_are_joined_to_a_vector() {
    let values = [ints(&[], &[4]), ints(&[], &[5])];
    assert_eq!(
        *joined("concat", &values, 0).tensor().as_ints().unwrap(),
        [4, 5]
    );
    assert_eq!(joined("stack", &values, -1).tensor().shape(), [2]);
}

#[test]
fn tensors_that_do_not_fit_are_errors() {
    let wrong = [
        joined("concat", &[counted(&[2, 3]), counted(&[2, 4])], 0),
        joined("concat", &[counted(&[2]), counted(&[2, 1])], 0),
        joined("concat", &[counted(&[2])], 1),
        joined("concat", &[floats(&[1], &[0.0]), halves(&[1], &[0.0])], 0),
        joined("concat", &[counted(&[2]), counted(&[3])], 0).bool("interleave", true),
        joined("concat", &[], 0),
        joined("stack", &[counted(&[2]), counted(&[3])], 0),
        joined("stack", &[counted(&[2])], 2),
        joined("stack", &[counted(&[2])], i64::MIN),
    ];
    for trial in wrong {
        assert!(trial.run().is_err(), "{trial:?}");
    }
}

#[test]
fn a_split_has_equal_parts_or_parts_of_given_sizes() {
    let of = || {
        Trial::of("split")
            .with("x", counted(&[2, 6]))
            .int("axis", -1)
    };
    let parts = |trial: Trial| -> Vec<Vec<i64>> {
        let results = trial.run().unwrap();
        let tensors = results.iter().map(|result| result.as_tensor().unwrap());
        tensors.map(|t| t.as_ints().unwrap().into_owned()).collect()
    };
    assert_eq!(
        parts(of().int("num_splits", 3)),
        [vec![0, 1, 6, 7], vec![2, 3, 8, 9], vec![4, 5, 10, 11]]
    );
    assert_eq!(
        parts(of().ints("split_sizes", &[5, 0, 1]).int("num_splits", 3)),
        [vec![0, 1, 2, 3, 4, 6, 7, 8, 9, 10], vec![], vec![5, 11]]
    );
    for wrong in [
        of(),
        of().int("num_splits", 4),
        of().int("num_splits", 0),
        of().int("num_splits", i64::MAX),
        of().ints("split_sizes", &[5, 2]),
        of().ints("split_sizes", &[7, -1]),
        of().ints("split_sizes", &[i64::MAX, i64::MAX]),
        of().ints("split_sizes", &[3, 3]).int("num_splits", 3),
    ] {
        assert!(wrong.run().is_err(), "{wrong:?}");
    }
}

#[test]
fn tile_repeats_the_whole_tensor_along_each_axis() {
    let of = |reps: &[i64]| {
        Trial::of("tile")
            .with("x", counted(&[2, 2]))
            .ints("reps", reps)
    };
    // np.tile([[0, 1], [2, 3]], (2, 3)).
    let result = of(&[2, 3]).tensor();
    assert_eq!(result.shape(), [4, 6]);
    assert_eq!(
        *result.as_ints().unwrap(),
        [
            0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3
        ]
    );
    assert!(of(&[2]).run().is_err());
    assert_eq!(of(&[0, 1]).tensor().shape(), [0, 2]);
    assert!(of(&[-1, 1]).run().is_err());
    assert!(matches!(
        of(&[1 << 40, 1 << 40]).error(),
        EvalError::TooLarge { .. }
    ));
    assert!(matches!(
        of(&[i64::MAX, 2]).error(),
        EvalError::TooLarge { .. }
    ));
}

#[test]
fn a_border_is_constant_reflected_or_replicated() {
    let of = |pad: &[i64], mode| {
        Trial::of("pad")
            .with("x", counted(&[2, 3]))
            .ints("pad", pad)
            .text("mode", mode)
    };
    let constant = of(&[1, 0, 0, 2], "constant")
        .int("constant_val", 9)
        .tensor();
    assert_eq!(constant.shape(), [3, 5]);
    assert_eq!(
        *constant.as_ints().unwrap(),
        [9, 9, 9, 9, 9, 0, 1, 2, 9, 9, 3, 4, 5, 9, 9]
    );
    // np.pad(x, ((1, 1), (2, 1)), "reflect") and "edge".
    let reflected = of(&[1, 1, 2, 1], "reflect").tensor();
    let row = |first: i64| [2, 1, 0, 1, 2, 1].map(|value| value + first);
    let expected = [row(3), row(0), row(3), row(0)].concat();
    assert_eq!(*reflected.as_ints().unwrap(), expected);
    let replicated = of(&[1, 1, 2, 1], "replicate").tensor();
    let row = |first: i64| [0, 0, 0, 1, 2, 2].map(|value| value + first);
    let expected = [row(0), row(0), row(3), row(3)].concat();
    assert_eq!(*replicated.as_ints().unwrap(), expected);
}

#[test]
fn amounts_are_those_of_the_last_dimensions() {
    let padded = Trial::of("pad")
        .with("x", floats(&[1, 2], &[1.0, f32::NAN]))
        .ints("pad", &[1, 1]);
    let values = padded.numbers();
    assert_eq!(values[..2], [0.0, 1.0]);
    assert!(values[2].is_nan() && values[3] == 0.0);
}

#[test]
fn borders_that_cannot_be_made_are_errors() {
    let of = |pad: &[i64], mode| {
        Trial::of("pad")
            .with("x", counted(&[2, 3]))
            .ints("pad", pad)
            .text("mode", mode)
    };
    for (pad, mode) in [
        (&[0, 3][..], "reflect"),
        (&[3, 0], "reflect"),
        (&[1, 0, 0], "constant"),
        (&[0, 0, 0, 0, 0, 0], "constant"),
        (&[-1, 0], "constant"),
        (&[1, 0], "wrap"),
        (&[i64::MAX, i64::MAX], "constant"),
        (&[1 << 40, 1 << 40], "replicate"),
    ] {
        assert!(of(pad, mode).run().is_err(), "{pad:?} {mode}");
    }
    let wrong_kind = of(&[1, 1], "constant").float("constant_val", 0.5);
    assert!(wrong_kind.run().is_err());
    let empty = Trial::of("pad")
        .with("x", ints(&[2, 0], &[]))
        .ints("pad", &[1, 1]);
    assert!(empty.clone().text("mode", "replicate").run().is_err());
    assert_eq!(*empty.tensor().as_ints().unwrap(), [0, 0, 0, 0]);
}
