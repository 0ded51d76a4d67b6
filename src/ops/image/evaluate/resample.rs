//! `resample` and `affine`: images read at given coordinates.

use super::resize::target;
use super::sample::{Sample, read};
use crate::ops::evaluate::{Call, EvalError, Results, one};
use crate::tensor::Tensor;

/// What coordinates mean.
#[derive(Clone, Copy)]
enum Unit {
    /// Elements.
    Element,
    /// −1 and 1 are the ends.
    MinusOneToOne,
    /// 0 and 1 are the ends.
    ZeroToOne,
}

/// What stands outside of the image.
#[derive(Clone, Copy)]
enum Padding {
    /// A constant.
    Constant,
    /// The nearest element of the border.
    Border,
    /// The image mirrored at the middle of the border's elements.
    Reflection,
    /// The image mirrored at the outer edge of the border's elements.
    Symmetric,
}

/// How coordinates are read. The ends of normalized ones are the middles of the first and the last
/// element with `align_corners`, their outer edges without.
struct Sampler {
    sizes: [usize; 2],
    unit: Unit,
    align_corners: bool,
    padding: Padding,
    nearest: bool,
}

impl Sampler {
    fn new(call: &Call, sizes: [usize; 2]) -> Result<Self, EvalError> {
        let unknown = |parameter: &str, word: &str| {
            EvalError::invalid(format!("`{parameter}` \"{word}\" is not known"))
        };
        let word = |parameter: &'static str, default: &'static str| {
            let word = call.string_or(parameter, default)?;
            Ok::<_, EvalError>(word.to_ascii_lowercase())
        };
        let mode = word("coordinates_mode", "unnormalized")?;
        let padding = word("padding_mode", "constant")?;
        let sampling = word("sampling_mode", "bilinear")?;
        Ok(Self {
            sizes,
            unit: match mode.as_str() {
                "unnormalized" => Unit::Element,
                "normalized_minus_one_to_one" => Unit::MinusOneToOne,
                "normalized_zero_to_one" => Unit::ZeroToOne,
                _ => return Err(unknown("coordinates_mode", &mode)),
            },
            align_corners: call.bool_or("align_corners", false)?,
            padding: match padding.as_str() {
                "constant" => Padding::Constant,
                "border" => Padding::Border,
                "reflection" => Padding::Reflection,
                "symmetric" => Padding::Symmetric,
                _ => return Err(unknown("padding_mode", &padding)),
            },
            nearest: match sampling.as_str() {
                "bilinear" => false,
                "nearest" => true,
                _ => return Err(unknown("sampling_mode", &sampling)),
            },
        })
    }

    /// The sample at (x, y), along the width and the height.
    fn sample(&self, x: f64, y: f64) -> Sample {
        let [height, width] = self.sizes;
        let (row, column) = (self.place(y, height), self.place(x, width));
        if self.nearest {
            Sample::nearest(self.sizes, row, column)
        } else {
            Sample::bilinear(self.sizes, row, column)
        }
    }

    /// A coordinate as a place along a dimension, brought inside as the padding says.
    fn place(&self, coordinate: f64, size: usize) -> f64 {
        let size = size as f64;
        let last = size - 1.0;
        let part = match self.unit {
            Unit::Element => None,
            Unit::MinusOneToOne => Some(f64::midpoint(coordinate, 1.0)),
            Unit::ZeroToOne => Some(coordinate),
        };
        let place = match part {
            None => coordinate,
            Some(part) if self.align_corners => part * last,
            Some(part) => part * size - 0.5,
        };
        let place = match self.padding {
            Padding::Constant => return place,
            Padding::Border => place,
            Padding::Reflection => mirrored(place, 0.0, last),
            Padding::Symmetric => mirrored(place, -0.5, size),
        };
        place.max(0.0).min(last)
    }
}

/// A place brought into the interval of this length from `start` on, which is repeated with its
/// mirror image.
fn mirrored(place: f64, start: f64, length: f64) -> f64 {
    if length <= 0.0 {
        return start;
    }
    let along = (place - start).abs() % (2.0 * length);
    start
        + if along > length {
            2.0 * length - along
        } else {
            along
        }
}

/// x \[B, C, H, W\] at coordinates \[B, H′, W′, 2\], each (x, y), gives \[B, C, H′, W′\].
pub(super) fn resample(call: &Call) -> Results {
    let coordinates = call.tensor("coordinates")?;
    let &[batch, rows, columns, 2] = coordinates.shape() else {
        return Err(EvalError::invalid(format!(
            "`coordinates` has the shape {:?}, not [B, H, W, 2]",
            coordinates.shape()
        )));
    };
    let mut places = vec![0f32; coordinates.len()];
    coordinates.read_floats(0, &mut places)?;
    let positions = rows * columns;
    sampled(call, batch, [rows, columns], |sampler, image| {
        let places = &places[image * positions * 2..][..positions * 2];
        places
            .chunks(2)
            .map(|pair| sampler.sample(f64::from(pair[0]), f64::from(pair[1])))
            .collect()
    })
}

/// The output's pixels, with coordinates from −1 to 1 in both directions, are carried by
/// `transform_matrix` \[B or 1, 6\] to the places where `x` is read. A single pixel has the
/// coordinate 0, as in PyTorch.
pub(super) fn affine(call: &Call) -> Results {
    let batch = call.tensor("x")?.shape().first().copied().unwrap_or(0);
    let matrix = call.tensor("transform_matrix")?;
    let shared = match *matrix.shape() {
        [1, 6] => true,
        [count, 6] if count == batch => false,
        _ => {
            return Err(EvalError::invalid(format!(
                "`transform_matrix` has the shape {:?} for {batch} images",
                matrix.shape()
            )));
        }
    };
    let matrices = call.floats("transform_matrix")?;
    let [rows, columns] = target(call, ["output_height", "output_width"])?;
    call.room_for(&[rows, columns, 6])?;
    let align = call.bool_or("align_corners", true)?;
    let axis = |count: usize| -> Vec<f64> {
        let ends = if align {
            count as f64 - 1.0
        } else {
            count as f64
        };
        let point = |index: usize| match count {
            1 => 0.0,
            _ if align => 2.0 * index as f64 / ends - 1.0,
            _ => (2.0 * index as f64 + 1.0) / ends - 1.0,
        };
        (0..count).map(point).collect()
    };
    let (vertical, horizontal) = (axis(rows), axis(columns));
    sampled(call, batch, [rows, columns], |sampler, image| {
        let start = if shared { 0 } else { image * 6 };
        let m: Vec<f64> = matrices[start..start + 6]
            .iter()
            .map(|v| f64::from(*v))
            .collect();
        let mut samples = Vec::with_capacity(rows * columns);
        for y in &vertical {
            samples.extend(horizontal.iter().map(|x| {
                let (u, v) = (m[0] * x + m[1] * y + m[2], m[3] * x + m[4] * y + m[5]);
                sampler.sample(u, v)
            }));
        }
        samples
    })
}

/// Each image of `x` read at the samples made for it.
fn sampled(
    call: &Call,
    batch: usize,
    [rows, columns]: [usize; 2],
    samples: impl Fn(&Sampler, usize) -> Vec<Sample>,
) -> Results {
    let x = call.tensor("x")?;
    let &[images, channels, height, width] = x.shape() else {
        return Err(EvalError::invalid("`x` has not the rank 4"));
    };
    if images != batch {
        return Err(EvalError::invalid(format!(
            "{images} images are read with coordinates for {batch}"
        )));
    }
    let shape = vec![images, channels, rows, columns];
    let mut result = vec![0f32; call.room_for(&shape)?];
    let sampler = Sampler::new(call, [height, width])?;
    let padding = call.float_or("padding_value", 0.0)?;
    let elements = x.as_floats()?;
    let size = elements.len().checked_div(images).unwrap_or(0);
    let channel = size.checked_div(channels).unwrap_or(0);
    let step = result.len().checked_div(images).unwrap_or(0).max(1);
    for (image, result) in result.chunks_mut(step).enumerate() {
        let samples = samples(&sampler, image);
        let image = &elements[image * size..][..size];
        read(image, channel, &samples, padding, result);
    }
    one(Tensor::floats(x.dtype(), shape, result))
}
