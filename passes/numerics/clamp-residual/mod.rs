//! clamp-residual: every sum of the residual stream is kept within a bound.

use std::collections::HashSet;

use half::f16;
use serde::{Deserialize, Serialize};

use crate::analysis::residual;
use crate::eval::ranges::HALF_MAX;
use crate::ir::{Binding, DType, NodeId, Operation, ValueId};
use crate::ops::Opset;
use crate::pass::options::{self, OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Needs, Pass, Target,
};

/// The pass.
pub(super) struct ClampResidual;

static META: Meta = Meta {
    id: "clamp-residual",
    family: Family::Numerics,
    summary: "after each addition to the residual stream, a clip keeps it within ±55 000",
    exactness: Exactness::Real,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Reported,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

#[derive(Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    /// The bound.
    value: f64,
    /// Only sums whose measured peak is above this; 0 for all of them.
    only_above: f64,
    /// A preflight report with the peaks; the command line reads it.
    report: String,
}

impl Default for Options {
    /// Source of the bound: ANEMLL, docs/FP16_SCALING.md, option A.
    fn default() -> Self {
        Self {
            value: 55_000.0,
            only_above: 0.0,
            report: String::new(),
        }
    }
}

impl Options {
    fn read(options: &OptionMap) -> Result<Self, OptionError> {
        let read: Self = options::read(META.id, options)?;
        let refused = |why: String| Err(OptionError { pass: META.id, why });
        if !(read.value > 0.0 && read.value <= HALF_MAX) {
            return refused(format!(
                "option `value`: {} is not above 0 and at most {HALF_MAX}",
                read.value
            ));
        }
        if !(read.only_above >= 0.0 && read.only_above.is_finite()) {
            let why = format!(
                "option `only_above`: {} is no finite magnitude",
                read.only_above
            );
            return refused(why);
        }
        Ok(read)
    }
}

impl Pass for ClampResidual {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn options(&self) -> OptionMap {
        options::defaults::<Options>()
    }

    fn needs(&self, options: &OptionMap) -> Result<Needs, OptionError> {
        let ranges = Options::read(options)?.only_above > 0.0;
        Ok(Needs {
            ranges,
            samples: false,
        })
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        let options = Options::read(options)?;
        Ok(Box::new(Sums {
            options,
            stream: None,
        }))
    }
}

/// The matcher of one block.
struct Sums {
    options: Options,
    /// The additions to the stream, once there was an addition. What the rewrites of a sweep add does
    /// not change which these are.
    stream: Option<HashSet<NodeId>>,
}

/// What passes the stream on and keeps its elements.
const COPIES: [&str; 6] = [
    "cast",
    "identity",
    "reshape",
    "transpose",
    "expand_dims",
    "squeeze",
];

impl Matcher for Sums {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        if block.op_of_type(node, "add").is_none() {
            return Attempt::NoMatch;
        }
        let sum = ValueId::first(node);
        let Some(dtype) = block
            .dtype(sum)
            .filter(|dtype| bound(1.0, *dtype).is_some())
        else {
            return Attempt::NoMatch;
        };
        let is_first = self.stream.is_none();
        let stream = self.stream.get_or_insert_with(|| {
            let stream = residual::longest(block);
            let writes = stream.into_iter().flat_map(|stream| stream.writes);
            writes.map(|write| write.add).collect()
        });
        if !stream.contains(&node) {
            // Said once, at the first addition; nobody looks for a stream in the block of a loop.
            if is_first && stream.is_empty() && block.outer.is_none() {
                let why = "there is no residual stream: no two additions of which one goes on from the \
                           other and from what a norm reads";
                return Attempt::missed(node, why);
            }
            return Attempt::NoMatch;
        }
        let Options {
            value, only_above, ..
        } = self.options;
        if is_clipped(block, sum, value) {
            return Attempt::NoEffect;
        }
        let mut what = format!("the sum is kept within ±{value}");
        if only_above > 0.0 {
            let Some(range) = block.range(sum) else {
                return Attempt::missed(node, "no peak of this sum has been measured");
            };
            let is_finite = range.not_finite() == 0;
            if is_finite && range.peak <= only_above {
                return Attempt::NoEffect;
            }
            what = if is_finite {
                format!("{what}: its measured peak is {}", range.peak)
            } else {
                format!("{what}: it was not finite when measured")
            };
        }
        Attempt::matched(what, move |edit| {
            let alpha = edit.scalar(dtype, -value)?;
            let beta = edit.scalar(dtype, value)?;
            let arguments = [("x", Binding::Value(sum)), ("alpha", alpha), ("beta", beta)];
            let clip = edit.op("clip", &arguments)?;
            edit.replace(sum, clip)?;
            // The clip itself reads the sum.
            edit.bind(clip.node, "x", Some(vec![Binding::Value(sum)]));
            Ok(())
        })
    }
}

/// The bound as it is stored; `None` if the type is not one that a clip takes here.
fn bound(value: f64, dtype: DType) -> Option<f64> {
    match dtype {
        DType::Float16 => Some(f16::from_f64(value).to_f64()),
        DType::Float32 => Some(f64::from(value as f32)),
        _ => None,
    }
}

/// Whether everything that reads a value reads it through a clip to this bound or a lower one.
fn is_clipped(block: &Block<'_>, value: ValueId, limit: f64) -> bool {
    let mut pending = vec![value];
    let mut clips = 0;
    while let Some(value) = pending.pop() {
        if block.graph.is_output(value) {
            return false;
        }
        for reader in block.graph.uses(value) {
            let Some(op) = block.op(reader.user) else {
                return false;
            };
            if COPIES.contains(&op.op_type()) {
                pending.push(ValueId::first(reader.user));
            } else if op.op_type() == "clip" && is_within(block, op, limit) {
                clips += 1;
            } else {
                return false;
            }
        }
    }
    clips > 0
}

fn is_within(block: &Block<'_>, clip: &Operation, limit: f64) -> bool {
    let within = |parameter| {
        let found = block.uniform_of(clip, parameter);
        found.is_some_and(|found| {
            bound(limit, found.dtype).is_some_and(|limit| found.value.abs() <= limit)
        })
    };
    within("alpha") && within("beta")
}
