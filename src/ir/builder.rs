//! Builds a body from its text order, with lexical scoping: what the protobuf decoder and the text
//! parser share.
//!
//! A name is looked up in the block, then in the blocks around it; a value of an outer block
//! becomes a capture in each block on the way. Operations that touch the same state are chained by
//! order edges in the order in which they are added.

use std::collections::{BTreeMap, HashMap};

use super::effects::Access;
use super::graph::{
    Argument, Binding, Graph, InputOrigin, NamedType, NodeId, Operation, Position, ValueId,
};
use super::names::Names;
use super::program::Body;
use super::value::Value;

/// The text of a body is not a program.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BuildError {
    /// A value has no name.
    #[error("{what} has an empty name")]
    EmptyName {
        /// What lacks the name.
        what: String,
    },
    /// Two values of one scope have the same name.
    #[error("`{name}` is defined twice (the second time by {by})")]
    DefinedTwice {
        /// The name.
        name: String,
        /// What defines it again.
        by: String,
    },
    /// A name that nothing before it defines.
    #[error("`{name}` is used by {by} before it is defined, or never is")]
    Undefined {
        /// The name.
        name: String,
        /// What uses it.
        by: String,
    },
}

/// A binding before its name is looked up.
#[derive(Clone, Debug)]
pub enum DraftBinding {
    /// The name of a value.
    Name(String),
    /// A literal.
    Immediate(Value),
    /// A binding message with neither.
    Absent,
}

/// An operation before its names are looked up.
#[derive(Clone, Debug, Default)]
pub struct OpDraft {
    /// The operation's type.
    pub op_type: String,
    /// The arguments by parameter name.
    pub arguments: BTreeMap<String, Vec<DraftBinding>>,
    /// The results in order.
    pub results: Vec<NamedType>,
    /// The nested blocks in order, as given by [`BodyBuilder::end_block`].
    pub blocks: Vec<Graph>,
    /// The attributes.
    pub attributes: BTreeMap<String, Value>,
}

#[derive(Default)]
struct Level {
    graph: Graph,
    /// Only looked into, never listed. A program has hundreds of thousands of names, each hashed
    /// several times, which the standard hasher makes the larger part of building.
    scope: HashMap<String, ValueId, foldhash::fast::RandomState>,
    touched: HashMap<ValueId, Touched>,
}

/// The operations that last touched a state.
#[derive(Default)]
struct Touched {
    write: Option<NodeId>,
    reads: Vec<NodeId>,
}

/// Builds a body; see the module's page.
pub struct BodyBuilder {
    levels: Vec<Level>,
    /// The names of all blocks so far.
    names: Names,
}

impl Default for BodyBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl BodyBuilder {
    /// A builder at the outermost block.
    pub fn new() -> Self {
        Self {
            levels: vec![Level::default()],
            names: Names::default(),
        }
    }

    /// Starts a block nested in the present one.
    pub fn begin_block(&mut self) {
        self.levels.push(Level::default());
    }

    /// Adds an input to the present block.
    pub fn input(&mut self, named: NamedType, origin: InputOrigin) -> Result<(), BuildError> {
        self.check_definition(&named.name, || "an input".to_owned())?;
        let name = named.name.clone();
        self.names.add(&name);
        let level = self.level();
        let value = level.graph.add_input(named, origin);
        level.scope.insert(name, value);
        Ok(())
    }

    /// Adds an operation to the present block, after those already there.
    pub fn op(&mut self, draft: OpDraft) -> Result<(), BuildError> {
        let OpDraft {
            op_type,
            arguments: drafts,
            results,
            blocks,
            attributes,
        } = draft;
        let place = || describe(&op_type, &results, &attributes);
        let mut arguments = Vec::with_capacity(drafts.len());
        for (parameter, bindings) in drafts {
            let bindings = bindings
                .into_iter()
                .map(|binding| match binding {
                    DraftBinding::Name(name) => {
                        let by = || format!("{}, parameter `{parameter}`", place());
                        Ok(Binding::Value(self.resolve(&name, by)?))
                    }
                    DraftBinding::Immediate(value) => Ok(Binding::Immediate(value)),
                    DraftBinding::Absent => Ok(Binding::Absent),
                })
                .collect::<Result<_, BuildError>>()?;
            arguments.push(Argument {
                parameter,
                bindings,
            });
        }
        for (index, result) in results.iter().enumerate() {
            self.check_definition(&result.name, place)?;
            if results[..index].iter().any(|r| r.name == result.name) {
                return Err(BuildError::DefinedTwice {
                    name: result.name.clone(),
                    by: place(),
                });
            }
        }
        for result in &results {
            self.names.add(&result.name);
        }
        let level = self.level();
        let position = Position {
            origin: level.graph.next_origin,
            step: 0,
        };
        level.graph.next_origin += 1;
        let node = level.graph.add_op(Operation {
            op_type,
            arguments,
            results,
            blocks,
            attributes: attributes.into(),
            position,
            made_by: None,
        });
        level.order_accesses(node);
        level.define_results(node);
        Ok(())
    }

    /// Ends the present nested block and gives its graph, for [`OpDraft::blocks`].
    pub fn end_block(
        &mut self,
        outputs: &[String],
        attributes: BTreeMap<String, Value>,
    ) -> Result<Graph, BuildError> {
        let outputs = self.resolve_outputs(outputs)?;
        let mut level = self.levels.pop().unwrap_or_default();
        level.graph.set_outputs(outputs);
        level.graph.attributes = attributes;
        Ok(level.graph)
    }

    /// Ends the outermost block.
    pub fn finish(
        mut self,
        outputs: &[String],
        attributes: BTreeMap<String, Value>,
    ) -> Result<Body, BuildError> {
        let graph = self.end_block(outputs, attributes)?;
        Ok(Body {
            graph,
            names: self.names,
        })
    }

    fn resolve_outputs(&mut self, outputs: &[String]) -> Result<Vec<ValueId>, BuildError> {
        outputs
            .iter()
            .map(|name| self.resolve(name, || "the block's outputs".to_owned()))
            .collect()
    }

    /// True if the name is defined in the present block or around it.
    pub fn is_defined(&self, name: &str) -> bool {
        self.levels
            .iter()
            .any(|level| level.scope.contains_key(name))
    }

    fn check_definition(&self, name: &str, by: impl Fn() -> String) -> Result<(), BuildError> {
        if name.is_empty() {
            return Err(BuildError::EmptyName { what: by() });
        }
        if self.is_defined(name) {
            return Err(BuildError::DefinedTwice {
                name: name.to_owned(),
                by: by(),
            });
        }
        Ok(())
    }

    fn resolve(&mut self, name: &str, by: impl Fn() -> String) -> Result<ValueId, BuildError> {
        let found = self
            .levels
            .iter()
            .enumerate()
            .rev()
            .find_map(|(depth, level)| level.scope.get(name).map(|value| (depth, *value)));
        let Some((depth, mut value)) = found else {
            return Err(BuildError::Undefined {
                name: name.to_owned(),
                by: by(),
            });
        };
        for inner in depth + 1..self.levels.len() {
            let Some(named) = self.levels[inner - 1].graph.named(value).cloned() else {
                break;
            };
            let level = &mut self.levels[inner];
            value = level.graph.add_capture(named, value);
            level.scope.insert(name.to_owned(), value);
        }
        Ok(value)
    }

    fn level(&mut self) -> &mut Level {
        self.levels
            .last_mut()
            .expect("end_block and finish are the only ones to take a level, and finish consumes")
    }
}

impl Level {
    fn order_accesses(&mut self, node: NodeId) {
        let Some(op) = self.graph.op(node) else {
            return;
        };
        let accesses = self.graph.state_accesses(op);
        for (state, access) in accesses {
            let touched = self.touched.entry(state).or_default();
            if let Some(write) = touched.write {
                self.graph.add_order(write, node);
            }
            match access {
                Access::Read => touched.reads.push(node),
                Access::Write => {
                    for read in touched.reads.drain(..) {
                        self.graph.add_order(read, node);
                    }
                    touched.write = Some(node);
                }
            }
        }
    }

    fn define_results(&mut self, node: NodeId) {
        let Some(op) = self.graph.op(node) else {
            return;
        };
        for (index, result) in op.results().iter().enumerate() {
            let value = ValueId {
                node,
                result: index as u32,
            };
            self.scope.insert(result.name.clone(), value);
        }
    }
}

fn describe(op_type: &str, results: &[NamedType], attributes: &BTreeMap<String, Value>) -> String {
    let name = attributes
        .get("name")
        .and_then(Value::as_str)
        .or_else(|| results.first().map(|result| result.name.as_str()));
    match name {
        Some(name) => format!("`{op_type}` op `{name}`"),
        None => format!("`{op_type}` op"),
    }
}
