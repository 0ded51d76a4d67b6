//! gelu-tanh: the exact gelu becomes the form with tanh.

use serde::{Deserialize, Serialize};

use crate::ir::{Binding, DType, NodeId, Operation, Value, ValueId};
use crate::ops::Opset;
use crate::pass::options::{self, OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Direction, Edit, EditError, Evidence, Exactness, Family, Found, Matcher, Meta,
    Pass, Rule, Severity, Target,
};

mod spelled;

/// The pass.
pub(super) struct GeluTanh;

static META: Meta = Meta {
    id: "gelu-tanh",
    family: Family::Numerics,
    summary: "the exact gelu becomes the one with tanh, as a mode or as primitive ops",
    exactness: Exactness::Approx(4.74e-4),
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Disputed,
    catalog: &["orion-10"],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    /// What is written.
    form: Form,
}

#[derive(Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Form {
    /// `gelu` with the mode `TANH_APPROXIMATION`.
    #[default]
    Mode,
    /// Products, sums, `clip` and `tanh`.
    Primitive,
}

const GELU: Rule = Rule {
    id: "gelu-tanh",
    summary: "gelu as an operation",
    why: "A program with gelu(x) fails to compile on the private interface (Orion, row 10). Its call \
          gives no mode, and others have gelu with a mode accepted; Core ML runs it on the Neural \
          Engine.",
    help: "gelu-tanh writes it with tanh (form=primitive), or as the mode that is given.",
    evidence: META.evidence,
    sources: &["https://github.com/mechramc/Orion"],
    severity: &[
        (Target::CoreMl, Severity::Info),
        (Target::AneDirect, Severity::Error),
    ],
    catalog: META.catalog,
};

impl Pass for GeluTanh {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[GELU]
    }

    fn options(&self) -> OptionMap {
        options::defaults::<Options>()
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        let options: Options = options::read(META.id, options)?;
        Ok(Box::new(Gelu(options.form)))
    }
}

struct Gelu(Form);

/// The mode that a `gelu` has unless another is given. Source: coremltools' op definition.
const DEFAULT_MODE: &str = "EXACT";
const TANH_MODE: &str = "TANH_APPROXIMATION";

impl Matcher for Gelu {
    /// The last first: the product that ends a spelled-out gelu is seen before those inside it.
    fn direction(&self) -> Direction {
        Direction::Backward
    }

    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let Some(op) = block.op(node) else {
            return Attempt::NoMatch;
        };
        match op.op_type() {
            "gelu" => self.operation(block, op, node).with(finding(op)),
            "mul" | "real_div" => match spelled::gelu_of(block, node) {
                Ok(Some(x)) => self.rewrite(block, node, x, "0.5 * x * (1 + erf(x / sqrt(2)))"),
                Ok(None) => Attempt::NoMatch,
                Err(attempt) => attempt,
            },
            _ => Attempt::NoMatch,
        }
    }
}

/// What the linter says of a gelu; through Core ML only that its mode is not given.
fn finding(op: &Operation) -> Found {
    if op.argument("mode").is_some() {
        let found = GELU.found("`gelu` with a mode").parameter("mode");
        return found.severities(&[(Target::AneDirect, Severity::Error)]);
    }
    GELU.found("`gelu` without a mode")
}

impl Gelu {
    fn operation(&self, block: &Block<'_>, op: &Operation, node: NodeId) -> Attempt {
        let mode = match op.argument("mode") {
            None => Some(DEFAULT_MODE),
            Some(_) => block.constant_of(op, "mode").and_then(Value::as_str),
        };
        let found = match (mode, self.0) {
            (Some(DEFAULT_MODE), _) => "the exact gelu",
            (Some(TANH_MODE), Form::Primitive) => "gelu with tanh",
            (Some(TANH_MODE), Form::Mode) => return Attempt::NoMatch,
            (Some(other), _) => {
                return Attempt::missed(node, format!("its mode {other} is another function"));
            }
            (None, _) => return Attempt::missed(node, "its mode is not known"),
        };
        match op.value("x") {
            Some(x) => self.rewrite(block, node, x, found),
            None => Attempt::missed(node, "its operand is a literal"),
        }
    }

    fn rewrite(&self, block: &Block<'_>, node: NodeId, x: ValueId, found: &str) -> Attempt {
        let result = ValueId::first(node);
        if block.tensor(x).is_none() || block.tensor(x) != block.tensor(result) {
            return Attempt::missed(node, "the result has another shape or type than x");
        }
        let Some(dtype) = block.dtype(x).filter(|dtype| dtype.is_float()) else {
            return Attempt::missed(node, "x is not a tensor of floats");
        };
        let form = self.0;
        let what = match form {
            Form::Mode => format!("{found} becomes gelu(x, mode = {TANH_MODE})"),
            Form::Primitive => format!("{found} becomes primitive ops with tanh"),
        };
        Attempt::matched(what, move |edit| {
            let new = match form {
                Form::Mode => {
                    let mode = edit.constant(Value::string(TANH_MODE));
                    edit.op("gelu", &[("x", Binding::Value(x)), ("mode", mode)])?
                }
                Form::Primitive => primitive(edit, x, dtype)?,
            };
            edit.replace(result, new)
        })
    }
}

/// tanh(√(2/π) · (c + 0.044715 · c³)) is ±1 in fp16 and in fp32 long before |c| is this large.
const LIMIT: f64 = 10.0;
/// The factor of the cube. Source: the definition of the form, in the paper on gelu.
const CUBE: f64 = 0.044_715;

/// 0.5·x · (1 + tanh(√(2/π)·c · (1 + 0.044715·c²))) with c = x, kept within ±10. The cube is never
/// formed, and no intermediate of c is above 44.
fn primitive(edit: &mut Edit<'_>, x: ValueId, dtype: DType) -> Result<ValueId, EditError> {
    let (low, high) = (edit.scalar(dtype, -LIMIT)?, edit.scalar(dtype, LIMIT)?);
    let kept = edit.op(
        "clip",
        &[("x", Binding::Value(x)), ("alpha", low), ("beta", high)],
    )?;
    let one = edit.scalar(dtype, 1.0)?;
    let cube = edit.scalar(dtype, CUBE)?;
    let scale = edit.scalar(dtype, std::f64::consts::FRAC_2_PI.sqrt())?;
    let half = edit.scalar(dtype, 0.5)?;
    let square = binary(edit, "mul", kept, Binding::Value(kept))?;
    let term = binary(edit, "mul", square, cube)?;
    let sum = binary(edit, "add", term, one.clone())?;
    let scaled = binary(edit, "mul", kept, scale)?;
    let inner = binary(edit, "mul", scaled, Binding::Value(sum))?;
    let tanh = edit.op("tanh", &[("x", Binding::Value(inner))])?;
    let gate = binary(edit, "add", tanh, one)?;
    let halved = binary(edit, "mul", x, half)?;
    binary(edit, "mul", halved, Binding::Value(gate))
}

fn binary(
    edit: &mut Edit<'_>,
    op_type: &str,
    x: ValueId,
    y: Binding,
) -> Result<ValueId, EditError> {
    edit.op(op_type, &[("x", Binding::Value(x)), ("y", y)])
}
