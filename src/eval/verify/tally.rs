//! How two arrays compare, added up over samples and calls.

use super::{Criterion, Difference, VerifyError};
use crate::ir::types::DType;
use crate::tensor::Tensor;

/// Adds up how two arrays compare.
#[derive(Debug)]
pub struct Tally {
    difference: Difference,
    signal: f64,
    noise: f64,
    rows: u64,
    same_rows: u64,
}

impl Tally {
    /// Of an output or state of this name.
    pub fn new(name: &str) -> Self {
        Self {
            difference: Difference {
                name: name.to_owned(),
                ..Difference::default()
            },
            signal: 0.0,
            noise: 0.0,
            rows: 0,
            same_rows: 0,
        }
    }

    /// Adds an array of each model.
    ///
    /// # Errors
    ///
    /// If the arrays are not of the same shape and kind.
    pub fn compare(
        &mut self,
        a: &Tensor,
        b: &Tensor,
        criterion: Criterion,
    ) -> Result<(), VerifyError> {
        let name = self.difference.name.clone();
        let wrong = |what: String| VerifyError::Interface(format!("the output `{name}` {what}"));
        let same_shape = a.shape() == b.shape() || (a.len() == 1 && b.len() == 1);
        if !same_shape {
            return Err(wrong(format!(
                "is of shape {:?} in the first and {:?} in the second",
                a.shape(),
                b.shape()
            )));
        }
        if a.dtype() == DType::String || b.dtype() == DType::String {
            let (Ok(a), Ok(b)) = (a.as_texts(), b.as_texts()) else {
                return Err(wrong(
                    "is text in one model and numbers in the other".into(),
                ));
            };
            self.texts(&a, &b);
            return Ok(());
        }
        let unreadable = |error: crate::tensor::TensorError| wrong(error.to_string());
        let (x, y) = (
            a.to_f64().map_err(unreadable)?,
            b.to_f64().map_err(unreadable)?,
        );
        self.numbers(&x, &y, criterion);
        let columns = a.shape().last().copied().unwrap_or(1).max(1);
        for (x, y) in x.chunks(columns).zip(y.chunks(columns)) {
            self.rows += 1;
            self.same_rows += u64::from(argmax(x) == argmax(y));
        }
        Ok(())
    }

    fn texts(&mut self, a: &[String], b: &[String]) {
        self.difference.elements += a.len() as u64;
        for (a, b) in a.iter().zip(b) {
            self.rows += 1;
            self.same_rows += u64::from(a == b);
            self.difference.misses += u64::from(a != b);
        }
    }

    fn numbers(&mut self, a: &[f64], b: &[f64], criterion: Criterion) {
        let finite = a.iter().filter(|value| value.is_finite());
        let scale = finite.fold(0.0, |scale: f64, value| scale.max(value.abs()));
        let found = &mut self.difference;
        found.elements += a.len() as u64;
        for (a, b) in a.iter().zip(b) {
            found.nan_a += u64::from(a.is_nan());
            found.nan_b += u64::from(b.is_nan());
            found.inf_a += u64::from(a.is_infinite());
            found.inf_b += u64::from(b.is_infinite());
            if !(a.is_finite() && b.is_finite()) {
                let same = a == b || (a.is_nan() && b.is_nan());
                found.misses += u64::from(!same);
                continue;
            }
            let distance = (a - b).abs();
            let larger = a.abs().max(b.abs());
            found.max_abs = found.max_abs.max(distance);
            if larger > 0.0 {
                found.max_rel = found.max_rel.max(distance / larger);
            }
            self.signal += a * a;
            self.noise += distance * distance;
            let passes = match criterion {
                Criterion::Exact => a.to_bits() == b.to_bits(),
                Criterion::Scaled(part) => distance <= part * scale,
                Criterion::Within { relative, absolute } => {
                    distance <= absolute + relative * a.abs()
                }
            };
            found.misses += u64::from(!passes);
        }
    }

    /// How they compare, all together.
    pub fn finish(self) -> Difference {
        let mut difference = self.difference;
        difference.snr_db = (self.noise > 0.0).then(|| 10.0 * (self.signal / self.noise).log10());
        difference.argmax_match = if self.rows == 0 {
            1.0
        } else {
            self.same_rows as f64 / self.rows as f64
        };
        difference
    }
}

/// The place of the greatest element, the first of several; NaN is greater than none.
fn argmax(row: &[f64]) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for (index, value) in row.iter().enumerate() {
        if !value.is_nan() && best.is_none_or(|(_, greatest)| *value > greatest) {
            best = Some((index, *value));
        }
    }
    best.map(|(index, _)| index)
}
