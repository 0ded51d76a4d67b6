//! rope-as-matmul: a rotation of half a vector becomes a product with a constant.

use crate::analysis::rotate::{self, Rotation, Style};
use crate::eval;
use crate::ir::{Binding, DType, NodeId, Value, ValueId};
use crate::ops::Opset;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Evidence, Exactness, Family, Matcher, Meta, Pass, Target, options,
};
use crate::tensor::Tensor;

/// The pass.
pub(super) struct RopeAsMatmul;

static META: Meta = Meta {
    id: "rope-as-matmul",
    family: Family::Attention,
    summary: "rotate-half, concat(−x[d/2:], x[:d/2]), becomes a product with a constant",
    exactness: Exactness::Real,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Disputed,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

/// Vectors longer than this are left alone: the constant has as many elements as its square.
const LONGEST: u64 = 1024;

impl Pass for RopeAsMatmul {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        options::none(META.id, options)?;
        Ok(Box::new(Rotations))
    }
}

struct Rotations;

impl Matcher for Rotations {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let rotation = match rotate::at(block, node) {
            None => return Attempt::NoMatch,
            Some(Ok(rotation)) => rotation,
            Some(Err(why)) => return Attempt::missed(node, why),
        };
        let result = ValueId::first(node);
        let (Some(x), Some(ty)) = (block.tensor(rotation.x), block.graph.ty(result).cloned())
        else {
            return Attempt::missed(node, "the type of what is rotated is not known");
        };
        if !matches!(x.dtype, DType::Float16 | DType::Float32) {
            return Attempt::missed(node, format!("there is no product of {}", x.dtype));
        }
        let rank = x.dims.len();
        if rank < 2 {
            return Attempt::missed(node, "what is rotated has no rows");
        }
        // A product reaches the last two axes.
        let is_last = match rank - rotation.axis {
            1 => true,
            2 => false,
            _ => {
                let why = "it rotates along an axis that is neither the last nor the one before";
                return Attempt::missed(node, why);
            }
        };
        if rotation.size > LONGEST {
            let why = format!("{} elements are too many to multiply by", rotation.size);
            return Attempt::missed(node, why);
        }
        let Some(matrix) = matrix(&rotation, x.dtype, is_last) else {
            return Attempt::missed(node, "the constant cannot be made");
        };
        let what = format!(
            "the rotation of {} becomes a product",
            match rotation.style {
                Style::Halves => "halves",
                Style::Interleaved => "neighbours",
            }
        );
        Attempt::matched(what, move |edit| {
            let no = edit.constant(Value::bool(false));
            let x = Binding::Value(rotation.x);
            let matrix = edit.constant(matrix);
            let (left, right) = if is_last { (x, matrix) } else { (matrix, x) };
            let product = edit.op(
                "matmul",
                &[
                    ("x", left),
                    ("y", right),
                    ("transpose_x", no.clone()),
                    ("transpose_y", no),
                ],
            )?;
            edit.retype(product, ty);
            edit.replace(result, product)
        })
    }
}

/// The signed permutation that x is multiplied by from the right, or from the left.
fn matrix(rotation: &Rotation, dtype: DType, from_the_right: bool) -> Option<Value> {
    let size = usize::try_from(rotation.size).ok()?;
    let mut elements = vec![0.0; size.checked_mul(size)?];
    for at in 0..size {
        let (source, is_negated) = rotation.source(at as u64);
        let source = usize::try_from(source).ok()?;
        let (row, column) = if from_the_right {
            (source, at)
        } else {
            (at, source)
        };
        *elements.get_mut(row * size + column)? = if is_negated { -1.0 } else { 1.0 };
    }
    eval::value(&Tensor::floats(dtype, vec![size, size], elements)).ok()
}
