use crate::ops::EvalError;
use crate::ops::Numerics;
use crate::ops::evaluate::trial::{Trial, assert_close, floats, halves};
use crate::tensor::Tensor;

fn numbers(len: usize) -> Vec<f32> {
    (0..len as u32)
        .map(|index| (index * 37 % 17) as f32 / 8.0 - 1.0)
        .collect()
}

/// (x − mean) / √(variance + epsilon), in fp64.
fn normalized(x: &[f64], epsilon: f64) -> Vec<f64> {
    let count = x.len() as f64;
    let mean = x.iter().sum::<f64>() / count;
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
    x.iter()
        .map(|x| (x - mean) / (variance + epsilon).sqrt())
        .collect()
}

#[test]
fn layer_norm_normalizes_the_axes_together_and_scales_them() {
    let x = numbers(24);
    let (gamma, beta) = (numbers(12), [0.5; 12]);
    let result = Trial::of("layer_norm")
        .with("x", floats(&[2, 3, 4], &x))
        .ints("axes", &[-1, 1])
        .with("gamma", floats(&[3, 4], &gamma))
        .with("beta", floats(&[3, 4], &beta))
        .numbers();
    for batch in 0..2 {
        let range = batch * 12..(batch + 1) * 12;
        let row: Vec<f64> = x[range.clone()].iter().copied().map(f64::from).collect();
        let expected: Vec<f64> = normalized(&row, 1e-5)
            .iter()
            .zip(&gamma)
            .map(|(x, gamma)| x * f64::from(*gamma) + 0.5)
            .collect();
        for (actual, expected) in result[range].iter().zip(expected) {
            assert!((actual - expected).abs() < 1e-6, "{actual}, not {expected}");
        }
    }
}

#[test]
fn layer_norm_over_an_axis_that_is_not_the_last_is_that_of_its_columns() {
    let x = numbers(12);
    let result = Trial::of("layer_norm")
        .with("x", floats(&[3, 4], &x))
        .ints("axes", &[0])
        .with("gamma", floats(&[3], &[1.0, 2.0, 3.0]))
        .float("epsilon", 0.25)
        .tensor();
    assert_eq!(result.shape(), [3, 4]);
    let result = result.to_f64().unwrap();
    for column in 0..4 {
        let of = |row: usize| f64::from(x[row * 4 + column]);
        let expected = normalized(&[of(0), of(1), of(2)], 0.25);
        for row in 0..3 {
            let expected = expected[row] * (row + 1) as f64;
            assert!((result[row * 4 + column] - expected).abs() < 1e-6);
        }
    }
}

#[test]
fn layer_norm_keeps_its_digits_far_from_zero() {
    // The mean of squares minus the square of the mean would lose them all: 1e8 has no room for 1.
    let result = Trial::of("layer_norm")
        .with(
            "x",
            floats(&[1, 4], &[10_000.0, 10_001.0, 10_002.0, 10_003.0]),
        )
        .ints("axes", &[1])
        .numbers();
    let expected = normalized(&[0.0, 1.0, 2.0, 3.0], 1e-5);
    assert_close(&result, &expected, 1e-6);
}

#[test]
fn a_gamma_of_another_length_is_an_error() {
    let x = floats(&[2, 3], &numbers(6));
    let error = Trial::of("layer_norm")
        .with("x", x.clone())
        .ints("axes", &[1])
        .with("gamma", floats(&[2], &[1.0; 2]))
        .error();
    assert!(matches!(error, EvalError::Invalid(_)));
    let error = Trial::of("layer_norm")
        .with("x", x)
        .ints("axes", &[2])
        .error();
    assert!(matches!(
        error,
        EvalError::Argument {
            parameter: "axes",
            ..
        }
    ));
}

#[test]
fn batch_norm_takes_moments_and_scales_of_the_channel() {
    let vector = |values: [f32; 2]| floats(&[2], &values);
    let trial = Trial::of("batch_norm")
        .with("x", floats(&[1, 2, 2], &[1.0, 2.0, 3.0, 4.0]))
        .with("mean", vector([1.0, 2.0]))
        .with("variance", vector([3.0, 0.0]))
        .float("epsilon", 1.0);
    assert_eq!(trial.numbers(), [0.0, 0.5, 1.0, 2.0]);
    let scaled = trial
        .clone()
        .with("gamma", vector([2.0, 10.0]))
        .with("beta", vector([-1.0, 1.0]));
    assert_eq!(scaled.numbers(), [-1.0, 0.0, 11.0, 21.0]);
    let error = trial.with("gamma", floats(&[3], &[1.0; 3])).error();
    assert!(matches!(error, EvalError::Invalid(_)));
}

#[test]
fn instance_norm_normalizes_each_channel_of_each_batch_element() {
    let x = numbers(12);
    let result = Trial::of("instance_norm")
        .with("x", floats(&[2, 2, 3], &x))
        .with("gamma", floats(&[2], &[1.0, -2.0]))
        .numbers();
    for (index, row) in x.chunks(3).enumerate() {
        let row: Vec<f64> = row.iter().copied().map(f64::from).collect();
        let gamma = if index % 2 == 0 { 1.0 } else { -2.0 };
        for (actual, expected) in result[index * 3..].iter().zip(normalized(&row, 1e-5)) {
            assert!((actual - gamma * expected).abs() < 1e-6);
        }
    }
}

#[test]
fn l2_norm_divides_by_the_length_over_the_last_three_axes() {
    // 3, 4 and 6, 8 have lengths 5 and 10.
    let result = Trial::of("l2_norm")
        .with("x", floats(&[2, 1, 2, 1], &[3.0, 4.0, 6.0, 8.0]))
        .float("epsilon", 0.0)
        .numbers();
    assert_close(&result, &[0.6, 0.8, 0.6, 0.8], 1e-7);
    let error = Trial::of("l2_norm")
        .with("x", floats(&[2, 2], &[0.0; 4]))
        .error();
    assert!(matches!(error, EvalError::Invalid(_)));
}

#[test]
fn l2_norm_of_huge_elements_does_not_overflow() {
    let result = Trial::of("l2_norm")
        .with("x", floats(&[1, 1, 2], &[3e30, 4e30]))
        .numbers();
    assert_close(&result, &[0.6, 0.8], 1e-6);
}

#[test]
fn a_default_epsilon_of_fp16_is_rounded_where_fp16_is() {
    // 1e-6 is the subnormal 17 · 2^-24 in fp16, and 0 where subnormals are flushed: 0 / √0 is NaN.
    let zeros = Trial::of("l2_norm").with("x", halves(&[1, 1, 1], &[0.0]));
    assert_eq!(zeros.clone().under(Numerics::FP16).numbers(), [0.0]);
    assert!(zeros.under(Numerics::ANE).numbers()[0].is_nan());
}

#[test]
fn local_response_norm_sums_over_the_neighbouring_channels() {
    let x = [1.0, 2.0, 3.0, 4.0];
    let of = |size: i64| {
        Trial::of("local_response_norm")
            .with("x", floats(&[1, 4, 1], &x))
            .int("size", size)
            .float("alpha", 1.0)
            .float("beta", 1.0)
            .float("k", 1.0)
    };
    let three = [
        1.0 / (1.0 + 5.0 / 3.0),
        2.0 / (1.0 + 14.0 / 3.0),
        3.0 / (1.0 + 29.0 / 3.0),
        4.0 / (1.0 + 25.0 / 3.0),
    ];
    assert_close(&of(3).numbers(), &three, 1e-6);
    // torch.nn.functional.local_response_norm: of an even size, one channel more stands before.
    let two = [1.0 / 1.5, 2.0 / 3.5, 3.0 / 7.5, 4.0 / 13.5];
    assert_close(&of(2).numbers(), &two, 1e-6);
    let all = x.map(|x| f64::from(x) / (1.0 + 30.0 / 1e15));
    assert_close(&of(1_000_000_000_000_000).numbers(), &all, 1e-6);
    assert!(matches!(of(0).error(), EvalError::Invalid(_)));
}

#[test]
fn empty_tensors_stay_empty() {
    let none = |shape: &[usize]| Tensor::zeros(crate::ir::types::DType::Float32, shape.to_vec());
    for op_type in ["layer_norm", "l2_norm", "instance_norm"] {
        let result = Trial::of(op_type).with("x", none(&[0, 2, 0])).tensor();
        assert_eq!(result.shape(), [0, 2, 0], "{op_type}");
    }
    let trial = Trial::of("local_response_norm")
        .with("x", none(&[1, 0, 2]))
        .int("size", 3);
    assert!(trial.tensor().is_empty());
}

#[test]
fn many_rows_are_normalized_as_each_alone() {
    let x = numbers(40_000);
    let of = |x: &[f32]| {
        Trial::of("layer_norm")
            .with("x", floats(&[x.len() / 100, 100], x))
            .ints("axes", &[-1])
            .numbers()
    };
    let result = of(&x);
    assert_eq!(result[5700..5800], of(&x[5700..5800]));
}
