//! The model file: protobuf in, protobuf out.

mod proto;

pub use proto::descriptor_set;
