//! Why a program could not be run.

use super::constants::ConstantError;
use crate::ops::EvalError;

/// Why a program could not be run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// There is no such function, or it has no body for its opset.
    #[error("there is no function `{name}` to run; the program has {}", known.join(", "))]
    NoFunction {
        /// The name asked for.
        name: String,
        /// The functions there are.
        known: Vec<String>,
    },
    /// The body is written for an opset that is not known.
    #[error("function `{function}` is written for the opset `{opset}`, which is not known")]
    Opset {
        /// The function.
        function: String,
        /// Its opset.
        opset: String,
    },
    /// An input is not given.
    #[error("the input `{name}` ({ty}) is missing")]
    MissingInput {
        /// Its name.
        name: String,
        /// Its type.
        ty: String,
    },
    /// An input does not fit its type.
    #[error("the input `{name}` is {found}, but the program wants {wanted}")]
    Input {
        /// Its name.
        name: String,
        /// What was given.
        found: String,
        /// The declared type.
        wanted: String,
    },
    /// The graph has a cycle.
    #[error(transparent)]
    Cycle(#[from] crate::ir::Cycle),
    /// An op failed.
    #[error("{place}: {source}")]
    Op {
        /// Function, op type and name.
        place: String,
        /// Why.
        source: EvalError,
    },
    /// A constant cannot be read.
    #[error("{place}: {source}")]
    Constant {
        /// Function, op type and name.
        place: String,
        /// Why.
        source: ConstantError,
    },
    /// A loop did not end.
    #[error("{place}: the loop has not ended after {turns} turns")]
    Endless {
        /// Function, op type and name.
        place: String,
        /// Turns made.
        turns: u64,
    },
    /// The live values take more memory than allowed.
    #[error("{place}: the live values take {bytes} bytes, more than the {limit} allowed")]
    Memory {
        /// Function, op type and name.
        place: String,
        /// Bytes of live values.
        bytes: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// A result is not of the type that the program declares.
    #[error("{place}: the result `{result}` is {found}, but the program declares {declared}")]
    Declared {
        /// Function, op type and name.
        place: String,
        /// The result's name.
        result: String,
        /// What was computed.
        found: String,
        /// The declared type.
        declared: String,
    },
}
