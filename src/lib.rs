//! milwright
pub mod ir;
pub mod model;
pub mod text;
