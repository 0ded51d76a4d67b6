//! split-conv-bias: the bias of a convolution or linear becomes an add of its own.

use crate::analysis::product::unknown_parameter;
use crate::ir::{Binding, Dim, NodeId, Operation, TensorType, Value, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Rule, Severity, Target,
};

/// The pass.
pub(super) struct SplitConvBias;

static META: Meta = Meta {
    id: "split-conv-bias",
    family: Family::Placement,
    summary: "the bias of conv and linear becomes an add of a constant; one of zeros goes",
    exactness: Exactness::Real,
    since: Opset::CoreML5,
    targets: &[Target::AneDirect],
    evidence: Evidence::Disputed,
    catalog: &["orion-13"],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const CONV_BIAS: Rule = Rule {
    id: "split-conv-bias",
    summary: "a convolution or a linear layer with a bias",
    why: "The private interface is reported to know no bias in conv (Orion, row 13), without a run that \
          shows it; a comment in Orion's own tree says the opposite. Core ML runs it on the Neural \
          Engine.",
    help: "split-conv-bias writes it as an add; not for Core ML.",
    evidence: META.evidence,
    sources: &["https://github.com/mechramc/Orion"],
    severity: &[(Target::AneDirect, Severity::Error)],
    catalog: META.catalog,
};

impl Pass for SplitConvBias {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[CONV_BIAS]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(Split))
    }
}

struct Split;

impl Matcher for Split {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let attempt = split(block, node);
        let Some(op) = block.op(node).filter(|op| is_biased(op)) else {
            return attempt;
        };
        let found = CONV_BIAS
            .found(format!("`{}` has a bias", op.op_type()))
            .parameter("bias");
        // The report is about conv.
        attempt.with(match op.op_type() {
            "conv" => found,
            _ => found.severities(&[(Target::AneDirect, Severity::Warning)]),
        })
    }
}

fn is_biased(op: &Operation) -> bool {
    ["conv", "linear"].contains(&op.op_type()) && op.argument("bias").is_some()
}

fn split(block: &Block<'_>, node: NodeId) -> Attempt {
    let Some(op) = block.op(node).filter(|op| is_biased(op)) else {
        return Attempt::NoMatch;
    };
    let op_type = op.op_type().to_owned();
    if block
        .uniform_of(op, "bias")
        .is_some_and(|bias| bias.value == 0.0)
    {
        let what = format!("the bias of {op_type}, all zeros, goes");
        return Attempt::matched(what, move |edit| {
            edit.bind(node, "bias", None);
            Ok(())
        });
    }
    let result = ValueId::first(node);
    let (Some(ty), Some(declared)) = (block.graph.ty(result).cloned(), block.tensor(result)) else {
        return Attempt::missed(node, "the type of the result is not known");
    };
    if let Some(parameter) = unknown_parameter(block, op) {
        let why = format!("nothing is known about its parameter `{parameter}`");
        return Attempt::missed(node, why);
    }
    let addend = match addend(block, op, declared) {
        Ok(addend) => addend,
        Err(why) => return Attempt::missed(node, why),
    };
    let arguments = op
        .arguments()
        .iter()
        .filter(|argument| argument.parameter != "bias")
        .map(|argument| (argument.parameter.clone(), argument.bindings.clone()))
        .collect();
    let what = format!("the bias of {op_type} becomes an add");
    Attempt::matched(what, move |edit| {
        let product = ValueId::first(edit.variadic_op(&op_type, arguments)?);
        edit.retype(product, ty);
        let addend = edit.constant(addend);
        let sum = edit.op("add", &[("x", Binding::Value(product)), ("y", addend)])?;
        edit.replace(result, sum)
    })
}

/// The bias as a constant of the result's rank, \[1, C, 1, …\] or \[…, 1, C\]; its data stays where it
/// is. Or why there is none.
fn addend(block: &Block<'_>, op: &Operation, result: &TensorType) -> Result<Value, String> {
    let bias = block
        .constant_of(op, "bias")
        .ok_or("its bias is not a constant")?;
    let ty = bias
        .tensor_type()
        .ok_or("the type of the bias is not known")?;
    let [channels] = ty.dims.as_slice() else {
        return Err("its bias is not of rank 1".to_owned());
    };
    if ty.dtype != result.dtype {
        return Err(format!(
            "its bias is {}, and the result is {}",
            ty.dtype, result.dtype
        ));
    }
    let rank = result.dims.len();
    let axis = match op.op_type() {
        "conv" => Some(1),
        _ => rank.checked_sub(1),
    };
    let mut dims = vec![Dim::Known(1); rank];
    *axis
        .and_then(|axis| dims.get_mut(axis))
        .ok_or("the rank of the result is not known")? = *channels;
    Ok(Value {
        ty: Some(TensorType::new(ty.dtype, dims).into()),
        ..bias.clone()
    })
}
