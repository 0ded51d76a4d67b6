//! Programs as text: MIL, line diffs, summaries, JSON and Graphviz.
//!
//! MIL text is the language of `model.mil` inside compiled models, and the printer lays it out as
//! Core ML's compiler does: the same header, indentation, spaces, order and literals. Names of
//! attributes and parameters are sorted. The text holds the whole program: a parser can rebuild it
//! exactly. What the compiler's language has no word for is written with an extension; each begins
//! with `@`, which begins nothing else (it may only stand inside an identifier), or is a name
//! between backquotes.
//!
//! | extension | where | meaning |
//! |---|---|---|
//! | `` `a b` `` | any name or opset | a name that is no identifier, or that equals a word of the language; escapes as in strings, and `` \` `` |
//! | `@version(N)` | after `program(…)` | a program version other than 1 |
//! | `@doc "…"` | on its own line after `program(…)`; before a value | doc string |
//! | `@block(TYPE x)[k = v]` | before the `{` of a function body | inputs and attributes that the block itself declares |
//! | `@body<OPSET> {…} -> (…);` | after a function | a further body of that function, for another opset |
//! | `@no_body;` | instead of a function's body | the function has no body for its own opset |
//! | `(TYPE x) [k = v] {…} -> (…)` | after an operation's attributes, several with `, ` between | nested block with its inputs and attributes |
//! | `@untyped` | instead of a type | the message has no type |
//! | `@type` | instead of a type | a type message with no kind set |
//! | `@rank(N)` | after the dimensions | a rank that is not the number of dimensions (−1 where one is `...`) |
//! | `@attributes[k = v]` | in a tensor type | attributes of the type |
//! | `...` | as a dimension | a variadic unknown dimension |
//! | `@dim` | as a dimension | a dimension message with nothing set |
//! | `list<TYPE>` | as a type | a list type without a length message |
//! | `@ints`, `@longInts`, `@floats`, `@doubles`, `@bools`, `@strings`, `@bytes` | before a literal | the elements stand in this field of the schema, not in the one usual for the type ([`usual_field`]) |
//! | `@raw "0a1b"` | as a literal | the `bytes` field in hexadecimal, where it is no whole number of elements |
//! | `@tuple (…)`, `@list […]`, `@dict {…}` | as a literal | a container under a type of another kind |
//! | `@no_value`, `@no_immediate`, `@no_data` | as a literal | a value, immediate or tensor message with nothing set |
//! | `@missing` | as a key or value | a dictionary entry without it |
//! | `@no_binding` | as an argument | a binding message with nothing set |
//! | `@new(DTYPE, COUNT) […]` | as a literal | a blob that a pass made and that is not in a weight file yet; texts that show what a pass does have it, and from 65 elements on a digest in place of the elements; in a text that is written as a result such data is a literal or in a weight file |
//! | `fill(v)`, `random(seed, scale)` | instead of a tensor's elements | only read, never printed: elements by a rule (see `parser.rs`) |
//! | `nan(0x1)` | as a number | a NaN with these mantissa bits; a quiet one without payload is `nan` |
//!
//! Further rules that a parser needs:
//!
//! - An argument with exactly one binding is written without parentheses, else as `(a, b)`; a
//!   literal binding is `TYPE(…)`, which a name never is.
//! - `TYPE(…)` shows a value's type. Inside lists, tuples and dictionaries a value stands without
//!   it if its type is the one that the container's type gives.
//! - A scalar's element stands alone; the elements of a tensor stand in brackets, nested by the
//!   shape if there are as many as it asks for, in one bracket otherwise (a splat, an unknown
//!   dimension, no elements).
//! - Elements of `uint64` in `longInts` are written unsigned; all other fields as they are stored.
//! - Strings escape `\"`, `\\`, `\n`, `\r`, `\t`, and invisible characters as `\u{…}`.
//! - A comment runs from `//` to the end of the line.

pub mod diff;
pub mod dot;
mod elements;
mod float;
pub mod json;
mod lexer;
mod parser;
mod printer;
pub mod summary;
mod types;
mod values;
mod words;
mod writer;

pub use lexer::tokens;
pub use parser::{ParseError, Parsed, parse};
pub use printer::{
    PrintError, PrintOptions, function_text, print_program, program_text, write_program,
};
pub use values::usual_field;
pub use words::{opset_from_word, opset_word};

use crate::ir::{Graph, NodeId, Program, ValueType};

/// The two spellings of MIL text. They differ in scalars: a tensor of rank 0 or a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// `program(1.0)`: a scalar is `tensor<fp16, []>`.
    Program10,
    /// `program(1.3)`: a scalar is `fp16`.
    #[default]
    Program13,
}

impl Dialect {
    /// The dialect in which Core ML's compiler writes this program: `program(1.3)` if one of its
    /// functions has an opset of iOS 18 or later.
    pub fn for_program(program: &Program) -> Self {
        let newer = |opset| Self::for_opset(opset) == Self::Program13;
        if program.functions.values().any(|f| newer(&f.opset)) {
            Self::Program13
        } else {
            Self::Program10
        }
    }

    /// The version as it stands in the text: `1.0` or `1.3`.
    pub fn version(self) -> &'static str {
        match self {
            Self::Program10 => "1.0",
            Self::Program13 => "1.3",
        }
    }
}

/// A type as MIL text.
pub fn type_text(ty: &ValueType, dialect: Dialect) -> String {
    writer::Writer::text(writer::Style::whole(dialect), |w| w.value_type(ty))
}

/// A value as MIL text, with its type; tensors of more than eight elements are cut short.
pub fn value_text(value: &crate::ir::Value, dialect: Dialect) -> String {
    writer::Writer::text(writer::Style::short(dialect), |w| w.value(value))
}

/// A node on one line in the newer dialect, for remarks: an operation as its statement, with long
/// literals cut short and nested blocks as their number of operations. Empty if it was erased.
pub fn print_op(graph: &Graph, node: NodeId) -> String {
    printer::one_line(graph, node)
}
