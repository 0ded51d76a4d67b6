//! What reads a constant, and whether as a weight.

use super::Kind;
use crate::analysis::norm;
use crate::ir::{NodeId, Operation, Slot, ValueId};
use crate::pass::Block;

/// As what a constant is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// As a weight.
    Weight(Kind),
    /// As something that may well be infinite.
    Meant,
    /// Nobody can tell.
    Unclear,
}

/// A reader of a constant.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    /// The operation of this block that reads it, or what is made of it.
    pub(super) at: NodeId,
    /// What the operation is called.
    pub(super) label: String,
    /// As what it reads it.
    pub(super) role: Role,
    /// The parameter, if the constant itself is bound to it.
    pub(super) site: Option<String>,
}

impl Reader {
    pub(super) fn kind(&self) -> Option<Kind> {
        match self.role {
            Role::Weight(kind) => Some(kind),
            _ => None,
        }
    }
}

/// A constant is laid out anew, or cast, by fewer operations than this before it is read.
const MAX_DEPTH: usize = 8;

/// What passes the elements of `x` on.
const COPIES: [&str; 6] = [
    "cast",
    "identity",
    "reshape",
    "transpose",
    "expand_dims",
    "squeeze",
];

/// All readers of a constant of this block.
pub(super) fn of(block: &Block<'_>, value: ValueId) -> Vec<Reader> {
    let mut readers = Vec::new();
    collect(block, value, MAX_DEPTH, &mut readers);
    readers
}

fn collect(block: &Block<'_>, value: ValueId, depth: usize, readers: &mut Vec<Reader>) {
    let mut add = |at: NodeId, role: Role, site: Option<String>| {
        let label = block.label(at);
        readers.push(Reader {
            at,
            label,
            role,
            site,
        });
    };
    let mut further = Vec::new();
    for reader in block.graph.uses(value) {
        let Some(op) = block.op(reader.user) else {
            // An output of the block.
            add(value.node, Role::Unclear, None);
            continue;
        };
        let parameter = match reader.slot {
            Slot::Argument { argument, .. } => op.arguments().get(argument as usize),
            // Read inside a nested block, such as the body of a loop.
            _ => None,
        };
        let Some(argument) = parameter else {
            add(reader.user, Role::Unclear, None);
            continue;
        };
        if COPIES.contains(&op.op_type()) && argument.parameter == "x" {
            further.push(reader.user);
            continue;
        }
        let role = role(block, op, &argument.parameter);
        let is_direct = depth == MAX_DEPTH;
        add(
            reader.user,
            role,
            is_direct.then(|| argument.parameter.clone()),
        );
    }
    for node in further {
        match depth.checked_sub(1) {
            Some(depth) => collect(block, ValueId::first(node), depth, readers),
            None => readers.push(Reader {
                at: node,
                label: block.label(node),
                role: Role::Unclear,
                site: None,
            }),
        }
    }
}

/// As what an operation reads a parameter, or an attribute of this name.
pub(super) fn role(block: &Block<'_>, op: &Operation, parameter: &str) -> Role {
    let is_weight = match op.op_type() {
        "linear" | "conv" | "conv_transpose" => matches!(parameter, "weight" | "bias"),
        "matmul" => matches!(parameter, "x" | "y"),
        "einsum" => parameter == "values",
        "gather" | "gather_along_axis" | "gather_nd" if parameter == "x" => {
            return Role::Weight(Kind::Row);
        }
        "layer_norm" | "instance_norm" => matches!(parameter, "gamma" | "beta"),
        "batch_norm" => matches!(parameter, "mean" | "variance" | "gamma" | "beta"),
        "prelu" => parameter == "alpha",
        "lstm" | "gru" | "rnn" => {
            parameter.starts_with("weight_")
                || parameter.starts_with("bias")
                || parameter.starts_with("peephole")
                || parameter == "input_bias"
        }
        "constexpr_affine_dequantize"
        | "constexpr_blockwise_shift_scale"
        | "constexpr_sparse_blockwise_shift_scale" => {
            if parameter == "scale" {
                return Role::Weight(Kind::Scale);
            }
            matches!(parameter, "zero_point" | "offset")
        }
        "constexpr_cast" => parameter == "source_val",
        "constexpr_lut_to_dense" | "constexpr_lut_to_sparse" => parameter == "lut",
        "constexpr_sparse_to_dense" => parameter == "nonzero_data",
        "mul" if is_gain(block, op, parameter) => true,
        "clip" | "pad" | "fill" | "threshold" | "const" | "minimum" | "maximum" => {
            return Role::Meant;
        }
        // Softmax of scores with a mask; a bias or a table that is added; a factor.
        _ => return Role::Unclear,
    };
    if is_weight {
        Role::Weight(Kind::Number)
    } else {
        Role::Meant
    }
}

/// Whether a product is the gain behind a norm.
fn is_gain(block: &Block<'_>, op: &Operation, parameter: &str) -> bool {
    let other = if parameter == "x" { "y" } else { "x" };
    let Some(other) = op.value(other) else {
        return false;
    };
    let mut read = other;
    for _ in 0..MAX_DEPTH {
        let op = block
            .op(read.node)
            .filter(|op| COPIES.contains(&op.op_type()) || op.op_type() == "slice_by_index");
        match op.and_then(|op| op.value("x")) {
            Some(inner) => read = inner,
            None => break,
        }
    }
    let made = block.op(read.node).map(Operation::op_type);
    matches!(
        made,
        Some("layer_norm" | "instance_norm" | "batch_norm" | "l2_norm")
    ) || matches!(norm::at(block, read.node), norm::Found::Norm(_))
}
