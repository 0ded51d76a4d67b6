//! The graph: program, function, block, operation, value; and the only ways to change them.
//!
//! [`Program`] holds [`Function`]s, a function holds a [`Body`] for each opset, a body is one
//! [`Graph`] whose operations may own nested graphs. [`BodyBuilder`] makes a graph from a text
//! order, [`Rewriter`] changes one, [`verify`] checks one.

mod attributes;
mod builder;
mod edit;
mod effects;
mod graph;
mod interface;
mod names;
mod opset;
mod program;
mod rewriter;
mod schedule;
pub mod types;
pub mod value;
pub mod verify;

#[cfg(test)]
mod tests;

pub use attributes::Attributes;
pub use builder::{BodyBuilder, BuildError, DraftBinding, OpDraft};
pub use effects::Access;
pub use graph::{
    Argument, Binding, Graph, InputOrigin, NamedType, Node, NodeId, Operation, Slot, Use, ValueId,
};
pub use interface::InterfaceError;
pub use names::Names;
pub use opset::Opset;
pub use program::{Body, Function, Program, ValuePlace};
pub use rewriter::{NewOp, Refusal, Rewriter};
pub use schedule::Cycle;
pub use types::{DType, Dim, TensorType, ValueType};
pub use value::{BlobRef, Content, Immediate, NewBlob, TensorData, Value};
