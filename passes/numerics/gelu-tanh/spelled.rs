//! The exact gelu written out: a product of x, one half and 1 + erf(x / √2), in any order.

use std::f64::consts::{FRAC_1_SQRT_2, SQRT_2};

use half::f16;

use crate::ir::{DType, NodeId, Operation, ValueId};
use crate::pass::{Attempt, Block, Uniform};

/// A product has no more factors than these, nested.
const MAX_DEPTH: usize = 4;

/// A product: a number, and the values that are none.
struct Product {
    number: f64,
    values: Vec<ValueId>,
}

/// x, if the operation ends a gelu of x; an attempt if it is nearly one.
pub(super) fn gelu_of(block: &Block<'_>, node: NodeId) -> Result<Option<ValueId>, Attempt> {
    let Some(product) = block.op(node).and_then(|op| product(block, op)) else {
        return Ok(None);
    };
    let &[first, second] = product.values.as_slice() else {
        return Ok(None);
    };
    for (x, gate) in [(first, second), (second, first)] {
        if let Some(found) = Gate::of(block, gate) {
            return found.check(block, node, x, product.number);
        }
    }
    Ok(None)
}

/// The factors of a product; those of an operand too, if it is a product that nothing else uses.
fn product(block: &Block<'_>, op: &Operation) -> Option<Product> {
    let mut product = Product {
        number: 1.0,
        values: Vec::new(),
    };
    collect(block, op, MAX_DEPTH, &mut product).then_some(product)
}

/// Whether the operation is a product whose factors are known.
fn collect(block: &Block<'_>, op: &Operation, depth: usize, product: &mut Product) -> bool {
    let operands = match op.op_type() {
        "mul" => ["x", "y"].as_slice(),
        "real_div" => match block.uniform_of(op, "y") {
            Some(divisor) => {
                product.number /= divisor.value;
                ["x"].as_slice()
            }
            None => return false,
        },
        _ => return false,
    };
    operands.iter().all(|operand| {
        if let Some(number) = block.uniform_of(op, operand) {
            product.number *= number.value;
            return true;
        }
        let Some(value) = op.value(operand) else {
            return false;
        };
        let inner = block
            .op(value.node)
            .filter(|_| depth > 0 && block.graph.used_once(value));
        let before = (product.number, product.values.len());
        if inner.is_none_or(|inner| !collect(block, inner, depth - 1, product)) {
            product.number = before.0;
            product.values.truncate(before.1);
            product.values.push(value);
        }
        true
    })
}

/// `factor · erf(argument) + term`.
struct Gate {
    sum: ValueId,
    erf: ValueId,
    argument: ValueId,
    factor: f64,
    term: f64,
}

impl Gate {
    fn of(block: &Block<'_>, sum: ValueId) -> Option<Self> {
        let add = block.producer_of_type(sum, "add")?;
        let (value, term) = [("x", "y"), ("y", "x")]
            .into_iter()
            .find_map(|(value, term)| Some((add.value(value)?, block.uniform_of(add, term)?)))?;
        let (erf, factor) = match block.op(value.node).and_then(|op| product(block, op)) {
            Some(Product { number, values }) => match values.as_slice() {
                [erf] => (*erf, number),
                _ => return None,
            },
            None => (value, 1.0),
        };
        Some(Self {
            sum,
            erf,
            argument: block.producer_of_type(erf, "erf")?.value("x")?,
            factor,
            term: term.value,
        })
    }

    /// Whether `number · x` times this is a gelu of x.
    fn check(
        &self,
        block: &Block<'_>,
        node: NodeId,
        x: ValueId,
        number: f64,
    ) -> Result<Option<ValueId>, Attempt> {
        let (factor, term) = (number * self.factor, number * self.term);
        if (factor, term) != (0.5, 0.5) {
            // One half may be a factor of the product that this one is part of.
            let user = block.graph.only_user(ValueId::first(node));
            if user.is_some_and(|user| is_product(block, user)) {
                return Ok(None);
            }
            let why = format!("it is x * ({factor} * erf + {term}), not halves of both");
            return Err(Attempt::missed(node, why));
        }
        for (value, what) in [(self.erf, "erf"), (self.sum, "sum")] {
            if !block.graph.used_once(value) {
                let why = format!("the {what} has other uses");
                return Err(Attempt::missed(value.node, why));
            }
        }
        let place = self.argument.node;
        let Some((inside, is_root)) = block.op(place).and_then(|op| over_root(block, op)) else {
            let why = "the operand of erf is not x / sqrt(2)";
            return Err(Attempt::missed(self.erf.node, why));
        };
        if inside != x {
            let why = "erf is of another value than the one that it is multiplied by";
            return Err(Attempt::missed(self.erf.node, why));
        }
        if !is_root {
            let why = "the divisor of x under erf is not sqrt(2) in its type";
            return Err(Attempt::missed(place, why));
        }
        Ok(Some(x))
    }
}

fn is_product(block: &Block<'_>, node: NodeId) -> bool {
    block
        .op(node)
        .and_then(|op| product(block, op))
        .is_some_and(|product| product.values.len() <= 2)
}

/// What is divided by a number, or multiplied, and whether the number is √2, or 1/√2.
fn over_root(block: &Block<'_>, op: &Operation) -> Option<(ValueId, bool)> {
    match op.op_type() {
        "real_div" => {
            let divisor = block.uniform_of(op, "y")?;
            Some((op.value("x")?, is_nearest(divisor, SQRT_2)))
        }
        "mul" => [("x", "y"), ("y", "x")]
            .into_iter()
            .find_map(|(x, factor)| {
                let factor = block.uniform_of(op, factor)?;
                Some((op.value(x)?, is_nearest(factor, FRAC_1_SQRT_2)))
            }),
        _ => None,
    }
}

/// Whether a number is the nearest one of its type. (In fp16 and in fp32 the nearest reciprocal is also
/// the reciprocal of the nearest, rounded.)
fn is_nearest(number: Uniform, wanted: f64) -> bool {
    number.value
        == match number.dtype {
            DType::Float16 => f16::from_f64(wanted).to_f64(),
            _ => f64::from(wanted as f32),
        }
}
