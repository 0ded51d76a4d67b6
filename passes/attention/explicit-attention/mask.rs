//! The mask of an attention: what it is, whether it is causal, and what it becomes.

use crate::analysis::mask::{self, attends, bools, is_causal};
use crate::eval;
use crate::ir::{Binding, DType, Dim, Operation, Value};
use crate::pass::Block;
use crate::tensor::Tensor;

/// A mask, as it will be written.
pub(super) enum Mask {
    /// None was given, or a constant that lets every query attend to every key.
    None,
    /// Floats, added to the scores.
    Add {
        mask: Binding,
        /// Of a constant: whether it is causal.
        causal: Option<bool>,
    },
    /// A bool constant: one element for each of the shape's, true where a query attends.
    Constant {
        keep: Vec<bool>,
        shape: Vec<usize>,
        causal: bool,
    },
    /// Bools that are known only when the model runs, true where a query attends.
    Select(Binding),
}

impl Mask {
    /// What it is, behind "attention".
    pub(super) fn text(&self) -> &'static str {
        match self {
            Self::None => "without a mask",
            Self::Add { causal: None, .. } => "with a float mask",
            Self::Add {
                causal: Some(true), ..
            } => "with a causal constant float mask",
            Self::Add {
                causal: Some(false),
                ..
            } => "with a constant float mask",
            Self::Constant { causal: true, .. } => "with a causal constant bool mask",
            Self::Constant { causal: false, .. } => "with a constant bool mask",
            Self::Select(_) => "with a bool mask",
        }
    }

    /// What follows the first product.
    pub(super) fn steps(&self) -> &'static str {
        match self {
            Self::None => ", softmax, matmul",
            Self::Add { .. } | Self::Constant { .. } => ", add, softmax, matmul",
            Self::Select(_) => ", select, softmax, matmul",
        }
    }
}

/// The mask of an attention with scores of this shape and type, or why it cannot be written.
pub(super) fn read(
    block: &Block<'_>,
    op: &Operation,
    scores: &[Dim],
    dtype: DType,
) -> Result<Mask, String> {
    let binding = op.binding("attn_mask").ok_or("it has several masks")?;
    let ty = match binding {
        Binding::Value(value) => block.tensor(*value),
        Binding::Immediate(value) => value.tensor_type(),
        Binding::Absent => None,
    };
    let ty = ty.ok_or("the type of the mask is not known")?;
    if !super::fits(&ty.dims, scores) {
        return Err("the mask is larger than the scores".to_owned());
    }
    let constant = mask::constant(block, binding);
    if ty.dtype != DType::Bool {
        if ty.dtype != dtype {
            return Err(format!(
                "the mask is {}, and the scores are {dtype}",
                ty.dtype
            ));
        }
        let causal = constant
            .map(|value| attends(block, value).is_some_and(|keep| is_causal(&ty.dims, &keep)));
        return Ok(Mask::Add {
            mask: binding.clone(),
            causal,
        });
    }
    let Some(value) = constant else {
        return Ok(Mask::Select(binding.clone()));
    };
    let keep = bools(block, value).ok_or("the data of the mask cannot be read")?;
    let row = ty.dims.last().map_or(Some(1), |dim| dim.size());
    let row = row.and_then(|row| usize::try_from(row).ok()).unwrap_or(0);
    let shape = ty.dims.iter().map(|dim| usize::try_from(dim.size()?).ok());
    let (Some(shape), true) = (shape.collect::<Option<Vec<_>>>(), row > 0) else {
        return Err("the shape of the mask is not known".to_owned());
    };
    if let Some(empty) = keep
        .chunks(row)
        .position(|row| row.iter().all(|keep| !keep))
    {
        return Err(format!(
            "row {empty} of the constant mask attends to nothing: the softmax of nothing is not \
             defined, and a finite mask value would make it one of everything"
        ));
    }
    if keep.iter().all(|keep| *keep) {
        return Ok(Mask::None);
    }
    let causal = is_causal(&ty.dims, &keep);
    Ok(Mask::Constant {
        keep,
        shape,
        causal,
    })
}

/// The constant to add: 0 where a query attends, the mask value elsewhere.
pub(super) fn additive(
    dtype: DType,
    shape: Vec<usize>,
    keep: &[bool],
    mask_value: f64,
) -> Option<Value> {
    let element = |keep: &bool| if *keep { 0.0 } else { mask_value as f32 };
    let elements = keep.iter().map(element).collect();
    eval::value(&Tensor::floats(dtype, shape, elements)).ok()
}
