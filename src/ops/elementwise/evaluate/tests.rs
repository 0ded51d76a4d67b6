use crate::ir::types::DType;
use crate::ops::EvalError;
use crate::ops::Numerics;
use crate::ops::evaluate::trial::{Trial, assert_close, floats, halves, ints};
use crate::tensor::Tensor;

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

fn of(op_type: &'static str, x: Tensor, y: Tensor) -> Trial {
    Trial::of(op_type).with("x", x).with("y", y)
}

fn row(values: &[f32]) -> Tensor {
    floats(&[values.len()], values)
}

fn int_row(values: &[i64]) -> Tensor {
    ints(&[values.len()], values)
}

fn bool_row(values: &[bool]) -> Tensor {
    Tensor::bools(vec![values.len()], values.to_vec())
}

#[test]
fn operands_broadcast_over_leading_trailing_and_inner_axes() {
    // numpy, with a = arange(6).reshape(1, 3, 2) and b of the shapes below times 10.
    let a = floats(&[1, 3, 2], &[0., 1., 2., 3., 4., 5.]);
    let sum = |b: Tensor| of("add", a.clone(), b).tensor();
    let last = sum(floats(&[2], &[0., 10.]));
    assert_eq!(*last.as_floats().unwrap(), [0., 11., 2., 13., 4., 15.]);
    let inner = sum(floats(&[3, 1], &[0., 10., 20.]));
    assert_eq!(*inner.as_floats().unwrap(), [0., 1., 12., 13., 24., 25.]);
    let leading = sum(floats(&[2, 1, 1], &[0., 10.]));
    assert_eq!(leading.shape(), [2, 3, 2]);
    assert_eq!(
        *leading.as_floats().unwrap(),
        [0., 1., 2., 3., 4., 5., 10., 11., 12., 13., 14., 15.]
    );
    let scalar = of("sub", floats(&[], &[1.0]), a.clone()).tensor();
    assert_eq!(*scalar.as_floats().unwrap(), [1., 0., -1., -2., -3., -4.]);
    let none = sum(floats(&[2, 1, 0], &[]).reshaped(vec![0, 1, 1]).unwrap());
    assert_eq!(none.shape(), [0, 3, 2]);
    assert!(matches!(
        of("add", a, floats(&[4], &[0.; 4])).error(),
        EvalError::Tensor(_)
    ));
}

#[test]
fn a_broadcast_over_both_operands_is_the_same_in_many_threads() {
    // x[i] + y[j] for 300 · 400 elements, more than one task makes.
    let x: Vec<f32> = (0..300u16).map(f32::from).collect();
    let y: Vec<f32> = (0..400u16).map(|j| f32::from(j) * 1000.0).collect();
    let result = of("add", floats(&[300, 1], &x), floats(&[1, 400], &y)).tensor();
    let expected: Vec<f32> = x
        .iter()
        .flat_map(|x| y.iter().map(move |y| x + y))
        .collect();
    assert_eq!(*result.as_floats().unwrap(), expected);
}

#[test]
fn a_result_that_does_not_fit_into_memory_is_refused() {
    let long = |shape: Vec<usize>| Tensor::floats(DType::Float32, shape, vec![0.0; 1 << 15]);
    let error = of("mul", long(vec![1 << 15, 1]), long(vec![1, 1 << 15])).error();
    assert!(matches!(error, EvalError::TooLarge { .. }));
}

#[test]
fn operands_of_two_kinds_are_an_error_that_names_the_second() {
    let error = of("add", row(&[1.0]), int_row(&[1])).error();
    assert_eq!(
        error.to_string(),
        "`y`: a tensor of floats is needed, this one is of int32"
    );
    assert_eq!(
        Trial::of("add").with("x", row(&[1.0])).error(),
        EvalError::Missing("y")
    );
}

#[test]
fn remainders_and_floored_quotients_follow_the_sign_of_the_divisor() {
    // Python: 7 // 3, -7 // 3, 7 // -3, -7 // -3 and the same with %.
    let (x, y) = ([7, -7, 7, -7], [3, 3, -3, -3]);
    let quotients = of("floor_div", int_row(&x), int_row(&y)).numbers();
    assert_eq!(quotients, [2., -3., -3., 2.]);
    assert_eq!(
        of("mod", int_row(&x), int_row(&y)).numbers(),
        [1., 2., -2., -1.]
    );
    let (x, y) = ([7., -7., 7., -7.], [3., 3., -3., -3.]);
    assert_eq!(
        of("floor_div", row(&x), row(&y)).numbers(),
        [2., -3., -3., 2.]
    );
    assert_eq!(of("mod", row(&x), row(&y)).numbers(), [1., 2., -2., -1.]);
}

#[test]
fn floored_quotients_of_floats_are_those_of_numpy() {
    // numpy.floor_divide and numpy.remainder in float32. 1 / 0.1 rounds to 10, but 0.1f is above
    // one tenth, so that only 9 of it fit.
    let x = [1.0, -5.0, 5.0, 1.0, 0.0, INF, -1.0];
    let y = [0.1, INF, INF, 0.0, 0.0, 2.0, INF];
    let quotients = of("floor_div", row(&x), row(&y)).numbers();
    let nan = f64::NAN;
    assert_close(
        &quotients,
        &[9.0, -1.0, 0.0, f64::INFINITY, nan, nan, -1.0],
        0.0,
    );
    let rests = of("mod", row(&x[1..]), row(&y[1..])).numbers();
    assert_close(
        &rests,
        &[f64::INFINITY, 5.0, nan, nan, nan, f64::INFINITY],
        0.0,
    );
}

#[test]
fn integers_are_not_divided_by_zero() {
    for op_type in ["floor_div", "mod", "real_div"] {
        let error = of(op_type, int_row(&[1, 2]), int_row(&[1, 0])).error();
        assert_eq!(error, EvalError::DivisionByZero, "{op_type}");
        let none = of(op_type, int_row(&[]), ints(&[1], &[0])).tensor();
        assert!(none.is_empty());
    }
    assert_eq!(
        of("real_div", row(&[1.0, -1.0]), row(&[0.0, 0.0])).numbers(),
        [f64::INFINITY, f64::NEG_INFINITY]
    );
}

#[test]
fn true_division_of_integers_cuts_off_the_fraction() {
    let result = of("real_div", int_row(&[10, -7, 40]), int_row(&[11, 2, 14])).numbers();
    assert_eq!(result, [0., -3., 2.]);
}

#[test]
fn powers_are_those_of_c_for_floats_and_exact_for_integers() {
    // C's pow: (-2)^3, (-2)^0.5, 0^0, 0^-1, NaN^0, 1^NaN, 3^2.
    let x = [-2.0, -2.0, 0.0, 0.0, NAN, 1.0, 3.0];
    let y = [3.0, 0.5, 0.0, -1.0, 0.0, NAN, 2.0];
    let result = of("pow", row(&x), row(&y)).numbers();
    assert_close(
        &result,
        &[-8., f64::NAN, 1., f64::INFINITY, 1., 1., 9.],
        0.0,
    );
    let ints = of(
        "pow",
        int_row(&[3, -2, 2, -1, 1, 0]),
        int_row(&[13, 3, -1, -3, -9, 0]),
    );
    assert_eq!(ints.numbers(), [1_594_323., -8., 0., -1., 1., 1.]);
    let error = of("pow", int_row(&[0, 5]), int_row(&[-1, 2])).error();
    assert_eq!(error, EvalError::DivisionByZero);
    let apart = of("pow", int_row(&[0, 5]), int_row(&[1, -2])).numbers();
    assert_eq!(apart, [0., 0.]);
}

#[test]
fn nan_wins_in_maximum_and_minimum_on_either_side() {
    let (x, y) = (row(&[NAN, 1.0, 1.0]), row(&[1.0, NAN, 2.0]));
    let largest = of("maximum", x.clone(), y.clone()).numbers();
    assert_close(&largest, &[f64::NAN, f64::NAN, 2.0], 0.0);
    assert_close(
        &of("minimum", x, y).numbers(),
        &[f64::NAN, f64::NAN, 1.0],
        0.0,
    );
}

#[test]
fn comparisons_with_nan_are_false_except_not_equal() {
    let (x, y) = (row(&[NAN, 0.0, INF]), row(&[NAN, -0.0, INF]));
    let result = |op_type| {
        let result = of(op_type, x.clone(), y.clone()).tensor();
        assert_eq!(result.dtype(), DType::Bool);
        result.as_bools().unwrap().into_owned()
    };
    assert_eq!(result("equal"), [false, true, true]);
    assert_eq!(result("not_equal"), [true, false, false]);
    assert_eq!(result("less"), [false, false, false]);
    assert_eq!(result("greater_equal"), [false, true, true]);
}

#[test]
fn comparisons_of_bools_order_false_before_true() {
    let (x, y) = ([false, false, true, true], [false, true, false, true]);
    let result = |op_type| {
        let result = of(op_type, bool_row(&x), bool_row(&y)).tensor();
        result.as_bools().unwrap().into_owned()
    };
    for (index, (x, y)) in x.into_iter().zip(y).enumerate() {
        assert_eq!(result("less")[index], !x && y);
        assert_eq!(result("less_equal")[index], x <= y);
        assert_eq!(result("greater")[index], x && !y);
        assert_eq!(result("greater_equal")[index], x >= y);
        assert_eq!(result("logical_xor")[index], x != y);
        assert_eq!(result("logical_and")[index], x && y);
        assert_eq!(result("logical_or")[index], x || y);
    }
}

#[test]
fn round_takes_halves_to_even_and_keeps_the_sign_of_zero() {
    let result = Trial::of("round")
        .with("x", row(&[0.5, 1.5, 2.5, -0.5, -1.5]))
        .numbers();
    assert_eq!(result, [0., 2., 2., 0., -2.]);
    assert!(result[3].is_sign_negative());
}

#[test]
fn the_sign_of_nan_is_nan() {
    let result = Trial::of("sign")
        .with("x", row(&[-INF, -0.0, 3.0, NAN]))
        .numbers();
    assert_close(&result, &[-1.0, 0.0, 1.0, f64::NAN], 0.0);
}

#[test]
fn clip_keeps_nan_and_prefers_beta() {
    let clip = |alpha, beta| {
        Trial::of("clip")
            .with("x", row(&[-INF, 0.5, NAN, 9.0]))
            .float("alpha", alpha)
            .float("beta", beta)
            .numbers()
    };
    assert_close(&clip(0.0, 6.0), &[0.0, 0.5, f64::NAN, 6.0], 0.0);
    assert_close(&clip(6.0, 1.0), &[1.0, 1.0, f64::NAN, 1.0], 0.0);
}

#[test]
fn a_threshold_of_integers_stays_exact() {
    let result = Trial::of("threshold")
        .with("x", int_row(&[16_777_217, -5]))
        .int("alpha", -1)
        .numbers();
    assert_eq!(result, [16_777_217., -1.]);
}

#[test]
fn epsilon_is_added_before_the_function() {
    // 1 / sqrt(0 + 1e-12), 1 / (0 + 1e-4), ln(0 + 2^-149), where 2^-149 is 1e-45 in fp32.
    let zero = || row(&[0.0]);
    assert_close(
        &Trial::of("rsqrt").with("x", zero()).numbers(),
        &[1e6],
        1e-6,
    );
    assert_close(
        &Trial::of("inverse").with("x", zero()).numbers(),
        &[1e4],
        1e-6,
    );
    let expected = -149.0 * std::f64::consts::LN_2;
    assert_close(
        &Trial::of("log").with("x", zero()).numbers(),
        &[expected],
        1e-6,
    );
    let given = Trial::of("rsqrt").with("x", zero()).float("epsilon", 0.25);
    assert_eq!(given.numbers(), [2.0]);
}

#[test]
fn a_default_epsilon_vanishes_in_fp16_where_that_is_rounded() {
    let trial = Trial::of("rsqrt").with("x", halves(&[1], &[0.0]));
    assert_close(&trial.numbers(), &[1e6], 1e-6);
    assert_eq!(trial.under(Numerics::FP16).numbers(), [f64::INFINITY]);
}

#[test]
fn erf_is_right_at_both_tails() {
    // Abramowitz and Stegun, table 7.1: erf 0.5, erf 2.
    let result = Trial::of("erf")
        .with("x", row(&[0.5, 2.0, -INF, NAN]))
        .numbers();
    let expected = [0.520_499_877_8, 0.995_322_265_0, -1.0, f64::NAN];
    assert_close(&result, &expected, 1e-7);
}

#[test]
fn powers_of_two_are_truncated_for_integers() {
    let result = Trial::of("exp2")
        .with("x", int_row(&[-1, 0, 10, 64]))
        .numbers();
    assert_eq!(result, [0., 1., 1024., 0.]);
}

#[test]
fn casts_to_integers_cut_off_saturate_and_make_zero_of_nan() {
    let cast = |dtype| {
        Trial::of("cast")
            .with("x", row(&[1.9, -1.9, 1e20, -INF, NAN]))
            .text("dtype", dtype)
            .tensor()
    };
    let int32 = cast("int32");
    assert_eq!(int32.dtype(), DType::Int32);
    let expected = [1, -1, i64::from(i32::MAX), i64::from(i32::MIN), 0];
    assert_eq!(*int32.as_ints().unwrap(), expected);
    assert_eq!(*cast("uint8").as_ints().unwrap(), [1, 0, 255, 0, 0]);
    assert_eq!(*cast("int16").as_ints().unwrap(), [1, -1, 32767, -32768, 0]);
    assert_eq!(*cast("bool").as_bools().unwrap(), [true; 5]);
}

#[test]
fn casts_between_bools_integers_and_floats_keep_the_value() {
    let cast = |x: Tensor, dtype| Trial::of("cast").with("x", x).text("dtype", dtype);
    assert_eq!(cast(bool_row(&[true, false]), "fp16").numbers(), [1., 0.]);
    assert_eq!(cast(bool_row(&[true, false]), "int32").numbers(), [1., 0.]);
    assert_eq!(cast(int_row(&[-3, 0]), "bool").numbers(), [1., 0.]);
    assert_eq!(cast(int_row(&[-3, 300]), "fp32").numbers(), [-3., 300.]);
    assert_eq!(cast(int_row(&[-3]), "uint8").tensor().dtype(), DType::UInt8);
    let text = Tensor::texts(vec![1], vec!["a".to_owned()]);
    assert!(matches!(
        cast(text, "int32").error(),
        EvalError::Argument { .. }
    ));
    assert!(matches!(
        cast(row(&[1.0]), "string").error(),
        EvalError::Invalid(_)
    ));
}

#[test]
fn select_broadcasts_all_three_and_ignores_what_is_not_chosen() {
    let select = |condition: Tensor, a: Tensor, b: Tensor| {
        Trial::of("select")
            .with("cond", condition)
            .with("a", a)
            .with("b", b)
    };
    let rows = Tensor::bools(vec![2, 1], vec![true, false]);
    let result = select(rows.clone(), row(&[1., 2.]), floats(&[], &[NAN])).numbers();
    assert_close(&result, &[1., 2., f64::NAN, f64::NAN], 0.0);
    let mixed = select(
        bool_row(&[true, false]),
        ints(&[2, 1], &[7, 8]),
        int_row(&[1, 2]),
    );
    assert_eq!(mixed.numbers(), [7., 2., 8., 2.]);
    let bools = select(rows, bool_row(&[true, false]), bool_row(&[false, false]));
    assert_eq!(bools.numbers(), [1., 0., 0., 0.]);
}
