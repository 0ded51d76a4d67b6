//! `milwright run`: a model in the interpreter, once or several times on the same states.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, bail};

use super::args::{PrecisionArg, RunArgs};
use super::evaluating::{self, in_file};
use super::output::{Output, count};
use crate::eval::arrays::{array, keys, not_finite};
use crate::eval::compare::{Closeness, Tolerance, closeness};
use crate::eval::script::{Computed, Script};
use crate::eval::{Runner, Unobserved, npz};
use crate::ir::DType;
use crate::ops::Datum;
use crate::tensor::Tensor;

/// An output is off.
const OFF: u8 = 1;

/// How far an output may be from what is expected, relative to the greatest magnitude there, in a
/// model that computes in fp32: reassociated sums of deep networks stay within it.
const FULL: f64 = 1e-4;

/// The same where values are fp16, whose own rounding is 5e-4.
const HALF: f64 = 1e-2;

pub(super) fn run(args: &RunArgs, output: &Output) -> anyhow::Result<ExitCode> {
    let file = evaluating::open(&args.model, output)?;
    let options = evaluating::options(args.precision, args.seed);
    let runner = evaluating::runner(&file, args.function.as_deref(), &options)?;
    let script = match &args.inputs {
        Some(path) => evaluating::script(&evaluating::arrays(path)?, path, &runner, output)?,
        None => Script::default(),
    };
    let plan = match &args.inputs {
        Some(_) => None,
        None => Some(evaluating::plan(&runner, &file, output)?),
    };
    if args.check && script.states.is_empty() && script.calls.iter().all(|c| c.expected.is_empty())
    {
        let path = args.inputs.as_deref().unwrap_or(Path::new("the file"));
        bail!(
            "{} has nothing to compare with: no array is named out_<i>_<output>",
            path.display()
        );
    }
    let calls = args
        .calls
        .map_or(script.calls.len().max(1), |calls| calls as usize);

    let mut written = Written {
        widens: args.precision == PrecisionArg::Fp32,
        arrays: Vec::new(),
    };
    let mut computed: Vec<Computed> = Vec::new();
    for call in 0..calls {
        let inputs = match &plan {
            Some(plan) => plan.inputs(args.seed, 0, call)?,
            None => given(&script, call),
        };
        let place = || format!("cannot run {}", args.model.display());
        let results = runner.call(&inputs, &mut Unobserved).with_context(place)?;
        if plan.is_some() {
            written.inputs(call, inputs);
        }
        if args.check {
            let found = script.computed(call, &results, runner.outputs());
            computed.extend(found.map_err(|error| wrong(error, args))?);
        }
        written.outputs(call, results)?;
    }
    written.states(&runner);
    if let Some(path) = &args.output {
        written.save(path)?;
        written.note(path, calls, output);
    }
    if !args.check {
        return Ok(ExitCode::SUCCESS);
    }
    if script.calls.len() <= calls {
        let states = script.computed_states(&runner.states());
        computed.extend(states.map_err(|error| wrong(error, args))?);
    }
    let has_half = runner.stages().iter().any(|stage| stage.program.has_half());
    check(args, &computed, has_half, output)
}

/// An error about a script, which comes from the file of inputs.
fn wrong(error: crate::eval::script::ScriptError, args: &RunArgs) -> anyhow::Error {
    match &args.inputs {
        Some(path) => in_file(error, path),
        None => error.into(),
    }
}

/// The inputs of a call; those beyond the file's are as in its first.
fn given(script: &Script, call: usize) -> BTreeMap<String, Tensor> {
    let call = script.calls.get(call).or(script.calls.first());
    call.map(|call| call.inputs.clone()).unwrap_or_default()
}

/// Compares what was computed with what was expected, in a table.
fn check(
    args: &RunArgs,
    computed: &[Computed],
    has_half: bool,
    output: &Output,
) -> anyhow::Result<ExitCode> {
    let mut rows = vec![["call", "output", "elements", "off", "worst"].map(str::to_owned)];
    let mut off = 0;
    for one in computed {
        let tolerance = tolerance(args, &one.expected, has_half);
        let closeness = closeness(&one.actual, &one.expected, tolerance)
            .with_context(|| format!("cannot compare `{}`", one.name))?;
        off += usize::from(closeness.misses > 0);
        rows.push([
            one.call.to_string(),
            one.name.clone(),
            closeness.elements.to_string(),
            closeness.misses.to_string(),
            worst(&closeness, &one.expected),
        ]);
    }
    let mut out = output.results();
    super::evaluating::table(&mut out, &rows)?;
    out.flush()?;
    if off > 0 {
        output.note(&format!(
            "{} of {} off",
            count(off, "array"),
            computed.len()
        ));
        return Ok(ExitCode::from(OFF));
    }
    output.note(&format!("{} as expected", count(computed.len(), "array")));
    Ok(ExitCode::SUCCESS)
}

fn tolerance(args: &RunArgs, expected: &Tensor, has_half: bool) -> Tolerance {
    if args.rtol.is_some() || args.atol.is_some() {
        return Tolerance {
            relative: args.rtol.unwrap_or(0.0),
            absolute: args.atol.unwrap_or(0.0),
        };
    }
    let values = expected.to_f64().unwrap_or_default();
    let finite = values.iter().filter(|value| value.is_finite());
    let scale = finite.fold(0.0, |scale: f64, value| scale.max(value.abs()));
    Tolerance {
        relative: 0.0,
        absolute: scale * if has_half { HALF } else { FULL },
    }
}

fn worst(closeness: &Closeness, expected: &Tensor) -> String {
    let Some((index, actual, wanted)) = closeness.worst else {
        return String::new();
    };
    let place = evaluating::place(index, expected.shape());
    format!("{actual} at {place}, expected {wanted}")
}

/// The arrays of the file that is written, in order.
struct Written {
    /// Whether outputs and states typed fp16 are written as fp32, because that is what they are.
    widens: bool,
    arrays: Vec<(String, Tensor)>,
}

impl Written {
    fn push(&mut self, name: String, tensor: Tensor) {
        self.arrays.push((name, tensor));
    }

    fn widened(&self, tensor: Tensor) -> Tensor {
        if self.widens && tensor.dtype() == DType::Float16 {
            // Bytes of a weight file are fp16 as they stand.
            let unpacked = tensor.clone().unpacked().unwrap_or(tensor);
            return unpacked.retyped(DType::Float32);
        }
        tensor
    }

    fn inputs(&mut self, call: usize, inputs: BTreeMap<String, Tensor>) {
        for (name, tensor) in inputs {
            self.push(format!("{}in_{name}", prefix(call)), tensor);
        }
    }

    fn outputs(&mut self, call: usize, results: Vec<(String, Datum)>) -> anyhow::Result<()> {
        for (index, (name, datum)) in results.into_iter().enumerate() {
            let tensor = array(&datum)
                .map_err(|why| anyhow::anyhow!("cannot write the output `{name}`: {why}"))?;
            if let Some(keys) = keys(&datum) {
                self.push(format!("{}keys_{index}_{name}", prefix(call)), keys);
            }
            let tensor = self.widened(tensor);
            self.push(format!("{}out_{index}_{name}", prefix(call)), tensor);
        }
        Ok(())
    }

    fn states(&mut self, runner: &Runner<'_>) {
        for (name, tensor) in runner.states() {
            let tensor = self.widened(tensor);
            self.push(format!("state_{name}"), tensor);
        }
    }

    /// Writes the file whole or not at all.
    fn save(&self, path: &Path) -> anyhow::Result<()> {
        let place = || format!("cannot write {}", path.display());
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let mut builder = tempfile::Builder::new();
        builder.prefix(".milwright-");
        // As for any new file, what the user's mask leaves; a temporary file is the owner's alone.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let temporary = builder.tempfile_in(parent).with_context(place)?;
        let arrays = self
            .arrays
            .iter()
            .map(|(name, tensor)| (name.as_str(), tensor));
        npz::write(temporary.path(), arrays)?;
        temporary.persist(path).with_context(place)?;
        Ok(())
    }

    fn note(&self, path: &Path, calls: usize, output: &Output) {
        let not = self.arrays.iter().filter(|(name, _)| name.contains("out_"));
        for (name, tensor) in not {
            if let (nan, infinite) = not_finite(tensor)
                && nan + infinite > 0
            {
                output.warning(&format!(
                    "{name}: {nan} of {} elements are NaN, {infinite} infinite",
                    tensor.len()
                ));
            }
        }
        output.note(&format!(
            "{}; wrote {} to {}",
            count(calls, "call"),
            count(self.arrays.len(), "array"),
            path.display()
        ));
    }
}

/// What the names of a later call's arrays begin with.
fn prefix(call: usize) -> String {
    match call {
        0 => String::new(),
        call => format!("s{call}_"),
    }
}
