//! What each op means: signatures of all ops, and result types, one file per op family.
pub mod opset;
pub mod registry;

pub use opset::Opset;
