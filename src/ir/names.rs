//! Names of values: unique in a function body, nested blocks included.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;

use super::graph::{Graph, Node};

/// The names in use in one function body.
///
/// Only a hash of each is kept. Two names with the same one (of 2^64) cost [`Names::fresh`] a number
/// that it need not have added, and nothing else; the hash is the same in every run.
#[derive(Clone, Debug, Default)]
pub struct Names {
    used: HashSet<u64, foldhash::fast::FixedState>,
    next: HashMap<String, u32>,
}

impl Names {
    /// The names of a graph and of all blocks nested in it.
    pub fn of(graph: &Graph) -> Self {
        let mut names = Self::default();
        names.collect(graph);
        names
    }

    fn collect(&mut self, graph: &Graph) {
        for (_, node) in graph.nodes() {
            match node {
                Node::Input(named, _) => {
                    self.add(&named.name);
                }
                Node::Op(op) => {
                    for result in op.results() {
                        self.add(&result.name);
                    }
                    for block in op.blocks() {
                        self.collect(block);
                    }
                }
                Node::Capture { .. } | Node::Return(_) | Node::Erased => {}
            }
        }
    }

    /// Whether a name is in use.
    pub(super) fn contains(&self, name: &str) -> bool {
        let hash = foldhash::quality::FixedState::default().hash_one(name);
        self.used.contains(&hash)
    }

    /// Takes a name into use; false if it already was.
    pub(super) fn add(&mut self, name: &str) -> bool {
        let hash = foldhash::quality::FixedState::default().hash_one(name);
        self.used.insert(hash)
    }

    /// A name that nobody has: `base`, or `base_1`, `base_2` and so on. Characters that MIL does
    /// not allow in an identifier become `_`.
    pub fn fresh(&mut self, base: &str) -> String {
        let mut base: String = base
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() || c == '_' || c == '@' {
                    c
                } else {
                    '_'
                }
            })
            .collect();
        if !base.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            base.insert(0, '_');
        }
        if self.add(&base) {
            return base;
        }
        let mut next = self.next.get(&base).copied().unwrap_or(0);
        loop {
            next += 1;
            let name = format!("{base}_{next}");
            if self.add(&name) {
                self.next.insert(base, next);
                return name;
            }
        }
    }
}
