//! Turns `proto/*.proto` into Rust types, an encoded descriptor set, and the table of the wire scan.
//!
//! protox parses the schema, so that no `protoc` is needed on the machine.

use std::path::Path;
use std::{env, error::Error, fs};

use prost::Message as _;

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
    prost_build::Config::new()
        .btree_map(["."])
        .disable_comments(["."])
        .out_dir(out)
        .compile_fds(descriptors)?;
    Ok(())
}
