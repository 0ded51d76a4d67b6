use crate::ir::Opset;
use crate::ir::types::DType;
use crate::ops::evaluate::EvalError;
use crate::ops::evaluate::trial::{Trial, floats, ints};
use crate::tensor::{Data, Packed, Tensor};

fn counted(shape: &[usize]) -> Tensor {
    let values: Vec<i64> = (0..shape.iter().product::<usize>() as i64).collect();
    ints(shape, &values)
}

fn gather(x: Tensor, indices: Tensor) -> Trial {
    Trial::of("gather").with("x", x).with("indices", indices)
}

#[test]
fn negative_indices_count_from_the_end_up_to_ios16_and_are_errors_since() {
    let of = |op_type, indices: Tensor, opset| {
        let trial = Trial::of(op_type).with("x", counted(&[3])).opset(opset);
        trial.with("indices", indices)
    };
    for op_type in ["gather", "gather_along_axis", "gather_nd"] {
        let indices = |values: &[i64]| match op_type {
            "gather_nd" => ints(&[values.len(), 1], values),
            _ => ints(&[values.len()], values),
        };
        let old = of(op_type, indices(&[-1, 0, -3]), Opset::CoreML6);
        assert_eq!(*old.tensor().as_ints().unwrap(), [2, 0, 0]);
        let outside = of(op_type, indices(&[0, -4]), Opset::CoreML6).error();
        assert!(matches!(
            outside,
            EvalError::OutOfRange {
                index: -4,
                lowest: -3,
                highest: 2,
                ..
            }
        ));
        let new = of(op_type, indices(&[-1]), Opset::CoreML7).error();
        assert!(matches!(
            new,
            EvalError::OutOfRange {
                index: -1,
                lowest: 0,
                highest: 2,
                ..
            }
        ));
        for index in [3, i64::MAX, i64::MIN] {
            assert!(
                of(op_type, indices(&[index]), Opset::CoreML5)
                    .run()
                    .is_err()
            );
            assert!(
                of(op_type, indices(&[index]), Opset::CoreML8)
                    .run()
                    .is_err()
            );
        }
    }
}

#[test]
fn a_gather_replaces_its_axis_by_the_dimensions_of_the_indices() {
    // np.take(x, indices, axis=1).
    let result = gather(counted(&[2, 3, 2]), ints(&[2, 2], &[2, 0, 1, 1]))
        .int("axis", 1)
        .tensor();
    assert_eq!(result.shape(), [2, 2, 2, 2]);
    let rows = [4, 5, 0, 1, 2, 3, 2, 3];
    let expected = [rows, rows.map(|value| value + 6)].concat();
    assert_eq!(*result.as_ints().unwrap(), expected);
    let scalar = gather(counted(&[3]), ints(&[], &[1])).tensor();
    assert_eq!(
        (scalar.shape(), &*scalar.as_ints().unwrap()),
        (&[][..], &[1][..])
    );
    let none = gather(counted(&[3, 2]), ints(&[0], &[])).tensor();
    assert_eq!(none.shape(), [0, 2]);
    assert!(gather(counted(&[0, 2]), ints(&[1], &[0])).run().is_err());
    assert!(gather(counted(&[]), ints(&[1], &[0])).run().is_err());
}

#[test]
fn batch_dimensions_pair_the_data_with_the_indices() {
    // The definition: result[b, m, k] = x[b, m, indices[b, k]].
    let indices = ints(&[2, 2], &[0, 2, 1, 1]);
    let result = gather(counted(&[2, 2, 3]), indices)
        .int("axis", -1)
        .int("batch_dims", 1);
    assert_eq!(result.tensor().shape(), [2, 2, 2]);
    assert_eq!(
        *result.tensor().as_ints().unwrap(),
        [0, 2, 3, 5, 7, 7, 10, 10]
    );
    for batch in [-1, 3, i64::MAX] {
        let trial = gather(counted(&[2, 2, 3]), ints(&[2, 2], &[0; 4]));
        assert!(trial.int("axis", 2).int("batch_dims", batch).run().is_err());
    }
    let other_batch = gather(counted(&[2, 3]), ints(&[3, 1], &[0; 3]));
    assert!(
        other_batch
            .int("axis", 1)
            .int("batch_dims", 1)
            .run()
            .is_err()
    );
    let axis_in_batch = gather(counted(&[2, 3]), ints(&[2, 1], &[0; 2]));
    assert!(
        axis_in_batch
            .int("axis", 0)
            .int("batch_dims", 1)
            .run()
            .is_err()
    );
}

#[test]
fn rows_of_packed_weights_are_widened_alone() {
    let bytes: Vec<u8> = (0..6u16)
        .flat_map(|value| half::f16::from_f32(f32::from(value) / 2.0).to_le_bytes())
        .collect();
    let packed = Tensor::new(DType::Float16, vec![3, 2], Data::Packed(Packed::new(bytes)));
    let rows = gather(packed.clone(), ints(&[2], &[2, 0])).tensor();
    assert_eq!(*rows.as_floats().unwrap(), [2.0, 2.5, 0.0, 0.5]);
    let all = gather(packed, ints(&[3], &[0, 1, 2])).tensor();
    assert_eq!(*all.as_floats().unwrap(), [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]);
    // Two to a byte, which has to be unpacked as a whole.
    let four = Data::Packed(Packed::new(vec![0x21, 0x43]));
    let four = Tensor::new(DType::UInt4, vec![4, 1], four);
    assert_eq!(
        *gather(four, ints(&[1], &[2])).tensor().as_ints().unwrap(),
        [3]
    );
}

#[test]
fn indices_along_an_axis_choose_element_by_element() {
    // np.take_along_axis(x, indices, axis).
    let of = |indices: Tensor, axis| {
        Trial::of("gather_along_axis")
            .with("x", counted(&[2, 3]))
            .with("indices", indices)
            .int("axis", axis)
    };
    let last = of(ints(&[2, 2], &[2, 0, 1, 1]), 1).tensor();
    assert_eq!(*last.as_ints().unwrap(), [2, 0, 4, 4]);
    let first = of(ints(&[1, 3], &[1, 0, 1]), 0).tensor();
    assert_eq!(*first.as_ints().unwrap(), [3, 1, 5]);
    assert!(of(ints(&[1, 3], &[0; 3]), 1).run().is_err());
    assert!(of(ints(&[3], &[0; 3]), 0).run().is_err());
    assert!(of(ints(&[2, 3], &[0; 6]), 2).run().is_err());
}

#[test]
fn tuples_of_indices_address_the_first_dimensions() {
    let of = |indices: Tensor| {
        Trial::of("gather_nd")
            .with("x", counted(&[2, 2, 3]))
            .with("indices", indices)
    };
    let slices = of(ints(&[2, 2], &[1, 0, 0, 1])).tensor();
    assert_eq!(slices.shape(), [2, 3]);
    assert_eq!(*slices.as_ints().unwrap(), [6, 7, 8, 3, 4, 5]);
    let elements = of(ints(&[1, 3], &[1, 1, 2])).tensor();
    assert_eq!(
        (elements.shape(), &*elements.as_ints().unwrap()),
        (&[1][..], &[11][..])
    );
    let whole = of(ints(&[2, 0], &[])).tensor();
    assert_eq!(whole.shape(), [2, 2, 2, 3]);
    assert!(of(ints(&[1, 4], &[0; 4])).run().is_err());
    assert!(of(ints(&[], &[0])).run().is_err());
    // result[b, j] = x[b, indices[b, j]].
    let batched = of(ints(&[2, 1, 1], &[1, 0])).int("batch_dims", 1).tensor();
    assert_eq!(*batched.as_ints().unwrap(), [3, 4, 5, 6, 7, 8]);
    let large = Trial::of("gather_nd")
        .with("x", counted(&[1 << 16]))
        .with("indices", ints(&[1 << 20, 0], &[]));
    assert!(matches!(large.error(), EvalError::TooLarge { .. }));
}

fn scatter(mode: &str) -> Trial {
    Trial::of("scatter")
        .with("data", floats(&[4], &[8.0, 8.0, f32::NAN, 8.0]))
        .with("indices", ints(&[4], &[1, 1, 2, 3]))
        .with("updates", floats(&[4], &[2.0, 4.0, 1.0, f32::NAN]))
        .text("mode", mode)
}

#[test]
fn updates_of_one_place_take_effect_one_after_the_other() {
    // By hand, in the order of the updates; NaN stays NaN as in numpy.maximum.
    for (mode, expected) in [
        ("update", [8.0, 4.0, 1.0, f32::NAN]),
        ("add", [8.0, 14.0, f32::NAN, f32::NAN]),
        ("sub", [8.0, 2.0, f32::NAN, f32::NAN]),
        ("mul", [8.0, 64.0, f32::NAN, f32::NAN]),
        ("div", [8.0, 1.0, f32::NAN, f32::NAN]),
        ("max", [8.0, 8.0, f32::NAN, f32::NAN]),
        ("min", [8.0, 2.0, f32::NAN, f32::NAN]),
    ] {
        let result = scatter(mode).tensor();
        let values = result.as_floats().unwrap();
        let same = |(a, e): (&f32, &f32)| a == e || (a.is_nan() && e.is_nan());
        assert!(values.iter().zip(&expected).all(same), "{mode}: {values:?}");
    }
    assert!(scatter("modulo").run().is_err());
}

#[test]
fn a_scatter_adds_unless_told_otherwise() {
    // The example of coremltools' documentation.
    let result = Trial::of("scatter")
        .with("data", ints(&[2, 3], &[1, 2, 3, 4, 5, 6]))
        .ints("indices", &[1, 0])
        .with("updates", ints(&[2, 3], &[5, 6, 7, 8, 9, 10]))
        .tensor();
    assert_eq!(*result.as_ints().unwrap(), [9, 11, 13, 9, 11, 13]);
}

#[test]
fn integers_divide_towards_zero_and_not_by_zero() {
    let of = |updates: &[i64]| {
        Trial::of("scatter_along_axis")
            .with("data", ints(&[2], &[-7, 7]))
            .ints("indices", &[0, 1])
            .ints("updates", updates)
            .text("mode", "div")
    };
    assert_eq!(*of(&[2, -2]).tensor().as_ints().unwrap(), [-3, -3]);
    assert_eq!(of(&[1, 0]).error(), EvalError::DivisionByZero);
}

#[test]
fn tuples_of_indices_address_what_is_updated() {
    let of = |indices: Tensor, updates: Tensor| {
        Trial::of("scatter_nd")
            .with("data", counted(&[2, 3]))
            .with("indices", indices)
            .with("updates", updates)
            .text("mode", "update")
    };
    let element = of(ints(&[2, 2], &[0, 1, 1, 2]), ints(&[2], &[-1, -2])).tensor();
    assert_eq!(*element.as_ints().unwrap(), [0, -1, 2, 3, 4, -2]);
    let row = of(ints(&[1, 1], &[1]), ints(&[1, 3], &[-1, -2, -3])).tensor();
    assert_eq!(*row.as_ints().unwrap(), [0, 1, 2, -1, -2, -3]);
    assert!(
        of(ints(&[1, 1], &[2]), ints(&[1, 3], &[0; 3]))
            .run()
            .is_err()
    );
    assert!(of(ints(&[1, 1], &[1]), ints(&[3], &[0; 3])).run().is_err());
    assert!(
        of(ints(&[1, 1], &[1]), floats(&[1, 3], &[0.0; 3]))
            .run()
            .is_err()
    );
}
