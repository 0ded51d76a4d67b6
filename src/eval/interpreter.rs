//! The interpreter: one function of a program, op by op in the order of its schedule.
//!
//! A value is dropped after its last use. Results are brought to their declared type as the
//! precision mode says, and compared with it: an op whose result has another shape than the program
//! declares is an error, not a surprise further down.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use super::constants::{Blobs, datum, fixed_shape};
use super::error::RunError;
use super::frame::{Frame, bytes};
use super::memory;
use super::typed::{describe, fits, rounded, rounded_constant, words};
use crate::ir::types::ValueType;
use crate::ir::{Binding, Graph, NamedType, NodeId, Operation, ValueId};
use crate::ir::{Body, Opset, Program};
use crate::ops::{Call, Datum, EvalError, Numerics, StateCell, evaluate};
use crate::package::Weights;
use crate::tensor::Tensor;

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How to compute.
    pub numerics: Numerics,
    /// Seed of random ops.
    pub seed: u64,
    /// Bytes that live values may take together; by default nine tenths of the machine's memory.
    pub memory: u64,
    /// How often a `while_loop` may turn before it counts as endless.
    pub loop_turns: u64,
}

impl Options {
    /// The options for these numerics, everything else by default.
    pub fn new(numerics: Numerics) -> Self {
        Self {
            numerics,
            seed: 0,
            memory: memory::physical() / 10 * 9,
            loop_turns: 1_000_000,
        }
    }
}

/// The states of a model by name. They live over as many calls as one likes.
pub type States = BTreeMap<String, StateCell>;

/// Sees every value as it is computed.
pub trait Observer {
    /// The results of an op, after rounding to their types.
    fn computed(&mut self, graph: &Graph, node: NodeId, op: &Operation, results: &[Datum]);

    /// Before an op is computed, with its arguments.
    fn computing(&mut self, _graph: &Graph, _node: NodeId, _call: &Call) {}
}

/// Looks at nothing.
#[derive(Debug)]
pub struct Unobserved;

impl Observer for Unobserved {
    fn computed(&mut self, _: &Graph, _: NodeId, _: &Operation, _: &[Datum]) {}
}

/// Runs the functions of one program.
pub struct Interpreter<'a> {
    program: &'a Program,
    blobs: Box<dyn Blobs + 'a>,
    options: Options,
    /// Results of `constexpr_*` ops, which are the same in every call.
    decompressed: Mutex<HashMap<(usize, NodeId), Vec<Datum>>>,
}

/// What belongs to one run of a function.
struct Run<'r> {
    function: &'r str,
    opset: Opset,
    observer: &'r mut dyn Observer,
    live_bytes: u64,
    ops: u64,
}

impl<'a> Interpreter<'a> {
    /// An interpreter of a program with its weight files.
    pub fn new(program: &'a Program, weights: Arc<Weights>, options: Options) -> Self {
        Self::with_blobs(program, weights, options)
    }

    /// An interpreter of a program whose blobs are somewhere else.
    pub fn with_blobs(program: &'a Program, blobs: impl Blobs + 'a, options: Options) -> Self {
        Self {
            program,
            blobs: Box::new(blobs),
            options,
            decompressed: Mutex::default(),
        }
    }

    /// The options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The body of a function that runs.
    pub fn body(&self, function: &str) -> Result<&'a Body, RunError> {
        self.program
            .functions
            .get(function)
            .and_then(|function| function.active())
            .ok_or_else(|| RunError::NoFunction {
                name: function.to_owned(),
                known: self.program.functions.keys().cloned().collect(),
            })
    }

    /// The states of a function, all zero.
    pub fn zero_states(&self, function: &str) -> Result<States, RunError> {
        self.body(function)?;
        let inputs = self
            .program
            .functions
            .get(function)
            .map(|f| f.inputs.as_slice());
        let mut states = States::new();
        for input in inputs.unwrap_or_default() {
            if let Some(ty) = input.ty.as_ref().and_then(ValueType::as_state) {
                let shape = fixed_shape(ty).map_err(|source| RunError::Constant {
                    place: format!("function `{function}`, state `{}`", input.name),
                    source,
                })?;
                let bytes = (ty.elements().unwrap_or(u64::MAX)).saturating_mul(4);
                if bytes > self.options.memory {
                    return Err(RunError::Memory {
                        place: format!("function `{function}`, state `{}`", input.name),
                        bytes,
                        limit: self.options.memory,
                    });
                }
                let zeros = Tensor::zeros(ty.dtype, shape);
                states.insert(input.name.clone(), StateCell::new(zeros));
            }
        }
        Ok(states)
    }

    /// Runs a function once and gives its outputs by name, in order. `states` must hold every state
    /// of the function and is changed.
    pub fn run(
        &self,
        function: &str,
        inputs: &BTreeMap<String, Tensor>,
        states: &States,
        observer: &mut dyn Observer,
    ) -> Result<Vec<(String, Datum)>, RunError> {
        let body = self.body(function)?;
        let key = &self.program.functions[function].opset;
        let opset = Opset::parse(key).ok_or_else(|| RunError::Opset {
            function: function.to_owned(),
            opset: key.clone(),
        })?;
        let mut run = Run {
            function,
            opset,
            observer,
            live_bytes: 0,
            ops: 0,
        };
        let arguments = body
            .graph
            .inputs()
            .iter()
            .map(|input| {
                let named = body.graph.named(ValueId::first(*input));
                self.input(named, inputs, states)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let outputs = self.block(&body.graph, arguments, &[], &mut run)?;
        Ok(body
            .graph
            .outputs()
            .iter()
            .map(|value| body.graph.name(*value).to_owned())
            .zip(outputs)
            .collect())
    }

    fn input(
        &self,
        named: Option<&NamedType>,
        inputs: &BTreeMap<String, Tensor>,
        states: &States,
    ) -> Result<Datum, RunError> {
        let (name, ty) = named.map_or(("", None), |n| (n.name.as_str(), n.ty.as_ref()));
        let missing = || RunError::MissingInput {
            name: name.to_owned(),
            ty: words(ty),
        };
        if let Some(ValueType::State(_)) = ty {
            let state = states.get(name).ok_or_else(missing)?;
            return Ok(Datum::State(state.clone()));
        }
        let tensor = inputs.get(name).ok_or_else(missing)?;
        let input = Datum::Tensor(tensor.clone());
        if !fits(ty, &input) {
            return Err(RunError::Input {
                name: name.to_owned(),
                found: describe(&input),
                wanted: words(ty),
            });
        }
        rounded(&self.options.numerics, ty, input).map_err(|source| RunError::Op {
            place: format!("input `{name}`"),
            source,
        })
    }

    /// Runs a block: `arguments` are its inputs, `outer` the values of its captures by their node.
    fn block(
        &self,
        graph: &Graph,
        arguments: Vec<Datum>,
        outer: &[(NodeId, Datum)],
        run: &mut Run<'_>,
    ) -> Result<Vec<Datum>, RunError> {
        let schedule = graph.schedule()?;
        let mut frame = Frame::new(graph);
        for (input, argument) in graph.inputs().iter().zip(arguments) {
            frame.set(*input, vec![argument]);
        }
        for (node, value) in outer {
            frame.set(*node, vec![value.clone()]);
        }
        for node in schedule.iter() {
            let Some(op) = graph.op(*node) else { continue };
            let results = self.op(graph, *node, op, &frame, run)?;
            run.observer.computed(graph, *node, op, &results);
            run.live_bytes += results.iter().map(bytes).sum::<u64>();
            if run.live_bytes > self.options.memory {
                return Err(RunError::Memory {
                    place: place(run.function, op),
                    bytes: run.live_bytes,
                    limit: self.options.memory,
                });
            }
            frame.set(*node, results);
            run.live_bytes = run.live_bytes.saturating_sub(frame.release(*node, op));
        }
        graph
            .outputs()
            .iter()
            .map(|value| {
                frame
                    .get(*value)
                    .cloned()
                    .ok_or_else(|| RunError::MissingInput {
                        name: graph.name(*value).to_owned(),
                        ty: words(graph.ty(*value)),
                    })
            })
            .collect()
    }

    fn op(
        &self,
        graph: &Graph,
        node: NodeId,
        op: &Operation,
        frame: &Frame,
        run: &mut Run<'_>,
    ) -> Result<Vec<Datum>, RunError> {
        run.ops += 1;
        if let Some(value) = op.const_value() {
            return Ok(vec![self.constant(value, run, op)?]);
        }
        if !op.blocks().is_empty() {
            return self.with_blocks(graph, op, frame, run);
        }
        let key = (std::ptr::from_ref(graph) as usize, node);
        let is_constexpr = op.op_type().starts_with("constexpr_");
        if is_constexpr {
            let known = self
                .decompressed
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if let Some(results) = known.get(&key) {
                return Ok(results.clone());
            }
        }
        let call = Call {
            op_type: op.op_type(),
            opset: run.opset,
            arguments: self.arguments(graph, op, frame, run)?,
            results: op.results(),
            numerics: &self.options.numerics,
            seed: mixed(self.options.seed, run.ops),
            memory: self.options.memory.saturating_sub(run.live_bytes),
        };
        run.observer.computing(graph, node, &call);
        let wrong = |source| RunError::Op {
            place: place(run.function, op),
            source,
        };
        let results = evaluate(&call).map_err(wrong)?;
        let results = self.typed(op, results, run)?;
        if is_constexpr {
            let mut known = self
                .decompressed
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            known.insert(key, results.clone());
        }
        Ok(results)
    }

    /// Brings results to their declared types, and compares them with those.
    fn typed(
        &self,
        op: &Operation,
        results: Vec<Datum>,
        run: &Run<'_>,
    ) -> Result<Vec<Datum>, RunError> {
        if results.len() != op.results().len() {
            return Err(RunError::Op {
                place: place(run.function, op),
                source: EvalError::invalid(format!(
                    "the op gives {} results, but the program declares {}",
                    results.len(),
                    op.results().len()
                )),
            });
        }
        results
            .into_iter()
            .zip(op.results())
            .map(|(result, named)| {
                if !fits(named.ty.as_ref(), &result) {
                    return Err(RunError::Declared {
                        place: place(run.function, op),
                        result: named.name.clone(),
                        found: describe(&result),
                        declared: words(named.ty.as_ref()),
                    });
                }
                rounded(&self.options.numerics, named.ty.as_ref(), result).map_err(|source| {
                    RunError::Op {
                        place: place(run.function, op),
                        source,
                    }
                })
            })
            .collect()
    }

    fn arguments<'o>(
        &self,
        graph: &Graph,
        op: &'o Operation,
        frame: &Frame,
        run: &Run<'_>,
    ) -> Result<BTreeMap<&'o str, Vec<Datum>>, RunError> {
        let mut arguments = BTreeMap::new();
        for (name, value) in op.attributes() {
            if name != "name" {
                arguments.insert(name.as_str(), vec![self.constant(value, run, op)?]);
            }
        }
        for argument in op.arguments() {
            let bound = argument
                .bindings
                .iter()
                .map(|binding| self.bound(graph, op, binding, frame, run))
                .collect::<Result<Vec<_>, _>>()?;
            arguments.insert(argument.parameter.as_str(), bound);
        }
        Ok(arguments)
    }

    fn bound(
        &self,
        graph: &Graph,
        op: &Operation,
        binding: &Binding,
        frame: &Frame,
        run: &Run<'_>,
    ) -> Result<Datum, RunError> {
        let wrong = |what: String| RunError::Op {
            place: place(run.function, op),
            source: EvalError::invalid(what),
        };
        match binding {
            Binding::Value(value) => frame
                .get(*value)
                .cloned()
                .ok_or_else(|| wrong(format!("`{}` has not been computed", graph.name(*value)))),
            Binding::Immediate(value) => self.constant(value, run, op),
            Binding::Absent => Err(wrong("an argument is bound to nothing".to_owned())),
        }
    }

    fn constant(
        &self,
        value: &crate::ir::Value,
        run: &Run<'_>,
        op: &Operation,
    ) -> Result<Datum, RunError> {
        datum(value, &*self.blobs)
            .map_err(|source| RunError::Constant {
                place: place(run.function, op),
                source,
            })
            .and_then(|datum| {
                rounded_constant(&self.options.numerics, value.ty.as_ref(), datum).map_err(
                    |source| RunError::Op {
                        place: place(run.function, op),
                        source,
                    },
                )
            })
    }

    /// `cond` and `while_loop`.
    fn with_blocks(
        &self,
        graph: &Graph,
        op: &Operation,
        frame: &Frame,
        run: &mut Run<'_>,
    ) -> Result<Vec<Datum>, RunError> {
        let wrong = |run: &Run<'_>, what: &str| RunError::Op {
            place: place(run.function, op),
            source: EvalError::invalid(what),
        };
        let captures = |block: &Graph| -> Vec<(NodeId, Datum)> {
            block
                .captures()
                .filter_map(|(node, source)| Some((node, frame.get(source)?.clone())))
                .collect()
        };
        let mut arguments = self.arguments(graph, op, frame, run)?;
        let results = match (op.op_type(), op.blocks()) {
            ("cond", [then, other]) => {
                let pred = arguments.get("pred").and_then(|values| values.first());
                let chosen = match pred.and_then(truth) {
                    Some(true) => then,
                    Some(false) => other,
                    None => return Err(wrong(run, "`pred` is not one bool")),
                };
                self.block(chosen, Vec::new(), &captures(chosen), run)?
            }
            ("while_loop", [condition, body]) => {
                let mut variables = arguments.remove("loop_vars").unwrap_or_default();
                let (around_condition, around_body) = (captures(condition), captures(body));
                let mut turns = 0;
                loop {
                    let again = self.block(condition, variables.clone(), &around_condition, run)?;
                    match again.first().and_then(truth) {
                        Some(true) => {}
                        Some(false) => break variables,
                        None => return Err(wrong(run, "the condition is not one bool")),
                    }
                    if turns == self.options.loop_turns {
                        return Err(RunError::Endless {
                            place: place(run.function, op),
                            turns,
                        });
                    }
                    turns += 1;
                    variables = self.block(body, variables, &around_body, run)?;
                }
            }
            _ => return Err(wrong(run, &EvalError::NoEvaluation.to_string())),
        };
        self.typed(op, results, run)
    }
}

fn truth(datum: &Datum) -> Option<bool> {
    match datum.as_tensor()?.as_bools().ok()?.as_ref() {
        [value] => Some(*value),
        _ => None,
    }
}

/// A seed for each op of each run (the finalizer of SplitMix64, Steele et al. 2014).
fn mixed(seed: u64, count: u64) -> u64 {
    let mut z = seed.wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn place(function: &str, op: &Operation) -> String {
    let name = op
        .results()
        .first()
        .map(|result| result.name.as_str())
        .or_else(|| op.name())
        .unwrap_or_default();
    format!("function `{function}`, `{}` op `{name}`", op.op_type())
}
