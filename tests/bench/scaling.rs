//! The time of each pass per operation, on programs of 10 000 and of 100 000 operations: the ratio
//! says whether it is linear.
//!
//! `cargo bench --bench scaling` takes the first case that each pass rewrites, writes its statements
//! so many times under new names, and lets the pass alone rewrite the whole. `-- ID…` measures only
//! these passes, and two numbers among them take the place of the sizes. Nothing is asserted: hardware
//! differs and is noisy.

#![expect(clippy::print_stdout, reason = "a bench reports to whoever runs it")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use milwright::ir::Program;
use milwright::model::{Model, Origin};
use milwright::pass::{Manager, NoBlobs, Pass, Pipeline, Settings, Silent, verify};
use milwright::passes;
use milwright::text::{self, PrintOptions};

/// Operations of the two programs.
const SIZES: [usize; 2] = [10_000, 100_000];

/// Operations that show whether a program can be repeated at all.
const FEW: usize = 50;

fn main() {
    let mut wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    let numbers: Vec<usize> = wanted.iter().filter_map(|word| word.parse().ok()).collect();
    let sizes = numbers.try_into().unwrap_or(SIZES);
    wanted.retain(|word| word.parse::<usize>().is_err());
    println!(
        "{:24} {:>9} {:>9} {:>12} {:>12} {:>7}",
        "pass", "ops", "rewrites", "µs/op, small", "µs/op, large", "ratio"
    );
    for pass in passes::ALL {
        let id = pass.meta().id;
        if !wanted.is_empty() && !wanted.iter().any(|name| name == id) {
            continue;
        }
        match first_case(*pass) {
            Some((options, program)) => measure(id, &options, &program, sizes),
            None => println!("{id:24} no case that can be repeated"),
        }
    }
}

/// The first case that the pass rewrites, and its options; not one with nested blocks or data of
/// weight files.
fn first_case(pass: &dyn Pass) -> Option<(String, Program)> {
    let meta = pass.meta();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("passes")
        .join(meta.family.name())
        .join(meta.id)
        .join("cases");
    let mut files: Vec<_> = fs::read_dir(folder).ok()?.flatten().collect();
    files.sort_by_key(fs::DirEntry::path);
    files.into_iter().find_map(|file| {
        let name = file.file_name().to_string_lossy().into_owned();
        let source = fs::read_to_string(file.path()).ok()?;
        let is_plain = !source.contains("// blob") && !source.contains("block");
        if name.starts_with("no_") || !is_plain {
            return None;
        }
        let options = source
            .lines()
            .find_map(|line| line.strip_prefix("// options:"))
            .map_or_else(String::new, |options| format!("{{{}}}", options.trim()));
        let program = text::parse(&source, &name).ok()?.program;
        let is_repeatable =
            program.functions.len() == 1 && text::parse(&repeated(&program, FEW), "").is_ok();
        is_repeatable.then_some((options, program))
    })
}

fn measure(id: &str, options: &str, program: &Program, sizes: [usize; 2]) {
    let pipeline = Pipeline::parse(&format!("{id}{options}"), passes::ALL).expect("a pass");
    let mut costs = Vec::new();
    let mut row = String::new();
    for size in sizes {
        let source = repeated(program, size);
        let large = text::parse(&source, id).expect("what was printed").program;
        let known = verify::issues(&large);
        let mut model = Model::for_reading(large, &Origin::default());
        let settings = Settings {
            interface_changes: true,
            verify_each: false,
            ..Settings::default()
        };
        let part = model.parts_mut().pop().expect("a program");
        let ops = part.program.count_ops();
        let outcome = Manager::new(passes::ALL, settings)
            .run_part(&pipeline, part, &known, &NoBlobs, &mut Silent)
            .expect("it runs");
        let seconds: f64 = outcome
            .passes
            .iter()
            .map(|run| run.time.as_secs_f64())
            .sum();
        costs.push(seconds * 1e6 / ops as f64);
        row = format!("{id:24} {ops:>9} {:>9}", outcome.rewrites());
    }
    println!(
        "{row} {:>12.3} {:>12.3} {:>7.2}",
        costs[0],
        costs[1],
        costs[1] / costs[0]
    );
}

/// The program with its statements written so often that there are at least `ops` of them.
fn repeated(program: &Program, ops: usize) -> String {
    let options = PrintOptions {
        inline_new: true,
        ..PrintOptions::default()
    };
    let printed = text::program_text(program, &options).expect("a program");
    let lines: Vec<&str> = printed.lines().collect();
    let is_end = |line: &&str| line.trim_start().starts_with("} -> (");
    let end = lines.iter().position(is_end).expect("an end");
    let begin = lines[..end]
        .iter()
        .position(|line| line.trim_start().starts_with("func "))
        .expect("a function")
        + 1;
    let names: BTreeSet<&str> = program
        .functions
        .values()
        .flat_map(|function| function.active().into_iter())
        .flat_map(|body| body.graph.ops())
        .flat_map(|(_, op)| op.results())
        .map(|result| result.name.as_str())
        .collect();
    let copies = ops.div_ceil(end - begin);
    let mut text = lines[..begin].join("\n");
    let mut outputs = Vec::new();
    for copy in 0..copies {
        for line in &lines[begin..end] {
            let _ = write!(text, "\n{}", renamed(line, &names, copy));
        }
        let list = lines[end].trim_start().trim_start_matches("} -> (");
        let list = list.trim_end_matches(");").split(", ");
        outputs.extend(list.map(|name| renamed(name, &names, copy)));
    }
    let unique: BTreeSet<String> = outputs.into_iter().collect();
    let outputs: Vec<String> = unique.into_iter().collect();
    let _ = write!(text, "\n    }} -> ({});\n", outputs.join(", "));
    text.push_str(&lines[end + 1..].join("\n"));
    text
}

/// A statement with the values of `names` called otherwise: not what is in strings or in brackets,
/// and not the names of parameters.
fn renamed(line: &str, names: &BTreeSet<&str>, copy: usize) -> String {
    let mut text = String::new();
    let (mut brackets, mut parentheses, mut quoted) = (0, 0, false);
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '@';
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        if length == 0 {
            match first {
                '"' => quoted = !quoted,
                '[' if !quoted => brackets += 1,
                ']' if !quoted => brackets -= 1,
                '(' if !quoted => parentheses += 1,
                ')' if !quoted => parentheses -= 1,
                _ => {}
            }
            text.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let (word, behind) = rest.split_at(length);
        text.push_str(word);
        let is_parameter = parentheses > 0 && behind.starts_with(" = ");
        if !quoted && brackets == 0 && !is_parameter && names.contains(word) {
            let _ = write!(text, "_{copy}");
        }
        rest = behind;
    }
    text
}
