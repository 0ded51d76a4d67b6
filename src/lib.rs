//! milwright
pub mod cli;
pub mod ir;
pub mod model;
pub mod ops;
pub mod package;
pub mod pass;
pub mod text;

#[path = "../passes/mod.rs"]
pub mod passes;
