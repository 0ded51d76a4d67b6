use crate::ir::types::DType;
use crate::ops::EvalError;
use crate::ops::Numerics;
use crate::ops::evaluate::trial::{Trial, assert_close, floats, halves, ints};
use crate::tensor::Tensor;

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

const ALL: [&str; 10] = [
    "reduce_l1_norm",
    "reduce_l2_norm",
    "reduce_log_sum",
    "reduce_log_sum_exp",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_sum",
    "reduce_sum_square",
];

fn of(op_type: &'static str, x: &[f32]) -> Trial {
    Trial::of(op_type).with("x", floats(&[x.len()], x))
}

fn keep(trial: Trial) -> Trial {
    trial.with("keep_dims", Tensor::bools(vec![], vec![true]))
}

/// The definitions, in fp64.
fn reduced(op_type: &str, x: &[f64]) -> f64 {
    let sum = |term: &dyn Fn(f64) -> f64| x.iter().map(|x| term(*x)).sum::<f64>();
    match op_type {
        "reduce_l1_norm" => sum(&f64::abs),
        "reduce_l2_norm" => sum(&|x| x * x).sqrt(),
        "reduce_log_sum" => sum(&|x| x).ln(),
        "reduce_log_sum_exp" => sum(&f64::exp).ln(),
        "reduce_max" => x.iter().copied().fold(-INF, f64::max),
        "reduce_mean" => sum(&|x| x) / x.len() as f64,
        "reduce_min" => x.iter().copied().fold(INF, f64::min),
        "reduce_prod" => x.iter().product(),
        "reduce_sum" => sum(&|x| x),
        _ => sum(&|x| x * x),
    }
}

#[test]
fn every_reduction_is_its_definition_over_every_choice_of_axes() {
    let sizes = [2, 3, 1, 4];
    let x: Vec<f32> = (0..24u32)
        .map(|i| (i * 7 % 11) as f32 / 4.0 + 0.25)
        .collect();
    for choice in 0..16 {
        let axes: Vec<i64> = (0..4).filter(|axis| choice >> axis & 1 == 1).collect();
        let kept = |axis: usize| choice >> axis & 1 == 0;
        let shape: Vec<usize> = (0..4)
            .map(|axis| if kept(axis) { sizes[axis] } else { 1 })
            .collect();
        let mut groups = vec![Vec::new(); shape.iter().product()];
        for (index, x) in x.iter().enumerate() {
            let place = [index / 12, index / 4 % 3, 0, index % 4];
            let group = (0..4).fold(0, |group, axis| {
                group * shape[axis] + if kept(axis) { place[axis] } else { 0 }
            });
            groups[group].push(f64::from(*x));
        }
        for op_type in ALL {
            let expected: Vec<f64> = groups.iter().map(|group| reduced(op_type, group)).collect();
            let trial = Trial::of(op_type)
                .with("x", floats(&sizes, &x))
                .ints("axes", &axes);
            let result = keep(trial.clone()).tensor();
            assert_eq!(result.shape(), shape, "{op_type} over {axes:?}");
            assert_close(&result.to_f64().unwrap(), &expected, 1e-6);
            let dropped: Vec<usize> = (0..4)
                .filter(|axis| kept(*axis))
                .map(|a| sizes[a])
                .collect();
            assert_eq!(trial.tensor().shape(), dropped);
        }
    }
}

#[test]
fn missing_axes_are_all_and_negative_ones_count_from_the_end() {
    let trial = Trial::of("reduce_sum").with("x", floats(&[2, 2], &[1.0, 2.0, 3.0, 4.0]));
    assert_eq!(trial.numbers(), [10.0]);
    assert!(trial.tensor().shape().is_empty());
    assert_eq!(trial.clone().ints("axes", &[-1]).numbers(), [3.0, 7.0]);
    assert_eq!(trial.clone().ints("axes", &[-2, 0]).numbers(), [4.0, 6.0]);
    let error = trial.ints("axes", &[2]).error();
    assert!(matches!(
        error,
        EvalError::Argument {
            parameter: "axes",
            ..
        }
    ));
}

#[test]
fn long_sums_keep_the_small_terms() {
    // 2^24 + 1 is no fp32: one by one, fp32 would stay at 2^24.
    let mut x = vec![1.0; 1025];
    x[0] = 16_777_216.0;
    assert_eq!(of("reduce_sum", &x).numbers(), [16_778_240.0]);
    let columns = Trial::of("reduce_sum")
        .with(
            "x",
            floats(&[1025, 1], &x).broadcast_to(&[1025, 2]).unwrap(),
        )
        .ints("axes", &[0]);
    assert_eq!(columns.numbers(), [16_778_240.0; 2]);
}

#[test]
fn big_reductions_are_those_of_the_parts() {
    let x: Vec<f32> = (0..150_000u32).map(|i| (i * 7919 % 1009) as f32).collect();
    let reduce = |axis| {
        Trial::of("reduce_sum")
            .with("x", floats(&[50, 3, 1000], &x))
            .ints("axes", &[axis])
            .numbers()
    };
    let (rows, columns, planes) = (reduce(2), reduce(1), reduce(0));
    let sum = |indices: &mut dyn Iterator<Item = usize>| -> f64 {
        indices.map(|index| f64::from(x[index])).sum()
    };
    assert_eq!(rows[149], sum(&mut (149_000..150_000)));
    assert_eq!(
        columns[49_999],
        sum(&mut (0..3).map(|i| 147_999 + i * 1000))
    );
    assert_eq!(planes[2_999], sum(&mut (0..50).map(|i| 2_999 + i * 3000)));
}

#[test]
fn integers_stay_exact_and_lose_their_fractions() {
    let x = ints(&[3], &[16_777_217, 1, -3]);
    let result = |op_type| Trial::of(op_type).with("x", x.clone()).numbers();
    assert_eq!(result("reduce_sum"), [16_777_215.0]);
    assert_eq!(result("reduce_l1_norm"), [16_777_221.0]);
    assert_eq!(result("reduce_max"), [16_777_217.0]);
    assert_eq!(result("reduce_min"), [-3.0]);
    assert_eq!(result("reduce_prod"), [-50_331_651.0]);
    assert_eq!(result("reduce_mean"), [5_592_405.0]);
    let small = |op_type, x: &[i64]| Trial::of(op_type).with("x", ints(&[x.len()], x)).numbers();
    assert_eq!(small("reduce_mean", &[-1, -2]), [-1.0]);
    assert_eq!(small("reduce_l2_norm", &[1, 2]), [2.0]);
    assert_eq!(small("reduce_log_sum_exp", &[3, 3]), [3.0]);
    assert_eq!(small("reduce_log_sum", &[10, 10]), [2.0]);
}

#[test]
fn nan_and_infinities_go_through() {
    let x = [1.0, f32::NAN, 3.0];
    for op_type in ALL {
        assert!(of(op_type, &x).numbers()[0].is_nan(), "{op_type}");
    }
    assert_eq!(of("reduce_max", &[f32::NEG_INFINITY; 2]).numbers(), [-INF]);
    let cancelled = of("reduce_sum", &[f32::INFINITY, f32::NEG_INFINITY]).numbers();
    assert!(cancelled[0].is_nan());
}

#[test]
fn log_sum_exp_neither_overflows_nor_underflows() {
    let log_2 = std::f64::consts::LN_2;
    let result = |x: &[f32]| of("reduce_log_sum_exp", x).numbers();
    assert_close(&result(&[1000.0, 1000.0]), &[1000.0 + log_2], 1e-6);
    assert_close(&result(&[-1000.0, -1000.0]), &[-1000.0 + log_2], 1e-6);
    assert_eq!(result(&[f32::NEG_INFINITY; 2]), [-INF]);
    assert_eq!(result(&[0.0, f32::INFINITY, 1.0]), [INF]);
    assert_eq!(result(&[f32::NEG_INFINITY, 2.0]), [2.0]);
}

#[test]
fn reductions_of_nothing_are_neutral_or_errors() {
    let of = |op_type, dtype| Trial::of(op_type).with("x", Tensor::zeros(dtype, vec![2, 0]));
    let result = |op_type| of(op_type, DType::Float32).ints("axes", &[1]).numbers();
    assert_eq!(result("reduce_sum"), [0.0; 2]);
    assert_eq!(result("reduce_prod"), [1.0; 2]);
    assert_eq!(result("reduce_log_sum_exp"), [-INF; 2]);
    assert_close(&result("reduce_mean"), &[NAN; 2], 0.0);
    let mean = of("reduce_mean", DType::Int32).ints("axes", &[1]);
    assert_eq!(mean.error(), EvalError::DivisionByZero);
    for op_type in ["reduce_max", "reduce_min"] {
        let error = of(op_type, DType::Float32).ints("axes", &[1]).error();
        assert!(matches!(error, EvalError::Invalid(_)));
        let none = of(op_type, DType::Float32).ints("axes", &[0]).tensor();
        assert_eq!(none.shape(), [0]);
    }
    let error = of("reduce_argmax", DType::Float32).error();
    assert!(matches!(error, EvalError::Invalid(_)));
}

#[test]
fn the_index_of_the_best_is_that_of_the_first_and_nan_is_best() {
    let arg = |op_type, x: &[f32]| of(op_type, x).numbers();
    assert_eq!(arg("reduce_argmax", &[1.0, 3.0, 3.0, 2.0]), [1.0]);
    assert_eq!(arg("reduce_argmin", &[1.0, 0.0, -0.0]), [1.0]);
    // numpy.argmax([1, nan, 5, nan]) and numpy.argmin of the same are 1.
    let x = [1.0, f32::NAN, 5.0, f32::NAN];
    assert_eq!(arg("reduce_argmax", &x), [1.0]);
    assert_eq!(arg("reduce_argmin", &x), [1.0]);
}

#[test]
fn indices_run_along_the_axis_and_take_the_type_asked_for() {
    let x = ints(&[2, 3], &[1, 9, 3, 4, 2, 6]);
    let trial = Trial::of("reduce_argmax").with("x", x);
    assert_eq!(trial.clone().int("axis", 0).numbers(), [1.0, 0.0, 1.0]);
    assert_eq!(trial.clone().numbers(), [1.0, 2.0]);
    let kept = keep(trial.clone()).text("output_dtype", "uint16").tensor();
    assert_eq!((kept.shape(), kept.dtype()), (&[2, 1][..], DType::UInt16));
    let error = trial.clone().text("output_dtype", "fp32").error();
    assert!(matches!(error, EvalError::Invalid(_)));
    assert!(trial.int("axis", 2).run().is_err());
}

#[test]
fn half_sums_stop_growing_at_2048() {
    // 2048 + 1 is halfway to the next fp16 and goes to the even 2048.
    let ones = vec![1.0; 4096];
    let of = |op_type| {
        Trial::of(op_type)
            .with("x", halves(&[4096], &ones))
            .under(Numerics::ANE)
    };
    assert_eq!(of("reduce_sum").numbers(), [2048.0]);
    assert_eq!(of("reduce_mean").numbers(), [0.5]);
    assert_eq!(of("reduce_sum").under(Numerics::FP16).numbers(), [4096.0]);
    let single = Trial::of("reduce_sum")
        .with("x", floats(&[4096], &ones))
        .under(Numerics::ANE);
    assert_eq!(single.numbers(), [4096.0]);
}

#[test]
fn half_sums_flush_subnormal_partial_sums() {
    // 2^-15 is subnormal in fp16: where those are flushed, it never adds up.
    let x = halves(&[4], &[2f32.powi(-15); 4]);
    let trial = Trial::of("reduce_sum").with("x", x);
    assert_eq!(trial.numbers(), [2f64.powi(-13)]);
    assert_eq!(trial.under(Numerics::ANE).numbers(), [0.0]);
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    let x: Vec<f32> = (0..150_000u32).map(|i| (i as f32 * 0.7).sin()).collect();
    for axis in 0..3 {
        let trial = Trial::of("reduce_sum")
            .with("x", floats(&[50, 3, 1000], &x))
            .ints("axes", &[axis]);
        let within = |threads| {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .unwrap();
            pool.install(|| trial.numbers())
        };
        assert_eq!(within(1), within(4));
    }
}
