//! The model file: protobuf in, protobuf out.

mod proto;
pub mod wire;

pub use proto::descriptor_set;
