//! Evaluation of matrix products. Products of floats are summed in fp32, those of integers exactly.
//!
//! Weights that a file holds as fp16 are widened a block of rows at a time, so that a large one
//! never stands in memory as fp32.

use std::collections::BTreeMap;

use rayon::prelude::*;

use crate::ir::types::DType;
use crate::ops::evaluate::{Call, EvalError, Kernel, Results, in_parameter, one};
use crate::tensor::{Matrix, Output, Tensor, broadcast_shapes, broadcast_strides, elements, gemm};

pub(in crate::ops) fn kernel(op_type: &str) -> Option<Kernel> {
    Some(match op_type {
        "matmul" => matmul,
        "linear" => linear,
        "einsum" => einsum,
        _ => return None,
    })
}

/// Elements of a weight that are widened at a time: 4 MiB of fp32.
const BLOCK: usize = 1 << 20;

fn linear(call: &Call) -> Results {
    let (x, weight) = (call.tensor("x")?, call.tensor("weight")?);
    let [outputs, inner] = *weight.shape() else {
        return Err(EvalError::invalid(format!(
            "`weight` has rank {}, not 2",
            weight.rank()
        )));
    };
    let Some((last, batch)) = x.shape().split_last() else {
        return Err(EvalError::invalid("`x` is a scalar"));
    };
    if *last != inner {
        return Err(unequal(x, weight));
    }
    let rows = batch.iter().product::<usize>();
    let shape = [batch, &[outputs]].concat();
    let count = call.room_for(&shape)?;
    let values = x.as_floats().map_err(in_parameter("x"))?;
    let mut result = vec![0f32; count];
    if let Some(bias) = call.tensor_if_any("bias")? {
        let bias = bias.as_floats().map_err(in_parameter("bias"))?;
        if bias.len() != outputs {
            return Err(EvalError::invalid(format!(
                "`bias` has {} elements for {outputs} outputs",
                bias.len()
            )));
        }
        if outputs > 0 {
            for row in result.chunks_exact_mut(outputs) {
                row.copy_from_slice(&bias);
            }
        }
    }
    let limit = call.accumulator_limit();
    let block_rows = (BLOCK / inner.max(1)).max(1);
    for start in (0..outputs).step_by(block_rows) {
        let end = (start + block_rows).min(outputs);
        let block = weight
            .float_range(start * inner..end * inner)
            .map_err(in_parameter("weight"))?;
        let weight = Matrix::rows(&block, end - start, inner).transposed();
        let mut out = Output {
            data: result.get_mut(start..).unwrap_or_default(),
            row_stride: outputs,
        };
        gemm(
            Matrix::rows(&values, rows, inner),
            weight,
            &mut out,
            true,
            limit,
        );
    }
    one(Tensor::floats(x.dtype(), shape, result))
}

fn matmul(call: &Call) -> Results {
    let (x, y) = (call.tensor("x")?, call.tensor("y")?);
    let (transpose_x, transpose_y) = (
        call.bool_or("transpose_x", false)?,
        call.bool_or("transpose_y", false)?,
    );
    // A const factor may be of another float type than the result, which has the other's.
    let dtype = call.result_dtype(0).unwrap_or(x.dtype());
    product(
        call,
        &Factor::new(x, transpose_x, Side::Left)?,
        &Factor::new(y, transpose_y, Side::Right)?,
        dtype,
    )
}

/// Which factor of a product a vector is: a row on the left, a column on the right, as in numpy.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Left,
    Right,
}

/// A stack of matrices.
struct Factor {
    tensor: Tensor,
    transposed: bool,
    /// The result lacks the dimension of size 1 that this one got.
    is_vector: bool,
}

impl Factor {
    fn new(tensor: &Tensor, transposed: bool, side: Side) -> Result<Self, EvalError> {
        let is_vector = tensor.rank() == 1;
        let tensor = match *tensor.shape() {
            [] => return Err(EvalError::invalid("a factor is a scalar")),
            [size] if side == Side::Left => tensor.reshaped(vec![1, size])?,
            [size] => tensor.reshaped(vec![size, 1])?,
            _ => tensor.clone(),
        };
        Ok(Self {
            tensor,
            transposed: transposed && !is_vector,
            is_vector,
        })
    }

    fn batch(&self) -> &[usize] {
        &self.tensor.shape()[..self.tensor.rank() - 2]
    }

    /// Rows and columns, after transposing.
    fn sizes(&self) -> (usize, usize) {
        let rank = self.tensor.rank();
        let (rows, columns) = (self.tensor.shape()[rank - 2], self.tensor.shape()[rank - 1]);
        if self.transposed {
            (columns, rows)
        } else {
            (rows, columns)
        }
    }

    fn matrix<'a>(&self, values: &'a [f32], index: usize) -> Matrix<'a> {
        let (rows, columns) = self.sizes();
        let size = rows * columns;
        let values = &values[index * size..(index + 1) * size];
        if self.transposed {
            Matrix::rows(values, columns, rows).transposed()
        } else {
            Matrix::rows(values, rows, columns)
        }
    }
}

fn product(call: &Call, x: &Factor, y: &Factor, dtype: DType) -> Results {
    let ((rows, inner), (inner_y, columns)) = (x.sizes(), y.sizes());
    if inner != inner_y {
        return Err(unequal(&x.tensor, &y.tensor));
    }
    let batch = broadcast_shapes(x.batch(), y.batch())?;
    let mut shape = batch.clone();
    if !x.is_vector {
        shape.push(rows);
    }
    if !y.is_vector {
        shape.push(columns);
    }
    let count = call.room_for(&shape)?;
    let (of_x, of_y) = (pairing(x.batch(), &batch)?, pairing(y.batch(), &batch)?);
    if x.tensor.dtype().is_int() {
        let result = integer_product(x, y, (&of_x, &of_y), count)?;
        return one(Tensor::ints(dtype, shape, result));
    }
    let left = x.tensor.as_floats().map_err(in_parameter("x"))?;
    let right = y.tensor.as_floats().map_err(in_parameter("y"))?;
    let limit = call.accumulator_limit();
    let mut result = vec![0f32; count];
    let multiply = |(index, out): (usize, &mut [f32])| {
        let mut out = Output {
            data: out,
            row_stride: columns,
        };
        let (a, b) = (x.matrix(&left, of_x[index]), y.matrix(&right, of_y[index]));
        gemm(a, b, &mut out, false, limit);
    };
    let size = rows * columns;
    if size > 0 {
        if of_x.len() > 1 {
            result
                .par_chunks_exact_mut(size)
                .enumerate()
                .for_each(multiply);
        } else {
            result.chunks_exact_mut(size).enumerate().for_each(multiply);
        }
    }
    one(Tensor::floats(dtype, shape, result))
}

/// For each matrix of the result, which of a factor's it is made from.
fn pairing(own: &[usize], batch: &[usize]) -> Result<Vec<usize>, EvalError> {
    let strides = broadcast_strides(own, batch)?;
    let count = elements(batch).unwrap_or(0);
    Ok((0..count)
        .map(|index| {
            let mut rest = index;
            let mut at = 0;
            for (size, stride) in batch.iter().zip(&strides).rev() {
                at += (rest % size) * stride.unsigned_abs();
                rest /= size;
            }
            at
        })
        .collect())
}

fn integer_product(
    x: &Factor,
    y: &Factor,
    (of_x, of_y): (&[usize], &[usize]),
    count: usize,
) -> Result<Vec<i64>, EvalError> {
    let ((rows, inner), (_, columns)) = (x.sizes(), y.sizes());
    let left = x.tensor.as_ints().map_err(in_parameter("x"))?;
    let right = y.tensor.as_ints().map_err(in_parameter("y"))?;
    let mut result = Vec::with_capacity(count);
    let at = |transposed: bool, row: usize, column: usize, rows: usize, columns: usize| {
        if transposed {
            column * rows + row
        } else {
            row * columns + column
        }
    };
    for (a, b) in of_x.iter().zip(of_y) {
        let a = &left[a * rows * inner..];
        let b = &right[b * inner * columns..];
        for row in 0..rows {
            for column in 0..columns {
                let sum = (0..inner).fold(0i64, |sum, index| {
                    let a = a[at(x.transposed, row, index, rows, inner)];
                    let b = b[at(y.transposed, index, column, inner, columns)];
                    sum.wrapping_add(a.wrapping_mul(b))
                });
                result.push(sum);
            }
        }
    }
    Ok(result)
}

/// Any equation of two values without repeated letters in one of them. Letters of both that the
/// output lacks are summed over, sizes of 1 broadcast. Core ML itself knows
/// `nchw,nwhu->nchu` and `chw,whr->chr` only.
fn einsum(call: &Call) -> Results {
    let equation = call.string_or("equation", "")?;
    let invalid = |what: &str| EvalError::invalid(format!("`equation` \"{equation}\" {what}"));
    let (inputs, output) = equation
        .split_once("->")
        .ok_or_else(|| invalid("has no arrow"))?;
    let (left, right) = inputs
        .split_once(',')
        .ok_or_else(|| invalid("is not for two values"))?;
    let [x, y] = call.tensors("values")?[..] else {
        return Err(invalid("is for two values"));
    };
    let letters = |text: &str| text.trim().chars().collect::<Vec<char>>();
    let (left, right, output) = (letters(left), letters(right), letters(output));
    let mut sizes: BTreeMap<char, usize> = BTreeMap::new();
    for (letters, tensor) in [(&left, x), (&right, y)] {
        if letters.len() != tensor.rank() {
            return Err(invalid(
                "has another number of letters than a value has dimensions",
            ));
        }
        for (index, letter) in letters.iter().enumerate() {
            if letters[..index].contains(letter) {
                return Err(invalid("repeats a letter, which is not evaluated"));
            }
            let size = tensor.shape()[index];
            match sizes.get(letter) {
                None | Some(1) => drop(sizes.insert(*letter, size)),
                Some(known) if size == 1 || *known == size => {}
                Some(_) => return Err(invalid("gives a letter two sizes")),
            }
        }
    }
    if let Some(letter) = output.iter().find(|letter| !sizes.contains_key(letter)) {
        return Err(invalid(&format!("makes up `{letter}`")));
    }
    let select = |keep: &dyn Fn(&char) -> bool| -> Vec<char> {
        sizes
            .keys()
            .filter(|letter| keep(letter))
            .copied()
            .collect()
    };
    let batch = select(&|l| output.contains(l) && left.contains(l) && right.contains(l));
    let rows = select(&|l| output.contains(l) && left.contains(l) && !right.contains(l));
    let columns = select(&|l| output.contains(l) && !left.contains(l) && right.contains(l));
    let inner = select(&|l| !output.contains(l));
    let size = |letters: &[char]| -> Vec<usize> { letters.iter().map(|l| sizes[l]).collect() };
    let count = |letters: &[char]| -> usize { size(letters).iter().product() };
    let arranged = |tensor: &Tensor, own: &[char], order: [&[char]; 3]| {
        let order_letters = order.concat();
        call.room_for(&size(&order_letters))?;
        let strides = crate::tensor::strides(tensor.shape());
        let strides: Vec<isize> = order_letters
            .iter()
            .map(|letter| {
                let axis = own.iter().position(|l| l == letter);
                axis.filter(|axis| tensor.shape()[*axis] > 1)
                    .map_or(0, |axis| strides[axis] as isize)
            })
            .collect();
        let arranged = tensor.strided(size(&order_letters), 0, &strides)?;
        Ok::<_, EvalError>(arranged.reshaped(order.map(count).to_vec())?)
    };
    let x_factor = Factor::new(
        &arranged(x, &left, [&batch, &rows, &inner])?,
        false,
        Side::Left,
    )?;
    let y_factor = arranged(y, &right, [&batch, &inner, &columns])?;
    let y_factor = Factor::new(&y_factor, false, Side::Right)?;
    let results = product(call, &x_factor, &y_factor, x.dtype())?;
    let Some(result) = results.first().and_then(|datum| datum.as_tensor()) else {
        return Ok(results);
    };
    let made = [batch, rows, columns].concat();
    let permutation = output
        .iter()
        .map(|letter| made.iter().position(|l| l == letter))
        .collect::<Option<Vec<_>>>()
        .filter(|permutation| permutation.len() == made.len())
        .ok_or_else(|| invalid("repeats a letter of the output"))?;
    one(result.reshaped(size(&made))?.transposed(&permutation)?)
}

fn unequal(x: &Tensor, y: &Tensor) -> EvalError {
    EvalError::invalid(format!(
        "the shapes {:?} and {:?} do not fit a product",
        x.shape(),
        y.shape()
    ))
}

#[cfg(test)]
mod tests;
