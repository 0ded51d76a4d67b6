//! Evaluation of `non_maximum_suppression`.

use crate::ir::Opset;
use crate::ir::types::DType;
use crate::ops::evaluate::{Call, Datum, EvalError, Results};
use crate::tensor::Tensor;

/// A box by its borders.
#[derive(Clone, Copy)]
struct Borders {
    low: [f32; 2],
    high: [f32; 2],
    area: f32,
}

impl Borders {
    /// Of a box given by its center, width and height.
    fn new([x, y, width, height]: [f32; 4]) -> Self {
        Self {
            low: [x - 0.5 * width, y - 0.5 * height],
            high: [x + 0.5 * width, y + 0.5 * height],
            area: width * height,
        }
    }

    /// The area that two boxes share over the area that they cover; NaN if they cover none.
    fn overlap(&self, other: &Self) -> f32 {
        let side = |axis: usize| {
            let high = self.high[axis].min(other.high[axis]);
            (high - self.low[axis].max(other.low[axis])).max(0.0)
        };
        let shared = side(0) * side(1);
        shared / (self.area + other.area - shared)
    }
}

/// Boxes in falling order of their best score, without those that overlap an earlier one by more
/// than `iou_threshold` (with `per_class_suppression`: one whose best class is the same).
///
/// Since iOS 17 an overlap of exactly the threshold counts too, whatever the documentation says:
/// coremltools' own tests of that corner (`test_nms_corner_case_iou_equal_threshold`) expect such a box
/// to go, and to stay before. Boxes that share nothing never suppress each other.
///
/// Boxes whose best score is below `score_threshold` do not take part. If none is left, the box of
/// the best score is given alone, as coremltools' own tests expect. Places that no box fills hold
/// boxes and scores of 0 and the index −1. Of boxes with equal scores the first comes first; a NaN
/// score is lower than every other.
pub(super) fn non_maximum_suppression(call: &Call) -> Results {
    let (boxes, scores) = (call.tensor("boxes")?, call.tensor("scores")?);
    // Since iOS 17 the boxes are in the last dimension.
    let boxes_last = call.opset >= Opset::CoreML7;
    let turned = |tensor: &Tensor| -> Result<Tensor, EvalError> {
        if tensor.rank() != 3 {
            return Err(EvalError::invalid(format!(
                "boxes or scores have rank {}, not 3",
                tensor.rank()
            )));
        }
        Ok(if boxes_last {
            tensor.transposed(&[0, 2, 1])?
        } else {
            tensor.clone()
        })
    };
    let (boxes, scores) = (turned(boxes)?, turned(scores)?);
    let [batches, count, classes] = [scores.shape()[0], scores.shape()[1], scores.shape()[2]];
    if boxes.shape() != [batches, count, 4] || classes == 0 {
        return Err(EvalError::invalid(format!(
            "{:?} boxes do not fit {:?} scores",
            boxes.shape(),
            scores.shape()
        )));
    }
    let kept = call.int("max_boxes")?;
    let kept =
        usize::try_from(kept).map_err(|_| EvalError::invalid(format!("`max_boxes` is {kept}")))?;
    call.room_for(&[batches, kept, classes.max(4)])?;
    let limits = Limits {
        kept,
        overlap: call.float("iou_threshold")?,
        inclusive: boxes_last,
        score: call.float_or("score_threshold", f32::NEG_INFINITY)?,
        per_class: call.bool_or("per_class_suppression", false)?,
    };
    let (box_values, score_values) = (boxes.as_floats()?, scores.as_floats()?);
    let mut kept_boxes = vec![0.0; batches * kept * 4];
    let mut kept_scores = vec![0.0; batches * kept * classes];
    let mut indices = vec![-1; batches * kept];
    let mut counts = vec![0; batches];
    for (batch, number) in counts.iter_mut().enumerate() {
        let (rows, _) = box_values[batch * count * 4..(batch + 1) * count * 4].as_chunks::<4>();
        let scores = &score_values[batch * count * classes..(batch + 1) * count * classes];
        let chosen = select(rows, scores, classes, &limits);
        *number = chosen.len() as i64;
        for (place, index) in chosen.iter().enumerate() {
            let place = batch * kept + place;
            kept_boxes[place * 4..place * 4 + 4].copy_from_slice(&rows[*index]);
            kept_scores[place * classes..(place + 1) * classes]
                .copy_from_slice(&scores[index * classes..(index + 1) * classes]);
            indices[place] = *index as i64;
        }
    }
    let kept_boxes = Tensor::floats(boxes.dtype(), vec![batches, kept, 4], kept_boxes);
    let kept_scores = Tensor::floats(scores.dtype(), vec![batches, kept, classes], kept_scores);
    let indices = Datum::Tensor(Tensor::ints(DType::Int32, vec![batches, kept], indices));
    if boxes_last {
        let kept_boxes = kept_boxes.transposed(&[0, 2, 1])?;
        let kept_scores = kept_scores.transposed(&[0, 2, 1])?;
        return Ok(vec![kept_boxes.into(), kept_scores.into(), indices]);
    }
    let counts = Tensor::ints(DType::Int32, vec![batches], counts);
    Ok(vec![
        kept_boxes.into(),
        kept_scores.into(),
        indices,
        counts.into(),
    ])
}

struct Limits {
    kept: usize,
    overlap: f32,
    /// Whether an overlap of exactly the threshold counts.
    inclusive: bool,
    score: f32,
    per_class: bool,
}

/// The boxes to keep, in order.
fn select(boxes: &[[f32; 4]], scores: &[f32], classes: usize, limits: &Limits) -> Vec<usize> {
    struct Candidate {
        index: usize,
        class: usize,
        score: f32,
    }
    let mut candidates: Vec<Candidate> = scores
        .chunks_exact(classes)
        .enumerate()
        .map(|(index, scores)| {
            let (mut class, mut best) = (0, f32::NEG_INFINITY);
            for (place, score) in scores.iter().enumerate() {
                if *score > best {
                    (class, best) = (place, *score);
                }
            }
            Candidate {
                index,
                class,
                score: best,
            }
        })
        .collect();
    // Stable, so the first of equals stays first. No score is NaN any more.
    candidates.sort_by(|a, b| b.score.total_cmp(&a.score));
    let best = candidates.first().map(|candidate| candidate.index);
    let mut chosen: Vec<(usize, usize, Borders)> = Vec::new();
    for candidate in candidates {
        if chosen.len() == limits.kept || candidate.score < limits.score {
            break;
        }
        let Some(own) = boxes
            .get(candidate.index)
            .map(|values| Borders::new(*values))
        else {
            continue;
        };
        let suppressed = chosen.iter().any(|(_, class, other)| {
            let overlap = own.overlap(other);
            (!limits.per_class || *class == candidate.class)
                && (overlap > limits.overlap
                    || (limits.inclusive && overlap == limits.overlap && overlap > 0.0))
        });
        if !suppressed {
            chosen.push((candidate.index, candidate.class, own));
        }
    }
    let mut chosen: Vec<usize> = chosen.into_iter().map(|(index, ..)| index).collect();
    if chosen.is_empty() && limits.kept > 0 {
        chosen.extend(best);
    }
    chosen
}
