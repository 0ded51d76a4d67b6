use crate::ir::types::DType;
use crate::ops::EvalError;
use crate::ops::Numerics;
use crate::ops::evaluate::trial::{Trial, assert_close, floats, halves};
use crate::tensor::Tensor;

const NAN: f64 = f64::NAN;

fn of(query: Tensor, key: Tensor, value: Tensor) -> Trial {
    Trial::of("scaled_dot_product_attention")
        .with("query", query)
        .with("key", key)
        .with("value", value)
}

/// The definition, in fp64, of one batch element, with what is added to each score.
fn expected(query: &[f64], key: &[f64], value: &[f64], inner: usize, mask: &[f64]) -> Vec<f64> {
    let (length, source) = (query.len() / inner, key.len() / inner);
    let outer = value.len() / source;
    let mut result = Vec::new();
    for l in 0..length {
        let scores: Vec<f64> = (0..source)
            .map(|s| {
                let product: f64 = (0..inner)
                    .map(|e| query[l * inner + e] * key[s * inner + e])
                    .sum();
                (product / (inner as f64).sqrt() + mask[l * source + s]).exp()
            })
            .collect();
        let total: f64 = scores.iter().sum();
        result.extend((0..outer).map(|v| {
            let sum: f64 = (0..source).map(|s| scores[s] * value[s * outer + v]).sum();
            sum / total
        }));
    }
    result
}

fn numbers(len: usize, seed: u32) -> Vec<f32> {
    (0..len as u32)
        .map(|index| ((index * 37 + seed * 11) % 17) as f32 / 8.0 - 1.0)
        .collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

#[test]
fn attention_is_its_definition_for_every_batch_element() {
    let (length, source, inner, outer) = (3, 4, 2, 5);
    let (q, k, v) = (
        numbers(2 * length * inner, 1),
        numbers(2 * source * inner, 2),
        numbers(2 * source * outer, 3),
    );
    let result = of(
        floats(&[2, length, inner], &q),
        floats(&[2, source, inner], &k),
        floats(&[2, source, outer], &v),
    )
    .tensor();
    assert_eq!(result.shape(), [2, length, outer]);
    let mut all = Vec::new();
    for batch in 0..2 {
        let part = |x: &[f32], size: usize| wide(&x[batch * size..(batch + 1) * size]);
        all.extend(expected(
            &part(&q, length * inner),
            &part(&k, source * inner),
            &part(&v, source * outer),
            inner,
            &[0.0; 12],
        ));
    }
    assert_close(&result.to_f64().unwrap(), &all, 1e-5);
}

#[test]
fn masks_of_every_rank_broadcast() {
    let (q, k, v) = (numbers(6, 4), numbers(8, 5), numbers(8, 6));
    let trial = of(
        floats(&[1, 3, 2], &q),
        floats(&[1, 4, 2], &k),
        floats(&[1, 4, 2], &v),
    );
    let added = numbers(12, 7);
    let with = |shape: &[usize], values: &[f32]| {
        trial
            .clone()
            .with("attn_mask", floats(shape, values))
            .numbers()
    };
    let formula = |mask: &[f64]| expected(&wide(&q), &wide(&k), &wide(&v), 2, mask);
    let full = formula(&wide(&added));
    assert_close(&with(&[1, 3, 4], &added), &full, 1e-5);
    assert_close(&with(&[3, 4], &added), &full, 1e-5);
    let row = added[..4].repeat(3);
    assert_close(&with(&[4], &added[..4]), &formula(&wide(&row)), 1e-5);
    let column: Vec<f32> = added[..3].iter().flat_map(|x| [*x; 4]).collect();
    assert_close(&with(&[3, 1], &added[..3]), &formula(&wide(&column)), 1e-5);
    let error = trial
        .clone()
        .with("attn_mask", floats(&[3], &added[..3]))
        .error();
    assert!(matches!(
        error,
        EvalError::Argument {
            parameter: "attn_mask",
            ..
        }
    ));
}

#[test]
fn a_true_mask_keeps_and_a_row_without_any_is_nan() {
    let trial = of(
        floats(&[1, 2, 1], &[1.0, 1.0]),
        floats(&[1, 2, 1], &[1.0, 2.0]),
        floats(&[1, 2, 1], &[5.0, 7.0]),
    );
    let mask = Tensor::bools(vec![2, 2], vec![true, false, false, false]);
    assert_close(
        &trial.clone().with("attn_mask", mask).numbers(),
        &[5.0, NAN],
        0.0,
    );
    let low = f32::NEG_INFINITY;
    let mask = floats(&[2, 2], &[low, 0.0, low, low]);
    assert_close(&trial.with("attn_mask", mask).numbers(), &[7.0, NAN], 0.0);
}

#[test]
fn leading_dimensions_broadcast() {
    // One key and value for both heads.
    let result = of(
        floats(&[1, 2, 1, 1], &[0.0, 0.0]),
        floats(&[1, 1, 2, 1], &[1.0, 2.0]),
        floats(&[1, 1, 2, 1], &[5.0, 7.0]),
    );
    assert_eq!(result.numbers(), [6.0, 6.0]);
    let apart = of(
        floats(&[2, 1, 1], &[0.0, 0.0]),
        floats(&[3, 1, 1], &[0.0; 3]),
        floats(&[3, 1, 1], &[0.0; 3]),
    );
    assert!(matches!(apart.error(), EvalError::Tensor(_)));
}

#[test]
fn many_queries_are_those_of_each_alone() {
    // More scores than one task holds at a time.
    let (length, source) = (700, 2000);
    let (q, k, v) = (numbers(length, 1), numbers(source, 2), numbers(source, 3));
    let trial = |q: &[f32]| {
        of(
            floats(&[1, q.len(), 1], q),
            floats(&[1, source, 1], &k),
            floats(&[1, source, 1], &v),
        )
    };
    let result = trial(&q).numbers();
    for row in [0, 523, 524, 699] {
        assert_close(&[result[row]], &trial(&q[row..=row]).numbers(), 1e-5);
    }
}

#[test]
fn shapes_that_do_not_fit_are_errors_and_empty_ones_are_not() {
    let zeros = |shape: &[usize]| Tensor::zeros(DType::Float32, shape.to_vec());
    let inner = of(zeros(&[1, 2, 3]), zeros(&[1, 2, 4]), zeros(&[1, 2, 4]));
    assert!(matches!(inner.error(), EvalError::Invalid(_)));
    let source = of(zeros(&[1, 2, 3]), zeros(&[1, 2, 3]), zeros(&[1, 3, 3]));
    assert!(matches!(source.error(), EvalError::Invalid(_)));
    let vector = of(zeros(&[3]), zeros(&[1, 2, 3]), zeros(&[1, 2, 3]));
    assert!(matches!(vector.error(), EvalError::Invalid(_)));
    let nothing = of(zeros(&[1, 2, 3]), zeros(&[1, 0, 3]), zeros(&[1, 0, 4]));
    assert_eq!(nothing.numbers(), [0.0; 8]);
    let no_query = of(zeros(&[1, 0, 3]), zeros(&[1, 2, 3]), zeros(&[1, 2, 4]));
    assert_eq!(no_query.tensor().shape(), [1, 0, 4]);
}

#[test]
fn the_engine_s_accumulator_overflows_before_scaling() {
    // 200 · 200 passes 2^15 in one of two scores, whose weight is then NaN: ∞ − ∞.
    let trial = of(
        halves(&[1, 1, 1], &[200.0]),
        halves(&[1, 2, 1], &[200.0, 1.0]),
        halves(&[1, 2, 1], &[3.0, 4.0]),
    );
    assert_eq!(trial.numbers(), [3.0]);
    assert!(trial.under(Numerics::ANE).numbers()[0].is_nan());
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    let (length, source, inner) = (200, 300, 64);
    let x = |rows: usize, seed| {
        let values: Vec<f32> = numbers(2 * rows * inner, seed)
            .into_iter()
            .map(|x| (x * 1.7).sin())
            .collect();
        floats(&[2, rows, inner], &values)
    };
    let trial = of(x(length, 1), x(source, 2), x(source, 3));
    let within = |threads| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        pool.install(|| trial.numbers())
    };
    assert_eq!(within(1), within(4));
}
