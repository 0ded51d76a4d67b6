//! fuse-casts: casts through a type that holds every value of the first one are one cast, or none.

mod chain;
mod island;

use serde::{Deserialize, Serialize};

use crate::ir::{DType, NodeId};
use crate::ops::Opset;
use crate::pass::options::{self, OptionError, OptionMap};
use crate::pass::{Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Target};

/// The pass.
pub(super) struct FuseCasts;

static META: Meta = Meta {
    id: "fuse-casts",
    family: Family::Cleanup,
    summary: "casts there and back again go, also across layout operations, if no value changes",
    exactness: Exactness::Exact,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Documented,
    catalog: &[],
    default: true,
    after: &[],
    page: include_str!("README.md"),
};

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    /// Also turn fp16 → fp32 → relu, abs, maximum and the like → fp16 into fp16.
    through_exact_ops: bool,
}

impl Pass for FuseCasts {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn options(&self) -> OptionMap {
        options::defaults::<Options>()
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        Ok(Box::new(Casts(options::read(META.id, options)?)))
    }
}

struct Casts(Options);

impl Matcher for Casts {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let Some(x) = block
            .op_of_type(node, "cast")
            .and_then(|outer| outer.value("x"))
        else {
            return Attempt::NoMatch;
        };
        match block.producer_of_type(x, "cast") {
            Some(inner) => chain::attempt(block, node, x, inner),
            None => island::attempt(block, node, x, self.0.through_exact_ops),
        }
    }
}

/// Whether every value of type `a`, infinities and NaN included, is a value of type `b`.
///
/// By the widths of significand and exponent: fp16 has 11 bits and so holds integers up to 2048,
/// fp32 has 24 bits and holds integers up to 2^24.
fn holds(b: DType, a: DType) -> bool {
    use DType::{Bool, Float16, Float32, Int8, Int16, Int32, UInt8, UInt16};
    if a == b {
        return true;
    }
    match a {
        Bool => matches!(b, Float16 | Float32 | Int8 | UInt8 | Int16 | UInt16 | Int32),
        Int8 => matches!(b, Float16 | Float32 | Int16 | Int32),
        UInt8 => matches!(b, Float16 | Float32 | Int16 | UInt16 | Int32),
        Int16 | UInt16 => matches!(b, Float32 | Int32),
        Float16 => b == Float32,
        _ => false,
    }
}

/// The miss of a cast through a type that loses values.
fn loses(at: NodeId, through: DType, from: DType) -> Attempt {
    Attempt::missed(
        at,
        format!("{through} does not hold every {from} value: the casts change some"),
    )
}
