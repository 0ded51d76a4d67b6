//! Which part of a model a program is, as far as names and metadata say.

use std::collections::BTreeMap;

/// A part of a model: its number, from 1, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) number: u64,
    pub(super) of: u64,
}

impl Part {
    fn new(number: u64, of: u64) -> Option<Self> {
        (1..=of).contains(&number).then_some(Self { number, of })
    }

    pub(super) fn is_last(self) -> bool {
        self.number == self.of
    }
}

/// What a name says: `chunk_01of02`, `part-1-of-3`.
pub(super) fn named(name: &str) -> Option<Part> {
    let lower = name.to_ascii_lowercase();
    lower.match_indices("of").find_map(|(at, _)| {
        let is_gap = |c: char| matches!(c, '_' | '-' | ' ');
        let before = lower[..at].trim_end_matches(is_gap);
        let after = lower[at + 2..].trim_start_matches(is_gap);
        let digits = |c: &char| c.is_ascii_digit();
        let count = before.chars().rev().take_while(digits).count();
        let number = before[before.len() - count..].parse().ok()?;
        let of: String = after.chars().take_while(digits).collect();
        Part::new(number, of.parse().ok()?)
    })
}

/// What ANEMLL writes into the metadata.
pub(super) fn described(metadata: &BTreeMap<String, String>) -> Option<Part> {
    let number = |key: &str| metadata.get(key)?.trim().parse().ok();
    Part::new(
        number("com.anemll.chunk_no")?,
        number("com.anemll.num_chunks")?,
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Part, described, named};

    #[test]
    fn names_say_which_part_it_is() {
        let part = |number, of| Some(Part { number, of });
        assert_eq!(named("FFN_PF_lut6_chunk_01of02"), part(1, 2));
        assert_eq!(named("part-2-of-3"), part(2, 3));
        assert_eq!(named("offset_1of2"), part(1, 2));
        assert_eq!(named("proof"), None);
        assert_eq!(named("3of2"), None);
        assert_eq!(named("0of2"), None);
        assert_eq!(named("überchunk_1of2"), part(1, 2));
        assert_eq!(named("99999999999999999999999of2"), None);
    }

    #[test]
    fn metadata_say_which_part_it_is() {
        let entry = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let metadata = BTreeMap::from([
            entry("com.anemll.chunk_no", "2"),
            entry("com.anemll.num_chunks", "2"),
        ]);
        assert!(described(&metadata).is_some_and(Part::is_last));
        assert_eq!(described(&BTreeMap::new()), None);
    }
}
