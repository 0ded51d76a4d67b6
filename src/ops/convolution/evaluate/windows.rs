//! Where windows lie over a plane: which taps of which windows hit which elements.
//!
//! Everything is brought to three spatial axes; missing ones have size 1 in front.

use std::ops::Range;

use crate::ir::types::Dim;
use crate::ops::convolution::{PadType, Windows};
use crate::ops::evaluate::{Call, EvalError};
use crate::ops::view::Stop;

/// Sizes, pads, strides and dilations beyond this are refused, so that sums of their products with
/// each other stay countable.
const LARGEST: i64 = 1 << 31;

/// One tap of the kernel along an axis, with the windows in which it hits the plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tap {
    /// Its index in the kernel.
    pub(super) index: usize,
    /// The windows where it does not fall on padding.
    pub(super) windows: Range<usize>,
    /// The index in the plane that it hits in the first of them.
    pub(super) source: usize,
}

/// The windows along one axis.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    /// Size of the plane.
    pub(super) size: usize,
    /// Number of taps.
    pub(super) kernel: usize,
    /// Number of windows.
    pub(super) windows: usize,
    /// Elements of the plane from one window to the next.
    pub(super) stride: usize,
    /// The taps that hit the plane in some window.
    pub(super) taps: Vec<Tap>,
    before: i64,
    after: i64,
}

/// The windows over all three axes.
#[derive(Clone, Debug)]
pub(super) struct Geometry {
    /// Outermost first.
    pub(super) axes: [Axis; 3],
}

/// What `pad_type` and `pad`, `strides` and `dilations` say.
pub(super) struct Settings {
    windows: Windows,
    dilations: Vec<i64>,
    /// An odd padding has its larger half in front.
    lower: bool,
}

impl Settings {
    /// Reads the arguments for these kernel sizes. A pool has no dilations.
    pub(super) fn new(call: &Call, kernel: &[usize]) -> Result<Self, EvalError> {
        let spatial = kernel.len();
        let word = call.string_or("pad_type", "valid")?.to_ascii_lowercase();
        let pad_type = match word.as_str() {
            "valid" => PadType::Valid,
            "same" | "same_lower" => PadType::Same,
            "custom" => PadType::Custom,
            _ => {
                return Err(EvalError::invalid(format!(
                    "`pad_type` \"{word}\" is none of valid, same, same_lower, custom"
                )));
            }
        };
        let pad = match pad_type {
            PadType::Custom => numbers(call, "pad", 2 * spatial, 0, -LARGEST)?,
            PadType::Valid | PadType::Same => vec![0; 2 * spatial],
        };
        let strides = numbers(call, "strides", spatial, 1, 1)?;
        let dilations = numbers(call, "dilations", spatial, 1, 1)?;
        let taps = kernel
            .iter()
            .try_fold(1usize, |product, size| product.checked_mul(*size));
        let kernel = kernel
            .iter()
            .zip(&dilations)
            .map(|(size, dilation)| {
                let size = i64::try_from(*size).ok().filter(|size| *size >= 1)?;
                (size - 1).checked_mul(*dilation)?.checked_add(1)
            })
            .collect::<Option<Vec<_>>>()
            .filter(|sizes| taps.is_some() && sizes.iter().all(|size| *size <= LARGEST))
            .ok_or_else(|| EvalError::invalid("the kernel is empty or too large"))?;
        Ok(Self {
            windows: Windows {
                pad_type,
                strides,
                pad,
                kernel: kernel.into_iter().map(Some).collect(),
            },
            dilations,
            lower: word == "same_lower",
        })
    }

    /// The size of the kernel along an axis with its dilation.
    pub(super) fn extent(&self, index: usize) -> i64 {
        self.windows
            .kernel
            .get(index)
            .copied()
            .flatten()
            .unwrap_or(1)
    }

    /// The stride along an axis.
    pub(super) fn stride(&self, index: usize) -> i64 {
        self.windows.strides.get(index).copied().unwrap_or(1)
    }

    /// The padding before and behind an axis of this size.
    fn padding(&self, index: usize, size: i64) -> Option<(i64, i64)> {
        if self.windows.pad_type == PadType::Custom {
            return Some((self.windows.pad[2 * index], self.windows.pad[2 * index + 1]));
        }
        let total = self.windows.padding(index, size, self.extent(index))?;
        Some(self.halves(total))
    }

    fn halves(&self, total: i64) -> (i64, i64) {
        let small = total.div_euclid(2);
        if self.lower {
            (total - small, small)
        } else {
            (small, total - small)
        }
    }

    /// The windows of a convolution or pool over a plane of these sizes.
    pub(super) fn over(
        &self,
        sizes: &[usize],
        kernel: &[usize],
        ceil_mode: bool,
    ) -> Result<Geometry, EvalError> {
        let axes = sizes.iter().zip(kernel).enumerate();
        let axes = axes.map(|(index, (size, kernel))| {
            let count = self
                .windows
                .count(index, Dim::Known(*size as u64), ceil_mode)
                .map_err(stopped)?;
            let windows = count.size().and_then(|count| usize::try_from(count).ok());
            let padding = i64::try_from(*size)
                .ok()
                .and_then(|size| self.padding(index, size));
            let (Some(windows), Some((before, after))) = (windows, padding) else {
                return Err(EvalError::invalid("the windows cannot be counted"));
            };
            self.axis(index, *size, *kernel, windows, (before, after))
        });
        Geometry::new(axes.collect::<Result<Vec<_>, _>>()?)
    }

    /// The windows of the convolution that this transposed one is the gradient of: they slide over
    /// the result, and there are as many as `x` has elements.
    ///
    /// `result` is the shape that `output_shape` asks for. With the padding "same" it may be any
    /// size, and is `x`'s size times the stride by default; the padding follows from it.
    pub(super) fn behind(
        &self,
        sizes: &[usize],
        kernel: &[usize],
        result: Option<&[usize]>,
    ) -> Result<Geometry, EvalError> {
        let axes = sizes.iter().zip(kernel).enumerate();
        let axes = axes.map(|(index, (windows, kernel))| {
            let wrong = || EvalError::invalid("`pad` leaves nothing of the result");
            let count = i64::try_from(*windows).map_err(|_| wrong())?;
            let full = (count - 1)
                .checked_mul(self.stride(index))
                .and_then(|reach| reach.checked_add(self.extent(index)))
                .ok_or_else(wrong)?;
            let asked = result.and_then(|result| result.get(index)).copied();
            let asked = asked.and_then(|size| i64::try_from(size).ok());
            let (size, padding) = if self.windows.pad_type == PadType::Same {
                let size = match asked {
                    Some(size) => size,
                    None => count.checked_mul(self.stride(index)).ok_or_else(wrong)?,
                };
                (size, self.halves((full.saturating_sub(size)).max(0)))
            } else {
                let pad = (self.windows.pad[2 * index], self.windows.pad[2 * index + 1]);
                (asked.unwrap_or(full - pad.0 - pad.1), pad)
            };
            let size = usize::try_from(size).map_err(|_| wrong())?;
            self.axis(index, size, *kernel, *windows, padding)
        });
        Geometry::new(axes.collect::<Result<Vec<_>, _>>()?)
    }

    fn axis(
        &self,
        index: usize,
        size: usize,
        kernel: usize,
        windows: usize,
        padding: (i64, i64),
    ) -> Result<Axis, EvalError> {
        let (stride, dilation) = (self.stride(index), self.dilations[index]);
        if [size, windows].iter().any(|size| *size as i64 > LARGEST) {
            return Err(EvalError::invalid(format!(
                "{windows} windows over {size} elements are too many"
            )));
        }
        Ok(Axis {
            size,
            kernel,
            windows,
            stride: stride as usize,
            taps: taps(
                size as i64,
                kernel as i64,
                windows as i64,
                stride,
                dilation,
                padding.0,
            ),
            before: padding.0,
            after: padding.1,
        })
    }
}

/// The taps that hit one of `size` elements in one of so many windows, `before` elements of padding
/// in front.
fn taps(size: i64, kernel: i64, windows: i64, stride: i64, dilation: i64, before: i64) -> Vec<Tap> {
    if size == 0 || windows == 0 {
        return Vec::new();
    }
    // Tap k of window w hits the element w·stride + k·dilation − before.
    let lowest = ceil_div(before - (windows - 1) * stride, dilation).max(0);
    let highest = (before + size - 1).div_euclid(dilation).min(kernel - 1);
    (lowest..=highest)
        .filter_map(|tap| {
            let shift = tap * dilation - before;
            let first = ceil_div(-shift, stride).max(0);
            let end = ((size - 1 - shift).div_euclid(stride) + 1).min(windows);
            (first < end).then(|| Tap {
                index: tap as usize,
                windows: first as usize..end as usize,
                source: (first * stride + shift) as usize,
            })
        })
        .collect()
}

fn ceil_div(numerator: i64, divisor: i64) -> i64 {
    -(-numerator).div_euclid(divisor)
}

impl Axis {
    /// For each window, how many of its taps hit the plane, or also its padding: taps beyond the
    /// padding, which a rounded-up count of windows brings, never count (as in PyTorch).
    pub(super) fn hits(&self, with_padding: bool) -> Vec<usize> {
        (0..self.windows)
            .map(|window| {
                let start = (window * self.stride) as i64 - self.before;
                let end = start + self.kernel as i64;
                let (low, high) = if with_padding {
                    (start, end.min(self.size as i64 + self.after))
                } else {
                    (start.max(0), end.min(self.size as i64))
                };
                (high - low).max(0) as usize
            })
            .collect()
    }

    /// An axis with one element and one window.
    fn single() -> Self {
        Self {
            size: 1,
            kernel: 1,
            windows: 1,
            stride: 1,
            taps: taps(1, 1, 1, 1, 1, 0),
            before: 0,
            after: 0,
        }
    }
}

impl Geometry {
    fn new(mut axes: Vec<Axis>) -> Result<Self, EvalError> {
        while axes.len() < 3 {
            axes.insert(0, Axis::single());
        }
        let axes = axes
            .try_into()
            .map_err(|_| EvalError::invalid("`x` has more than three spatial dimensions"))?;
        Ok(Self { axes })
    }

    /// The numbers of windows along the last axes, as many as there are.
    pub(super) fn windows(&self, spatial: usize) -> Vec<usize> {
        self.axes[3 - spatial..]
            .iter()
            .map(|axis| axis.windows)
            .collect()
    }

    /// The sizes of the plane along the last axes, as many as there are.
    pub(super) fn sizes(&self, spatial: usize) -> Vec<usize> {
        self.axes[3 - spatial..]
            .iter()
            .map(|axis| axis.size)
            .collect()
    }

    /// Number of taps of the kernel.
    pub(super) fn kernel(&self) -> usize {
        self.axes.iter().map(|axis| axis.kernel).product()
    }

    /// True if every window is one element, and the windows are the plane itself.
    pub(super) fn is_pointwise(&self) -> bool {
        self.axes.iter().all(|axis| {
            axis.kernel == 1 && axis.windows == axis.size && axis.stride == 1 && axis.before == 0
        })
    }

    /// Calls `with_tap` for each tap that hits the plane, with its index in the kernel.
    pub(super) fn each_tap(&self, mut with_tap: impl FnMut(usize, [&Tap; 3])) {
        let [outer, middle, inner] = &self.axes;
        for a in &outer.taps {
            for b in &middle.taps {
                for c in &inner.taps {
                    let index = (a.index * middle.kernel + b.index) * inner.kernel + c.index;
                    with_tap(index, [a, b, c]);
                }
            }
        }
    }

    /// Calls `with_run` for each run of windows along the last axis in which a tap hits the plane:
    /// the index of the first window, that of the element hit in it, and the number of windows. From
    /// one window to the next, the element moves by the stride of the last axis.
    pub(super) fn each_run(&self, tap: [&Tap; 3], mut with_run: impl FnMut(usize, usize, usize)) {
        let [outer, middle, inner] = &self.axes;
        for a in tap[0].windows.clone() {
            let plane_a = tap[0].source + (a - tap[0].windows.start) * outer.stride;
            for b in tap[1].windows.clone() {
                let plane_b = tap[1].source + (b - tap[1].windows.start) * middle.stride;
                with_run(
                    (a * middle.windows + b) * inner.windows + tap[2].windows.start,
                    (plane_a * middle.size + plane_b) * inner.size + tap[2].source,
                    tap[2].windows.len(),
                );
            }
        }
    }
}

/// A rank-1 argument with `length` elements, none below `least` or beyond the largest.
fn numbers(
    call: &Call,
    parameter: &'static str,
    length: usize,
    default: i64,
    least: i64,
) -> Result<Vec<i64>, EvalError> {
    let Some(values) = call.ints_if_any(parameter)? else {
        return Ok(vec![default; length]);
    };
    if values.len() == length && values.iter().all(|v| (least..=LARGEST).contains(v)) {
        Ok(values.into_owned())
    } else {
        Err(EvalError::invalid(format!(
            "`{parameter}` is {values:?} with {length} elements expected"
        )))
    }
}

fn stopped(stop: Stop) -> EvalError {
    match stop {
        Stop::NoRule => EvalError::invalid("the windows cannot be counted"),
        Stop::Wrong(error) => EvalError::invalid(error.to_string()),
    }
}
