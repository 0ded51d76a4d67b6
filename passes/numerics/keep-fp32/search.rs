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

    /// A small set that passes, if all elements together do. `groups` are elements that are likely to
    /// be superfluous together.
    pub(super) fn smallest(&mut self, groups: &[Vec<usize>]) -> Option<Vec<usize>> {
        let all: Vec<usize> = (0..self.n).collect();
        if !self.passes(&all) {
            return None;
        }
        let mut set = self.interval();
        for group in groups {
            let rest: Vec<usize> = without(&set, |element| group.contains(&element));
            if rest.len() < set.len() && self.passes(&rest) {
                set = rest;
            }
        }
        let mut best = self.reduced(set.clone(), false);
        let other = self.reduced(set, true);
        if other.len() < best.len() {
            best = other;
        }
        self.improved(best)
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
    fn improved(&mut self, mut set: Vec<usize>) -> Option<Vec<usize>> {
        let all: Vec<usize> = (0..self.n).collect();
        let mut needed = Vec::new();
        for element in &set {
            let others = without(&all, |other| other == *element);
            // Not tested is not known to fail.
            if self.left > 0 && !self.passes(&others) {
                needed.push(*element);
            }
        }
        let free = without(&all, |element| needed.contains(&element));
        for size in needed.len()..set.len() {
            let more = size - needed.len();
            if combinations(free.len(), more) > self.left as u128 {
                return Some(self.exchanged(set, &needed));
            }
            let mut choice: Vec<usize> = (0..more).collect();
            loop {
                let mut smaller = needed.clone();
                smaller.extend(choice.iter().map(|index| free[*index]));
                smaller.sort_unstable();
                if self.passes(&smaller) {
                    return Some(smaller);
                }
                if !advance(&mut choice, free.len()) {
                    break;
                }
            }
        }
        set.sort_unstable();
        Some(set)
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
