//! What several passes need to see in a graph, and lint rules too.
//!
//! Each module recognises one thing, in the spellings that converters emit, and says what it found as
//! a struct. None changes anything, and none looks at more of the graph than the neighbourhood of the
//! operation it is asked about.

pub mod attention;
pub mod joined;
pub mod mask;
pub mod norm;
pub mod product;
pub mod range;
pub mod repeat;
pub mod residual;
pub mod rotate;
pub mod slicing;
pub mod state;
pub mod survey;
pub mod update;
pub mod weight;

#[cfg(test)]
mod sample;
