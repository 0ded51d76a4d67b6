//! Turns `proto/*.proto` into Rust types, an encoded descriptor set, and the table of the wire scan.
//!
//! protox parses the schema, so that no `protoc` is needed on the machine.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, error::Error, fs};

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FileDescriptorSet, MessageOptions};

const FILES: [&str; 3] = ["Model.proto", "FeatureTypes.proto", "MIL.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    for file in FILES {
        println!("cargo::rerun-if-changed=proto/{file}");
    }
    let out = env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    let out = Path::new(&out);

    let descriptors = protox::compile(FILES, ["proto"])?;
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    fs::write(out.join("wire_table.rs"), wire_table(&descriptors)?)?;
    prost_build::Config::new()
        .btree_map(["."])
        .disable_comments(["."])
        .out_dir(out)
        .compile_fds(descriptors)?;
    Ok(())
}

/// The schema as a Rust slice of `Message` rows, for `src/model/wire.rs`: fields by number, with
/// just what the wire format needs to know of them.
fn wire_table(descriptors: &FileDescriptorSet) -> Result<String, Box<dyn Error>> {
    let mut messages = BTreeMap::new();
    for file in &descriptors.file {
        collect(
            &format!(".{}", file.package()),
            &file.message_type,
            &mut messages,
        );
    }
    let index_of: BTreeMap<&str, usize> = messages
        .keys()
        .enumerate()
        .map(|(index, name)| (name.as_str(), index))
        .collect();

    let mut table = String::from("static MESSAGES: &[Message] = &[\n");
    for (name, message) in &messages {
        let is_map_entry = message
            .options
            .as_ref()
            .is_some_and(MessageOptions::map_entry);
        writeln!(
            table,
            "Message {{ name: {:?}, is_map_entry: {is_map_entry}, fields: &[",
            name.trim_start_matches('.')
        )?;
        let mut fields: Vec<_> = message.field.iter().collect();
        fields.sort_by_key(|field| field.number());
        for field in fields {
            let kind = match field.r#type() {
                Type::Int32
                | Type::Int64
                | Type::Uint32
                | Type::Uint64
                | Type::Sint32
                | Type::Sint64
                | Type::Bool
                | Type::Enum => "Varint".to_owned(),
                Type::Fixed32 | Type::Sfixed32 | Type::Float => "Fixed32".to_owned(),
                Type::Fixed64 | Type::Sfixed64 | Type::Double => "Fixed64".to_owned(),
                Type::String => "Text".to_owned(),
                // A member of `Model.Type` that is a message in Core ML's schema.
                Type::Bytes if field.oneof_index.is_some() => "Opaque".to_owned(),
                Type::Bytes => "Bytes".to_owned(),
                Type::Message => {
                    let index = index_of
                        .get(field.type_name())
                        .ok_or_else(|| format!("no message {}", field.type_name()))?;
                    format!("Message({index})")
                }
                Type::Group => return Err(format!("{name}: proto3 has no groups").into()),
            };
            writeln!(
                table,
                "Field {{ number: {}, name: {:?}, kind: Kind::{kind}, repeated: {} }},",
                field.number(),
                field.name(),
                field.label() == Label::Repeated
            )?;
        }
        table.push_str("] },\n");
    }
    table.push_str("];\n");
    Ok(table)
}

/// Adds the messages and those nested in them, by full name.
fn collect<'a>(
    scope: &str,
    messages: &'a [DescriptorProto],
    found: &mut BTreeMap<String, &'a DescriptorProto>,
) {
    for message in messages {
        let name = format!("{scope}.{}", message.name());
        collect(&name, &message.nested_type, found);
        found.insert(name, message);
    }
}
