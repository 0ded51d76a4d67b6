use crate::ops::EvalError;
use crate::ops::Numerics;
use crate::ops::evaluate::trial::{Trial, assert_close, floats, halves};

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

fn of(op_type: &'static str, x: &[f32]) -> Trial {
    Trial::of(op_type).with("x", floats(&[x.len()], x))
}

#[test]
fn softmax_does_not_overflow_and_sums_to_one() {
    // exp(-1) / (1 + exp(-1)) and its complement, whatever is added to both elements.
    let low = (-1f64).exp() / (1.0 + (-1f64).exp());
    for offset in [0.0, 1e4, -1e4] {
        let result = of("softmax", &[offset, offset + 1.0]).numbers();
        assert_close(&result, &[low, 1.0 - low], 1e-6);
    }
}

#[test]
fn softmax_of_only_minus_infinity_or_with_an_infinity_is_nan() {
    let low = f32::NEG_INFINITY;
    let x = floats(
        &[4, 2],
        &[low, low, low, 3.0, f32::INFINITY, 0.0, f32::NAN, 0.0],
    );
    let result = Trial::of("softmax").with("x", x).numbers();
    // IEEE 754: ∞ − ∞ is NaN; e^(0 − ∞) / NaN too.
    assert_close(&result, &[NAN, NAN, 0.0, 1.0, NAN, NAN, NAN, NAN], 0.0);
}

#[test]
fn softmax_along_an_inner_axis_is_that_of_the_columns() {
    let x: Vec<f32> = (0..12u8).map(|i| f32::from(i * 7 % 5)).collect();
    let result = Trial::of("softmax")
        .with("x", floats(&[2, 3, 2], &x))
        .int("axis", -2)
        .numbers();
    for outer in 0..2 {
        for column in 0..2 {
            let at = |row: usize| outer * 6 + row * 2 + column;
            let column = [x[at(0)], x[at(1)], x[at(2)]];
            let alone = of("softmax", &column).numbers();
            assert_close(&[result[at(0)], result[at(1)], result[at(2)]], &alone, 0.0);
        }
    }
}

#[test]
fn softmax_of_many_rows_is_that_of_each_row() {
    let x: Vec<f32> = (0..40_000u32)
        .map(|i| (i * 7919 % 1000) as f32 / 100.0)
        .collect();
    let result = Trial::of("softmax")
        .with("x", floats(&[400, 100], &x))
        .numbers();
    for row in [0, 57, 399] {
        let alone = of("softmax", &x[row * 100..(row + 1) * 100]).numbers();
        assert_eq!(result[row * 100..(row + 1) * 100], alone);
    }
}

#[test]
fn softmax_of_no_element_is_empty_and_of_a_scalar_an_error() {
    let none = Trial::of("softmax")
        .with("x", floats(&[2, 0], &[]))
        .tensor();
    assert_eq!(none.shape(), [2, 0]);
    let error = Trial::of("softmax").with("x", floats(&[], &[1.0])).error();
    assert!(matches!(
        error,
        EvalError::Argument {
            parameter: "axis",
            ..
        }
    ));
}

#[test]
fn softplus_keeps_its_digits_at_both_ends() {
    // log(1 + e^x): e^-50 at −50, 100 at 100, log 2 at 0.
    let result = of(
        "softplus",
        &[-50.0, 0.0, 100.0, f32::INFINITY, f32::NEG_INFINITY],
    )
    .numbers();
    let expected = [(-50f64).exp(), std::f64::consts::LN_2, 100.0, INF, 0.0];
    assert_close(&result, &expected, 1e-6);
}

#[test]
fn softplus_of_fp16_collapses_on_the_engine_above_ten_point_four() {
    let trial = Trial::of("softplus").with("x", halves(&[2], &[10.3, 10.5]));
    assert_close(&trial.numbers(), &[10.300_034, 10.500_028], 1e-6);
    let engine = trial.under(Numerics::ANE).numbers();
    assert!(engine[0] > 10.0 && engine[1] == 0.0, "{engine:?}");
    let wide = of("softplus", &[10.5]).under(Numerics::ANE).numbers();
    assert!(wide[0] > 10.0);
}

#[test]
fn the_modes_of_gelu_are_those_of_pytorch() {
    // torch.nn.functional.gelu(x), with approximate="tanh", and x·sigmoid(1.702 x), in float64.
    let x = [-3.0, -0.5, 0.0, 2.0];
    let mode = |mode: &str| of("gelu", &x).text("mode", mode).numbers();
    let exact = [-0.004_049_694, -0.154_268_770, 0.0, 1.954_499_736];
    assert_close(&mode("EXACT"), &exact, 2e-7);
    assert_close(&of("gelu", &x).numbers(), &exact, 2e-7);
    let tanh = [-0.003_637_392, -0.154_285_990, 0.0, 1.954_597_694];
    assert_close(&mode("TANH_APPROXIMATION"), &tanh, 1e-4);
    let sigmoid = [-0.018_071_310, -0.149_611_563, 0.0, 1.935_658_623];
    assert_close(&mode("SIGMOID_APPROXIMATION"), &sigmoid, 1e-6);
    let error = of("gelu", &x).text("mode", "NONE").error();
    assert!(matches!(error, EvalError::Invalid(_)));
}

#[test]
fn gelu_keeps_the_digits_of_its_left_tail() {
    // ½ · x · erfc(−x/√2) at −5: −5 · Φ(−5) with Φ(−5) = 2.8665157e-7.
    assert_close(&of("gelu", &[-5.0]).numbers(), &[-1.433_257_86e-6], 1e-6);
}

#[test]
fn the_sigmoid_saturates_without_nan() {
    let x = [f32::NEG_INFINITY, -200.0, 0.0, 200.0, f32::INFINITY];
    assert_eq!(of("sigmoid", &x).numbers(), [0.0, 0.0, 0.5, 1.0, 1.0]);
    assert_eq!(of("silu", &[-200.0, 200.0]).numbers(), [0.0, 200.0]);
}

#[test]
fn nan_goes_through_the_piecewise_activations() {
    let nan = [f32::NAN];
    for op_type in [
        "relu", "relu6", "silu", "softsign", "softplus", "sigmoid", "gelu",
    ] {
        assert!(of(op_type, &nan).numbers()[0].is_nan(), "{op_type}");
    }
    for op_type in [
        "clamped_relu",
        "elu",
        "leaky_relu",
        "thresholded_relu",
        "sigmoid_hard",
    ] {
        let trial = of(op_type, &nan).float("alpha", 0.5).float("beta", 1.0);
        assert!(trial.numbers()[0].is_nan(), "{op_type}");
    }
}

#[test]
fn piecewise_activations_bend_where_their_definition_says() {
    let with = |op_type, x: &[f32], alpha, beta| {
        of(op_type, x)
            .float("alpha", alpha)
            .float("beta", beta)
            .numbers()
    };
    assert_eq!(
        with("clamped_relu", &[-4.0, 1.0, 9.0], 0.5, 6.0),
        [-2.0, 1.0, 6.0]
    );
    // A negative slope lifts negative arguments, up to beta.
    assert_eq!(with("clamped_relu", &[-40.0], -0.5, 6.0), [6.0]);
    assert_eq!(with("leaky_relu", &[-4.0, 4.0], 0.25, 0.0), [-1.0, 4.0]);
    assert_eq!(
        with("thresholded_relu", &[1.0, 2.0, 3.0], 2.0, 0.0),
        [0.0, 2.0, 3.0]
    );
    assert_eq!(
        with("sigmoid_hard", &[-9.0, 1.0, 9.0], 0.25, 0.5),
        [0.0, 0.75, 1.0]
    );
    assert_eq!(with("linear_activation", &[2.0], 3.0, 1.0), [7.0]);
    assert_close(
        &with("elu", &[-1e-6, 2.0], 2.0, 0.0),
        &[-1.999_999e-6, 2.0],
        1e-6,
    );
    assert_close(
        &with("scaled_tanh", &[0.5], 2.0, 3.0),
        &[2.0 * 1.5f64.tanh()],
        1e-6,
    );
}

#[test]
fn slopes_belong_to_the_channels() {
    let x = floats(&[1, 2, 2], &[-1.0, 1.0, -2.0, 2.0]);
    let trial = Trial::of("prelu").with("x", x.clone());
    let result = trial
        .clone()
        .with("alpha", floats(&[2], &[0.5, 10.0]))
        .numbers();
    assert_eq!(result, [-0.5, 1.0, -20.0, 2.0]);
    let error = trial.with("alpha", floats(&[3], &[1.0; 3])).error();
    assert!(matches!(error, EvalError::Invalid(_)));
    let softplus = Trial::of("softplus_parametric")
        .with("x", x)
        .with("alpha", floats(&[2], &[1.0, 2.0]))
        .with("beta", floats(&[2], &[1.0, 0.0]))
        .numbers();
    let log = |x: f64| x.exp().ln_1p();
    let expected = [log(-1.0), log(1.0), 2.0 * log(0.0), 2.0 * log(0.0)];
    assert_close(&softplus, &expected, 1e-6);
}
