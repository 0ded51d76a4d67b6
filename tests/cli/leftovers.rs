//! Finds what the default pipeline should not leave, by other means than the passes: a plain look
//! at each operation of a written package.

use std::path::Path;

use milwright::ir::{Binding, Content, DType, Graph, Node, NodeId, Operation, Value, ValueId};
use milwright::package::Weights;
use milwright::source::ModelFile;

/// Exponents that have another form.
const KNOWN_EXPONENTS: [f64; 7] = [-1.0, -0.5, 0.5, 1.0, 2.0, 3.0, 4.0];

/// The smallest normal numbers of fp16 and fp32.
const SMALLEST_FP16: f64 = 6.103_515_625e-5;
const SMALLEST_FP32: f64 = 1.175_494_350_822_287_5e-38;

/// Operations that only move or retype a constant.
const CARRIERS: [&str; 7] = [
    "cast",
    "identity",
    "reshape",
    "expand_dims",
    "squeeze",
    "transpose",
    "tile",
];

/// A line for each thing left in any program of the package.
pub(crate) fn leftovers(package: &Path) -> Vec<String> {
    let file = ModelFile::open(package).unwrap();
    let mut found = Vec::new();
    for part in file.model.programs() {
        for (name, function) in &part.program.functions {
            for (opset, body) in &function.specializations {
                let mut search = Search {
                    weights: file.weights(),
                    graphs: vec![&body.graph],
                    wide_epsilon: opset.as_str() >= "CoreML7",
                    found: &mut found,
                };
                search.graph(name);
            }
        }
    }
    found
}

struct Search<'a> {
    weights: &'a Weights,
    /// The block under search and those around it, the outermost first.
    graphs: Vec<&'a Graph>,
    /// Whether `rsqrt` takes an fp32 epsilon whatever x is.
    wide_epsilon: bool,
    found: &'a mut Vec<String>,
}

/// Whether an operation makes an output from an input: one that changes nothing stays then, since
/// both names are the application's.
fn is_bound(graph: &Graph, node: NodeId, op: &Operation) -> bool {
    let source = |value: ValueId| match graph.producer(value) {
        Some(inner) if inner.op_type() == "cast" => inner.value("x").unwrap_or(value),
        _ => value,
    };
    let from_input = op
        .value("x")
        .is_some_and(|x| matches!(graph.node(source(x).node), Some(Node::Input(..))));
    op.op_type() == "cast" && from_input && graph.is_output(ValueId::first(node))
}

impl Search<'_> {
    fn graph(&mut self, function: &str) {
        let depth = self.graphs.len() - 1;
        let graph = self.graphs[depth];
        for (node, op) in graph.ops() {
            let what = match op.op_type() {
                _ if is_bound(graph, node, op) => None,
                "pow" => self.power(op, depth),
                "rsqrt" => self.guarded(op.value("x"), depth),
                "real_div" => self.quotient_of_root(op, depth),
                "cast" => self.cast(op, depth),
                _ => None,
            };
            if let Some(what) = what {
                let name = graph.name(ValueId::first(node));
                self.found
                    .push(format!("{function}/{name} ({}): {what}", op.op_type()));
            }
            for inner in op.blocks() {
                self.graphs.push(inner);
                self.graph(function);
                self.graphs.pop();
            }
        }
    }

    fn power(&self, op: &Operation, depth: usize) -> Option<String> {
        let exponent = self.number(op.binding("y")?, depth)?;
        let whole = !self.dtype(op.value("x")?, depth)?.is_float();
        let known = KNOWN_EXPONENTS.contains(&exponent) && (!whole || exponent >= 1.0);
        let base = self.graphs[depth].ty(op.value("x")?)?;
        let grows = op.results().first()?.ty.as_ref()? != base;
        (known && !grows).then(|| format!("exponent {exponent}"))
    }

    /// An epsilon that could stand in `rsqrt`: for `rsqrt(v + c)`.
    fn guarded(&self, under: Option<ValueId>, depth: usize) -> Option<String> {
        let graph = self.graphs[depth];
        let (sum, value) = (graph.producer(under?)?, under?);
        if sum.op_type() != "add" || graph.uses(value).count() != 1 {
            return None;
        }
        let number = |side: &str| self.number(sum.binding(side)?, depth);
        let (guard, other) = match (number("x"), number("y")) {
            (Some(c), None) => (c, sum.value("y")?),
            (None, Some(c)) => (c, sum.value("x")?),
            _ => return None,
        };
        let smallest = match self.dtype(value, depth)? {
            DType::Float16 if !self.wide_epsilon => SMALLEST_FP16,
            _ => SMALLEST_FP32,
        };
        let same_type = graph.ty(other)? == graph.ty(value)?;
        (same_type && guard >= smallest && guard.is_finite())
            .then(|| format!("{guard} is added before"))
    }

    fn quotient_of_root(&self, op: &Operation, depth: usize) -> Option<String> {
        let graph = self.graphs[depth];
        let root = op.value("y")?;
        let of = graph.producer(root)?;
        let is_inverse = self.number(op.binding("x")?, depth) == Some(1.0)
            && of.op_type() == "sqrt"
            && graph.uses(root).count() == 1;
        is_inverse.then(|| self.guarded(of.value("x"), depth))?
    }

    fn cast(&self, op: &Operation, depth: usize) -> Option<String> {
        let graph = self.graphs[depth];
        let x = op.value("x")?;
        let from = self.dtype(x, depth)?;
        let to = op.results().first()?.ty.as_ref()?.as_tensor()?.dtype;
        if from == to {
            return Some("to its own type".to_owned());
        }
        let inner = graph.producer(x)?;
        if inner.op_type() != "cast" {
            return None;
        }
        let first = self.dtype(inner.value("x")?, depth)?;
        keeps(first, from).then(|| format!("{first} to {from} to {to}"))
    }

    fn dtype(&self, value: ValueId, depth: usize) -> Option<DType> {
        Some(self.graphs[depth].ty(value)?.as_tensor()?.dtype)
    }

    /// The one number that all elements of a constant are.
    fn number(&self, binding: &Binding, depth: usize) -> Option<f64> {
        match binding {
            Binding::Immediate(value) => self.uniform(value),
            Binding::Value(value) => self.number_of(*value, depth),
            Binding::Absent => None,
        }
    }

    fn number_of(&self, value: ValueId, depth: usize) -> Option<f64> {
        match self.graphs[depth].node(value.node)? {
            Node::Capture { source, .. } => self.number_of(*source, depth.checked_sub(1)?),
            Node::Op(op) if CARRIERS.contains(&op.op_type()) => {
                self.number(op.binding("x")?, depth)
            }
            Node::Op(op) => self.uniform(op.const_value()?),
            _ => None,
        }
    }

    fn uniform(&self, value: &Value) -> Option<f64> {
        let dtype = value.tensor_type()?.dtype;
        let bytes = match &value.content {
            Content::Blob(blob) => self.weights.blob(&blob.file, blob.offset).ok()?.data,
            _ => &value.tensor_bytes()?,
        };
        let numbers = numbers(dtype, bytes)?;
        let first = *numbers.first()?;
        numbers.iter().all(|one| *one == first).then_some(first)
    }
}

fn numbers(dtype: DType, bytes: &[u8]) -> Option<Vec<f64>> {
    Some(match dtype {
        DType::Float16 => bytes
            .chunks_exact(2)
            .map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f64())
            .collect(),
        DType::Float32 => bytes
            .chunks_exact(4)
            .map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])))
            .collect(),
        DType::Int32 => bytes
            .chunks_exact(4)
            .map(|b| f64::from(i32::from_le_bytes([b[0], b[1], b[2], b[3]])))
            .collect(),
        _ => return None,
    })
}

/// Whether a cast from `from` to `to` changes no value, by the bits that each type has for whole
/// numbers and for fractions.
fn keeps(from: DType, to: DType) -> bool {
    let whole = |dtype: DType| match dtype {
        DType::Bool => Some((false, 1)),
        DType::Int8 => Some((true, 7)),
        DType::UInt8 => Some((false, 8)),
        DType::Int16 => Some((true, 15)),
        DType::UInt16 => Some((false, 16)),
        DType::Int32 => Some((true, 31)),
        _ => None,
    };
    match (whole(from), whole(to), to) {
        (Some((signed, bits)), Some((to_signed, to_bits)), _) => {
            bits <= to_bits && (to_signed || !signed)
        }
        (Some((_, bits)), None, DType::Float16) => bits <= 11,
        (Some((_, bits)), None, DType::Float32) => bits <= 24,
        (None, None, DType::Float32) => from == DType::Float16,
        _ => false,
    }
}
