//! Which rules are meant by the words of `--select`, `--ignore` and the configuration.

use std::collections::BTreeSet;

use crate::pass::{Evidence, Family, Pass, Rule, nearest};

/// A word that no rule, pass, family, catalogue or level of evidence has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no rule, pass, family, catalogue or level of evidence `{word}`{}", hint(nearest.as_deref()))]
pub struct UnknownWord {
    /// The word.
    pub word: String,
    /// The known word that is most like it.
    pub nearest: Option<String>,
}

pub(super) fn hint(nearest: Option<&str>) -> String {
    nearest.map_or_else(
        || "; `milwright list --rules` shows them all".to_owned(),
        |name| format!("; did you mean `{name}`?"),
    )
}

/// A set of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection(BTreeSet<&'static str>);

impl Selection {
    /// All rules of some passes.
    pub fn all(passes: &[&'static dyn Pass]) -> Self {
        Self(rules(passes).map(|(_, rule)| rule.id).collect())
    }

    /// The rules that words mean: ids of rules and passes, families, `orion` or a row of it
    /// (`orion-16`), levels of evidence, `all`.
    pub fn parse<S: AsRef<str>>(
        words: &[S],
        passes: &[&'static dyn Pass],
    ) -> Result<Self, UnknownWord> {
        let mut selection = Self::default();
        for word in words {
            selection.add(word.as_ref().trim(), passes)?;
        }
        Ok(selection)
    }

    fn add(&mut self, word: &str, passes: &[&'static dyn Pass]) -> Result<(), UnknownWord> {
        if word.is_empty() {
            return Ok(());
        }
        let mut found = known(passes).contains(word);
        for (pass, rule) in rules(passes) {
            if names(pass, rule).any(|name| name == word) {
                self.0.insert(rule.id);
                found = true;
            }
        }
        if found {
            return Ok(());
        }
        Err(UnknownWord {
            word: word.to_owned(),
            nearest: nearest(
                word,
                known(passes)
                    .into_iter()
                    .chain(rules(passes).map(|(_, rule)| rule.id)),
            ),
        })
    }

    /// Whether a rule is meant.
    pub fn contains(&self, rule: &Rule) -> bool {
        self.0.contains(rule.id)
    }

    /// Adds the rules of another selection.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }
}

/// All rules of some passes, with their passes.
pub(super) fn rules(
    passes: &[&'static dyn Pass],
) -> impl Iterator<Item = (&'static dyn Pass, &'static Rule)> {
    passes
        .iter()
        .flat_map(|pass| pass.rules().iter().map(|rule| (*pass, rule)))
}

/// The words that mean a rule.
fn names(pass: &dyn Pass, rule: &'static Rule) -> impl Iterator<Item = &'static str> {
    let meta = pass.meta();
    let catalogs = rule
        .catalog
        .iter()
        .flat_map(|row| [*row, row.split('-').next().unwrap_or(row)]);
    [
        "all",
        rule.id,
        meta.id,
        meta.family.name(),
        rule.evidence.name(),
    ]
    .into_iter()
    .chain(catalogs)
}

/// Words that may mean no rule at all: a family without rules is still a family, and a pass without
/// rules a pass.
fn known(passes: &[&'static dyn Pass]) -> BTreeSet<&'static str> {
    let families = Family::ALL.into_iter().map(Family::name);
    let levels = Evidence::ALL.into_iter().map(Evidence::name);
    let ids = passes.iter().map(|pass| pass.meta().id);
    families
        .chain(levels)
        .chain(ids)
        .chain(["all", "orion"])
        .collect()
}
