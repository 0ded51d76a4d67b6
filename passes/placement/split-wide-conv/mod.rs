//! split-wide-conv: products of very many input channels become sums over groups of channels.

use serde::{Deserialize, Serialize};

use crate::analysis::product::Product;
use crate::ir::{Binding, NodeId, Value, ValueId};
use crate::ops::Opset;
use crate::pass::options::{self, OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Found, Matcher, Meta, Pass, Rule, Severity, Target,
};

/// The pass.
pub(super) struct SplitWideConv;

static META: Meta = Meta {
    id: "split-wide-conv",
    family: Family::Placement,
    summary: "conv and linear of more than max_channels input channels become sums over groups",
    exactness: Exactness::Real,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &["orion-16"],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const WIDE: Rule = Rule {
    id: "split-wide-conv",
    summary: "a product of very many input channels",
    why: "The Neural Engine's compiler rejects a convolution of 32 000 input channels, in Orion's row 16 \
          and in maderix/ANE, where as many output channels run. Its messages give 16 384 as the most \
          that the last two dimensions may have.",
    help: "split-wide-conv makes it a sum over groups of channels.",
    evidence: META.evidence,
    sources: &[
        "https://github.com/mechramc/Orion",
        "https://github.com/maderix/ANE",
    ],
    severity: Severity::Warning.everywhere(),
    catalog: META.catalog,
};

#[derive(Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    /// Input channels that a product may have.
    max_channels: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_channels: 16_384,
        }
    }
}

impl Pass for SplitWideConv {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[WIDE]
    }

    fn options(&self) -> OptionMap {
        options::defaults::<Options>()
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        let options: Options = options::read(META.id, options)?;
        if options.max_channels == 0 {
            return Err(OptionError {
                pass: META.id,
                why: "option `max_channels`: at least 1".to_owned(),
            });
        }
        Ok(Box::new(Split(options)))
    }
}

struct Split(Options);

impl Matcher for Split {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let Some((op, x)) = block
            .op(node)
            .filter(|op| ["conv", "linear"].contains(&op.op_type()))
            .and_then(|op| Some((op, op.value("x")?)))
        else {
            return Attempt::NoMatch;
        };
        let max = self.0.max_channels;
        let Some(dims) = block.tensor(x).map(|ty| ty.dims.clone()) else {
            return Attempt::NoMatch;
        };
        let axis = match op.op_type() {
            "conv" => Some(1),
            _ => dims.len().checked_sub(1),
        };
        // The size that x declares may be unknown, and then the weight knows it.
        let declared = axis.and_then(|axis| dims.get(axis)?.size());
        if declared.is_some_and(|size| size <= max) {
            return Attempt::NoMatch;
        }
        let product = match Product::of(block, node, x) {
            Ok(product) if product.size <= max => return Attempt::NoMatch,
            Ok(product) => product,
            Err(_) if declared.is_none() => return Attempt::NoMatch,
            Err(why) => {
                let found = declared.map(|size| found(op.op_type(), size));
                let missed = Attempt::missed(node, why);
                return found.into_iter().fold(missed, Attempt::with);
            }
        };
        let found = found(op.op_type(), product.size);
        let Some(starts) = i32::try_from(product.size)
            .ok()
            .map(|size| groups(size, product.size.div_ceil(max)))
        else {
            return Attempt::missed(node, "it has more channels than an int32 can count")
                .with(found);
        };
        let ends: Vec<u64> = starts
            .iter()
            .map(|(begin, size)| (begin + size) as u64)
            .collect();
        let sum = match product.sum(block, &ends) {
            Ok(sum) => sum,
            Err(why) => return Attempt::missed(node, why).with(found),
        };
        let result = ValueId::first(node);
        let (rank, axis) = (dims.len(), product.axis);
        let what = format!(
            "{} input channels of {} become {} groups",
            product.size,
            op.op_type(),
            starts.len()
        );
        Attempt::matched(what, move |edit| {
            let mut parts = Vec::new();
            for (begin, size) in starts {
                let mut begins = vec![0; rank];
                let mut sizes = vec![-1; rank];
                begins[axis] = begin;
                sizes[axis] = size;
                let begins = edit.constant(Value::int32s(&begins));
                let sizes = edit.constant(Value::int32s(&sizes));
                let x = Binding::Value(x);
                let arguments = [("x", x), ("begin", begins), ("size", sizes)];
                parts.push(edit.op("slice_by_size", &arguments)?);
            }
            let sum = sum.make(edit, &parts)?;
            edit.replace(result, sum)
        })
        .with(found)
    }
}

fn found(op_type: &str, channels: u64) -> Found {
    WIDE.found(format!("`{op_type}` of {channels} input channels"))
        .parameter("x")
}

/// Begin and size of so many groups that are as equal as they can be; the first are the larger.
fn groups(size: i32, count: u64) -> Vec<(i32, i32)> {
    let count = i32::try_from(count).unwrap_or(size).max(1);
    let (each, rest) = (size / count, size % count);
    let mut begin = 0;
    (0..count)
        .map(|group| {
            let size = each + i32::from(group < rest);
            begin += size;
            (begin - size, size)
        })
        .collect()
}
