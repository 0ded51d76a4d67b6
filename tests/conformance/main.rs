//! What the interpreter gives for the programs of the corpus, against results that others made: one
//! test for each program, if the variable `MILWRIGHT_CORPUS` says where the corpus is.
//!
//! - `ops::…`: the programs of coremltools' own op tests, with what those tests expect.
//! - `models::…`: whole models, with the outputs of PyTorch or ONNX Runtime.
//! - `probes::…`: programs that coremltools' passes break, with the right outputs by numpy and torch;
//!   before and after our pipelines.
//! - `exactness::…`: each pass of ours and each pipeline on each model, probe and op program.
//! - `long::…`: attention with many queries, before and after it is sliced.
//! - `hostile::…`: the op programs on inputs that nobody meant.
//! - `types::…`: every package, against the verifier.
//! - `peer::…`: programs before and after a pass of coremltools, which should be equivalent.
//!
//! `cargo test --test conformance -- conv` runs those whose name or op list contains `conv`.
//! `exceptions.tsv` lists those that are not expected to agree, each with the reason; one that agrees
//! after all fails the test, so that the list stays true.

mod exactness;
mod hostile;
mod long;
mod models;
mod ops;
mod peer;
mod probes;
mod seeds;
mod types;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use milwright::eval::npz::{self, Arrays};
use milwright::eval::script::{Computed, Script, ScriptError};
use milwright::eval::{Interpreter, Options, Precision, States};
use milwright::ir::Program;
use milwright::model::Part;
use milwright::pass::{Manager, Pipeline, Settings, Silent, verify};
use milwright::passes;
use milwright::source::ModelFile;

/// One program of the corpus.
struct Check {
    /// What `exceptions.tsv` calls it.
    id: String,
    /// The op types in it, for filters.
    ops: String,
    run: Box<dyn FnOnce() -> Result<(), String> + Send>,
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let mut checks = Vec::new();
    if let Some(corpus) = std::env::var_os("MILWRIGHT_CORPUS").map(PathBuf::from) {
        checks.extend(ops::checks(&corpus.join("ops")));
        checks.extend(models::checks(&corpus.join("models")));
        checks.extend(probes::checks(&corpus.join("probes")));
        checks.extend(peer::checks(&corpus.join("passes")));
        checks.extend(exactness::checks(&corpus));
        checks.extend(exactness::checks_of_ops(&corpus.join("ops")));
        checks.extend(long::checks(&corpus.join("models")));
        checks.extend(hostile::checks(&corpus.join("ops")));
        checks.extend(types::checks(&corpus));
    }
    let exceptions = exceptions();
    let trials = checks
        .into_iter()
        .map(|check| {
            let reason = exceptions.get(&check.id).cloned();
            let title = if check.ops.is_empty() {
                check.id
            } else {
                format!("{} [{}]", check.id, check.ops)
            };
            Trial::test(title, move || match ((check.run)(), reason) {
                (Ok(()), None) | (Err(_), Some(_)) => Ok(()),
                (Err(error), None) => Err(Failed::from(error)),
                (Ok(()), Some(reason)) => Err(Failed::from(format!(
                    "it agrees, but exceptions.tsv lists it: {reason}"
                ))),
            })
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn exceptions() -> BTreeMap<String, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/exceptions.tsv");
    let text = fs::read_to_string(path).expect("the list of exceptions");
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .filter_map(|line| line.split_once('\t'))
        .map(|(id, reason)| (id.to_owned(), reason.to_owned()))
        .collect()
}

/// The folders in a folder, sorted.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<_> = fs::read_dir(folder)
        .expect("a folder of the corpus")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.is_dir())
        .collect();
    folders.sort();
    folders
}

/// The last part of a path.
fn name(path: &Path) -> String {
    path.file_name()
        .expect("a name")
        .to_string_lossy()
        .into_owned()
}

/// A model with the arrays that say how it is called and what it should give.
struct Subject {
    file: ModelFile,
    arrays: Arrays,
}

impl Subject {
    fn open(package: &Path, arrays: &Path) -> Result<Self, String> {
        Ok(Self {
            file: ModelFile::open(package).map_err(|error| error.to_string())?,
            arrays: npz::read(arrays).map_err(|error| error.to_string())?,
        })
    }

    fn part(&self) -> Part<'_> {
        self.file.model.programs().remove(0)
    }

    /// The program after a pipeline.
    fn optimized(&self, pipeline: &str) -> Result<Program, String> {
        let mut program = self.part().program.clone();
        let known = verify::issues(&program);
        let steps = Pipeline::parse(pipeline, passes::ALL).map_err(|error| error.to_string())?;
        let weights = &**self.file.weights();
        Manager::new(passes::ALL, Settings::default())
            .run(&steps, &mut program, "", &known, weights, &mut Silent)
            .map_err(|error| error.to_string())?;
        Ok(program)
    }

    /// What the states of a probe hold at the start. Of a model with several calls, and of a test of
    /// coremltools, these arrays say what states hold at the end.
    fn starting_states(&self) -> Arrays {
        let has_calls = self.arrays.keys().any(|key| key.starts_with("s1_"));
        self.arrays
            .iter()
            .filter(|(key, _)| key.starts_with("state_") && !has_calls)
            .map(|(key, tensor)| (key.clone(), tensor.clone()))
            .collect()
    }

    /// Runs the calls with a program that has the interface of this one; states start as `start`
    /// says, else at zero.
    fn run(
        &self,
        program: &Program,
        precision: Precision,
        start: &Arrays,
    ) -> Result<Vec<Computed>, String> {
        let interface = self.part().interface;
        let function = interface.default_function.clone();
        let described = interface
            .function(&function)
            .ok_or("it has no description")?;
        let outputs: Vec<String> = described.outputs.iter().map(|o| o.name.clone()).collect();
        let options = Options::new(precision.numerics());
        let interpreter = Interpreter::new(program, self.file.weights().clone(), options);
        let mut arrays = self.arrays.clone();
        arrays.retain(|key, _| !start.contains_key(key));
        let text = |error: ScriptError| error.to_string();
        let inputs = &program.functions[&function].inputs;
        let script = Script::new(&arrays, inputs).map_err(text)?;
        if !script.unused.is_empty() {
            return Err(format!(
                "{:?} are neither inputs nor outputs",
                script.unused
            ));
        }
        let states: States = interpreter
            .zero_states(&function)
            .map_err(|e| e.to_string())?;
        for (key, tensor) in start {
            let name = key.trim_start_matches("state_");
            let state = states
                .get(name)
                .ok_or(format!("there is no state {name}"))?;
            state.write(tensor.clone().retyped(state.read().dtype()));
        }
        script
            .run(&interpreter, &function, &outputs, &states)
            .map_err(text)
    }
}

/// Where a tensor departs from another by more than `relative` times the other's largest magnitude.
fn beyond_scale(computed: &Computed, relative: f64) -> Result<(), String> {
    let expected = computed.expected.to_f64().map_err(|e| e.to_string())?;
    let actual = computed.actual.to_f64().map_err(|e| e.to_string())?;
    let scale = expected
        .iter()
        .filter(|value| value.is_finite())
        .fold(0f64, |largest, value| largest.max(value.abs()));
    let bound = relative * scale.max(f64::from(f32::MIN_POSITIVE));
    for (index, (a, e)) in actual.iter().zip(&expected).enumerate() {
        let agree = a == e || (a.is_nan() && e.is_nan()) || (a - e).abs() <= bound;
        if !agree {
            return Err(format!(
                "call {}, `{}`: element {index} is {a}, not {e} (within {bound:.3e})",
                computed.call, computed.name
            ));
        }
    }
    Ok(())
}
