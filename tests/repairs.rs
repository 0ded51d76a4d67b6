//! Programs that go wrong in half precision, before and after the pass that repairs each: before, the
//! result has NaN or infinity or is far from the right one; after, it is the right one within the
//! rounding of fp16. The programs are sketches of published bug reports and models of the corpus, if
//! the variable `MILWRIGHT_CORPUS` says where that is; what is right is a formula, or the program as it
//! was, run in fp32.

#[path = "repairs/measure.rs"]
mod measure;

use std::collections::BTreeMap;
use std::path::PathBuf;

use milwright::analysis::norm::{self, Found};
use milwright::analysis::residual;
use milwright::eval::npz;
use milwright::eval::{Interpreter, Observer, Options, Precision, States, Unobserved};
use milwright::ir::{DType, Graph, NodeId, Operation, Program, ValueId};
use milwright::ops::{Datum, Opset};
use milwright::pass::{Block, Manager, NoBlobs, Pipeline, Readable, Settings, Silent, verify};
use milwright::passes;
use milwright::source::ModelFile;
use milwright::tensor::Tensor;
use milwright::text::parse;

use measure::{
    Arrays, ROUNDING, Right, distance, float, half, is_repaired, masked_softmax, noise, one, open,
    repaired, rms_norm, run,
};

#[test]
fn r01_softplus_of_large_numbers() {
    let x = half(&[1, 64, 1, 32], |index| noise(index) * 60.0);
    let passes = "stable-softplus";
    is_repaired(
        "bugs/R01_softplus.mlpackage",
        passes,
        Precision::Ane,
        &one("x", x),
        Right::Fp32,
    );
}

#[test]
fn r02_mish_of_large_numbers() {
    let x = half(&[1, 64, 8, 8], |index| noise(index) * 60.0);
    let passes = "stable-softplus";
    is_repaired(
        "bugs/R02_mish.mlpackage",
        passes,
        Precision::Ane,
        &one("x", x),
        Right::Fp32,
    );
}

/// exp overflows here, but log and tanh make 1 of infinity, which is right: there is nothing to repair
/// in IEEE arithmetic, and the pass must keep it so.
#[test]
fn r02b_mish_written_out_is_right_before_and_after() {
    let Some(file) = open("bugs/R02b_mish_naive.mlpackage") else {
        return;
    };
    let program = file.model.programs().remove(0).program;
    let x = one("x", half(&[1, 64, 8, 8], |index| noise(index) * 60.0));
    let right = run(&file, program, Precision::Fp32, &x);
    let (after, rewrites) = repaired(&file, program, "stable-softplus");
    assert_eq!(rewrites, 1);
    for program in [program, &after] {
        let distance = distance(&run(&file, program, Precision::Fp16, &x), &right);
        assert!(distance <= ROUNDING, "{distance:e}");
    }
}

#[test]
fn r04_rms_norm_of_a_row_with_a_peak() {
    let x = half(&[1, 128, 2048], |index| match index % 2048 {
        7 => 410.0,
        _ => noise(index) * 2.0,
    });
    let package = "bugs/R04_rmsnorm_naive.mlpackage";
    for form in ["layer-norm", "max-scale", "prescale"] {
        let passes = format!("safe-rmsnorm{{form={form}}}");
        is_repaired(
            package,
            &passes,
            Precision::Fp16,
            &one("x", x.clone()),
            Right::Fp32,
        );
    }
}

#[test]
fn r05_rms_norm_scaled_by_its_magnitude() {
    // A row of zeros is 0/0; one spike beside small numbers makes the epsilon 3600 times too large.
    let x = half(&[1, 16, 512], |index| match (index / 512, index % 512) {
        (0, _) => 0.0,
        (_, 3) => 60.0,
        _ => noise(index),
    });
    let right = rms_norm(&x, 512, f64::from(f32::from_bits(0x3588_0000)));
    let package = "bugs/R05_rmsnorm_maxscaled_eps.mlpackage";
    for precision in [Precision::Fp32, Precision::Fp16] {
        for form in ["layer-norm", "max-scale", "prescale"] {
            let passes = format!("safe-rmsnorm{{form={form}}}");
            let right = Right::Values(right.clone());
            is_repaired(package, &passes, precision, &one("x", x.clone()), right);
        }
    }
}

#[test]
fn r06_and_r07_infinity_times_zero_in_a_mask() {
    let scores = |dtype| float(dtype, &[1, 8, 16, 16], |index| noise(index) * 3.0);
    let causal = float(DType::Float32, &[1, 1, 16, 16], |index| {
        f32::from(u8::from(index % 16 <= index / 16))
    });
    let right = masked_softmax(&scores(DType::Float32), |row, column| column <= row);
    let inputs = Arrays::from([
        ("s".to_owned(), scores(DType::Float32)),
        ("keep".to_owned(), causal),
    ]);
    let package = "bugs/R06_mask_finfo_min_fp32.mlpackage";
    is_repaired(
        package,
        "finite-masks",
        Precision::Fp16,
        &inputs,
        Right::Values(right),
    );

    let keep = half(&[1, 1, 1, 16], |index| f32::from(u8::from(index < 11)));
    let right = masked_softmax(&scores(DType::Float16), |_, column| column < 11);
    let inputs = Arrays::from([
        ("s".to_owned(), scores(DType::Float16)),
        ("keep".to_owned(), keep),
    ]);
    let package = "bugs/R07_zero_times_neginf.mlpackage";
    is_repaired(
        package,
        "finite-masks",
        Precision::Fp16,
        &inputs,
        Right::Values(right),
    );
}

#[test]
fn r08_a_row_in_which_all_is_masked() {
    let scores = half(&[1, 8, 16, 16], |index| noise(index) * 3.0);
    let mask = float(DType::Float32, &[1, 1, 16, 16], |index| {
        f32::from(u8::from(index % 16 < index / 16))
    });
    let right = masked_softmax(&scores, |row, column| column < row);
    let inputs = Arrays::from([("s".to_owned(), scores), ("m".to_owned(), mask)]);
    let package = "bugs/R08_select_minus1e9_fp16.mlpackage";
    is_repaired(
        package,
        "finite-masks",
        Precision::Fp16,
        &inputs,
        Right::Values(right),
    );
}

#[test]
fn r11_the_variance_of_a_group() {
    let x = half(&[1, 32, 64, 64], |index| noise(index) * 600.0 + 20.0);
    let package = "bugs/R11_groupnorm_manual_var.mlpackage";
    for form in ["layer-norm", "max-scale", "prescale"] {
        let passes = format!("safe-rmsnorm{{form={form}}}");
        is_repaired(
            package,
            &passes,
            Precision::Fp16,
            &one("x", x.clone()),
            Right::Fp32,
        );
    }
}

/// The inputs of a model of the corpus.
fn inputs_of(model: &str) -> Option<Arrays> {
    let corpus = std::env::var_os("MILWRIGHT_CORPUS").map(PathBuf::from)?;
    let arrays = npz::read(&corpus.join("models").join(model).join("io.npz")).expect("arrays");
    let inputs = arrays
        .into_iter()
        .filter_map(|(name, tensor)| Some((name.strip_prefix("in_")?.to_owned(), tensor)));
    Some(inputs.collect())
}

#[test]
fn bert_with_padding_behind_a_mask_of_infinity() {
    let Some(mut inputs) = inputs_of("bert_mean_pool") else {
        return;
    };
    // A token of 0 is padding.
    let ids = &inputs["x"];
    let mut tokens = ids.as_ints().expect("tokens").into_owned();
    tokens[11..].fill(0);
    let padded = Tensor::ints(ids.dtype(), ids.shape().to_vec(), tokens);
    inputs.insert("x".to_owned(), padded);
    let Some(fp32) = open("models/bert_mean_pool_fp32/model.mlpackage") else {
        return;
    };
    let right = run(
        &fp32,
        fp32.model.programs().remove(0).program,
        Precision::Fp32,
        &inputs,
    );
    is_repaired(
        "models/bert_mean_pool/model.mlpackage",
        "finite-masks",
        Precision::Fp16,
        &inputs,
        Right::Values(right),
    );
}

/// Keeps the elements of every value, by name.
#[derive(Default)]
struct Values(BTreeMap<String, Vec<f64>>);

impl Observer for Values {
    fn computed(&mut self, _: &Graph, _: NodeId, op: &Operation, results: &[Datum]) {
        for (result, datum) in op.results().iter().zip(results) {
            if let Datum::Tensor(tensor) = datum
                && let Ok(values) = tensor.to_f64()
            {
                self.0.insert(result.name.clone(), values);
            }
        }
    }
}

/// Of the rows that an RMS norm gets as finite numbers: how many there are, and how many of them it
/// does not give as the formula does.
fn wrong_rows(file: &ModelFile, original: &Program, run: &Program, inputs: &Arrays) -> [usize; 2] {
    let mut values = Values::default();
    let interpreter = Interpreter::new(
        run,
        file.weights().clone(),
        Options::new(Precision::Fp16.numerics()),
    );
    let (name, function) = original.functions.iter().next().expect("a function");
    interpreter
        .run(name, inputs, &States::new(), &mut values)
        .expect("it runs");
    let graph = &function
        .specializations
        .values()
        .next()
        .expect("a body")
        .graph;
    let block = Block {
        graph,
        outer: None,
        opset: Some(Opset::CoreML8),
        blobs: &NoBlobs,
        ranges: None,
    };
    let (mut rows, mut wrong) = (0, 0);
    for (node, _) in graph.ops() {
        let Found::Norm(norm) = norm::at(&block, node) else {
            continue;
        };
        let epsilon = norm.epsilon.expect("a constant epsilon");
        // The new value has the name of the old one.
        let result = &values.0[graph.name(ValueId::first(node))];
        let x = &values.0[graph.name(norm.x)];
        for (row, result) in x.chunks(64).zip(result.chunks(64)) {
            if row.iter().all(|value| value.is_finite()) {
                let mean = row.iter().map(|x| x * x).sum::<f64>() / 64.0;
                let right: Vec<f64> = row.iter().map(|x| x / (mean + epsilon).sqrt()).collect();
                rows += 1;
                wrong += usize::from(distance(result, &right) > ROUNDING);
            }
        }
    }
    [rows, wrong]
}

#[test]
fn a_residual_stream_that_overflows_has_right_norms_until_it_does() {
    let (Some(file), Some(inputs)) = (
        open("models/residual_overflow_fp16/model.mlpackage"),
        inputs_of("residual_overflow_fp16"),
    ) else {
        return;
    };
    let program = file.model.programs().remove(0).program;
    let [rows, wrong] = wrong_rows(&file, program, program, &inputs);
    assert!(wrong > 0, "before, all of {rows} rows are right");
    let (after, rewrites) = repaired(&file, program, "safe-rmsnorm");
    assert_eq!(rewrites, 17);
    let [more_rows, wrong] = wrong_rows(&file, program, &after, &inputs);
    assert_eq!(wrong, 0, "of {more_rows} rows");
}

/// Two layers as in Llama, whose embedding lifts one channel of the residual stream to a magnitude.
fn llama(peak: f32) -> String {
    let mut text = String::from(
        "program(1.3)\n{\n func main<ios18>(tensor<fp16, [1, 4, 64]> x) {\n\
         tensor<fp16, [64]> w = const()[val = tensor<fp16, [64]>(random(1, 1))];\n",
    );
    let lift: Vec<String> = (0..64)
        .map(|channel| {
            if channel == 5 {
                format!("{peak}")
            } else {
                "1".to_owned()
            }
        })
        .collect();
    let lift = format!(
        "tensor<fp16, [64]> lift = const()[val = tensor<fp16, [64]>([{}])];\n\
         tensor<fp16, [1, 4, 64]> h0 = mul(x = x, y = lift);\n",
        lift.join(", ")
    );
    text += &lift;
    for layer in 0..2 {
        let next = layer + 1;
        let operations = format!(
            "tensor<fp16, [1, 4, 64]> q{layer} = pow(x = h{layer}, y = fp16(2));\n\
             tensor<fp16, [1, 4, 1]> m{layer} = reduce_mean(x = q{layer}, axes = tensor<int32, [1]>([-1]), keep_dims = bool(true));\n\
             tensor<fp16, [1, 4, 1]> g{layer} = add(x = m{layer}, y = fp16(1e-6));\n\
             tensor<fp16, [1, 4, 1]> r{layer} = rsqrt(x = g{layer}, epsilon = fp32(1e-12));\n\
             tensor<fp16, [1, 4, 64]> n{layer} = mul(x = h{layer}, y = r{layer});\n\
             tensor<fp16, [1, 4, 64]> y{layer} = mul(x = w, y = n{layer});\n\
             tensor<fp16, [64, 64]> p{layer} = const()[val = tensor<fp16, [64, 64]>(random({next}, 0.2))];\n\
             tensor<fp16, [1, 4, 64]> l{layer} = linear(x = y{layer}, weight = p{layer});\n\
             tensor<fp16, [1, 4, 64]> b{layer} = silu(x = l{layer});\n\
             tensor<fp16, [1, 4, 64]> h{next} = add(x = h{layer}, y = b{layer});\n"
        );
        text += &operations;
    }
    text + " } -> (n1);\n}\n"
}

#[test]
fn a_llama_whose_residual_peak_is_410_loses_its_rows_and_gets_them_back() {
    let parsed = parse(&llama(410.0), "llama").unwrap_or_else(|errors| panic!("{errors:?}"));
    let run = |program: &Program, precision: Precision| -> Vec<f64> {
        let x = half(&[1, 4, 64], |index| {
            if index % 64 == 5 { 1.0 } else { noise(index) }
        });
        let options = Options::new(precision.numerics());
        let interpreter = Interpreter::with_blobs(program, Readable(&NoBlobs), options);
        let results = interpreter
            .run("main", &one("x", x), &States::new(), &mut Unobserved)
            .expect("it runs");
        match results.into_iter().next() {
            Some((_, Datum::Tensor(tensor))) => tensor.to_f64().expect("numbers"),
            _ => panic!("no output"),
        }
    };
    let program = &parsed.program;
    let right = run(program, Precision::Fp32);
    let before = run(program, Precision::Fp16);
    assert!(
        before.iter().all(|value| *value == 0.0),
        "the normalized rows are zero"
    );
    for form in ["layer-norm", "max-scale", "prescale"] {
        for precision in [Precision::Fp16, Precision::Ane] {
            let mut after = program.clone();
            let steps = Pipeline::parse(&format!("safe-rmsnorm{{form={form}}}"), passes::ALL);
            let outcome = Manager::new(passes::ALL, Settings::default())
                .run(
                    &steps.expect("a pipeline"),
                    &mut after,
                    "",
                    &verify::issues(program),
                    &NoBlobs,
                    &mut Silent,
                )
                .expect("the pass runs");
            assert_eq!(outcome.rewrites(), 2, "{form}");
            let distance = distance(&run(&after, precision), &right);
            assert!(
                distance <= ROUNDING,
                "{form}, {}: {distance:e}",
                precision.word()
            );
        }
    }
}

/// The stream of each model of the corpus: how many additions it has.
#[test]
fn the_residual_streams_of_models_are_found() {
    for (model, additions) in [
        ("llama_prefill", 4),
        ("llama_prefill_ios15", 4),
        ("llama_prefill_eager", 4),
        ("qwen3_prefill", 4),
        ("gemma3_prefill", 4),
        ("gpt2_causal_sdpa", 4),
        ("residual_overflow", 8),
        ("residual_overflow_fp16", 8),
        ("tiny_llama_trained", 8),
    ] {
        let Some(file) = open(&format!("models/{model}/model.mlpackage")) else {
            return;
        };
        let program = file.model.programs().remove(0).program;
        let function = program.functions.values().next().expect("a function");
        let body = function.specializations.values().next().expect("a body");
        let block = Block {
            graph: &body.graph,
            outer: None,
            opset: Some(Opset::CoreML8),
            blobs: &**file.weights(),
            ranges: None,
        };
        let stream = residual::longest(&block).unwrap_or_else(|| panic!("{model} has none"));
        assert_eq!(stream.writes.len(), additions, "{model}");
        let others = stream.readers.iter().filter(|reader| !reader.is_norm);
        assert_eq!(others.count(), 0, "{model}: all readers are norms");
    }
}

/// A program of text, with its first output for an input.
fn of_text(program: &Program, x: Tensor) -> Vec<f64> {
    let options = Options::new(Precision::Fp16.numerics());
    let interpreter = Interpreter::with_blobs(program, Readable(&NoBlobs), options);
    let results = interpreter
        .run("main", &one("x", x), &States::new(), &mut Unobserved)
        .expect("it runs");
    match results.into_iter().next() {
        Some((_, Datum::Tensor(tensor))) => tensor.to_f64().expect("numbers"),
        _ => panic!("no output"),
    }
}

/// The sketch of report R17 names int32, which the interpreter does not wrap as the hardware of the
/// report does; so this is its program with the uint16 that coremltools writes, and a squeezed argmax.
#[test]
fn r17_indices_that_wrap() {
    let index = 69_000;
    for (operations, wrapped) in [
        (
            "tensor<fp16, [1, 1]> v, tensor<uint16, [1, 1]> i = topk(x = x, k = int32(1), axis = int32(-1), output_indices_dtype = string(\"uint16\"));\n\
             tensor<int32, [1, 1]> y = cast(x = i, dtype = string(\"int32\"));\n",
            index - 65_536,
        ),
        (
            "tensor<int32, [1, 1]> a = reduce_argmax(x = x, axis = int32(-1), keep_dims = bool(true));\n\
             tensor<int16, [1, 1]> n = cast(x = a, dtype = string(\"int16\"));\n\
             tensor<int16, [1]> s = squeeze(x = n, axes = tensor<int32, [1]>([1]));\n\
             tensor<int32, [1]> y = cast(x = s, dtype = string(\"int32\"));\n",
            index - 65_536,
        ),
    ] {
        let source = format!(
            "program(1.3)\n{{\n func main<ios18>(tensor<fp16, [1, 70000]> x) {{\n{operations}}} -> (y);\n}}\n"
        );
        let parsed = parse(&source, "indices").unwrap_or_else(|errors| panic!("{errors:?}"));
        let x = || half(&[1, 70_000], |at| if at == index { 2.0 } else { 1.0 });
        assert_eq!(of_text(&parsed.program, x()), [wrapped as f64]);
        let mut after = parsed.program.clone();
        let steps = Pipeline::parse("wide-topk-index", passes::ALL).expect("a pipeline");
        let known = verify::issues(&after);
        Manager::new(passes::ALL, Settings::default())
            .run(&steps, &mut after, "", &known, &NoBlobs, &mut Silent)
            .expect("the pass runs");
        assert_eq!(of_text(&after, x()), [index as f64]);
    }
}

#[test]
fn r17_as_it_is_sketched_is_right_and_stays() {
    let Some(file) = open("bugs/R17_topk_big_vocab.mlpackage") else {
        return;
    };
    let program = file.model.programs().remove(0).program;
    let (_, rewrites) = repaired(&file, program, "wide-topk-index");
    assert_eq!(rewrites, 0);
}

#[test]
fn r62_integers_that_a_gather_narrows() {
    let Some(file) = open("bugs/R62_gather_int32_to_int16.mlpackage") else {
        return;
    };
    let program = file.model.programs().remove(0).program;
    let x = one(
        "x",
        Tensor::ints(DType::Int32, vec![4], vec![70_000, 1, 2, 3]),
    );
    assert_eq!(
        run(&file, program, Precision::Fp16, &x),
        [70_000.0 - 65_536.0]
    );
    let (after, rewrites) = repaired(&file, program, "wide-topk-index");
    assert_eq!(rewrites, 1);
    assert_eq!(run(&file, &after, Precision::Fp16, &x), [70_000.0]);
}

/// Products of queries and keys beyond fp16, whose scaled scores are ordinary numbers.
#[test]
fn scores_that_overflow_before_their_scale() {
    let source = "program(1.3)\n{\n func main<ios18>(tensor<fp16, [1, 4, 64]> x) {\n\
        tensor<fp16, [1, 4, 4]> s = matmul(x = x, y = x, transpose_y = bool(true));\n\
        tensor<fp16, [1, 4, 4]> y = mul(x = s, y = fp16(0.125));\n} -> (y);\n}\n";
    let parsed = parse(source, "scores").unwrap_or_else(|errors| panic!("{errors:?}"));
    let x = || half(&[1, 4, 64], |index| 40.0 + noise(index));
    let infinite = |values: &[f64]| values.iter().filter(|value| value.is_infinite()).count();
    assert_eq!(infinite(&of_text(&parsed.program, x())), 16);
    let mut after = parsed.program.clone();
    let steps = Pipeline::parse("sink-attention-scale", passes::ALL).expect("a pipeline");
    let known = verify::issues(&after);
    Manager::new(passes::ALL, Settings::default())
        .run(&steps, &mut after, "", &known, &NoBlobs, &mut Silent)
        .expect("the pass runs");
    let scores = of_text(&after, x());
    assert!(
        scores
            .iter()
            .all(|score| (12_000.0..14_000.0).contains(score)),
        "{scores:?}"
    );
}
