//! fix-modulo: a remainder by a constant is computed with floor.

use half::f16;

use crate::ir::{Binding, DType, NodeId, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Rule, Severity, Target,
};

/// The pass.
pub(super) struct FixModulo;

static META: Meta = Meta {
    id: "fix-modulo",
    family: Family::Numerics,
    summary: "mod(x, c) becomes x - c·floor(x/c), and mod(x, 1) becomes x - floor(x)",
    exactness: Exactness::Real,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const MODULO: Rule = Rule {
    id: "modulo",
    summary: "the remainder of a float",
    why: "A model computed (x / c) % 1 wrong through Core ML, with no error; x - floor(x) raised the \
          spectral correlation of its sound from 0.67 to 0.996 (CoreML-Models pull request 74). mod \
          does not run on the Neural Engine either.",
    help: "fix-modulo computes it with floor.",
    evidence: META.evidence,
    sources: &["https://github.com/john-rocky/CoreML-Models/pull/74"],
    severity: Severity::Warning.everywhere(),
    catalog: &[],
};

impl Pass for FixModulo {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[MODULO]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(Modulo))
    }
}

struct Modulo;

impl Matcher for Modulo {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let Some(op) = block.op_of_type(node, "mod") else {
            return Attempt::NoMatch;
        };
        let Some(x) = op.value("x") else {
            return Attempt::missed(node, "x is a literal");
        };
        let Some(ty) = block.tensor(x) else {
            return Attempt::missed(node, "the type of x is not known");
        };
        let dtype = ty.dtype;
        if !dtype.is_float() {
            return Attempt::missed(node, format!("the remainder of {dtype} is exact"));
        }
        let Some(divisor) = block.uniform_of(op, "y") else {
            return Attempt::missed(node, "the divisor is not one constant number");
        };
        let divisor = divisor.value;
        if let Err(why) = check(divisor, dtype) {
            return Attempt::missed(node, why);
        }
        let result = ValueId::first(node);
        if block.tensor(result) != Some(ty) {
            let why = "the divisor's shape gives the result another shape than x";
            return Attempt::missed(node, why);
        }
        let what = if divisor == 1.0 {
            "mod(x, 1) becomes x - floor(x)".to_owned()
        } else {
            format!("mod(x, {divisor}) becomes x - {divisor}·floor(x/{divisor})")
        };
        let finding = MODULO.found(format!("mod(x, {divisor}) of {dtype}"));
        let rewrite = Attempt::matched(what, move |edit| {
            let x = Binding::Value(x);
            let multiple = if divisor == 1.0 {
                edit.op("floor", &[("x", x.clone())])?
            } else {
                let divisor = edit.scalar(dtype, divisor)?;
                let quotient = edit.op("real_div", &[("x", x.clone()), ("y", divisor.clone())])?;
                let whole = edit.op("floor", &[("x", Binding::Value(quotient))])?;
                let multiple = edit.op("mul", &[("x", Binding::Value(whole)), ("y", divisor)])?;
                // Near the largest x the multiple beyond it is infinite.
                let alpha = edit.scalar(dtype, -largest(dtype))?;
                let beta = edit.scalar(dtype, largest(dtype))?;
                let multiple = Binding::Value(multiple);
                edit.op("clip", &[("x", multiple), ("alpha", alpha), ("beta", beta)])?
            };
            let new = edit.op("sub", &[("x", x), ("y", Binding::Value(multiple))])?;
            edit.replace(result, new)
        });
        rewrite.with(finding)
    }
}

/// The largest finite number of a type, fp16 or fp32.
fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::Float16 => f16::MAX.to_f64(),
        _ => f64::from(f32::MAX),
    }
}

/// Whether the remainder by this number can be computed with a quotient; if not, why.
fn check(divisor: f64, dtype: DType) -> Result<(), String> {
    // Not so for NaN.
    let is_finite = divisor.abs() <= largest(dtype);
    if !is_finite || divisor <= 0.0 {
        Err(format!("the divisor {divisor} is no positive number"))
    } else if divisor < 1.0 {
        Err(format!(
            "x/{divisor} can be infinite where the remainder is not"
        ))
    } else {
        Ok(())
    }
}
