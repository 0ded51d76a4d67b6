//! image-scale: the scale of an image input that is applied in fp32 before the cast.

use crate::ir::{DType, Node, NodeId, Operation, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Rule, Severity, Target,
};

/// The check.
pub(super) struct ImageScale;

static META: Meta = Meta {
    id: "image-scale",
    family: Family::Placement,
    summary: "the scale of an image input that is applied in fp32 before the cast to fp16",
    exactness: Exactness::None,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const IMAGE_SCALE: Rule = Rule {
    id: "image-scale-fp32",
    summary: META.summary,
    why: "For the scale of an ImageType coremltools puts a mul in fp32 in front of the cast to fp16, which \
          keeps off the Neural Engine, and with it the first trip of the data (coremltools issue 2213).",
    help: "Cast first, or fold the scale into the weights of the first convolution.",
    evidence: META.evidence,
    sources: &["https://github.com/apple/coremltools/issues/2213"],
    severity: Severity::Info.everywhere(),
    catalog: &[],
};

/// Operations between an input and its cast, at most: a scale and a bias.
const MOST_STEPS: usize = 3;

impl Pass for ImageScale {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[IMAGE_SCALE]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(find))
    }
}

fn find(block: &Block<'_>, node: NodeId) -> Attempt {
    let Some(cast) = block.op_of_type(node, "cast") else {
        return Attempt::NoMatch;
    };
    if block.outer.is_some() || block.dtype(ValueId::first(node)) != Some(DType::Float16) {
        return Attempt::NoMatch;
    }
    let Some(mut value) = cast.value("x") else {
        return Attempt::NoMatch;
    };
    let mut steps = Vec::new();
    for _ in 0..=MOST_STEPS {
        if block.dtype(value) != Some(DType::Float32) {
            return Attempt::NoMatch;
        }
        match block.graph.node(value.node) {
            Some(Node::Input(named, _)) => {
                if steps.is_empty() || !is_image(block, value) {
                    return Attempt::NoMatch;
                }
                steps.reverse();
                return IMAGE_SCALE
                    .found(format!(
                        "input `{}` goes through {} in fp32 before it is cast",
                        named.name,
                        steps.join(", ")
                    ))
                    .into();
            }
            Some(Node::Op(op)) => match scaled(block, op) {
                Some(next) => {
                    steps.push(op.op_type());
                    value = next;
                }
                None => return Attempt::NoMatch,
            },
            _ => return Attempt::NoMatch,
        }
    }
    Attempt::NoMatch
}

/// The operand of a product or sum with a constant.
fn scaled(block: &Block<'_>, op: &Operation) -> Option<ValueId> {
    if !["add", "mul", "real_div", "sub"].contains(&op.op_type()) {
        return None;
    }
    let is_constant = |parameter: &str| block.constant_of(op, parameter).is_some();
    match (is_constant("x"), is_constant("y")) {
        (false, true) => op.value("x"),
        (true, false) => op.value("y"),
        _ => None,
    }
}

/// Whether a value has the shape of an image: \[N, 1, 3 or 4, height, width\].
fn is_image(block: &Block<'_>, value: ValueId) -> bool {
    let dims = block.tensor(value).map(|ty| ty.dims.as_slice());
    let Some([_, channels, _, _]) = dims else {
        return false;
    };
    matches!(channels.size(), Some(1 | 3 | 4))
}
