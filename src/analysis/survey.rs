//! A look at a whole block, for findings that count what a block has or stand at the first of many.
//!
//! ```text
//! relu, add, mul of fp32      one finding at the relu: "3 operations compute in fp32"
//! ```

use std::collections::BTreeMap;

use crate::ir::NodeId;
use crate::pass::{Attempt, Block, Found, Matcher, Severity, Target};

/// A matcher that looks at a block once, when it is asked about its first operation.
pub struct Survey<F> {
    look: F,
    found: Option<BTreeMap<NodeId, Vec<Found>>>,
}

impl<F: FnMut(&Block<'_>) -> Vec<(NodeId, Found)>> Survey<F> {
    /// A matcher that finds what `look` says of a block: findings with the operation of each.
    pub fn new(look: F) -> Self {
        Self { look, found: None }
    }
}

impl<F: FnMut(&Block<'_>) -> Vec<(NodeId, Found)>> Matcher for Survey<F> {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let look = &mut self.look;
        let found = self.found.get_or_insert_with(|| {
            let mut by_node: BTreeMap<NodeId, Vec<Found>> = BTreeMap::new();
            for (node, found) in look(block) {
                by_node.entry(node).or_default().push(found);
            }
            by_node
        });
        Attempt::found(found.remove(&node).unwrap_or_default())
    }
}

/// One finding for all of a rule in a block, at the first of them; errors stay as they are.
pub fn grouped(findings: Vec<(NodeId, Found)>) -> Vec<(NodeId, Found)> {
    let severities = |found: &Found| Target::ALL.map(|target| found.severity_for(target));
    let mut groups: Vec<(NodeId, Found, usize)> = Vec::new();
    for (node, found) in findings {
        let is_error = severities(&found).contains(&Some(Severity::Error));
        if is_error {
            groups.push((node, found, 0));
            continue;
        }
        let like = |group: &&mut (NodeId, Found, usize)| {
            group.1.rule.id == found.rule.id && severities(&group.1) == severities(&found)
        };
        match groups.iter_mut().find(like) {
            Some(group) => group.2 += 1,
            None => groups.push((node, found, 0)),
        }
    }
    let merged = groups.into_iter().map(|(node, mut found, more)| {
        if more > 0 {
            found.message += &format!(", and {more} more like it");
        }
        (node, found)
    });
    merged.collect()
}

/// How often each word occurs, the most frequent first: `3 mul, 2 add, 1 other`.
pub fn counts<'w>(words: impl IntoIterator<Item = &'w str>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for word in words {
        *counts.entry(word).or_default() += 1;
    }
    let mut sorted: Vec<(&str, usize)> = counts.into_iter().collect();
    sorted.sort_by(|(a, m), (b, n)| n.cmp(m).then(a.cmp(b)));
    let rest: usize = sorted.iter().skip(SHOWN).map(|(_, count)| count).sum();
    let mut parts: Vec<String> = sorted
        .iter()
        .take(SHOWN)
        .map(|(word, count)| format!("{count} {word}"))
        .collect();
    if rest > 0 {
        parts.push(format!("{rest} others"));
    }
    parts.join(", ")
}

/// So many words are named.
const SHOWN: usize = 4;

#[cfg(test)]
mod tests {
    use super::counts;

    #[test]
    fn the_most_frequent_come_first() {
        assert_eq!(
            counts(["add", "mul", "mul", "add", "exp"]),
            "2 add, 2 mul, 1 exp"
        );
        assert_eq!(
            counts(["a", "b", "c", "d", "e", "f"]),
            "1 a, 1 b, 1 c, 1 d, 2 others"
        );
        assert_eq!(counts([]), "");
    }
}
