//! sink-attention-scale: the scale of attention scores is applied before their product, not after.

use std::collections::BTreeMap;

use half::f16;

use crate::analysis::range;
use crate::eval::ranges::PRODUCT_MAX;
use crate::ir::{Binding, DType, NodeId, Operation, ValueId, ValueType};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Found, Matcher, Meta, Pass, Rule, Severity, Target,
};

/// The pass.
pub(super) struct SinkAttentionScale;

static META: Meta = Meta {
    id: "sink-attention-scale",
    family: Family::Numerics,
    summary: "mul(matmul(q, k), c) with |c| < 1 becomes matmul(mul(q, c), k)",
    exactness: Exactness::Real,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const UNSCALED_LOGITS: Rule = Rule {
    id: "unscaled-logits",
    summary: "a product in fp16 that is scaled down after it, and may overflow before",
    why: "On M2 Pro and M5 a product is infinite from about 32752 on (ANEForge issue 115). Scores of attention \
          are usually far below, so this is something to know if a model gives infinities.",
    help: "sink-attention-scale scales the queries instead.",
    evidence: META.evidence,
    sources: &["https://github.com/sbryngelson/ANEForge/issues/115"],
    severity: Severity::Info.everywhere(),
    catalog: &[],
};

impl Pass for SinkAttentionScale {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[UNSCALED_LOGITS]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(Scale))
    }
}

struct Scale;

/// How many casts may stand between the product and the scale.
const MAX_CASTS: usize = 4;

impl Matcher for Scale {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let Some(op) = block.op(node) else {
            return Attempt::NoMatch;
        };
        // The side of the scores, and that of the scale.
        let sides: &[_] = match op.op_type() {
            "mul" => &[("x", "y"), ("y", "x")],
            "real_div" => &[("x", "y")],
            _ => return Attempt::NoMatch,
        };
        let found = sides.iter().find_map(|(scores, scale)| {
            let scores = Scores::of(block, op.value(scores)?)?;
            Some((scores, block.uniform_of(op, scale)?.value))
        });
        match found {
            Some((scores, number)) => {
                let attempt = sink(block, node, op, &scores, number);
                if block.dtype(scores.product) != Some(DType::Float16) {
                    return attempt;
                }
                let verb = if op.op_type() == "mul" {
                    "multiplied"
                } else {
                    "divided"
                };
                attempt.on_match(|| {
                    let what = format!("a product in fp16 is {verb} by {} after it", number as f32);
                    finding(what, range::measured(block, scores.product))
                })
            }
            None => Attempt::NoMatch,
        }
    }
}

/// What the linter says of a product, of which this peak was measured.
fn finding(what: String, peak: Option<f64>) -> Found {
    match peak {
        None => UNSCALED_LOGITS.found(what),
        Some(peak) if peak >= PRODUCT_MAX => UNSCALED_LOGITS
            .found(format!(
                "{what}; it was measured up to {peak:.0}, and is reported to be infinite from 32752 on"
            ))
            .severity(Severity::Error),
        Some(peak) => UNSCALED_LOGITS.found(format!(
            "{what}; it was measured up to {peak:.1}, below 32752"
        )),
    }
}

/// The product of queries and keys, as the scale sees it.
struct Scores {
    /// The `matmul`.
    product: ValueId,
    /// The values that casts make of it, the first one first.
    casts: Vec<ValueId>,
}

impl Scores {
    /// A product of two values that are computed, behind casts.
    fn of(block: &Block<'_>, mut value: ValueId) -> Option<Self> {
        let mut casts = Vec::new();
        while let Some(cast) = block.producer_of_type(value, "cast") {
            if casts.len() == MAX_CASTS {
                return None;
            }
            casts.push(value);
            value = cast.value("x")?;
        }
        casts.reverse();
        let product = block.producer_of_type(value, "matmul")?;
        // A constant operand is a weight, and this is no attention.
        let computed = ["x", "y"].into_iter().all(|side| {
            product.value(side).is_some_and(|value| {
                let makes = block.op(value.node).map(Operation::op_type);
                block.constant(value).is_none()
                    && !makes.is_some_and(|makes| makes.starts_with("constexpr_"))
            })
        });
        computed.then_some(Self {
            product: value,
            casts,
        })
    }
}

fn sink(block: &Block<'_>, node: NodeId, op: &Operation, scores: &Scores, number: f64) -> Attempt {
    let is_product = op.op_type() == "mul";
    let shrinks = if is_product {
        number.abs() < 1.0
    } else {
        number.abs() > 1.0
    };
    let verb = if is_product { "multiplied" } else { "divided" };
    let shown = number as f32;
    if !shrinks {
        let why = format!("the product is {verb} by {shown}, which makes it no smaller");
        return Attempt::missed(node, why);
    }
    let result = ValueId::first(node);
    let product = scores.product;
    let Some(matmul) = block.op(product.node) else {
        return Attempt::NoMatch;
    };
    let (Some(query), Some(dtype)) = (matmul.value("x"), block.dtype(product)) else {
        return Attempt::NoMatch;
    };
    let fits = match dtype {
        DType::Float16 => {
            let half = f16::from_f64(number);
            half.is_normal() && half.to_f64() == number
        }
        DType::Float32 => (number as f32).is_normal() && f64::from(number as f32) == number,
        _ => return Attempt::missed(product.node, "the product is not one of floats"),
    };
    if !fits {
        let why = format!("{shown} is no normal {dtype} number");
        return Attempt::missed(node, why);
    }
    let between = std::iter::once(product).chain(scores.casts.iter().copied());
    for value in between {
        if !block.graph.used_once(value) {
            let why = "the scores before the scale have other uses";
            return Attempt::missed(value.node, why);
        }
        let float = matches!(block.dtype(value), Some(DType::Float16 | DType::Float32));
        if !float {
            return Attempt::missed(value.node, "a cast makes the scores no floats");
        }
    }
    let shape = |value| block.tensor(value).map(|ty| &ty.dims);
    if shape(result).is_none() || shape(result) != shape(product) {
        let why = "the scale's shape makes the result larger than the product";
        return Attempt::missed(node, why);
    }
    let mut types: Vec<Option<ValueType>> = vec![block.graph.ty(product).cloned()];
    let mut casts = Vec::new();
    for value in &scores.casts {
        let dtype = block.op(value.node).and_then(|cast| cast.binding("dtype"));
        casts.push(dtype.cloned().unwrap_or(Binding::Absent));
        types.push(block.graph.ty(*value).cloned());
    }
    let arguments: BTreeMap<String, Vec<Binding>> = matmul
        .arguments()
        .iter()
        .map(|argument| (argument.parameter.clone(), argument.bindings.clone()))
        .collect();
    let op_type = op.op_type().to_owned();
    let what = format!("a product {verb} by {shown} becomes one of queries {verb} by it");
    Attempt::matched(what, move |edit| {
        let number = edit.scalar(dtype, number)?;
        let query = edit.op(&op_type, &[("x", Binding::Value(query)), ("y", number)])?;
        let mut arguments = arguments;
        arguments.insert("x".to_owned(), vec![Binding::Value(query)]);
        let mut new = ValueId::first(edit.variadic_op("matmul", arguments)?);
        let mut types = types.into_iter();
        let mut casts = casts.into_iter();
        loop {
            // What the program declares is kept, where less can be inferred.
            if let Some(ty) = types.next().flatten() {
                edit.retype(new, ty);
            }
            let Some(dtype) = casts.next() else { break };
            new = edit.op("cast", &[("x", Binding::Value(new)), ("dtype", dtype)])?;
        }
        edit.replace(result, new)
    })
}
