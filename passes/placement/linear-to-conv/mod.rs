//! linear-to-conv: a linear becomes a convolution of width 1, and what follows stays in its layout.

mod layout;

use self::layout::{Carried, Layout};
use crate::analysis::product::unknown_parameter;
use crate::analysis::weight::{Piece, Weight};
use crate::ir::{Binding, DType, NodeId, Operation, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Rule, Severity, Target,
};

/// The pass.
pub(super) struct LinearToConv;

static META: Meta = Meta {
    id: "linear-to-conv",
    family: Family::Placement,
    summary: "linear, or matmul with a constant, becomes a 1x1 convolution in the layout [B, C, 1, S]",
    exactness: Exactness::Real,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Disputed,
    catalog: &["orion-17"],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const SLOW: Rule = Rule {
    id: "linear-to-conv",
    summary: "a linear layer, which may be faster as a 1x1 convolution",
    why: "On the private interface a 1x1 convolution is reported about 3 times as fast as a matmul \
          (Orion, row 17). Through Core ML CoreML-LLM measures no gain.",
    help: "linear-to-conv makes it one; measure both.",
    evidence: META.evidence,
    sources: &[
        "https://github.com/mechramc/Orion",
        "https://github.com/john-rocky/CoreML-LLM",
    ],
    severity: &[(Target::AneDirect, Severity::Info)],
    catalog: META.catalog,
};

impl Pass for LinearToConv {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[SLOW]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(Convert))
    }
}

struct Convert;

impl Matcher for Convert {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let Some(op) = block.op(node) else {
            return Attempt::NoMatch;
        };
        let parameter = match op.op_type() {
            "linear" => "weight",
            "matmul" => "y",
            _ => return Attempt::NoMatch,
        };
        let Some(x) = op.value("x") else {
            return Attempt::NoMatch;
        };
        let weight = match Weight::of(block, op, parameter) {
            Ok(weight) if weight.is_constant() => weight,
            // A matmul of two activations is no layer.
            _ => return Attempt::NoMatch,
        };
        if let Some(parameter) = unknown_parameter(block, op) {
            let why = format!("nothing is known about its parameter `{parameter}`");
            return Attempt::missed(node, why);
        }
        if !block.dtype(x).is_some_and(DType::is_float) {
            return Attempt::missed(node, "its operand is not of floats");
        }
        let rank = block.tensor(x).map_or(0, |ty| ty.dims.len());
        let Some(layout) = Layout::of_rank(rank) else {
            return Attempt::missed(node, format!("its operand has rank {rank}, not 2, 3 or 4"));
        };
        let result = ValueId::first(node);
        let Some(ty) = block.graph.ty(result).cloned() else {
            return Attempt::missed(node, "the type of the result is not known");
        };
        if block.tensor(result).map(|ty| ty.dims.len()) != Some(rank) {
            return Attempt::missed(node, "the constant has more dimensions than its operand");
        }
        let kernel = match kernel(block, op, &weight) {
            Ok(kernel) => kernel,
            Err(why) => return Attempt::missed(node, why),
        };
        let bias = op
            .argument("bias")
            .map(|argument| argument.bindings.clone());
        let carried = layout.carry(block, x);
        let op_type = op.op_type();
        let what = match (&carried, op_type) {
            (Carried::Outside(..), op_type) => format!("{op_type} becomes a convolution"),
            (_, op_type) => {
                format!("{op_type} becomes a convolution in the layout of the one before")
            }
        };
        Attempt::matched(what, move |edit| {
            let x = layout.make(edit, carried)?;
            let weight = kernel.make(edit)?;
            let mut arguments = vec![("x", Binding::Value(x)), ("weight", weight)];
            if let Some(bias) = bias.and_then(|mut bindings| bindings.pop()) {
                arguments.push(("bias", bias));
            }
            let product = edit.op("conv", &arguments)?;
            let back = layout.leave(edit, product, &ty)?;
            edit.replace(result, back)
        })
        .with(SLOW.found(format!("{op_type} with a constant weight")))
    }
}

/// The weight of a linear, \[N, K\], or of a matmul, as a kernel \[N, K, 1, 1\].
fn kernel(block: &Block<'_>, op: &Operation, weight: &Weight<'_>) -> Result<Piece, String> {
    if op.op_type() == "linear" {
        return weight.with_ones(2, 2);
    }
    let flag = |parameter| {
        block
            .bool_or(op, parameter, false)
            .ok_or("whether it transposes is not known")
    };
    if flag("transpose_x")? {
        return Err("it transposes its operand".to_owned());
    }
    let shape = weight
        .shape()
        .ok_or("the shape of the weight is not known")?;
    let [batch @ .., _, _] = shape.as_slice() else {
        return Err("the constant is no matrix".to_owned());
    };
    if batch.iter().any(|size| *size != 1) {
        return Err("the constant is more than one matrix".to_owned());
    }
    if flag("transpose_y")? {
        weight.with_ones(2, 2)
    } else {
        weight.transposed(block, 2)
    }
}
