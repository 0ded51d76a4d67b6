//! The op programs on inputs that nobody meant: the largest and smallest integers, numbers that are
//! none, empty and overlong tensors. Whatever comes of it is a result or an error, never a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use milwright::eval::npz::Arrays;
use milwright::eval::{Interpreter, Options, Precision, Unobserved};
use milwright::ir::DType;
use milwright::source::ModelFile;
use milwright::tensor::Tensor;

use crate::{Check, folders, name};

/// What every integer of the inputs becomes.
const INTEGERS: [i64; 6] = [0, 1, -1, 7, i32::MAX as i64, i32::MIN as i64];

/// What every float becomes.
const FLOATS: [f32; 6] = [0.0, f32::NAN, f32::INFINITY, -1.0, f32::MAX, 1e-42];

pub(crate) fn checks(folder: &Path) -> Vec<Check> {
    let mut checks = Vec::new();
    for suite in folders(folder) {
        for folder in folders(&suite) {
            checks.push(Check {
                id: format!("hostile::{}/{}", name(&suite), name(&folder)),
                ops: String::new(),
                run: Box::new(move || run(&folder)),
            });
        }
    }
    checks
}

fn run(folder: &Path) -> Result<(), String> {
    let package = folder.join("model.mlpackage");
    let file = ModelFile::open(&package).map_err(|error| error.to_string())?;
    let arrays = milwright::eval::npz::read(&folder.join("io.npz"));
    let arrays = arrays.map_err(|error| error.to_string())?;
    for attempt in 0..INTEGERS.len() {
        let inputs = hostile(&arrays, attempt);
        let calm = catch_unwind(AssertUnwindSafe(|| call(&file, &inputs))).is_ok();
        if !calm {
            let values = (INTEGERS[attempt], FLOATS[attempt]);
            return Err(format!(
                "it panics on integers {} and floats {}",
                values.0, values.1
            ));
        }
    }
    Ok(())
}

/// The inputs with other elements; in the second attempt some have no element, in the third one row
/// more.
fn hostile(arrays: &Arrays, attempt: usize) -> Arrays {
    let inputs = arrays
        .iter()
        .filter_map(|(key, tensor)| Some((key.strip_prefix("in_")?.to_owned(), tensor)));
    inputs
        .map(|(name, tensor)| {
            let mut shape = tensor.shape().to_vec();
            if let Some(first) = shape.first_mut() {
                match attempt {
                    1 => *first = 0,
                    2 => *first += 1,
                    _ => {}
                }
            }
            let count = shape.iter().product();
            let tensor = match tensor.dtype() {
                DType::Bool => Tensor::bools(shape, vec![attempt.is_multiple_of(2); count]),
                DType::String => tensor.clone(),
                dtype if dtype.is_float() => {
                    Tensor::floats(dtype, shape, vec![FLOATS[attempt]; count])
                }
                dtype => {
                    let values = vec![INTEGERS[attempt]; count];
                    Tensor::ints(dtype, shape, values).wrapped_to_width()
                }
            };
            (name, tensor)
        })
        .collect()
}

/// Runs the program; errors are as good as results.
fn call(file: &ModelFile, inputs: &Arrays) {
    let part = file.model.programs().remove(0);
    let options = Options {
        memory: 1 << 28,
        loop_turns: 100,
        ..Options::new(Precision::Ane.numerics())
    };
    let interpreter = Interpreter::new(part.program, file.weights().clone(), options);
    let function = part.interface.default_function;
    if let Ok(states) = interpreter.zero_states(&function) {
        drop(interpreter.run(&function, inputs, &states, &mut Unobserved));
    }
}
