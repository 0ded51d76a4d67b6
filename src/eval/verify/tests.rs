use super::*;
use crate::ir::DType;

fn tally(a: &[f64], b: &[f64], criterion: Criterion) -> Difference {
    let floats = |values: &[f64]| {
        let values: Vec<f32> = values.iter().map(|v| *v as f32).collect();
        Tensor::floats(DType::Float32, vec![values.len()], values)
    };
    let mut tally = Tally::new("y");
    tally.compare(&floats(a), &floats(b), criterion).unwrap();
    tally.finish()
}

const LOOSE: Criterion = Criterion::Scaled(0.1);

#[test]
fn the_numbers_are_those_of_their_formulas() {
    let found = tally(&[3.0, -4.0], &[3.0, -3.0], LOOSE);
    assert_eq!(found.max_abs, 1.0);
    assert_eq!(found.max_rel, 0.25);
    // 10 · log10(25 / 1)
    assert!((found.snr_db.unwrap() - 13.979_400_086_720_376).abs() < 1e-12);
    assert_eq!(found.argmax_match, 1.0);
    assert_eq!(found.misses, 1);
}

#[test]
fn no_difference_has_no_ratio() {
    let found = tally(&[1.0, 2.0], &[1.0, 2.0], Criterion::Exact);
    assert_eq!((found.snr_db, found.misses, found.max_rel), (None, 0, 0.0));
}

#[test]
fn nan_and_infinity_must_stand_in_the_same_places() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let same = tally(&[nan, inf, -inf, 1.0], &[nan, inf, -inf, 1.0], LOOSE);
    assert_eq!(same.misses, 0);
    assert_eq!(
        (same.nan_a, same.nan_b, same.inf_a, same.inf_b),
        (1, 1, 2, 2)
    );
    assert_eq!(tally(&[nan, 1.0], &[1.0, nan], LOOSE).misses, 2);
    assert_eq!(tally(&[inf, 1.0], &[-inf, 1.0], LOOSE).misses, 1);
    assert_eq!(tally(&[1e30, 1.0], &[inf, 1.0], LOOSE).misses, 1);
}

#[test]
fn an_exact_comparison_tells_zeros_apart() {
    assert_eq!(tally(&[0.0], &[-0.0], Criterion::Exact).misses, 1);
    assert_eq!(tally(&[0.0], &[-0.0], LOOSE).misses, 0);
}

#[test]
fn another_choice_is_seen_although_the_numbers_are_close() {
    let found = tally(&[1.0, 1.001, 0.0], &[1.001, 1.0, 0.0], LOOSE);
    assert_eq!((found.argmax_match, found.misses), (0.0, 0));
}
