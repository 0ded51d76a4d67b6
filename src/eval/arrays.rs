//! Outputs of any kind as arrays, so that they can be written to files and compared.

use crate::ir::types::DType;
use crate::ops::Datum;
use crate::tensor::{Data, Tensor, concat};

/// One array of an output: a tensor as it is, a state's content, the items of a list stacked along
/// a new first axis, the values of a dictionary in its order.
///
/// # Errors
///
/// In a few words, if the output has no form as one array: a tuple, or items of different shapes.
pub fn array(datum: &Datum) -> Result<Tensor, String> {
    match datum {
        Datum::Tensor(tensor) => Ok(tensor.clone()),
        Datum::State(state) => Ok(state.read()),
        Datum::List(items) => {
            let items: Vec<&Tensor> = items.iter().flatten().collect();
            stack(&items).map_err(|why| format!("a list whose items do not stack: {why}"))
        }
        Datum::Dictionary(pairs) => {
            let values: Vec<&Tensor> = pairs.iter().map(|(_, value)| value).collect();
            flat(&values).map_err(|why| format!("a dictionary of mixed values: {why}"))
        }
        Datum::Tuple(_) => Err("a tuple has no form as one array".to_owned()),
    }
}

/// The keys of a dictionary, in the order of [`array()`]'s values.
pub fn keys(datum: &Datum) -> Option<Tensor> {
    let Datum::Dictionary(pairs) = datum else {
        return None;
    };
    let keys: Vec<&Tensor> = pairs.iter().map(|(key, _)| key).collect();
    flat(&keys).ok()
}

/// Tensors of one shape along a new first axis.
fn stack(items: &[&Tensor]) -> Result<Tensor, String> {
    let Some(first) = items.first() else {
        return Ok(Tensor::floats(DType::Float32, vec![0], Vec::new()));
    };
    let mut shape = vec![1];
    shape.extend(first.shape());
    let rows: Vec<Tensor> = items
        .iter()
        .map(|item| {
            if item.shape() == first.shape() {
                item.reshaped(shape.clone())
                    .map_err(|error| error.to_string())
            } else {
                Err(format!("{:?} and {:?}", first.shape(), item.shape()))
            }
        })
        .collect::<Result<_, _>>()?;
    concat(&rows.iter().collect::<Vec<_>>(), 0).map_err(|error| error.to_string())
}

/// The elements of all tensors in a row. Strings too, which `concat` alone would do as well, but
/// scalars have no axis to put them together along.
fn flat(items: &[&Tensor]) -> Result<Tensor, String> {
    if items.is_empty() {
        return Ok(Tensor::floats(DType::Float32, vec![0], Vec::new()));
    }
    let rows: Vec<Tensor> = items
        .iter()
        .map(|item| item.reshaped(vec![item.len()]))
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())?;
    concat(&rows.iter().collect::<Vec<_>>(), 0).map_err(|error| error.to_string())
}

/// How many elements are NaN and how many infinite.
pub fn not_finite(tensor: &Tensor) -> (usize, usize) {
    if !matches!(tensor.data(), Data::Float(_) | Data::Packed(_)) || !tensor.dtype().is_float() {
        return (0, 0);
    }
    let Ok(values) = tensor.as_floats() else {
        return (0, 0);
    };
    let nan = values.iter().filter(|value| value.is_nan()).count();
    let infinite = values.iter().filter(|value| value.is_infinite()).count();
    (nan, infinite)
}
