use crate::ir::types::DType;
use crate::ops::evaluate::EvalError;
use crate::ops::evaluate::trial::{Trial, floats, halves, ints};
use crate::tensor::Tensor;

#[test]
fn a_fill_repeats_one_value_of_any_type() {
    let of = || Trial::of("fill").ints("shape", &[2, 3]);
    let default = of().tensor();
    assert_eq!(
        (default.dtype(), default.shape()),
        (DType::Float32, &[2, 3][..])
    );
    assert_eq!(*default.as_floats().unwrap(), [0.0; 6]);
    assert_eq!(*of().int("value", 7).tensor().as_ints().unwrap(), [7; 6]);
    assert_eq!(
        *of().bool("value", true).tensor().as_bools().unwrap(),
        [true; 6]
    );
    let scalar = Trial::of("fill")
        .ints("shape", &[])
        .int("value", 7)
        .tensor();
    assert_eq!(scalar.shape(), [] as [usize; 0]);
    let like = Trial::of("fill_like")
        .with("ref_tensor", ints(&[3], &[0; 3]))
        .float("value", 2.5);
    assert_eq!(*like.tensor().as_floats().unwrap(), [2.5; 3]);
}

#[test]
fn absurd_sizes_are_errors() {
    let fill = |shape: &[i64]| Trial::of("fill").ints("shape", shape);
    assert!(fill(&[-1]).run().is_err());
    for shape in [
        &[1 << 40][..],
        &[1 << 40, 1 << 40],
        &[i64::MAX, i64::MAX, 0],
    ] {
        assert!(matches!(fill(shape).error(), EvalError::TooLarge { .. }));
    }
    assert!(fill(&[0, i64::MAX]).run().is_ok());
    let random = Trial::of("random_normal").ints("shape", &[1 << 40]);
    assert!(matches!(random.error(), EvalError::TooLarge { .. }));
    let range = Trial::of("range_1d")
        .with("start", wide(i64::MIN))
        .with("end", wide(i64::MAX))
        .with("step", wide(1));
    assert!(matches!(range.error(), EvalError::TooLarge { .. }));
}

fn wide(value: i64) -> Tensor {
    Tensor::ints(DType::Int64, vec![], vec![value])
}

fn int_range(start: i64, end: i64, step: i64) -> Trial {
    Trial::of("range_1d")
        .int("start", start)
        .int("end", end)
        .int("step", step)
}

fn range(start: f32, end: f32, step: f32) -> Trial {
    Trial::of("range_1d")
        .float("start", start)
        .float("end", end)
        .float("step", step)
}

#[test]
fn a_range_ends_before_its_end() {
    // np.arange(start, end, step).
    for (start, end, step, expected) in [
        (0, 7, 3, &[0, 3, 6][..]),
        (0, 6, 3, &[0, 3]),
        (5, 0, -2, &[5, 3, 1]),
        (0, 5, -1, &[]),
        (3, 3, 1, &[]),
        (0, 1, i64::MAX, &[0]),
        (0, -1, i64::MIN, &[0]),
    ] {
        let result = int_range(start, end, step).tensor();
        assert_eq!(*result.as_ints().unwrap(), *expected);
    }
    assert_eq!(int_range(0, 1, 0).error(), EvalError::DivisionByZero);
    let extremes = Trial::of("range_1d")
        .with("start", wide(i64::MIN))
        .with("end", wide(i64::MAX))
        .with("step", wide(i64::MAX));
    assert_eq!(
        *extremes.tensor().as_ints().unwrap(),
        [i64::MIN, -1, i64::MAX - 1]
    );
}

#[test]
fn a_range_of_floats_does_not_add_up_rounding() {
    let result = range(0.0, 100.0, 0.1).tensor();
    let values = result.as_floats().unwrap();
    assert_eq!(values.len(), 1000);
    // 999 times the fp32 number nearest to 0.1, rounded once.
    assert_eq!(values[999], (999.0 * f64::from(0.1f32)) as f32);
    assert_eq!(range(1.0, 0.0, -0.25).numbers(), [1.0, 0.75, 0.5, 0.25]);
    assert!(range(1.0, 0.0, 0.5).numbers().is_empty());
    for (start, end, step) in [
        (0.0, 1.0, 0.0),
        (0.0, f32::INFINITY, 1.0),
        (f32::NAN, 1.0, 1.0),
        (0.0, 1.0, 1e-45),
    ] {
        assert!(range(start, end, step).run().is_err());
    }
}

#[test]
fn the_length_of_a_range_of_halves_is_computed_in_halves() {
    // 1 / 0.1 is 10.002 with the half nearest to 0.1, which rounds to 10 in halves.
    let of = |value: f32| halves(&[], &[half::f16::from_f32(value).to_f32()]);
    let trial = Trial::of("range_1d")
        .with("start", of(0.0))
        .with("end", of(1.0));
    assert_eq!(trial.with("step", of(0.1)).tensor().shape(), [10]);
}

#[test]
fn the_shape_of_a_tensor_is_a_vector_of_int32() {
    let shape = Trial::of("shape")
        .with("x", floats(&[2, 0, 3], &[]))
        .tensor();
    assert_eq!((shape.dtype(), shape.shape()), (DType::Int32, &[3][..]));
    assert_eq!(*shape.as_ints().unwrap(), [2, 0, 3]);
    let scalar = Trial::of("shape").with("x", floats(&[], &[1.0])).tensor();
    assert_eq!(scalar.shape(), [0]);
}

/// Many numbers.
fn many(op_type: &'static str, seed: i64) -> Trial {
    Trial::of(op_type)
        .ints("shape", &[20_000])
        .int("seed", seed)
}

fn moments(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count;
    (mean, variance)
}

#[test]
fn a_seed_gives_the_same_numbers_again_and_another_gives_others() {
    for op_type in ["random_bernoulli", "random_normal", "random_uniform"] {
        assert_eq!(many(op_type, 3).numbers(), many(op_type, 3).numbers());
        assert_ne!(many(op_type, 3).numbers(), many(op_type, 4).numbers());
    }
}

#[test]
fn random_numbers_have_the_moments_of_their_distribution() {
    // Five standard errors of 20 000 draws.
    let near = |(mean, variance): (f64, f64), (m, v): (f64, f64)| {
        let error = 5.0 * (v / 20_000.0).sqrt();
        assert!((mean - m).abs() < error, "mean {mean}, not {m}");
        assert!(
            (variance / v - 1.0).abs() < 0.06,
            "variance {variance}, not {v}"
        );
    };
    let uniform = many("random_uniform", 1)
        .float("low", -1.0)
        .float("high", 3.0)
        .numbers();
    assert!(uniform.iter().all(|value| (-1.0..3.0).contains(value)));
    near(moments(&uniform), (1.0, 16.0 / 12.0));
    let normal = many("random_normal", 1)
        .float("mean", 2.0)
        .float("stddev", 3.0)
        .numbers();
    near(moments(&normal), (2.0, 9.0));
    let coins = many("random_bernoulli", 1).float("prob", 0.3).numbers();
    assert!(coins.iter().all(|value| *value == 0.0 || *value == 1.0));
    near(moments(&coins), (0.3, 0.3 * 0.7));
}

#[test]
fn degenerate_distributions_give_their_one_value() {
    let one = |trial: Trial, value: f64| assert!(trial.numbers().iter().all(|v| *v == value));
    one(many("random_bernoulli", 0).float("prob", 0.0), 0.0);
    one(many("random_bernoulli", 0).float("prob", 1.0), 1.0);
    one(
        many("random_normal", 0)
            .float("mean", 7.0)
            .float("stddev", 0.0),
        7.0,
    );
    one(
        many("random_uniform", 0)
            .float("low", 7.0)
            .float("high", 7.0),
        7.0,
    );
}

#[test]
fn distributions_that_do_not_exist_are_errors() {
    for trial in [
        many("random_bernoulli", 0).float("prob", 1.5),
        many("random_bernoulli", 0).float("prob", f32::NAN),
        many("random_normal", 0).float("stddev", -1.0),
        many("random_uniform", 0)
            .float("low", 2.0)
            .float("high", 1.0),
        many("random_uniform", 0).float("high", f32::INFINITY),
    ] {
        assert!(trial.run().is_err(), "{trial:?}");
    }
}

#[test]
fn categories_are_drawn_by_their_probabilities() {
    let draw = |mode, row: [f32; 3]| {
        let x = floats(
            &[2, 3],
            &[row, [0.0, f32::NEG_INFINITY, f32::NEG_INFINITY]].concat(),
        );
        let x = if mode == "probs" {
            floats(&[1, 3], &row)
        } else {
            x
        };
        let trial = Trial::of("random_categorical")
            .with("x", x)
            .text("mode", mode);
        trial.int("size", 20_000).int("seed", 5).numbers()
    };
    for (mode, row) in [
        ("probs", [1.0, 0.0, 3.0]),
        ("logits", [0.0, f32::NEG_INFINITY, 3f32.ln()]),
    ] {
        let drawn = draw(mode, row);
        let count = |wanted: f64| drawn[..20_000].iter().filter(|v| **v == wanted).count();
        assert_eq!(count(0.0) + count(2.0), 20_000);
        // Five standard errors of a share of 1/4.
        assert!((count(0.0) as f64 / 20_000.0 - 0.25).abs() < 0.0154);
        assert!(drawn[20_000..].iter().all(|value| *value == 0.0));
    }
}

#[test]
fn rows_without_probabilities_are_errors() {
    let of = |x: Tensor, mode| {
        Trial::of("random_categorical")
            .with("x", x)
            .text("mode", mode)
            .run()
    };
    assert!(of(floats(&[2], &[0.0, 0.0]), "probs").is_err());
    assert!(of(floats(&[2], &[1.0, -1.0]), "probs").is_err());
    assert!(of(floats(&[2], &[f32::NAN, 0.0]), "logits").is_err());
    assert!(of(floats(&[1], &[f32::NEG_INFINITY]), "logits").is_err());
    assert!(of(floats(&[1, 0], &[]), "logits").is_err());
    assert!(of(floats(&[], &[1.0]), "logits").is_err());
    assert!(of(floats(&[1], &[1.0]), "odds").is_err());
    assert!(of(floats(&[0, 2], &[]), "logits").is_ok());
}
