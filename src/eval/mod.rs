//! Running programs: the interpreter, what goes into it and comes out of it, and comparison.
//!
//! It is a reference: every op as its documentation says, one after the other, on any machine. What
//! it says about a program holds for the program, not for a device. How arithmetic is modelled is
//! chosen by [`Precision`].

pub mod arrays;
pub mod bisect;
pub mod compare;
mod constants;
mod error;
mod fold;
mod frame;
pub mod inputs;
mod interpreter;
mod memory;
pub mod npz;
pub mod ports;
mod precision;
pub mod ranges;
mod runner;
pub mod scales;
pub mod script;
pub mod states;
mod typed;
pub mod verify;

pub use constants::{Blobs, ConstantError, datum, value};
pub use error::RunError;
pub use fold::{FoldError, fold};
pub use interpreter::{Interpreter, Observer, Options, States, Unobserved};
pub use precision::Precision;
pub use runner::{Input, Runner, RunnerError, Stage};
pub use typed::words as type_words;
