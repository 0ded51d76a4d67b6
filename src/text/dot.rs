//! One function as a Graphviz graph.
//!
//! An operation is a box with its type, its result names, and its small constant arguments as
//! literals; inputs are ellipses, states cylinders, the block's return is a double circle. A const
//! with more than eight elements, or in a weight file, is a note of its own; a small one is not
//! drawn unless the block returns it. A nested block is a cluster inside which the edges from
//! captured values lead straight from their producer. Order edges between the operations on one
//! state are dashed.

use std::fmt;

use super::writer::{Style, Writer};
use super::{Dialect, type_text};
use crate::ir::{
    Argument, Binding, Body, Content, Graph, Immediate, Node, NodeId, Operation, TensorData, Value,
    ValueId,
};

/// The most elements of a constant that is written into the label of its user.
const FOLDED: usize = 8;

/// Longest literal in a label, in characters.
const LITERAL: usize = 48;

/// Writes a function body as a `digraph`.
///
/// `types`: edges carry the type of their value.
///
/// # Errors
/// If the sink fails.
pub fn write_dot(
    out: &mut dyn fmt::Write,
    name: &str,
    body: &Body,
    dialect: Dialect,
    types: bool,
) -> fmt::Result {
    let mut drawing = Drawing {
        out,
        dialect,
        types,
        clusters: 0,
    };
    writeln!(drawing.out, "digraph {} {{", quote(name))?;
    writeln!(drawing.out, "  node [fontname=\"Helvetica\", fontsize=10];")?;
    writeln!(drawing.out, "  edge [fontname=\"Helvetica\", fontsize=8];")?;
    drawing.block(&mut vec![Level {
        graph: &body.graph,
        cluster: 0,
    }])?;
    writeln!(drawing.out, "}}")
}

/// A block and the number that makes its node names unique.
#[derive(Clone, Copy)]
struct Level<'g> {
    graph: &'g Graph,
    cluster: usize,
}

/// A value and the block in which it is made.
#[derive(Clone, Copy)]
struct Place<'g> {
    level: Level<'g>,
    value: ValueId,
}

impl<'g> Place<'g> {
    /// Where a value that may be captured is made: in the innermost of the levels, or further out.
    fn of(levels: &[Level<'g>], value: ValueId) -> Option<Self> {
        let mut value = value;
        for level in levels.iter().rev() {
            match level.graph.node(value.node)? {
                Node::Capture { source, .. } => value = *source,
                _ => {
                    return Some(Self {
                        level: *level,
                        value,
                    });
                }
            }
        }
        None
    }

    fn folded(&self) -> Option<&'g Value> {
        let value = self.level.graph.producer(self.value)?.const_value()?;
        is_small(value).then_some(value)
    }
}

struct Drawing<'o> {
    out: &'o mut dyn fmt::Write,
    dialect: Dialect,
    types: bool,
    clusters: usize,
}

impl Drawing<'_> {
    fn block(&mut self, levels: &mut Vec<Level<'_>>) -> fmt::Result {
        let Some(level) = levels.last().copied() else {
            return Ok(());
        };
        let graph = level.graph;
        let pad = "  ".repeat(levels.len());
        for input in graph.inputs() {
            if let Some(Node::Input(named, _)) = graph.node(*input) {
                let state = named
                    .ty
                    .as_ref()
                    .is_some_and(crate::ir::ValueType::is_state);
                let shape = if state { "cylinder" } else { "ellipse" };
                let label = self.typed(&named.name, graph, ValueId::first(*input));
                self.node(&pad, level, *input, shape, &label)?;
            }
        }
        let order = graph
            .schedule()
            .unwrap_or_else(|_| graph.ops().map(|(node, _)| node).collect());
        for node in order.iter() {
            if let Some(op) = graph.op(*node) {
                self.operation(&pad, levels, *node, op)?;
            }
        }
        for (before, after) in graph.order_edges() {
            let (from, to) = (id(level, before), id(level, after));
            writeln!(
                self.out,
                "{pad}{from} -> {to} [style=dashed, constraint=false];"
            )?;
        }
        let output = format!("out{}", level.cluster);
        writeln!(
            self.out,
            "{pad}{output} [shape=doublecircle, label=\"return\"];"
        )?;
        for value in graph.outputs() {
            if let Some(place) = Place::of(levels, *value) {
                self.edge(&pad, place, &output, graph.name(*value))?;
            }
        }
        Ok(())
    }

    fn operation<'g>(
        &mut self,
        pad: &str,
        levels: &mut Vec<Level<'g>>,
        node: NodeId,
        op: &'g Operation,
    ) -> fmt::Result {
        let Some(level) = levels.last().copied() else {
            return Ok(());
        };
        if let Some(value) = op.const_value() {
            let returned = level.graph.is_output(ValueId::first(node));
            if returned || !is_small(value) {
                let name = op.results().first().map_or("", |result| &result.name);
                let label = format!("{name}\n{}", self.literal(value));
                self.node(pad, level, node, "note", &label)?;
            }
            return Ok(());
        }
        let mut label = op.op_type().to_owned();
        for result in op.results() {
            label.push('\n');
            label.push_str(&result.name);
        }
        for argument in op.arguments() {
            if let Some(text) = self.folded_argument(levels, argument) {
                label.extend(["\n", &argument.parameter, " = ", &text]);
            }
        }
        for (name, value) in op.attributes() {
            if name != "name" {
                label.extend(["\n", name, " = ", &self.literal(value)]);
            }
        }
        self.node(pad, level, node, "box", &label)?;
        let own = id(level, node);
        for argument in op.arguments() {
            for (position, binding) in argument.bindings.iter().enumerate() {
                let Binding::Value(value) = binding else {
                    continue;
                };
                let Some(place) = Place::of(levels, *value) else {
                    continue;
                };
                if place.folded().is_some() {
                    continue;
                }
                let slot = match argument.bindings.len() {
                    1 => argument.parameter.clone(),
                    _ => format!("{}[{position}]", argument.parameter),
                };
                self.edge(pad, place, &own, &slot)?;
            }
        }
        for (index, block) in op.blocks().iter().enumerate() {
            self.clusters += 1;
            let cluster = self.clusters;
            writeln!(self.out, "{pad}subgraph cluster_{cluster} {{")?;
            let label = format!("{} block {index}", op.op_type());
            writeln!(self.out, "{pad}  label={};", quote(&label))?;
            levels.push(Level {
                graph: block,
                cluster,
            });
            self.block(levels)?;
            levels.pop();
            writeln!(self.out, "{pad}}}")?;
            writeln!(self.out, "{pad}out{cluster} -> {own} [style=dotted];")?;
        }
        Ok(())
    }

    /// An argument's literals and small consts, with `…` for the bindings that have an edge; nothing
    /// if all of them have one.
    fn folded_argument(&self, levels: &[Level<'_>], argument: &Argument) -> Option<String> {
        let literal = |binding: &Binding| match binding {
            Binding::Immediate(value) => Some(self.literal(value)),
            Binding::Value(value) => {
                let value = Place::of(levels, *value)?.folded()?;
                Some(self.literal(value))
            }
            Binding::Absent => Some("@no_binding".to_owned()),
        };
        let literals: Vec<_> = argument.bindings.iter().map(literal).collect();
        if literals.iter().all(Option::is_none) {
            return None;
        }
        let texts: Vec<&str> = literals
            .iter()
            .map(|literal| literal.as_deref().unwrap_or("…"))
            .collect();
        match texts.as_slice() {
            [one] => Some((*one).to_owned()),
            several => Some(format!("({})", several.join(", "))),
        }
    }

    fn literal(&self, value: &Value) -> String {
        let text = match &value.content {
            Content::Blob(_) | Content::New(_) => value
                .ty
                .as_ref()
                .map_or_else(|| "blob".to_owned(), |ty| type_text(ty, self.dialect)),
            content => Writer::text(Style::short(self.dialect), |w| {
                w.content(content, value.ty.as_ref());
            }),
        };
        match text.char_indices().nth(LITERAL) {
            Some((at, _)) => format!("{}…", &text[..at]),
            None => text,
        }
    }

    fn typed(&self, name: &str, graph: &Graph, value: ValueId) -> String {
        match graph.ty(value) {
            Some(ty) => format!("{name}\n{}", type_text(ty, self.dialect)),
            None => name.to_owned(),
        }
    }

    fn node(
        &mut self,
        pad: &str,
        level: Level,
        node: NodeId,
        shape: &str,
        label: &str,
    ) -> fmt::Result {
        let id = id(level, node);
        writeln!(
            self.out,
            "{pad}{id} [shape={shape}, label={}];",
            quote(label)
        )
    }

    fn edge(&mut self, pad: &str, from: Place, to: &str, slot: &str) -> fmt::Result {
        let label = if self.types {
            self.typed(slot, from.level.graph, from.value)
        } else {
            slot.to_owned()
        };
        let from = id(from.level, from.value.node);
        writeln!(self.out, "{pad}{from} -> {to} [label={}];", quote(&label))
    }
}

fn id(level: Level, node: NodeId) -> String {
    format!("n{}_{}", level.cluster, node.index())
}

/// True for an immediate with few elements and no nesting.
fn is_small(value: &Value) -> bool {
    let Content::Immediate(Immediate::Tensor(data)) = &value.content else {
        return false;
    };
    match data {
        TensorData::Floats(values) => values.len() <= FOLDED,
        TensorData::Ints(values) => values.len() <= FOLDED,
        TensorData::Bools(values) => values.len() <= FOLDED,
        TensorData::Strings(values) => values.len() <= FOLDED,
        TensorData::LongInts(values) => values.len() <= FOLDED,
        TensorData::Doubles(values) => values.len() <= FOLDED,
        TensorData::Bytes(values) => values.len() <= FOLDED * 2,
        TensorData::Absent => true,
    }
}

/// A quoted DOT string: quotes and backslashes escaped (a label gives meaning to `\N` and others),
/// line breaks as `\n`, other control characters as `?`.
fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            _ if character.is_control() => quoted.push('?'),
            _ => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}
