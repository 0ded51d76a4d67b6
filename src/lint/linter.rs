//! Runs the rules of passes over a model.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use rayon::prelude::*;

use super::baseline::Baseline;
use super::config::{Config, Ignore};
use super::finding::{Finding, Summary};
use super::orion::{self, RowReport};
use super::selector::Selection;
use crate::ir::{NodeId, Program};
use crate::model::Part;
use crate::pass::options::{OptionError, OptionMap};
use crate::pass::{
    Calibration, Exactness, Hit, Pass, Pipeline, Rule, Severity, Spot, Step, Target, Whole, scan,
};
use crate::source::ModelFile;

/// What is asked for on the command line. It goes before what the configuration says.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The target; that of the configuration, or `core-ml`, if none is given.
    pub target: Option<Target>,
    /// The rules that are wanted, in place of those of the configuration.
    pub select: Option<Selection>,
    /// The rules that are not wanted, besides those of the configuration.
    pub ignore: Selection,
}

/// How a linter works: what is asked for and what is configured, together.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The target.
    pub target: Target,
    select: Selection,
    ignore: Selection,
    severity: BTreeMap<String, Severity>,
    ignores: Vec<Ignore>,
    options: BTreeMap<&'static str, OptionMap>,
}

impl Setup {
    /// Puts both together. For the target `ane-direct` passes have the options that the pipeline of
    /// that name gives them, so that what is found is what that pipeline repairs.
    pub fn new(request: &Request, config: &Config, passes: &[&'static dyn Pass]) -> Self {
        let target = request.target.or(config.target).unwrap_or(Target::CoreMl);
        let mut ignore = config.ignore.clone();
        ignore.extend(request.ignore.clone());
        let mut options = match target {
            Target::CoreMl => BTreeMap::new(),
            Target::AneDirect => options_of("ane-direct", passes),
        };
        for (pass, own) in &config.options {
            options.entry(*pass).or_default().extend(own.clone());
        }
        let wanted = request.select.as_ref().or(config.select.as_ref());
        Self {
            target,
            select: wanted.cloned().unwrap_or_else(|| Selection::all(passes)),
            ignore,
            severity: config.severity.clone(),
            ignores: config.ignores.clone(),
            options,
        }
    }

    fn wants(&self, rule: &Rule) -> bool {
        self.select.contains(rule) && !self.ignore.contains(rule)
    }

    /// The options of a pass.
    pub fn options(&self, pass: &str) -> OptionMap {
        self.options.get(pass).cloned().unwrap_or_default()
    }
}

/// The options that a named pipeline gives its passes.
fn options_of(pipeline: &str, passes: &[&'static dyn Pass]) -> BTreeMap<&'static str, OptionMap> {
    fn collect(
        steps: &[Step],
        passes: &[&'static dyn Pass],
        options: &mut BTreeMap<&'static str, OptionMap>,
    ) {
        for step in steps {
            match step {
                Step::Group(inner) => collect(inner, passes, options),
                Step::Pass { id, options: own } => {
                    if let Some(pass) = passes.iter().find(|pass| pass.meta().id == id) {
                        options
                            .entry(pass.meta().id)
                            .or_default()
                            .extend(own.clone());
                    }
                }
            }
        }
    }
    let mut options = BTreeMap::new();
    if let Ok(pipeline) = Pipeline::parse(pipeline, passes) {
        collect(&pipeline.steps, passes, &mut options);
    }
    options
}

/// What was found in one model.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The findings that count, in the order of the model.
    pub findings: Vec<Finding>,
    /// How many the configuration ignores, with reasons.
    pub ignored: usize,
    /// How many are in the baseline.
    pub known: usize,
    /// Which `[[ignore]]` of the configuration met something, in their order.
    pub used_ignores: Vec<bool>,
    /// The rows of Orion's catalogue, if asked for.
    pub catalog: Option<Vec<RowReport>>,
}

impl Report {
    /// How many findings there are of each severity.
    pub fn summary(&self) -> Summary {
        Summary::of(&self.findings)
    }
}

/// Runs rules over models.
pub struct Linter<'p> {
    passes: &'p [&'static dyn Pass],
    /// Whether the rows of Orion's catalogue are wanted.
    pub catalog: bool,
    /// What was measured of the model, for the rules that then know more.
    pub calibration: Arc<Calibration>,
}

impl<'p> Linter<'p> {
    /// A linter with the rules of these passes.
    pub fn new(passes: &'p [&'static dyn Pass]) -> Self {
        Self {
            passes,
            catalog: false,
            calibration: Arc::default(),
        }
    }

    /// Lints a model. `baseline` loses what is found and known.
    pub fn lint(
        &self,
        file: &ModelFile,
        setup: &Setup,
        baseline: Option<&mut Baseline>,
    ) -> Result<Report, OptionError> {
        let hits = self.hits(file, setup)?;
        let mut report = judge(&hits, setup);
        let parts = file.model.programs();
        sort(&mut report.findings, &parts);
        if let Some(baseline) = baseline {
            take_known(&mut report, baseline, file.path());
        }
        if self.catalog {
            report.catalog = Some(orion::rows(&hits, self.passes));
        }
        Ok(report)
    }

    /// Everything that passes find, with the number of the program. Only passes that may have something
    /// to say run.
    fn hits(
        &self,
        file: &ModelFile,
        setup: &Setup,
    ) -> Result<Vec<(usize, &'static str, Hit)>, OptionError> {
        let metadata = file.model.user_defined();
        let mut hits = Vec::new();
        for (part_number, part) in file.model.programs().iter().enumerate() {
            let whole = Whole {
                program: part.program,
                interface: &part.interface,
                metadata: &metadata,
                blobs: file.weights().as_ref(),
                stage: &part.stage,
                calibration: &self.calibration,
            };
            let is_wanted = |rule: &Rule| {
                // What is silent for the target is not looked for: that may need weights.
                let speaks = setup.wants(rule) && rule.severity_for(setup.target).is_some();
                speaks || (self.catalog && !rule.catalog.is_empty())
            };
            // Passes see the same program and change nothing, so that they look at it at once.
            let of_pass = |pass: &&'static dyn Pass| {
                let id = pass.meta().id;
                let found = scan(*pass, &setup.options(id), &whole)?;
                let found = found.into_iter().map(|mut hit| {
                    if hit.spot.is_none() {
                        hit.spot = spot_by_name(part.program, &hit);
                    }
                    (part_number, id, hit)
                });
                Ok(found.collect())
            };
            let wanted = self.passes.par_iter();
            let found: Vec<Vec<_>> = wanted
                .filter(|pass| pass.rules().iter().any(is_wanted))
                .map(of_pass)
                .collect::<Result<_, OptionError>>()?;
            hits.extend(found.into_iter().flatten());
        }
        Ok(hits)
    }

    /// The passes that repair findings of a report, as a pipeline: those that come first in the named
    /// pipelines first. Passes that change the interface only if that is wanted.
    pub fn fixes(&self, report: &Report, setup: &Setup, interface_changes: bool) -> Pipeline {
        let order = Pipeline::parse("default,ane-direct", self.passes).unwrap_or_default();
        let order = order.ids();
        let rank = |id: &str| order.iter().position(|known| *known == id);
        let mut needed: Vec<&dyn Pass> = Vec::new();
        for pass in self.passes {
            let meta = pass.meta();
            let repairs = |finding: &Finding| finding.fix && finding.pass == meta.id;
            let is_allowed = interface_changes || meta.exactness != Exactness::Interface;
            if is_allowed && !meta.is_check() && report.findings.iter().any(repairs) {
                needed.push(*pass);
            }
        }
        needed.sort_by_key(|pass| rank(pass.meta().id).unwrap_or(usize::MAX));
        Pipeline {
            steps: needed
                .into_iter()
                .map(|pass| Step::Pass {
                    id: pass.meta().id.to_owned(),
                    options: setup.options(pass.meta().id),
                })
                .collect(),
        }
    }
}

/// The findings among the hits, for a target.
fn judge(hits: &[(usize, &'static str, Hit)], setup: &Setup) -> Report {
    let mut report = Report {
        used_ignores: vec![false; setup.ignores.len()],
        ..Report::default()
    };
    for (part, pass, hit) in hits {
        let rule = hit.found.rule;
        let Some(usual) = hit.found.severity_for(setup.target) else {
            continue;
        };
        if !setup.wants(&rule) {
            continue;
        }
        let finding = Finding {
            rule,
            pass,
            severity: setup.severity.get(rule.id).copied().unwrap_or(usual),
            message: hit.found.message.clone(),
            fix: hit.fix,
            place: hit.place.clone(),
            part: *part,
            spot: hit.spot.clone(),
            parameter: hit.found.parameter.clone(),
        };
        let mut is_ignored = false;
        for (ignore, used) in setup.ignores.iter().zip(&mut report.used_ignores) {
            if ignore.rules.contains(&rule) && ignore.fits(&finding.path()) {
                *used = true;
                is_ignored = true;
            }
        }
        if is_ignored {
            report.ignored += 1;
        } else {
            report.findings.push(finding);
        }
    }
    report
}

/// Takes what the baseline knows out of a report.
fn take_known(report: &mut Report, baseline: &mut Baseline, model: &Path) {
    let before = report.findings.len();
    report
        .findings
        .retain(|finding| !baseline.take(model, finding));
    report.known = before - report.findings.len();
}

/// The operation that a finding about a whole program names, in the outermost block of the body that
/// runs.
fn spot_by_name(program: &Program, hit: &Hit) -> Option<Spot> {
    if hit.place.op.is_empty() {
        return None;
    }
    let function = program.functions.get(&hit.place.function)?;
    let graph = &function.active()?.graph;
    let (node, _) = graph.ops().find(|(_, op)| {
        op.op_type() == hit.place.op_type
            && op
                .results()
                .iter()
                .any(|result| result.name == hit.place.op)
    })?;
    Some(Spot {
        function: hit.place.function.clone(),
        opset: function.opset.clone(),
        path: Vec::new(),
        node,
    })
}

/// Puts findings in the order of the model: by program, function, place in the function, and rule. What
/// is about a whole function or program stands before its operations.
fn sort(findings: &mut [Finding], parts: &[Part<'_>]) {
    let mut positions = Positions {
        parts,
        blocks: HashMap::new(),
    };
    findings.sort_by_cached_key(|finding| {
        let place = positions.of(finding);
        (
            finding.part,
            finding.place.function.clone(),
            place,
            finding.rule.id,
        )
    });
}

/// A body and the way into a nested block.
type BlockKey = (usize, String, String, Vec<(NodeId, usize)>);

/// Positions of operations in their blocks; those of a block are counted once.
struct Positions<'p> {
    parts: &'p [Part<'p>],
    blocks: HashMap<BlockKey, HashMap<NodeId, usize>>,
}

impl Positions<'_> {
    /// Where a finding is: its body, then the position in each block on the way to it.
    fn of(&mut self, finding: &Finding) -> (String, Vec<usize>) {
        let Some(spot) = &finding.spot else {
            return (String::new(), Vec::new());
        };
        let mut position = Vec::new();
        for depth in 0..=spot.path.len() {
            let inner = Spot {
                path: spot.path[..depth].to_vec(),
                ..spot.clone()
            };
            let (node, block) = spot.path.get(depth).copied().unwrap_or((spot.node, 0));
            // Nested blocks stand before the operation that owns them.
            position.push(self.in_block(finding.part, &inner, node));
            position.push(if depth < spot.path.len() {
                block
            } else {
                usize::MAX
            });
        }
        (spot.opset.clone(), position)
    }

    fn in_block(&mut self, part: usize, spot: &Spot, node: NodeId) -> usize {
        let key = (
            part,
            spot.function.clone(),
            spot.opset.clone(),
            spot.path.clone(),
        );
        let parts = self.parts;
        let block = self.blocks.entry(key).or_insert_with(|| {
            let graph = parts.get(part).and_then(|part| spot.graph(part.program));
            let order = graph.and_then(|graph| graph.schedule().ok());
            let nodes = order.iter().flat_map(|order| order.iter().copied());
            nodes.enumerate().map(|(at, node)| (node, at)).collect()
        });
        block.get(&node).copied().unwrap_or(usize::MAX)
    }
}
