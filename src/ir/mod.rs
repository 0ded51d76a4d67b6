//! The graph.
pub mod types;
pub mod value;
