//! Opsets: the op sets `CoreML3` to `CoreML9`, and what each is called where.
//!
//! A function names its opset (`CoreML8`), MIL text names it by the first iOS that has it
//! (`ios18`), and the model's `specificationVersion` is the opset's number plus one.
//! ML Programs exist since `CoreML5`; the two before it date ops that neural networks had.

use std::fmt;

/// A set of ops with fixed signatures; a later one holds everything of the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Opset {
    /// iOS 13, macOS 10.15.
    CoreML3,
    /// iOS 14, macOS 11.
    CoreML4,
    /// iOS 15, macOS 12: the first with ML Programs.
    CoreML5,
    /// iOS 16, macOS 13.
    CoreML6,
    /// iOS 17, macOS 14.
    CoreML7,
    /// iOS 18, macOS 15.
    CoreML8,
    /// iOS 26, macOS 26.
    CoreML9,
}

impl Opset {
    /// All opsets, oldest first.
    pub const ALL: [Self; 7] = [
        Self::CoreML3,
        Self::CoreML4,
        Self::CoreML5,
        Self::CoreML6,
        Self::CoreML7,
        Self::CoreML8,
        Self::CoreML9,
    ];

    /// The opset that a function of a program names so; `None` for a name we do not know, such as
    /// one that is newer than this table.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|opset| opset.name() == name)
    }

    /// The opset that MIL text names so (`ios18`).
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|opset| opset.word() == word)
    }

    /// The opset of models with this `specificationVersion`; `None` below 4 and above 10.
    pub fn from_specification_version(version: i32) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|opset| opset.specification_version() == version)
    }

    /// The name in a program: `CoreML8`.
    pub fn name(self) -> &'static str {
        match self {
            Self::CoreML3 => "CoreML3",
            Self::CoreML4 => "CoreML4",
            Self::CoreML5 => "CoreML5",
            Self::CoreML6 => "CoreML6",
            Self::CoreML7 => "CoreML7",
            Self::CoreML8 => "CoreML8",
            Self::CoreML9 => "CoreML9",
        }
    }

    /// The word in MIL text, as in `func main<ios18>(…)`.
    pub fn word(self) -> &'static str {
        match self {
            Self::CoreML3 => "ios13",
            Self::CoreML4 => "ios14",
            Self::CoreML5 => "ios15",
            Self::CoreML6 => "ios16",
            Self::CoreML7 => "ios17",
            Self::CoreML8 => "ios18",
            Self::CoreML9 => "ios26",
        }
    }

    /// The lowest `specificationVersion` of a model with functions of this opset.
    pub fn specification_version(self) -> i32 {
        self as i32 + 4
    }
}

impl fmt::Display for Opset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_parses_to_the_opset_that_prints_it() {
        for opset in Opset::ALL {
            assert_eq!(Opset::parse(opset.name()), Some(opset));
            assert_eq!(Opset::from_word(opset.word()), Some(opset));
        }
    }

    #[test]
    fn a_name_newer_than_the_table_is_unknown() {
        assert_eq!(Opset::parse("CoreML10"), None);
        assert_eq!(Opset::parse("ios18"), None);
        assert_eq!(Opset::parse(""), None);
    }

    #[test]
    fn opsets_are_ordered_by_age_and_numbered_by_the_specification() {
        assert!(Opset::ALL.is_sorted());
        // coremltools' `_SPECIFICATION_VERSION_IOS_15` is 6 and `..._IOS_26` is 10.
        assert_eq!(Opset::CoreML5.specification_version(), 6);
        assert_eq!(Opset::CoreML9.specification_version(), 10);
        assert_eq!(Opset::from_specification_version(9), Some(Opset::CoreML8));
        assert_eq!(Opset::from_specification_version(11), None);
    }
}
