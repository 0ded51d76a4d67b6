//! Integers that a program computes from its inputs, as sums, and what must hold of them.

use std::collections::BTreeMap;

/// Something that the one who makes the inputs chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Unknown {
    /// An element of an input, in row-major order; `None` means each of them.
    Element {
        /// Which input.
        input: usize,
        /// Which element.
        at: Option<usize>,
    },
    /// The size of an input along an axis.
    Size {
        /// Which input.
        input: usize,
        /// Which axis.
        axis: usize,
    },
}

/// A sum of unknowns with factors, and a constant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Linear {
    pub(super) terms: BTreeMap<Unknown, i64>,
    pub(super) constant: i64,
}

impl Linear {
    pub(super) fn constant(constant: i64) -> Self {
        Self {
            terms: BTreeMap::new(),
            constant,
        }
    }

    pub(super) fn unknown(unknown: Unknown) -> Self {
        Self {
            terms: BTreeMap::from([(unknown, 1)]),
            constant: 0,
        }
    }

    /// The number, if no unknown is in it.
    pub(super) fn as_constant(&self) -> Option<i64> {
        self.terms.is_empty().then_some(self.constant)
    }

    /// `self + factor · other`; `None` beyond the range of integers.
    pub(super) fn plus(&self, other: &Self, factor: i64) -> Option<Self> {
        let mut sum = self.clone();
        sum.constant = other
            .constant
            .checked_mul(factor)?
            .checked_add(sum.constant)?;
        for (unknown, times) in &other.terms {
            let entry = sum.terms.entry(*unknown).or_insert(0);
            *entry = times.checked_mul(factor)?.checked_add(*entry)?;
        }
        sum.terms.retain(|_, times| *times != 0);
        Some(sum)
    }

    /// The sum with some unknowns replaced by numbers.
    pub(super) fn with(&self, known: &dyn Fn(Unknown) -> Option<i64>) -> Self {
        let mut result = Self::constant(self.constant);
        for (unknown, times) in &self.terms {
            match known(*unknown) {
                Some(value) => {
                    let part = value.saturating_mul(*times);
                    result.constant = result.constant.saturating_add(part);
                }
                None => {
                    result.terms.insert(*unknown, *times);
                }
            }
        }
        result
    }
}

/// A sum must be at least and at most so much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Constraint {
    pub(super) sum: Linear,
    pub(super) low: i64,
    pub(super) high: i64,
}

/// The least and the greatest value of an unknown.
pub(super) type Bounds = BTreeMap<Unknown, (i64, i64)>;

/// How often all constraints are gone through; a chain of so many unknowns is settled.
const ROUNDS: usize = 16;

/// Narrows the bounds of each unknown to what the constraints leave; an unknown without bounds yet
/// may be any of `widest`. Where constraints contradict each other the first one wins.
pub(super) fn narrow(constraints: &[Constraint], bounds: &mut Bounds, widest: (i64, i64)) {
    for _ in 0..ROUNDS {
        let mut changed = false;
        for constraint in constraints {
            for (unknown, times) in &constraint.sum.terms {
                changed |= narrow_one(constraint, *unknown, *times, bounds, widest);
            }
        }
        if !changed {
            break;
        }
    }
}

fn narrow_one(
    constraint: &Constraint,
    unknown: Unknown,
    times: i64,
    bounds: &mut Bounds,
    widest: (i64, i64),
) -> bool {
    // low − rest ≤ times · unknown ≤ high − rest
    let mut rest = (
        i128::from(constraint.sum.constant),
        i128::from(constraint.sum.constant),
    );
    for (other, factor) in &constraint.sum.terms {
        if *other == unknown {
            continue;
        }
        let (low, high) = bounds.get(other).copied().unwrap_or(widest);
        let ends = [low, high].map(|end| i128::from(end) * i128::from(*factor));
        rest.0 += ends[0].min(ends[1]);
        rest.1 += ends[0].max(ends[1]);
    }
    let least = i128::from(constraint.low) - rest.1;
    let most = i128::from(constraint.high) - rest.0;
    let times = i128::from(times);
    let (least, most) = if times > 0 {
        (-(-least).div_euclid(times), most.div_euclid(times))
    } else {
        (-(most.div_euclid(-times)), (-least).div_euclid(-times))
    };
    let (low, high) = bounds.get(&unknown).copied().unwrap_or(widest);
    let new_low = i128::from(low).max(least);
    let new_high = i128::from(high).min(most);
    if new_low > new_high {
        return false;
    }
    // Between two bounds of 64 bits there are only such.
    let new = (new_low as i64, new_high as i64);
    bounds.insert(unknown, new) != Some(new) && new != (low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(input: usize) -> Unknown {
        Unknown::Element { input, at: None }
    }

    fn sum(terms: &[(usize, i64)], constant: i64) -> Linear {
        Linear {
            terms: terms.iter().map(|(i, t)| (element(*i), *t)).collect(),
            constant,
        }
    }

    const WIDEST: (i64, i64) = (0, 1 << 40);

    #[test]
    fn bounds_follow_from_each_other_through_several_constraints() {
        // 0 ≤ begin, end ≤ 32, end = begin + 8.
        let constraints = [
            Constraint {
                sum: sum(&[(1, 1)], 0),
                low: 1,
                high: 32,
            },
            Constraint {
                sum: sum(&[(1, 1), (0, -1)], -8),
                low: 0,
                high: 0,
            },
        ];
        let mut bounds = Bounds::new();
        narrow(&constraints, &mut bounds, WIDEST);
        assert_eq!(bounds[&element(0)], (0, 24));
        assert_eq!(bounds[&element(1)], (8, 32));
        bounds.insert(element(0), (5, 5));
        narrow(&constraints, &mut bounds, WIDEST);
        assert_eq!(bounds[&element(1)], (13, 13));
    }

    #[test]
    fn factors_and_signs_round_inwards() {
        // 1 ≤ 10 − 3·x ≤ 9: x is 1, 2 or 3.
        let constraint = Constraint {
            sum: sum(&[(0, -3)], 10),
            low: 1,
            high: 9,
        };
        let mut bounds = Bounds::new();
        narrow(&[constraint], &mut bounds, WIDEST);
        assert_eq!(bounds[&element(0)], (1, 3));
        // 1 ≤ 3·x ≤ 8: x is 1 or 2.
        let constraint = Constraint {
            sum: sum(&[(0, 3)], 0),
            low: 1,
            high: 8,
        };
        let mut bounds = Bounds::new();
        narrow(&[constraint], &mut bounds, WIDEST);
        assert_eq!(bounds[&element(0)], (1, 2));
    }

    #[test]
    fn the_first_of_two_constraints_that_contradict_each_other_wins() {
        let constraints = [
            Constraint {
                sum: sum(&[(0, 1)], 0),
                low: 0,
                high: 3,
            },
            Constraint {
                sum: sum(&[(0, 1)], 0),
                low: 9,
                high: 12,
            },
        ];
        let mut bounds = Bounds::new();
        narrow(&constraints, &mut bounds, WIDEST);
        assert_eq!(bounds[&element(0)], (0, 3));
    }

    #[test]
    fn sums_beyond_64_bits_are_no_sums() {
        let big = sum(&[(0, i64::MAX)], 1);
        assert_eq!(big.plus(&big, 2), None);
        assert_eq!(
            sum(&[(0, 1)], 2).plus(&sum(&[(0, 1)], 2), -1),
            Some(Linear::constant(0))
        );
    }
}
