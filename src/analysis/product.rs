//! Products of an activation and a weight, and how they become sums of smaller products.
//!
//! ```text
//! linear(x, weight [N, K])                     contracts the last axis of x
//! conv(x, weight [N, K, …], groups = 1)        contracts axis 1 of x
//! conv_transpose(x, weight [K, N, …], groups = 1)
//! matmul(x, y)  with either transpose flag; either factor may be the weight
//! ```
//!
//! If x is a join of x₁ and x₂ along the contracted axis, the product is x₁ times the first part of
//! the weight plus x₂ times the second.

use std::collections::BTreeMap;

use crate::analysis::weight::{Piece, Weight};
use crate::ir::{Binding, NodeId, Operation, ValueId, ValueType};
use crate::ops::registry;
use crate::pass::{Block, Edit, EditError};

/// A product.
pub struct Product<'a> {
    op: &'a Operation,
    result: ValueId,
    /// The parameter that has the activation.
    operand: &'static str,
    /// The axis of the activation that is contracted.
    pub axis: usize,
    /// Its size.
    pub size: u64,
    weight: Weight<'a>,
    weight_parameter: &'static str,
    weight_axis: usize,
}

/// The operations that are products.
const PRODUCTS: [&str; 4] = ["linear", "conv", "conv_transpose", "matmul"];

/// Whether an operation may be a product with a weight.
pub fn is_product(op: &Operation) -> bool {
    PRODUCTS.contains(&op.op_type())
}

/// A parameter that the signature does not have: what it means, nobody says.
pub fn unknown_parameter<'a>(block: &Block<'_>, op: &'a Operation) -> Option<&'a str> {
    let variant = registry::signature(op.op_type(), block.opset?).ok()?;
    let is_known = |name: &str| variant.parameters.iter().any(|known| known.name == name);
    op.arguments()
        .iter()
        .map(|argument| argument.parameter.as_str())
        .find(|name| !is_known(name))
}

impl<'a> Product<'a> {
    /// The product that an operation makes of an activation, or why it is none that can be taken
    /// apart.
    pub fn of(block: &Block<'a>, node: NodeId, activation: ValueId) -> Result<Self, String> {
        let op = block
            .op(node)
            .filter(|op| is_product(op))
            .ok_or("it is no product")?;
        if let Some(parameter) = unknown_parameter(block, op) {
            return Err(format!(
                "nothing is known about its parameter `{parameter}`"
            ));
        }
        let rank = block
            .tensor(activation)
            .map(|ty| ty.dims.len())
            .ok_or("the type of its operand is not known")?;
        let is_x = op.value("x") == Some(activation);
        let (operand, weight_parameter) = match op.op_type() {
            "matmul" if is_x => ("x", "y"),
            "matmul" if op.value("y") == Some(activation) => ("y", "x"),
            "matmul" => return Err("it is no operand of the product".to_owned()),
            _ if is_x => ("x", "weight"),
            _ => return Err("it is the weight of a product".to_owned()),
        };
        let weight = Weight::of(block, op, weight_parameter)?;
        let shape = weight
            .shape()
            .ok_or("the shape of the weight is not known")?;
        if op.op_type().starts_with("conv") {
            let groups = match op.argument("groups") {
                None => Some(1),
                Some(_) => block.int_of(op, "groups"),
            };
            if groups != Some(1) {
                return Err("the convolution has groups".to_owned());
            }
        }
        let flag = |parameter| {
            block
                .bool_or(op, parameter, false)
                .ok_or("whether it transposes is not known")
        };
        // The last axis of the left factor meets the last but one of the right.
        let matrix = |rank: usize, left: bool, transposed: bool| {
            let back = if left == transposed { 2 } else { 1 };
            rank.checked_sub(back).filter(|_| rank >= 2)
        };
        let (axis, weight_axis) = match op.op_type() {
            "linear" => (rank.checked_sub(1), (shape.len() == 2).then_some(1)),
            "conv" => ((rank >= 3).then_some(1), (shape.len() == rank).then_some(1)),
            "conv_transpose" => ((rank >= 3).then_some(1), (shape.len() == rank).then_some(0)),
            _ => {
                let (tx, ty) = (flag("transpose_x")?, flag("transpose_y")?);
                let (own, other) = if is_x { (tx, ty) } else { (ty, tx) };
                (matrix(rank, is_x, own), matrix(shape.len(), !is_x, other))
            }
        };
        let (axis, weight_axis) = axis
            .zip(weight_axis)
            .ok_or("a factor has a rank that is not expected")?;
        Ok(Self {
            op,
            result: ValueId::first(node),
            operand,
            axis,
            size: *shape
                .get(weight_axis)
                .ok_or("the weight has no such axis")?,
            weight,
            weight_parameter,
            weight_axis,
        })
    }

    /// Whether the weight is a constant.
    pub fn is_constant(&self) -> bool {
        self.weight.is_constant()
    }

    /// The sum that this product is if its activation is a join of parts that end at `ends`.
    pub fn sum(&self, block: &Block<'_>, ends: &[u64]) -> Result<Sum, String> {
        if ends.last() != Some(&self.size) {
            return Err("the weight has another size than its operand".to_owned());
        }
        let ty = block
            .graph
            .ty(self.result)
            .cloned()
            .ok_or("the type of the product is not known")?;
        let mut begin = 0;
        let mut pieces = Vec::new();
        for end in ends {
            pieces.push(self.weight.cut(block, self.weight_axis, begin, *end)?);
            begin = *end;
        }
        let arguments = self
            .op
            .arguments()
            .iter()
            .map(|argument| (argument.parameter.clone(), argument.bindings.clone()))
            .collect();
        Ok(Sum {
            op_type: self.op.op_type().to_owned(),
            arguments,
            operand: self.operand,
            weight: self.weight_parameter,
            pieces,
            ty,
        })
    }
}

/// A sum of products to be made: one for each piece of the weight.
pub struct Sum {
    op_type: String,
    arguments: BTreeMap<String, Vec<Binding>>,
    operand: &'static str,
    weight: &'static str,
    pieces: Vec<Piece>,
    ty: ValueType,
}

impl Sum {
    /// Makes the products of these operands, the first with the bias, and adds them up in order.
    pub fn make(self, edit: &mut Edit<'_>, operands: &[ValueId]) -> Result<ValueId, EditError> {
        let mut arguments = self.arguments;
        let mut sum = None;
        for (piece, operand) in self.pieces.into_iter().zip(operands) {
            let weight = piece.make(edit)?;
            arguments.insert(self.weight.to_owned(), vec![weight]);
            arguments.insert(self.operand.to_owned(), vec![Binding::Value(*operand)]);
            let product = ValueId::first(edit.variadic_op(&self.op_type, arguments.clone())?);
            retype(edit, product, &self.ty);
            arguments.remove("bias");
            sum = Some(match sum {
                None => product,
                Some(sum) => {
                    let terms = [("x", Binding::Value(sum)), ("y", Binding::Value(product))];
                    let sum = edit.op("add", &terms)?;
                    retype(edit, sum, &self.ty);
                    sum
                }
            });
        }
        sum.ok_or(EditError::NoRule(self.op_type))
    }
}

/// Gives a new value the type that was declared, if inference says less or more.
pub fn retype(edit: &mut Edit<'_>, value: ValueId, ty: &ValueType) {
    if edit.graph().ty(value) != Some(ty) {
        edit.retype(value, ty.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::sample::Sample;

    /// Contracted axis and its size, or why it is no such product.
    fn product(inputs: &str, operations: &str) -> Result<(usize, u64), String> {
        let sample = Sample::new(inputs, operations, "y");
        let product = Product::of(&sample.block(), sample.node("y"), sample.value("x"))?;
        assert!(product.is_constant());
        Ok((product.axis, product.size))
    }

    #[test]
    fn each_spelling_contracts_its_axis() {
        let w = |shape: &str| {
            format!("tensor<fp16, {shape}> w = const()[val = tensor<fp16, {shape}>(fill(1))];\n")
        };
        for (input, weight, op, expected) in [
            (
                "[2, 3, 4]",
                "[5, 4]",
                "[2, 3, 5]> y = linear(x = x, weight = w)",
                (2, 4),
            ),
            (
                "[4]",
                "[5, 4]",
                "[5]> y = linear(x = x, weight = w)",
                (0, 4),
            ),
            (
                "[1, 4, 2, 2]",
                "[5, 4, 1, 1]",
                "[1, 5, 2, 2]> y = conv(x = x, weight = w)",
                (1, 4),
            ),
            (
                "[1, 4, 2]",
                "[4, 5, 1]",
                "[1, 5, 2]> y = conv_transpose(x = x, weight = w)",
                (1, 4),
            ),
            (
                "[3, 4]",
                "[4, 5]",
                "[3, 5]> y = matmul(x = x, y = w)",
                (1, 4),
            ),
            (
                "[4, 3]",
                "[5, 4]",
                "[3, 5]> y = matmul(x = x, y = w, transpose_x = bool(true), transpose_y = bool(true))",
                (0, 4),
            ),
            (
                "[2, 4, 3]",
                "[5, 4]",
                "[2, 5, 3]> y = matmul(x = w, y = x)",
                (1, 4),
            ),
            (
                "[2, 3, 4]",
                "[5, 4]",
                "[2, 5, 3]> y = matmul(x = w, y = x, transpose_y = bool(true))",
                (2, 4),
            ),
        ] {
            let found = product(
                &format!("tensor<fp16, {input}> x"),
                &format!("{}tensor<fp16, {op};", w(weight)),
            );
            assert_eq!(found, Ok(expected), "{op}");
        }
    }

    #[test]
    fn groups_and_other_operations_are_no_products() {
        let weight = "tensor<fp16, [4, 2, 1]> w = const()[val = tensor<fp16, [4, 2, 1]>(fill(1))];";
        let grouped = "tensor<fp16, [1, 4, 3]> y = conv(x = x, weight = w, groups = int32(2));";
        let why = product("tensor<fp16, [1, 4, 3]> x", &format!("{weight}\n{grouped}"));
        assert_eq!(why, Err("the convolution has groups".to_owned()));
        let why = product("tensor<fp16, [3]> x", "tensor<fp16, [3]> y = relu(x = x);");
        assert_eq!(why, Err("it is no product".to_owned()));
    }
}
