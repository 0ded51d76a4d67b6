//! slice-queries: an attention with many queries becomes several with a part of them each.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::analysis::attention::{self, Attention, Factor, Step};
use crate::analysis::slicing::{Slicing, ints};
use crate::ir::{Binding, NodeId, Operation, TensorType, Value, ValueId};
use crate::ops::Opset;
use crate::pass::options::{self, OptionError, OptionMap};
use crate::pass::{
    Attempt, Block, Edit, EditError, Evidence, Exactness, Family, Matcher, Meta, Missed, Pass,
    Rule, Severity, Target,
};

/// The pass.
pub(super) struct SliceQueries;

static META: Meta = Meta {
    id: "slice-queries",
    family: Family::Attention,
    summary: "attention with many queries becomes several with a part of them each",
    exactness: Exactness::Real,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Reported,
    catalog: &[],
    default: false,
    after: &["finite-masks"],
    page: include_str!("README.md"),
};

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    /// Attention with fewer queries is left as it is.
    min_length: u64,
    /// How many queries stay together; 0 for a sixteenth of them.
    chunk: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            min_length: 1280,
            chunk: 0,
        }
    }
}

/// How many parts there are, unless the parts would have to be sliced again.
const PARTS: u64 = 16;

/// A program with more parts than this is of use to nobody.
const MOST_PARTS: u64 = 1024;

const LONG_ATTENTION: Rule = Rule {
    id: "long-attention",
    summary: "attention with 1024 queries or more at once",
    why: "SqueezeBits reports that the fused operation does not compile for the Neural Engine at 1024 \
          and at 2048 queries. Written out, the scores of all queries are in memory at once; Apple \
          states 34 % less time and 45 % less memory in parts, at 1814.",
    help: "slice-queries cuts it into parts, from 1280 queries on unless `min_length` says otherwise.",
    evidence: META.evidence,
    sources: &[
        "https://blog.squeezebits.com",
        "https://github.com/apple/coremltools/releases",
    ],
    severity: Severity::Warning.everywhere(),
    catalog: &[],
};

/// The smallest number of queries at which someone reports a failure. Source: SqueezeBits (reported).
const LONG: u64 = 1024;

impl Pass for SliceQueries {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn rules(&self) -> &'static [Rule] {
        &[LONG_ATTENTION]
    }

    fn options(&self) -> OptionMap {
        options::defaults::<Options>()
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        let options: Options = options::read(META.id, options)?;
        let refuse = |why: String| Err(OptionError { pass: META.id, why });
        if options.min_length < 2 {
            return refuse("option `min_length`: one query cannot be sliced".to_owned());
        }
        // A longer one would be sliced again, and again.
        if options.chunk >= options.min_length {
            return refuse(format!(
                "option `chunk`: {} is not below `min_length`, {}",
                options.chunk, options.min_length
            ));
        }
        Ok(Box::new(Queries(options)))
    }
}

struct Queries(Options);

impl Matcher for Queries {
    fn attempt(&mut self, block: &Block<'_>, node: NodeId) -> Attempt {
        let Some(attention) = attention::at(block, node) else {
            return Attempt::NoMatch;
        };
        let Some([length, ..]) = attention.lengths(block) else {
            return Attempt::NoMatch;
        };
        let Some(length) = length.size() else {
            return Attempt::missed(node, "the number of queries is not fixed");
        };
        let attempt = self.slice(block, node, &attention, length);
        if length < LONG {
            return attempt;
        }
        let found = LONG_ATTENTION.found(format!("{length} queries at once"));
        attempt.with(if attention.chain.is_some() {
            // The failure was reported of the fused operation only.
            found.severity(Severity::Info)
        } else {
            found
        })
    }
}

impl Queries {
    fn slice(
        &self,
        block: &Block<'_>,
        node: NodeId,
        attention: &Attention,
        length: u64,
    ) -> Attempt {
        if length < self.0.min_length {
            // What this pass made is as it should be, and of a short one nobody would expect it.
            let is_own = block.op(node).and_then(Operation::made_by) == Some(META.id);
            if is_own || length < self.0.min_length / 2 {
                return Attempt::NoMatch;
            }
            let least = self.0.min_length;
            let why =
                format!("{length} of the {least} queries that the option `min_length` asks for");
            return Attempt::missed(node, why);
        }
        if let Some(at) = attention.escape(block) {
            let why = "its result is read elsewhere too, and has to be whole for that";
            return Attempt::missed(at, why);
        }
        let plan = match Plan::of(block, attention, length, self.chunk(length)) {
            Ok(plan) => plan,
            Err(missed) => return Attempt::CheckFailed(missed),
        };
        let parts = length.div_ceil(plan.chunk);
        if parts > MOST_PARTS {
            return Attempt::missed(node, format!("{parts} parts would be too many"));
        }
        let what = format!(
            "attention of {length} queries becomes {} of {} each",
            parts,
            if length.is_multiple_of(plan.chunk) {
                plan.chunk.to_string()
            } else {
                format!("at most {}", plan.chunk)
            },
        );
        let result = ValueId::first(node);
        let Some(ty) = block.graph.ty(result).cloned() else {
            return Attempt::missed(node, "the type of the result is not known");
        };
        Attempt::matched(what, move |edit| {
            let joined = plan.write(edit)?;
            // The declared type may leave sizes open that the parts have.
            edit.retype(joined, ty);
            edit.replace(result, joined)
        })
    }

    fn chunk(&self, length: u64) -> u64 {
        if self.0.chunk > 0 {
            return self.0.chunk;
        }
        let parts = PARTS.max(length.div_ceil(self.0.min_length - 1));
        length.div_ceil(parts)
    }
}

/// What is written for each part.
struct Plan {
    length: u64,
    chunk: u64,
    /// The operations of one part, in order.
    operations: Vec<Copy>,
    /// What has one row for each query, and of which each part takes its rows.
    sources: Vec<Slicing>,
    /// The axis of the queries in the result.
    axis: i64,
}

/// An operation that is made for each part.
struct Copy {
    op_type: String,
    arguments: BTreeMap<String, Vec<Operand>>,
}

/// A binding of a copy.
enum Operand {
    /// What the original reads.
    Same(Binding),
    /// This part's rows of a source.
    Rows(usize),
    /// The result of the copy before.
    Previous,
    /// A shape with this part's number of rows at one place.
    Shape { dims: Vec<u64>, axis: usize },
}

impl Plan {
    fn of(
        block: &Block<'_>,
        attention: &Attention,
        length: u64,
        chunk: u64,
    ) -> Result<Self, Missed> {
        let result = block.tensor(ValueId::first(attention.root));
        let axis = result
            .and_then(|ty| axis_of(ty, attention.result_queries))
            .and_then(|axis| i64::try_from(axis).ok())
            .ok_or_else(|| missed(attention.root, "the type of the result is not known"))?;
        let mut planner = Planner {
            block: *block,
            length,
            operations: Vec::new(),
            sources: Vec::new(),
        };
        if let Some(chain) = &attention.chain {
            let query = planner.rows_of_query(attention, chain.first)?;
            planner.product(chain.first, &attention.query, query)?;
            for step in &chain.steps {
                planner.step(step, chain.queries)?;
            }
            planner.product(attention.root, &chain.weights, Operand::Previous)?;
        } else {
            planner.fused(attention)?;
        }
        Ok(Self {
            length,
            chunk,
            operations: planner.operations,
            sources: planner.sources,
            axis,
        })
    }

    fn write(&self, edit: &mut Edit<'_>) -> Result<ValueId, EditError> {
        let whole: Vec<Binding> = self
            .sources
            .iter()
            .map(|source| match &source.binding {
                Binding::Immediate(value) => edit.constant(value.clone()),
                other => other.clone(),
            })
            .collect();
        let mut parts = Vec::new();
        let mut begin = 0;
        while begin < self.length {
            let end = begin.saturating_add(self.chunk).min(self.length);
            parts.push(Binding::Value(self.part(edit, &whole, begin, end)?));
            begin = end;
        }
        let arguments = BTreeMap::from([
            ("values".to_owned(), parts),
            ("axis".to_owned(), vec![int(edit, self.axis)]),
            (
                "interleave".to_owned(),
                vec![edit.constant(Value::bool(false))],
            ),
        ]);
        Ok(ValueId::first(edit.variadic_op("concat", arguments)?))
    }

    /// The result for the queries from `begin` to `end`.
    fn part(
        &self,
        edit: &mut Edit<'_>,
        whole: &[Binding],
        begin: u64,
        end: u64,
    ) -> Result<ValueId, EditError> {
        let mut rows = Vec::with_capacity(self.sources.len());
        for (source, x) in self.sources.iter().zip(whole) {
            rows.push(source.part(edit, x, begin, end)?);
        }
        let mut previous = None;
        for operation in &self.operations {
            let mut arguments = BTreeMap::new();
            for (parameter, operands) in &operation.arguments {
                let mut bindings = Vec::with_capacity(operands.len());
                for operand in operands {
                    bindings.push(match operand {
                        Operand::Same(binding) => binding.clone(),
                        Operand::Rows(source) => {
                            rows.get(*source).map_or(Binding::Absent, Clone::clone)
                        }
                        Operand::Previous => previous.map_or(Binding::Absent, Binding::Value),
                        Operand::Shape { dims, axis } => {
                            let mut dims = dims.clone();
                            if let Some(rows) = dims.get_mut(*axis) {
                                *rows = end - begin;
                            }
                            ints(edit, &dims)
                        }
                    });
                }
                arguments.insert(parameter.clone(), bindings);
            }
            let node = edit.variadic_op(&operation.op_type, arguments)?;
            previous = Some(ValueId::first(node));
        }
        previous.ok_or_else(|| EditError::NoRule("attention".to_owned()))
    }
}

/// Finds out what each part is made of.
struct Planner<'a> {
    block: Block<'a>,
    length: u64,
    operations: Vec<Copy>,
    sources: Vec<Slicing>,
}

impl<'a> Planner<'a> {
    fn op(&self, node: NodeId) -> Result<&'a Operation, Missed> {
        let gone = || missed(node, "the operation is gone");
        self.block.op(node).ok_or_else(gone)
    }

    fn rows_of_query(&mut self, attention: &Attention, at: NodeId) -> Result<Operand, Missed> {
        let query = &attention.query;
        self.rows(&Binding::Value(query.value), query.free, at)
    }

    /// A copy of a product, with another operand in the place of one factor.
    fn product(&mut self, node: NodeId, factor: &Factor, operand: Operand) -> Result<(), Missed> {
        let op = self.op(node)?;
        let op_type = op.op_type().to_owned();
        let mut arguments = same(op);
        let place = arguments
            .get_mut(factor.parameter)
            .and_then(|operands| operands.get_mut(factor.position));
        if let Some(place) = place {
            *place = operand;
        }
        self.operations.push(Copy { op_type, arguments });
        Ok(())
    }

    fn fused(&mut self, attention: &Attention) -> Result<(), Missed> {
        let query = self.rows_of_query(attention, attention.root)?;
        self.product(attention.root, &attention.query, query)?;
        let mut masks = Vec::new();
        for mask in &attention.masks {
            masks.push(self.rows(&mask.mask, 2, attention.root)?);
        }
        if let (Some(copy), false) = (self.operations.last_mut(), masks.is_empty()) {
            copy.arguments.insert("attn_mask".to_owned(), masks);
        }
        Ok(())
    }

    /// A copy of what happens between the products.
    fn step(&mut self, step: &Step, queries: usize) -> Result<(), Missed> {
        let op = self.op(step.node)?;
        let op_type = op.op_type().to_owned();
        let mut arguments = same(op);
        let result = self.block.tensor(ValueId::first(step.node));
        let axis = result.and_then(|ty| axis_of(ty, queries));
        let (Some(result), Some(axis)) = (result, axis) else {
            return Err(missed(step.node, "the type of its result is not known"));
        };
        if result.dims.get(axis).and_then(|dim| dim.size()) != Some(self.length) {
            let why = "its result does not have one row for each query";
            return Err(missed(step.node, why));
        }
        match op_type.as_str() {
            "reshape" => {
                let dims = result.shape().filter(|_| is_indexable(result));
                let dims = dims.ok_or_else(|| missed(step.node, "its shape is not fixed"))?;
                let shape = vec![Operand::Shape { dims, axis }];
                arguments.insert("shape".to_owned(), shape);
            }
            "softmax" | "cast" | "identity" | "clip" | "tanh" => {}
            // The others are elementwise in all operands.
            _ => {
                let others = op.arguments().iter();
                for argument in others.filter(|other| other.parameter != step.parameter) {
                    let mut operands = Vec::new();
                    for binding in &argument.bindings {
                        operands.push(self.rows(binding, queries, step.node)?);
                    }
                    arguments.insert(argument.parameter.clone(), operands);
                }
            }
        }
        arguments.insert(step.parameter.to_owned(), vec![Operand::Previous]);
        self.operations.push(Copy { op_type, arguments });
        Ok(())
    }

    /// What a part reads of an operand: its rows, or all of it if it has none for each query.
    fn rows(&mut self, binding: &Binding, queries: usize, at: NodeId) -> Result<Operand, Missed> {
        let ty = match binding {
            Binding::Value(value) => self.block.tensor(*value),
            Binding::Immediate(value) => value.tensor_type(),
            Binding::Absent => return Ok(Operand::Same(Binding::Absent)),
        };
        let ty = ty.ok_or_else(|| missed(at, "the type of an operand is not known"))?;
        let Some(axis) = axis_of(ty, queries) else {
            return Ok(Operand::Same(binding.clone()));
        };
        match ty.dims.get(axis).and_then(|dim| dim.size()) {
            Some(1) => return Ok(Operand::Same(binding.clone())),
            Some(size) if size == self.length => {}
            Some(size) => {
                let why = format!("an operand has {size} rows for {} queries", self.length);
                return Err(missed(at, why));
            }
            None => {
                let why = "whether an operand has one row or one for each query is not known";
                return Err(missed(at, why));
            }
        }
        if !is_indexable(ty) {
            return Err(missed(at, "an operand is too large for indices of 32 bits"));
        }
        let known = self
            .sources
            .iter()
            .position(|source| source.binding == *binding && source.axis == axis);
        let index = known.unwrap_or_else(|| {
            self.sources.push(Slicing {
                binding: binding.clone(),
                dims: ty.dims.clone(),
                axis,
            });
            self.sources.len() - 1
        });
        Ok(Operand::Rows(index))
    }
}

fn missed(at: NodeId, why: impl Into<String>) -> Missed {
    Missed {
        why: why.into(),
        at,
    }
}

/// The arguments of an operation, as they are.
fn same(op: &Operation) -> BTreeMap<String, Vec<Operand>> {
    op.arguments()
        .iter()
        .map(|argument| {
            let operands = argument.bindings.iter().cloned().map(Operand::Same);
            (argument.parameter.clone(), operands.collect())
        })
        .collect()
}

/// Whether every size is an index of 32 bits.
fn is_indexable(ty: &TensorType) -> bool {
    let mut sizes = ty.dims.iter().filter_map(|dim| dim.size());
    sizes.all(|size| i32::try_from(size).is_ok())
}

/// An axis that is counted from the end, from the beginning; `None` if there is none.
fn axis_of(ty: &TensorType, from_end: usize) -> Option<usize> {
    ty.dims.len().checked_sub(from_end)
}

fn int(edit: &mut Edit<'_>, value: i64) -> Binding {
    edit.constant(Value::int32(value as i32))
}
