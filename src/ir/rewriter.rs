//! The rewriter: the only way for a pass to change a graph.
//!
//! One rewriter serves one rewrite at one anchor operation. It makes operations beside the anchor,
//! puts new values in the place of old ones (refused if the types differ or an output would lose
//! its name), retypes, and in the end erases what became dead. Names of block outputs never
//! change: the value that takes an output's place takes its name.

use std::collections::BTreeMap;

use super::graph::{
    Argument, Binding, Graph, NamedType, Node, NodeId, Operation, Position, ValueId,
};
use super::names::Names;
use super::types::ValueType;
use super::value::Value;

/// A change that the rewriter will not make.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Refusal {
    /// The new value's type is not the old one's.
    #[error("`{new}` cannot replace `{old}`: their types differ")]
    TypeDiffers {
        /// Name of the value to be replaced.
        old: String,
        /// Name of the value to put in its place.
        new: String,
    },
    /// The old value is an output, and the new one cannot take its name.
    #[error("`{old}` is an output of the block and `{new}` cannot take its name: it is {what}")]
    OutputName {
        /// Name of the output.
        old: String,
        /// Name of the value to put in its place.
        new: String,
        /// Why not.
        what: &'static str,
    },
    /// Something uses a result of an operation to be removed.
    #[error("`{0}` cannot be removed: it is in use")]
    InUse(String),
    /// The value or operation does not exist any more.
    #[error("a value that the rewrite needs does not exist any more")]
    Gone,
}

/// An operation to be made.
#[derive(Clone, Debug)]
pub struct NewOp {
    /// The operation's type.
    pub op_type: String,
    /// The arguments by parameter name.
    pub arguments: BTreeMap<String, Vec<Binding>>,
    /// The types of its results.
    pub results: Vec<ValueType>,
    /// Attributes besides `name`.
    pub attributes: BTreeMap<String, Value>,
}

/// Changes one graph for one rewrite; see the module's page.
pub struct Rewriter<'a> {
    graph: &'a mut Graph,
    names: &'a mut Names,
    pass: &'static str,
    anchor: NodeId,
    base: String,
    made: Vec<NodeId>,
    loose: Vec<NodeId>,
    changed: bool,
    removable: fn(&Operation) -> bool,
}

impl<'a> Rewriter<'a> {
    /// A rewriter for one rewrite by `pass` at the operation `anchor`. `removable` says which
    /// operations may be erased once nothing uses their results.
    pub fn new(
        graph: &'a mut Graph,
        names: &'a mut Names,
        pass: &'static str,
        anchor: NodeId,
        removable: fn(&Operation) -> bool,
    ) -> Self {
        let name = graph
            .named(ValueId::first(anchor))
            .map_or("value", |n| &n.name);
        let base = format!("{name}_{}", pass.replace('-', "_"));
        Self {
            graph,
            names,
            pass,
            anchor,
            base,
            made: Vec::new(),
            loose: vec![anchor],
            changed: false,
            removable,
        }
    }

    /// Whether anything that was there before has been changed: replaced, bound anew or retyped.
    pub fn has_changed(&self) -> bool {
        self.changed
    }

    /// The graph as it is now.
    pub fn graph(&self) -> &Graph {
        self.graph
    }

    /// Makes an operation beside the anchor. Its results get fresh names from the anchor's.
    pub fn make(&mut self, new: NewOp) -> NodeId {
        let origin = self
            .graph
            .op(self.anchor)
            .map_or(self.graph.next_origin, |op| op.position.origin);
        self.graph.next_step += 1;
        let results: Vec<NamedType> = new
            .results
            .into_iter()
            .map(|ty| NamedType {
                name: self.names.fresh(&self.base),
                ty: Some(ty),
            })
            .collect();
        let mut attributes = new.attributes;
        if let Some(first) = results.first() {
            attributes.insert("name".to_owned(), Value::string(first.name.clone()));
        }
        let node = self.graph.add_op(Operation {
            op_type: new.op_type,
            arguments: new
                .arguments
                .into_iter()
                .map(|(parameter, bindings)| Argument {
                    parameter,
                    bindings,
                })
                .collect(),
            results,
            blocks: Vec::new(),
            attributes: attributes.into(),
            position: Position {
                origin,
                step: self.graph.next_step,
            },
            made_by: Some(self.pass),
        });
        self.made.push(node);
        node
    }

    /// Makes a const operation.
    pub fn constant(&mut self, value: Value) -> ValueId {
        let results = vec![value.ty.clone().unwrap_or(ValueType::Unspecified)];
        let node = self.make(NewOp {
            op_type: "const".to_owned(),
            arguments: BTreeMap::new(),
            results,
            attributes: BTreeMap::from([("val".to_owned(), value)]),
        });
        ValueId::first(node)
    }

    /// Puts `new` in the place of `old` everywhere.
    ///
    /// A value that this rewrite made takes the old one's name, and its operation the old
    /// operation's. An older value takes the name only if the old one is an output.
    pub fn replace(&mut self, old: ValueId, new: ValueId) -> Result<(), Refusal> {
        self.check_replace(old, new)?;
        let fresh = self.made.contains(&new.node);
        if self.graph.is_output(old) || fresh {
            self.swap_names(old, new, fresh);
        }
        self.changed = true;
        self.graph.replace_uses(old, new);
        self.loose.push(old.node);
        Ok(())
    }

    /// Whether [`Rewriter::replace`] would be refused, and why.
    pub fn check_replace(&self, old: ValueId, new: ValueId) -> Result<(), Refusal> {
        check_replace(self.graph, old, new)
    }

    fn swap_names(&mut self, old: ValueId, new: ValueId, operation_too: bool) {
        let old_name = self.graph.name(old).to_owned();
        let new_name = self.graph.rename(new, old_name);
        self.graph.rename(old, new_name);
        let one_result =
            |graph: &Graph, node| graph.op(node).is_some_and(|op| op.results.len() == 1);
        if !operation_too || !one_result(self.graph, old.node) || !one_result(self.graph, new.node)
        {
            return;
        }
        let old_label = self
            .graph
            .op_mut(old.node)
            .and_then(|op| op.attributes.remove("name"));
        let new_label = match (self.graph.op_mut(new.node), old_label) {
            (Some(op), Some(label)) => op.attributes.insert("name".to_owned(), label),
            (Some(op), None) => op.attributes.remove("name"),
            (None, _) => None,
        };
        if let (Some(op), Some(label)) = (self.graph.op_mut(old.node), new_label) {
            op.attributes.insert("name".to_owned(), label);
        }
    }

    /// Binds a parameter of an existing operation anew; `None` removes it.
    pub fn bind(&mut self, node: NodeId, parameter: &str, bindings: Option<Vec<Binding>>) {
        if let Some(op) = self.graph.op(node) {
            for argument in op.arguments() {
                for binding in &argument.bindings {
                    if let Binding::Value(value) = binding {
                        self.loose.push(value.node);
                    }
                }
            }
        }
        self.changed = true;
        self.graph.set_argument(node, parameter, bindings);
    }

    /// Gives a value another type. The caller sees to it that its uses agree.
    pub fn retype(&mut self, value: ValueId, ty: ValueType) {
        self.changed = true;
        self.graph.set_type(value, ty);
    }

    /// Keeps an operation that this rewrite made although nothing uses it yet.
    pub fn keep(&mut self, node: NodeId) {
        self.made.retain(|made| *made != node);
    }

    /// Erases an operation whose results nothing uses, even if it writes to a state.
    ///
    /// # Errors
    ///
    /// If something uses a result, or it is no operation.
    pub fn remove(&mut self, node: NodeId) -> Result<(), Refusal> {
        let Some(op) = self.graph.op(node) else {
            return Err(Refusal::Gone);
        };
        if self.graph.is_used(node) {
            let result = op.results.first().map(|result| result.name.clone());
            return Err(Refusal::InUse(result.unwrap_or_default()));
        }
        for argument in op.arguments() {
            for binding in &argument.bindings {
                if let Binding::Value(value) = binding {
                    self.loose.push(value.node);
                }
            }
        }
        self.changed = true;
        self.graph.erase(node);
        Ok(())
    }

    /// Puts the operations of this block that touch a state in order, by their positions: those
    /// that this rewrite made are where the operations are that they were made beside.
    pub fn order_accesses(&mut self, state: ValueId) {
        self.graph.order_accesses(state);
    }

    /// Lets one operation that touches a state come before another, whatever their positions.
    pub fn order(&mut self, before: NodeId, after: NodeId) {
        self.graph.add_order(before, after);
    }

    /// Ends the rewrite: erases the operations that it left without a use, and what only they
    /// used. Gives the number of erased operations.
    pub fn finish(mut self) -> usize {
        let mut erased = 0;
        self.loose.append(&mut self.made);
        while let Some(node) = self.loose.pop() {
            let Some(op) = self.graph.op(node) else {
                continue;
            };
            if self.graph.is_used(node) || !(self.removable)(op) || self.graph.writes_state(node) {
                continue;
            }
            let producers = op
                .arguments()
                .iter()
                .flat_map(|argument| &argument.bindings)
                .filter_map(|binding| match binding {
                    Binding::Value(value) => Some(value.node),
                    _ => None,
                })
                .chain(
                    op.blocks()
                        .iter()
                        .flat_map(|block| block.captures().map(|(_, s)| s.node)),
                );
            self.loose.extend(producers);
            self.graph.erase(node);
            erased += 1;
        }
        erased
    }
}

/// Whether `new` may stand in the place of `old`; see [`Rewriter::replace`].
pub(super) fn check_replace(graph: &Graph, old: ValueId, new: ValueId) -> Result<(), Refusal> {
    let (Some(from), Some(to)) = (graph.named(old), graph.named(new)) else {
        return Err(Refusal::Gone);
    };
    if from.ty != to.ty {
        return Err(Refusal::TypeDiffers {
            old: from.name.clone(),
            new: to.name.clone(),
        });
    }
    if !graph.is_output(old) {
        return Ok(());
    }
    let what = match graph.node(new.node) {
        Some(Node::Input(..)) => "an input",
        Some(Node::Capture { .. }) => "a value of the enclosing block",
        Some(Node::Op(op)) if op.op_type == "const" => "a const",
        Some(Node::Op(op)) if op.op_type == "read_state" => "the value of a state",
        Some(Node::Op(_)) if graph.is_output(new) => "another output",
        _ => return Ok(()),
    };
    Err(Refusal::OutputName {
        old: from.name.clone(),
        new: to.name.clone(),
        what,
    })
}

impl Graph {
    /// Whether a rewriter could put `new` in the place of `old`, and if not, why.
    pub fn can_replace(&self, old: ValueId, new: ValueId) -> Result<(), Refusal> {
        check_replace(self, old, new)
    }
}
