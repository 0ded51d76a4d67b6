use crate::ops::Numerics;
use crate::ops::evaluate::trial::{Trial, assert_close, floats};
use crate::tensor::Tensor;

/// Small integers, of which fp32 sums are exact, in an order that no stride repeats.
fn integers(shape: &[usize], seed: usize) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product::<usize>())
        .map(|index| ((index * 31 + seed) * 17 % 23 % 9) as f32 - 4.0)
        .collect();
    floats(shape, &values)
}

/// The settings of a convolution over three axes.
#[derive(Clone, Copy, Debug)]
struct Settings {
    sizes: [usize; 3],
    kernel: [usize; 3],
    strides: [i64; 3],
    dilations: [i64; 3],
    pad: [i64; 6],
    inputs: usize,
    outputs: usize,
    groups: usize,
}

const PLAIN: Settings = Settings {
    sizes: [1, 6, 7],
    kernel: [1, 3, 2],
    strides: [1, 1, 1],
    dilations: [1, 1, 1],
    pad: [0; 6],
    inputs: 4,
    outputs: 6,
    groups: 1,
};

fn all_settings() -> Vec<Settings> {
    vec![
        PLAIN,
        Settings {
            strides: [1, 2, 3],
            pad: [0, 0, 1, 2, 3, 0],
            ..PLAIN
        },
        Settings {
            dilations: [1, 2, 3],
            pad: [0, 0, 2, 0, 4, 5],
            groups: 2,
            ..PLAIN
        },
        Settings {
            sizes: [4, 5, 3],
            kernel: [2, 2, 3],
            pad: [1, 0, 0, 1, 1, 1],
            ..PLAIN
        },
        Settings {
            sizes: [3, 5, 5],
            kernel: [3, 1, 2],
            strides: [2, 3, 2],
            dilations: [1, 1, 2],
            groups: 2,
            ..PLAIN
        },
        // Depthwise, with one and with two results for each channel.
        Settings {
            outputs: 4,
            groups: 4,
            pad: [0, 0, 1, 1, 1, 0],
            ..PLAIN
        },
        Settings {
            outputs: 8,
            groups: 4,
            strides: [1, 2, 2],
            ..PLAIN
        },
        // Pointwise, and padding that no tap of some windows leaves.
        Settings {
            kernel: [1, 1, 1],
            ..PLAIN
        },
        Settings {
            kernel: [1, 1, 1],
            strides: [1, 2, 2],
            ..PLAIN
        },
        Settings {
            pad: [0, 0, 5, 5, 4, 4],
            ..PLAIN
        },
        // Negative padding cuts off.
        Settings {
            pad: [0, 0, -1, 0, 0, -2],
            ..PLAIN
        },
    ]
}

fn shape(batch: usize, channels: usize, sizes: [usize; 3]) -> Vec<usize> {
    [vec![batch, channels], sizes.to_vec()].concat()
}

impl Settings {
    fn windows(&self) -> [usize; 3] {
        std::array::from_fn(|axis| {
            let reach = (self.kernel[axis] as i64 - 1) * self.dilations[axis];
            let room = self.sizes[axis] as i64 + self.pad[2 * axis] + self.pad[2 * axis + 1];
            ((room - reach - 1) / self.strides[axis] + 1) as usize
        })
    }

    fn x(&self) -> Tensor {
        integers(&shape(2, self.inputs, self.sizes), 1)
    }

    fn weight(&self) -> Tensor {
        integers(
            &shape(self.outputs, self.inputs / self.groups, self.kernel),
            5,
        )
    }

    fn trial(&self, op_type: &'static str, x: Tensor) -> Trial {
        Trial::of(op_type)
            .with("x", x)
            .with("weight", self.weight())
            .text("pad_type", "custom")
            .ints("pad", &self.pad)
            .ints("strides", &self.strides)
            .ints("dilations", &self.dilations)
            .int("groups", self.groups as i64)
    }

    /// Calls `with` for every product of an element and a weight: indices of the result, of `x` and
    /// of the weight.
    fn products(&self, mut with: impl FnMut(usize, usize, usize)) {
        let (windows, per_group) = (self.windows(), self.inputs / self.groups);
        let each = |sizes: [usize; 3]| {
            (0..sizes.iter().product::<usize>()).map(move |index| {
                [
                    index / sizes[2] / sizes[1],
                    index / sizes[2] % sizes[1],
                    index % sizes[2],
                ]
            })
        };
        let flat =
            |sizes: [usize; 3], at: [usize; 3]| (at[0] * sizes[1] + at[1]) * sizes[2] + at[2];
        let plane = |sizes: [usize; 3]| sizes.iter().product::<usize>();
        for n in 0..2 {
            for output in 0..self.outputs {
                let group = output / (self.outputs / self.groups);
                for window in each(windows) {
                    for input in 0..per_group {
                        for tap in each(self.kernel) {
                            let place: [i64; 3] = std::array::from_fn(|axis| {
                                window[axis] as i64 * self.strides[axis]
                                    + tap[axis] as i64 * self.dilations[axis]
                                    - self.pad[2 * axis]
                            });
                            let inside = (0..3)
                                .all(|axis| (0..self.sizes[axis] as i64).contains(&place[axis]));
                            if !inside {
                                continue;
                            }
                            let place = place.map(|place| place as usize);
                            let channel = n * self.inputs + group * per_group + input;
                            with(
                                (n * self.outputs + output) * plane(windows)
                                    + flat(windows, window),
                                channel * plane(self.sizes) + flat(self.sizes, place),
                                (output * per_group + input) * plane(self.kernel)
                                    + flat(self.kernel, tap),
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_convolution_is_the_sum_of_products_that_defines_it() {
    for settings in all_settings() {
        let (x, weight) = (settings.x(), settings.weight());
        let result = settings.trial("conv", x.clone()).tensor();
        assert_eq!(
            result.shape(),
            shape(2, settings.outputs, settings.windows())
        );
        let mut expected = vec![0f32; result.len()];
        let (x, weight) = (x.as_floats().unwrap(), weight.as_floats().unwrap());
        settings.products(|out, from, with| expected[out] += x[from] * weight[with]);
        assert_eq!(*result.as_floats().unwrap(), expected, "{settings:?}");
        // The path for limited sums is another one.
        let limited = settings
            .trial("conv", settings.x())
            .under(Numerics::ANE)
            .tensor();
        assert_eq!(*limited.as_floats().unwrap(), expected, "{settings:?}");
    }
}

#[test]
fn a_transposed_convolution_moves_every_product_back() {
    for settings in all_settings() {
        let y = integers(&shape(2, settings.outputs, settings.windows()), 9);
        let sizes: Vec<i64> = settings
            .x()
            .shape()
            .iter()
            .map(|size| *size as i64)
            .collect();
        let trial = settings
            .trial("conv_transpose", y.clone())
            .ints("output_shape", &sizes);
        let mut expected = vec![0f32; settings.x().len()];
        let weight = settings.weight();
        let (y, weight) = (y.as_floats().unwrap(), weight.as_floats().unwrap());
        settings.products(|from, out, with| expected[out] += y[from] * weight[with]);
        for numerics in [Numerics::FP32, Numerics::ANE] {
            let result = trial.clone().under(numerics).tensor();
            assert_eq!(*result.as_floats().unwrap(), expected, "{settings:?}");
        }
    }
}

#[test]
fn a_long_line_is_convolved_in_blocks_without_a_seam() {
    let settings = Settings {
        sizes: [1, 1, 320],
        kernel: [1, 1, 64],
        strides: [1, 1, 1],
        pad: [0, 0, 0, 0, 10, 10],
        inputs: 64,
        outputs: 1,
        ..PLAIN
    };
    let (x, weight) = (settings.x(), settings.weight());
    let (elements, weights) = (x.as_floats().unwrap(), weight.as_floats().unwrap());
    let result = settings.trial("conv", x.clone()).tensor();
    let mut expected = vec![0f32; result.len()];
    settings.products(|out, from, with| expected[out] += elements[from] * weights[with]);
    assert_eq!(*result.as_floats().unwrap(), expected);
    let y = integers(&shape(2, 1, settings.windows()), 3);
    let back = settings.trial("conv_transpose", y.clone()).tensor();
    let mut expected = vec![0f32; x.len()];
    let y = y.as_floats().unwrap();
    settings.products(|from, out, with| expected[out] += y[from] * weights[with]);
    assert_eq!(*back.as_floats().unwrap(), expected);
}

fn line(op_type: &'static str, values: &[f32]) -> Trial {
    Trial::of(op_type).with("x", floats(&[1, 1, values.len()], values))
}

#[test]
fn same_puts_an_odd_padding_behind_and_same_lower_in_front() {
    // Sums of neighbours of 1 to 5, by hand.
    let sums = |pad_type| {
        line("conv", &[1., 2., 3., 4., 5.])
            .with("weight", floats(&[1, 1, 2], &[1., 1.]))
            .text("pad_type", pad_type)
            .numbers()
    };
    assert_eq!(sums("same"), [3., 5., 7., 9., 5.]);
    assert_eq!(sums("same_lower"), [1., 3., 5., 7., 9.]);
    // Stride 2 over 5: three windows of 3, with one element of padding on either side.
    let strided = line("conv", &[1., 2., 3., 4., 5.])
        .with("weight", floats(&[1, 1, 3], &[1., 1., 1.]))
        .text("pad_type", "same")
        .ints("strides", &[2]);
    assert_eq!(strided.numbers(), [3., 9., 9.]);
}

#[test]
fn a_transposed_convolution_of_padding_same_is_the_stride_times_as_long() {
    // 2 elements with stride 2 reach 2·1 + 3 = 5 places, of which one is cut off, at the end.
    let same = line("conv_transpose", &[1., 10.])
        .with("weight", floats(&[1, 1, 3], &[1., 2., 3.]))
        .text("pad_type", "same")
        .ints("strides", &[2]);
    assert_eq!(same.numbers(), [1., 2., 13., 20.]);
}

#[test]
fn pad_counts_for_custom_padding_only() {
    let trial = line("conv", &[1., 2.])
        .with("weight", floats(&[1, 1, 1], &[1.]))
        .ints("pad", &[3, 3]);
    assert_eq!(trial.clone().text("pad_type", "valid").numbers(), [1., 2.]);
    assert_eq!(trial.text("pad_type", "custom").tensor().len(), 8);
}

#[test]
fn a_bias_is_added_to_each_channel_of_each_image() {
    let trial = Trial::of("conv")
        .with("x", floats(&[2, 1, 1], &[1., 2.]))
        .with("weight", floats(&[2, 1, 1], &[1., 10.]))
        .with("bias", floats(&[2], &[0.5, 0.25]));
    assert_eq!(trial.numbers(), [1.5, 10.25, 2.5, 20.25]);
}

#[test]
fn sums_that_pass_the_limit_on_the_way_overflow() {
    // 200·200 − 200·200 passes 2^15 halfway.
    let x = floats(&[1, 2, 1], &[200., 200.]);
    let conv = Trial::of("conv")
        .with("x", x.clone())
        .with("weight", floats(&[1, 2, 1], &[200., -200.]));
    assert_eq!(conv.numbers(), [0.]);
    assert_eq!(conv.under(Numerics::ANE).numbers(), [f64::INFINITY]);
    let depthwise = line("conv", &[200., 200.]).with("weight", floats(&[1, 1, 2], &[200., -200.]));
    assert_eq!(depthwise.under(Numerics::ANE).numbers(), [f64::INFINITY]);
}

#[test]
fn averages_count_padding_or_not() {
    let trial = line("avg_pool", &[1., 2., 3., 4., 5.])
        .ints("kernel_sizes", &[3])
        .ints("strides", &[2])
        .text("pad_type", "custom")
        .ints("pad", &[1, 1]);
    assert_close(&trial.numbers(), &[1., 3., 3.], 1e-7);
    let without = trial.bool("exclude_padding_from_average", true);
    assert_close(&without.numbers(), &[1.5, 3., 4.5], 1e-7);
}

#[test]
fn a_window_that_ceil_mode_adds_counts_what_is_there() {
    // As in PyTorch: the third window of 1 to 6 holds 5 and 6, the divisor is 2.
    let trial = |op_type| {
        line(op_type, &[1., 2., 3., 4., 5., 6.])
            .ints("kernel_sizes", &[3])
            .ints("strides", &[2])
            .text("pad_type", "valid")
            .bool("ceil_mode", true)
    };
    assert_eq!(trial("avg_pool").numbers(), [2., 4., 5.5]);
    assert_eq!(trial("max_pool").numbers(), [3., 5., 6.]);
    let root = trial("l2_pool").numbers();
    assert_close(&root, &[14f64.sqrt(), 50f64.sqrt(), 61f64.sqrt()], 1e-6);
}

#[test]
fn a_maximum_never_is_padding_and_keeps_nan() {
    let trial = |values: &[f32], pad: i64| {
        line("max_pool", values)
            .ints("kernel_sizes", &[2])
            .text("pad_type", "custom")
            .ints("pad", &[pad, 0])
            .numbers()
    };
    assert_eq!(trial(&[-3., -5.], 1), [-3., -3.]);
    let with_nan = trial(&[f32::NAN, 1., 2.], 0);
    assert!(with_nan[0].is_nan());
    assert_eq!(with_nan[1], 2.);
    assert_eq!(trial(&[1.], 2), [f64::NEG_INFINITY, 1.]);
}

#[test]
fn arguments_that_do_not_fit_are_errors() {
    let conv = |weight: &[usize]| {
        Trial::of("conv")
            .with("x", integers(&[1, 4, 3], 0))
            .with("weight", integers(weight, 0))
    };
    assert!(conv(&[2, 4, 3]).run().is_ok());
    conv(&[2, 3, 3]).error();
    conv(&[2, 4, 4]).error();
    conv(&[2, 4]).error();
    conv(&[2, 4, 0]).error();
    conv(&[3, 2, 3]).int("groups", 2).error();
    conv(&[2, 4, 3]).int("groups", 0).error();
    conv(&[2, 4, 3])
        .with("bias", floats(&[3], &[0.; 3]))
        .error();
    conv(&[2, 4, 3]).ints("strides", &[0]).error();
    conv(&[2, 4, 3]).ints("dilations", &[i64::MAX]).error();
    conv(&[2, 4, 3]).text("pad_type", "full").error();
    let huge = conv(&[2, 4, 3]).text("pad_type", "custom");
    huge.clone().ints("pad", &[i64::MAX, i64::MAX]).error();
    huge.clone().ints("pad", &[1 << 31, 1 << 31]).error();
    huge.ints("pad", &[-2, -2]).error();
    for kernel in [0, -1, 4, i64::MAX] {
        line("max_pool", &[1., 2., 3.])
            .ints("kernel_sizes", &[kernel])
            .text("pad_type", "valid")
            .error();
    }
    line("conv_transpose", &[1., 2.])
        .with("weight", floats(&[1, 1, 1], &[1.]))
        .ints("output_shape", &[1, 2, 2])
        .error();
}

#[test]
fn nothing_convolved_is_nothing() {
    let empty = Trial::of("conv")
        .with("x", floats(&[0, 2, 3], &[]))
        .with("weight", integers(&[4, 2, 3], 0));
    assert_eq!(empty.tensor().shape(), [0, 4, 1]);
    // Without input channels, sums of nothing.
    let hollow = Trial::of("conv")
        .with("x", floats(&[1, 0, 3], &[]))
        .with("weight", floats(&[2, 0, 3], &[]));
    assert_eq!(hollow.numbers(), [0., 0.]);
}
