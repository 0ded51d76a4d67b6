//! Attention: which queries meet which keys and values, and what happens to the scores between.
//!
//! ```text
//! scaled_dot_product_attention(query, key, value[, attn_mask])
//!
//! scores  = matmul(q, k, transpose_y = true)      also k transposed before, q and k exchanged, einsum
//! scores  = mul(scores, 1/√E)                     also on q, on k, on both; real_div(scores, √E)
//! scores  = add(scores, mask)                     several; select(mask, scores, −1e4); before or after
//!                                                 the scale; cast, reshape of the leading dimensions,
//!                                                 clip, tanh, sub, maximum, minimum in any place
//! weights = softmax(scores)                       over the keys, wherever their axis is
//! weights = cast(weights)                         also select(mask, 0, weights), mul(weights, mask)
//! result  = matmul(weights, v)                    also einsum, also with the weights on the right
//! ```
//!
//! Equations of `einsum` are those with one letter for the queries, one for the keys, one that is
//! summed, and any others in both operands and the result: `bchw,bwhu->bchu` is what Core ML knows.
//!
//! Keys and values are those that the products read; of what they are copies says
//! [`super::repeat`]. What a mask is says [`super::mask`]. Axes are counted from the end, the last is 1:
//! operands of a product may differ in rank.

use crate::ir::{Binding, Dim, NodeId, Operation, ValueId};
use crate::pass::Block;

/// An attention.
#[derive(Clone, Debug)]
pub struct Attention {
    /// The operation that makes the result: the fused one, or the last product.
    pub root: NodeId,
    /// The queries: `free` is their axis of length L, `summed` that of size E.
    pub query: Factor,
    /// The keys: `free` is their axis of length S, `summed` that of size E.
    pub key: Factor,
    /// The values: `summed` is their axis of length S.
    pub value: Factor,
    /// The axis of the queries in the result.
    pub result_queries: usize,
    /// What queries, keys or scores are multiplied by.
    pub scales: Vec<Scale>,
    /// What is added to the scores or selects among them, in order.
    pub masks: Vec<MaskUse>,
    /// The operations of an explicit attention; `None` for the fused one.
    pub chain: Option<Chain>,
}

/// One operand of a product.
#[derive(Clone, Debug)]
pub struct Factor {
    /// The operand.
    pub value: ValueId,
    /// The parameter that it is bound to.
    pub parameter: &'static str,
    /// Its position among the bindings of the parameter.
    pub position: usize,
    /// Its axis that the result has too and the other operand has not, counted from the end.
    pub free: usize,
    /// Its axis that is summed over, counted from the end.
    pub summed: usize,
    /// Where `free` is in the result, counted from the end.
    pub result: usize,
}

/// A factor of the scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// The factor.
    pub value: f64,
    /// What is multiplied.
    pub place: Place,
    /// The operation that multiplies.
    pub node: NodeId,
}

/// What is multiplied by a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The queries, before the first product.
    Query,
    /// The keys, before the first product.
    Key,
    /// The scores.
    Scores,
    /// The fused operation does it inside.
    Fused,
}

/// A mask, or what may be one.
#[derive(Clone, Debug, PartialEq)]
pub struct MaskUse {
    /// The operation that applies it.
    pub node: NodeId,
    /// The mask: what is added, or the condition.
    pub mask: Binding,
    /// How it is applied.
    pub how: Applied,
}

/// How a mask is applied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Applied {
    /// Added to the scores.
    Added,
    /// The condition of a `select` between scores and something else.
    Selected {
        /// Whether the scores stay where the condition is true.
        keeps_where_true: bool,
        /// What the others become, if it is one number.
        other: Option<f64>,
    },
    /// `attn_mask` of the fused operation: added if float, true where a query attends if bool.
    Fused,
}

/// The operations of an explicit attention.
#[derive(Clone, Debug)]
pub struct Chain {
    /// The first product, of queries and keys.
    pub first: NodeId,
    /// What happens between the products, in order, with the softmax among it.
    pub steps: Vec<Step>,
    /// The softmax.
    pub softmax: NodeId,
    /// The weights as the last product reads them.
    pub weights: Factor,
    /// The axis of the queries in scores and weights.
    pub queries: usize,
    /// The axis of the keys in scores and weights.
    pub keys: usize,
}

/// One operation between the products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The operation.
    pub node: NodeId,
    /// The parameter by which the scores enter.
    pub parameter: &'static str,
}

/// Operations between the products, tried or taken, at most.
const MAX_STEPS: usize = 32;

/// Layout operations between a scale and the first product, at most.
const MAX_LAYOUT: usize = 8;

/// The attention whose result this operation makes.
pub fn at(block: &Block<'_>, node: NodeId) -> Option<Attention> {
    let op = block.op(node)?;
    match op.op_type() {
        "scaled_dot_product_attention" => fused(block, node, op),
        "matmul" | "einsum" => explicit(block, node),
        _ => None,
    }
}

impl Attention {
    /// The product of all scales, 1 if there are none.
    pub fn scale(&self) -> f64 {
        self.scales.iter().map(|scale| scale.value).product()
    }

    /// L, S and E: the number of queries, of keys, and the size of each.
    pub fn lengths(&self, block: &Block<'_>) -> Option<[Dim; 3]> {
        Some([
            dim(block, self.query.value, self.query.free)?,
            dim(block, self.key.value, self.key.free)?,
            dim(block, self.query.value, self.query.summed)?,
        ])
    }

    /// How many heads of queries share one head of keys in the first product, by broadcasting; copies
    /// that are written out are not counted.
    pub fn broadcast_groups(&self, block: &Block<'_>) -> Option<u64> {
        let lead = |factor: &Factor| {
            let dims = &block.tensor(factor.value)?.dims;
            let rank = dims.len();
            let axes = [
                rank.checked_sub(factor.free)?,
                rank.checked_sub(factor.summed)?,
            ];
            dims.iter()
                .enumerate()
                .filter(|(axis, _)| !axes.contains(axis))
                .try_fold(1u64, |product, (_, dim)| product.checked_mul(dim.size()?))
        };
        let (queries, keys) = (lead(&self.query)?, lead(&self.key)?);
        (keys > 0 && queries.is_multiple_of(keys)).then(|| queries / keys)
    }

    /// The first operation between the products whose result something outside reads too.
    pub fn escape(&self, block: &Block<'_>) -> Option<NodeId> {
        let chain = self.chain.as_ref()?;
        std::iter::once(chain.first)
            .chain(chain.steps.iter().map(|step| step.node))
            .find(|node| !block.graph.used_once(ValueId::first(*node)))
    }
}

/// One dimension of a value, counted from the end.
fn dim(block: &Block<'_>, value: ValueId, from_end: usize) -> Option<Dim> {
    let dims = &block.tensor(value)?.dims;
    dims.get(dims.len().checked_sub(from_end)?).copied()
}

fn fused(block: &Block<'_>, node: NodeId, op: &Operation) -> Option<Attention> {
    let factor = |parameter: &'static str, free, summed| {
        Some(Factor {
            value: op.value(parameter)?,
            parameter,
            position: 0,
            free,
            summed,
            result: free,
        })
    };
    let query = factor("query", 2, 1)?;
    let inner = dim(block, query.value, 1)?.size();
    let scale = inner.filter(|size| *size > 0).map(|size| Scale {
        value: 1.0 / (size as f64).sqrt(),
        place: Place::Fused,
        node,
    });
    let bindings = op
        .argument("attn_mask")
        .map(|mask| mask.bindings.as_slice());
    let masks = bindings.unwrap_or_default().iter().map(|mask| MaskUse {
        node,
        mask: mask.clone(),
        how: Applied::Fused,
    });
    Some(Attention {
        root: node,
        query,
        key: factor("key", 2, 1)?,
        value: factor("value", 1, 2)?,
        result_queries: 2,
        scales: scale.into_iter().collect(),
        masks: masks.collect(),
        chain: None,
    })
}

fn explicit(block: &Block<'_>, root: NodeId) -> Option<Attention> {
    let last = product(block, root)?;
    last.into_iter().enumerate().find_map(|(index, weights)| {
        let mut search = Search {
            block,
            steps: Vec::new(),
            softmax: None,
            left: MAX_STEPS,
        };
        let (first, [left, right]) = search.back(weights.value)?;
        let (softmax, keys) = search.softmax?;
        let mut steps = search.steps;
        steps.reverse();
        let (query, key) = if right.result == keys {
            (left, right)
        } else if left.result == keys {
            (right, left)
        } else {
            return None;
        };
        let queries = query.result;
        if weights.summed != keys || weights.free != queries {
            return None;
        }
        let value = product(block, root)?.into_iter().nth(1 - index)?;
        let chain = Chain {
            first,
            steps,
            softmax,
            weights,
            queries,
            keys,
        };
        if !keeps_axes(block, &chain) {
            return None;
        }
        let mut scales = Vec::new();
        scales.extend(scale_before(block, query.value, Place::Query));
        scales.extend(scale_before(block, key.value, Place::Key));
        let mut masks = Vec::new();
        for step in &chain.steps {
            let op = block.op(step.node)?;
            if let Some(value) = scale_of(block, op, step.parameter) {
                scales.push(Scale {
                    value,
                    place: Place::Scores,
                    node: step.node,
                });
            }
            masks.extend(mask_of(block, step, op));
        }
        Some(Attention {
            root,
            query,
            key,
            value,
            result_queries: chain.weights.result,
            scales,
            masks,
            chain: Some(chain),
        })
    })
}

/// The operands of a product of two matrices.
pub fn product(block: &Block<'_>, node: NodeId) -> Option<[Factor; 2]> {
    let op = block.op(node)?;
    let rank = |value: ValueId| Some(block.tensor(value)?.dims.len());
    match op.op_type() {
        "matmul" => {
            let (x, y) = (op.value("x")?, op.value("y")?);
            if rank(x)? < 2 || rank(y)? < 2 {
                return None;
            }
            let axes = |is_transposed| if is_transposed { (1, 2) } else { (2, 1) };
            let (free, summed) = axes(block.bool_or(op, "transpose_x", false)?);
            let (summed_y, free_y) = axes(block.bool_or(op, "transpose_y", false)?);
            Some([
                Factor {
                    value: x,
                    parameter: "x",
                    position: 0,
                    free,
                    summed,
                    result: 2,
                },
                Factor {
                    value: y,
                    parameter: "y",
                    position: 0,
                    free: free_y,
                    summed: summed_y,
                    result: 1,
                },
            ])
        }
        "einsum" => {
            let bindings = &op.argument("values")?.bindings;
            let [Binding::Value(a), Binding::Value(b)] = bindings.as_slice() else {
                return None;
            };
            let equation = block.constant_of(op, "equation")?.as_str()?;
            let (inputs, output) = equation.split_once("->")?;
            let letters = |text: &str| text.trim().chars().rev().collect::<Vec<char>>();
            let (in_a, in_b) = inputs.split_once(',')?;
            let (in_a, in_b, output) = (letters(in_a), letters(in_b), letters(output));
            if rank(*a)? != in_a.len() || rank(*b)? != in_b.len() {
                return None;
            }
            let place = |letters: &[char], letter| {
                letters.iter().position(|l| *l == letter).map(|at| at + 1)
            };
            // One letter of this operand alone, and one that only the operands have.
            let factor = |value, position, own: &[char], other: &[char]| {
                let mut free = own.iter().filter(|l| !other.contains(l));
                let mut summed = own.iter().filter(|l| !output.contains(l));
                let (free_letter, summed_letter) = (*free.next()?, *summed.next()?);
                if free.next().is_some() || summed.next().is_some() {
                    return None;
                }
                Some(Factor {
                    value,
                    parameter: "values",
                    position,
                    free: place(own, free_letter)?,
                    summed: place(own, summed_letter)?,
                    result: place(&output, free_letter)?,
                })
            };
            Some([factor(*a, 0, &in_a, &in_b)?, factor(*b, 1, &in_b, &in_a)?])
        }
        _ => None,
    }
}

/// Walks from the weights back to the first product.
struct Search<'a> {
    block: &'a Block<'a>,
    /// The way, the last operation first.
    steps: Vec<Step>,
    /// The softmax on the way, and its axis, counted from the end.
    softmax: Option<(NodeId, usize)>,
    /// How many operations may still be looked at.
    left: usize,
}

impl Search<'_> {
    fn back(&mut self, value: ValueId) -> Option<(NodeId, [Factor; 2])> {
        self.left = self.left.checked_sub(1)?;
        let op = self.block.op(value.node)?;
        if let Some(factors) = product(self.block, value.node) {
            return self.softmax.is_some().then_some((value.node, factors));
        }
        let parameters: &[&'static str] = match op.op_type() {
            "softmax" => {
                if self.softmax.is_some() {
                    return None;
                }
                self.softmax = Some((value.node, softmax_axis(self.block, op)?));
                &["x"]
            }
            "cast" | "identity" | "reshape" | "clip" | "tanh" | "sub" | "real_div" => &["x"],
            "add" | "mul" | "maximum" | "minimum" => &["x", "y"],
            "select" => &["a", "b"],
            _ => return None,
        };
        for parameter in parameters {
            let Some(before) = op.value(parameter) else {
                continue;
            };
            let node = value.node;
            let (length, softmax) = (self.steps.len(), self.softmax);
            self.steps.push(Step { node, parameter });
            if let Some(found) = self.back(before) {
                return Some(found);
            }
            self.steps.truncate(length);
            self.softmax = softmax;
        }
        if op.op_type() == "softmax" {
            self.softmax = None;
        }
        None
    }
}

/// The axis of a softmax, counted from the end.
fn softmax_axis(block: &Block<'_>, op: &Operation) -> Option<usize> {
    let rank = block.tensor(op.value("x")?)?.dims.len();
    let axis = match op.argument("axis") {
        Some(_) => block.int_of(op, "axis")?,
        None => -1,
    };
    if axis < 0 {
        usize::try_from(axis.checked_neg()?)
            .ok()
            .filter(|axis| *axis <= rank)
    } else {
        rank.checked_sub(usize::try_from(axis).ok()?)
            .filter(|axis| *axis > 0)
    }
}

/// Whether all reshapes on the way leave the dimensions from the axis of queries or keys on alone,
/// whichever comes first.
fn keeps_axes(block: &Block<'_>, chain: &Chain) -> bool {
    let count = chain.queries.max(chain.keys);
    chain.steps.iter().all(|step| {
        let Some(op) = block.op_of_type(step.node, "reshape") else {
            return true;
        };
        let last = |value: ValueId| {
            let dims = &block.tensor(value)?.dims;
            let dims = dims.get(dims.len().checked_sub(count)?..)?;
            dims.iter()
                .map(|dim| dim.size())
                .collect::<Option<Vec<_>>>()
        };
        let before = op.value("x").and_then(last);
        before.is_some() && before == last(ValueId::first(step.node))
    })
}

/// The factor by which an operation multiplies the operand of this parameter.
fn scale_of(block: &Block<'_>, op: &Operation, parameter: &str) -> Option<f64> {
    match (op.op_type(), parameter) {
        ("mul", "x") => Some(block.uniform_of(op, "y")?.value),
        ("mul", "y") => Some(block.uniform_of(op, "x")?.value),
        ("real_div", "x") => Some(1.0 / block.uniform_of(op, "y")?.value),
        _ => None,
    }
}

/// The scale that an operand of the first product was multiplied by.
fn scale_before(block: &Block<'_>, mut value: ValueId, place: Place) -> Option<Scale> {
    for _ in 0..MAX_LAYOUT {
        let node = value.node;
        let op = block.op(node)?;
        value = match op.op_type() {
            "transpose" | "reshape" | "expand_dims" | "squeeze" | "cast" | "identity" => {
                op.value("x")?
            }
            _ => {
                let value = scale_of(block, op, "x").or_else(|| scale_of(block, op, "y"))?;
                return (value != 1.0).then_some(Scale { value, place, node });
            }
        };
    }
    None
}

fn mask_of(block: &Block<'_>, step: &Step, op: &Operation) -> Option<MaskUse> {
    let node = step.node;
    let (mask, how) = match (op.op_type(), step.parameter) {
        ("add", "x") => (op.binding("y")?, Applied::Added),
        ("add", "y") => (op.binding("x")?, Applied::Added),
        ("select", parameter) => {
            let other = if parameter == "a" { "b" } else { "a" };
            let how = Applied::Selected {
                keeps_where_true: parameter == "a",
                other: block.uniform_of(op, other).map(|other| other.value),
            };
            (op.binding("cond")?, how)
        }
        _ => return None,
    };
    Some(MaskUse {
        node,
        mask: mask.clone(),
        how,
    })
}

#[cfg(test)]
mod tests;
