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
//! `add` that has it as an operand, behind `cast`, `clip`, `identity`, `reshape`, `transpose`,
//! `expand_dims` and `squeeze`, and from there on. Branches may end in a norm of their own (Gemma). What
//! adds first and normalizes the sum for all readers (BERT) has no stream: nothing is added to what was
//! added. ANEMLL clips each sum; such a `clip` is a copy of the stream like a cast.
//!
//! Layers are found from what is added, see [`Stream::layers`]. How far a stream has to be scaled for
//! fp16 is [`alpha`] and [`power_of_two`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::norm::{self, Found};
use crate::ir::{NodeId, Operation, ValueId};
use crate::pass::Block;

/// Where a scaled stream should peak. Source: ANEMLL, docs/FP16_SCALING.md (target_max, 50 000).
pub const TARGET: f64 = 50_000.0;

/// The highest peak that is left to a stream that is scaled by a power of two. Source: the scaled peaks
/// that ANEMLL publishes lie between 50 000 and 55 000, the value of its clamp.
pub const CEILING: f64 = 55_000.0;

/// The factor that brings a peak down to [`TARGET`]; 1 if it is not above. Source: ANEMLL,
/// docs/FP16_SCALING.md: α = target / peak, 0.48 for the 104 162 of gemma-3-270m.
pub fn alpha(peak: f64) -> f64 {
    if peak.is_finite() && peak > TARGET {
        TARGET / peak
    } else {
        1.0
    }
}

/// The greatest of 1, 1/2, 1/4, … that brings a peak down to [`CEILING`] or below: 1/2 for the 104 162 of
/// gemma-3-270m, 1/8 for 292 969. It changes no bit but the exponent of a normal number.
pub fn power_of_two(peak: f64) -> f64 {
    let mut factor = 1.0;
    if peak.is_finite() {
        while peak * factor > CEILING {
            factor *= 0.5;
        }
    }
    factor
}

/// A residual stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Stream {
    /// The value before the first addition.
    pub start: ValueId,
    /// The additions, in order.
    pub writes: Vec<Write>,
    /// What else reads the values of the stream, in the order of these values.
    pub readers: Vec<Reader>,
    /// Each `clip` of a value of the stream, in the order of these values.
    pub clips: Vec<NodeId>,
    /// The values of the stream, or copies of them, that the block gives out, each with what it is a
    /// copy of: 0 is the start, n the result of the n-th addition.
    pub outputs: Vec<(usize, ValueId)>,
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
    /// The operation: the root of a norm, or any other that is not part of one, also one that reads
    /// what a norm computes on the way.
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
const TRANSPARENT: [&str; 7] = [
    "cast",
    "clip",
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
            parts.extend(norm::inside(block, &found));
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
    let outputs: BTreeSet<ValueId> = block.graph.outputs().iter().copied().map(origin).collect();
    let end = chains
        .iter()
        .filter(|(value, _)| norms.contains_key(value) || outputs.contains(value))
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
        clips: Vec::new(),
        outputs: Vec::new(),
    };
    read(block, &mut stream, &norms, &parts);
    Some(stream)
}

/// Finds what reads the values of a stream, but for its additions and the insides of norms.
fn read(
    block: &Block<'_>,
    stream: &mut Stream,
    norms: &BTreeMap<ValueId, Vec<NodeId>>,
    parts: &BTreeSet<NodeId>,
) {
    let writes: BTreeSet<NodeId> = stream.writes.iter().map(|write| write.add).collect();
    let values: Vec<ValueId> = stream.values().collect();
    for (at, value) in values.into_iter().enumerate() {
        let roots = norms.get(&value).map(Vec::as_slice).unwrap_or_default();
        let mut reader = |node: NodeId, is_norm: bool| {
            stream.readers.push(Reader { at, node, is_norm });
        };
        for root in roots {
            reader(*root, true);
        }
        let mut others: BTreeSet<NodeId> = BTreeSet::new();
        let mut clips: BTreeSet<NodeId> = BTreeSet::new();
        let mut seen = BTreeSet::new();
        // What has been scaled where the stream is; what a norm makes of it on the way is not.
        let mut pending = vec![(value, true)];
        while let Some((value, is_copy)) = pending.pop() {
            if is_copy && block.graph.is_output(value) {
                stream.outputs.push((at, value));
            }
            for reader in block.graph.uses(value) {
                let node = reader.user;
                let op_type = block.op(node).map(Operation::op_type);
                if roots.contains(&node) || (is_copy && writes.contains(&node)) {
                    continue;
                }
                if parts.contains(&node) {
                    if seen.insert(node) {
                        let count = block.op(node).map_or(0, |op| op.results().len() as u32);
                        let results = (0..count).map(|result| ValueId { node, result });
                        pending.extend(results.map(|value| (value, false)));
                    }
                } else if is_copy && keeps(block, node) {
                    if op_type == Some("clip") {
                        clips.insert(node);
                    }
                    pending.push((ValueId::first(node), true));
                } else if block.op(node).is_some() {
                    others.insert(node);
                }
            }
        }
        for node in others {
            reader(node, false);
        }
        stream.clips.extend(clips);
    }
}

/// Whether the result of an operation is a copy of its x.
fn keeps(block: &Block<'_>, node: NodeId) -> bool {
    let result = ValueId::first(node);
    block.op(node).is_some_and(|op| {
        TRANSPARENT.contains(&op.op_type())
            && op.value("x").is_some_and(|x| norm::is_wide(block, x))
            && norm::is_wide(block, result)
    })
}

/// What a branch computes, as far as it depends on the stream.
#[derive(PartialEq)]
struct Branch<'a> {
    /// The types of its operations, sorted, without those that keep the elements.
    types: Vec<&'a str>,
    /// Whether it lets the rows of a sequence see each other.
    mixes: bool,
}

impl Stream {
    /// Each value of the stream and each copy of it, with what it is a copy of: 0 is the start, n the
    /// result of the n-th addition.
    pub fn copies(&self, block: &Block<'_>) -> BTreeMap<ValueId, usize> {
        let mut copies = BTreeMap::new();
        let mut pending: Vec<(usize, ValueId)> = self.values().enumerate().collect();
        while let Some((at, value)) = pending.pop() {
            copies.insert(value, at);
            let uses = block.graph.uses(value).map(|site| site.user);
            let users = uses.filter(|user| keeps(block, *user));
            pending.extend(users.map(|user| (at, ValueId::first(user))));
        }
        copies
    }

    /// The layers, as ranges of writes, from the first write to the last.
    ///
    /// A branch that has an attention (a softmax and a product of two computed values, or
    /// `scaled_dot_product_attention`) or reads a state begins a layer, if the first branch is one and
    /// all layers then have as many writes. Otherwise a layer ends at each write whose branch is made of
    /// the same operations as the last one's.
    pub fn layers(&self, block: &Block<'_>) -> Vec<Range<usize>> {
        let count = self.writes.len();
        let Some(branches) = self.branches(block) else {
            return std::iter::once(0..count).collect();
        };
        let begins: Vec<usize> = (0..count).filter(|at| branches[*at].mixes).collect();
        let ends: Vec<usize> = begins.iter().skip(1).copied().chain([count]).collect();
        let layers = || begins.iter().zip(&ends).map(|(begin, end)| *begin..*end);
        let size = ends.first().copied().unwrap_or_default();
        if begins.first() == Some(&0) && layers().all(|layer| layer.len() == size) {
            return layers().collect();
        }
        let mut begin = 0;
        let mut layers = Vec::new();
        for at in 0..count {
            if branches[at] == branches[count - 1] {
                layers.push(begin..at + 1);
                begin = at + 1;
            }
        }
        layers
    }

    /// What each write adds, in order. Each operation is looked at once: what two branches share is the
    /// first one's.
    fn branches<'a>(&self, block: &Block<'a>) -> Option<Vec<Branch<'a>>> {
        let order = block.graph.schedule().ok()?;
        let ends: BTreeSet<NodeId> = self.values().map(|value| value.node).collect();
        // What is computed of the stream or of a state.
        let mut computed = vec![false; block.graph.bound()];
        for value in self.values() {
            *computed.get_mut(value.node.index())? = true;
        }
        for node in order.iter() {
            let Some(op) = block.op(*node) else { continue };
            let is_computed = op.op_type() == "read_state"
                || op
                    .operands()
                    .any(|value| computed.get(value.node.index()) == Some(&true));
            if is_computed {
                *computed.get_mut(node.index())? = true;
            }
        }
        let is_computed = |value: ValueId| computed.get(value.node.index()) == Some(&true);
        let mut seen = vec![false; block.graph.bound()];
        let mut branches = Vec::new();
        for write in &self.writes {
            let mut types = Vec::new();
            let (mut has_softmax, mut has_product, mut mixes) = (false, false, false);
            let mut pending = vec![write.branch];
            while let Some(value) = pending.pop() {
                let node = value.node;
                if !is_computed(value) || ends.contains(&node) || seen.get(node.index())? == &true {
                    continue;
                }
                *seen.get_mut(node.index())? = true;
                let Some(op) = block.op(node) else { continue };
                match op.op_type() {
                    "softmax" => has_softmax = true,
                    "matmul" | "einsum" => {
                        has_product |=
                            op.operands().filter(|value| is_computed(*value)).count() > 1;
                    }
                    "scaled_dot_product_attention" | "read_state" => mixes = true,
                    _ => {}
                }
                if !TRANSPARENT.contains(&op.op_type()) {
                    types.push(op.op_type());
                }
                pending.extend(op.operands());
            }
            types.sort_unstable();
            mixes |= has_softmax && has_product;
            branches.push(Branch { types, mixes });
        }
        Some(branches)
    }
}

#[cfg(test)]
mod tests {
    use super::{Stream, alpha, longest, power_of_two};
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

    #[test]
    fn a_clip_of_a_sum_belongs_to_the_stream() {
        let text = layers(3, |n| {
            let next = n + 1;
            format!(
                "tensor<fp16, [2, 8]> t{next} = add(x = s{n}, y = b{n});
                 tensor<fp16, [2, 8]> s{next} = clip(x = t{next}, alpha = fp16(-55000), beta = fp16(55000));\n"
            )
        });
        let sample = Sample::new(INPUTS, &text, "n3");
        let stream = longest(&sample.block()).unwrap();
        assert_eq!(names(&sample, &stream), ["s0", "t1", "t2", "t3"]);
        let clips = ["s1", "s2", "s3"].map(|name| sample.node(name));
        assert_eq!(stream.clips, clips);
        assert!(stream.readers.iter().all(|reader| reader.is_norm));
        assert_eq!(stream.readers.len(), 4);
    }

    #[test]
    fn the_parts_of_a_norm_are_no_readers_but_what_reads_them_is_one() {
        let mirrored = |of: &str, n: usize| {
            format!(
                "tensor<fp16, [2, 8]> g{n} = mul(x = {of}, y = fp16(-1));
                 tensor<fp16, [2, 16]> c{n} = concat(values = ({of}, g{n}), axis = int32(-1), interleave = bool(false));
                 tensor<fp16, [2, 16]> l{n} = layer_norm(x = c{n}, axes = tensor<int32, [1]>([-1]), epsilon = fp16(1e-5));
                 tensor<fp16, [2, 8]> n{n} = slice_by_index(x = l{n}, begin = tensor<int32, [2]>([0, 0]), end = tensor<int32, [2]>([2, 8]), end_mask = tensor<bool, [2]>([true, false]));\n"
            )
        };
        let mut text = String::new();
        for n in 0..2 {
            let next = n + 1;
            text += &mirrored(&format!("s{n}"), n);
            text += format!("tensor<fp16, [2, 8]> s{next} = add(x = s{n}, y = n{n});\n").as_str();
        }
        text += &mirrored("s2", 2);
        let sample = Sample::new(INPUTS, &text, "n2");
        let stream = longest(&sample.block()).unwrap();
        assert_eq!(names(&sample, &stream), ["s0", "s1", "s2"]);
        assert!(stream.readers.iter().all(|reader| reader.is_norm));

        let text = text + "tensor<fp16, [2, 8]> tap = relu(x = g1);\n";
        let sample = Sample::new(INPUTS, &text, "n2");
        let stream = longest(&sample.block()).unwrap();
        let others = stream.readers.iter().filter(|reader| !reader.is_norm);
        let others: Vec<_> = others.map(|reader| (reader.at, reader.node)).collect();
        assert_eq!(others, [(1, sample.node("tap"))]);
    }

    #[test]
    fn what_leaves_the_block_is_an_output() {
        let text = layers(2, |n| {
            let next = n + 1;
            format!("tensor<fp16, [2, 8]> s{next} = add(x = s{n}, y = b{n});\n")
        }) + "tensor<fp32, [2, 8]> out = cast(x = s2, dtype = string(\"fp32\"));\n";
        let sample = Sample::new(INPUTS, &text, "out");
        let stream = longest(&sample.block()).unwrap();
        assert_eq!(stream.outputs, [(2, sample.value("out"))]);
    }

    /// Writes of these kinds: `a` an attention, `r` a branch with a router's softmax, any other letter
    /// that many operations.
    fn of_kinds(kinds: &str) -> Vec<std::ops::Range<usize>> {
        let mut text = String::new();
        for (n, kind) in kinds.chars().enumerate() {
            text += &rms(&format!("s{n}"), n);
            let next = n + 1;
            let branch = match kind {
                'a' => format!(
                    "tensor<fp16, [2, 2]> w{n} = matmul(x = n{n}, y = n{n}, transpose_x = bool(false), transpose_y = bool(true));
                     tensor<fp16, [2, 2]> p{n} = softmax(x = w{n}, axis = int32(-1));
                     tensor<fp16, [2, 8]> b{n} = matmul(x = p{n}, y = n{n}, transpose_x = bool(false), transpose_y = bool(false));\n"
                ),
                'r' => format!("tensor<fp16, [2, 8]> b{n} = softmax(x = n{n}, axis = int32(-1));\n"),
                's' => format!("tensor<fp16, [2, 8]> b{n} = silu(x = n{n});\n"),
                _ => format!("tensor<fp16, [2, 8]> b{n} = relu(x = n{n});\n"),
            };
            text += &branch;
            text += format!("tensor<fp16, [2, 8]> s{next} = add(x = s{n}, y = b{n});\n").as_str();
        }
        let end = kinds.len();
        text += &rms(&format!("s{end}"), end);
        let sample = Sample::new(INPUTS, &text, &format!("n{end}"));
        let stream = longest(&sample.block()).unwrap();
        stream.layers(&sample.block())
    }

    #[test]
    fn layers_begin_at_their_attention() {
        assert_eq!(of_kinds("asas"), [0..2, 2..4]);
        assert_eq!(of_kinds("arar"), [0..2, 2..4]);
        assert_eq!(of_kinds("assass"), [0..3, 3..6]);
        assert_eq!(of_kinds("aaa"), [0..1, 1..2, 2..3]);
    }

    #[test]
    fn without_a_regular_attention_layers_end_with_what_the_last_one_ends_with() {
        assert_eq!(of_kinds("ssss"), [0..1, 1..2, 2..3, 3..4]);
        assert_eq!(of_kinds("xsxs"), [0..2, 2..4]);
        assert_eq!(of_kinds("xsasxs"), [0..2, 2..4, 4..6]);
        let all = of_kinds("sasx");
        assert_eq!((all.len(), all[0].clone()), (1, 0..4));
    }

    #[test]
    fn factors_are_those_of_the_published_models() {
        // Peak, α and the scaled peak. Source: ANEMLL, docs/GEMMA3_FP16_SCALING.md.
        for (peak, published) in [(104_162.0, 0.48), (61_040.0, 0.82), (292_969.0, 0.17)] {
            assert!((alpha(peak) - published).abs() < 0.005, "{peak}");
            assert!((alpha(peak) * peak - 50_000.0).abs() < 1e-6);
        }
        for peak in [410.3, 14_858.1, 50_000.0, 0.0, f64::NAN, f64::INFINITY] {
            assert_eq!(alpha(peak), 1.0);
        }
        for (peak, expected) in [
            (104_162.0, 0.5),
            (61_040.0, 0.5),
            (292_969.0, 0.125),
            (258_769.0, 0.125),
            (55_000.0, 1.0),
            (f64::NAN, 1.0),
        ] {
            assert_eq!(power_of_two(peak), expected, "{peak}");
        }
    }
}
