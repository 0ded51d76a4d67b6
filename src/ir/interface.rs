//! Changes to what a function takes and gives. The bodies of a function change alike: the first
//! inputs of each are the function's own.

use super::graph::{Binding, Graph, InputOrigin, NamedType, Node, NodeId, ValueId};
use super::program::{Body, Function, Program};
use super::types::ValueType;

/// A change to an interface that cannot be made.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum InterfaceError {
    /// There is no such input.
    #[error("there is no input `{0}`")]
    NoInput(String),
    /// There is no such output.
    #[error("there is no output number {0}")]
    NoOutput(usize),
    /// Something reads the input.
    #[error("`{0}` is in use")]
    InUse(String),
    /// The name belongs to another value.
    #[error("another value is called `{0}`")]
    NameTaken(String),
    /// The output is an input as well, or an output twice, and cannot have another name.
    #[error("`{0}` is an input as well, or more than one output")]
    Shared(String),
}

impl Program {
    /// A name that no value of any function has: `base`, or `base_1`, `base_2` and so on.
    pub fn fresh_name(&self, base: &str) -> String {
        let is_free = |name: &str| {
            let bodies = self.functions.values().flat_map(Function::bodies);
            !bodies.into_iter().any(|body| body.names.contains(name))
        };
        let mut name = base.to_owned();
        let mut number = 0;
        while !is_free(&name) {
            number += 1;
            name = format!("{base}_{number}");
        }
        name
    }
}

impl Function {
    fn bodies(&self) -> impl Iterator<Item = &Body> {
        self.specializations.values()
    }

    /// A name that no value of any of the function's bodies has: `base`, or `base_1`, `base_2` and so
    /// on.
    pub fn fresh_name(&self, base: &str) -> String {
        let mut name = base.to_owned();
        let mut number = 0;
        while self.bodies().any(|body| body.names.contains(&name)) {
            number += 1;
            name = format!("{base}_{number}");
        }
        name
    }

    fn position(&self, name: &str) -> Result<usize, InterfaceError> {
        let mut inputs = self.inputs.iter();
        inputs
            .position(|input| input.name == name)
            .ok_or_else(|| InterfaceError::NoInput(name.to_owned()))
    }

    /// Adds an input to the function and to each of its bodies, as the one with this index (as the
    /// last one if the index is larger).
    ///
    /// # Errors
    ///
    /// If a value of a body has the name.
    pub fn add_input(&mut self, index: usize, input: NamedType) -> Result<(), InterfaceError> {
        if self.bodies().any(|body| body.names.contains(&input.name)) {
            return Err(InterfaceError::NameTaken(input.name));
        }
        let index = index.min(self.inputs.len());
        for body in self.specializations.values_mut() {
            body.names.add(&input.name);
            body.graph.insert_input(index, input.clone());
        }
        self.inputs.insert(index, input);
        Ok(())
    }

    /// Removes an input that nothing reads.
    ///
    /// # Errors
    ///
    /// If there is none of this name, or something in a body reads it.
    pub fn remove_input(&mut self, name: &str) -> Result<(), InterfaceError> {
        let index = self.position(name)?;
        let is_used = |body: &Body| {
            let node = body.graph.inputs().get(index);
            node.is_some_and(|node| body.graph.is_used(*node))
        };
        if self.bodies().any(is_used) {
            return Err(InterfaceError::InUse(name.to_owned()));
        }
        for body in self.specializations.values_mut() {
            body.graph.remove_input(index);
        }
        self.inputs.remove(index);
        Ok(())
    }

    /// Gives an input another name.
    ///
    /// # Errors
    ///
    /// If there is none of this name, or a value of a body has the new one.
    pub fn rename_input(&mut self, name: &str, new: &str) -> Result<(), InterfaceError> {
        let index = self.position(name)?;
        if self.bodies().any(|body| body.names.contains(new)) {
            return Err(InterfaceError::NameTaken(new.to_owned()));
        }
        for body in self.specializations.values_mut() {
            body.names.add(new);
            if let Some(node) = body.graph.inputs().get(index).copied() {
                body.graph.rename(ValueId::first(node), new.to_owned());
            }
        }
        new.clone_into(&mut self.inputs[index].name);
        Ok(())
    }

    /// Gives an input another type. The caller sees to it that its uses agree.
    ///
    /// # Errors
    ///
    /// If there is none of this name.
    pub fn retype_input(&mut self, name: &str, ty: &ValueType) -> Result<(), InterfaceError> {
        let index = self.position(name)?;
        for body in self.specializations.values_mut() {
            if let Some(node) = body.graph.inputs().get(index).copied() {
                body.graph.set_type(ValueId::first(node), ty.clone());
            }
        }
        self.inputs[index].ty = Some(ty.clone());
        Ok(())
    }

    /// Puts the inputs in another order: `order` has the index of each input's present place.
    /// Nothing happens if it does not name each input once.
    pub fn order_inputs(&mut self, order: &[usize]) {
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..self.inputs.len()) {
            return;
        }
        self.inputs = order.iter().map(|i| self.inputs[*i].clone()).collect();
        for body in self.specializations.values_mut() {
            let old = body.graph.inputs.clone();
            for (place, index) in order.iter().enumerate() {
                if let (Some(slot), Some(node)) =
                    (body.graph.inputs.get_mut(place), old.get(*index))
                {
                    *slot = *node;
                }
            }
        }
    }

    /// Gives the output with this index another name, in each body.
    ///
    /// # Errors
    ///
    /// If a body has no such output, if it cannot have another name, or if a value of a body has
    /// the new one.
    pub fn rename_output(&mut self, index: usize, new: &str) -> Result<(), InterfaceError> {
        for body in self.bodies() {
            let outputs = body.graph.outputs();
            let value = *outputs.get(index).ok_or(InterfaceError::NoOutput(index))?;
            let is_twice = outputs.iter().filter(|output| **output == value).count() > 1;
            if is_twice || body.graph.op(value.node).is_none() {
                return Err(InterfaceError::Shared(body.graph.name(value).to_owned()));
            }
            if body.names.contains(new) {
                return Err(InterfaceError::NameTaken(new.to_owned()));
            }
        }
        for body in self.specializations.values_mut() {
            let Some(value) = body.graph.outputs().get(index).copied() else {
                continue;
            };
            body.names.add(new);
            body.graph.rename(value, new.to_owned());
        }
        Ok(())
    }
}

impl Body {
    /// Lets everything that reads the input with this index read `value` instead, except for the
    /// operation `reader`, which reads the input at `parameter`.
    ///
    /// # Errors
    ///
    /// If there is no such input, or it is an output as well.
    pub fn divert_input(
        &mut self,
        index: usize,
        value: ValueId,
        (reader, parameter): (NodeId, &str),
    ) -> Result<(), InterfaceError> {
        let node = self.graph.inputs().get(index).copied();
        let node = node.ok_or_else(|| InterfaceError::NoInput(index.to_string()))?;
        let input = ValueId::first(node);
        if self.graph.is_output(input) {
            return Err(InterfaceError::Shared(self.graph.name(input).to_owned()));
        }
        self.graph.replace_uses(input, value);
        let own = vec![Binding::Value(input)];
        self.graph.set_argument(reader, parameter, Some(own));
        Ok(())
    }

    /// Puts another value in the place of the output with this index. They exchange their names.
    ///
    /// # Errors
    ///
    /// If there is no such output, or it is an input as well or an output twice.
    pub fn exchange_output(&mut self, index: usize, value: ValueId) -> Result<(), InterfaceError> {
        let outputs = self.graph.outputs();
        let old = *outputs.get(index).ok_or(InterfaceError::NoOutput(index))?;
        let is_twice = outputs.iter().filter(|output| **output == old).count() > 1;
        if is_twice || self.graph.op(old.node).is_none() || self.graph.is_output(value) {
            return Err(InterfaceError::Shared(self.graph.name(old).to_owned()));
        }
        self.graph.set_output(index, value);
        let new_name = self.graph.name(value).to_owned();
        let old_name = self.graph.rename(old, new_name);
        self.graph.rename(value, old_name);
        Ok(())
    }

    /// Puts other values, or the same in another order, in the place of the body's outputs. Their
    /// names become the outputs' names.
    pub fn set_outputs(&mut self, outputs: Vec<ValueId>) {
        self.graph.set_outputs(outputs);
    }
}

impl Graph {
    /// Adds a function input as the one with this index.
    fn insert_input(&mut self, index: usize, named: NamedType) {
        let value = self.add_input(named, InputOrigin::Function);
        let last = self.inputs.pop();
        debug_assert_eq!(last, Some(value.node), "add_input puts it last");
        self.inputs.insert(index, value.node);
    }

    /// Removes an input that nothing uses.
    fn remove_input(&mut self, index: usize) {
        if index >= self.inputs.len() {
            return;
        }
        let node: NodeId = self.inputs.remove(index);
        debug_assert!(
            matches!(self.node(node), Some(Node::Input(..))) && !self.is_used(node),
            "the caller has looked"
        );
        self.erase(node);
    }
}
