//! The residual stream of a transformer: the values that each layer reads through a norm and adds to.
//!
//! ```text
//! s0 = the embedding, also times √h or plus the positions
//! s1 = add(s0, branch(norm(s0)))                  attention; operands in either order
//! s2 = add(s1, branch(norm(s1)))                  the feed-forward part
//! …    norm(sN)                                   read at the end
//! ```
//!
//! It is found from the graph, not from names: a stream goes from a value that a norm reads to each
//! `add` that has it as an operand, behind `cast`, `identity`, `reshape`, `transpose`, `expand_dims` and
//! `squeeze`, and from there on. Branches may end in a norm of their own (Gemma). What adds first and
//! normalizes the sum for all readers (BERT) has no stream: nothing is added to what was added.

use std::collections::{BTreeMap, BTreeSet};

use super::norm::{self, Found};
use crate::ir::{NodeId, ValueId};
use crate::pass::Block;

/// A residual stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Stream {
    /// The value before the first addition.
    pub start: ValueId,
    /// The additions, in order.
    pub writes: Vec<Write>,
    /// What else reads the values of the stream, in the order of these values.
    pub readers: Vec<Reader>,
}

/// An addition to the stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Write {
    /// The `add`.
    pub add: NodeId,
    /// The parameter to which the stream is bound: `x` or `y`.
    pub stream: &'static str,
    /// What is added.
    pub branch: ValueId,
}

/// A reader of the stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reader {
    /// What it reads: 0 is the start, n the result of the n-th addition.
    pub at: usize,
    /// The operation: the root of a norm, or any other that is not part of one.
    pub node: NodeId,
    /// Whether it is a norm.
    pub is_norm: bool,
}

impl Stream {
    /// The values of the stream: the start, and the result of each addition.
    pub fn values(&self) -> impl Iterator<Item = ValueId> + '_ {
        let sums = self.writes.iter().map(|write| ValueId::first(write.add));
        std::iter::once(self.start).chain(sums)
    }
}

/// What keeps the elements of a stream.
const TRANSPARENT: [&str; 6] = [
    "cast",
    "identity",
    "reshape",
    "transpose",
    "expand_dims",
    "squeeze",
];

/// The longest residual stream of a block, if one has at least two additions.
pub fn longest(block: &Block<'_>) -> Option<Stream> {
    let order = block.graph.schedule().ok()?;
    // The norms that read each value, and the operations that are part of a norm.
    let mut norms: BTreeMap<ValueId, Vec<NodeId>> = BTreeMap::new();
    let mut parts = BTreeSet::new();
    for node in order.iter() {
        if let Found::Norm(found) = norm::at(block, *node) {
            let read = norm::behind(block, found.x, &TRANSPARENT);
            norms.entry(read).or_default().push(*node);
            parts.extend(found.square.map(|(square, _)| square));
            parts.insert(found.centred.node);
        }
    }
    // Of each value of a stream: how long the stream is there, and by which addition it got there.
    let mut chains: BTreeMap<ValueId, (usize, Write)> = BTreeMap::new();
    let origin = |side| norm::behind(block, side, &TRANSPARENT);
    for node in order.iter() {
        let Some(add) = block.op_of_type(*node, "add") else {
            continue;
        };
        let (Some(x), Some(y)) = (add.value("x"), add.value("y")) else {
            continue;
        };
        let length = |side: ValueId| {
            let origin = origin(side);
            let chain = chains.get(&origin).map(|(length, _)| *length);
            chain.or_else(|| norms.contains_key(&origin).then_some(0))
        };
        // Of two streams that meet, the longer one goes on.
        let (length, stream, branch) = match (length(x), length(y)) {
            (Some(x), Some(other)) if other > x => (other, "y", add.value("x")),
            (Some(x), _) => (x, "x", Some(y)),
            (None, Some(y)) => (y, "y", Some(x)),
            (None, None) => continue,
        };
        let Some(branch) = branch else { continue };
        let write = Write {
            add: *node,
            stream,
            branch,
        };
        chains.insert(ValueId::first(*node), (length + 1, write));
    }
    let end = chains
        .iter()
        .filter(|(value, _)| norms.contains_key(value) || block.graph.is_output(**value))
        .max_by_key(|(_, (length, _))| *length)
        .filter(|(_, (length, _))| *length > 1)
        .map(|(value, _)| *value)?;
    let (mut writes, mut value) = (Vec::new(), end);
    while let Some((_, write)) = chains.get(&value) {
        writes.push(*write);
        value = origin(block.op(write.add)?.value(write.stream)?);
    }
    writes.reverse();
    let mut stream = Stream {
        start: value,
        writes,
        readers: Vec::new(),
    };
    stream.readers = readers(block, &stream, &norms, &parts);
    Some(stream)
}

/// What reads the values of a stream, but for its additions and the insides of norms.
fn readers(
    block: &Block<'_>,
    stream: &Stream,
    norms: &BTreeMap<ValueId, Vec<NodeId>>,
    parts: &BTreeSet<NodeId>,
) -> Vec<Reader> {
    let writes: BTreeSet<NodeId> = stream.writes.iter().map(|write| write.add).collect();
    let mut readers = Vec::new();
    for (at, value) in stream.values().enumerate() {
        let roots = norms.get(&value).map(Vec::as_slice).unwrap_or_default();
        let mut reader = |node: NodeId, is_norm: bool| readers.push(Reader { at, node, is_norm });
        for root in roots {
            reader(*root, true);
        }
        let mut others: BTreeSet<NodeId> = BTreeSet::new();
        let mut pending = vec![value];
        while let Some(value) = pending.pop() {
            for reader in block.graph.uses(value) {
                let node = reader.user;
                let is_copy = block
                    .op(node)
                    .is_some_and(|op| TRANSPARENT.contains(&op.op_type()));
                if is_copy {
                    pending.push(ValueId::first(node));
                } else if !writes.contains(&node)
                    && !roots.contains(&node)
                    && !parts.contains(&node)
                {
                    others.insert(node);
                }
            }
        }
        for node in others {
            reader(node, false);
        }
    }
    readers
}

#[cfg(test)]
mod tests {
    use super::{Stream, longest};
    use crate::analysis::sample::Sample;

    const INPUTS: &str = "tensor<fp16, [2, 8]> s0";

    fn rms(of: &str, n: usize) -> String {
        format!(
            "tensor<fp16, [2, 8]> q{n} = square(x = {of});
             tensor<fp16, [2, 1]> m{n} = reduce_mean(x = q{n}, axes = tensor<int32, [1]>([-1]), keep_dims = bool(true));
             tensor<fp16, [2, 1]> r{n} = rsqrt(x = m{n}, epsilon = fp32(1e-6));
             tensor<fp16, [2, 8]> n{n} = mul(x = {of}, y = r{n});\n"
        )
    }

    /// Layers that read s0, s1, … and add to them, and a norm at the end.
    fn layers(count: usize, sum: impl Fn(usize) -> String) -> String {
        let mut text = String::new();
        for n in 0..count {
            text += &rms(&format!("s{n}"), n);
            text += format!("tensor<fp16, [2, 8]> b{n} = silu(x = n{n});\n").as_str();
            text += &sum(n);
        }
        text + &rms(&format!("s{count}"), count)
    }

    fn names(sample: &Sample, stream: &Stream) -> Vec<String> {
        let graph = sample.block().graph;
        let names = stream.values().map(|value| graph.name(value).to_owned());
        names.collect()
    }

    #[test]
    fn each_layer_adds_to_the_stream() {
        let text = layers(4, |n| {
            let next = n + 1;
            let sides = match n % 2 {
                0 => format!("x = s{n}, y = b{n}"),
                _ => format!("x = b{n}, y = s{n}"),
            };
            format!("tensor<fp16, [2, 8]> s{next} = add({sides});\n")
        });
        let sample = Sample::new(INPUTS, &text, "n4");
        let stream = longest(&sample.block()).unwrap();
        assert_eq!(names(&sample, &stream), ["s0", "s1", "s2", "s3", "s4"]);
        assert_eq!(stream.writes[1].branch, sample.value("b1"));
        assert_eq!(stream.writes[1].stream, "y");
        let norms: Vec<_> = stream.readers.iter().map(|r| (r.at, r.node)).collect();
        let roots = ["n0", "n1", "n2", "n3", "n4"].map(|name| sample.node(name));
        assert_eq!(norms, roots.into_iter().enumerate().collect::<Vec<_>>());
        assert!(stream.readers.iter().all(|reader| reader.is_norm));
    }

    #[test]
    fn casts_and_shapes_between_belong_to_the_stream() {
        let text = layers(2, |n| {
            let next = n + 1;
            format!(
                "tensor<fp32, [2, 8]> u{n} = cast(x = s{n}, dtype = string(\"fp32\"));
                 tensor<fp32, [2, 8]> v{n} = cast(x = b{n}, dtype = string(\"fp32\"));
                 tensor<fp32, [2, 8]> w{n} = add(x = u{n}, y = v{n});
                 tensor<fp16, [2, 8]> s{next} = cast(x = w{n}, dtype = string(\"fp16\"));\n"
            )
        });
        let sample = Sample::new(INPUTS, &text, "n2");
        let stream = longest(&sample.block()).unwrap();
        assert_eq!(names(&sample, &stream), ["s0", "w0", "w1"]);
    }

    #[test]
    fn what_normalizes_every_sum_for_all_has_no_stream() {
        let mut text = String::new();
        for n in 0..3 {
            let of = if n == 0 {
                "s0".to_owned()
            } else {
                format!("y{}", n - 1)
            };
            text += format!(
                "tensor<fp16, [2, 8]> b{n} = silu(x = {of});
                 tensor<fp16, [2, 8]> a{n} = add(x = {of}, y = b{n});
                 tensor<fp16, [2, 8]> y{n} = layer_norm(x = a{n}, axes = tensor<int32, [1]>([-1]));\n"
            )
            .as_str();
        }
        let sample = Sample::new(INPUTS, &text, "y2");
        assert_eq!(longest(&sample.block()), None);
    }

    #[test]
    fn another_reader_is_named() {
        let text = layers(2, |n| {
            let next = n + 1;
            format!("tensor<fp16, [2, 8]> s{next} = add(x = s{n}, y = b{n});\n")
        }) + "tensor<fp16, [2, 8]> tap = relu(x = s1);\n";
        let sample = Sample::new(INPUTS, &text, "n2");
        let stream = longest(&sample.block()).unwrap();
        let others: Vec<_> = stream.readers.iter().filter(|r| !r.is_norm).collect();
        assert_eq!(others.len(), 1);
        assert_eq!((others[0].at, others[0].node), (1, sample.node("tap")));
    }
}
