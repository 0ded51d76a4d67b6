//! A function in a few lines for people: interface, operations by type, constants and their bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::words::opset_word;
use super::{Dialect, type_text};
use crate::ir::{
    Binding, BlobRef, Content, DType, Function, Graph, Immediate, NamedType, Operation, TensorData,
    TensorType, Value, ValueType,
};

/// How many of the largest constants are listed.
const LARGEST: usize = 8;

/// What a function consists of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionSummary {
    /// The function's name.
    pub name: String,
    /// Its opset key, such as `CoreML8`.
    pub opset: String,
    /// Inputs that are no states: name and type.
    pub inputs: Vec<(String, String)>,
    /// Inputs that are states: name and type.
    pub states: Vec<(String, String)>,
    /// Outputs: name and type.
    pub outputs: Vec<(String, String)>,
    /// Number of operations, consts and nested blocks included.
    pub operations: usize,
    /// Number of nested blocks.
    pub blocks: usize,
    /// Operation types with their number, the most frequent first, then by name.
    pub op_types: Vec<(String, usize)>,
    /// Opsets of further bodies.
    pub other_opsets: Vec<String>,
    /// Constants stored in the program.
    pub immediate: Storage,
    /// Constants stored in weight files; bytes count each blob once.
    pub blobs: Storage,
    /// Number of different blobs.
    pub distinct_blobs: usize,
    /// Bytes of the blobs by element type, the largest share first, each blob once.
    pub blob_bytes_by_dtype: Vec<(String, u64)>,
    /// The largest constants, largest first.
    pub largest: Vec<LargeConstant>,
}

/// Number of constants of one kind of storage, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Storage {
    /// How many.
    pub count: usize,
    /// Bytes of their packed data (for strings, of their text).
    pub bytes: u64,
}

/// One of the largest constants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LargeConstant {
    /// Name of the value; with the attribute's name behind a dot if that is not `val`.
    pub name: String,
    /// Its type as MIL text.
    pub ty: String,
    /// Bytes of its packed data.
    pub bytes: u64,
    /// The weight file and the position in it, if it is a blob.
    pub blob: Option<BlobRef>,
}

impl FunctionSummary {
    /// Sums up the body that runs (nothing but the interface if there is none).
    pub fn of(name: &str, function: &Function) -> Self {
        let dialect = Dialect::for_opset(&function.opset);
        let line = |named: &NamedType| {
            let ty = named.ty.as_ref();
            let ty = ty.map_or_else(|| "@untyped".to_owned(), |ty| type_text(ty, dialect));
            (named.name.clone(), ty)
        };
        let is_state = |named: &&NamedType| named.ty.as_ref().is_some_and(ValueType::is_state);
        let mut summary = Self {
            name: name.to_owned(),
            opset: function.opset.clone(),
            inputs: function
                .inputs
                .iter()
                .filter(|n| !is_state(n))
                .map(line)
                .collect(),
            states: function.inputs.iter().filter(is_state).map(line).collect(),
            other_opsets: function
                .specializations
                .keys()
                .filter(|opset| **opset != function.opset)
                .cloned()
                .collect(),
            ..Self::default()
        };
        let Some(body) = function.active() else {
            return summary;
        };
        let graph = &body.graph;
        let outputs = graph
            .outputs()
            .iter()
            .filter_map(|value| graph.named(*value));
        summary.outputs = outputs.map(line).collect();
        let mut count = Count {
            dialect,
            ..Count::default()
        };
        count.graph(graph);
        count.finish(&mut summary);
        summary
    }
}

#[derive(Default)]
struct Count {
    dialect: Dialect,
    operations: usize,
    blocks: usize,
    op_types: BTreeMap<String, usize>,
    immediate: Storage,
    blobs: Storage,
    seen: BTreeSet<BlobRef>,
    by_dtype: BTreeMap<String, u64>,
    large: Vec<LargeConstant>,
}

impl Count {
    fn graph(&mut self, graph: &Graph) {
        for (_, op) in graph.ops() {
            self.operations += 1;
            match self.op_types.get_mut(op.op_type()) {
                Some(count) => *count += 1,
                None => {
                    self.op_types.insert(op.op_type().to_owned(), 1);
                }
            }
            for (attribute, value) in op.attributes() {
                if attribute != "name" {
                    self.value(op, attribute, value);
                }
            }
            for argument in op.arguments() {
                for binding in &argument.bindings {
                    if let Binding::Immediate(value) = binding {
                        self.value(op, &argument.parameter, value);
                    }
                }
            }
            for block in op.blocks() {
                self.blocks += 1;
                self.graph(block);
            }
        }
    }

    fn value(&mut self, op: &Operation, place: &str, value: &Value) {
        let declared = value.tensor_type();
        let (bytes, blob) = match &value.content {
            Content::Blob(blob) => {
                let bytes = declared.and_then(TensorType::packed_bytes).unwrap_or(0);
                self.blobs.count += 1;
                if self.seen.insert(blob.clone()) {
                    self.blob_bytes(declared.map(|ty| ty.dtype), bytes);
                }
                (bytes, Some(blob))
            }
            Content::New(new) => {
                self.blobs.count += 1;
                self.blob_bytes(Some(new.dtype), new.bytes.len() as u64);
                (new.bytes.len() as u64, None)
            }
            Content::Immediate(immediate) => {
                let bytes = immediate_bytes(immediate);
                self.immediate.count += 1;
                self.immediate.bytes += bytes;
                (bytes, None)
            }
            Content::Absent => return,
        };
        // Only candidates become text: most constants are small.
        if self.large.len() == LARGEST && self.large.last().is_some_and(|l| l.bytes >= bytes) {
            return;
        }
        let owner = op
            .results()
            .first()
            .map_or(op.op_type(), |result| result.name.as_str());
        let name = match place {
            "val" => owner.to_owned(),
            _ => format!("{owner}.{place}"),
        };
        let ty = value.ty.as_ref();
        let large = LargeConstant {
            name,
            ty: ty.map_or_else(|| "@untyped".to_owned(), |ty| type_text(ty, self.dialect)),
            bytes,
            blob: blob.cloned(),
        };
        let at = self.large.partition_point(|other| other.bytes >= bytes);
        self.large.insert(at, large);
        self.large.truncate(LARGEST);
    }

    fn blob_bytes(&mut self, dtype: Option<DType>, bytes: u64) {
        self.blobs.bytes += bytes;
        let word = dtype.map_or_else(|| "untyped".to_owned(), DType::word);
        *self.by_dtype.entry(word).or_default() += bytes;
    }

    fn finish(self, summary: &mut FunctionSummary) {
        summary.operations = self.operations;
        summary.blocks = self.blocks;
        summary.op_types = self.op_types.into_iter().collect();
        // The sort is stable, so equal counts stay in the order of names.
        summary
            .op_types
            .sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        summary.immediate = self.immediate;
        summary.blobs = self.blobs;
        summary.distinct_blobs = self.seen.len();
        summary.blob_bytes_by_dtype = self.by_dtype.into_iter().collect();
        summary
            .blob_bytes_by_dtype
            .sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        summary.largest = self.large;
    }
}

fn immediate_bytes(immediate: &Immediate) -> u64 {
    let item = |value: &Value| match &value.content {
        Content::Immediate(inner) => immediate_bytes(inner),
        _ => 0,
    };
    match immediate {
        Immediate::Tensor(data) => match data {
            TensorData::Floats(values) => values.len() as u64 * 4,
            TensorData::Ints(values) => values.len() as u64 * 4,
            TensorData::Bools(values) => values.len() as u64,
            TensorData::Strings(values) => values.iter().map(|text| text.len() as u64).sum(),
            TensorData::LongInts(values) => values.len() as u64 * 8,
            TensorData::Doubles(values) => values.len() as u64 * 8,
            TensorData::Bytes(values) => values.len() as u64,
            TensorData::Absent => 0,
        },
        Immediate::Tuple(values) | Immediate::List(values) => values.iter().map(item).sum(),
        Immediate::Dictionary(pairs) => pairs
            .iter()
            .flat_map(|(key, value)| [key, value])
            .flatten()
            .map(item)
            .sum(),
        Immediate::Absent => 0,
    }
}

/// A number of bytes in the largest binary unit below it, with one decimal.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut size = bytes as f64 / 1024.0;
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    format!("{size:.1} {}", UNITS[unit])
}

impl fmt::Display for FunctionSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "function {} ({}", self.name, self.opset)?;
        match opset_word(&self.opset) {
            Some(word) => writeln!(f, ", {word})")?,
            None => writeln!(f, ")")?,
        }
        if !self.other_opsets.is_empty() {
            writeln!(f, "  further bodies for {}", self.other_opsets.join(", "))?;
        }
        for (title, list) in [
            ("inputs", &self.inputs),
            ("states", &self.states),
            ("outputs", &self.outputs),
        ] {
            if !list.is_empty() {
                writeln!(f, "  {title}")?;
            }
            for (name, ty) in list {
                writeln!(f, "    {name}: {ty}")?;
            }
        }
        write!(f, "  operations: {}", self.operations)?;
        match self.blocks {
            0 => writeln!(f)?,
            1 => writeln!(f, ", with 1 nested block")?,
            n => writeln!(f, ", with {n} nested blocks")?,
        }
        let width = self
            .op_types
            .first()
            .map_or(1, |(_, n)| n.to_string().len());
        for (op_type, count) in &self.op_types {
            writeln!(f, "    {count:>width$}  {op_type}")?;
        }
        writeln!(
            f,
            "  constants: {} in the program ({}), {} in weight files ({} in {} blobs)",
            self.immediate.count,
            human_bytes(self.immediate.bytes),
            self.blobs.count,
            human_bytes(self.blobs.bytes),
            self.distinct_blobs,
        )?;
        for (dtype, bytes) in &self.blob_bytes_by_dtype {
            writeln!(f, "    {dtype}: {}", human_bytes(*bytes))?;
        }
        if !self.largest.is_empty() {
            writeln!(f, "  largest constants")?;
        }
        for constant in &self.largest {
            let LargeConstant {
                name,
                ty,
                bytes,
                blob,
            } = constant;
            write!(f, "    {:>9}  {name}: {ty}", human_bytes(*bytes))?;
            match blob {
                Some(blob) => writeln!(f, ", {} at {}", blob.file, blob.offset)?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}
