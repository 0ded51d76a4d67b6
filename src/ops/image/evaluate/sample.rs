//! Images read at points between their elements.

use rayon::prelude::*;

/// The four elements around a point with their weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Places in a channel; one outside of it stands for padding.
    places: [usize; 4],
    weights: [f32; 4],
}

/// The place of everything outside.
const OUTSIDE: usize = usize::MAX;

/// Coordinates are cut off here, far outside of any image.
const FURTHEST: f64 = 1e12;

impl Sample {
    /// Padding alone.
    pub(super) const PADDING: Self = Self {
        places: [OUTSIDE; 4],
        weights: [1.0, 0.0, 0.0, 0.0],
    };

    /// Linear between the elements around (row, column) of an image; elements outside are padding.
    pub(super) fn bilinear([height, width]: [usize; 2], row: f64, column: f64) -> Self {
        let (row, column) = (
            row.clamp(-FURTHEST, FURTHEST),
            column.clamp(-FURTHEST, FURTHEST),
        );
        let (top, left) = (row.floor(), column.floor());
        let (down, right) = ((row - top) as f32, (column - left) as f32);
        let (top, left) = (top as i64, left as i64);
        let place = |row: i64, column: i64| place([height, width], row, column);
        Self {
            places: [
                place(top, left),
                place(top, left + 1),
                place(top + 1, left),
                place(top + 1, left + 1),
            ],
            weights: [
                (1.0 - down) * (1.0 - right),
                (1.0 - down) * right,
                down * (1.0 - right),
                down * right,
            ],
        }
    }

    /// The element nearest to (row, column), the even one if two are as near; padding if it is
    /// outside.
    pub(super) fn nearest(sizes: [usize; 2], row: f64, column: f64) -> Self {
        let whole = |value: f64| value.round_ties_even().clamp(-FURTHEST, FURTHEST) as i64;
        Self {
            places: [
                place(sizes, whole(row), whole(column)),
                OUTSIDE,
                OUTSIDE,
                OUTSIDE,
            ],
            weights: [1.0, 0.0, 0.0, 0.0],
        }
    }

    /// What stands there in a channel. Elements of weight 0 do not count, whatever they are.
    fn read(&self, channel: &[f32], padding: f32) -> f32 {
        let mut sum = 0.0;
        for (place, weight) in self.places.iter().zip(self.weights) {
            if weight != 0.0 {
                sum += weight * channel.get(*place).unwrap_or(&padding);
            }
        }
        sum
    }
}

fn place([height, width]: [usize; 2], row: i64, column: i64) -> usize {
    if (0..height as i64).contains(&row) && (0..width as i64).contains(&column) {
        row as usize * width + column as usize
    } else {
        OUTSIDE
    }
}

/// Reads all channels of an image at the same points.
pub(super) fn read(
    image: &[f32],
    channel: usize,
    samples: &[Sample],
    padding: f32,
    result: &mut [f32],
) {
    if samples.is_empty() {
        return;
    }
    result
        .par_chunks_mut(samples.len())
        .enumerate()
        .for_each(|(index, result)| {
            let channel = image.get(index * channel..(index + 1) * channel);
            let channel = channel.unwrap_or_default();
            for (value, sample) in result.iter_mut().zip(samples) {
                *value = sample.read(channel, padding);
            }
        });
}
