//! Repeated heads: keys and values that are copied so that several queries share them.
//!
//! Grouped attention has fewer heads of keys than of queries, and exporters write the copies out:
//!
//! ```text
//! transpose, tile, reshape, transpose, reshape, transpose      torch.repeat_interleave, by coremltools
//! expand_dims, tile, reshape                                   Hugging Face's repeat_kv
//! concat(k, k, …)  or  stack(k, k, …), reshape                 torch.cat, torch.stack
//! gather(k, [0, 0, 1, 1])                                      an index for each head
//! reshape to [B, KV, 1, S, E] against queries [B, KV, G, L, E]  nothing is copied: the product broadcasts
//! ```
//!
//! No spelling is looked for as such. The layout operations are followed, and of each dimension is known
//! of which source dimensions and copies it is made, so that any mix of them is understood. The last
//! spelling is not a repetition here, but a broadcast, of which the products' shapes tell.

use crate::ir::{Binding, Dim, Operation, ValueId};
use crate::pass::Block;

/// A value as copies of another.
#[derive(Clone, Debug, PartialEq)]
pub struct Repeat {
    /// What is copied; the value itself if nothing is.
    pub source: ValueId,
    /// How many copies there are.
    pub factor: u64,
    /// Each dimension of the value, from its outermost part to its innermost; parts of size 1 are left
    /// out.
    pub dims: Vec<Vec<Part>>,
}

/// A part of a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A dimension of the source, or a part of it.
    Source {
        /// Which one.
        axis: usize,
        /// How large the part is; `None` for all of a dimension of unknown size.
        size: Option<u64>,
    },
    /// So many copies.
    Copies(u64),
}

impl Part {
    fn size(self) -> Option<u64> {
        match self {
            Self::Source { size, .. } => size,
            Self::Copies(count) => Some(count),
        }
    }
}

/// Chains of layout operations are followed this far.
const MAX_STEPS: usize = 16;

impl Repeat {
    /// Whether the copies of one head lie side by side (`k0 k0 k1 k1`) in this dimension, as
    /// `repeat_interleave` has them; `false` if all heads repeat in turn, or nothing does.
    pub fn is_interleaved(&self, axis: usize) -> bool {
        self.dims
            .get(axis)
            .and_then(|parts| parts.last())
            .is_some_and(|part| matches!(part, Part::Copies(_)))
    }
}

/// What a value is made of; `None` if the chain of layout operations before it cannot be followed.
pub fn of(block: &Block<'_>, value: ValueId) -> Option<Repeat> {
    let mut chain = Vec::new();
    let mut source = value;
    while chain.len() < MAX_STEPS
        && let Some(op) = block.op(source.node)
        && let Some(before) = before(block, op)
    {
        chain.push((op, source));
        source = before;
    }
    // What comes before the first copy is a matter of the source.
    while let Some((op, result)) = chain.last()
        && !copies(block, op)
    {
        source = *result;
        chain.pop();
    }
    let mut dims: Vec<Vec<Part>> = block
        .tensor(source)?
        .dims
        .iter()
        .enumerate()
        .map(|(axis, dim)| match dim.size() {
            Some(1) => Vec::new(),
            size => vec![Part::Source { axis, size }],
        })
        .collect();
    for (op, result) in chain.iter().rev() {
        dims = step(block, op, dims, &block.tensor(*result)?.dims)?;
    }
    let factor = dims.iter().flatten().fold(1u64, |factor, part| match part {
        Part::Copies(count) => factor.saturating_mul(*count),
        Part::Source { .. } => factor,
    });
    Some(Repeat {
        source,
        factor,
        dims,
    })
}

/// The one value that a layout operation arranges.
fn before(block: &Block<'_>, op: &Operation) -> Option<ValueId> {
    match op.op_type() {
        "transpose" | "tile" | "reshape" | "expand_dims" | "squeeze" | "identity" => op.value("x"),
        // An index known only when the model runs picks, it does not repeat.
        "gather" => op
            .value("x")
            .filter(|_| block.ints_of(op, "indices").is_some()),
        "concat" | "stack" => {
            let bindings = &op.argument("values")?.bindings;
            let Some(Binding::Value(first)) = bindings.first() else {
                return None;
            };
            let same =
                |binding: &Binding| matches!(binding, Binding::Value(value) if value == first);
            (bindings.len() > 1 && bindings.iter().all(same)).then_some(*first)
        }
        _ => None,
    }
}

fn copies(block: &Block<'_>, op: &Operation) -> bool {
    match op.op_type() {
        "tile" => block
            .ints_of(op, "reps")
            .is_some_and(|reps| reps.iter().any(|count| *count > 1)),
        "concat" | "stack" | "gather" => true,
        _ => false,
    }
}

/// The parts of each dimension after one operation.
fn step(
    block: &Block<'_>,
    op: &Operation,
    mut dims: Vec<Vec<Part>>,
    after: &[Dim],
) -> Option<Vec<Vec<Part>>> {
    match op.op_type() {
        "identity" => Some(dims),
        "transpose" => {
            let perm = block.ints_of(op, "perm")?;
            let perm = perm.iter().map(|axis| place(*axis, dims.len()));
            perm.map(|axis| dims.get(axis?).cloned()).collect()
        }
        "tile" => {
            let reps = block.ints_of(op, "reps")?;
            if reps.len() != dims.len() {
                return None;
            }
            for (parts, count) in dims.iter_mut().zip(reps) {
                if count != 1 {
                    parts.insert(0, Part::Copies(u64::try_from(count).ok()?));
                }
            }
            Some(dims)
        }
        "concat" => {
            if block.bool_or(op, "interleave", false)? {
                return None;
            }
            let count = op.argument("values")?.bindings.len() as u64;
            let axis = place(block.int_of(op, "axis")?, dims.len())?;
            dims.get_mut(axis)?.insert(0, Part::Copies(count));
            Some(dims)
        }
        "stack" => {
            let count = op.argument("values")?.bindings.len() as u64;
            let axis = place(block.int_of(op, "axis")?, dims.len() + 1)?;
            dims.insert(axis, vec![Part::Copies(count)]);
            Some(dims)
        }
        "gather" => {
            let axis = place(block.int_of(op, "axis").unwrap_or(0), dims.len())?;
            if after.len() != dims.len() || block.int_of(op, "batch_dims").unwrap_or(0) != 0 {
                return None;
            }
            let indices = block.ints_of(op, "indices")?;
            let parts = dims.get_mut(axis)?;
            let size = parts
                .iter()
                .try_fold(1u64, |size, part| size.checked_mul(part.size()?))?;
            let copies = (indices.len() as u64).checked_div(size)?;
            let is = |index: fn(u64, u64, u64) -> u64| {
                copies > 1
                    && indices.len() as u64 == copies * size
                    && indices.iter().enumerate().all(|(at, found)| {
                        u64::try_from(*found) == Ok(index(at as u64, copies, size))
                    })
            };
            if is(|at, copies, _| at / copies) {
                parts.push(Part::Copies(copies));
            } else if is(|at, _, size| at % size) {
                parts.insert(0, Part::Copies(copies));
            } else {
                return None;
            }
            Some(dims)
        }
        // The parts stay in order, and the new dimensions are cut of them.
        "reshape" | "expand_dims" | "squeeze" => regroup(dims.concat(), after),
        _ => None,
    }
}

/// Cuts a row of parts into dimensions of these sizes.
fn regroup(parts: Vec<Part>, after: &[Dim]) -> Option<Vec<Vec<Part>>> {
    let mut parts: Vec<Part> = parts.into_iter().rev().collect();
    let mut dims = Vec::with_capacity(after.len());
    for dim in after {
        let mut group = Vec::new();
        match dim.size() {
            None => match parts.pop()? {
                part if part.size().is_none() => group.push(part),
                _ => return None,
            },
            Some(mut rest) => {
                while rest > 1 {
                    let part = parts.pop()?;
                    let size = part.size()?;
                    if size == 0 {
                        return None;
                    }
                    if rest.is_multiple_of(size) {
                        group.push(part);
                        rest /= size;
                    } else if size.is_multiple_of(rest) {
                        group.push(with_size(part, rest));
                        parts.push(with_size(part, size / rest));
                        rest = 1;
                    } else {
                        return None;
                    }
                }
            }
        }
        dims.push(group);
    }
    parts.is_empty().then_some(dims)
}

fn with_size(part: Part, size: u64) -> Part {
    match part {
        Part::Source { axis, .. } => Part::Source {
            axis,
            size: Some(size),
        },
        Part::Copies(_) => Part::Copies(size),
    }
}

/// An axis that may count from the end.
fn place(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    let axis = if axis < 0 { axis + rank } else { axis };
    usize::try_from(axis)
        .ok()
        .filter(|axis| (*axis as i64) < rank)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::sample::Sample;

    fn heads(input: &str, operations: &str) -> (String, u64, bool) {
        let sample = Sample::new(input, operations, "y");
        let block = sample.block();
        let repeat = of(&block, sample.value("y")).unwrap();
        let name = block.graph.name(repeat.source).to_owned();
        (name, repeat.factor, repeat.is_interleaved(1))
    }

    #[test]
    fn interleaved_copies_by_transposes_around_a_tile() {
        let operations = "
            tensor<fp16, [2, 1, 8, 16]> a = transpose(perm = tensor<int32, [4]>([1, 0, 2, 3]), x = k);
            tensor<fp16, [4, 1, 8, 16]> b = tile(reps = tensor<int32, [4]>([2, 1, 1, 1]), x = a);
            tensor<fp16, [2, 2, 1, 8, 16]> c = reshape(shape = tensor<int32, [5]>([2, 2, 1, 8, 16]), x = b);
            tensor<fp16, [2, 2, 1, 8, 16]> d = transpose(perm = tensor<int32, [5]>([1, 0, 2, 3, 4]), x = c);
            tensor<fp16, [4, 1, 8, 16]> e = reshape(shape = tensor<int32, [4]>([4, 1, 8, 16]), x = d);
            tensor<fp16, [1, 4, 8, 16]> y = transpose(perm = tensor<int32, [4]>([1, 0, 2, 3]), x = e);";
        let found = heads("tensor<fp16, [1, 2, 8, 16]> k", operations);
        assert_eq!(found, ("a".to_owned(), 2, true));
    }

    #[test]
    fn copies_of_an_unknown_number_of_keys() {
        let operations = "
            tensor<fp16, [4, 1, ?, 16]> b = tile(reps = tensor<int32, [4]>([2, 1, 1, 1]), x = k);
            tensor<fp16, [2, 2, 1, ?, 16]> c = reshape(shape = s, x = b);
            tensor<fp16, [2, 2, 1, ?, 16]> d = transpose(perm = tensor<int32, [5]>([1, 0, 2, 3, 4]), x = c);
            tensor<fp16, [1, 4, ?, 16]> y = reshape(shape = t, x = d);";
        let inputs = "tensor<fp16, [2, 1, ?, 16]> k, tensor<int32, [5]> s, tensor<int32, [4]> t";
        assert_eq!(heads(inputs, operations), ("k".to_owned(), 2, true));
    }

    #[test]
    fn copies_on_a_dimension_of_their_own() {
        let operations = "
            tensor<fp16, [1, 2, 1, 8, 16]> a = expand_dims(axes = tensor<int32, [1]>([2]), x = k);
            tensor<fp16, [1, 2, 3, 8, 16]> b = tile(reps = tensor<int32, [5]>([1, 1, 3, 1, 1]), x = a);
            tensor<fp16, [1, 6, 8, 16]> y = reshape(shape = tensor<int32, [4]>([1, 6, 8, 16]), x = b);";
        let found = heads("tensor<fp16, [1, 2, 8, 16]> k", operations);
        assert_eq!(found, ("a".to_owned(), 3, true));
    }

    #[test]
    fn a_concat_of_one_value_repeats_all_heads_in_turn() {
        let operations = "
            tensor<fp16, [1, 4, 8, 16]> y = concat(axis = int32(1), interleave = bool(false), values = (k, k));";
        let found = heads("tensor<fp16, [1, 2, 8, 16]> k", operations);
        assert_eq!(found, ("k".to_owned(), 2, false));
    }

    #[test]
    fn a_stack_of_one_value() {
        let operations = "
            tensor<fp16, [1, 2, 2, 8, 16]> a = stack(axis = int32(2), values = (k, k));
            tensor<fp16, [1, 4, 8, 16]> y = reshape(shape = tensor<int32, [4]>([1, 4, 8, 16]), x = a);";
        let found = heads("tensor<fp16, [1, 2, 8, 16]> k", operations);
        assert_eq!(found, ("k".to_owned(), 2, true));
    }

    #[test]
    fn a_gather_of_every_head_twice() {
        let operations = "
            tensor<fp16, [1, 4, 8, 16]> y = gather(axis = int32(1), batch_dims = int32(0), indices = tensor<int32, [4]>([0, 0, 1, 1]), validate_indices = bool(false), x = k);";
        let found = heads("tensor<fp16, [1, 2, 8, 16]> k", operations);
        assert_eq!(found, ("k".to_owned(), 2, true));
    }

    #[test]
    fn a_value_that_is_not_repeated_is_its_own_source() {
        let operations = "
            tensor<fp16, [1, 2, 8, 16]> y = transpose(perm = tensor<int32, [4]>([0, 2, 1, 3]), x = k);";
        let found = heads("tensor<fp16, [1, 8, 2, 16]> k", operations);
        assert_eq!(found, ("y".to_owned(), 1, false));
    }

    #[test]
    fn a_gather_in_another_order_is_not_followed() {
        let operations = "
            tensor<fp16, [1, 4, 8, 16]> y = gather(axis = int32(1), batch_dims = int32(0), indices = tensor<int32, [4]>([0, 1, 1, 0]), validate_indices = bool(false), x = k);";
        let sample = Sample::new("tensor<fp16, [1, 2, 8, 16]> k", operations, "y");
        assert_eq!(of(&sample.block(), sample.value("y")), None);
    }
}
