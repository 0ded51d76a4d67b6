//! What each op means: the signatures of all ops, and one file per op family with the types of
//! its results.
//!
//! [`registry`] says which op types an opset has and what their parameters are. [`infer()`] gives an
//! op's result types from its operands alone, without a graph: [`view::OpView`] is all it sees.

pub mod activation;
pub mod constant;
pub mod evaluate;
pub mod infer;
pub mod joining;
pub mod registry;
pub mod verify;
pub mod view;

mod attention;
mod convolution;
mod creation;
mod dims;
mod elementwise;
mod image;
mod indexing;
mod layout;
mod linear;
mod list;
mod normalization;
mod numerics;
mod quantization;
mod recurrent;
mod reduction;
mod slicing;
mod sorting;
mod state;

pub use crate::ir::Opset;
pub use evaluate::{Call, Datum, EvalError, StateCell, evaluate, has_evaluation};
pub use infer::{InferError, Inference, compatible, infer};
pub use numerics::Numerics;
pub use view::{Argument, OpView, Operand};
