use crate::ops::Opset;
use crate::ops::evaluate::EvalError;
use crate::ops::evaluate::trial::{Trial, assert_close, floats, ints};

/// 0 and 1 side by side.
fn interval(op_type: &'static str) -> Trial {
    Trial::of(op_type).with("x", floats(&[1, 1, 2], &[0., 1.]))
}

/// 1 to 16 in four rows.
fn square(op_type: &'static str) -> Trial {
    let values: Vec<f32> = (1..=16u8).map(f32::from).collect();
    Trial::of(op_type).with("x", floats(&[1, 1, 4, 4], &values))
}

fn column(values: &[f64]) -> Vec<f64> {
    values.to_vec()
}

#[test]
fn the_points_of_every_sampling_mode_are_the_documented_ones() {
    // The tables in the documentation of resize_bilinear, for 2 elements.
    let resized = |mode: &str, width: i64| {
        interval("resize_bilinear")
            .int("target_size_width", width)
            .text("sampling_mode", mode)
            .numbers()
    };
    let tables = [
        ("UNALIGN_CORNERS", column(&[0., 0.1, 0.5, 0.9, 1.])),
        ("STRICT_ALIGN_CORNERS", column(&[0., 0.25, 0.5, 0.75, 1.])),
        ("ALIGN_CORNERS", column(&[0., 0.25, 0.5, 0.75, 1.])),
        ("DEFAULT", column(&[0., 0.4, 0.8, 1., 1.])),
        ("OFFSET_CORNERS", column(&[0.1, 0.3, 0.5, 0.7, 0.9])),
    ];
    for (mode, expected) in tables {
        assert_close(&resized(mode, 5), &expected, 1e-6);
    }
    assert_eq!(resized("STRICT_ALIGN_CORNERS", 1), [0.]);
    assert_eq!(resized("ALIGN_CORNERS", 1), [0.5]);
    interval("resize_bilinear")
        .text("sampling_mode", "OTHER")
        .error();
}

#[test]
fn upsampling_knows_corners_and_half_pixels() {
    // The documentation of upsample_bilinear, 2 elements made 5 and 6.
    let upsampled = |factor: f32, align: bool| {
        interval("upsample_bilinear")
            .float("scale_factor_width", factor)
            .bool("align_corners", align)
    };
    assert_close(
        &upsampled(2.6, false).numbers(),
        &[0., 0.1, 0.5, 0.9, 1.],
        1e-6,
    );
    assert_close(
        &upsampled(2.6, true).numbers(),
        &[0., 0.25, 0.5, 0.75, 1.],
        1e-6,
    );
    let neither = upsampled(3., false).bool("half_pixel_centers", false);
    let third = 1. / 3.;
    assert_close(
        &neither.numbers(),
        &[0., third, 2. * third, 1., 1., 1.],
        1e-6,
    );
    upsampled(3., true).bool("half_pixel_centers", true).error();
    upsampled(f32::NAN, true).error();
    upsampled(-1., true).error();
    assert!(matches!(
        upsampled(1e30, true).error(),
        EvalError::TooLarge { .. }
    ));
}

#[test]
fn nearest_neighbours_are_rounded_down_when_upsampled() {
    let x = floats(&[1, 1, 1, 3], &[1.5, -2.5, 3.5]);
    let trial = Trial::of("upsample_nearest_neighbor").with("x", x);
    let doubled = trial.clone().int("scale_factor_width", 2).numbers();
    assert_eq!(doubled, [1.5, 1.5, -2.5, -2.5, 3.5, 3.5]);
    let less = trial
        .float("scale_factor_height", 3.17)
        .float("scale_factor_width", 0.67);
    assert_eq!(less.numbers(), [1.5, -2.5, 1.5, -2.5, 1.5, -2.5]);
}

#[test]
fn resize_takes_as_many_dimensions_as_it_is_told() {
    let x = floats(&[2, 1, 2], &[0., 1., 10., 20.]);
    let trial = |shape: &[i64], count: i64, mode: &str| {
        Trial::of("resize")
            .with("x", x.clone())
            .ints("shape", shape)
            .int("resized_dims", count)
            .text("interpolation_mode", mode)
            .text("sampling_mode", "STRICT_ALIGN_CORNERS")
    };
    let one = trial(&[7, 3], 1, "LINEAR").tensor();
    assert_eq!(one.shape(), [2, 1, 3]);
    assert_eq!(*one.as_floats().unwrap(), [0., 0.5, 1., 10., 15., 20.]);
    let three = trial(&[3, 0, 0], 3, "LINEAR").tensor();
    assert_eq!(three.shape(), [3, 1, 2]);
    assert_eq!(*three.as_floats().unwrap(), [0., 1., 5., 10.5, 10., 20.]);
    let nearest = trial(&[4], 1, "NEAREST_NEIGHBOR").numbers();
    assert_eq!(nearest, [0., 0., 1., 1., 10., 10., 20., 20.]);
    trial(&[3], 2, "LINEAR").error();
    trial(&[-1], 1, "LINEAR").error();
    trial(&[2], 1, "CUBIC").error();
    assert!(matches!(
        trial(&[0, 1 << 62], 2, "LINEAR").error(),
        EvalError::TooLarge { .. }
    ));
}

#[test]
fn integers_are_resized_too() {
    let trial = Trial::of("resize")
        .with("x", ints(&[2], &[0, 3]))
        .ints("shape", &[3])
        .int("resized_dims", 1)
        .text("sampling_mode", "ALIGN_CORNERS");
    assert_eq!(*trial.tensor().as_ints().unwrap(), [0, 1, 3]);
}

#[test]
fn an_infinity_beside_a_point_on_an_element_does_not_spoil_it() {
    let trial = Trial::of("resize_bilinear")
        .with("x", floats(&[1, 1, 3], &[1., f32::INFINITY, 2.]))
        .int("target_size_width", 3);
    assert_eq!(trial.numbers(), [1., f64::INFINITY, 2.]);
}

#[test]
fn crops_take_from_both_ends() {
    let trial = |height: &[i64], width: &[i64]| {
        square("crop")
            .ints("crop_height", height)
            .ints("crop_width", width)
    };
    let cropped = trial(&[0, 1], &[1, 1]).numbers();
    assert_eq!(cropped, [2., 3., 6., 7., 10., 11.]);
    assert!(trial(&[2, 2], &[0, 0]).tensor().is_empty());
    trial(&[2, 3], &[0, 0]).error();
    trial(&[-1, 0], &[0, 0]).error();
    trial(&[i64::MAX, i64::MAX], &[0, 0]).error();
    trial(&[1], &[0, 0]).error();
}

#[test]
fn boxes_are_resized_in_the_form_of_each_opset() {
    let settings = |trial: Trial| {
        trial
            .int("target_height", 2)
            .int("target_width", 2)
            .text("sampling_mode", "ALIGN_CORNERS")
    };
    let old = |values: &[f32]| {
        settings(square("crop_resize"))
            .opset(Opset::CoreML6)
            .with("roi", floats(&[1, 1, values.len(), 1, 1], values))
    };
    let tensor = old(&[1., 1., 2., 2.]).tensor();
    assert_eq!(tensor.shape(), [1, 1, 1, 2, 2]);
    assert_eq!(*tensor.as_floats().unwrap(), [6., 7., 10., 11.]);
    assert_eq!(old(&[2., 2., 1., 1.]).numbers(), [11., 10., 7., 6.]);
    assert_eq!(old(&[0., 0., 0., 1., 1.]).numbers(), [1., 2., 5., 6.]);
    assert!(matches!(
        old(&[1., 0., 0., 1., 1.]).error(),
        EvalError::OutOfRange { index: 1, .. }
    ));
    old(&[1., 2., 3.]).error();
    let new = settings(square("crop_resize")).with("boxes", floats(&[1, 4], &[1., 1., 2., 2.]));
    assert_eq!(new.tensor().shape(), [1, 1, 2, 2]);
    new.ints("box_indices", &[-1]).error();
}

#[test]
fn a_box_has_four_forms_and_ends_where_the_image_ends() {
    // tf.image.crop_and_resize gives the pad value for every point outside, alone.
    let trial = |mode: &str, values: &[f32]| {
        square("crop_resize")
            .with("boxes", floats(&[1, 4], values))
            .int("target_height", 2)
            .int("target_width", 2)
            .text("sampling_mode", "ALIGN_CORNERS")
            .text("box_coordinate_mode", mode)
            .float("pad_value", 100.)
            .numbers()
    };
    // Rows 0 to 2, columns 1 to 2.
    let expected = [2., 3., 10., 11.];
    assert_eq!(trial("CORNERS_HEIGHT_FIRST", &[0., 1., 2., 2.]), expected);
    assert_eq!(trial("CORNERS_WIDTH_FIRST", &[1., 0., 2., 2.]), expected);
    assert_eq!(
        trial("CENTER_SIZE_HEIGHT_FIRST", &[1., 1.5, 2., 1.]),
        expected
    );
    assert_eq!(
        trial("CENTER_SIZE_WIDTH_FIRST", &[1.5, 1., 1., 2.]),
        expected
    );
    let beyond = trial("CORNERS_HEIGHT_FIRST", &[0., 0., 3.5, 3.]);
    assert_eq!(beyond, [1., 4., 100., 100.]);
    let nowhere = trial("CORNERS_HEIGHT_FIRST", &[f32::NAN, 0., f32::INFINITY, 3.]);
    assert_eq!(nowhere, [100.; 4]);
}

fn resample(mode: &str, padding: &str, sampling: &str, align: bool, points: &[f32]) -> Vec<f64> {
    Trial::of("resample")
        .with("x", floats(&[1, 1, 2, 2], &[11., 22., 33., 44.]))
        .with("coordinates", floats(&[1, 1, points.len() / 2, 2], points))
        .text("coordinates_mode", mode)
        .text("padding_mode", padding)
        .text("sampling_mode", sampling)
        .bool("align_corners", align)
        .float("padding_value", 6.)
        .numbers()
}

#[test]
fn coordinates_are_elements_or_parts_of_the_image() {
    let at = |mode: &str, align: bool, points: &[f32]| {
        resample(mode, "constant", "bilinear", align, points)
    };
    // The first and the last element, and the middle between all four.
    let expected = [11., 44., 27.5];
    assert_eq!(
        at("unnormalized", false, &[0., 0., 1., 1., 0.5, 0.5]),
        expected
    );
    let signed = "normalized_minus_one_to_one";
    assert_eq!(at(signed, true, &[-1., -1., 1., 1., 0., 0.]), expected);
    assert_eq!(at(signed, false, &[-0.5, -0.5, 0.5, 0.5, 0., 0.]), expected);
    let unsigned = "normalized_zero_to_one";
    assert_eq!(at(unsigned, true, &[0., 0., 1., 1., 0.5, 0.5]), expected);
    assert_eq!(
        at(unsigned, false, &[0.25, 0.25, 0.75, 0.75, 0.5, 0.5]),
        expected
    );
    // x goes along the width; half of the weight lies outside.
    assert_eq!(at("unnormalized", false, &[1., 0., 0., -0.5]), [22., 8.5]);
}

#[test]
fn paddings_continue_the_image_as_documented() {
    // Along the first row, at the elements −4 to 5: 11 and 22 continued.
    let row = |padding: &str| {
        let points: Vec<f32> = (-4..6i8).flat_map(|x| [f32::from(x), 0.]).collect();
        resample("unnormalized", padding, "nearest", true, &points)
    };
    assert_eq!(row("constant"), [6., 6., 6., 6., 11., 22., 6., 6., 6., 6.]);
    assert_eq!(
        row("border"),
        [11., 11., 11., 11., 11., 22., 22., 22., 22., 22.]
    );
    assert_eq!(
        row("reflection"),
        [11., 22., 11., 22., 11., 22., 11., 22., 11., 22.]
    );
    assert_eq!(
        row("symmetric"),
        [11., 22., 22., 11., 11., 22., 22., 11., 11., 22.]
    );
}

#[test]
fn coordinates_without_a_place_do_no_harm() {
    for padding in ["constant", "border", "reflection", "symmetric"] {
        let points = [
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            0.,
            f32::MAX,
            f32::MIN,
        ];
        for sampling in ["bilinear", "nearest"] {
            assert_eq!(
                resample("unnormalized", padding, sampling, true, &points).len(),
                3
            );
        }
    }
}

#[test]
fn an_affine_map_carries_the_result_to_the_image() {
    let trial = |matrix: &[f32], size: i64| {
        Trial::of("affine")
            .with("x", floats(&[1, 1, 2, 2], &[11., 22., 33., 44.]))
            .with("transform_matrix", floats(&[1, 6], matrix))
            .int("output_height", size)
            .int("output_width", size)
            .text("coordinates_mode", "normalized_minus_one_to_one")
            .bool("align_corners", true)
    };
    let identity = trial(&[1., 0., 0., 0., 1., 0.], 2).numbers();
    assert_eq!(identity, [11., 22., 33., 44.]);
    let turned = trial(&[0., 1., 0., 1., 0., 0.], 2).numbers();
    assert_eq!(turned, [11., 33., 22., 44.]);
    assert_eq!(trial(&[1., 0., 0., 0., 1., 0.], 1).numbers(), [27.5]);
    trial(&[1., 0., 0., 0., 1., 0.], -1).error();
    assert!(matches!(
        trial(&[1., 0., 0., 0., 1., 0.], 1 << 40).error(),
        EvalError::TooLarge { .. }
    ));
}
