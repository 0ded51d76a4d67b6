//! milwright
pub mod ir;
pub mod ops;
