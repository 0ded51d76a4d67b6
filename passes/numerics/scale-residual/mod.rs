//! scale-residual: the residual stream of a transformer is multiplied by a number, so that fp16 holds it.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use half::f16;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::analysis::residual::{self, Stream};
use crate::eval::ports::{Direction, PortMap};
use crate::eval::scales::{self, ScaleMap, Scaled};
use crate::ir::ValueId;
use crate::ops::Opset;
use crate::pass::options::{self, OptionError, OptionMap};
use crate::pass::{
    Block, Evidence, Exactness, Family, Matcher, Meta, Needs, Nowhere, Pass, Target, Whole,
    WholeAttempt, WholeError, WholeMatcher,
};

mod absorb;
mod apply;
mod epsilon;
mod plan;

use plan::{Plan, Request};

/// The pass.
pub(super) struct ScaleResidual;

static META: Meta = Meta {
    id: "scale-residual",
    family: Family::Numerics,
    summary: "the residual stream of a transformer is multiplied by a number that brings it into fp16",
    exactness: Exactness::Real,
    since: Opset::CoreML5,
    targets: &[Target::CoreMl, Target::AneDirect],
    evidence: Evidence::Measured,
    catalog: &[],
    default: false,
    after: &["fold-rsqrt-epsilon", "safe-rmsnorm"],
    page: include_str!("README.md"),
};

#[derive(Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    /// A number, `auto` or `pow2`.
    alpha: Json,
    /// The first layer whose stream is scaled.
    from_layer: u32,
    /// Whether inputs and outputs that are the stream are scaled with it.
    chunk: bool,
    /// A report with measured values, for the command line.
    report: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            alpha: Json::String("auto".to_owned()),
            from_layer: 0,
            chunk: false,
            report: String::new(),
        }
    }
}

/// What the stream is multiplied by.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Alpha {
    Number(f64),
    /// So that the measured peak becomes 50 000.
    Auto,
    /// By a power of two, so that it becomes 55 000 at most.
    PowerOfTwo,
}

impl Options {
    fn read(given: &OptionMap) -> Result<(Self, Alpha), OptionError> {
        let options: Self = options::read(META.id, given)?;
        let alpha = match &options.alpha {
            Json::String(word) if word == "auto" => Some(Alpha::Auto),
            Json::String(word) if word == "pow2" => Some(Alpha::PowerOfTwo),
            Json::Number(number) => number.as_f64().filter(|n| is_factor(*n)).map(Alpha::Number),
            _ => None,
        };
        let alpha = alpha.ok_or_else(|| OptionError {
            pass: META.id,
            why: format!(
                "option `alpha`: {} is none of `auto`, `pow2` and the numbers from 2^-14 to 2^14",
                options.alpha
            ),
        })?;
        Ok((options, alpha))
    }
}

/// Whether a number is a factor that fp16 can hold, with room for what it is multiplied by.
fn is_factor(number: f64) -> bool {
    (2f64.powi(-14)..=2f64.powi(14)).contains(&number)
}

impl Pass for ScaleResidual {
    fn meta(&self) -> &'static Meta {
        &META
    }

    fn options(&self) -> OptionMap {
        options::defaults::<Options>()
    }

    fn matcher(&self, options: &OptionMap) -> Result<Box<dyn Matcher>, OptionError> {
        Options::read(options)?;
        Ok(Box::new(Nowhere))
    }

    fn whole_matcher(
        &self,
        options: &OptionMap,
    ) -> Result<Option<Box<dyn WholeMatcher>>, OptionError> {
        let (options, alpha) = Options::read(options)?;
        Ok(Some(Box::new(Scaler {
            options,
            alpha,
            done: Rc::default(),
        })))
    }

    fn needs(&self, options: &OptionMap) -> Result<Needs, OptionError> {
        let (_, alpha) = Options::read(options)?;
        Ok(Needs {
            ranges: !matches!(alpha, Alpha::Number(_)),
            ..Needs::default()
        })
    }

    fn changes_interface(&self, options: &OptionMap) -> Result<bool, OptionError> {
        Ok(Options::read(options)?.0.chunk)
    }
}

struct Scaler {
    options: Options,
    alpha: Alpha,
    /// The functions that were scaled in this run: a program without a description has no metadata to
    /// tell.
    done: Rc<RefCell<BTreeSet<String>>>,
}

/// A body with a stream.
struct Found<'w> {
    opset: &'w str,
    block: Block<'w>,
    stream: Stream,
    /// The first value of the stream that is scaled; `None` if there is no such layer.
    first: Option<usize>,
    layers: usize,
}

/// Why there is nothing to scale in a function.
const NO_STREAM: &str = "no residual stream: no chain of two or more `add`s, each of a value that a norm \
                         reads and of what a branch makes of it, that ends in a norm or an output";

impl WholeMatcher for Scaler {
    fn attempts(&mut self, whole: &Whole<'_>) -> Vec<WholeAttempt> {
        if self.alpha == Alpha::Number(1.0) {
            return Vec::new();
        }
        let maps = ScaleMap::of(whole.metadata).map_err(|error| error.to_string());
        let ports = PortMap::of(whole.metadata).map_err(|error| error.to_string());
        let (map, ports) = match (maps, ports) {
            (Ok(map), Ok(ports)) => (map, ports),
            (Err(why), _) | (_, Err(why)) => {
                return vec![WholeAttempt::missed(["", "", "program"], why)];
            }
        };
        let mut attempts = Vec::new();
        let mut functions: Vec<(&str, Vec<Found<'_>>)> = Vec::new();
        for (name, function) in &whole.program.functions {
            if map.functions.contains_key(name) || self.done.borrow().contains(name) {
                continue;
            }
            let opsets = function.specializations.keys();
            let found: Option<Vec<Found<'_>>> = opsets.map(|o| self.find(whole, name, o)).collect();
            match found.filter(|found| !found.is_empty()) {
                Some(found) => functions.push((name, found)),
                None => attempts.push(WholeAttempt::missed([name, "", "function"], NO_STREAM)),
            }
        }
        let Some((first, _)) = functions.first() else {
            return attempts;
        };
        let alpha = match self.factor(&functions) {
            Ok(alpha) => alpha,
            Err(why) => {
                attempts.push(WholeAttempt::missed([first, "", "function"], why));
                return attempts;
            }
        };
        for (name, found) in &functions {
            attempts.push(self.attempt(name, found, alpha, (&map, &ports)));
        }
        attempts
    }
}

impl Scaler {
    fn find<'w>(&self, whole: &Whole<'w>, function: &str, opset: &'w str) -> Option<Found<'w>> {
        let block = whole.block(function, opset)?;
        let stream = residual::longest(&block)?;
        let from = self.options.from_layer as usize;
        let (first, layers) = if from == 0 {
            (Some(0), 0)
        } else {
            let layers = stream.layers(&block);
            (layers.get(from).map(|layer| layer.start), layers.len())
        };
        Some(Found {
            opset,
            block,
            stream,
            first,
            layers,
        })
    }

    /// What the streams of all functions are multiplied by: one number, as functions may share weights.
    /// It is one that fp16 holds, so that constants and operations of all types have the same.
    fn factor(&self, functions: &[(&str, Vec<Found<'_>>)]) -> Result<f64, String> {
        let formula = match self.alpha {
            Alpha::Number(alpha) => return Ok(f16::from_f64(alpha).to_f64()),
            Alpha::Auto => residual::alpha,
            Alpha::PowerOfTwo => residual::power_of_two,
        };
        let mut peak: Option<f64> = None;
        for found in functions.iter().flat_map(|(_, found)| found) {
            for (at, value) in found.stream.values().enumerate() {
                // A value in front of the layer is not scaled, except the one that enters it.
                if at < found.first.unwrap_or_default() {
                    continue;
                }
                if let Some(range) = found.block.range(value) {
                    peak = Some(peak.map_or(range.peak, |peak| peak.max(range.peak)));
                }
            }
        }
        let Some(peak) = peak else {
            return Err(
                "the stream was not measured: give `--inputs` to measure it with, a report of what was \
                 measured (`report`), or a number (`alpha`)"
                    .to_owned(),
            );
        };
        let alpha = formula(peak);
        if alpha == 1.0 {
            return Err(format!(
                "the stream peaks at {}, which fp16 holds; nothing to scale",
                short(peak)
            ));
        }
        if is_factor(alpha) {
            Ok(f16::from_f64(alpha).to_f64())
        } else {
            Err(format!(
                "the stream peaks at {}, which would take a factor below 2^-14",
                short(peak)
            ))
        }
    }

    fn attempt(
        &self,
        function: &str,
        found: &[Found<'_>],
        alpha: f64,
        (map, ports): (&ScaleMap, &PortMap),
    ) -> WholeAttempt {
        let mut plans: Vec<(String, Plan)> = Vec::new();
        for body in found {
            let start = body.block.label(body.stream.start.node);
            let Some(first) = body.first else {
                let why = format!(
                    "there is no layer {}: the stream has the layers 0 to {}",
                    self.options.from_layer,
                    body.layers.saturating_sub(1)
                );
                return WholeAttempt::missed(
                    [function, &start, op_type(&body.block, body.stream.start)],
                    why,
                );
            };
            let request = Request {
                alpha,
                first,
                chunk: self.options.chunk,
            };
            match plan::plan(&body.block, &body.stream, &request) {
                Ok(plan) => plans.push((body.opset.to_owned(), plan)),
                Err(stop) => {
                    let label = body.block.label(stop.at);
                    let op_type = op_type(&body.block, ValueId::first(stop.at));
                    return WholeAttempt::missed([function, &label, op_type], stop.why);
                }
            }
        }
        let (Some(body), Some((_, plan))) = (found.first(), plans.first()) else {
            return WholeAttempt::missed([function, "", "function"], NO_STREAM);
        };
        let ends = plan.inputs.iter().chain(&plan.outputs).next();
        if let (Some(end), false) = (ends, matches!(self.alpha, Alpha::Number(_))) {
            let why = format!(
                "`{end}` is the stream, which other chunks scale too: give the same number for all as \
                 `alpha`, not `{}`",
                self.options.alpha.as_str().unwrap_or_default()
            );
            let side = if plan.inputs.contains(end) {
                "input"
            } else {
                "output"
            };
            return WholeAttempt::missed([function, end, side], why);
        }
        let what = self.what(body, plan, alpha);
        let original = |direction, names: &[String]| -> Vec<String> {
            let names = names
                .iter()
                .map(|name| ports.original(function, direction, name));
            names.map(str::to_owned).collect()
        };
        let scaled = Scaled {
            alpha,
            from_layer: self.options.from_layer,
            inputs: original(Direction::Input, &plan.inputs),
            outputs: original(Direction::Output, &plan.outputs),
        };
        let start = body.block.label(body.stream.start.node);
        let place = [function, &start, op_type(&body.block, body.stream.start)];
        let (name, mut map, done) = (function.to_owned(), map.clone(), Rc::clone(&self.done));
        WholeAttempt::matched(place, what, move |edit| {
            for (opset, plan) in plans {
                apply::apply(edit, &name, &opset, plan, alpha)?;
            }
            map.functions.insert(name.clone(), scaled);
            let text = map
                .text()
                .map_err(|error| WholeError::Other(error.to_string()))?;
            edit.description().set_user_defined(scales::KEY, Some(text));
            done.borrow_mut().insert(name);
            Ok(())
        })
    }

    /// What is done, in one line.
    fn what(&self, body: &Found<'_>, plan: &Plan, alpha: f64) -> String {
        let many = |count: usize, one: &str, more: &str| match count {
            1 => format!("1 {one}"),
            _ => format!("{count} {more}"),
        };
        let from = match self.options.from_layer {
            0 => String::new(),
            layer => format!(" from layer {layer} on"),
        };
        let additions = many(plan.writes, "addition", "additions");
        let mut parts = Vec::new();
        if plan.constants() > 0 {
            let constants = many(plan.constants(), "constant", "constants");
            parts.push(format!("in {constants}"));
        }
        if plan.products() > 0 {
            let products = many(plan.products(), "new product", "new products");
            parts.push(format!("by {products}"));
        }
        if plan.epsilons() > 0 {
            let epsilons = many(plan.epsilons(), "epsilon or floor", "epsilons and floors");
            parts.push(format!("{epsilons} of norms follow"));
        }
        let peaks = body.stream.values().filter_map(|v| body.block.range(v));
        let peak = peaks.map(|range| range.peak).reduce(f64::max);
        let peak = peak.map(|peak| format!("; it peaked at {}", short(peak)));
        let subnormal = (plan.subnormal > 0).then(|| {
            let count = many(plan.subnormal, "epsilon is", "epsilons are");
            format!("; {count} subnormal in fp16, for want of another place")
        });
        format!(
            "the stream of {additions}{from} times {alpha}: {}{}{}",
            parts.join(", "),
            peak.unwrap_or_default(),
            subnormal.unwrap_or_default()
        )
    }
}

/// A peak with a digit behind the point.
fn short(peak: f64) -> String {
    format!("{}", (peak * 10.0).round() / 10.0)
}

fn op_type<'a>(block: &Block<'a>, value: ValueId) -> &'a str {
    block.op(value.node).map_or("input", |op| op.op_type())
}
