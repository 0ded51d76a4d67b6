//! Merged and padded states: as many as wanted, described and mapped, and over several calls that
//! extend the sequence the same bits as before.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use milwright::eval::states::StateMap;
use milwright::eval::{Interpreter, Options, Precision, States, Unobserved};
use milwright::ir::{DType, ValueType};
use milwright::ops::Datum;
use milwright::source::ModelFile;
use milwright::tensor::Tensor;

use crate::command::{Folder, args, done};
use crate::support::folders::corpus;
use crate::support::python::ask;

/// A model of the collection, with a file of five calls if it has one.
fn model(name: &str) -> Option<(PathBuf, Option<PathBuf>)> {
    let folder = corpus()?.join("models").join(name);
    let calls = folder.join("calls.npz");
    Some((
        folder.join("model.mlpackage"),
        calls.exists().then_some(calls),
    ))
}

/// Runs passes that may change states; gives the new package and what was printed.
fn optimized(folder: &Folder, model: &Path, name: &str, passes: &str) -> (PathBuf, String) {
    let out = folder.join(name);
    let ran = done(args![
        "optimize",
        model,
        "-o",
        out,
        "--passes",
        passes,
        "--interface-changes"
    ]);
    (out, ran.stdout + &ran.stderr)
}

/// Panics unless both models give the same bits, outputs and states, in fp32 and in fp16.
fn assert_same_bits(before: &Path, after: &Path, calls: Option<&Path>) {
    for precision in ["fp32", "fp16"] {
        let mut arguments = args![
            "verify",
            before,
            after,
            "--rtol",
            "0",
            "--atol",
            "0",
            "--precision",
            precision
        ];
        if let Some(calls) = calls {
            arguments.extend(args!["--inputs", calls]);
        }
        let ran = done(arguments);
        assert!(ran.stdout.contains("\nequivalent"), "{}", ran.stdout);
    }
}

/// The states of a function with their shapes, by name.
fn states(package: &Path, function: &str) -> BTreeMap<String, Vec<u64>> {
    let file = ModelFile::open(package).unwrap();
    assert_eq!(file.model.interface_problems(), Vec::<String>::new());
    let parts = file.model.programs();
    let inputs = &parts[0].program.functions[function].inputs;
    let states = inputs.iter().filter_map(|input| {
        let ty = input.ty.as_ref()?.as_state()?;
        Some((input.name.clone(), ty.shape().unwrap()))
    });
    states.collect()
}

/// Panics unless coremltools accepts the packages.
fn assert_accepted(packages: &[PathBuf]) {
    let jobs: Vec<Vec<PathBuf>> = packages
        .iter()
        .map(|package| vec![package.clone()])
        .collect();
    let Some(lines) = ask("accepts.py", &["--jobs", "2"], &jobs) else {
        return;
    };
    for (line, package) in lines.iter().zip(packages) {
        for check in ["spec", "unknown", "blobs", "types"] {
            assert_eq!(line[check], "ok", "{}: {check}", package.display());
        }
    }
}

#[test]
fn states_of_all_layers_become_two_and_five_calls_give_the_same_bits() {
    let folder = Folder::new();
    let mut written = Vec::new();
    for (name, before, layers, rest) in [
        ("llama_states_per_layer", 8, 4, [2, 32, 16]),
        ("llama_states_per_layer_static", 8, 4, [2, 32, 16]),
        ("tiny_llama_trained_states", 8, 4, [2, 256, 32]),
        ("qwen3_states_per_layer", 56, 28, [1, 32, 16]),
    ] {
        let Some((model, calls)) = model(name) else {
            return;
        };
        assert_eq!(states(&model, "main").len(), before);
        for writes in ["chained", "each"] {
            let passes = format!("merge-states{{writes={writes}}}");
            let (out, _) = optimized(
                &folder,
                &model,
                &format!("{name}_{writes}.mlpackage"),
                &passes,
            );
            let mut shape = vec![layers];
            shape.extend(rest);
            let expected = ["keys", "values"].map(|name| (name.to_owned(), shape.clone()));
            assert_eq!(states(&out, "main"), expected.into());
            assert_same_bits(&model, &out, calls.as_deref());
            if let Some(calls) = &calls {
                // What PyTorch gave for the same calls; the package's weights are fp16.
                done(args![
                    "run", out, "--inputs", calls, "--check", "--atol", "1e-2", "--rtol", "0"
                ]);
            }
            let (again, said) = optimized(&folder, &out, "again.mlpackage", &passes);
            assert!(said.contains("0 rewrites"), "{said}");
            fs::remove_dir_all(again).unwrap();
            written.push(out);
        }
    }
    assert_accepted(&written);
}

#[test]
fn one_write_is_left_of_each_merged_state_if_writes_are_chained() {
    let Some((model, _)) = model("qwen3_states_per_layer") else {
        return;
    };
    let folder = Folder::new();
    for (writes, count) in [("chained", 2), ("each", 56)] {
        let passes = format!("merge-states{{writes={writes}}}");
        let (out, _) = optimized(&folder, &model, &format!("{writes}.mlpackage"), &passes);
        let text = done(args!["print", out]).stdout;
        assert_eq!(text.matches("write_state(").count(), count);
        // Each layer's new keys and values go into the merged state at once.
        assert_eq!(text.matches(" slice_update(").count(), 56);
    }
}

#[test]
fn heads_of_80_become_128_plainly_and_deep() {
    let folder = Folder::new();
    let mut written = Vec::new();
    for name in ["exaone_head80", "exaone_head80_two"] {
        let Some((model, calls)) = model(name) else {
            return;
        };
        for deep in ["false", "true"] {
            let passes = format!("pad-states{{deep={deep}}}");
            let (out, _) = optimized(
                &folder,
                &model,
                &format!("{name}_{deep}.mlpackage"),
                &passes,
            );
            let before = states(&model, "main");
            for (state, shape) in states(&out, "main") {
                let mut expected = before[&state].clone();
                assert_eq!(expected.pop(), Some(80));
                expected.push(128);
                assert_eq!(shape, expected, "{state}");
            }
            assert_same_bits(&model, &out, calls.as_deref());
            let (again, said) = optimized(&folder, &out, "again.mlpackage", &passes);
            assert!(said.contains("0 rewrites"), "{said}");
            fs::remove_dir_all(again).unwrap();
            written.push(out);
        }
    }
    assert_accepted(&written);
}

#[test]
fn the_padded_width_goes_through_attention_that_is_written_out() {
    let folder = Folder::new();
    for name in ["exaone_head80", "exaone_head80_two"] {
        let Some((model, calls)) = model(name) else {
            return;
        };
        let explicit = "explicit-attention{only_masked=false}";
        let (before, _) = optimized(&folder, &model, &format!("{name}.mlpackage"), explicit);
        let passes = "pad-states{deep=true}";
        let (after, _) = optimized(&folder, &before, &format!("{name}_deep.mlpackage"), passes);
        assert_same_bits(&before, &after, calls.as_deref());
        // Queries are padded, and nothing is sliced between the state and the products.
        let text = done(args!["print", after]).stdout;
        let products = text
            .lines()
            .filter(|line| line.contains("= matmul("))
            .count();
        assert_eq!(products, 6);
        let pads = text.lines().filter(|line| line.contains("= pad(")).count();
        assert_eq!(pads, 9, "three layers with a query, a key and a value each");
        let narrowed = text.lines().filter(|line| {
            line.contains("= slice_by_index(")
                && line.contains(", 80]>")
                && line.contains("pad_states")
        });
        assert_eq!(narrowed.count(), 3, "one result of each attention");
    }
}

#[test]
fn merging_and_padding_go_together_in_either_order() {
    let Some((model, calls)) = model("exaone_head80") else {
        return;
    };
    let folder = Folder::new();
    let mut maps = Vec::new();
    let mut written = Vec::new();
    for passes in [
        "merge-states,pad-states",
        "pad-states,merge-states",
        "merge-states,pad-states{deep=true}",
        "pad-states{deep=true},merge-states",
        "merge-states{writes=each},pad-states{deep=true}",
        "default,merge-states,pad-states{deep=true},default",
    ] {
        let name = format!("{}.mlpackage", written.len());
        let (out, _) = optimized(&folder, &model, &name, passes);
        let expected = ["keys", "values"].map(|name| (name.to_owned(), vec![3, 1, 32, 128]));
        assert_eq!(states(&out, "main"), expected.into(), "{passes}");
        if passes.contains("default") {
            let mut arguments = args!["verify", model, out];
            arguments.extend(args!["--inputs", calls.clone().unwrap()]);
            done(arguments);
        } else {
            assert_same_bits(&model, &out, calls.as_deref());
        }
        let file = ModelFile::open(&out).unwrap();
        maps.push(StateMap::of(&file.model.user_defined()).unwrap());
        written.push(out);
    }
    assert!(maps.windows(2).all(|pair| pair[0] == pair[1]), "{maps:#?}");
    assert_accepted(&written);
}

/// Two layers with heads of width `WIDTH` over states that prefill and decode share; the third state
/// of keys only prefill has.
const WIDTH: usize = 12;
const LENGTH: usize = 8;

/// A function that takes so many new tokens.
fn function(name: &str, tokens: usize, layers: usize) -> String {
    let new = format!("tensor<fp16, [1, 2, {tokens}, {WIDTH}]>");
    let all = format!("tensor<fp16, [1, 2, {LENGTH}, {WIDTH}]>");
    let scores = format!("tensor<fp16, [1, 2, {tokens}, {LENGTH}]>");
    let mut text = format!(
        "func {name}<ios18>({new} x, tensor<int32, [1]> at, tensor<fp16, [1, 1, {tokens}, {LENGTH}]> mask"
    );
    for layer in 0..layers {
        write!(text, ", state<{all}> k_{layer}, state<{all}> v_{layer}").unwrap();
    }
    write!(
        text,
        ") {{
    tensor<int32, [1]> count = const()[val = tensor<int32, [1]>([{tokens}])];
    tensor<int32, [2]> zeros = const()[val = tensor<int32, [2]>([0, 0])];
    tensor<int32, [1]> zero = const()[val = tensor<int32, [1]>([0])];
    int32 axis = const()[val = int32(0)];
    int32 last = const()[val = int32(-1)];
    bool no = const()[val = bool(false)];
    bool yes = const()[val = bool(true)];
    fp16 scale = const()[val = fp16(0.28867513)];
    tensor<bool, [4]> open = const()[val = tensor<bool, [4]>([true, true, false, true])];
    tensor<int32, [1]> next = add(x = at, y = count);
    tensor<int32, [4]> begin = concat(axis = axis, interleave = no, values = (zeros, at, zero));
    tensor<int32, [4]> end = concat(axis = axis, interleave = no, values = (zeros, next, zero));
"
    )
    .unwrap();
    let mut x = "x".to_owned();
    for layer in 0..layers {
        let factor = 0.75 + 0.25 * layer as f64;
        writeln!(text, "    fp16 f_{layer} = const()[val = fp16({factor})];").unwrap();
        writeln!(text, "    {new} key_{layer} = mul(x = {x}, y = f_{layer});").unwrap();
        writeln!(text, "    {new} value_{layer} = tanh(x = {x});").unwrap();
        for (state, update) in [("k", "key"), ("v", "value")] {
            write!(text, "    {all} {state}h_{layer} = read_state(input = {state}_{layer});
    {all} {state}u_{layer} = slice_update(begin = begin, end = end, begin_mask = open, end_mask = open,
        update = {update}_{layer}, x = {state}h_{layer});
    write_state(data = {state}u_{layer}, input = {state}_{layer});
    {all} {state}r_{layer} = read_state(input = {state}_{layer});
"
            )
            .unwrap();
        }
        let attention = if layer == 0 {
            format!(
                "    {new} y_{layer} = scaled_dot_product_attention(attn_mask = mask, key = kr_{layer},
        query = {x}, value = vr_{layer});\n"
            )
        } else {
            format!(
                "    {scores} s_{layer} = matmul(transpose_x = no, transpose_y = yes, x = {x}, y = kr_{layer});
    {scores} t_{layer} = mul(x = s_{layer}, y = scale);
    {scores} m_{layer} = add(x = t_{layer}, y = mask);
    {scores} p_{layer} = softmax(axis = last, x = m_{layer});
    {new} y_{layer} = matmul(transpose_x = no, transpose_y = no, x = p_{layer}, y = vr_{layer});\n"
            )
        };
        text.push_str(&attention);
        writeln!(text, "    {new} x_{layer} = add(x = {x}, y = y_{layer});").unwrap();
        x = format!("x_{layer}");
    }
    writeln!(text, "}} -> ({x});").unwrap();
    text
}

/// Calls prefill for four tokens and decode for four more, all on the same states; gives the outputs
/// and what the states hold in the end.
fn conversation(package: &Path, precision: Precision) -> (Vec<Vec<f64>>, BTreeMap<String, Tensor>) {
    let file = ModelFile::open(package).unwrap();
    let parts = file.model.programs();
    let program = parts[0].program;
    let options = Options::new(precision.numerics());
    let interpreter = Interpreter::new(program, file.weights().clone(), options);
    // The states of prefill are all that there are.
    let all: States = interpreter.zero_states("prefill").unwrap();
    let mut outputs = Vec::new();
    let mut at = 0;
    for (function, tokens) in [
        ("prefill", 4),
        ("decode", 1),
        ("decode", 1),
        ("decode", 1),
        ("decode", 1),
    ] {
        let own = program.functions[function].inputs.iter();
        let own = own.filter(|input| input.ty.as_ref().is_some_and(ValueType::is_state));
        let states: States = own
            .map(|input| (input.name.clone(), all[&input.name].clone()))
            .collect();
        let size = 2 * tokens * WIDTH;
        let x = (0..size).map(|index| ((index * 7 + at * 5) % 17) as f32 / 8.0 - 1.0);
        let mask = (0..tokens).flat_map(|row| {
            (0..LENGTH).map(move |column| if column <= at + row { 0.0 } else { -1e4 })
        });
        let shape = vec![1, 1, tokens, LENGTH];
        let inputs = BTreeMap::from([
            (
                "x".to_owned(),
                Tensor::floats(DType::Float16, vec![1, 2, tokens, WIDTH], x.collect()),
            ),
            (
                "mask".to_owned(),
                Tensor::floats(DType::Float16, shape, mask.collect()),
            ),
            (
                "at".to_owned(),
                Tensor::ints(DType::Int32, vec![1], vec![at as i64]),
            ),
        ]);
        let results = interpreter
            .run(function, &inputs, &states, &mut Unobserved)
            .unwrap();
        for (_, result) in results {
            let Datum::Tensor(tensor) = result else {
                panic!("a tensor");
            };
            outputs.push(tensor.to_f64().unwrap());
        }
        at += tokens;
    }
    let held = all.iter().map(|(name, cell)| (name.clone(), cell.read()));
    (outputs, held.collect())
}

#[test]
fn prefill_and_decode_go_on_with_each_others_states() {
    let folder = Folder::new();
    let text = folder.join("two.mil");
    let source = format!(
        "program(1.3) {{\n{}{}}}\n",
        function("prefill", 4, 3),
        function("decode", 1, 2)
    );
    fs::write(&text, source).unwrap();
    let package = folder.join("two.mlpackage");
    done(args!["build", text, "-o", package]);
    let before = [Precision::Fp32, Precision::Fp16].map(|p| conversation(&package, p));
    let mut written = Vec::new();
    for passes in [
        "merge-states",
        "merge-states{writes=each}",
        "pad-states",
        "pad-states{deep=true}",
        "merge-states,pad-states",
        "pad-states{deep=true},merge-states",
        "merge-states,pad-states{deep=true}",
    ] {
        let (out, _) = optimized(
            &folder,
            &package,
            &format!("{}.mlpackage", written.len()),
            passes,
        );
        for function in ["prefill", "decode"] {
            let states = states(&out, function);
            if passes.contains("merge") {
                assert_eq!(
                    states.keys().collect::<Vec<_>>(),
                    ["keys", "values"],
                    "{passes}"
                );
                assert!(states.values().all(|shape| shape[0] == 3), "{passes}");
            }
            if passes.contains("pad") {
                assert!(states.values().all(|shape| shape[3] == 16), "{passes}");
            }
        }
        let file = ModelFile::open(&out).unwrap();
        let map = StateMap::of(&file.model.user_defined()).unwrap();
        assert!(map.place("decode", "k_2").is_none());
        for (index, precision) in [Precision::Fp32, Precision::Fp16].into_iter().enumerate() {
            let (outputs, held) = conversation(&out, precision);
            let (expected, originals) = &before[index];
            assert_eq!(&outputs, expected, "{passes}");
            for (name, original) in originals {
                let place = map.place("prefill", name).unwrap();
                let found = place.original(name, &held[&place.state]).unwrap();
                assert_eq!(found.shape(), original.shape(), "{passes}: {name}");
                assert_eq!(
                    found.to_f64().unwrap(),
                    original.to_f64().unwrap(),
                    "{passes}: {name}"
                );
            }
        }
        written.push(out);
    }
    assert_accepted(&written);
}
