//! `milwright print`: the program as text, a summary, JSON or a graph.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, bail};

use super::args::{DialectArg, Format, PrintArgs};
use super::output::Output;
use super::{open, save};
use crate::model::Feature;
use crate::source::{CompiledMetadata, ModelFile};
use crate::text::summary::FunctionSummary;
use crate::text::{self, Dialect, PrintOptions, dot, json};

pub(super) fn run(args: &PrintArgs, output: &Output) -> anyhow::Result<ExitCode> {
    let mut file = open(&args.model, output)?.file;
    if let Some(function) = &args.function {
        check_function(&file, function)?;
    }
    if let Some(folder) = &args.weights_dir {
        save::split_weights(&mut file, folder, false, output)?;
    }
    let mut out = output.results();
    write(args, &file, &mut out).context("cannot print")?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn check_function(file: &ModelFile, function: &str) -> anyhow::Result<()> {
    let parts = file.model.programs();
    let mut known: Vec<&String> = parts
        .iter()
        .flat_map(|part| part.program.functions.keys())
        .collect();
    known.dedup();
    if known.iter().any(|name| *name == function) {
        return Ok(());
    }
    let known: Vec<&str> = known.into_iter().map(String::as_str).collect();
    bail!(
        "there is no function `{function}`; the model has {}",
        known.join(", ")
    );
}

fn write(args: &PrintArgs, file: &ModelFile, out: &mut dyn std::io::Write) -> anyhow::Result<()> {
    let parts = file.model.programs();
    if args.format == Format::Summary {
        writeln!(out, "{}", file.path().display())?;
        let version = file.model.specification_version();
        if version > 0 {
            writeln!(out, "specification version {version}")?;
        }
        if let Some(metadata) = file.metadata() {
            compiled(out, &metadata)?;
        }
    }
    let several = parts.len() > 1;
    let mut documents = Vec::new();
    for part in &parts {
        if let Some(function) = &args.function
            && !part.program.functions.contains_key(function)
        {
            continue;
        }
        if several && matches!(args.format, Format::Mil | Format::Dot) {
            writeln!(out, "// {}", part.stage)?;
        }
        let function = args.function.as_deref();
        match args.format {
            Format::Mil => {
                let options = PrintOptions {
                    dialect: args.dialect.map(|dialect| match dialect {
                        DialectArg::V10 => Dialect::Program10,
                        DialectArg::V13 => Dialect::Program13,
                    }),
                    function,
                    types: args.types,
                    // Whatever is printed can be read back.
                    inline_new: true,
                };
                text::write_program(out, part.program, &options)?;
            }
            Format::Summary => {
                if several {
                    writeln!(out, "\n{}", part.stage)?;
                }
                // What a compiled model's metadata says is nearer to what was described.
                let described = match file.metadata() {
                    Some(_) => &[],
                    None => part.interface.functions.as_slice(),
                };
                for interface in described {
                    writeln!(out, "described function `{}`", interface.name)?;
                    features(out, "input", &interface.inputs)?;
                    features(out, "output", &interface.outputs)?;
                    features(out, "state", &interface.states)?;
                }
                for (name, described) in &part.program.functions {
                    if function.is_none_or(|function| function == name) {
                        writeln!(out, "\n{}", FunctionSummary::of(name, described))?;
                    }
                }
            }
            Format::Json => documents.push(json::program_json(part.program, function)?),
            Format::Dot => {
                let dialect = Dialect::for_program(part.program);
                for (name, described) in &part.program.functions {
                    let wanted = function.is_none_or(|function| function == name);
                    if let Some(body) = described.active().filter(|_| wanted) {
                        let mut drawing = String::new();
                        dot::write_dot(&mut drawing, name, body, dialect, args.types)?;
                        out.write_all(drawing.as_bytes())?;
                    }
                }
            }
        }
    }
    if args.format == Format::Json {
        match documents.as_slice() {
            [one] => serde_json::to_writer_pretty(&mut *out, one)?,
            several => serde_json::to_writer_pretty(&mut *out, several)?,
        }
        writeln!(out)?;
    }
    Ok(())
}

/// What a compiled model tells besides its program.
fn compiled(out: &mut dyn std::io::Write, metadata: &CompiledMetadata) -> std::io::Result<()> {
    let said = &metadata.origin.metadata;
    for (what, text) in [
        ("description", &said.short_description),
        ("version", &said.version),
        ("author", &said.author),
        ("licence", &said.license),
        ("weights", &metadata.storage_precision),
    ] {
        if !text.is_empty() {
            writeln!(out, "{what:11} {text}")?;
        }
    }
    writeln!(out, "described before it was compiled")?;
    features(out, "input", &metadata.inputs)?;
    features(out, "output", &metadata.outputs)?;
    features(out, "state", &metadata.states)
}

fn features(out: &mut dyn std::io::Write, what: &str, features: &[Feature]) -> std::io::Result<()> {
    for feature in features {
        writeln!(out, "  {what:6} {}: {}", feature.name, feature.kind)?;
    }
    Ok(())
}
