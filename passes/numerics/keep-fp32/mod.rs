//! keep-fp32: a few operations of an fp16 program are evaluated in fp32.

mod departing;
mod island;
mod measure;
mod search;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::eval::Precision;
use crate::eval::bisect::MOVES;
use crate::ir::{Binding, Body, DType, Function, Graph, NodeId, Operation, ValueId};
use crate::ops::Opset;
use crate::ops::registry::{self, Effect};
use crate::pass::options::{self, OptionError, OptionMap};
use crate::pass::{
    Block, Evidence, Exactness, Family, Matcher, Meta, Needs, Nowhere, Pass, Target, Whole,
    WholeAttempt, WholeMatcher,
};
use island::{Fitness, Made, fitness, islands, widen};
use measure::{Error, Measure};
use search::Search;

/// The pass.
pub(super) struct KeepFp32;

const ID: &str = "keep-fp32";

static META: Meta = Meta {
    id: ID,
    family: Family::Numerics,
    summary: "a few operations of an fp16 program compute in fp32: named ones, or the fewest that suffice",
    exactness: Exactness::Real,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl],
    evidence: Evidence::Disputed,
    catalog: &[],
    default: false,
    after: &[],
    page: include_str!("README.md"),
};

/// The word for a search instead of names.
const AUTO: &str = "auto";

/// Operations that are better left in fp16: the search tries first to do without them.
const HEAVY: [&str; 7] = [
    "conv",
    "conv_transpose",
    "einsum",
    "linear",
    "lstm",
    "matmul",
    "scaled_dot_product_attention",
];

/// How many operations a remark names.
const NAMED: usize = 8;

#[derive(Clone, Copy, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum Low {
    Fp16,
    Ane,
}

#[derive(Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    /// Names of values or types of operations, separated by `+` or spaces; or `auto`.
    ops: String,
    /// The error that is good enough. By default that of `--verify` and `bisect`: sound transformers in
    /// fp16 have errors of 1e-3 to 3e-3 from rounding alone.
    tolerance: f64,
    /// A report of `milwright bisect --format json`, whose operations are looked at alone.
    bisect: String,
    /// What it is to be good enough in.
    precision: Low,
    /// How often the search may run the function.
    runs: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ops: AUTO.to_owned(),
            tolerance: 1e-2,
            bisect: String::new(),
            precision: Low::Fp16,
            runs: 200,
        }
    }
}

impl Pass for KeepFp32 {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn options(&self) -> OptionMap {
        options::defaults::<Options>()
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        // It never matches, but options are checked by asking for it.
        self.whole_matcher(options)?;
        Ok(Box::new(Nowhere))
    }

    fn whole_matcher(
        &self,
        options: &OptionMap,
    ) -> Result<Option<Box<dyn WholeMatcher>>, OptionError> {
        Ok(Some(match wanted(options)? {
            Wanted::Items(items) => Box::new(Given {
                known: vec![false; items.len()],
                items,
            }),
            Wanted::Searched(options) => {
                let departing = match options.bisect.as_str() {
                    "" => None,
                    file => Some(departing::read(file).map_err(|why| wrong("bisect", why))?),
                };
                Box::new(Fewest { options, departing })
            }
        }))
    }

    fn needs(&self, options: &OptionMap) -> Result<Needs, OptionError> {
        Ok(Needs {
            ranges: false,
            samples: matches!(wanted(options)?, Wanted::Searched(_)),
        })
    }
}

enum Wanted {
    /// Names and types.
    Items(Vec<String>),
    Searched(Options),
}

fn wrong(option: &str, why: impl std::fmt::Display) -> OptionError {
    OptionError {
        pass: ID,
        why: format!("option `{option}`: {why}"),
    }
}

fn wanted(options: &OptionMap) -> Result<Wanted, OptionError> {
    let options: Options = options::read(ID, options)?;
    let parts = options.ops.split(|c: char| c == '+' || c.is_whitespace());
    let items: Vec<String> = parts
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect();
    if items.is_empty() {
        return Err(wrong(
            "ops",
            "it names nothing; leave it out, or say `auto`",
        ));
    }
    if !(options.tolerance.is_finite() && options.tolerance > 0.0) {
        return Err(wrong("tolerance", "it must be a number above 0"));
    }
    if options.runs == 0 {
        return Err(wrong("runs", "it must be at least 1"));
    }
    if items == [AUTO] {
        return Ok(Wanted::Searched(options));
    }
    if items.iter().any(|item| item == AUTO) {
        return Err(wrong("ops", "`auto` stands alone"));
    }
    if !options.bisect.is_empty() {
        return Err(wrong(
            "bisect",
            "a report is for the search; with `ops` it has no meaning",
        ));
    }
    Ok(Wanted::Items(items))
}

/// What a body becomes.
struct Plan {
    body: Body,
    set: Vec<NodeId>,
    made: Made,
}

impl Plan {
    fn new(block: &Block<'_>, body: &Body, set: &[NodeId]) -> Result<Self, String> {
        let mut wide = body.clone();
        let opset = block.opset.ok_or("the opset is not known")?;
        let made = widen(&mut wide, opset, set, block.blobs).map_err(|error| error.to_string())?;
        Ok(Self {
            body: wide,
            set: set.to_vec(),
            made,
        })
    }

    fn attempt(self, block: &Block<'_>, function: &str, opset: &str, more: &str) -> WholeAttempt {
        let name = |node: &NodeId| {
            let op_type = block.op(*node).map_or("", Operation::op_type);
            format!("{} ({op_type})", block.label(*node))
        };
        let mut names: Vec<String> = self.set.iter().take(NAMED).map(name).collect();
        if self.set.len() > NAMED {
            names.push(format!("{} more", self.set.len() - NAMED));
        }
        let what = format!(
            "{} in fp32, outside the Neural Engine: {}; {}, {}{}{more}",
            count(self.set.len(), "operation"),
            names.join(", "),
            count(islands(block.graph, &self.set), "island"),
            count(self.made.casts, "cast"),
            match self.made.joined {
                0 => String::new(),
                joined => format!(" (and {} less)", count(joined, "other")),
            },
        );
        let first = self.set.first().copied();
        let label = first.map(|node| block.label(node)).unwrap_or_default();
        let op_type = first.and_then(|node| block.op(node));
        let place = [
            function,
            label.as_str(),
            op_type.map_or("", |op| op.op_type()),
        ];
        let (function, opset, body) = (function.to_owned(), opset.to_owned(), self.body);
        WholeAttempt::matched(place, what, move |edit| {
            *edit.body(&function, &opset)? = body;
            Ok(())
        })
    }
}

fn count(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// The operations of a block as they run.
fn in_order(graph: &Graph) -> Vec<NodeId> {
    let schedule = graph.schedule().unwrap_or_default();
    schedule
        .iter()
        .copied()
        .filter(|node| graph.op(*node).is_some())
        .collect()
}

fn is_ours(graph: &Graph, node: NodeId) -> bool {
    graph.op(node).is_some_and(|op| op.made_by() == Some(ID))
}

fn is_called(op: &Operation, item: &str) -> bool {
    op.op_type() == item
        || op.name() == Some(item)
        || op.results().iter().any(|result| result.name == item)
}

/// The operations that the options name.
struct Given {
    items: Vec<String>,
    /// Those that name something; what they name may be gone after a rewrite.
    known: Vec<bool>,
}

impl WholeMatcher for Given {
    fn attempts(&mut self, whole: &Whole<'_>) -> Vec<WholeAttempt> {
        let mut attempts = Vec::new();
        let mut known = std::mem::take(&mut self.known);
        for (name, function) in &whole.program.functions {
            for (opset, body) in &function.specializations {
                if let Some(block) = whole.block(name, opset) {
                    self.body(&block, [name, opset], body, &mut known, &mut attempts);
                }
            }
        }
        for (item, _) in self.items.iter().zip(&known).filter(|(_, known)| !**known) {
            let why = format!("there is no operation, value or type of operation `{item}`");
            attempts.push(WholeAttempt::missed(["", "", "program"], why));
        }
        self.known = known;
        attempts
    }
}

impl Given {
    fn body(
        &self,
        block: &Block<'_>,
        [name, opset]: [&str; 2],
        body: &Body,
        known: &mut [bool],
        attempts: &mut Vec<WholeAttempt>,
    ) {
        let mut set: HashSet<NodeId> = HashSet::new();
        let order = in_order(block.graph);
        for (item, known) in self.items.iter().zip(known) {
            let mut idle = None;
            let mut done = false;
            for &node in &order {
                let Some(op) = block.op(node) else { continue };
                let mut inner = op.blocks().iter();
                if let Some(inner) = inner.find_map(|graph| called_inside(graph, item)) {
                    *known = true;
                    let why = format!(
                        "it is in a block of `{}`, and only operations outside of such are moved",
                        block.label(node)
                    );
                    attempts.push(WholeAttempt::missed([name, &inner.0, &inner.1], why));
                }
                if !is_called(op, item) {
                    continue;
                }
                *known = true;
                let label = block.label(node);
                let place = [name, label.as_str(), op.op_type()];
                match fitness(block, node) {
                    Fitness::Fit => {
                        set.insert(node);
                        done = true;
                    }
                    Fitness::Idle(_) if is_ours(block.graph, node) => done = true,
                    Fitness::Idle(why) if idle.is_none() => {
                        idle = Some(WholeAttempt::missed(place, why));
                    }
                    Fitness::Idle(_) => {}
                    Fitness::Unfit(why) => {
                        done = true;
                        attempts.push(WholeAttempt::missed(place, why));
                    }
                }
            }
            attempts.extend(idle.filter(|_| !done));
        }
        if set.is_empty() {
            return;
        }
        let set: Vec<NodeId> = order.into_iter().filter(|n| set.contains(n)).collect();
        match Plan::new(block, body, &set) {
            Ok(plan) if plan.made.is_change() => {
                attempts.push(plan.attempt(block, name, opset, ""));
            }
            Ok(_) if set.iter().any(|node| is_ours(block.graph, *node)) => {}
            Ok(_) => {
                let why = "what it rounds is read in fp16 by operations that are not named";
                attempts.push(missed_at(block, name, &set, why));
            }
            Err(why) => attempts.push(missed_at(block, name, &set, &why)),
        }
    }
}

/// Name and type of an operation of this name or type in a nested block.
fn called_inside(graph: &Graph, item: &str) -> Option<(String, String)> {
    graph.ops().find_map(|(node, op)| {
        if is_called(op, item) {
            let name = graph.name(ValueId::first(node)).to_owned();
            return Some((name, op.op_type().to_owned()));
        }
        op.blocks()
            .iter()
            .find_map(|inner| called_inside(inner, item))
    })
}

fn missed_at(block: &Block<'_>, function: &str, set: &[NodeId], why: &str) -> WholeAttempt {
    let first = set.first().copied();
    let label = first.map(|node| block.label(node)).unwrap_or_default();
    let op_type = first
        .and_then(|node| block.op(node))
        .map_or("", Operation::op_type);
    WholeAttempt::missed([function, &label, op_type], why)
}

/// The fewest operations that suffice.
struct Fewest {
    options: Options,
    /// The values that a report is about.
    departing: Option<Vec<String>>,
}

impl WholeMatcher for Fewest {
    fn attempts(&mut self, whole: &Whole<'_>) -> Vec<WholeAttempt> {
        let mut attempts = Vec::new();
        for (name, function) in &whole.program.functions {
            match self.function(whole, name, function) {
                // The search is long, and only one rewrite is made before all is looked at again.
                Ok(Some(attempt)) => {
                    attempts.push(attempt);
                    break;
                }
                Ok(None) => {}
                Err(why) => {
                    attempts.push(WholeAttempt::missed([name, "", "function"], why));
                }
            }
        }
        attempts
    }
}

impl Fewest {
    fn function(
        &self,
        whole: &Whole<'_>,
        name: &str,
        function: &Function,
    ) -> Result<Option<WholeAttempt>, String> {
        let opset = function.opset.as_str();
        let (Some(body), Some(block)) = (function.active(), whole.block(name, opset)) else {
            return Ok(None);
        };
        let order = in_order(block.graph);
        let is_done = order.iter().any(|node| is_ours(block.graph, *node));
        let candidates = self.candidates(&block, &order);
        if candidates.is_empty() {
            return match &self.departing {
                _ if is_done => Ok(None),
                Some(_) => Err("the report names no operation of it that can be in fp32".into()),
                None => Err("no operation of it computes in fp16".to_owned()),
            };
        }
        if whole.calibration.samples_of(name).is_empty() {
            let why = "there are no inputs to run it on: give --inputs, or let the command line make \
                       some up";
            return Err(why.to_owned());
        }
        let is_random = |node: &&NodeId| {
            let op_type = block.op(**node).map(Operation::op_type);
            op_type.is_some_and(|op_type| registry::effect(op_type) == Effect::Random)
        };
        if let Some(random) = order.iter().find(is_random) {
            let label = block.label(*random);
            return Err(format!(
                "`{label}` draws random numbers, so that runs cannot be compared; give `ops`"
            ));
        }
        let measure = Measure::new(whole, name, function, self.precision())?;
        let before = measure.error(body.clone())?;
        let tolerance = self.options.tolerance;
        if before.0 <= tolerance {
            if is_done {
                return Ok(None);
            }
            return Err(format!(
                "the error in {} is {before}, within the tolerance of {tolerance:e}",
                self.word()
            ));
        }
        let mut runs = 0;
        let mut failure = None;
        let mut all = None;
        let mut test = |set: &[usize]| {
            runs += 1;
            let nodes: Vec<NodeId> = set.iter().map(|index| candidates[*index]).collect();
            let error = Plan::new(&block, body, &nodes).and_then(|plan| measure.error(plan.body));
            match error {
                Ok(error) => {
                    all.get_or_insert(error);
                    error.0 <= tolerance
                }
                Err(why) => {
                    failure.get_or_insert(why);
                    false
                }
            }
        };
        let mut search = Search::new(candidates.len(), self.options.runs, &mut test);
        let found = search.smallest(&groups(&block, &candidates));
        let is_exhausted = search.is_exhausted();
        let Some(found) = found else {
            return Err(self.hopeless(before, all, failure, candidates.len()));
        };
        let set: HashSet<NodeId> = found.iter().map(|index| candidates[*index]).collect();
        let set: Vec<NodeId> = order.into_iter().filter(|n| set.contains(n)).collect();
        let plan = Plan::new(&block, body, &set)?;
        let after = measure.error(plan.body.clone())?;
        let more = format!(
            "; error in {} {before} -> {after} (tolerance {tolerance:e}), of {} in fp16, after {}{}",
            self.word(),
            count(candidates.len(), "candidate"),
            count(runs, "run"),
            if is_exhausted {
                ", which is all that `runs` allows"
            } else {
                ""
            }
        );
        Ok(Some(plan.attempt(&block, name, opset, &more)))
    }

    fn hopeless(
        &self,
        before: Error,
        all: Option<Error>,
        failure: Option<String>,
        candidates: usize,
    ) -> String {
        let of = match &self.departing {
            Some(_) => "the operations that the report names",
            None => "all operations that can be",
        };
        match (all, failure) {
            (Some(all), _) => format!(
                "the error in {} is {before}, and with {of} in fp32 ({candidates}) it is still {all}, \
                 not within the tolerance of {:e}",
                self.word(),
                self.options.tolerance
            ),
            (None, Some(why)) => why,
            (None, None) => "nothing could be tried".to_owned(),
        }
    }

    fn precision(&self) -> Precision {
        match self.options.precision {
            Low::Fp16 => Precision::Fp16,
            Low::Ane => Precision::Ane,
        }
    }

    fn word(&self) -> &'static str {
        self.precision().word()
    }

    /// What may be in fp32: in the order in which it runs, or in that of the report.
    fn candidates(&self, block: &Block<'_>, order: &[NodeId]) -> Vec<NodeId> {
        let fit: Vec<NodeId> = order
            .iter()
            .copied()
            .filter(|node| fitness(block, *node) == Fitness::Fit)
            .collect();
        let Some(departing) = &self.departing else {
            return fit;
        };
        let mut candidates: Vec<NodeId> = Vec::new();
        for name in departing {
            let is_called = |node: &&NodeId| {
                let op = block.op(**node);
                op.is_some_and(|op| op.results().iter().any(|result| result.name == *name))
            };
            if let Some(node) = fit.iter().find(is_called)
                && !candidates.contains(node)
            {
                candidates.push(*node);
            }
        }
        // A report leaves out what only moves values, but fp32 has to come through there too.
        for node in fit {
            let Some(op) = block.op(node) else { continue };
            let mut read = op.arguments().iter().flat_map(|a| &a.bindings);
            let reads_one = read.any(|binding| {
                matches!(binding, Binding::Value(v)
                    if candidates.contains(&v.node) && block.dtype(*v) == Some(DType::Float16))
            });
            if MOVES.contains(&op.op_type()) && reads_one && !candidates.contains(&node) {
                candidates.push(node);
            }
        }
        candidates
    }
}

/// The candidates of each type of operation, those that cost most and those that are most first.
fn groups(block: &Block<'_>, candidates: &[NodeId]) -> Vec<Vec<usize>> {
    let mut types: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, node) in candidates.iter().enumerate() {
        if let Some(op) = block.op(*node) {
            types.entry(op.op_type()).or_default().push(index);
        }
    }
    let mut groups: Vec<(&str, Vec<usize>)> = types.into_iter().collect();
    groups.sort_by_key(|(op_type, members)| (!HEAVY.contains(op_type), Reverse(members.len())));
    groups.into_iter().map(|(_, members)| members).collect()
}
