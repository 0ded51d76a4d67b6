//! Where the elements of a resized dimension lie in the original one.

use crate::ops::evaluate::{Call, EvalError};

/// How an interval is sampled. In each mode the points are those of the documentation of
/// `resize_bilinear`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sampling {
    /// The first and the last point are the ends; a single one is the first.
    StrictAlignCorners,
    /// The same, but a single point is the middle.
    AlignCorners,
    /// Elements and points are cells; cells are compared by their middles.
    UnalignCorners,
    /// Elements and points are cells; cells are compared by their beginnings.
    Default,
    /// Points are the middles of equal parts of the way from the first element to the last.
    OffsetCorners,
}

impl Sampling {
    /// The mode that `sampling_mode` names.
    pub(super) fn of(call: &Call) -> Result<Self, EvalError> {
        Ok(match call.string_or("sampling_mode", "DEFAULT")? {
            "STRICT_ALIGN_CORNERS" => Self::StrictAlignCorners,
            "ALIGN_CORNERS" => Self::AlignCorners,
            "UNALIGN_CORNERS" => Self::UnalignCorners,
            "DEFAULT" => Self::Default,
            "OFFSET_CORNERS" => Self::OffsetCorners,
            word => {
                return Err(EvalError::invalid(format!(
                    "`sampling_mode` \"{word}\" is not known"
                )));
            }
        })
    }

    /// `count` points in the interval from the element `first` to the element `last`, which may lie
    /// in front of it.
    pub(super) fn points(self, first: f64, last: f64, count: usize) -> Vec<f64> {
        let reach = last - first;
        let (low, high) = (first.min(last), first.max(last));
        // Number of elements.
        let size = reach + 1.0;
        let total = count as f64;
        (0..count)
            .map(|index| {
                let index = index as f64;
                let point = match self {
                    Self::AlignCorners if count == 1 => f64::midpoint(first, last),
                    Self::StrictAlignCorners if count == 1 => first,
                    Self::StrictAlignCorners | Self::AlignCorners => {
                        // The last point is exactly the end.
                        let part = index / (total - 1.0);
                        first * (1.0 - part) + last * part
                    }
                    Self::UnalignCorners => first + (index + 0.5) * size / total - 0.5,
                    Self::Default => first + index * size / total,
                    Self::OffsetCorners => first + (index + 0.5) * reach.max(1.0) / total,
                };
                if point < low {
                    low
                } else if point > high {
                    high
                } else {
                    point
                }
            })
            .collect()
    }

    /// `count` points over a dimension of `size` elements.
    pub(super) fn over(self, size: usize, count: usize) -> Vec<f64> {
        self.points(0.0, (size as f64 - 1.0).max(0.0), count)
    }
}
