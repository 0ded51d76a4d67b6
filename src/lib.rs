//! milwright
pub mod ir;
pub mod model;
