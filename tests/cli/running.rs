//! `run`: what it computes, what it writes, what inputs it makes up, and what it refuses.

use std::fs;
use std::path::{Path, PathBuf};

use milwright::eval::npz::{self, Arrays};
use milwright::ir::DType;
use milwright::tensor::Tensor;

use crate::command::{Folder, args, done, refused, run};
use crate::support::folders::{test_package, test_packages};

/// Two inputs, one output that is their sum.
const SUM: &str =
    "program(1.3) { func main<ios18>(tensor<fp32, [2, 3]> a, tensor<fp32, [2, 3]> b) {
    tensor<fp32, [2, 3]> y = add(x = a, y = b)[name = string(\"y\")];
} -> (y); }";

/// Rows of a table chosen by an input, to which a second input adds an attention mask.
const CHOICE: &str = "program(1.3) { func main<ios18>(
    tensor<int32, [1, 6]> ids, tensor<fp16, [1, 1, 6, 6]> mask, tensor<int32, [1, 6]> flags) {
    tensor<fp16, [5, 4]> table = const()[val = tensor<fp16, [5, 4]>(random(1, 1.0))];
    int32 axis = const()[val = int32(0)];
    int32 batch_dims = const()[val = int32(0)];
    bool validate = const()[val = bool(false)];
    int32 size = const()[val = int32(5)];
    int32 zero = const()[val = int32(0)];
    tensor<int32, [1, 6]> wrapped = add(x = ids, y = size);
    tensor<bool, [1, 6]> in_range = greater_equal(x = ids, y = zero);
    tensor<int32, [1, 6]> index = select(cond = in_range, a = ids, b = wrapped);
    tensor<fp16, [1, 6, 4]> rows = gather(axis = axis, batch_dims = batch_dims, indices = index,
        validate_indices = validate, x = table);
    bool no = const()[val = bool(false)];
    bool yes = const()[val = bool(true)];
    tensor<int32, [1]> ones = const()[val = tensor<int32, [1]>([1])];
    tensor<fp16, [1, 1, 6, 4]> heads = expand_dims(axes = ones, x = rows);
    tensor<fp16, [1, 1, 6, 6]> scores = matmul(transpose_x = no, transpose_y = yes, x = heads, y = heads);
    tensor<fp16, [1, 1, 6, 6]> masked = add(x = scores, y = mask);
    int32 last = const()[val = int32(-1)];
    tensor<fp16, [1, 1, 6, 6]> y = softmax(axis = last, x = masked)[name = string(\"y\")];
    string to_bool = const()[val = string(\"bool\")];
    tensor<bool, [1, 6]> kept = cast(dtype = to_bool, x = flags);
    string to_int = const()[val = string(\"int32\")];
    tensor<int32, [1, 6]> z = cast(dtype = to_int, x = kept)[name = string(\"z\")];
} -> (y, z); }";

/// A cache that is written from `begin` to `end`, both inputs.
const CACHE: &str = "program(1.3) { func main<ios18>(tensor<fp16, [1, 3, 2]> x, tensor<int32, [1]> begin,
    tensor<int32, [1]> end, state<tensor<fp16, [1, 10, 2]>> cache) {
    tensor<fp16, [1, 10, 2]> old = read_state(input = cache);
    tensor<int32, [1]> zero = const()[val = tensor<int32, [1]>([0])];
    tensor<int32, [1]> one = const()[val = tensor<int32, [1]>([1])];
    tensor<int32, [1]> two = const()[val = tensor<int32, [1]>([2])];
    int32 axis = const()[val = int32(0)];
    bool interleave = const()[val = bool(false)];
    tensor<int32, [3]> from = concat(axis = axis, interleave = interleave, values = (zero, begin, zero));
    tensor<int32, [3]> to = concat(axis = axis, interleave = interleave, values = (one, end, two));
    tensor<fp16, [1, 10, 2]> new = slice_update(begin = from, end = to, update = x, x = old);
    write_state(data = new, input = cache);
    tensor<fp16, [1, 10, 2]> y = add(x = new, y = new)[name = string(\"y\")];
} -> (y); }";

fn text(folder: &Folder, name: &str, source: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, source).unwrap();
    path
}

fn read(path: &Path) -> Arrays {
    npz::read(path).unwrap()
}

fn write(path: &Path, arrays: &[(&str, Tensor)]) {
    npz::write(path, arrays.iter().map(|(name, tensor)| (*name, tensor))).unwrap();
}

fn floats(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::floats(DType::Float32, shape.to_vec(), values.to_vec())
}

fn ints(tensor: &Tensor) -> Vec<i64> {
    tensor.as_ints().unwrap().into_owned()
}

/// The files of inputs beside the test packages that the packages can be run on, with the function.
fn expectations() -> Vec<(String, String, PathBuf)> {
    let entries = fs::read_dir(test_packages()).unwrap();
    let mut found: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "npz"))
        .map(|path| {
            let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let (package, function) = stem.split_once('.').unwrap_or((&stem, "main"));
            (package.to_owned(), function.to_owned(), path)
        })
        // Its program has inputs that no application could give.
        .filter(|(package, ..)| package != "odd_types")
        .collect();
    found.sort();
    found
}

#[test]
fn the_test_packages_compute_what_numpy_does_in_every_precision() {
    let expectations = expectations();
    assert!(expectations.len() >= 15);
    for (package, function, inputs) in expectations {
        // The stream of this one overflows in fp16, as it is meant to.
        let precisions: &[&str] = match package.as_str() {
            "growing_stream" => &["fp32"],
            _ => &["fp32", "fp16"],
        };
        for precision in precisions {
            let ran = run(args![
                "run",
                test_package(&package),
                "--function",
                function,
                "--inputs",
                inputs,
                "--check",
                "--precision",
                precision
            ]);
            assert_eq!(ran.status, 0, "{package} {precision}: {ran:?}");
            assert!(ran.stderr.contains("as expected"), "{ran:?}");
        }
    }
}

#[test]
fn what_was_made_up_can_be_fed_back_and_gives_the_same() {
    let folder = Folder::new();
    let (first, second) = (folder.join("1.npz"), folder.join("2.npz"));
    for package in ["attention_block", "stateful", "pipeline", "flexible"] {
        let package = test_package(package);
        done(args!["run", package, "--calls", "3", "-o", first]);
        let ran = done(args![
            "run", package, "--inputs", first, "--check", "--rtol", "0", "-o", second
        ]);
        assert!(!ran.stdout.contains("expected"), "{}", ran.stdout);
        let (made, again) = (read(&first), read(&second));
        for (name, tensor) in again {
            assert_eq!(tensor.shape(), made[&name].shape());
            assert_eq!(
                tensor.to_f64().unwrap(),
                made[&name].to_f64().unwrap(),
                "{name}"
            );
        }
    }
}

#[test]
fn a_seed_gives_the_same_bytes_and_another_seed_others() {
    let folder = Folder::new();
    let model = text(&folder, "m.mil", SUM);
    let files = ["a.npz", "b.npz", "c.npz"].map(|name| folder.join(name));
    for (file, seed) in files.iter().zip(["7", "7", "8"]) {
        done(args!["run", model, "--seed", seed, "-o", file]);
    }
    let [a, b, c] = files.map(|file| fs::read(file).unwrap());
    assert_eq!(a, b);
    assert_ne!(a, c);
}

#[test]
fn outputs_states_and_later_calls_have_names_of_their_own() {
    let folder = Folder::new();
    let out = folder.join("out.npz");
    done(args![
        "run",
        test_package("stateful"),
        "--calls",
        "2",
        "-o",
        out
    ]);
    let names: Vec<String> = read(&out).into_keys().collect();
    for name in ["in_x", "in_row", "s1_in_x", "s1_in_row"] {
        assert!(names.contains(&name.to_owned()), "{names:?}");
    }
    assert!(names.iter().any(|name| name.starts_with("out_0_")));
    assert!(names.iter().any(|name| name.starts_with("s1_out_0_")));
    assert_eq!(
        names
            .iter()
            .filter(|name| name.starts_with("state_"))
            .count(),
        2
    );
}

#[test]
fn a_dictionary_becomes_its_values_beside_its_keys() {
    let folder = Folder::new();
    let out = folder.join("out.npz");
    done(args!["run", test_package("classifier"), "-o", out]);
    let arrays = read(&out);
    let keys: Vec<&String> = arrays
        .keys()
        .filter(|name| name.starts_with("keys_"))
        .collect();
    let [keys] = keys.as_slice() else {
        panic!("{:?}", arrays.keys())
    };
    let values = &arrays[&keys.replace("keys_", "out_")];
    assert_eq!(arrays[*keys].dtype(), DType::String);
    assert_eq!((arrays[*keys].len(), values.len()), (5, 5));
    let sum: f64 = values.to_f64().unwrap().iter().sum();
    assert!((sum - 1.0).abs() < 1e-5, "probabilities: {sum}");
}

#[test]
fn an_output_that_is_off_is_shown_and_the_status_is_1() {
    let folder = Folder::new();
    let model = text(&folder, "m.mil", SUM);
    let inputs = folder.join("in.npz");
    let arrays = [
        ("a", floats(&[2, 3], &[1.0; 6])),
        ("in_b", floats(&[2, 3], &[2.0; 6])),
        ("out_0_y", floats(&[2, 3], &[3.0, 3.0, 3.0, 3.0, 5.0, 3.0])),
    ];
    write(&inputs, &arrays);
    let ran = run(args!["run", model, "--inputs", inputs, "--check"]);
    assert_eq!(ran.status, 1, "{ran:?}");
    assert!(
        ran.stdout.contains("3 at [1, 1], expected 5"),
        "{}",
        ran.stdout
    );
    assert!(ran.stderr.contains("1 array of 1 off"), "{}", ran.stderr);
    // |3 − 5| ≤ 0.4 · 5
    done(args![
        "run", model, "--inputs", inputs, "--check", "--rtol", "0.4"
    ]);
    done(args![
        "run", model, "--inputs", inputs, "--check", "--atol", "2"
    ]);
    let ran = run(args![
        "run", model, "--inputs", inputs, "--check", "--atol", "1.9"
    ]);
    assert_eq!(ran.status, 1);
}

#[test]
fn precisions_differ_where_fp16_rounds_and_overflows() {
    let folder = Folder::new();
    let source = SUM.replace("fp32", "fp16");
    let model = text(&folder, "m.mil", &source);
    let inputs = folder.join("in.npz");
    // 60000 + 6000 is beyond the greatest fp16, and 2048 + 1 rounds to 2048.
    let half = |values: &[f32]| Tensor::floats(DType::Float16, vec![2, 3], values.to_vec());
    write(
        &inputs,
        &[
            ("a", half(&[60000.0, 2048.0, 1.0, 0.0, 0.0, 0.0])),
            ("b", half(&[6000.0, 1.0, 1.0, 0.0, 0.0, 0.0])),
        ],
    );
    let out = folder.join("out.npz");
    let sums = |precision: &str| {
        let ran = done(args![
            "run",
            model,
            "--inputs",
            inputs,
            "--precision",
            precision,
            "-o",
            out
        ]);
        (
            read(&out)["out_0_y"].to_f64().unwrap()[..3].to_vec(),
            ran.stderr,
        )
    };
    let (fp16, warned) = sums("fp16");
    assert_eq!(fp16, [f64::INFINITY, 2048.0, 2.0]);
    assert!(warned.contains("1 infinite"), "{warned}");
    assert_eq!(sums("ane").0, [f64::INFINITY, 2048.0, 2.0]);
    // What is computed in fp32 is written as fp32.
    assert_eq!(sums("fp32").0, [66000.0, 2049.0, 2.0]);
}

#[test]
fn made_up_indices_stay_in_their_table_and_masks_are_masks() {
    let folder = Folder::new();
    let model = text(&folder, "m.mil", CHOICE);
    let out = folder.join("out.npz");
    for seed in ["0", "1", "2"] {
        let ran = done(args!["run", "-v", model, "--seed", seed, "-o", out]);
        assert!(
            ran.stderr
                .contains("ids: int32 [1, 6]: integers from 0 to 4"),
            "{}",
            ran.stderr
        );
        assert!(
            ran.stderr
                .contains("mask: fp16 [1, 1, 6, 6]: a causal mask"),
            "{}",
            ran.stderr
        );
        assert!(
            ran.stderr.contains("flags: int32 [1, 6]: flags"),
            "{}",
            ran.stderr
        );
        let arrays = read(&out);
        assert!(ints(&arrays["in_ids"]).iter().all(|id| (0..5).contains(id)));
        assert!(
            ints(&arrays["in_flags"])
                .iter()
                .all(|flag| (0..2).contains(flag))
        );
        let mask = arrays["in_mask"].to_f64().unwrap();
        for (at, value) in mask.iter().enumerate() {
            let seen = at % 6 <= at / 6;
            assert_eq!(*value, if seen { 0.0 } else { -10_000.0 }, "{at}");
        }
    }
}

#[test]
fn made_up_positions_fit_what_is_written_and_advance() {
    let folder = Folder::new();
    let model = text(&folder, "m.mil", CACHE);
    let out = folder.join("out.npz");
    done(args!["run", model, "--calls", "5", "-o", out]);
    let arrays = read(&out);
    let places: Vec<(i64, i64)> = (0..5)
        .map(|call| {
            let prefix = if call == 0 {
                String::new()
            } else {
                format!("s{call}_")
            };
            let one = |name: &str| ints(&arrays[&format!("{prefix}in_{name}")])[0];
            (one("begin"), one("end"))
        })
        .collect();
    // Three rows at a time into ten, and around before the end is passed.
    assert_eq!(places[..3], [(0, 3), (3, 6), (6, 9)]);
    for (begin, end) in places {
        assert!(begin >= 0 && end == begin + 3 && end <= 10);
    }
}

#[test]
fn images_and_optional_inputs_are_as_their_description_says() {
    let folder = Folder::new();
    let out = folder.join("out.npz");
    done(args!["run", test_package("image_input"), "-o", out]);
    let image = read(&out)["in_image"].to_f64().unwrap();
    assert!(
        image
            .iter()
            .all(|pixel| pixel.fract() == 0.0 && (0.0..256.0).contains(pixel))
    );
    assert!(image.iter().any(|pixel| *pixel > 128.0));
    let package = test_package("multiarray_optional");
    done(args!["run", package, "-o", out]);
    let arrays = read(&out);
    assert!(
        arrays["in_shift"]
            .to_f64()
            .unwrap()
            .iter()
            .all(|value| *value == 0.5)
    );
    // What has a default may be left out of a file.
    let inputs = folder.join("in.npz");
    write(
        &inputs,
        &[
            ("x", arrays["in_x"].clone()),
            ("gain", arrays["in_gain"].clone()),
        ],
    );
    let given = folder.join("given.npz");
    done(args!["run", package, "--inputs", inputs, "-o", given]);
    for (name, tensor) in read(&given) {
        assert_eq!(tensor.to_f64().unwrap(), arrays[&name].to_f64().unwrap());
    }
}

#[test]
fn wrong_inputs_are_refused_with_their_names() {
    let folder = Folder::new();
    let model = text(&folder, "m.mil", SUM);
    let (inputs, out) = (folder.join("in.npz"), folder.join("out.npz"));
    let refuse = |arrays: &[(&str, Tensor)], words: &[&str]| {
        write(&inputs, arrays);
        refused(args!["run", model, "--inputs", inputs, "-o", out], words);
        assert!(!out.exists());
    };
    let good = floats(&[2, 3], &[0.0; 6]);
    let whole = Tensor::ints(DType::Int32, vec![2, 3], vec![0; 6]);
    refuse(&[("a", good.clone())], &["in.npz", "`b`", "missing"]);
    refuse(
        &[("a", good.clone()), ("b", floats(&[3, 2], &[0.0; 6]))],
        &["in.npz", "`b`", "[3, 2]", "[2, 3]"],
    );
    refuse(
        &[("a", good.clone()), ("b", whole)],
        &["`b`", "int32", "fp32"],
    );
    write(
        &inputs,
        &[("a", good.clone()), ("b", good.clone()), ("c", good)],
    );
    let ran = done(args!["run", model, "--inputs", inputs, "-o", out]);
    assert!(ran.stderr.contains("`c` is neither"), "{}", ran.stderr);
    refused(
        args!["run", model, "--inputs", inputs, "--check"],
        &["in.npz", "nothing to compare"],
    );
    fs::write(&inputs, "no zip").unwrap();
    refused(
        args!["run", model, "--inputs", inputs, "-o", out],
        &["in.npz", "no .npz"],
    );
    refused(
        args!["run", model, "--inputs", folder.join("none.npz"), "-o", out],
        &["none.npz"],
    );
}

#[test]
fn models_that_cannot_run_are_refused_with_the_reason() {
    let folder = Folder::new();
    let out = folder.join("out.npz");
    refused(
        args![
            "run",
            test_package("multifunction"),
            "--function",
            "none",
            "-o",
            out
        ],
        &["`none`", "decode", "prefill"],
    );
    refused(
        args!["run", test_package("pipeline_nms"), "-o", out],
        &["stage 1", "nonMaximumSuppression"],
    );
    refused(
        args![
            "run",
            test_package("pipeline"),
            "--function",
            "main",
            "-o",
            out
        ],
        &["pipeline", "main"],
    );
    refused(
        args!["run", test_package("unknown_op"), "-o", out],
        &["there is no evaluation for this op type"],
    );
    let (folder, copy) = Folder::with_copy_of("attention_block");
    fs::remove_file(copy.join(crate::command::WEIGHTS)).unwrap();
    refused(
        args!["run", copy, "-o", folder.join("out.npz")],
        &["weight.bin", "missing"],
    );
    refused(
        args![
            "run",
            test_package("stateful"),
            "-o",
            folder.join("no/such/out.npz")
        ],
        &["out.npz"],
    );
    assert!(!out.exists());
}

#[test]
fn an_index_beyond_its_table_is_an_error_with_its_place() {
    let folder = Folder::new();
    let model = text(&folder, "m.mil", CHOICE);
    let inputs = folder.join("in.npz");
    write(
        &inputs,
        &[
            (
                "ids",
                Tensor::ints(DType::Int32, vec![1, 6], vec![0, 1, 2, 3, 4, 5]),
            ),
            ("mask", Tensor::zeros(DType::Float16, vec![1, 1, 6, 6])),
            ("flags", Tensor::zeros(DType::Int32, vec![1, 6])),
        ],
    );
    refused(
        args![
            "run",
            model,
            "--inputs",
            inputs,
            "-o",
            folder.join("out.npz")
        ],
        &["`gather` op `rows`", "index 5"],
    );
}

#[test]
fn every_kind_of_model_runs() {
    let folder = Folder::new();
    let out = folder.join("out.npz");
    let package = test_package("attention_block");
    done(args!["run", package, "-o", out]);
    let expected = read(&out);
    let zipped = folder.join("m.zip");
    done(args![
        "optimize",
        package,
        "--pipeline",
        "none",
        "-o",
        zipped
    ]);
    let mil = folder.join("m.mil");
    done(args![
        "optimize",
        package,
        "--pipeline",
        "none",
        "-o",
        mil,
        "--weights-dir",
        folder.join("weights")
    ]);
    for model in [zipped, mil] {
        done(args!["run", model, "-o", out]);
        for (name, tensor) in read(&out) {
            assert_eq!(
                tensor.to_f64().unwrap(),
                expected[&name].to_f64().unwrap(),
                "{name}"
            );
        }
    }
}

#[test]
fn absurd_sizes_and_constants_are_errors_and_not_crashes() {
    let folder = Folder::new();
    let out = folder.join("out.npz");
    for (shape, words) in [
        ("[4294967296, 4294967296, 0]", None),
        ("[4294967296, 4294967296]", Some("too large")),
        ("[2147483648]", Some("too large")),
    ] {
        let source = SUM.replace("[2, 3]", shape);
        let model = text(&folder, "m.mil", &source);
        match words {
            Some(words) => drop(refused(args!["run", model, "-o", out], &["`a`", words])),
            None => drop(run(args!["run", model, "-o", out])),
        }
    }
    let source = "program(1.3) { func main<ios18>(tensor<int32, [3]> a) {
        int32 most = const()[val = int32(2147483647)];
        tensor<bool, [3]> y = less(x = a, y = most)[name = string(\"y\")];
    } -> (y); }";
    done(args!["run", text(&folder, "m.mil", source), "-o", out]);
}
