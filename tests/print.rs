//! Prints of whole packages, compared with what Core ML's own compiler wrote.

mod support;

use std::path::{Path, PathBuf};

use milwright::ir::Program;
use milwright::model::Model;
use milwright::text::{PrintOptions, program_text};
use support::folders::{corpus, packages_below};

fn model_file(package: &Path) -> PathBuf {
    let data = package.join("Data/com.apple.CoreML");
    let mut files = std::fs::read_dir(&data)
        .unwrap_or_else(|error| panic!("{}: {error}", data.display()))
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.extension().is_some_and(|e| e == "mlmodel"));
    files.next().expect("a model in the package")
}

fn print_all(package: &Path) -> String {
    let bytes = std::fs::read(model_file(package)).expect("a readable model");
    let model = Model::decode(&bytes).expect("a model that decodes");
    let programs: Vec<&Program> = model.programs().iter().map(|part| part.program).collect();
    let [program] = programs.as_slice() else {
        panic!("{} has several programs", package.display());
    };
    program_text(program, &PrintOptions::default()).expect("all functions")
}

/// Function inputs sorted by name, as the compiler leaves them.
fn sort_inputs(line: &str) -> String {
    let (head, rest) = line.split_once('(').expect("a signature");
    let (inputs, tail) = rest.rsplit_once(')').expect("a signature");
    let mut inputs: Vec<&str> = inputs.split(", tensor").collect();
    inputs.sort_by_key(|input| input.rsplit(' ').next().map(str::to_owned));
    let inputs: Vec<&str> = inputs
        .iter()
        .map(|input| input.strip_prefix("tensor").unwrap_or(input))
        .collect();
    format!("{head}(tensor{}){tail}", inputs.join(", tensor"))
}

/// The text without what the compiler changes: it adds its versions to `buildInfo`, sorts the
/// function's inputs, and ends the file without a line break.
fn normalized(text: &str) -> Vec<String> {
    text.lines()
        .filter(|line| !line.starts_with("[buildInfo"))
        .map(|line| {
            if line.starts_with("    func ") {
                sort_inputs(line)
            } else {
                line.to_owned()
            }
        })
        .collect()
}

/// (package, compiled model made from it, number of statements).
const PAIRS: [(&str, &str, usize); 3] = [
    (
        "FluidInference__FluidAudio/streaming_encoder.mlpackage",
        "FluidInference__FluidAudio/streaming_encoder.mlmodelc",
        2971,
    ),
    (
        "FluidInference__mobius/unified_int8.mlpackage",
        "FluidInference__mobius/unified_int8.mlmodelc",
        139,
    ),
    (
        "FluidInference__mobius/silero-vad-unified-256ms-v6.0.0.mlpackage",
        "FluidInference__mobius/silero-vad-unified-256ms-v6.0.0.v2.mlmodelc",
        996,
    ),
];

#[test]
fn a_package_prints_as_the_compiler_printed_it() {
    let Some(corpus) = corpus() else { return };
    for (package, compiled, statements) in PAIRS {
        let ours = normalized(&print_all(&corpus.join("real").join(package)));
        let path = corpus.join("real").join(compiled).join("model.mil");
        let theirs = normalized(&std::fs::read_to_string(path).expect("a compiled model"));
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_eq!(ours, theirs, "{package}");
        }
        assert_eq!(ours.len(), theirs.len(), "{package}");
        let count = ours
            .iter()
            .filter(|line| line.starts_with("            "))
            .count();
        assert_eq!(count, statements, "{package}");
    }
}

/// The compiled model was made from another revision of this package, with other strides but the
/// same weights: all palettes but one (whose clustering differs in the last bits) must agree in every
/// digit.
#[test]
fn palettes_of_a_related_package_agree() {
    let Some(corpus) = corpus() else { return };
    let real = corpus.join("real/FluidInference__mobius");
    let ours = print_all(&real.join("unified_palette_2bit.mlpackage"));
    let theirs = std::fs::read_to_string(real.join("unified_palette_2bit.mlmodelc/model.mil"))
        .expect("a compiled model");
    let palettes = |text: &str| -> Vec<String> {
        text.lines()
            .filter(|line| line.contains("constexpr_lut_to_dense()"))
            .filter(|line| !line.contains("> concat_1_palettized "))
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(palettes(&ours), palettes(&theirs));
    assert_eq!(palettes(&ours).len(), 6);
}

#[test]
fn every_package_of_the_corpus_prints() {
    let Some(corpus) = corpus() else { return };
    let packages = packages_below(&corpus);
    assert!(packages.len() > 100);
    for path in packages {
        let file = model_file(&path);
        let Ok(model) = Model::decode(&std::fs::read(file).expect("a readable model")) else {
            continue;
        };
        for part in model.programs() {
            for types in [false, true] {
                let options = PrintOptions {
                    types,
                    ..PrintOptions::default()
                };
                let text = program_text(part.program, &options).expect("all functions");
                assert!(text.starts_with("program(1.") && text.ends_with("}\n"));
            }
        }
    }
}
