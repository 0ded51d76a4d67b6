//! Whole models of the collection after the pipelines for language models and for the private
//! interface.

use milwright::ir::{DType, Graph, Operation, ValueId};
use milwright::source::ModelFile;
use serde_json::Value;

use crate::command::{Folder, args, done};
use crate::second_opinion::assert_accepted;
use crate::support::folders::{corpus, packages_below};

/// Transformers with each kind of norm, activation, mask and position embedding.
const TRANSFORMERS: [&str; 6] = [
    "llama_prefill",
    "gemma3_prefill",
    "gemma3_fp32",
    "gemma3_erf",
    "gpt2_causal_sdpa",
    "bert_mean_pool_fp32",
];

/// Whether the private interface is reported to refuse an operation.
fn is_refused(graph: &Graph, op: &Operation, result: ValueId) -> bool {
    match op.op_type() {
        "scaled_dot_product_attention" | "gelu" => true,
        "concat" => {
            let ty = graph.ty(result).and_then(|ty| ty.as_tensor());
            ty.is_some_and(|ty| DType::is_float(ty.dtype))
        }
        "conv" | "conv_transpose" | "linear" => op.argument("bias").is_some(),
        _ => false,
    }
}

#[test]
fn what_the_private_interface_is_said_to_refuse_is_gone_and_every_choice_is_the_same() {
    let Some(corpus) = corpus() else { return };
    let folder = Folder::new();
    for name in TRANSFORMERS {
        let model = corpus.join("models").join(name).join("model.mlpackage");
        let out = folder.join(&format!("{name}.mlpackage"));
        done(args![
            "optimize",
            model,
            "-o",
            out,
            "--pipeline",
            "ane-direct",
            "--interface-changes",
            "--verify"
        ]);
        let file = ModelFile::open(&out).unwrap();
        for part in file.model.programs() {
            let bodies = part.program.functions.values();
            for body in bodies.flat_map(|function| function.specializations.values()) {
                for (node, op) in body.graph.ops() {
                    let result = ValueId::first(node);
                    let is_refused = is_refused(&body.graph, op, result);
                    assert!(!is_refused, "{name}: {}", body.graph.name(result));
                }
            }
        }
        let inputs = corpus.join("models").join(name).join("io.npz");
        let verified = done(args![
            "verify", model, out, "--inputs", inputs, "--format", "json", "--rtol", "1e-3",
            "--atol", "1e-3"
        ]);
        let report: Value = serde_json::from_str(&verified.stdout).unwrap();
        for output in report["outputs"].as_array().unwrap() {
            assert_eq!(output["argmax_match"], 1.0, "{name}: {output}");
        }
    }
}

#[test]
fn coremltools_accepts_the_models_after_each_pipeline() {
    let Some(corpus) = corpus() else { return };
    let folder = Folder::new();
    let mut pairs = Vec::new();
    for (number, model) in packages_below(&corpus.join("models"))
        .into_iter()
        .enumerate()
    {
        for pipeline in ["llm", "ane-direct"] {
            let out = folder.join(&format!("{number}_{pipeline}.mlpackage"));
            done(args!["optimize", model, "-o", out, "--pipeline", pipeline]);
            pairs.push((model.clone(), out));
        }
    }
    assert_accepted(&pairs);
}
