use std::collections::BTreeMap;

use super::*;
use crate::ops::evaluate::Datum;
use crate::ops::{Numerics, Opset};

fn call<'a>(
    op_type: &'a str,
    arguments: Vec<(&'a str, Vec<Tensor>)>,
    numerics: &'a Numerics,
) -> Call<'a> {
    let arguments: BTreeMap<_, _> = arguments
        .into_iter()
        .map(|(name, tensors)| (name, tensors.into_iter().map(Datum::Tensor).collect()))
        .collect();
    Call {
        op_type,
        opset: Opset::CoreML8,
        arguments,
        results: &[],
        numerics,
        seed: 0,
        memory: 1 << 30,
    }
}

fn floats(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::floats(DType::Float32, shape.to_vec(), values.to_vec())
}

fn only(results: Results) -> Tensor {
    results.unwrap()[0].as_tensor().unwrap().clone()
}

#[test]
fn leading_dimensions_broadcast_and_either_factor_transposes() {
    // numpy: np.matmul(x, y.swapaxes(-1, -2)) with x = arange(4).reshape(2,1,2), y = [[1,2],[3,4]].
    let x = floats(&[2, 1, 2], &[0., 1., 2., 3.]);
    let y = floats(&[2, 2], &[1., 2., 3., 4.]);
    let yes = Tensor::bools(vec![], vec![true]);
    let arguments = vec![("x", vec![x]), ("y", vec![y]), ("transpose_y", vec![yes])];
    let result = only(kernel("matmul").unwrap()(&call(
        "matmul",
        arguments,
        &Numerics::FP32,
    )));
    assert_eq!(result.shape(), [2, 1, 2]);
    assert_eq!(*result.as_floats().unwrap(), [2., 4., 8., 18.]);
}

#[test]
fn a_vector_is_a_row_on_the_left_and_a_column_on_the_right() {
    let (v, m) = (floats(&[2], &[1., 2.]), floats(&[2, 2], &[1., 2., 3., 4.]));
    let product = |x: &Tensor, y: &Tensor| {
        let arguments = vec![("x", vec![x.clone()]), ("y", vec![y.clone()])];
        only(matmul(&call("matmul", arguments, &Numerics::FP32)))
    };
    assert_eq!(*product(&v, &m).as_floats().unwrap(), [7., 10.]);
    assert_eq!(*product(&m, &v).as_floats().unwrap(), [5., 11.]);
    assert_eq!(product(&v, &v).shape(), [0usize; 0]);
}

#[test]
fn integer_products_are_exact() {
    let x = Tensor::ints(DType::Int32, vec![1, 2], vec![1 << 24, 1]);
    let y = Tensor::ints(DType::Int32, vec![2, 1], vec![3, 1]);
    let arguments = vec![("x", vec![x]), ("y", vec![y])];
    let result = only(matmul(&call("matmul", arguments, &Numerics::FP32)));
    assert_eq!(*result.as_ints().unwrap(), [(3 << 24) + 1]);
}

#[test]
fn a_packed_weight_is_read_in_blocks() {
    // More rows than fit one block: the result is x·w for w = row number.
    let (outputs, inner) = (3, BLOCK / 2);
    let bytes: Vec<u8> = (0..outputs)
        .flat_map(|row| std::iter::repeat_n(half::f16::from_f32(row as f32).to_le_bytes(), inner))
        .flatten()
        .collect();
    let packed = crate::tensor::Data::Packed(crate::tensor::Packed::new(bytes));
    let weight = Tensor::new(DType::Float16, vec![outputs, inner], packed);
    let x = Tensor::floats(DType::Float16, vec![1, inner], vec![2f32.powi(-10); inner]);
    let bias = Tensor::floats(DType::Float16, vec![outputs], vec![0.5; outputs]);
    let arguments = vec![
        ("x", vec![x]),
        ("weight", vec![weight]),
        ("bias", vec![bias]),
    ];
    let result = only(linear(&call("linear", arguments, &Numerics::FP32)));
    assert_eq!(*result.as_floats().unwrap(), [0.5, 512.5, 1024.5]);
}

#[test]
fn the_engine_s_accumulator_overflows_at_32768() {
    let x = Tensor::floats(DType::Float16, vec![1, 2], vec![200., -200.]);
    let weight = Tensor::floats(DType::Float16, vec![1, 2], vec![200., 200.]);
    let arguments = vec![("x", vec![x]), ("weight", vec![weight])];
    let result = |numerics: &Numerics| {
        let result = only(linear(&call("linear", arguments.clone(), numerics)));
        result.as_floats().unwrap()[0]
    };
    assert_eq!(result(&Numerics::FP16), 0.0);
    assert_eq!(result(&Numerics::ANE), f32::INFINITY);
}

#[test]
fn an_equation_sums_over_the_letters_that_the_output_lacks() {
    // numpy: np.einsum("chw,whr->chr", arange(4).reshape(1,2,2), arange(4).reshape(2,2,1)).
    let x = floats(&[1, 2, 2], &[0., 1., 2., 3.]);
    let y = floats(&[2, 2, 1], &[0., 1., 2., 3.]);
    let equation = Tensor::texts(vec![], vec!["chw,whr->chr".to_owned()]);
    let arguments = vec![("values", vec![x, y]), ("equation", vec![equation])];
    let result = only(einsum(&call("einsum", arguments, &Numerics::FP32)));
    assert_eq!(result.shape(), [1, 2, 1]);
    assert_eq!(*result.as_floats().unwrap(), [2., 11.]);
}

#[test]
fn factors_that_do_not_fit_are_an_error() {
    let arguments = vec![
        ("x", vec![floats(&[1, 2], &[0.; 2])]),
        ("y", vec![floats(&[3, 1], &[0.; 3])]),
    ];
    assert!(matmul(&call("matmul", arguments, &Numerics::FP32)).is_err());
}
