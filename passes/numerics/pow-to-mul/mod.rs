//! pow-to-mul: a power with a constant exponent becomes products, roots or a quotient.

use serde::{Deserialize, Serialize};

use crate::ir::{Binding, DType, NodeId, Operation, ValueId};
use crate::ops::Opset;
use crate::pass::options::{self, OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Direction, Edit, EditError, Evidence, Exactness, Family, Matcher, Meta, Pass,
    Rule, Severities, Severity, Target,
};

/// The pass.
pub(super) struct PowToMul;

static META: Meta = Meta {
    id: "pow-to-mul",
    family: Family::Numerics,
    summary: "pow with a constant exponent becomes products, sqrt, rsqrt or a quotient",
    exactness: Exactness::Real,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &[],
    default: true,
    after: &[],
    page: include_str!("README.md"),
};

const POW: Rule = Rule {
    id: "pow",
    summary: "pow with a constant exponent that products or roots can take the place of",
    why: "Language models on the Neural Engine wrote broken text while their normalization squared \
          with pow, and no longer did with mul (SqueezeBits, Core ML, chip not named); after \
          conversion pow(x, 2) was wrong near 100 where x * x was right (coremltools issue 2601).",
    help: "pow-to-mul rewrites it; or write x * x, sqrt or a quotient where the model is made.",
    evidence: META.evidence,
    sources: &[
        "https://blog.squeezebits.com/disaggregated-inference-on-apple-silicon-npu-prefill-and-gpu-decode-67176",
        "https://github.com/apple/coremltools/issues/2601",
    ],
    severity: Severity::Warning.everywhere(),
    catalog: &[],
};

/// On the private interface `pow(x, −0.5)` is what runs, and `rsqrt` is reported to be refused.
const INVERSE_ROOT: Severities = &[(Target::CoreMl, Severity::Warning)];
const INVERSE_ROOT_IN_FP32: Severities = &[(Target::CoreMl, Severity::Info)];

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    /// The largest integer exponent that is written as products.
    max_exponent: u32,
    /// Whether −0.5 becomes `rsqrt`.
    rsqrt: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_exponent: 4,
            rsqrt: true,
        }
    }
}

impl Pass for PowToMul {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[POW]
    }

    fn options(&self) -> OptionMap {
        options::defaults::<Options>()
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        Ok(Box::new(Powers(options::read(META.id, options)?)))
    }
}

struct Powers(Options);

/// What a power becomes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// The base itself.
    Base,
    /// Products, by square and multiply.
    Product(u32),
    /// `sqrt(x)`.
    Root,
    /// `rsqrt(x, epsilon = 0)`.
    InverseRoot,
    /// `real_div(1, x)`; not `inverse`, whose default epsilon is 1e-4.
    Quotient,
    /// `abs` of the base of an inner square: `sqrt(x²)` is |x|, never x.
    Absolute,
}

impl Matcher for Powers {
    /// The last first: a root of a square is seen before the square becomes a product.
    fn direction(&self) -> Direction {
        Direction::Backward
    }

    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let Some(op) = block.op(node) else {
            return Attempt::NoMatch;
        };
        match op.op_type() {
            "sqrt" => match op.value("x").and_then(|x| lone_square(block, x)) {
                Some((base, _)) => rewrite(block, node, base, Form::Absolute, "sqrt(pow(x, 2))"),
                None => Attempt::NoMatch,
            },
            "pow" => self.power(block, op, node),
            _ => Attempt::NoMatch,
        }
    }
}

impl Powers {
    fn power(&self, block: &Block<'_>, op: &Operation, node: NodeId) -> Attempt {
        let Some(exponent) = block.uniform_of(op, "y") else {
            return Attempt::missed(node, "the exponent is not one constant number");
        };
        let exponent = exponent.value;
        let Some(base) = op.value("x") else {
            return Attempt::missed(node, "the base is a literal");
        };
        let (Some(base_type), Some(result_type)) =
            (block.tensor(base), block.tensor(ValueId::first(node)))
        else {
            return Attempt::missed(node, "the type of the base is not known");
        };
        if base_type != result_type {
            let why = "the exponent's shape gives the result another shape than the base";
            return Attempt::missed(node, why);
        }
        let Some(form) = self.form(exponent) else {
            let most = self.0.max_exponent;
            let why = if exponent > f64::from(most) && exponent.fract() == 0.0 {
                format!("exponent {exponent} is above the option `max_exponent` ({most})")
            } else {
                format!("exponent {exponent} has no form as products or roots")
            };
            return Attempt::missed(node, why);
        };
        if form == Form::InverseRoot && !self.0.rsqrt {
            return Attempt::missed(node, "it stays without the option `rsqrt`");
        }
        // The root takes both; as a product the square would be hidden from it.
        if form == Form::Product(2) && is_under_root(block, ValueId::first(node)) {
            return Attempt::NoMatch;
        }
        if !base_type.dtype.is_float() && !matches!(form, Form::Base | Form::Product(_)) {
            let why = format!(
                "exponent {exponent} of {} has no other form",
                base_type.dtype
            );
            return Attempt::missed(node, why);
        }
        let found = format!("pow(x, {exponent})");
        if form == Form::Root
            && let Some((inner, _)) = lone_square(block, base)
        {
            return rewrite(block, node, inner, Form::Absolute, "pow(pow(x, 2), 0.5)");
        }
        rewrite(block, node, base, form, &found)
    }

    fn form(&self, exponent: f64) -> Option<Form> {
        if exponent == 1.0 {
            Some(Form::Base)
        } else if exponent == 0.5 {
            Some(Form::Root)
        } else if exponent == -0.5 {
            Some(Form::InverseRoot)
        } else if exponent == -1.0 {
            Some(Form::Quotient)
        } else if exponent >= 2.0
            && exponent.fract() == 0.0
            && exponent <= f64::from(self.0.max_exponent)
        {
            Some(Form::Product(exponent as u32))
        } else {
            None
        }
    }
}

/// Whether the only use of a value is a `sqrt` or a power of 0.5 with a result of the same type.
fn is_under_root(block: &Block<'_>, value: ValueId) -> bool {
    let Some(user) = block.graph.only_user(value) else {
        return false;
    };
    let Some(op) = block.op(user).filter(|op| op.value("x") == Some(value)) else {
        return false;
    };
    let is_root = match op.op_type() {
        "sqrt" => true,
        "pow" => block.uniform_of(op, "y").is_some_and(|y| y.value == 0.5),
        _ => false,
    };
    is_root && block.tensor(ValueId::first(user)) == block.tensor(value)
}

/// The base of `pow(base, 2)`, if the value is that, has no other use, and has the base's type.
fn lone_square<'a>(block: &Block<'a>, value: ValueId) -> Option<(ValueId, &'a Operation)> {
    let square = block.producer_of_type(value, "pow")?;
    let base = square.value("x")?;
    let is_square = block.uniform_of(square, "y")?.value == 2.0
        && block.graph.used_once(value)
        && block.tensor(base)? == block.tensor(value)?;
    is_square.then_some((base, square))
}

fn rewrite(block: &Block<'_>, node: NodeId, base: ValueId, form: Form, found: &str) -> Attempt {
    let result = ValueId::first(node);
    let Some(dtype) = block.dtype(base) else {
        return Attempt::missed(node, "the type of the base is not known");
    };
    // An output must keep its name: where the base cannot take it, `identity` does.
    let must_copy = form == Form::Base && block.graph.can_replace(result, base).is_err();
    let what = match form {
        Form::Base if must_copy => format!("{found} becomes identity(x)"),
        Form::Base => format!("{found} becomes x"),
        Form::Product(2) => format!("{found} becomes mul(x, x)"),
        Form::Product(exponent) => {
            let products = product_count(exponent);
            format!("{found} becomes {products} products")
        }
        Form::Root => format!("{found} becomes sqrt(x)"),
        Form::InverseRoot => format!("{found} becomes rsqrt(x, epsilon = 0)"),
        Form::Quotient => format!("{found} becomes real_div(1, x)"),
        Form::Absolute => format!("{found} becomes abs(x)"),
    };
    let mut finding = POW.found(found).parameter("y");
    // What is known to be wrong was seen in fp16; fp32 does not run on the Neural Engine.
    let is_half = dtype == DType::Float16;
    match (form, is_half) {
        (Form::InverseRoot, true) => finding = finding.severities(INVERSE_ROOT),
        (Form::InverseRoot, false) => finding = finding.severities(INVERSE_ROOT_IN_FP32),
        (_, true) => {}
        (_, false) => finding = finding.severity(Severity::Info),
    }
    let rewrite = Attempt::matched(what, move |edit| {
        let new = match form {
            Form::Base if must_copy => edit.op("identity", &[("x", Binding::Value(base))])?,
            Form::Base => base,
            Form::Product(exponent) => power(edit, base, exponent)?,
            Form::Root => edit.op("sqrt", &[("x", Binding::Value(base))])?,
            Form::InverseRoot => inverse_root(edit, base, dtype)?,
            Form::Quotient => {
                let one = edit.scalar(dtype, 1.0)?;
                edit.op("real_div", &[("x", one), ("y", Binding::Value(base))])?
            }
            Form::Absolute => edit.op("abs", &[("x", Binding::Value(base))])?,
        };
        edit.replace(result, new)
    });
    rewrite.with(finding)
}

fn inverse_root(edit: &mut Edit<'_>, base: ValueId, dtype: DType) -> Result<ValueId, EditError> {
    let epsilon = edit.scalar(dtype, 0.0)?;
    edit.op(
        "rsqrt",
        &[("x", Binding::Value(base)), ("epsilon", epsilon)],
    )
}

/// Products that square and multiply needs: one for each bit below the highest, one more for each
/// of those that is set.
fn product_count(exponent: u32) -> u32 {
    exponent.ilog2() + exponent.count_ones() - 1
}

/// x^exponent for exponent ≥ 2, from the highest bit down. Every intermediate is a lower power of
/// x than the result, so none overflows or goes subnormal where the result does not.
fn power(edit: &mut Edit<'_>, base: ValueId, exponent: u32) -> Result<ValueId, EditError> {
    let mut product = base;
    for bit in (0..exponent.ilog2()).rev() {
        product = multiply(edit, product, product)?;
        if exponent >> bit & 1 == 1 {
            product = multiply(edit, product, base)?;
        }
    }
    Ok(product)
}

fn multiply(edit: &mut Edit<'_>, x: ValueId, y: ValueId) -> Result<ValueId, EditError> {
    edit.op("mul", &[("x", Binding::Value(x)), ("y", Binding::Value(y))])
}
