//! `crop_resize`: boxes cut out of images and resized.

use super::grid::Sampling;
use super::resize::target;
use super::sample::{Sample, read};
use crate::ir::Opset;
use crate::ops::evaluate::{Call, EvalError, Results, one};
use crate::tensor::Tensor;

/// Up to iOS 16 `roi` \[N, 1, 4 or 5, 1, 1\] gives \[N, B, C, height, width\], or
/// \[N, 1, C, height, width\] if the first of five numbers is the image. Since iOS 17 `boxes`
/// \[N, 4\] with `box_indices` \[N\] give \[N, C, height, width\].
///
/// A box holds the elements from its start to its end, both included; the points of the sampling
/// mode stay inside of it. A point outside of the image is `pad_value`.
pub(super) fn crop_resize(call: &Call) -> Results {
    let x = call.tensor("x")?;
    let &[images, channels, height, width] = x.shape() else {
        return Err(EvalError::invalid("`x` has not the rank 4"));
    };
    let [rows, columns] = target(call, ["target_height", "target_width"])?;
    let boxes = Boxes::new(call)?;
    let mut crops = Vec::new();
    for (index, corners) in boxes.corners.chunks(4).enumerate() {
        match boxes.images.as_ref() {
            None => crops.extend((0..images).map(|image| (image, corners))),
            Some(numbers) => {
                let number = numbers.get(index).copied().unwrap_or(-1);
                let image = usize::try_from(number).ok().filter(|image| *image < images);
                let image = image.ok_or(EvalError::OutOfRange {
                    parameter: boxes.parameter,
                    index: number,
                    lowest: 0,
                    highest: images as i64 - 1,
                })?;
                crops.push((image, corners));
            }
        }
    }
    let count = boxes.corners.len() / 4;
    let mut shape = vec![count, channels, rows, columns];
    if call.opset < Opset::CoreML7 {
        shape.insert(1, if boxes.images.is_some() { 1 } else { images });
    }
    let mut result = vec![0f32; call.room_for(&shape)?];
    call.room_for(&[rows, columns, 6])?;
    let frame = Frame::new(call, [height, width])?;
    let pad_value = call.float_or("pad_value", 0.0)?;
    let elements = x.as_floats()?;
    let image_size = elements.len().checked_div(images).unwrap_or(0);
    let crop_size = channels.saturating_mul(rows * columns).max(1);
    for ((image, corners), result) in crops.into_iter().zip(result.chunks_mut(crop_size)) {
        let samples = frame.samples(corners, [rows, columns])?;
        let image = &elements[image * image_size..][..image_size];
        let channel = image_size.checked_div(channels).unwrap_or(0);
        read(image, channel, &samples, pad_value, result);
    }
    one(Tensor::floats(x.dtype(), shape, result))
}

/// The boxes and the images they belong to.
struct Boxes {
    /// Four numbers for each box.
    corners: Vec<f32>,
    /// One image for each box, or all of them.
    images: Option<Vec<i64>>,
    /// The parameter that says so.
    parameter: &'static str,
}

impl Boxes {
    fn new(call: &Call) -> Result<Self, EvalError> {
        if call.opset >= Opset::CoreML7 {
            let boxes = call.tensor("boxes")?;
            let &[count, 4] = boxes.shape() else {
                return Err(EvalError::invalid(format!(
                    "`boxes` has the shape {:?}, not [N, 4]",
                    boxes.shape()
                )));
            };
            let images = match call.ints_if_any("box_indices")? {
                Some(indices) => indices.into_owned(),
                None => (0..count as i64).collect(),
            };
            let mut corners = vec![0.0; boxes.len()];
            boxes.read_floats(0, &mut corners)?;
            return Ok(Self {
                corners,
                images: Some(images),
                parameter: "box_indices",
            });
        }
        let (roi, values) = (call.tensor("roi")?, call.floats("roi")?);
        match *roi.shape() {
            [_, 1, 4, 1, 1] => Ok(Self {
                corners: values.into_owned(),
                images: None,
                parameter: "roi",
            }),
            [_, 1, 5, 1, 1] => Ok(Self {
                corners: values
                    .chunks(5)
                    .flat_map(|roi| &roi[1..])
                    .copied()
                    .collect(),
                images: Some(values.chunks(5).map(|roi| roi[0] as i64).collect()),
                parameter: "roi",
            }),
            _ => Err(EvalError::invalid(format!(
                "`roi` has the shape {:?}, not [N, 1, 4 or 5, 1, 1]",
                roi.shape()
            ))),
        }
    }
}

/// How the numbers of a box become points of an image.
struct Frame {
    sizes: [usize; 2],
    sampling: Sampling,
    normalized: bool,
    scale: f64,
    /// A box is given by its center and size, not by its corners.
    center: bool,
    width_first: bool,
}

impl Frame {
    fn new(call: &Call, sizes: [usize; 2]) -> Result<Self, EvalError> {
        let (center, width_first) =
            match call.string_or("box_coordinate_mode", "CORNERS_HEIGHT_FIRST")? {
                "CORNERS_HEIGHT_FIRST" => (false, false),
                "CORNERS_WIDTH_FIRST" => (false, true),
                "CENTER_SIZE_HEIGHT_FIRST" => (true, false),
                "CENTER_SIZE_WIDTH_FIRST" => (true, true),
                word => {
                    return Err(EvalError::invalid(format!(
                        "`box_coordinate_mode` \"{word}\" is not known"
                    )));
                }
            };
        Ok(Self {
            sizes,
            sampling: Sampling::of(call)?,
            normalized: call.bool_or("normalized_coordinates", false)?,
            scale: f64::from(call.float_or("spatial_scale", 1.0)?),
            center,
            width_first,
        })
    }

    /// The points of a box, row by row.
    fn samples(&self, corners: &[f32], counts: [usize; 2]) -> Result<Vec<Sample>, EvalError> {
        let &[a, b, c, d] = corners else {
            return Err(EvalError::invalid("a box has not four numbers"));
        };
        let pairs = if self.width_first {
            [(b, d), (a, c)]
        } else {
            [(a, c), (b, d)]
        };
        let points = |axis: usize| {
            let (first, second) = (f64::from(pairs[axis].0), f64::from(pairs[axis].1));
            let (start, end) = if self.center {
                (first - second / 2.0, first + second / 2.0)
            } else {
                (first, second)
            };
            let whole = if self.normalized {
                self.sizes[axis] as f64 - 1.0
            } else {
                1.0
            };
            let unit = whole * self.scale;
            self.sampling.points(start * unit, end * unit, counts[axis])
        };
        let (rows, columns) = (points(0), points(1));
        let inside = |point: f64, size: usize| point >= 0.0 && point <= size as f64 - 1.0;
        let mut samples = Vec::with_capacity(rows.len() * columns.len());
        for row in &rows {
            samples.extend(columns.iter().map(|column| {
                if inside(*row, self.sizes[0]) && inside(*column, self.sizes[1]) {
                    Sample::bilinear(self.sizes, *row, *column)
                } else {
                    Sample::PADDING
                }
            }));
        }
        Ok(samples)
    }
}
