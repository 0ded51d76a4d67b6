//! How far the outputs of a run are from those of the run in fp32.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::run::Run;
use crate::eval::verify::{Criterion, Tally};
use crate::tensor::Tensor;

/// A run works if no output has less signal over error than this, in dB: an error of a tenth of the
/// root mean square.
pub const LEAST_SNR_DB: f64 = 20.0;

/// How one output agrees with fp32, over all calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// The output's name.
    pub name: String,
    /// Elements that are NaN or infinite here and finite in fp32, or the other way round.
    pub not_finite: u64,
    /// 10 · log10(Σ a² / Σ (a − b)²) over elements that are finite in both; none if there is no
    /// difference.
    pub snr_db: Option<f64>,
    /// The share of rows (along the last axis) whose greatest element is in the same place.
    pub argmax_match: f64,
    /// The mean over rows of the Kullback-Leibler divergence of their softmax from that of fp32, in
    /// nats; none if a row is not finite or has one element.
    pub kl: Option<f64>,
}

impl Agreement {
    /// Whether the output is still worth something.
    pub fn holds(&self) -> bool {
        self.not_finite == 0 && self.snr_db.is_none_or(|snr| snr >= LEAST_SNR_DB)
    }
}

/// How the outputs of a run agree with those of the run in fp32, by their names.
pub(super) fn agreements(reference: &Run, run: &Run) -> Vec<Agreement> {
    let mut pairs: BTreeMap<&str, Vec<(&Tensor, &Tensor)>> = BTreeMap::new();
    for (own, other) in reference.outputs.iter().zip(&run.outputs) {
        for (name, array) in own {
            if let Some((_, low)) = other.iter().find(|(known, _)| known == name) {
                pairs.entry(name).or_default().push((array, low));
            }
        }
    }
    let all = pairs.into_iter();
    all.filter_map(|(name, pairs)| agreement(name, &pairs))
        .collect()
}

/// `None` for an output that cannot be compared: of another shape in another precision.
fn agreement(name: &str, pairs: &[(&Tensor, &Tensor)]) -> Option<Agreement> {
    let mut tally = Tally::new(name);
    let mut divergence = Divergence::default();
    let mut not_finite = 0;
    for (a, b) in pairs {
        tally.compare(a, b, Criterion::Exact).ok()?;
        let (Ok(x), Ok(y)) = (a.to_f64(), b.to_f64()) else {
            continue;
        };
        let differs = |(x, y): &(&f64, &f64)| x.is_finite() != y.is_finite();
        not_finite += x.iter().zip(&y).filter(differs).count() as u64;
        if a.dtype().is_float() {
            let columns = a.shape().last().copied().unwrap_or(1).max(1);
            for (x, y) in x.chunks(columns).zip(y.chunks(columns)) {
                divergence.row(x, y);
            }
        }
    }
    let difference = tally.finish();
    Some(Agreement {
        name: name.to_owned(),
        not_finite,
        snr_db: difference.snr_db,
        argmax_match: difference.argmax_match,
        kl: divergence.mean(),
    })
}

/// The mean divergence of rows.
#[derive(Default)]
struct Divergence {
    sum: f64,
    rows: u64,
    is_undefined: bool,
}

impl Divergence {
    fn row(&mut self, a: &[f64], b: &[f64]) {
        if a.len() < 2 || a.iter().chain(b).any(|value| !value.is_finite()) {
            self.is_undefined = true;
            return;
        }
        let (p, q) = (log_softmax(a), log_softmax(b));
        let terms = p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q));
        self.sum += terms.sum::<f64>();
        self.rows += 1;
    }

    fn mean(&self) -> Option<f64> {
        // The sum of terms of either sign may end a hair below zero.
        (!self.is_undefined && self.rows > 0).then(|| (self.sum / self.rows as f64).max(0.0))
    }
}

fn log_softmax(row: &[f64]) -> Vec<f64> {
    let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = row.iter().map(|value| (value - most).exp()).sum();
    row.iter().map(|value| value - most - sum.ln()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::ranges::Ranges;
    use crate::ir::DType;

    fn run(name: &str, rows: &[[f32; 2]]) -> Run {
        let tensor = Tensor::floats(DType::Float32, vec![rows.len(), 2], rows.concat());
        Run {
            ranges: Ranges::default(),
            outputs: vec![vec![(name.to_owned(), tensor)]],
        }
    }

    #[test]
    fn the_divergence_is_that_of_the_rows_distributions() {
        // p = (1/2, 1/2), q = (1/4, 3/4): ½ ln 2 + ½ ln ⅔ = ½ ln (4/3).
        let of_q = 3f32.ln();
        let found = agreements(&run("y", &[[0.0, 0.0]]), &run("y", &[[0.0, of_q]]));
        let kl = found[0].kl.unwrap();
        assert!((kl - 0.5 * (4.0f64 / 3.0).ln()).abs() < 1e-6, "{kl}");
    }

    #[test]
    fn what_is_not_finite_is_counted_and_has_no_divergence() {
        let low = run("y", &[[1.0, f32::NAN], [0.0, f32::INFINITY]]);
        let found = agreements(&run("y", &[[1.0, 2.0], [3.0, 1.0]]), &low);
        assert_eq!((found[0].not_finite, found[0].kl), (2, None));
        assert!(!found[0].holds());
    }

    #[test]
    fn an_output_holds_down_to_twenty_decibels() {
        let reference = run("y", &[[10.0, 0.0]]);
        let at = |value: f32| agreements(&reference, &run("y", &[[value, 0.0]]))[0].clone();
        assert!(at(9.1).holds());
        assert!(!at(8.9).holds());
        assert_eq!(at(10.0).snr_db, None);
    }
}
