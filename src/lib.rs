//! A graph-pass compiler and linter for Core ML ML Programs.
//!
//! # What the graph means
//!
//! A *package* is an `.mlpackage` folder: a manifest, a model file, weight files, and whatever else
//! someone put there. The *model* is one protobuf message: a description of inputs, outputs and
//! states, and an ML *program* (or a pipeline whose stages hold programs). All meaning is in the
//! program; the description repeats its interface and adds what a program cannot say, such as image
//! formats and flexible shapes.
//!
//! A program has *functions*, which share nothing but weight files. A function has named, typed
//! inputs and one *body* for each *opset* that it was written for; the opset says which operations
//! exist and what they mean. The bodies are alternatives, not parts: one of them runs, and a pass
//! treats each by its own opset.
//!
//! A body is one *block*, and a block is one [graph](ir::Graph). Its nodes are
//!
//! - the *inputs* of the function, and those of the block itself (the loop variables of a
//!   `while_loop` block),
//! - *operations*, or ops for short; a const is an op of type `const` without operands,
//! - *captures*: values of the block around that are used in this one,
//! - the *return*, whose operands are the block's outputs in order.
//!
//! A *value* is a node and the index of one of its *results*; inputs and captures have one result.
//! Every value has a name and a declared type. An op has *parameters* by name; the *argument* of a
//! parameter is a list of *bindings*, and a binding is a value or a literal. Edges are *uses* (this
//! result is read there) or *order*. There is no other record of who uses what: a value that has
//! no use edge is unused.
//!
//! Ops may own blocks: `cond` has two, `while_loop` has two. A block sees the values around it, and
//! each that it uses is a capture node inside and a use of the owning op outside. So a pass that
//! looks at the outer block sees that the value is needed, without looking into the blocks.
//!
//! *States* are the only memory. A state is an input of state type; `read_state` makes a tensor of
//! it, `write_state` changes it and has no result. Two ops that touch one state, one of them
//! writing, are joined by an order edge in the order in which they were written. Uses and
//! order edges say all there is to say about when an op runs.
//!
//! Yet a file has an order, and people read it. Each op remembers its *position*, and the schedule
//! is the topological order that follows positions most closely. An unchanged graph comes out as it
//! went in; an op that a pass made takes the position of the op it was made for.
//!
//! *Names* matter only where they are visible: inputs, outputs, states and functions are bound by
//! name by the application. An output keeps its name whatever happens; the value that takes its
//! place takes its name. A new value is called after the one it was made for and the pass that made
//! it, and what nobody touched keeps the name it had.
//!
//! What a program spells is kept as spelled. A literal stays a literal, an omitted parameter stays
//! omitted, an unknown dimension keeps the form it was written in, an op or parameter that the
//! registry does not know is a node like any other. Data stays in the weight file until someone asks
//! for it.
//!
//! # What always holds
//!
//! Of the graph, whatever its ops mean (checked by [`ir::verify`]):
//!
//! - values that are visible in one place have different names;
//! - every binding, output and capture names a value that exists, and the edges are exactly these;
//! - a capture has the name and the type of the value it stands for;
//! - there is no cycle, and accesses to one state are ordered;
//! - the first inputs of a body are the inputs of its function.
//!
//! Of the ops that the opset knows (checked by [`ops::verify`]):
//!
//! - parameters are those of the signature, and the required ones are there;
//! - what must be constant is a literal, a const or a `constexpr_*` op;
//! - the declared types of results agree with those inferred from the operands.
//!
//! A program that violates the second group may be opened, printed and written: it is what someone
//! has. No pass may add a violation to it. The manager checks that at the end of every pipeline, and
//! after each pass in debug builds.
//!
//! # What is promised
//!
//! 1. *Nothing is lost.* What no pass rewrites is written back. A file with a field that the schema
//!    does not know opens and prints, and writing is refused with the name of the message.
//! 2. *Nothing is half written.* Output goes to a temporary sibling and is renamed when it is whole.
//!    The input is never touched.
//! 3. *Every rewrite declares how exact it is:* `exact` (the same bits), `real` (equal in real
//!    arithmetic), `approx` (with a bound), or `interface` (inputs, outputs or states change; only on
//!    request).
//! 4. *Every refusal has a reason and a place.* A pattern that nearly matched says which op stopped
//!    it and why.
//! 5. *Same input, same bytes.* No order in an output comes from a hash map, a clock or a thread.
//! 6. *No panics.* Bad input of any kind gives an error that says what and where.
//!
//! # The layers
//!
//! A module uses itself and the modules of lower layers, which a test enforces. From top to bottom:
//!
//! | layer | modules |
//! |---|---|
//! | the command | [`cli`]: one file for each command |
//! | fp16 preflight | [`preflight`]: what fp16 makes of a model, measured value by value, and what to do |
//! | the linter | [`lint`]: runs the rules of passes and shows what they find |
//! | passes | [`passes`]: one folder for each pass, and the list of them |
//! | sight | [`analysis`]: what several passes need to see: norms, the residual stream, attention, masks, rotations, ranges, states |
//! | the frame of passes | [`pass`]: the trait, rules, the matcher's view, the rewriter's view, the manager, pipelines, remarks · [`diff`]: what differs between two programs |
//! | models as they are given | [`source`]: a model from a package, a bare file, a compiled model or text; packages from text |
//! | running programs | [`eval`]: the interpreter, inputs and results in files, comparison, ranges of values |
//! | meaning and form | [`ops`]: signatures, types and evaluation of all ops · [`text`]: MIL text · [`model`]: protobuf to program and back |
//! | values | [`tensor`]: dense tensors |
//! | the graph | [`ir`]: programs, graphs, values, types; the builder, the rewriter, the verifier |
//! | bytes | [`package`]: folders and zips, the manifest, weight files, saving |
//!
//! So the graph does not know that protobuf exists, and the modules of one row do not
//! know each other. `passes/README.md` says how to write a pass.

pub mod analysis;
pub mod cli;
pub mod diff;
pub mod eval;
pub mod ir;
pub mod lint;
pub mod model;
pub mod ops;
pub mod package;
pub mod pass;
pub mod preflight;
pub mod source;
pub mod tensor;
pub mod text;

#[path = "../passes/mod.rs"]
pub mod passes;

/// The code of the guide for authors of passes, compiled as a test.
#[cfg(doctest)]
#[doc = include_str!("../passes/README.md")]
pub struct PassesReadme;
