//! Moving elements without looking at them: picks, replacements, concatenation.

use super::shape::split_at_axis;
use super::{Element, Tensor, TensorError};

/// Runs `$body` with `$Kind` as the element kind of a tensor.
macro_rules! for_kind {
    ($tensor:expr, $Kind:ident => $body:expr) => {{
        // The body is written for every kind of element, strings among them.
        #[allow(
            clippy::clone_on_copy,
            clippy::assigning_clones,
            clippy::cloned_instead_of_copied
        )]
        let result = match $tensor.dtype() {
            $crate::ir::types::DType::Bool => {
                type $Kind = bool;
                $body
            }
            $crate::ir::types::DType::String => {
                type $Kind = String;
                $body
            }
            dtype if dtype.is_float() => {
                type $Kind = f32;
                $body
            }
            _ => {
                type $Kind = i64;
                $body
            }
        };
        result
    }};
}

pub(crate) use for_kind;

impl Tensor {
    /// The tensor of this shape whose element k is the element `indices[k]` of this one.
    ///
    /// # Errors
    ///
    /// If an index is outside of this tensor, or there are not as many as the shape has elements.
    pub fn picked(&self, shape: Vec<usize>, indices: &[usize]) -> Result<Self, TensorError> {
        let outside = indices.iter().find(|index| **index >= self.len());
        if let Some(index) = outside {
            return Err(TensorError::Data(format!(
                "element {index} is read of {}",
                self.len()
            )));
        }
        if super::elements(&shape) != Some(indices.len()) {
            return Err(TensorError::Elements {
                found: indices.len(),
                shape,
            });
        }
        for_kind!(self, Kind => {
            let source = Kind::read(self)?;
            let elements = indices.iter().map(|index| source[*index].clone()).collect();
            Ok(Kind::make(self.dtype(), shape, elements))
        })
    }

    /// A copy in which the element at `indices[k]` is the element k of `update`, later ones last.
    ///
    /// # Errors
    ///
    /// If the two are of different kinds, or an index is outside of this tensor.
    pub fn replaced(&self, indices: &[usize], update: &Self) -> Result<Self, TensorError> {
        for_kind!(self, Kind => {
            let mut elements = Kind::read(self)?.into_owned();
            let update = Kind::read(update)?;
            for (index, value) in indices.iter().zip(update.iter()) {
                *elements.get_mut(*index).ok_or_else(|| {
                    TensorError::Data(format!("element {index} is written of {}", self.len()))
                })? = value.clone();
            }
            Ok(Kind::make(self.dtype(), self.shape().to_vec(), elements))
        })
    }

    /// The axes in the order of `permutation`, which names each once.
    pub fn transposed(&self, permutation: &[usize]) -> Result<Self, TensorError> {
        let own = super::strides(self.shape());
        let shape = permutation.iter().map(|axis| self.shape()[*axis]).collect();
        let strides: Vec<isize> = permutation.iter().map(|axis| own[*axis] as isize).collect();
        self.strided(shape, 0, &strides)
    }

    /// The tensor repeated along axes of size 1 (and new ones in front) to fill `shape`.
    pub fn broadcast_to(&self, shape: &[usize]) -> Result<Self, TensorError> {
        if self.shape() == shape {
            return Ok(self.clone());
        }
        let strides = super::broadcast_strides(self.shape(), shape)?;
        self.strided(shape.to_vec(), 0, &strides)
    }
}

/// The tensors one after the other along an axis; all other sizes must agree.
pub fn concat(tensors: &[&Tensor], axis: usize) -> Result<Tensor, TensorError> {
    let Some(first) = tensors.first() else {
        return Err(TensorError::Data("nothing to concatenate".to_owned()));
    };
    let mut shape = first.shape().to_vec();
    for tensor in tensors {
        let agrees = tensor.rank() == shape.len()
            && (0..shape.len()).all(|index| index == axis || tensor.shape()[index] == shape[index]);
        if !agrees {
            return Err(TensorError::Data(format!(
                "the shapes {:?} and {:?} do not join along axis {axis}",
                first.shape(),
                tensor.shape()
            )));
        }
    }
    shape[axis] = tensors.iter().map(|tensor| tensor.shape()[axis]).sum();
    let (outer, _, behind) = split_at_axis(&shape, axis);
    for_kind!(first, Kind => {
        let sources = tensors
            .iter()
            .map(|tensor| Ok((Kind::read(tensor)?, tensor.shape()[axis] * behind)))
            .collect::<Result<Vec<_>, TensorError>>()?;
        let mut elements = Vec::with_capacity(shape.iter().product());
        for row in 0..outer {
            for (source, run) in &sources {
                elements.extend_from_slice(&source[row * run..(row + 1) * run]);
            }
        }
        Ok(Kind::make(first.dtype(), shape, elements))
    })
}

/// The tensor of this shape whose element k is the element `source(k)` of `tensor`, or the one
/// element of `fill` where that is `None`.
pub fn pick_or_fill(
    tensor: &Tensor,
    fill: &Tensor,
    shape: Vec<usize>,
    source: impl Fn(usize) -> Option<usize>,
) -> Result<Tensor, TensorError> {
    let len = super::elements(&shape).ok_or_else(|| TensorError::TooLarge(shape.clone()))?;
    for_kind!(tensor, Kind => {
        let elements = Kind::read(tensor)?;
        let fill = Kind::read(fill)?;
        let fill = fill.first().ok_or_else(|| TensorError::Data("no value to fill with".to_owned()))?;
        let elements = (0..len)
            .map(|index| match source(index) {
                None => Ok(fill.clone()),
                Some(at) => elements.get(at).cloned().ok_or_else(|| {
                    TensorError::Data(format!("element {at} is read of {}", elements.len()))
                }),
            })
            .collect::<Result<Vec<_>, TensorError>>()?;
        Ok(Kind::make(tensor.dtype(), shape, elements))
    })
}
