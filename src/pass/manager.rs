//! The pass manager: runs a pipeline over a program.
//!
//! A pass sweeps over every block of every body: nested blocks come with the operation that owns
//! them. It sweeps again until it finds nothing more. In debug builds the manager does not believe
//! a pass: the text before and after must differ exactly if the pass says that it changed
//! something, and the program must verify after each pass. After the pipeline it must verify
//! always.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::block::Blobs;
use super::calibration::Calibration;
use super::matcher::Pass;
use super::meta::Exactness;
use super::options::{OptionError, OptionMap};
use super::pipeline::{MAX_ROUNDS, Pipeline, Step};
use super::remark::{Remark, RemarkKind};
use super::sweep::Sweep;
use super::verify::{self, Issue};
use super::whole::WholeSweep;
use crate::ir::Program;
use crate::model::{DescriptionMut, PartMut};
use crate::ops::Opset;

/// How often one pass sweeps over a body before the manager gives up and says so.
const MAX_SWEEPS: usize = 64;

/// How the manager runs a pipeline.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Stop after this many rewrites.
    pub max_rewrites: Option<usize>,
    /// Run passes that change inputs, outputs or states.
    pub interface_changes: bool,
    /// What was measured of the model, for passes that depend on its values.
    pub calibration: Arc<Calibration>,
    /// Verify after each pass, and compare the text before and after with what the pass says.
    pub verify_each: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_rewrites: None,
            interface_changes: false,
            calibration: Arc::default(),
            verify_each: cfg!(debug_assertions),
        }
    }
}

/// What happened to one pass over the whole run.
#[derive(Clone, Debug)]
pub struct PassRun {
    /// The pass's id.
    pub id: &'static str,
    /// Rewrites made.
    pub rewrites: usize,
    /// Near matches that are left.
    pub missed: usize,
    /// Time spent.
    pub time: Duration,
}

/// What a run did.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The passes in the order in which they first ran.
    pub passes: Vec<PassRun>,
    /// What was done, and what was missed when each pass last ran.
    pub remarks: Vec<Remark>,
    /// Things to know that concern no single operation.
    pub notes: Vec<String>,
    /// True if the limit on rewrites ended the run.
    pub stopped: bool,
}

impl Outcome {
    /// Number of rewrites.
    pub fn rewrites(&self) -> usize {
        self.passes.iter().map(|run| run.rewrites).sum()
    }
}

/// Why a run ended badly.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Options that a pass does not take.
    #[error(transparent)]
    Options(#[from] OptionError),
    /// A pass made a program that does not verify: a defect of the pass.
    #[error("internal error: pass `{pass}` broke the program: {issue}")]
    Broken {
        /// The pass; `pipeline` for the check at the end.
        pass: String,
        /// What does not hold any more.
        issue: Issue,
    },
    /// A pass's word about its changes is wrong: a defect of the pass.
    #[error("internal error: pass `{pass}` says it made {rewrites} rewrites, but {what}")]
    Untruthful {
        /// The pass.
        pass: &'static str,
        /// What it says.
        rewrites: usize,
        /// What is so.
        what: &'static str,
    },
}

/// Watches a run.
pub trait Observer {
    /// A pass is about to run.
    fn before(&mut self, _pass: &'static str, _program: &Program) {}
    /// A pass has run.
    fn after(&mut self, _pass: &'static str, _program: &Program, _rewrites: usize) {}
}

/// An observer that does nothing.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Observer for Silent {}

/// Runs pipelines; the limit on rewrites holds for all programs together.
pub struct Manager<'a> {
    passes: &'a [&'static dyn Pass],
    settings: Settings,
    made: usize,
}

impl<'a> Manager<'a> {
    /// A manager of these passes.
    pub fn new(passes: &'a [&'static dyn Pass], settings: Settings) -> Self {
        Self {
            passes,
            settings,
            made: 0,
        }
    }

    /// Runs a pipeline over one program. `stage` says which, if the model has several; `known` is
    /// what did not hold of it before ([`verify::issues`]).
    pub fn run(
        &mut self,
        pipeline: &Pipeline,
        program: &mut Program,
        stage: &str,
        known: &verify::Known,
        blobs: &dyn Blobs,
        observer: &mut dyn Observer,
    ) -> Result<Outcome, RunError> {
        let part = PartMut {
            stage: stage.to_owned(),
            ..PartMut::alone(program)
        };
        self.run_part(pipeline, part, known, blobs, observer)
    }

    /// Like [`Manager::run`], for a program with its model's description, which follows what passes
    /// do to inputs, outputs and states.
    pub fn run_part(
        &mut self,
        pipeline: &Pipeline,
        part: PartMut<'_>,
        known: &verify::Known,
        blobs: &dyn Blobs,
        observer: &mut dyn Observer,
    ) -> Result<Outcome, RunError> {
        let mut run = Run {
            manager: self,
            program: part.program,
            description: part.description,
            stage: &part.stage,
            blobs,
            observer,
            known,
            outcome: Outcome::default(),
        };
        run.steps(&pipeline.steps)?;
        let Run {
            program, outcome, ..
        } = run;
        if let Some(issue) = verify::first_new(program, known) {
            return Err(RunError::Broken {
                pass: "pipeline".to_owned(),
                issue,
            });
        }
        Ok(outcome)
    }
}

struct Run<'a, 'm> {
    manager: &'a mut Manager<'m>,
    program: &'a mut Program,
    description: DescriptionMut<'a>,
    stage: &'a str,
    blobs: &'a dyn Blobs,
    observer: &'a mut dyn Observer,
    known: &'a verify::Known,
    outcome: Outcome,
}

impl Run<'_, '_> {
    /// Runs steps; gives the number of rewrites.
    fn steps(&mut self, steps: &[Step]) -> Result<usize, RunError> {
        let mut rewrites = 0;
        for step in steps {
            if self.outcome.stopped {
                break;
            }
            match step {
                Step::Pass { id, options } => rewrites += self.pass(id, options)?,
                Step::Group(inner) => {
                    let mut settled = false;
                    for _ in 0..MAX_ROUNDS {
                        let made = self.steps(inner)?;
                        rewrites += made;
                        if made == 0 || self.outcome.stopped {
                            settled = true;
                            break;
                        }
                    }
                    if !settled {
                        self.outcome.notes.push(format!(
                            "a group of passes still found something after {MAX_ROUNDS} rounds"
                        ));
                    }
                }
            }
        }
        Ok(rewrites)
    }

    fn pass(&mut self, id: &str, options: &OptionMap) -> Result<usize, RunError> {
        let Some(pass) = self.manager.passes.iter().find(|pass| pass.meta().id == id) else {
            return Ok(0);
        };
        let meta = pass.meta();
        if meta.is_check() {
            let note = format!("{id} skipped: it is a check; `milwright lint` runs it");
            if !self.outcome.notes.contains(&note) {
                self.outcome.notes.push(note);
            }
            return Ok(0);
        }
        if meta.exactness == Exactness::Interface && !self.manager.settings.interface_changes {
            let note = format!("{id} skipped: it changes the interface; give --interface-changes");
            if !self.outcome.notes.contains(&note) {
                self.outcome.notes.push(note);
            }
            return Ok(0);
        }
        self.observer.before(meta.id, self.program);
        let text_before = self
            .manager
            .settings
            .verify_each
            .then(|| verify::fingerprint(self.program));
        let started = Instant::now();
        let (mut applied, mut missed) = self.sweep_whole(*pass, options)?;
        if !self.outcome.stopped {
            let (more_applied, more_missed) = self.sweep_until_settled(*pass, options)?;
            applied.extend(more_applied);
            missed.extend(more_missed);
        }
        let rewrites = applied.len();
        self.record(meta.id, started.elapsed(), applied, missed);
        if let Some(before) = text_before {
            self.check(meta.id, &before, rewrites)?;
        }
        self.observer.after(meta.id, self.program, rewrites);
        Ok(rewrites)
    }

    /// Lets a pass that works on whole programs do so until it finds nothing more.
    fn sweep_whole(
        &mut self,
        pass: &'static dyn Pass,
        options: &OptionMap,
    ) -> Result<(Vec<Remark>, Vec<Remark>), RunError> {
        let mut applied = Vec::new();
        let Some(mut matcher) = pass.whole_matcher(options)? else {
            return Ok((applied, Vec::new()));
        };
        let id = pass.meta().id;
        if !self.manager.settings.interface_changes && pass.changes_interface(options)? {
            let note = format!(
                "{id}: what its options say of inputs and outputs is left out, as it changes the \
                 interface; give --interface-changes"
            );
            if !self.outcome.notes.contains(&note) {
                self.outcome.notes.push(note);
            }
            return Ok((applied, Vec::new()));
        }
        if !self.stage.is_empty() {
            let note = format!(
                "{id} skipped: the model is a pipeline, whose stages know each other's inputs and \
                 outputs by name"
            );
            if !self.outcome.notes.contains(&note) {
                self.outcome.notes.push(note);
            }
            return Ok((applied, Vec::new()));
        }
        let calibration = Arc::clone(&self.manager.settings.calibration);
        let sweep = WholeSweep {
            pass: id,
            stage: self.stage,
            blobs: self.blobs,
            calibration: &calibration,
        };
        let most = self.manager.settings.max_rewrites.unwrap_or(usize::MAX);
        let mut refused = Vec::new();
        for _ in 0..MAX_SWEEPS {
            if self.manager.made >= most {
                break;
            }
            let found = sweep.rewrite(
                matcher.as_mut(),
                self.program,
                &mut self.description,
                &mut refused,
            );
            if found.applied.is_empty() {
                return Ok((applied, found.missed));
            }
            self.manager.made += found.applied.len();
            applied.extend(found.applied);
        }
        self.outcome.stopped = self.manager.made >= most;
        if !self.outcome.stopped {
            let note = format!("{id} still found something after {MAX_SWEEPS} sweeps");
            self.outcome.notes.push(note);
        }
        Ok((applied, Vec::new()))
    }

    fn sweep_until_settled(
        &mut self,
        pass: &'static dyn Pass,
        options: &OptionMap,
    ) -> Result<(Vec<Remark>, Vec<Remark>), RunError> {
        let mut applied = Vec::new();
        let mut missed = Vec::new();
        let settings = &self.manager.settings;
        for (name, function) in &mut self.program.functions {
            for (opset, body) in &mut function.specializations {
                for round in 0.. {
                    if round == MAX_SWEEPS {
                        self.outcome.notes.push(format!(
                            "{} still found something after {MAX_SWEEPS} sweeps over `{name}`",
                            pass.meta().id
                        ));
                        break;
                    }
                    let budget = settings
                        .max_rewrites
                        .map_or(usize::MAX, |most| most.saturating_sub(self.manager.made));
                    let mut sweep = Sweep {
                        pass,
                        options,
                        stage: self.stage,
                        function: name.clone(),
                        opset: Opset::parse(opset),
                        blobs: self.blobs,
                        ranges: settings.calibration.ranges.function(self.stage, name),
                        budget,
                        backward: false,
                        applied: Vec::new(),
                        missed: Vec::new(),
                    };
                    sweep.body(&mut body.graph, &mut body.names)?;
                    let made = sweep.applied.len();
                    self.manager.made += made;
                    applied.append(&mut sweep.applied);
                    if made == 0 || sweep.budget == 0 {
                        missed.append(&mut sweep.missed);
                        break;
                    }
                }
            }
        }
        self.outcome.stopped = settings
            .max_rewrites
            .is_some_and(|most| self.manager.made >= most);
        Ok((applied, missed))
    }

    fn record(
        &mut self,
        id: &'static str,
        time: Duration,
        mut applied: Vec<Remark>,
        mut missed: Vec<Remark>,
    ) {
        let rewrites = applied.len();
        let left = missed.len();
        self.outcome
            .remarks
            .retain(|remark| remark.pass != id || remark.kind == RemarkKind::Applied);
        self.outcome.remarks.append(&mut applied);
        self.outcome.remarks.append(&mut missed);
        match self.outcome.passes.iter_mut().find(|run| run.id == id) {
            Some(run) => {
                run.rewrites += rewrites;
                run.missed = left;
                run.time += time;
            }
            None => self.outcome.passes.push(PassRun {
                id,
                rewrites,
                missed: left,
                time,
            }),
        }
    }

    fn check(&self, pass: &'static str, before: &str, rewrites: usize) -> Result<(), RunError> {
        if let Some(issue) = verify::first_new(self.program, self.known) {
            return Err(RunError::Broken {
                pass: pass.to_owned(),
                issue,
            });
        }
        let changed = verify::fingerprint(self.program) != *before;
        let what = match (changed, rewrites > 0) {
            (true, false) => "the program changed",
            (false, true) => "the program is the same as before",
            _ => return Ok(()),
        };
        Err(RunError::Untruthful {
            pass,
            rewrites,
            what,
        })
    }
}
