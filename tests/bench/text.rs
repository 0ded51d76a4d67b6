//! Speed of reading MIL text, in parts, against work that only moves its bytes.
//!
//! `cargo bench --bench text` makes texts of 50 MB: one of statements, laid out as Core ML's compiler
//! does, and one for each way to spell the numbers of large literals; and the largest real text under
//! `MILWRIGHT_CORPUS`, if that is set, as often as 50 MB takes. For each it prints medians of
//!
//! - reading the file, and copying the text and checking that it is UTF-8 (the memory-bound rival);
//! - finding the tokens;
//! - parsing, and how much of that is building the graphs (measured by building them again from
//!   their operations);
//! - freeing the program.
//!
//! `cargo bench --bench text -- WORD` takes only the texts whose title begins with the word. Nothing is
//! asserted: hardware differs and is noisy. The allocator is the command's.

#![expect(clippy::print_stdout, reason = "a bench reports to whoever runs it")]

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use milwright::ir::{
    Binding, Body, BodyBuilder, DraftBinding, Graph, InputOrigin, Node, OpDraft, Program,
};
use milwright::text::{parse, tokens};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How often each measurement is repeated.
const ROUNDS: usize = 5;

/// Size of each text.
const BYTES: usize = 50_000_000;

/// Seconds by which the clock of a thread goes on (a tick of Linux at 250 Hz).
const CLOCK_STEP: f64 = 0.004;

/// Elements of each large literal.
const ELEMENTS: usize = 1 << 16;

/// Makes a text, if it can.
type Make = fn() -> Option<String>;

fn main() {
    // Cargo gives `--bench`; a word chooses the texts whose title begins with it.
    let chosen = env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("text.mil");
    let texts: [(&str, Make); 6] = [
        ("statements", || Some(statements())),
        ("real text, repeated", real_text),
        ("fp16, hexadecimal", || {
            Some(numbers("fp16", hexadecimal_fp16))
        }),
        ("fp32, hexadecimal", || {
            Some(numbers("fp32", hexadecimal_fp32))
        }),
        ("fp32, decimal", || Some(numbers("fp32", decimal))),
        ("int32", || Some(numbers("int32", whole))),
    ];
    for (title, make) in texts {
        let skipped = chosen
            .as_deref()
            .is_some_and(|word| !title.starts_with(word));
        if !skipped && let Some(text) = make() {
            measure(title, &text, &path);
        }
    }
}

fn measure(what: &str, text: &str, path: &Path) {
    fs::write(path, text).expect("the text can be written");
    let mut times: [Vec<Duration>; 6] = Default::default();
    let mut operations = 0;
    for _ in 0..ROUNDS {
        let mut lap = {
            let mut rows = times.iter_mut();
            let mut start = now();
            move |skip: bool| {
                if !skip {
                    rows.next()
                        .expect("a row")
                        .push(now().saturating_sub(start));
                }
                start = now();
            }
        };
        let text = fs::read_to_string(path).expect("the text can be read");
        lap(false);
        let copy = black_box(text.clone().into_bytes());
        let copy = String::from_utf8(copy).expect("UTF-8");
        lap(false);
        drop(copy);
        lap(true);
        black_box(tokens(&text).count());
        lap(false);
        let parsed = parse(&text, "text.mil").expect("the text is a program");
        lap(false);
        operations = parsed.program.count_ops();
        let drafts = drafts(&parsed.program);
        lap(true);
        let bodies: Vec<Body> = drafts.into_iter().map(build).collect();
        lap(false);
        drop(bodies);
        lap(true);
        drop(parsed);
        lap(false);
    }
    let [read, copy, lex, parse, build, free] = times.map(median);
    let megabytes = text.len() as f64 / 1e6;
    println!("{what}: {megabytes:.0} MB, {operations} operations, {ROUNDS} rounds");
    let row = |name: &str, time: f64| {
        if time < CLOCK_STEP {
            println!("  {name:24}   below the clock's step");
            return;
        }
        let rate = megabytes / time;
        let (read, copy) = (time / read, time / copy);
        println!("  {name:24} {time:7.3} s {rate:8.0} MB/s {read:7.1} × read {copy:7.1} × copy");
    };
    row("read the file", read);
    row("copy and check UTF-8", copy);
    row("find the tokens", lex);
    row("parse", parse);
    row("  of that, the graphs", build);
    row("free the program", free);
}

/// A function as its builder takes it.
struct Draft {
    inputs: Vec<milwright::ir::NamedType>,
    ops: Vec<OpDraft>,
    outputs: Vec<String>,
}

/// What each function of a program is built from. Nested blocks, which these texts do not have, are
/// left out.
fn drafts(program: &Program) -> Vec<Draft> {
    let bodies = program.functions.values().flat_map(|function| {
        let bodies = function.specializations.values();
        bodies.map(|body| draft(&body.graph))
    });
    bodies.collect()
}

fn draft(graph: &Graph) -> Draft {
    let inputs = graph
        .inputs()
        .iter()
        .filter_map(|node| match graph.node(*node) {
            Some(Node::Input(named, _)) => Some(named.clone()),
            _ => None,
        });
    let order = graph.schedule().expect("no cycle");
    let ops = order.iter().filter_map(|node| graph.op(*node));
    let ops = ops.map(|op| {
        let arguments = op.arguments().iter().map(|argument| {
            let bindings = argument.bindings.iter().map(|binding| match binding {
                Binding::Value(value) => DraftBinding::Name(graph.name(*value).to_owned()),
                Binding::Immediate(value) => DraftBinding::Immediate(value.clone()),
                Binding::Absent => DraftBinding::Absent,
            });
            (argument.parameter.clone(), bindings.collect())
        });
        OpDraft {
            op_type: op.op_type().to_owned(),
            arguments: arguments.collect(),
            results: op.results().to_vec(),
            blocks: Vec::new(),
            attributes: op.attributes().clone().into(),
        }
    });
    let outputs = graph.outputs().iter();
    Draft {
        inputs: inputs.collect(),
        ops: ops.collect(),
        outputs: outputs.map(|value| graph.name(*value).to_owned()).collect(),
    }
}

fn build(draft: Draft) -> Body {
    let mut builder = BodyBuilder::new();
    for named in draft.inputs {
        let added = builder.input(named, InputOrigin::Function);
        added.expect("names are unique");
    }
    for op in draft.ops {
        builder.op(op).expect("names are defined");
    }
    let body = builder.finish(&draft.outputs, std::collections::BTreeMap::new());
    body.expect("outputs are defined")
}

/// A chain of operations with their consts, such as a converter writes.
fn statements() -> String {
    let mut text = String::with_capacity(BYTES + 4096);
    text.push_str("program(1.3)\n{\n    func main<ios18>(tensor<fp16, [1, 64, 256]> x) {\n");
    let mut last = "x".to_owned();
    let mut unit = 0;
    while text.len() < BYTES {
        let name = format!("layers_{unit}_attention");
        let mut line = |statement: std::fmt::Arguments<'_>| {
            writeln!(text, "            {statement};").expect("a string takes everything");
        };
        line(format_args!(
            "tensor<fp16, [256]> {name}_weight_to_fp16 = const()[name = \
             string(\"{name}_weight_to_fp16\"), val = tensor<fp16, [256]>(BLOBFILE(path = \
             string(\"@model_path/weights/weight.bin\"), offset = uint64({})))]",
            64 * unit
        ));
        line(format_args!(
            "tensor<int32, [1]> {name}_axes_0 = const()[name = string(\"{name}_axes_0\"), \
             val = tensor<int32, [1]>([-1])]"
        ));
        line(format_args!(
            "fp16 {name}_epsilon_to_fp16 = const()[name = string(\"{name}_epsilon_to_fp16\"), \
             val = fp16(0x1.5p-17)]"
        ));
        line(format_args!(
            "tensor<fp16, [1, 64, 256]> {name}_norm_cast_fp16 = layer_norm(axes = {name}_axes_0, \
             epsilon = {name}_epsilon_to_fp16, gamma = {name}_weight_to_fp16, x = {last})[name = \
             string(\"{name}_norm_cast_fp16\")]"
        ));
        line(format_args!(
            "tensor<fp16, [1, 64, 256]> {name}_cast_fp16 = add(x = {last}, y = \
             {name}_norm_cast_fp16)[name = string(\"{name}_cast_fp16\")]"
        ));
        last = format!("{name}_cast_fp16");
        unit += 1;
    }
    writeln!(text, "        }} -> ({last});\n}}").expect("a string takes everything");
    text
}

/// The largest text of the corpus, its function again and again.
fn real_text() -> Option<String> {
    let mut largest = (0, PathBuf::new());
    let mut folders = vec![PathBuf::from(env::var_os("MILWRIGHT_CORPUS")?)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).ok()?.filter_map(Result::ok) {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "mil") {
                largest = largest.max((entry.metadata().ok()?.len(), path));
            }
        }
    }
    let whole = fs::read_to_string(largest.1).ok()?;
    let start = whole.find("    func ")?;
    let end = whole.rfind('}')?;
    let mut text = whole[..start].to_owned();
    for function in 0.. {
        let name = format!("    func f{function}<");
        text.push_str(&whole[start..end].replacen("    func main<", &name, 1));
        if text.len() >= BYTES {
            break;
        }
    }
    text.push_str("}\n");
    Some(text)
}

/// Consts with large literals; `spell` writes a number from random bits.
fn numbers(dtype: &str, spell: fn(u64, &mut String)) -> String {
    let mut text = String::with_capacity(BYTES + (ELEMENTS << 5));
    text.push_str("program(1.3)\n{\n    func main<ios18>(tensor<fp16, [1]> x) {\n");
    let mut state = 1u64;
    let mut name = 0;
    while text.len() < BYTES {
        let _ = write!(
            text,
            "            tensor<{dtype}, [{ELEMENTS}]> c_{name} = const()[name = string(\"c_{name}\"), \
             val = tensor<{dtype}, [{ELEMENTS}]>(["
        );
        for element in 0..ELEMENTS {
            if element > 0 {
                text.push_str(", ");
            }
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            spell(state, &mut text);
        }
        text.push_str("])];\n");
        name += 1;
    }
    text.push_str("        } -> (x);\n}\n");
    text
}

fn sign(bits: u64) -> &'static str {
    if bits >> 63 == 1 { "-" } else { "" }
}

fn hexadecimal_fp16(bits: u64, text: &mut String) {
    let (sign, mantissa, exponent) = (sign(bits), bits & 0xff, bits >> 8 & 0xf);
    let _ = write!(text, "{sign}0x1.{mantissa:02x}8p-{exponent}");
}

fn hexadecimal_fp32(bits: u64, text: &mut String) {
    let (sign, mantissa, exponent) = (sign(bits), bits & 0xf_ffff, bits >> 32 & 0xf);
    let _ = write!(text, "{sign}0x1.{mantissa:05x}ep-{exponent}");
}

fn decimal(bits: u64, text: &mut String) {
    let value = (bits >> 40) as f32 / 16_777_216.0 - 0.5;
    let _ = write!(text, "{value}");
}

fn whole(bits: u64, text: &mut String) {
    let _ = write!(text, "{}", (bits >> 32) as i32 >> (bits & 31));
}

/// The time that this thread has run or, where the system does not tell, that has passed: what else
/// the machine does is not to count.
fn now() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let status = fs::read_to_string("/proc/thread-self/schedstat").ok();
    let running = status.and_then(|status| status.split(' ').next()?.parse().ok());
    running.map_or_else(|| START.elapsed(), Duration::from_nanos)
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}
