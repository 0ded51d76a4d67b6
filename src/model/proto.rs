//! The types that prost generates from `proto/*.proto`, and the schema's own description.
//!
//! Messages keep their names, in snake case where they are modules: `CoreML.Specification.Model`
//! is [`specification::Model`], `CoreML.Specification.MILSpec.Program` is
//! [`specification::mil_spec::Program`]. Maps are `BTreeMap`, so that the same model always gives
//! the same bytes. prost drops fields that the schema lacks without a word; `wire::scan` finds
//! them beforehand.

#[allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::all,
    clippy::pedantic,
    reason = "generated code"
)]
pub(crate) mod specification {
    include!(concat!(env!("OUT_DIR"), "/core_ml.specification.rs"));

    pub mod mil_spec {
        include!(concat!(
            env!("OUT_DIR"),
            "/core_ml.specification.mil_spec.rs"
        ));
    }
}

/// The schema as an encoded `google.protobuf.FileDescriptorSet`.
pub(crate) const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The schema as an encoded `google.protobuf.FileDescriptorSet`, for tools that compare schemas.
pub fn descriptor_set() -> &'static [u8] {
    DESCRIPTORS
}
