//! tensor-limits: dimensions and ranks beyond what the Neural Engine's compiler takes.

use std::collections::{BTreeMap, BTreeSet};

use crate::analysis::survey::{Survey, grouped};
use crate::ir::{Binding, Node, NodeId, Operation, TensorType, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Block, Evidence, Exactness, Family, Found, Matcher, Meta, Pass, Rule, Severity, Target,
};

/// The check.
pub(super) struct TensorLimits;

static META: Meta = Meta {
    id: "tensor-limits",
    family: Family::Placement,
    summary: "dimensions and ranks beyond what the Neural Engine takes",
    exactness: Exactness::None,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

const DIM_LIMIT: Rule = Rule {
    id: "dim-limit",
    summary: "a dimension that is larger than the Neural Engine takes",
    why: "The compiler for the Neural Engine refuses such a layer: \"Tensor dimensions N1D1C1H1W240000 \
          are not within supported range, N[1-65536] D[1-16384] C[1-65536] H[1-16384] W[1-16384]\", \
          measured on an A15 and in four independent logs. On an M4 every dimension up to 65536 passes. \
          The layer, or the whole part of the model around it, then runs elsewhere.",
    help: "Give a long signal two dimensions before the first computation, or compute it in parts.",
    evidence: Evidence::Measured,
    sources: &[
        "https://github.com/FluidInference/mobius",
        "https://github.com/apple/coremltools/issues/2247",
        "https://github.com/751K/Apple-Neural-Engine-Microarchitecture-Study-M6",
    ],
    severity: Severity::Warning.everywhere(),
    catalog: &[],
};

const WIDE_HEAD: Rule = Rule {
    id: "wide-head",
    summary: "a product with more than 65536 outputs, such as the head of a large vocabulary",
    why: "A vocabulary of 151936 exceeds the 65536 that a dimension may have and had to be cut into 16 \
          parts (maderix/ANE pull request 26); ANEForge cuts at 16384 up to A15 and at 65536 from A16 on. \
          CoreML-LLM runs one convolution with 262144 outputs on an iPhone, where 16 parts were slower.",
    help: "Look where it runs; if not on the Neural Engine, split the weight along its outputs and \
           concatenate the logits.",
    evidence: Evidence::Disputed,
    sources: &[
        "https://github.com/maderix/ANE/pull/26",
        "https://github.com/sbryngelson/ANEForge/pull/240",
        "https://github.com/john-rocky/CoreML-LLM",
    ],
    severity: Severity::Info.everywhere(),
    catalog: &[],
};

const RANK_LIMIT: Rule = Rule {
    id: "rank-limit",
    summary: "an operation on more dimensions than the Neural Engine takes",
    why: "A matmul of rank 5 runs on the CPU where the same product of rank 3 does not (CoreML-LLM), a \
          scatter of rank 5 is rejected at any precision (FluidAudio), and the compiler's messages say \
          the same of linear. coremltools refuses to make tensors of more than 5 dimensions.",
    help: "Collapse the leading dimensions with a reshape before, and restore them after it.",
    evidence: Evidence::Measured,
    sources: &[
        "https://github.com/john-rocky/CoreML-LLM",
        "https://github.com/FluidInference/FluidAudio",
    ],
    severity: Severity::Warning.everywhere(),
    catalog: &[],
};

/// Height, width and depth on an A15 or M1, at most. Measured: mobius (A15), and the same text in three
/// more logs. Which axis of a tensor becomes which is inferred: the last one is the width.
const MOST_OF_LAST_TWO: u64 = 16_384;

/// Any dimension on any chip, at most. Measured: the same text; the study of the M4.
const MOST: u64 = 65_536;

/// Dimensions of a tensor in Core ML, at most. Documented: coremltools checks it.
const MOST_DIMENSIONS: usize = 5;

/// Operations for which 5 dimensions are too many. Sources: the rule.
const NEED_FOUR: [&str; 6] = [
    "linear",
    "matmul",
    "scatter",
    "scatter_along_axis",
    "scatter_nd",
    "softmax",
];

impl Pass for TensorLimits {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[DIM_LIMIT, WIDE_HEAD, RANK_LIMIT]
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        crate::pass::options::none(META.id, options)?;
        Ok(Box::new(Survey::new(look)))
    }
}

/// The first tensor that is too large.
struct Large<'b> {
    node: NodeId,
    name: &'b str,
    ty: &'b TensorType,
    axis: usize,
    /// How many operations have one.
    operations: usize,
}

/// What tensors that are too large have in common.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    /// Too large for any chip.
    is_for_any: bool,
    /// Of the size of the outputs of a product with a weight.
    is_head: bool,
}

fn look(block: &Block<'_>) -> Vec<(NodeId, Found)> {
    let mut findings = Vec::new();
    let mut heads = BTreeSet::new();
    let mut large: BTreeMap<Kind, Large<'_>> = BTreeMap::new();
    for (node, op) in block.graph.ops() {
        if is_constant(op) {
            continue;
        }
        let outputs = outputs(block, node, op);
        heads.extend(outputs.filter(|outputs| *outputs > MOST_OF_LAST_TWO));
        if let Some(outputs) = outputs.filter(|outputs| *outputs > MOST) {
            let found = WIDE_HEAD.found(format!("`{}` has {outputs} outputs", op.op_type()));
            findings.push((node, found));
        }
        let mut own: BTreeMap<Kind, (ValueId, usize)> = BTreeMap::new();
        let mut rank = 0;
        for value in values(block, node, op) {
            let Some(ty) = block.tensor(value) else {
                continue;
            };
            rank = rank.max(ty.dims.len());
            if let Some((axis, size)) = too_large(ty) {
                let kind = Kind {
                    is_for_any: size > MOST,
                    is_head: heads.contains(&size),
                };
                own.entry(kind).or_insert((value, axis));
            }
        }
        for (kind, (value, axis)) in own {
            let Some(ty) = block.tensor(value) else {
                continue;
            };
            large
                .entry(kind)
                .or_insert_with(|| Large {
                    node,
                    name: block.graph.name(value),
                    ty,
                    axis,
                    operations: 0,
                })
                .operations += 1;
        }
        findings.extend(too_many(op, rank).map(|found| (node, found)));
    }
    // What is too large for any chip comes first, and is what a group is called by.
    let large = large.iter().rev();
    findings.extend(large.map(|(kind, large)| (large.node, large.found(*kind))));
    grouped(findings)
}

/// The values that an operation has to do with: results, and operands that no operation of this block
/// makes.
fn values<'b>(
    block: &'b Block<'_>,
    node: NodeId,
    op: &'b Operation,
) -> impl Iterator<Item = ValueId> + 'b {
    let results = (0..op.results().len() as u32).map(move |result| ValueId { node, result });
    let bindings = op.arguments().iter().flat_map(|a| &a.bindings);
    let operands = bindings.filter_map(|binding| match binding {
        Binding::Value(value) => match block.graph.node(value.node)? {
            Node::Input(..) => Some(*value),
            _ => None,
        },
        _ => None,
    });
    results.chain(operands)
}

fn is_constant(op: &Operation) -> bool {
    op.op_type() == "const" || op.op_type().starts_with("constexpr_")
}

/// The largest dimension that is beyond a limit, with its axis. Integers and bools do not run on the
/// Neural Engine anyway.
fn too_large(ty: &TensorType) -> Option<(usize, u64)> {
    if !ty.dtype.is_float() {
        return None;
    }
    let rank = ty.dims.len();
    let sizes = ty.dims.iter().enumerate();
    sizes
        .filter_map(|(axis, dim)| Some((axis, dim.size()?)))
        .filter(|(axis, size)| *size > most(*axis, rank))
        .max_by_key(|(_, size)| *size)
}

fn most(axis: usize, rank: usize) -> u64 {
    if axis + 2 >= rank {
        MOST_OF_LAST_TWO
    } else {
        MOST
    }
}

impl Large<'_> {
    fn found(&self, kind: Kind) -> Found {
        let limit = if kind.is_for_any {
            format!("larger than {MOST}, the most on any chip")
        } else {
            format!("larger than {MOST_OF_LAST_TWO}, the most there on A15 and M1")
        };
        let more = match self.operations {
            0 | 1 => String::new(),
            count => format!("; {count} operations have such tensors"),
        };
        let found = DIM_LIMIT.found(format!(
            "dimension {} of `{}` {} is {limit}{more}",
            self.axis,
            self.name,
            shape(self.ty)
        ));
        if kind.is_head {
            // As many outputs have run on an iPhone; see `wide-head`.
            found.severity(Severity::Info)
        } else {
            found
        }
    }
}

/// The outputs of a product with a weight.
fn outputs(block: &Block<'_>, node: NodeId, op: &Operation) -> Option<u64> {
    let dims = &block.tensor(ValueId::first(node))?.dims;
    match op.op_type() {
        "conv" => dims.get(1)?.size(),
        "linear" => dims.last()?.size(),
        "matmul" if is_weight(block, op.binding("y")?) => dims.last()?.size(),
        _ => None,
    }
}

fn is_weight(block: &Block<'_>, binding: &Binding) -> bool {
    match binding {
        Binding::Immediate(_) => true,
        Binding::Value(value) => {
            block.constant(*value).is_some() || block.op(value.node).is_some_and(is_constant)
        }
        Binding::Absent => false,
    }
}

fn too_many(op: &Operation, rank: usize) -> Option<Found> {
    let what = format!("`{}` works on {rank} dimensions", op.op_type());
    if rank > MOST_DIMENSIONS {
        return Some(RANK_LIMIT.found(what).severity(Severity::Error));
    }
    let is_too_many = rank == MOST_DIMENSIONS && NEED_FOUR.contains(&op.op_type());
    is_too_many.then(|| RANK_LIMIT.found(what))
}

fn shape(ty: &TensorType) -> String {
    let sizes: Vec<String> = ty
        .dims
        .iter()
        .map(|dim| dim.size().map_or("?".to_owned(), |size| size.to_string()))
        .collect();
    format!("[{}]", sizes.join(", "))
}
