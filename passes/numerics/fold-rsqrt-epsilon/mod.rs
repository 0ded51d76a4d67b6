//! fold-rsqrt-epsilon: an epsilon added before a reciprocal square root becomes its parameter.

use half::f16;
use serde::{Deserialize, Serialize};

use crate::ir::{Binding, DType, NodeId, Operation, ValueId};
use crate::ops::{Opset, registry};
use crate::pass::options::{self, OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Target, Uniform,
};

/// The pass.
pub(super) struct FoldRsqrtEpsilon;

static META: Meta = Meta {
    id: "fold-rsqrt-epsilon",
    family: Family::Numerics,
    summary: "rsqrt(add(v, c)) becomes rsqrt(v, epsilon = c), in fp32 where the opset allows",
    exactness: Exactness::Real,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &[],
    default: true,
    after: &["pow-to-mul"],
    page: include_str!("README.md"),
};

/// On the private interface a power is what runs, and `rsqrt` is reported to be refused.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    /// Whether roots that are written without `rsqrt` stay so.
    only_rsqrt: bool,
}

impl Pass for FoldRsqrtEpsilon {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn options(&self) -> OptionMap {
        options::defaults::<Options>()
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        Ok(Box::new(Fold(options::read(META.id, options)?)))
    }
}

/// The default epsilon of `rsqrt`, in x's type: in fp16 it rounds to zero. Source: coremltools'
/// op definition.
const DEFAULT_EPSILON: f64 = 1e-12;

struct Fold(Options);

/// A reciprocal square root in one of its spellings.
struct Root {
    /// What stands under the root.
    under: ValueId,
    /// Epsilon that the spelling itself adds.
    own_epsilon: f64,
    spelling: &'static str,
}

impl Matcher for Fold {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let Some(op) = block.op(node) else {
            return Attempt::NoMatch;
        };
        let root = match reciprocal_root(block, op, node) {
            Ok(Some(root)) => root,
            Ok(None) => return Attempt::NoMatch,
            Err(attempt) => return attempt,
        };
        let (under, cast) = match widening_cast(block, root.under) {
            Some((inner, cast)) => (inner, Some(cast)),
            None => (root.under, None),
        };
        let Some(sum) = block.producer_of_type(under, "add") else {
            return Attempt::NoMatch;
        };
        if self.0.only_rsqrt && op.op_type() != "rsqrt" {
            return Attempt::missed(node, "the option `only_rsqrt` is true");
        }
        let Some((value, guard)) = addend(block, sum) else {
            return Attempt::missed(under.node, "neither side of the add is one constant number");
        };
        if cast.is_some() && !block.graph.used_once(root.under) {
            return Attempt::missed(root.under.node, "the cast of the sum has other uses");
        }
        let sum = Sum {
            of: under,
            value,
            guard: guard.value,
            cast,
        };
        fold(block, node, &root, &sum)
    }
}

/// The reciprocal square root at this operation; an attempt if it is one that cannot be folded.
fn reciprocal_root(
    block: &Block<'_>,
    op: &Operation,
    node: NodeId,
) -> Result<Option<Root>, Attempt> {
    let found = match op.op_type() {
        "rsqrt" => {
            let Some(under) = op.value("x") else {
                return Ok(None);
            };
            let own_epsilon = match op.argument("epsilon") {
                None => default_epsilon(block.dtype(under)),
                Some(_) => match block.uniform_of(op, "epsilon") {
                    Some(epsilon) => epsilon.value,
                    None => return Err(Attempt::missed(node, "its own epsilon is not known")),
                },
            };
            Some(Root {
                under,
                own_epsilon,
                spelling: "rsqrt(add(v, c))",
            })
        }
        "real_div" => quotient_of_root(block, op)?,
        "pow" if block.uniform_of(op, "y").is_some_and(|y| y.value == -0.5) => {
            op.value("x").map(|under| Root {
                under,
                own_epsilon: 0.0,
                spelling: "pow(add(v, c), -0.5)",
            })
        }
        _ => None,
    };
    Ok(found)
}

/// `real_div(1, sqrt(s))` with the sqrt used only here.
fn quotient_of_root(block: &Block<'_>, op: &Operation) -> Result<Option<Root>, Attempt> {
    let one = block.uniform_of(op, "x").is_some_and(|x| x.value == 1.0);
    let Some(root) = op.value("y").filter(|_| one) else {
        return Ok(None);
    };
    let Some(under) = block
        .producer_of_type(root, "sqrt")
        .and_then(|sqrt| sqrt.value("x"))
    else {
        return Ok(None);
    };
    if block.producer_of_type(under, "add").is_some() && !block.graph.used_once(root) {
        return Err(Attempt::missed(root.node, "the sqrt has other uses"));
    }
    Ok(Some(Root {
        under,
        own_epsilon: 0.0,
        spelling: "real_div(1, sqrt(add(v, c)))",
    }))
}

fn default_epsilon(dtype: Option<DType>) -> f64 {
    match dtype {
        Some(DType::Float16) => f16::from_f64(DEFAULT_EPSILON).to_f64(),
        _ => f64::from(DEFAULT_EPSILON as f32),
    }
}

/// A value plus a constant number, under the root.
struct Sum {
    of: ValueId,
    value: ValueId,
    guard: f64,
    /// The `dtype` of the cast from fp16 to fp32 that stands between the sum and the root.
    cast: Option<Binding>,
}

/// What a cast from fp16 to fp32 is made of, and its `dtype`. Casting the value instead of the sum
/// changes no value; of a narrowing cast that cannot be said.
fn widening_cast(block: &Block<'_>, value: ValueId) -> Option<(ValueId, Binding)> {
    let cast = block.producer_of_type(value, "cast")?;
    let inner = cast.value("x")?;
    let widens =
        block.dtype(inner) == Some(DType::Float16) && block.dtype(value) == Some(DType::Float32);
    widens.then_some((inner, cast.binding("dtype")?.clone()))
}

/// The value and the constant number of an add, in either order.
fn addend(block: &Block<'_>, sum: &Operation) -> Option<(ValueId, Uniform)> {
    [("x", "y"), ("y", "x")]
        .into_iter()
        .find_map(|(value, guard)| Some((sum.value(value)?, block.uniform_of(sum, guard)?)))
}

fn fold(block: &Block<'_>, node: NodeId, root: &Root, sum: &Sum) -> Attempt {
    let (add, value) = (sum.of.node, sum.value);
    if sum.guard.is_nan() || sum.guard < 0.0 {
        return Attempt::missed(add, format!("{} is not a positive epsilon", sum.guard));
    }
    if !block.graph.used_once(sum.of) {
        return Attempt::missed(add, "the add has other uses");
    }
    let result = ValueId::first(node);
    if block.tensor(value).is_none() || block.tensor(value) != block.tensor(sum.of) {
        return Attempt::missed(
            add,
            "the constant's shape gives the sum another shape than the value",
        );
    }
    if block.tensor(root.under) != block.tensor(result) {
        return Attempt::missed(
            node,
            "the result has another shape than what stands under the root",
        );
    }
    let (Some(dtype), Some(opset)) = (block.dtype(root.under), block.opset) else {
        return Attempt::missed(node, "the opset is not known");
    };
    let epsilon = sum.guard + root.own_epsilon;
    // With x fp16, CoreML7 and later take an epsilon of either type; before, it has x's type.
    let own_type = registry::domain_mates("rsqrt", opset, "epsilon")
        .is_none_or(|mut mates| mates.any(|mate| mate == "x"));
    let stored = if own_type { dtype } else { DType::Float32 };
    if !is_normal(epsilon, stored) && epsilon != 0.0 {
        let why = if own_type && stored == DType::Float16 {
            format!(", and {} wants it in x's type", opset.name())
        } else {
            String::new()
        };
        return Attempt::missed(
            add,
            format!("epsilon {epsilon:e} is no normal {stored} number{why}"),
        );
    }
    let what = format!(
        "{} becomes rsqrt(v, epsilon = {stored} {})",
        root.spelling,
        shortest(epsilon, stored)
    );
    let cast = sum.cast.clone();
    Attempt::matched(what, move |edit| {
        let value = match cast {
            Some(dtype) => edit.op("cast", &[("x", Binding::Value(value)), ("dtype", dtype)])?,
            None => value,
        };
        let epsilon = edit.scalar(stored, epsilon)?;
        let new = edit.op(
            "rsqrt",
            &[("x", Binding::Value(value)), ("epsilon", epsilon)],
        )?;
        edit.replace(result, new)
    })
}

/// Whether the number, rounded to the type, is finite and neither zero nor subnormal.
fn is_normal(value: f64, dtype: DType) -> bool {
    match dtype {
        DType::Float16 => f16::from_f64(value).is_normal(),
        DType::Float32 => (value as f32).is_normal(),
        _ => false,
    }
}

/// The number as stored, in as few digits as tell it apart.
fn shortest(value: f64, dtype: DType) -> String {
    match dtype {
        DType::Float16 => format!("{:e}", f16::from_f64(value).to_f32()),
        _ => format!("{:e}", value as f32),
    }
}
