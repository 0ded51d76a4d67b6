//! MIL text of programs, functions and operations; the module's page has the rules.

use std::collections::{BTreeMap, HashSet};
use std::{fmt, io};

use super::Dialect;
use super::writer::{Style, Writer};
use crate::ir::{
    Binding, Body, Function, Graph, InputOrigin, NamedType, Node, NodeId, Operation, Program,
    Value, ValueId,
};

/// What to print, and how.
#[derive(Clone, Copy, Debug, Default)]
pub struct PrintOptions<'a> {
    /// The dialect; `None`: the one that Core ML's compiler would use.
    pub dialect: Option<Dialect>,
    /// Only this function.
    pub function: Option<&'a str>,
    /// A comment after each statement with the types of its operands.
    pub types: bool,
    /// All elements of blobs that a pass made, not a digest.
    pub inline_new: bool,
}

impl PrintOptions<'_> {
    fn style(&self, dialect: Dialect) -> Style {
        Style {
            inline_new: self.inline_new,
            ..Style::whole(dialect)
        }
    }
}

/// Why a program could not be printed.
#[derive(Debug, thiserror::Error)]
pub enum PrintError {
    /// The program has no function of this name.
    #[error("no function `{name}` in the program; it has {}", .known.join(", "))]
    NoFunction {
        /// The name asked for.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// The sink refused the text.
    #[error("the text could not be written")]
    Sink(#[from] fmt::Error),
    /// The file or pipe refused the text.
    #[error("the text could not be written: {0}")]
    Io(#[from] io::Error),
}

impl PrintError {
    /// Refuses the name of a function that the program does not have.
    pub(super) fn check_function(program: &Program, name: Option<&str>) -> Result<(), Self> {
        match name {
            Some(name) if !program.functions.contains_key(name) => Err(Self::NoFunction {
                name: name.to_owned(),
                known: program.functions.keys().cloned().collect(),
            }),
            _ => Ok(()),
        }
    }
}

/// Prints a program into a text sink, piece by piece.
///
/// # Errors
/// If the function asked for does not exist, or the sink fails.
pub fn print_program(
    out: &mut dyn fmt::Write,
    program: &Program,
    options: &PrintOptions,
) -> Result<(), PrintError> {
    PrintError::check_function(program, options.function)?;
    let dialect = options
        .dialect
        .unwrap_or_else(|| Dialect::for_program(program));
    let mut printer = Printer::new(out, options.style(dialect), options.types);
    printer.program(program, options.function);
    printer.writer.finish()?;
    Ok(())
}

/// Prints a program into a file, a pipe or a buffer of bytes, piece by piece.
///
/// # Errors
/// If the function asked for does not exist, or the sink fails (with its own error).
pub fn write_program(
    out: &mut dyn io::Write,
    program: &Program,
    options: &PrintOptions,
) -> Result<(), PrintError> {
    let mut sink = IoSink { out, error: None };
    let result = print_program(&mut sink, program, options);
    match sink.error {
        Some(error) => Err(error.into()),
        None => result,
    }
}

/// The text of a program.
///
/// # Errors
/// If the function asked for does not exist.
pub fn program_text(program: &Program, options: &PrintOptions) -> Result<String, PrintError> {
    let mut text = String::new();
    print_program(&mut text, program, options)?;
    Ok(text)
}

/// The text of one function alone, without the program around it, for diffs and snapshots. The
/// dialect is that of the function's opset unless the options name one.
pub fn function_text(name: &str, function: &Function, options: &PrintOptions) -> String {
    let dialect = options
        .dialect
        .unwrap_or_else(|| Dialect::for_opset(&function.opset));
    let mut text = String::new();
    let mut printer = Printer::new(&mut text, options.style(dialect), options.types);
    printer.function(name, function, 0);
    // A string takes everything.
    let _ = printer.writer.finish();
    text
}

/// A node on one line; see [`super::print_op`].
pub(super) fn one_line(graph: &Graph, node: NodeId) -> String {
    let mut text = String::new();
    let mut printer = Printer::new(&mut text, Style::short(Dialect::Program13), false);
    match graph.node(node) {
        Some(Node::Input(named, _) | Node::Capture { value: named, .. }) => printer.named(named),
        Some(Node::Op(op)) => {
            printer.head(graph, op);
            for block in op.blocks() {
                let count = block.count_ops();
                printer.writer.put(format_args!(" {{ {count} ops }}"));
            }
        }
        Some(Node::Return(values)) => printer.outputs(graph, values),
        Some(Node::Erased) | None => {}
    }
    let _ = printer.writer.finish();
    text
}

/// Lets an `io::Write` take text and keeps its error.
struct IoSink<'a> {
    out: &'a mut dyn io::Write,
    error: Option<io::Error>,
}

impl fmt::Write for IoSink<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.out.write_all(text.as_bytes()).map_err(|error| {
            self.error = Some(error);
            fmt::Error
        })
    }
}

/// The compiler indents functions by 4, their statements by 12 and their closing brace by 8; the
/// same steps are used for nested blocks.
const STATEMENT: usize = 8;
const CLOSING: usize = 4;

struct Printer<'a> {
    writer: Writer<'a>,
    types: bool,
}

impl<'a> Printer<'a> {
    fn new(out: &'a mut dyn fmt::Write, style: Style, types: bool) -> Self {
        Self {
            writer: Writer::new(out, style),
            types,
        }
    }

    fn program(&mut self, program: &Program, only: Option<&str>) {
        let version = self.writer.style.dialect.version();
        self.writer.put(format_args!("program({version})"));
        if program.version != 1 {
            self.writer
                .put(format_args!(" @version({})", program.version));
        }
        self.writer.push("\n");
        if !program.doc.is_empty() {
            self.writer.push("@doc ");
            self.writer.string(&program.doc);
            self.writer.push("\n");
        }
        if !program.attributes.is_empty() {
            self.writer.attributes(&program.attributes);
            self.writer.push("\n");
        }
        self.writer.push("{\n");
        for (name, function) in &program.functions {
            if only.is_none_or(|only| only == name) {
                self.function(name, function, 4);
            }
        }
        self.writer.push("}\n");
    }

    fn function(&mut self, name: &str, function: &Function, indent: usize) {
        self.indent(indent);
        self.writer.push("func ");
        self.writer.name(name);
        self.writer.push("<");
        self.writer.opset(&function.opset);
        self.writer.push(">");
        self.inputs(&function.inputs);
        self.bracketed(&function.attributes);
        match function.active() {
            Some(body) => self.body(body, indent),
            None => self.writer.push(" @no_body;\n"),
        }
        for (opset, body) in &function.specializations {
            if *opset == function.opset {
                continue;
            }
            self.indent(indent);
            self.writer.push("@body<");
            self.writer.opset(opset);
            self.writer.push(">");
            self.body(body, indent);
        }
    }

    fn body(&mut self, body: &Body, indent: usize) {
        let graph = &body.graph;
        let own = block_inputs(graph);
        if !own.is_empty() || !graph.attributes().is_empty() {
            self.writer.push(" @block");
            self.inputs(own);
            if !graph.attributes().is_empty() {
                self.writer.attributes(graph.attributes());
            }
        }
        self.block(graph, indent);
        self.writer.push(";\n");
    }

    /// ` {`, the statements, `} -> (…)`.
    fn block(&mut self, graph: &Graph, indent: usize) {
        self.writer.push(" {\n");
        let order = graph.schedule().unwrap_or_else(|cycle| {
            self.indent(indent + STATEMENT);
            // Such a graph cannot be written; it is shown to find the fault.
            self.writer.push("// in no order: ");
            self.writer.put(format_args!("{cycle}\n"));
            graph.ops().map(|(node, _)| node).collect()
        });
        for node in order.iter() {
            if let Some(op) = graph.op(*node) {
                self.statement(graph, op, indent + STATEMENT);
            }
        }
        self.indent(indent + CLOSING);
        self.writer.push("} ");
        self.outputs(graph, graph.outputs());
    }

    fn statement(&mut self, graph: &Graph, op: &Operation, indent: usize) {
        self.indent(indent);
        self.head(graph, op);
        for (index, block) in op.blocks().iter().enumerate() {
            self.writer.push(if index == 0 { " " } else { ", " });
            self.inputs(block_inputs(block));
            self.bracketed(block.attributes());
            self.block(block, indent);
        }
        self.writer.push(";");
        if self.types {
            self.operand_types(graph, op);
        }
        self.writer.push("\n");
    }

    /// A statement up to its nested blocks or its semicolon.
    fn head(&mut self, graph: &Graph, op: &Operation) {
        let results = op.results();
        for (index, result) in results.iter().enumerate() {
            if index > 0 {
                self.writer.push(", ");
            }
            self.named(result);
        }
        if !results.is_empty() {
            self.writer.push(" = ");
        }
        self.writer.name(op.op_type());
        self.writer.push("(");
        self.writer.separated(op.arguments(), |w, argument| {
            w.name(&argument.parameter);
            w.push(" = ");
            match argument.bindings.as_slice() {
                [binding] => w.binding(graph, binding),
                bindings => {
                    w.push("(");
                    w.separated(bindings, |w, binding| w.binding(graph, binding));
                    w.push(")");
                }
            }
        });
        self.writer.push(")");
        if !op.attributes().is_empty() {
            self.writer.attributes(op.attributes());
        }
    }

    fn operand_types(&mut self, graph: &Graph, op: &Operation) {
        let mut seen: HashSet<ValueId> = HashSet::new();
        for argument in op.arguments() {
            for binding in &argument.bindings {
                let Binding::Value(value) = binding else {
                    continue;
                };
                let first = seen.is_empty();
                if !seen.insert(*value) {
                    continue;
                }
                self.writer.push(if first { "  // " } else { ", " });
                self.writer.name(graph.name(*value));
                self.writer.push(": ");
                self.writer.optional_type(graph.ty(*value));
            }
        }
    }

    fn named(&mut self, named: &NamedType) {
        self.writer.optional_type(named.ty.as_ref());
        self.writer.push(" ");
        self.writer.name(&named.name);
    }

    fn inputs<'n>(&mut self, inputs: impl IntoIterator<Item = &'n NamedType>) {
        self.writer.push("(");
        for (index, input) in inputs.into_iter().enumerate() {
            if index > 0 {
                self.writer.push(", ");
            }
            self.named(input);
        }
        self.writer.push(")");
    }

    fn outputs(&mut self, graph: &Graph, outputs: &[ValueId]) {
        self.writer.push("-> (");
        self.writer
            .separated(outputs, |w, output| w.name(graph.name(*output)));
        self.writer.push(")");
    }

    /// Attributes of a function or a nested block, with the space that the compiler puts before.
    fn bracketed(&mut self, attributes: &BTreeMap<String, Value>) {
        if !attributes.is_empty() {
            self.writer.push(" ");
            self.writer.attributes(attributes);
        }
    }

    fn indent(&mut self, spaces: usize) {
        self.writer.put(format_args!("{:spaces$}", ""));
    }
}

impl Writer<'_> {
    fn binding(&mut self, graph: &Graph, binding: &Binding) {
        match binding {
            Binding::Value(value) => self.name(graph.name(*value)),
            Binding::Immediate(value) => self.value(value),
            Binding::Absent => self.push("@no_binding"),
        }
    }
}

/// The inputs that a block declares itself.
fn block_inputs(graph: &Graph) -> Vec<&NamedType> {
    graph
        .inputs()
        .iter()
        .filter_map(|node| match graph.node(*node) {
            Some(Node::Input(named, InputOrigin::Block)) => Some(named),
            _ => None,
        })
        .collect()
}
