//! Programs before and after a pass of coremltools, which should give the same outputs.

use std::path::Path;

use milwright::eval::script::Computed;
use milwright::eval::{Interpreter, Options, Precision, Unobserved};
use milwright::ops::Datum;
use milwright::source::ModelFile;
use milwright::tensor::Tensor;

use crate::{Check, beyond_scale, folders, name, seeds};

/// Relative to the largest magnitude of an output. Passes that narrow to fp16 are in the corpus too.
const BOUND: f64 = 2e-2;

pub(crate) fn checks(folder: &Path) -> Vec<Check> {
    folders(folder)
        .into_iter()
        .map(|folder| Check {
            id: format!("peer::{}", name(&folder)),
            ops: String::new(),
            run: Box::new(move || run(&folder)),
        })
        .collect()
}

fn run(folder: &Path) -> Result<(), String> {
    let open = |name: &str| ModelFile::open(&folder.join(name)).map_err(|error| error.to_string());
    let (before, after) = (open("before.mlpackage")?, open("after.mlpackage")?);
    let mut compared = 0;
    let parts = before.model.programs();
    let functions = &parts
        .first()
        .ok_or("there is no program")?
        .program
        .functions;
    for (function, declared) in functions {
        let inputs = seeds::inputs(&declared.inputs, 1);
        let (old, new) = (
            outputs(&before, function, &inputs)?,
            outputs(&after, function, &inputs)?,
        );
        if old.len() != new.len() {
            return Err(format!("{} outputs become {}", old.len(), new.len()));
        }
        // Some passes rename outputs; their order stays.
        for ((name, expected), (_, actual)) in old.into_iter().zip(new) {
            let actual = actual
                .reshaped(expected.shape().to_vec())
                .map_err(|e| e.to_string())?;
            let computed = Computed {
                call: 0,
                name,
                actual,
                expected,
            };
            beyond_scale(&computed, BOUND)?;
            compared += 1;
        }
    }
    if compared == 0 {
        return Err("there is nothing to compare".to_owned());
    }
    Ok(())
}

fn outputs(
    file: &ModelFile,
    function: &str,
    inputs: &std::collections::BTreeMap<String, Tensor>,
) -> Result<Vec<(String, Tensor)>, String> {
    let part = file.model.programs().remove(0);
    let options = Options::new(Precision::Fp32.numerics());
    let interpreter = Interpreter::new(part.program, file.weights().clone(), options);
    let states = interpreter
        .zero_states(function)
        .map_err(|error| error.to_string())?;
    let mut inputs = inputs.clone();
    // A pass may change the element types of inputs, never their names.
    let declared = &part
        .program
        .functions
        .get(function)
        .ok_or("the function is gone")?
        .inputs;
    for (name, tensor) in seeds::inputs(declared, 1) {
        if inputs
            .get(&name)
            .is_some_and(|old| old.dtype() != tensor.dtype())
        {
            inputs.insert(name, tensor);
        }
    }
    let results = interpreter
        .run(function, &inputs, &states, &mut Unobserved)
        .map_err(|error| error.to_string())?;
    Ok(results
        .into_iter()
        .filter_map(|(name, datum)| match datum {
            Datum::Tensor(tensor) if tensor.dtype() != milwright::ir::DType::String => {
                Some((name, tensor))
            }
            _ => None,
        })
        .collect())
}
