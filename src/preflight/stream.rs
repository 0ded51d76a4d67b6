//! The residual stream of a function in numbers: peaks, the first overflow, and what to scale it by.

use super::anatomy::Anatomy;
use super::report::{Alpha, LayerReport, Status, StreamReport};
use crate::analysis::residual;
use crate::eval::ranges::{FunctionRanges, HALF_MAX};

/// The stream of a function with what was measured of it; `None` if it has none.
pub(super) fn of(anatomy: &Anatomy, ranges: &FunctionRanges) -> Option<StreamReport> {
    let start = anatomy.start.clone()?;
    let peak = |name: &str| ranges.get(name).map_or(0.0, |range| range.peak);
    let most = |names: &[String]| names.iter().map(|name| peak(name)).fold(0.0, f64::max);
    let layers: Vec<LayerReport> = anatomy
        .layers
        .iter()
        .enumerate()
        .map(|(index, layer)| {
            let value = layer.values.last().cloned().unwrap_or_default();
            let (own, within) = (peak(&value), most(&layer.values));
            LayerReport {
                layer: index,
                value,
                peak: own,
                peak_within: within,
                branch_peak: most(&layer.branches),
                alpha: if within > HALF_MAX {
                    residual::alpha(within)
                } else {
                    1.0
                },
                status: Status::of(within),
            }
        })
        .collect();
    let start_peak = peak(&start);
    let all = layers.iter().map(|layer| layer.peak_within);
    let greatest = all.fold(start_peak, f64::max);
    let branch_peak = layers.iter().map(|l| l.branch_peak).fold(0.0, f64::max);
    let first = layers.iter().position(|layer| layer.peak_within > HALF_MAX);
    let alpha = (greatest > residual::TARGET).then(|| {
        let power_of_two = residual::power_of_two(greatest);
        Alpha {
            to_target: residual::alpha(greatest),
            power_of_two,
            power_of_two_peak: greatest * power_of_two,
        }
    });
    Some(StreamReport {
        start,
        start_peak,
        peak: greatest,
        branch_peak,
        is_accumulation: greatest > HALF_MAX && branch_peak <= HALF_MAX,
        first_overflow_layer: first,
        alpha,
        layers,
    })
}
