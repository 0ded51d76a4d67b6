//! milwright
pub mod ir;
pub mod model;
pub mod ops;
pub mod pass;
pub mod text;

#[path = "../passes/mod.rs"]
pub mod passes;
