//! milwright
pub mod ir;
