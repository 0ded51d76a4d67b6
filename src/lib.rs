//! milwright
pub mod ir;
pub mod package;
