use std::sync::Arc;

use crate::ops::Datum;
use crate::ops::evaluate::EvalError;
use crate::ops::evaluate::trial::{Trial, floats, ints};
use crate::tensor::Tensor;

fn list(trial: &Trial) -> Datum {
    trial.run().unwrap().remove(0)
}

fn made(length: i64) -> Datum {
    list(&Trial::of("make_list").int("init_length", length))
}

fn written(ls: Datum, index: i64, value: &[i64]) -> Datum {
    list(
        &Trial::of("list_write")
            .datum("ls", ls)
            .int("index", index)
            .ints("value", value),
    )
}

fn length(ls: Datum) -> i64 {
    Trial::of("list_length")
        .datum("ls", ls)
        .tensor()
        .as_ints()
        .unwrap()[0]
}

fn gathered(ls: Datum, indices: &[i64]) -> Trial {
    Trial::of("list_gather")
        .datum("ls", ls)
        .ints("indices", indices)
}

#[test]
fn writing_beyond_the_end_makes_a_list_longer() {
    let ls = made(2);
    assert_eq!(length(ls.clone()), 2);
    let longer = written(ls.clone(), 4, &[7, 8]);
    assert_eq!(length(longer.clone()), 5);
    assert_eq!(length(ls), 2);
    let read = Trial::of("list_read")
        .datum("ls", longer.clone())
        .int("index", 4);
    assert_eq!(*read.tensor().as_ints().unwrap(), [7, 8]);
    // Never written: zeros of the shape of those that were.
    let rows = gathered(longer, &[4, 0, 4]).tensor();
    assert_eq!(rows.shape(), [3, 2]);
    assert_eq!(*rows.as_ints().unwrap(), [7, 8, 0, 0, 7, 8]);
}

#[test]
fn a_scatter_writes_one_slice_to_each_index_and_the_last_of_equals_stays() {
    let scattered = |indices: &[i64], value: Tensor| {
        Trial::of("list_scatter")
            .datum("ls", made(1))
            .ints("indices", indices)
            .with("value", value)
    };
    let ls = list(&scattered(&[2, 0, 2], ints(&[3, 2], &[1, 2, 3, 4, 5, 6])));
    let rows = gathered(ls, &[0, 1, 2]).tensor();
    assert_eq!(*rows.as_ints().unwrap(), [3, 4, 0, 0, 5, 6]);
    assert!(scattered(&[0, 1], ints(&[3], &[0; 3])).run().is_err());
    assert!(scattered(&[0], ints(&[], &[0])).run().is_err());
    assert_eq!(length(list(&scattered(&[], ints(&[0, 2], &[])))), 1);
}

#[test]
fn indices_out_of_range_and_absurd_lengths_are_errors() {
    let ls = written(made(1), 0, &[1]);
    let read = |index| {
        Trial::of("list_read")
            .datum("ls", ls.clone())
            .int("index", index)
    };
    for index in [-1, 1, i64::MAX] {
        assert!(matches!(read(index).error(), EvalError::OutOfRange { .. }));
        assert!(gathered(ls.clone(), &[0, index]).run().is_err());
    }
    let write = |index| {
        Trial::of("list_write")
            .datum("ls", ls.clone())
            .int("index", index)
    };
    for index in [-1, 1 << 31, i64::MAX] {
        assert!(write(index).ints("value", &[1]).run().is_err());
    }
    for length in [-1, 1 << 40, i64::MAX] {
        assert!(
            Trial::of("make_list")
                .int("init_length", length)
                .run()
                .is_err()
        );
    }
    let tensor = Trial::of("list_length").with("ls", ints(&[1], &[0]));
    assert!(tensor.run().is_err());
}

#[test]
fn items_without_a_known_shape_cannot_be_read() {
    assert!(gathered(made(2), &[0]).run().is_err());
    assert!(gathered(made(2), &[]).run().is_err());
    let uneven = written(written(made(2), 0, &[1]), 1, &[1, 2]);
    assert!(gathered(uneven, &[0, 1]).run().is_err());
}

#[test]
fn the_label_of_the_highest_probability_comes_with_the_probability_of_each() {
    let label = |text: &str| Some(Tensor::texts(vec![], vec![text.to_owned()]));
    let classes = || Datum::List(Arc::new(vec![label("cat"), label("dog"), label("elk")]));
    let of = |values: &[f32]| {
        Trial::of("classify")
            .datum("classes", classes())
            .with("probabilities", floats(&[1, values.len()], values))
    };
    let results = of(&[0.25, f32::NAN, 0.5]).run().unwrap();
    let best = results[0].as_tensor().unwrap().as_texts().unwrap();
    assert_eq!(*best, ["elk"]);
    let Datum::Dictionary(pairs) = &results[1] else {
        panic!("the second result is {}", results[1].words());
    };
    let numbers: Vec<f64> = pairs
        .iter()
        .map(|(_, value)| value.to_f64().unwrap()[0])
        .collect();
    assert!(numbers[0] == 0.25 && numbers[1].is_nan() && numbers[2] == 0.5);
    assert_eq!(*pairs[1].0.as_texts().unwrap(), ["dog"]);
    let tie = of(&[0.5, 0.5, 0.5]).run().unwrap();
    assert_eq!(*tie[0].as_tensor().unwrap().as_texts().unwrap(), ["cat"]);
    assert!(of(&[0.5, 0.5]).run().is_err());
}
