//! Windows in blocks, so that the scratch memory of a product stays small.

use std::ops::Range;

use super::windows::{Geometry, Tap};

/// Elements that the scratch of one block may take: what fits a cache.
const SCRATCH: usize = 1 << 20;

/// Windows of a block at least, whatever they take: few columns make slow products.
const FEWEST: usize = 64;

/// Windows whose results stand one behind the other: whole lines, or a part of one.
pub(super) struct Block {
    /// Lines along the last axis, counted over the first two.
    lines: Range<usize>,
    /// Windows of each line.
    within: Range<usize>,
}

/// Cuts the windows, each of which needs so many elements of scratch, into blocks.
pub(super) fn blocks(geometry: &Geometry, elements: usize) -> Vec<Block> {
    let [outer, middle, inner] = &geometry.axes;
    let (lines, width) = (outer.windows * middle.windows, inner.windows);
    let most = (SCRATCH / elements.max(1)).max(FEWEST);
    if width > most {
        let starts = (0..width).step_by(most);
        return (0..lines)
            .flat_map(|line| {
                starts.clone().map(move |start| Block {
                    lines: line..line + 1,
                    within: start..(start + most).min(width),
                })
            })
            .collect();
    }
    let together = (most / width.max(1)).max(1);
    (0..lines)
        .step_by(together)
        .map(|line| Block {
            lines: line..(line + together).min(lines),
            within: 0..width,
        })
        .collect()
}

impl Block {
    /// Number of windows.
    pub(super) fn len(&self) -> usize {
        self.lines.len() * self.within.len()
    }

    /// Index of the first window.
    pub(super) fn start(&self, geometry: &Geometry) -> usize {
        self.lines.start * geometry.axes[2].windows + self.within.start
    }

    /// Calls `with_run` for each run of windows along the last axis in which a tap hits the plane, as
    /// [`Geometry::each_run`] does; windows count from the first of the block.
    pub(super) fn each_run(
        &self,
        geometry: &Geometry,
        tap: [&Tap; 3],
        mut with_run: impl FnMut(usize, usize, usize),
    ) {
        let [outer, middle, inner] = &geometry.axes;
        let first = tap[2].windows.start.max(self.within.start);
        let end = tap[2].windows.end.min(self.within.end);
        if first >= end {
            return;
        }
        let source = tap[2].source + (first - tap[2].windows.start) * inner.stride;
        for (index, line) in self.lines.clone().enumerate() {
            let (a, b) = (line / middle.windows, line % middle.windows);
            if !tap[0].windows.contains(&a) || !tap[1].windows.contains(&b) {
                continue;
            }
            let plane_a = tap[0].source + (a - tap[0].windows.start) * outer.stride;
            let plane_b = tap[1].source + (b - tap[1].windows.start) * middle.stride;
            with_run(
                index * self.within.len() + first - self.within.start,
                (plane_a * middle.size + plane_b) * inner.size + source,
                end - first,
            );
        }
    }
}
