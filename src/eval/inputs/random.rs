//! Random numbers that are the same on every machine.
//!
//! PCG64 (O'Neill 2014) by `rand_pcg`, whose output is fixed by its specification. Everything made of
//! it here takes only exact or correctly rounded operations: no logarithm, whose last bit differs
//! between libraries.

use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng as _, SeedableRng as _};

/// A stream of random numbers.
pub(super) struct Random(Pcg64);

impl Random {
    /// The stream for these numbers; another for any other.
    pub(super) fn new(seed: u64, parts: [u64; 3]) -> Self {
        let mixed = parts.iter().fold(seed, |mixed, part| {
            // The finalizer of SplitMix64 (Steele et al. 2014), so that near seeds give far streams.
            let z = mixed.wrapping_add(part.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)).wrapping_add(1)
        });
        Self(Pcg64::seed_from_u64(mixed))
    }

    /// About standard normal: the sum of twelve uniform numbers less its mean, whose variance is 1
    /// and which stays within ±6.
    pub(super) fn normal(&mut self) -> f32 {
        // Four numbers of 16 bits from each 64.
        let sum: u64 = (0..3)
            .map(|_| {
                let bits = self.0.next_u64();
                (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48)
            })
            .sum();
        // 12 · 65 535 / 2 is the mean.
        (sum as f32 - 393_210.0) / 65_536.0
    }

    /// An integer from `low` to `high`, both included; `low` if there is none between them.
    pub(super) fn between(&mut self, low: i64, high: i64) -> i64 {
        let count = u64::try_from(i128::from(high) - i128::from(low) + 1).unwrap_or(0);
        if count == 0 {
            return low;
        }
        // The bias of the multiplication is below count / 2^64.
        let part = (u128::from(self.0.next_u64()) * u128::from(count)) >> 64;
        low.saturating_add(part as i64)
    }

    /// True once in `n`.
    pub(super) fn once_in(&mut self, n: i64) -> bool {
        self.between(1, n) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_numbers_have_mean_zero_and_variance_one() {
        let mut random = Random::new(0, [0, 0, 0]);
        let values: Vec<f64> = (0..100_000).map(|_| f64::from(random.normal())).collect();
        let mean = values.iter().sum::<f64>() / 1e5;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.02, "{mean}");
        assert!((variance - 1.0).abs() < 0.02, "{variance}");
    }

    #[test]
    fn integers_reach_both_ends_and_nothing_beyond() {
        let mut random = Random::new(1, [0, 0, 0]);
        let values: Vec<i64> = (0..1000).map(|_| random.between(-2, 3)).collect();
        assert_eq!(values.iter().min(), Some(&-2));
        assert_eq!(values.iter().max(), Some(&3));
        assert_eq!(random.between(5, 4), 5);
        let all = random.between(i64::MIN, i64::MAX);
        assert!((i64::MIN..=i64::MAX).contains(&all));
    }

    #[test]
    fn another_part_gives_another_stream_and_the_same_the_same() {
        let first = |parts| Random::new(7, parts).normal();
        assert_eq!(first([1, 2, 3]), first([1, 2, 3]));
        assert_ne!(first([1, 2, 3]), first([2, 1, 3]));
        assert_ne!(first([1, 2, 3]), first([1, 2, 4]));
    }
}
