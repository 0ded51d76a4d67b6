//! The search for a small set that passes a test, with few tests.
//!
//! The test is taken to be monotone for the most part: that a set passes if it holds one that does. A
//! set that is given back has passed the test in any case.

use std::collections::HashMap;

/// Sets of numbers from 0 to n − 1, tested not more often than allowed. Once that is used up, every
/// set that is not known fails.
pub(super) struct Search<'t> {
    n: usize,
    test: &'t mut dyn FnMut(&[usize]) -> bool,
    known: HashMap<Vec<usize>, bool>,
    left: usize,
}

/// What came of trying sets.
enum Tried {
    /// This one passes.
    Passes(Vec<usize>),
    NoneDoes,
    /// They were not tried.
    TooMany,
}

impl<'t> Search<'t> {
    /// A search among n elements, with so many tests.
    pub(super) fn new(n: usize, tests: usize, test: &'t mut dyn FnMut(&[usize]) -> bool) -> Self {
        Self {
            n,
            test,
            known: HashMap::new(),
            left: tests,
        }
    }

    /// Whether all tests were used up.
    pub(super) fn is_exhausted(&self) -> bool {
        self.left == 0
    }

    /// Whether a set passes; the set is sorted.
    pub(super) fn passes(&mut self, set: &[usize]) -> bool {
        if let Some(known) = self.known.get(set) {
            return *known;
        }
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        let passes = (self.test)(set);
        self.known.insert(set.to_vec(), passes);
        passes
    }

    /// A small set that passes, if all elements together do. `groups` are sorted elements that are
    /// likely to be superfluous together.
    pub(super) fn smallest(&mut self, groups: &[Vec<usize>]) -> Option<Vec<usize>> {
        let all: Vec<usize> = (0..self.n).collect();
        if !self.passes(&all) {
            return None;
        }
        let mut set = self.interval();
        for group in groups {
            let rest = without(&set, |element| group.binary_search(&element).is_ok());
            if rest.len() < set.len() && self.passes(&rest) {
                set = rest;
            }
        }
        let mut best = self.reduced(set.clone(), false);
        let other = self.reduced(set, true);
        if other.len() < best.len() {
            best = other;
        }
        Some(self.improved(best))
    }

    /// The elements from one to another: as few at the end, then at the beginning, as pass.
    fn interval(&mut self) -> Vec<usize> {
        // The first end that passes is above `low` and at most `end`.
        let (mut low, mut end) = (0, self.n);
        while end - low > 1 {
            let middle = low + (end - low) / 2;
            let set: Vec<usize> = (0..middle).collect();
            if self.passes(&set) {
                end = middle;
            } else {
                low = middle;
            }
        }
        // The last start that passes is at least `start` and below `high`.
        let (mut start, mut high) = (0, end);
        while high - start > 1 {
            let middle = start + (high - start) / 2;
            let set: Vec<usize> = (middle..end).collect();
            if self.passes(&set) {
                start = middle;
            } else {
                high = middle;
            }
        }
        (start..end).collect()
    }

    /// Delta debugging: leaves out runs of elements, ever shorter ones, until no single one can be left
    /// out (Zeller and Hildebrandt 2002).
    fn reduced(&mut self, mut set: Vec<usize>, backward: bool) -> Vec<usize> {
        let mut length = set.len().div_ceil(2);
        while length > 0 && !set.is_empty() {
            let mut shorter = false;
            let mut done = 0;
            while done < set.len() {
                let to = (done + length).min(set.len());
                let (from, to) = if backward {
                    (set.len() - to, set.len() - done)
                } else {
                    (done, to)
                };
                let mut rest = set.clone();
                rest.drain(from..to);
                if self.passes(&rest) {
                    set = rest;
                    shorter = true;
                } else {
                    done += to - from;
                }
            }
            if length > 1 {
                length /= 2;
            } else if !shorter {
                break;
            }
        }
        set
    }

    /// Looks for a smaller set than one of which no element can be left out. Elements without which not
    /// even all others together pass are in every set that does.
    fn improved(&mut self, mut set: Vec<usize>) -> Vec<usize> {
        let all: Vec<usize> = (0..self.n).collect();
        let mut needed = Vec::new();
        for element in &set {
            let others = without(&all, |other| other == *element);
            // Not tested is not known to fail.
            if self.left > 0 && !self.passes(&others) {
                needed.push(*element);
            }
        }
        for size in needed.len()..set.len() {
            match self.of_size(size, &needed) {
                Tried::Passes(smaller) => return smaller,
                Tried::NoneDoes => {}
                Tried::TooMany => return self.exchanged(set, &needed),
            }
        }
        // Where two errors cancel, a set may pass though one that holds it fails: then nothing is needed.
        while let Some(size) = set.len().checked_sub(1) {
            match self.of_size(size, &[]) {
                Tried::Passes(smaller) => set = smaller,
                Tried::NoneDoes | Tried::TooMany => break,
            }
        }
        set
    }

    /// All sets of a size that hold these elements, if there are not more of them than tests.
    fn of_size(&mut self, size: usize, needed: &[usize]) -> Tried {
        let free: Vec<usize> = (0..self.n).filter(|e| !needed.contains(e)).collect();
        let more = size.saturating_sub(needed.len());
        if combinations(free.len(), more) > self.left as u128 {
            return Tried::TooMany;
        }
        let mut choice: Vec<usize> = (0..more).collect();
        loop {
            let mut set = needed.to_vec();
            set.extend(choice.iter().map(|index| free[*index]));
            set.sort_unstable();
            if self.passes(&set) {
                return Tried::Passes(set);
            }
            if !advance(&mut choice, free.len()) {
                return Tried::NoneDoes;
            }
        }
    }

    /// Leaves out two elements, or takes one for two, as long as that is possible.
    fn exchanged(&mut self, mut set: Vec<usize>, needed: &[usize]) -> Vec<usize> {
        'again: while self.left > 0 {
            for (at, a) in set.iter().enumerate() {
                for b in &set[at + 1..] {
                    if needed.contains(a) || needed.contains(b) {
                        continue;
                    }
                    let rest = without(&set, |element| element == *a || element == *b);
                    if self.passes(&rest) {
                        set = rest;
                        continue 'again;
                    }
                    // The nearest are the likeliest.
                    let mut others: Vec<usize> =
                        without(&(0..self.n).collect::<Vec<_>>(), |e| set.contains(&e));
                    others.sort_by_key(|other| a.abs_diff(*other).min(b.abs_diff(*other)));
                    for other in others {
                        let mut smaller = rest.clone();
                        smaller.push(other);
                        smaller.sort_unstable();
                        if self.passes(&smaller) {
                            set = smaller;
                            continue 'again;
                        }
                        if self.left == 0 {
                            return set;
                        }
                    }
                }
            }
            break;
        }
        set
    }
}

fn without(set: &[usize], leave: impl Fn(usize) -> bool) -> Vec<usize> {
    set.iter()
        .copied()
        .filter(|element| !leave(*element))
        .collect()
}

/// n over k.
fn combinations(n: usize, k: usize) -> u128 {
    let mut count: u128 = 1;
    for i in 0..k.min(n) {
        count = count.saturating_mul((n - i) as u128) / (i as u128 + 1);
    }
    if k > n { 0 } else { count }
}

/// The next choice of as many of n, in the order of their numbers; false after the last.
fn advance(choice: &mut [usize], n: usize) -> bool {
    let k = choice.len();
    for at in (0..k).rev() {
        if choice[at] < n - k + at {
            choice[at] += 1;
            for next in at + 1..k {
                choice[next] = choice[next - 1] + 1;
            }
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some sets of at most `most` elements below n, by a generator of 64 bits (Knuth, MMIX).
    fn solutions(seed: u64, n: usize, most: usize) -> Vec<Vec<usize>> {
        let mut state = seed;
        let mut next = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        (0..=next(4))
            .map(|_| {
                let size = 1 + next(most);
                let mut set: Vec<usize> = (0..size).map(|_| next(n)).collect();
                set.sort_unstable();
                set.dedup();
                set
            })
            .collect()
    }

    fn holds_one(set: &[usize], solutions: &[Vec<usize>]) -> bool {
        let holds = |solution: &Vec<usize>| solution.iter().all(|element| set.contains(element));
        solutions.iter().any(holds)
    }

    #[test]
    fn of_several_ways_it_finds_one_of_the_shortest_or_nearly_so() {
        let mut exact = 0;
        for seed in 0..500 {
            let solutions = solutions(seed, 10, 6);
            let least = solutions.iter().map(Vec::len).min().unwrap();
            let mut tests = 0;
            let mut test = |set: &[usize]| {
                tests += 1;
                holds_one(set, &solutions)
            };
            let found = Search::new(10, 200, &mut test).smallest(&[]).unwrap();
            assert!(tests <= 200);
            assert!(holds_one(&found, &solutions), "{seed}: {found:?}");
            assert!(
                found.len() <= least + 2,
                "{seed}: {found:?} of {solutions:?}"
            );
            exact += usize::from(found.len() == least);
        }
        assert!(exact >= 490, "{exact} of 500");
    }

    #[test]
    fn what_is_left_when_all_tests_are_used_up_has_passed() {
        for tests in 1..60 {
            let solutions = [vec![3, 50, 51, 90]];
            let mut used = 0;
            let mut test = |set: &[usize]| {
                used += 1;
                holds_one(set, &solutions)
            };
            let mut search = Search::new(100, tests, &mut test);
            let found = search.smallest(&[]).unwrap();
            assert!(search.is_exhausted() || found == [3, 50, 51, 90]);
            assert!(used <= tests && holds_one(&found, &solutions));
        }
    }

    #[test]
    fn a_run_of_five_among_a_thousand_takes_few_tests() {
        let solution: Vec<usize> = (400..405).collect();
        let mut used = 0;
        let mut test = |set: &[usize]| {
            used += 1;
            holds_one(set, std::slice::from_ref(&solution))
        };
        assert_eq!(
            Search::new(1000, 200, &mut test).smallest(&[]),
            Some(solution.clone())
        );
        assert!(used < 60, "{used}");
    }

    #[test]
    fn groups_are_left_out_first() {
        let mut sets = Vec::new();
        let mut test = |set: &[usize]| {
            sets.push(set.to_vec());
            set.contains(&0) && set.contains(&5)
        };
        let found = Search::new(6, 100, &mut test).smallest(&[vec![1, 2, 3, 4]]);
        assert_eq!(found, Some(vec![0, 5]));
        let first = sets.iter().position(|set| *set == [0, 5]);
        assert!(first.is_some_and(|at| at < 8), "{sets:?}");
    }

    #[test]
    fn nothing_is_found_if_all_together_fail() {
        assert_eq!(Search::new(4, 100, &mut |_| false).smallest(&[]), None);
    }

    #[test]
    fn choices_come_in_order_and_as_many_as_there_are() {
        let mut choice = vec![0, 1];
        let mut all = vec![choice.clone()];
        while advance(&mut choice, 4) {
            all.push(choice.clone());
        }
        assert_eq!(all, [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]);
        assert_eq!(combinations(4, 2), 6);
        assert_eq!((combinations(4, 0), combinations(2, 3)), (1, 0));
    }
}
