//! What a rewrite works with: makes operations with inferred types and puts values in place.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::block::{Blobs, Block};
use crate::ir::{
    Attributes, Binding, DType, Graph, NewOp, NodeId, Refusal, Rewriter, Value, ValueId, ValueType,
};
use crate::ops::{InferError, Inference, OpView, Operand, Opset, infer};

/// Why a rewrite could not be made.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// The graph refuses the change.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The new operation has no valid result type.
    #[error("cannot make `{op_type}`: {why}")]
    Infer {
        /// The operation's type.
        op_type: String,
        /// Why.
        why: InferError,
    },
    /// No rule gives the new operation's result type.
    #[error("cannot make `{0}`: its result type cannot be inferred")]
    NoRule(String),
    /// A number cannot be a constant of this type.
    #[error("no constant of type {0} can be made from a number")]
    Constant(DType),
    /// The data of a constant is in a weight file that is not there.
    #[error("the data of a constant cannot be read")]
    Unreadable,
    /// An element of a new constant is too large for its type.
    #[error("a number of a constant would be too large for {0}")]
    TooLarge(DType),
}

/// Makes one rewrite.
pub struct Edit<'a> {
    rewriter: Rewriter<'a>,
    opset: Opset,
    blobs: &'a dyn Blobs,
}

impl<'a> Edit<'a> {
    pub(super) fn new(rewriter: Rewriter<'a>, opset: Opset, blobs: &'a dyn Blobs) -> Self {
        Self {
            rewriter,
            opset,
            blobs,
        }
    }

    pub(super) fn has_changed(&self) -> bool {
        self.rewriter.has_changed()
    }

    pub(super) fn finish(self) -> usize {
        self.rewriter.finish()
    }

    /// The graph as it is now.
    pub fn graph(&self) -> &Graph {
        self.rewriter.graph()
    }

    /// The graph as matchers see it, without what is around a nested block.
    pub fn block(&self) -> Block<'_> {
        Block {
            graph: self.rewriter.graph(),
            outer: None,
            opset: Some(self.opset),
            blobs: self.blobs,
            ranges: None,
        }
    }

    /// The packed bytes of a constant tensor. A rewrite reads large weights here and not before, as a
    /// report makes no rewrite.
    pub fn bytes<'v>(&self, value: &'v Value) -> Result<Cow<'v, [u8]>, EditError>
    where
        'a: 'v,
    {
        let bytes = match value.blob() {
            Some(blob) => self.blobs.bytes(blob).map(Cow::Borrowed),
            None => value.tensor_bytes(),
        };
        bytes.ok_or(EditError::Unreadable)
    }

    /// Makes an operation with one binding for each parameter; gives its first result.
    pub fn op(
        &mut self,
        op_type: &str,
        arguments: &[(&str, Binding)],
    ) -> Result<ValueId, EditError> {
        let arguments = arguments
            .iter()
            .map(|(parameter, binding)| ((*parameter).to_owned(), vec![binding.clone()]))
            .collect();
        Ok(ValueId::first(self.variadic_op(op_type, arguments)?))
    }

    /// Makes an operation of which some parameters may have several bindings.
    pub fn variadic_op(
        &mut self,
        op_type: &str,
        arguments: BTreeMap<String, Vec<Binding>>,
    ) -> Result<NodeId, EditError> {
        self.op_with_attributes(op_type, arguments, BTreeMap::new())
    }

    /// Makes an operation with attributes: a `constexpr_*` of the form that keeps its parameters
    /// there.
    pub fn op_with_attributes(
        &mut self,
        op_type: &str,
        arguments: BTreeMap<String, Vec<Binding>>,
        attributes: BTreeMap<String, Value>,
    ) -> Result<NodeId, EditError> {
        let results = self.infer(op_type, &arguments, &attributes.clone().into())?;
        Ok(self.rewriter.make(NewOp {
            op_type: op_type.to_owned(),
            arguments,
            results,
            attributes,
        }))
    }

    fn infer(
        &self,
        op_type: &str,
        arguments: &BTreeMap<String, Vec<Binding>>,
        attributes: &Attributes,
    ) -> Result<Vec<ValueType>, EditError> {
        let graph = self.graph();
        let mut view = OpView {
            op_type,
            opset: self.opset,
            arguments: BTreeMap::new(),
            attributes,
        };
        for (parameter, bindings) in arguments {
            let operands = bindings
                .iter()
                .filter_map(|binding| operand(graph, binding))
                .collect();
            view.arguments.insert(parameter, operands);
        }
        match infer(&view) {
            Ok(Inference::Types(types)) => Ok(types),
            Ok(Inference::NoRule) => Err(EditError::NoRule(op_type.to_owned())),
            Err(why) => Err(EditError::Infer {
                op_type: op_type.to_owned(),
                why,
            }),
        }
    }

    /// The types of the results of an existing operation by the types that its operands have now;
    /// `None` if there is no rule.
    pub fn inferred(&self, node: NodeId) -> Result<Option<Vec<ValueType>>, EditError> {
        let Some(op) = self.graph().op(node) else {
            return Ok(None);
        };
        let arguments = op
            .arguments()
            .iter()
            .map(|argument| (argument.parameter.clone(), argument.bindings.clone()))
            .collect();
        match self.infer(op.op_type(), &arguments, op.attributes()) {
            Ok(types) => Ok(Some(types)),
            Err(EditError::NoRule(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Keeps an operation that this rewrite made although nothing uses it yet.
    pub fn keep(&mut self, node: NodeId) {
        self.rewriter.keep(node);
    }

    /// Makes a const operation.
    pub fn constant(&mut self, value: Value) -> Binding {
        Binding::Value(self.rewriter.constant(value))
    }

    /// Makes a scalar const of type fp16 or fp32 (rounded to nearest even).
    pub fn scalar(&mut self, dtype: DType, value: f64) -> Result<Binding, EditError> {
        let value = Value::float(dtype, value).ok_or(EditError::Constant(dtype))?;
        Ok(self.constant(value))
    }

    /// Puts `new` in the place of `old` everywhere; see [`Rewriter::replace`].
    pub fn replace(&mut self, old: ValueId, new: ValueId) -> Result<(), EditError> {
        Ok(self.rewriter.replace(old, new)?)
    }

    /// Binds a parameter of an existing operation anew; `None` removes it.
    pub fn bind(&mut self, node: NodeId, parameter: &str, bindings: Option<Vec<Binding>>) {
        self.rewriter.bind(node, parameter, bindings);
    }

    /// Erases an operation whose results nothing uses, even if it writes to a state.
    pub fn remove(&mut self, node: NodeId) -> Result<(), EditError> {
        Ok(self.rewriter.remove(node)?)
    }

    /// Puts what reads and writes a state in order; to be called when all new accesses are made.
    /// See [`Rewriter::order_accesses`].
    pub fn order_accesses(&mut self, state: ValueId) {
        self.rewriter.order_accesses(state);
    }

    /// Lets one operation that touches a state come before another, whatever their positions.
    pub fn order(&mut self, before: NodeId, after: NodeId) {
        self.rewriter.order(before, after);
    }

    /// Gives a value another type.
    pub fn retype(&mut self, value: ValueId, ty: ValueType) {
        self.rewriter.retype(value, ty);
    }
}

/// A binding as inference sees it.
fn operand<'a>(graph: &'a Graph, binding: &'a Binding) -> Option<Operand<'a>> {
    match binding {
        Binding::Value(value) => Some(Operand {
            ty: graph.ty(*value)?,
            constant: graph.producer(*value).and_then(|op| op.const_value()),
        }),
        Binding::Immediate(value) => Some(Operand {
            ty: value.ty.as_ref()?,
            constant: Some(value),
        }),
        Binding::Absent => None,
    }
}
