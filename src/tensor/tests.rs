use super::*;

#[test]
fn halves_round_to_nearest_even_and_overflow_from_65520() {
    // IEEE 754 binary16: the largest finite value is 65504, halfway to the next step is 65520.
    let mut values = [
        65504.0,
        65519.9,
        65520.0,
        2049.0,
        2051.0,
        2f32.powi(-25),
        2f32.powi(-24),
    ];
    round_to_half(&mut values, false);
    assert_eq!(
        values,
        [
            65504.0,
            65504.0,
            f32::INFINITY,
            2048.0,
            2052.0,
            0.0,
            2f32.powi(-24)
        ]
    );
}

#[test]
fn flushing_makes_zeros_of_subnormal_halves_and_keeps_their_sign() {
    let mut values = [-1e-5, 6.2e-5];
    round_to_half(&mut values, true);
    assert!(values[0] == 0.0 && values[0].is_sign_negative());
    assert!(values[1] > 6.1e-5);
}

#[test]
fn integers_wrap_to_the_width_of_their_type() {
    let wrapped = Tensor::ints(DType::Int8, vec![3], vec![127, 128, -129]).wrapped_to_width();
    assert_eq!(*wrapped.as_ints().unwrap(), [127, -128, 127]);
}

#[test]
fn strided_reads_transpose_reverse_and_repeat() {
    let x = Tensor::ints(DType::Int32, vec![2, 3], (0..6).collect());
    let transposed = x.transposed(&[1, 0]).unwrap();
    assert_eq!(*transposed.as_ints().unwrap(), [0, 3, 1, 4, 2, 5]);
    let reversed = x.strided(vec![2, 3], 2, &[3, -1]).unwrap();
    assert_eq!(*reversed.as_ints().unwrap(), [2, 1, 0, 5, 4, 3]);
    let repeated = x.broadcast_to(&[2, 2, 3]).unwrap();
    assert_eq!(
        *repeated.as_ints().unwrap(),
        [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]
    );
    assert!(x.strided(vec![2, 3], 1, &[3, 1]).is_err());
}

#[test]
fn packed_elements_are_read_from_the_low_bit_up() {
    // Packed by coremltools' blob writer.
    let packed = |dtype, count, bytes: &[u8]| {
        Tensor::new(
            dtype,
            vec![count],
            Data::Packed(Packed::new(bytes.to_vec())),
        )
    };
    let three = packed(DType::UInt3, 5, &[0xd1, 0x58]);
    assert_eq!(*three.as_ints().unwrap(), [1, 2, 3, 4, 5]);
    let six = packed(DType::UInt6, 5, &[0xc1, 0x2f, 0x14, 0x09]);
    assert_eq!(*six.as_ints().unwrap(), [1, 63, 2, 5, 9]);
    let four = packed(DType::Int4, 3, &[0x78, 0x0f]);
    assert_eq!(*four.as_ints().unwrap(), [-8, 7, -1]);
    assert!(packed(DType::UInt3, 9, &[0xd1, 0x58]).as_ints().is_err());
}

#[test]
fn eight_bit_floats_follow_the_ocp_tables() {
    // OCP 8-bit floating point specification 1.0, table 2: largest normals, smallest subnormals.
    let packed = |dtype, bytes: &[u8]| {
        let tensor = Tensor::new(
            dtype,
            vec![bytes.len()],
            Data::Packed(Packed::new(bytes.to_vec())),
        );
        tensor.as_floats().unwrap().into_owned()
    };
    let four = packed(DType::Float8E4M3FN, &[0x7e, 0x08, 0x01, 0xfe]);
    assert_eq!(four, [448.0, 2f32.powi(-6), 2f32.powi(-9), -448.0]);
    assert!(packed(DType::Float8E4M3FN, &[0x7f])[0].is_nan());
    let five = packed(DType::Float8E5M2, &[0x7b, 0x04, 0x01, 0x7c]);
    assert_eq!(
        five,
        [57344.0, 2f32.powi(-14), 2f32.powi(-16), f32::INFINITY]
    );
}

#[test]
fn a_limited_product_overflows_on_the_way_and_stays_there() {
    // 200·200 + 200·(−200) is 0, but its first partial sum passes 2^15.
    let (a, b) = ([200.0, 200.0], [200.0, -200.0]);
    let mut out = [0.0];
    let product = |out: &mut [f32], limit| {
        let mut out = Output {
            data: out,
            row_stride: 1,
        };
        gemm(
            Matrix::rows(&a, 1, 2),
            Matrix::rows(&b, 2, 1),
            &mut out,
            false,
            limit,
        );
    };
    product(&mut out, None);
    assert_eq!(out, [0.0]);
    product(&mut out, Some(32768.0));
    assert_eq!(out, [f32::INFINITY]);
}
