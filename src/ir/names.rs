//! Names of values: unique in a function body, nested blocks included.

use std::collections::{HashMap, HashSet};

use super::graph::{Graph, Node};

/// The names in use in one function body.
#[derive(Clone, Debug, Default)]
pub struct Names {
    used: HashSet<String>,
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
                    self.used.insert(named.name.clone());
                }
                Node::Op(op) => {
                    for result in op.results() {
                        self.used.insert(result.name.clone());
                    }
                    for block in op.blocks() {
                        self.collect(block);
                    }
                }
                Node::Capture { .. } | Node::Return(_) | Node::Erased => {}
            }
        }
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
        if self.used.insert(base.clone()) {
            return base;
        }
        let next = self.next.entry(base.clone()).or_insert(0);
        loop {
            *next += 1;
            let name = format!("{base}_{next}");
            if self.used.insert(name.clone()) {
                return name;
            }
        }
    }
}
