//! Small programs as text, for the tests of the recognisers.

use crate::ir::{Body, NodeId, ValueId};
use crate::ops::Opset;
use crate::pass::{Block, NoBlobs};
use crate::text;

/// A program of one function.
pub(crate) struct Sample(Body);

impl Sample {
    /// The function `main<ios18>` with these inputs and operations, and one output.
    pub(crate) fn new(inputs: &str, operations: &str, output: &str) -> Self {
        let source = format!(
            "program(1.3)\n{{\n func main<ios18>({inputs}) {{\n{operations}\n }} -> ({output});\n}}\n"
        );
        let parsed = text::parse(&source, "sample").unwrap_or_else(|errors| panic!("{errors:?}"));
        let function = parsed.program.functions.into_iter().next().unwrap().1;
        Self(function.specializations.into_iter().next().unwrap().1)
    }

    pub(crate) fn block(&self) -> Block<'_> {
        Block {
            graph: &self.0.graph,
            outer: None,
            opset: Some(Opset::CoreML8),
            blobs: &NoBlobs,
            ranges: None,
        }
    }

    /// The operation whose first result, or other result, has this name.
    pub(crate) fn node(&self, name: &str) -> NodeId {
        self.value(name).node
    }

    /// The value with this name.
    pub(crate) fn value(&self, name: &str) -> ValueId {
        let graph = &self.0.graph;
        let mut values = graph.nodes().flat_map(|(node, _)| {
            let count = graph.op(node).map_or(1, |op| op.results().len() as u32);
            (0..count).map(move |result| ValueId { node, result })
        });
        values
            .find(|value| graph.name(*value) == name)
            .unwrap_or_else(|| panic!("no value `{name}`"))
    }
}
